"""Attention, rotary embeddings, and the caches of keys and values."""

from __future__ import annotations

from typing import Any

import numpy as np

from kuiper.onnx.builder import Builder
from kuiper.onnx.registry import op
from kuiper.onnx.shapes import index_list
from kuiper.onnx.values import Known, Ref, Size

__all__ = ["Mask", "attend", "positions", "rotated", "split_heads"]

DOUBLE = 11  # the element type float64


def positions(b: Builder, start: Any, stop: Any, shape: Any = (-1,)) -> Any:
    """Return the integers from `start` to `stop`, in a shape of one axis of them."""
    if isinstance(start, int) and isinstance(stop, int):
        return Known(np.arange(start, stop, dtype=np.int64).reshape(shape))
    found = b.emit("torch.arange", start=start, end=stop, step=1, dtype="torch.long")
    return found if len(shape) == 1 else b.emit("Tensor.reshape", found, shape=list(shape))


class Mask:
    """What queries see of the keys: a condition, True where they do, and a summand of the scores.

    Parameters
    ----------
    b : Builder
    keys : int or Size
    """

    def __init__(self, b: Builder, keys: Any) -> None:
        self._b, self._keys = b, keys
        self._seen: Any = None
        self._bias: Any = None

    def see(self, condition: Any) -> None:
        """Add a condition."""
        if self._seen is None:
            self._seen = condition
        elif isinstance(self._seen, Known) and isinstance(condition, Known):
            self._seen = Known(self._seen.array & condition.array)
        else:
            self._seen = self._b.emit("torch.logical_and", self._seen, condition)

    def add(self, mask: Any) -> None:
        """Add the mask of a file: bools, or summands; keys after its last one are not seen."""
        b, short = self._b, mask.rank and _minus(self._keys, self._b.extents(mask)[-1])
        is_bool = mask.dtype == np.bool_
        if isinstance(short, Size) or short:
            fill: Any = False if is_bool else -np.inf
            if isinstance(mask, Known) and not mask.is_open and isinstance(short, int):
                width = [(0, 0)] * (mask.rank - 1) + [(0, short)]
                mask = Known(np.pad(mask.array, width, constant_values=fill))
            else:
                mask = b.emit("F.pad", mask, pad=[0, short], mode="constant", value=fill)
        if is_bool:
            self.see(mask)
        else:
            self._bias = mask if self._bias is None else b.call("add", b.ref(self._bias), mask)

    def see_window(self, first: Any, queries: Any, left: int = -1, right: int = -1) -> None:
        """Let queries see the keys from `left` before themselves to `right` after themselves.

        The first of the `queries` is at the position `first`: a number, or a tensor (batch,) of
        them.  A negative bound is none.
        """
        b = self._b
        key = positions(b, 0, self._keys)
        if isinstance(first, Ref):
            steps = positions(b, 0, queries, (-1, 1))
            start = b.emit("Tensor.reshape", first, shape=(-1, 1, 1, 1))
            query: Any = b.call("add", start, steps)
        else:
            query = positions(b, first, first + queries, (-1, 1))
        for bound, shift, name in ((right, right, "torch.ge"), (left, -left, "torch.le")):
            if bound < 0:
                continue
            if isinstance(query, Known) and isinstance(key, Known):
                ends = query.array + shift
                compare = np.greater_equal if name == "torch.ge" else np.less_equal
                self.see(Known(np.asarray(compare(ends, key.array), bool)))
            else:
                end = b.call("add", b.ref(query), shift) if shift else query
                self.see(b.emit(name, end, key))

    def see_first(self, counts: Any) -> None:
        """Let all queries see only the first `counts` (batch,) keys."""
        b = self._b
        limit = b.emit("Tensor.reshape", b.cast(b.ref(counts), np.int64), shape=(-1, 1, 1, 1))
        self.see(b.emit("torch.gt", limit, positions(b, 0, self._keys)))

    @property
    def value(self) -> Any:
        """One tensor: bools, or summands; None if queries see all keys."""
        if self._bias is None:
            return self._seen
        return self._bias if self._seen is None else self.hidden(self._bias)

    def hidden(self, x: Any) -> Any:
        """Return a tensor with -inf where a key is not seen."""
        if self._seen is None:
            return x
        low = Known(np.array(-np.inf, x.dtype))
        return self._b.emit("torch.where", self._seen, x, low)

    def blind(self) -> Any:
        """Return the condition of queries that see no key, None if none can be so."""
        value = self.value
        if value is None or value.rank == 0:
            return None
        if isinstance(value, Known) and not value.is_open:
            sees = value.array if value.dtype == np.bool_ else value.array > -np.inf
            found = np.asarray(~sees.any(-1, keepdims=True))
            return Known(found) if found.any() else None
        b = self._b
        if value.dtype == np.bool_:
            value = b.cast(b.ref(value), np.uint8)
            best = b.emit("torch.amax", value, dim=(-1,), keepdim=True)
            return b.emit("torch.eq", best, Known(np.zeros((), np.uint8)))
        best = b.emit("torch.amax", b.ref(value), dim=(-1,), keepdim=True)
        return b.emit("torch.eq", best, Known(np.array(-np.inf, best.dtype)))


def _minus(x: Any, y: Any) -> Any:
    """Return a difference of extents; 0 if they are the same one."""
    if isinstance(x, Size) and x._same(y):
        return 0
    return x - y


def split_heads(b: Builder, x: Any, heads: int | None, name: str) -> Any:
    """Return a tensor (batch, length, heads * size) as (batch, heads, length, size)."""
    if x.rank == 4:
        return b.ref(x)
    if x.rank != 3:
        raise b.error(f"{name} has {x.rank} axes, expected 3 or 4")
    if not heads:
        raise b.error(f"{name} has 3 axes, so expected the number of heads")
    batch, length, width = b.extents(x)
    if isinstance(width, int):
        if width % heads:
            raise b.error(f"{name} has {width} features, which {heads} heads do not divide")
        width //= heads
    else:
        width = width // heads
    parts = b.emit("Tensor.reshape", x, shape=one_open([batch, length, heads, width]))
    return b.emit("Tensor.permute", parts, dims=(0, 2, 1, 3))


def one_open(shape: list[Any]) -> list[Any]:
    """Return a shape with -1 for its only open extent."""
    found = [i for i, n in enumerate(shape) if not isinstance(n, int)]
    if len(found) == 1 and all(shape[i] for i in range(len(shape)) if i not in found):
        return [-1 if i in found else n for i, n in enumerate(shape)]
    return shape


def joined_heads(b: Builder, y: Any) -> Any:
    """Return a tensor (batch, heads, length, size) as (batch, length, heads * size)."""
    batch, heads, length, size = b.extents(y)
    y = b.emit("Tensor.permute", y, dims=(0, 2, 1, 3))
    return b.emit("Tensor.reshape", y, shape=one_open([batch, length, heads * size]))


def attend(
    b: Builder, q: Any, k: Any, v: Any, mask: Mask, *, scale: float, causal: bool = False,
    softcap: float = 0.0, scores: int | None = None, precision: int | None = None,
    sink: Any = None,
) -> tuple[Any, Any]:  # fmt: skip
    """Return attention of tensors (batch, heads, length, size), and scores if they are asked for.

    `causal` hides keys after the query; 0, 1, 2 and 3 as `scores` mean those of the product, with
    the soft cap, with the mask, and after the softmax.
    """
    heads, key_heads = b.extents(q)[1], b.extents(k)[1]
    if not isinstance(heads, int) or not isinstance(key_heads, int):
        raise b.error("the number of heads is open, expected a known one")
    if not key_heads or heads % key_heads:
        raise b.error(f"{heads} heads cannot be grouped over {key_heads} heads of keys")
    is_plain = q.dtype == np.float32 and precision != DOUBLE
    if scores is None and softcap == 0 and sink is None and is_plain:
        y = b.emit(
            "F.scaled_dot_product_attention", q, k, v, attn_mask=mask.value, dropout_p=0.0,
            is_causal=causal, scale=float(scale), enable_gqa=True if heads > key_heads else None,
        )  # fmt: skip
        found = None
    else:
        if causal:
            mask.see_window(0, b.extents(q)[2], right=0)
        y, found = _composed(b, q, k, v, mask, scale, softcap, scores, precision, sink)
    # The number of keys may depend on data; the result does not.
    shape = [*b.extents(q)[:3], b.extents(v)[3]]
    return b.declared(y, q.dtype, [None if isinstance(n, Size) else n for n in shape]), found


def _composed(
    b: Builder, q: Any, k: Any, v: Any, mask: Mask, scale: float, softcap: float, scores: Any,
    precision: Any, sink: Any,
) -> tuple[Any, Any]:  # fmt: skip
    (batch, heads, queries, _), (_, key_heads, keys, _) = b.extents(q), b.extents(k)
    groups = heads // key_heads
    if groups > 1:
        q = b.emit("Tensor.reshape", q, shape=[batch, key_heads, groups, queries, b.extents(q)[3]])
        k, v = (b.emit("torch.unsqueeze", x, dim=2) for x in (k, v))
    found: list[Any] = []
    product_ = b.emit("torch.matmul", q, b.emit("torch.transpose", k, dim0=-2, dim1=-1))
    total = b.call("mul", product_, float(scale))
    if groups > 1:
        total = b.emit("Tensor.reshape", total, shape=[batch, heads, queries, keys])
    found.append(total)
    if softcap:
        total = b.formula("mul(tanh(div(@0,@1)),@1)", total, float(softcap))
    found.append(total)
    bias = mask._bias
    if bias is not None:
        total = b.call("add", total, b.ref(bias))
    total = mask.hidden(total)
    found.append(total)
    if sink is not None:
        column = b.emit("Tensor.reshape", b.ref(sink), shape=[1, -1, 1, 1])
        column = b.emit("Tensor.expand", column, shape=[batch, heads, queries, 1])
        total = b.emit("torch.cat", total, column, dim=-1)
    wide = b.cast(total, np.float64) if precision == DOUBLE else total
    weights = b.cast(b.emit("F.softmax", wide, dim=-1), q.dtype)
    if sink is not None:
        weights = b.emit("Tensor.slice", weights, dim=-1, start=0, end=keys, step=1)
    blind = mask.blind()
    if blind is not None:
        weights = b.emit("torch.where", blind, Known(np.zeros((), q.dtype)), weights)
    found.append(weights)
    if groups > 1:
        weights = b.emit("Tensor.reshape", weights, shape=[batch, key_heads, groups, queries, keys])
    y = b.emit("torch.matmul", weights, v)
    if groups > 1:
        y = b.emit("Tensor.reshape", y, shape=[batch, heads, queries, b.extents(v)[-1]])
    return y, None if scores is None else found[scores]


@op("Attention", since=23)
def attention(
    b: Builder, q: Any, k: Any, v: Any, attn_mask: Any = None, past_key: Any = None,
    past_value: Any = None, nonpad_kv_seqlen: Any = None, *, is_causal: int = 0,
    kv_num_heads: int = 0, q_num_heads: int = 0, qk_matmul_output_mode: int = 0,
    scale: float | None = None, softcap: float = 0.0, softmax_precision: int | None = None,
    left_window_size: int = -1, right_window_size: int = -1,
) -> Any:  # fmt: skip
    if (past_key is None) != (past_value is None):
        raise b.error("has one of past_key and past_value, expected both or none")
    if past_key is not None and nonpad_kv_seqlen is not None:
        raise b.error("has past_key and nonpad_kv_seqlen, expected at most one of them")
    if qk_matmul_output_mode not in range(4):
        raise b.error(f"qk_matmul_output_mode is {qk_matmul_output_mode}, expected 0 to 3")
    rank = q.rank
    q = split_heads(b, q, q_num_heads, "Q")
    k, v = (split_heads(b, x, kv_num_heads, "K or V") for x in (k, v))
    first: Any = 0
    queries = b.extents(q)[2]
    if past_key is not None:
        first = b.extents(past_key)[2]
        k, v = (b.emit("torch.cat", past, x, dim=2) for past, x in ((past_key, k), (past_value, v)))
    mask = Mask(b, b.extents(k)[2])
    if attn_mask is not None:
        mask.add(attn_mask)
    if nonpad_kv_seqlen is not None:
        mask.see_first(nonpad_kv_seqlen)
        first = b.call("sub", b.cast(b.ref(nonpad_kv_seqlen), np.int64), queries)
    is_top_left = isinstance(first, int) and first == 0
    if is_causal and not is_top_left:
        right_window_size = 0 if right_window_size < 0 else min(0, right_window_size)
    if max(left_window_size, right_window_size) >= 0:
        mask.see_window(first, queries, left_window_size, right_window_size)
    if scale is None:
        size = b.extents(q)[3]
        if not isinstance(size, int):
            raise b.error("the size of the heads is open, expected a known one")
        scale = size**-0.5 if size else 1.0
    y, scores = attend(
        b, q, k, v, mask, scale=scale, causal=bool(is_causal) and is_top_left, softcap=softcap,
        scores=qk_matmul_output_mode if b.wants(3) else None, precision=softmax_precision,
    )  # fmt: skip
    return joined_heads(b, y) if rank == 3 else y, k, v, scores


# -- rotary embeddings --------------------------------------------------------------------------


def rotated(b: Builder, x: Any, cosine: Any, sine: Any, interleaved: int, size: int) -> Any:
    """Rotate pairs of the first `size` features of a tensor (..., features).

    `cosine` and `sine` broadcast to (..., size / 2).
    """
    shape = b.extents(x)
    rest = None
    if shape[-1] != size:
        rest = b.emit("Tensor.slice", x, dim=-1, start=size, end=shape[-1], step=1)
        x = b.emit("Tensor.slice", x, dim=-1, start=0, end=size, step=1)
    half = size // 2
    steps = ((0, size, 2), (1, size, 2)) if interleaved else ((0, half, 1), (half, size, 1))
    one, two = (
        b.emit("Tensor.slice", x, dim=-1, start=start, end=end, step=step)
        for start, end, step in steps
    )
    real = b.formula("sub(mul(@0,@2),mul(@1,@3))", one, two, cosine, sine)
    imaginary = b.formula("add(mul(@0,@3),mul(@1,@2))", one, two, cosine, sine)
    if interleaved:
        pairs = b.emit("torch.stack", real, imaginary, dim=-1)
        x = b.emit("Tensor.reshape", pairs, shape=one_open([*shape[:-1], size]))
    else:
        x = b.emit("torch.cat", real, imaginary, dim=-1)
    return x if rest is None else b.emit("torch.cat", x, rest, dim=-1)


@op("RotaryEmbedding", since=23)
def rotary_embedding(
    b: Builder, x: Any, cos_cache: Any, sin_cache: Any, position_ids: Any = None, *,
    interleaved: int = 0, num_heads: int = 0, rotary_embedding_dim: int = 0,
) -> Any:  # fmt: skip
    shape = b.extents(x)
    if x.rank == 3:
        if not num_heads:
            raise b.error("the input has 3 axes, so expected num_heads")
        width = [num_heads, shape[2] // num_heads]
        x = b.emit("Tensor.reshape", x, shape=one_open([*shape[:2], *width]))
    size = rotary_embedding_dim or b.extents(x)[-1]
    if not isinstance(size, int):
        raise b.error("the size of the heads is open, expected a known one")
    caches = []
    for cache in (cos_cache, sin_cache):
        if position_ids is not None:
            index = b.cast(b.ref(position_ids), np.int64)
            cache = b.emit("Tensor.index", cache, index_list(b, [index]))
        elif cache.rank != 3:
            raise b.error(f"a cache has {cache.rank} axes, expected 3 without position_ids")
        caches.append(b.emit("torch.unsqueeze", cache, dim=2 if len(shape) == 3 else 1))
    y = rotated(b, x, caches[0], caches[1], interleaved, size)
    return b.emit("Tensor.reshape", y, shape=one_open(shape)) if len(shape) == 3 else y


# -- caches -------------------------------------------------------------------------------------


@op("TensorScatter", since=24)
def tensor_scatter(
    b: Builder, past_cache: Any, update: Any, write_indices: Any = None, *, axis: int = -2,
    mode: str = "linear",
) -> Any:  # fmt: skip
    rank = past_cache.rank
    axis = b.axis(axis, rank)
    if axis == 0:
        raise b.error("axis is 0, that of the batch; expected another one")
    if mode not in ("linear", "circular"):
        raise b.error(f"mode is '{mode}', expected linear or circular")
    count, length = b.extents(update)[axis], b.extents(past_cache)[axis]
    steps = [1] * rank
    steps[axis] = -1
    index = b.ref(positions(b, 0, count, steps))
    if write_indices is not None:
        starts = b.cast(b.ref(write_indices), np.int64)
        starts = b.emit("Tensor.reshape", starts, shape=[-1, *[1] * (rank - 1)])
        index = b.call("add", index, starts)
    if mode == "circular":
        index = b.call("remainder", index, length)
    index = b.emit("Tensor.expand_as", index, update)
    return b.emit("aten::scatter", past_cache, b.number(axis), index, update)
