"""Scaled dot-product attention, and the multi-head modules built on it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from kuiper._kernels.data.move import FillStep
from kuiper._kernels.linear import attention, linear
from kuiper._kernels.micro import dispatch, packing
from kuiper._kernels.micro.packed import PackedMatrix, PairPanels
from kuiper.errors import ShapeError
from kuiper.ir.dtypes import BFLOAT16
from kuiper.ir.view import TensorSpec, TensorView
from kuiper.ops.core.binder import Binder
from kuiper.ops.core.epilogue import make_epilogue, residual_view
from kuiper.ops.core.record import STARTS, NoBatchRule, Record, T, record
from kuiper.ops.core.schema import Bool, Float, Int, Known, Tensor
from kuiper.ops.product.linear import as_matrix, merge_leading

if TYPE_CHECKING:
    from kuiper.ops.core.batch import BatchAxis, TracedCall
    from kuiper.ops.core.epilogue import Epilogue

__all__ = ["Layer", "MultiheadAttention", "Product", "ScaledDotProductAttention"]

FLOAT32 = np.dtype(np.float32)
FLOAT_OR_BOOL = (np.dtype(np.float32), np.dtype(np.bool_))


def bind_attention(
    b: Binder,
    q: Any,
    k: Any,
    v: Any,
    y: Any,
    scale: Any,
    mask: Any = None,
    weights: Any = None,
    **options: Any,
) -> None:
    """Add the step for ``y = softmax(scale * q @ k.T + mask) @ v``.

    Parameters
    ----------
    b : Binder
    q, k, v, y : TensorView
        (..., queries or keys, columns) with equal leading axes; broadcast axes have stride 0.
    scale : float
    mask : TensorView, optional
        Broadcast to (..., queries, keys): float32, added to the scores, or bool.
    weights : TensorView, optional
        Receives the softmax, contiguous (..., queries, keys).
    **options
        `mask_hides` and `is_causal`, see :class:`~kuiper._kernels.linear.attention.AttentionStep`.
    """
    # In a model of this precision also between layers of bytes, which read and write float32.
    in_pairs = b.in_bfloat16 or BFLOAT16 in (q.dtype, k.dtype, v.dtype, y.dtype)
    if in_pairs and not _takes_pairs(k, v, scale, weights):
        in_pairs = False
        q, k, v = (b.stored(value, FLOAT32) for value in (q, k, v))
        if y.dtype == BFLOAT16:
            wide = b.temporary(y.shape)
            bind_attention(b, q, k, v, wide, scale, mask, weights, **options)
            b.copy(wide, y)
            return
    if in_pairs:
        q, k, v = (b.stored(value, BFLOAT16) for value in (q, k, v))
        k = _pairs_of_keys(b, k)
        if v.shape[-1] != 1 and v.strides[-1] != 1:
            v = b.contiguous(v)
    if q.shape[-1] != 1 and q.strides[-1] != 1:
        q = b.contiguous(q)
    values = [q, k, v, y]
    if mask is not None:
        if mask.dtype == np.float32 and mask.shape[-1] != 1 and mask.strides[-1] != 1:
            mask = b.contiguous(mask)
        values.append(mask)
    if weights is not None:
        values.append(weights)
    values = merge_leading(values)
    if values[0].rank - 2 > attention.max_batch_axes:
        # Some operand has axes that cannot be merged, so copy the inputs.
        values = merge_leading([v if v is values[3] else b.contiguous(v) for v in values])
    q, k, v, y, *rest = values
    if mask is not None:
        options["mask"] = rest[0]
    if weights is not None:
        options["weights"] = rest[-1]
    sizes = k.shape[-2], k.shape[-1], v.shape[-1]
    if in_pairs:
        scratch = b.scratch(attention.pairs_scratch_bytes(*sizes))
        b.step(attention.PairAttentionStep(q, k, v, y, scratch, scale, **options))
        return
    scratch = b.scratch(attention.attention_scratch_bytes(*sizes))
    b.step(attention.AttentionStep(q, k, v, y, scratch, scale, **options))


def _takes_pairs(k: TensorView, v: TensorView, scale: float, weights: TensorView | None) -> bool:
    """Tell whether the products multiply pairs of bfloat16, which the file's shapes decide."""
    return (
        dispatch.has_bfloat16_products()
        and weights is None
        and scale > 0
        and k.shape[-1] % 2 == 0
        and k.shape[-1] > 0
        and v.shape[-2] > 0
    )


def _pairs_of_keys(b: Binder, k: TensorView) -> TensorView:
    """Return keys whose rows start at even elements and have no gaps; a copy if need be."""
    starts = [s for s, extent in zip(k.strides[:-1], k.shape, strict=False) if extent != 1]
    is_even = all(number % 2 == 0 for number in (k.offset, *starts))
    return k if is_even and k.strides[-1] == 1 else b.contiguous(k)


def _check_float32(a: Record[Any], *names: str) -> None:
    for name in names:
        value = getattr(a, name)
        if value is not None and value.dtype != np.float32:
            raise ShapeError(f"'{name}' is {value.dtype}, expected float32")


# -- the function ------------------------------------------------------------------------------


@record("F.scaled_dot_product_attention")
class ScaledDotProductAttention(Record[T]):
    """``softmax(scale * query @ key.T + attn_mask) @ value`` over the last two axes.

    query (..., queries, e), key (..., keys, e), value (..., keys, v).  A bool mask is True where a
    query attends to a key; the result of a query without any key is zero.
    Source: torch.nn.functional.scaled_dot_product_attention.

    Raises
    ------
    ShapeError
        If the shapes do not match, a tensor is not float32, or the mask does not broadcast.
    """

    query: T = Tensor()
    key: T = Tensor()
    value: T = Tensor()
    attn_mask: T | None = Tensor(optional=True)
    dropout_p: float = Float(0.0)
    is_causal: bool = Bool(False)
    scale: float | None = Float(None, nullable=True)
    enable_gqa: bool = Bool(False)
    bfloat16 = STARTS

    def infer(self: ScaledDotProductAttention[TensorSpec]) -> TensorSpec:
        _check_float32(self, "query", "key", "value")
        shapes = self.query.shape, self.key.shape, self.value.shape
        if min(map(len, shapes)) < 2:
            raise ShapeError(f"query, key and value have shapes {shapes}, expected rank >= 2")
        if self.query.shape[-1] != self.key.shape[-1] or self.key.shape[-2] != self.value.shape[-2]:
            raise ShapeError(
                f"query, key and value have shapes {shapes}, expected (..., l, e), (..., s, e) "
                "and (..., s, v)"
            )
        lead = _lead(self)
        if self.attn_mask is not None:
            if self.attn_mask.dtype not in FLOAT_OR_BOOL:
                raise ShapeError(f"'attn_mask' is {self.attn_mask.dtype}, expected float32 or bool")
            scores = (*lead, self.query.shape[-2], self.key.shape[-2])
            try:
                fits = np.broadcast_shapes(self.attn_mask.shape, scores) == scores
            except ValueError:
                fits = False
            if not fits:
                raise ShapeError(
                    f"'attn_mask' has shape {self.attn_mask.shape}, which does not fit {scores}"
                )
        return TensorSpec((*lead, self.query.shape[-2], self.value.shape[-1]))

    def bind(self: ScaledDotProductAttention[TensorView], b: Binder) -> None:
        lead = _lead(self)
        y = b.output(layout=self.query)
        mask = self.attn_mask
        if mask is not None:
            if mask.dtype == BFLOAT16:
                mask = b.stored(mask, FLOAT32)
            mask = mask.expand((*lead, self.query.shape[-2], self.key.shape[-2]))
        q = self.query.expand((*lead, *self.query.shape[-2:]))
        k, v, out = self.key, self.value, y
        if _is_grouped(self):
            # Consecutive heads share a key head: (heads) -> (key heads, heads per key head).
            split = (*lead[:-1], k.shape[-3], lead[-1] // k.shape[-3])
            q, out = _split_heads(q, split), _split_heads(out, split)
            mask = None if mask is None else _split_heads(mask, split)
            k, v = (
                x.with_layout(
                    (*x.shape[:-2], 1, *x.shape[-2:]), (*x.strides[:-2], 0, *x.strides[-2:])
                )
                for x in (k, v)
            )
            lead = split
        k, v = k.expand((*lead, *k.shape[-2:])), v.expand((*lead, *v.shape[-2:]))
        scale = self.query.shape[-1] ** -0.5 if self.scale is None else self.scale
        bind_attention(b, q, k, v, out, scale, mask, is_causal=self.is_causal)

    @staticmethod
    def batch(c: TracedCall) -> BatchAxis:
        a, rank = c.a, c.outputs[0].rank
        specs = [s for s in (a.query, a.key, a.value) if isinstance(s, TensorSpec)]
        batch = c.broadcast(specs, rank, last_axes=3 if a.enable_gqa else 2)
        from_end = rank - batch.axis
        for spec in specs:
            c.require(spec.rank >= from_end)
            c.spread(spec, batch._replace(axis=spec.rank - from_end))
        if isinstance(a.attn_mask, TensorSpec):
            c.broadcast([*specs, a.attn_mask], rank, last_axes=2)
        return batch


def _is_grouped(a: ScaledDotProductAttention[Known]) -> bool:
    return a.enable_gqa and a.query.rank > 2 and a.key.shape[-3] != a.query.shape[-3]


def _lead(a: ScaledDotProductAttention[Known]) -> tuple[int, ...]:
    """Return the leading axes of the result."""
    leads = [value.shape[:-2] for value in (a.query, a.key, a.value)]
    if _is_grouped(a):
        heads, key_heads, value_heads = (lead[-1] if lead else 0 for lead in leads)
        if key_heads < 1 or heads % key_heads or value_heads != key_heads:
            raise ShapeError(
                f"{heads} heads cannot be grouped over {key_heads} key and {value_heads} value "
                "heads"
            )
        leads = [lead[:-1] for lead in leads]
    try:
        lead = np.broadcast_shapes(*leads)
    except ValueError:
        raise ShapeError(f"the leading axes {leads} do not broadcast to one shape") from None
    return (*lead, a.query.shape[-3]) if _is_grouped(a) else lead


def _split_heads(value: TensorView, split: tuple[int, ...]) -> TensorView:
    axis = value.rank - 3
    stride = value.strides[axis]
    return value.with_layout(
        (*split, *value.shape[-2:]),
        (*value.strides[:axis], stride * split[-1], stride, *value.strides[-2:]),
    )


# -- the module --------------------------------------------------------------------------------

# Adds the step of a layer: (x, y, epilogue).
Product: TypeAlias = "Callable[..., None]"


class Layer(NamedTuple):
    """One of the linear layers, or several that are one product.

    Attributes
    ----------
    key : hashable
        Identity among the layers of an operator.
    weight : str
        Name of the argument.
    bias : TensorView or None
    rows, bias_rows : slice
        Of the weight and of the bias.
    """

    key: Any
    weight: str
    bias: TensorView | None
    rows: slice
    bias_rows: slice

    def shift(self) -> np.ndarray | None:
        """Return the biases of the layer's outputs."""
        if self.bias is None:
            return None
        return np.asarray(self.bias.constant, np.float32)[self.bias_rows]


@record("nn.MultiheadAttention")
class MultiheadAttention(Record[T]):
    """Attention between linear layers; each head works on its own slice of the features.

    query (l, n, e), key and value (s, n, ...); with batch_first, n precedes l; 2-d without a batch.
    The value defaults to the key, the key to the query.  A bool mask is True where a key is hidden;
    a mask for fewer sequences than the batch is repeated, one of rank 4 broadcast to (n, heads, l,
    s), as by F.scaled_dot_product_attention.  `key_padding_mask` (n, s) hides keys from all
    queries of a sequence.  The second output is the softmax, averaged over heads.
    Source: torch.nn.MultiheadAttention.

    Raises
    ------
    ShapeError
        If an input, a mask or a weight has the wrong shape or type, or if both masks are given.
    """

    query: T = Tensor(rank=(2, 3), aliases=("input",))
    key: T | None = Tensor(optional=True, rank=(2, 3))
    value: T | None = Tensor(optional=True, rank=(2, 3))
    attn_mask: T | None = Tensor(optional=True, rank=(2, 3, 4))
    key_padding_mask: T | None = Tensor(optional=True, rank=2)
    in_proj_weight: T | None = Tensor(optional=True, rank=2)
    q_proj_weight: T | None = Tensor(optional=True, rank=2)
    k_proj_weight: T | None = Tensor(optional=True, rank=2)
    v_proj_weight: T | None = Tensor(optional=True, rank=2)
    in_proj_bias: T | None = Tensor(optional=True, rank=1)
    out_proj_weight: T = Tensor(rank=2, aliases=("out_proj.weight",))
    out_proj_bias: T | None = Tensor(optional=True, rank=1, aliases=("out_proj.bias",))
    bias_k: T | None = Tensor(optional=True, rank=3)
    bias_v: T | None = Tensor(optional=True, rank=3)
    embed_dim: int = Int(minimum=1)
    num_heads: int = Int(minimum=1)
    kdim: int | None = Int(None, minimum=1)
    vdim: int | None = Int(None, minimum=1)
    bias: bool = Bool(True)
    add_bias_kv: bool = Bool(False)
    add_zero_attn: bool = Bool(False)
    batch_first: bool = Bool(False)
    post_ops = True
    bfloat16 = STARTS

    def infer(self: MultiheadAttention[TensorSpec]) -> Any:
        query, key, value, mask = _inputs(self)
        e = self.embed_dim
        if e % self.num_heads:
            raise ShapeError(f"'embed_dim' is {e}, which {self.num_heads} heads do not divide")
        for name, tensor in (("query", query), ("key", key), ("value", value)):
            if tensor.dtype != np.float32:
                raise ShapeError(f"the {name} is {tensor.dtype}, expected float32")
        kdim, vdim = self.kdim or e, self.vdim or e
        shapes = query.shape, key.shape, value.shape
        batches = {_lengths(self, tensor)[0] for tensor in (query, key, value)}
        if (
            len({len(shape) for shape in shapes}) > 1
            or tuple(shape[-1] for shape in shapes) != (e, kdim, vdim)
            or len(batches) > 1
            or _lengths(self, key) != _lengths(self, value)
        ):
            raise ShapeError(
                f"query, key and value have shapes {shapes}, expected {e}, {kdim} and {vdim} "
                "features, one batch, and as many keys as values"
            )
        _check_weights(self, kdim, vdim)
        (n, queries), keys = _lengths(self, query), _lengths(self, key)[1]
        if mask is not None:
            if mask.dtype not in FLOAT_OR_BOOL:
                raise ShapeError(f"'attn_mask' is {mask.dtype}, expected float32 or bool")
            if not _takes_mask(self, (query, key), mask):
                raise ShapeError(
                    f"'attn_mask' has shape {mask.shape}, expected {(queries, keys)} or "
                    f"{(n * self.num_heads, queries, keys)} or {(n, self.num_heads, queries, keys)}"
                )
        if self.key_padding_mask is not None:
            got = self.key_padding_mask
            if mask is not None:
                raise ShapeError("it has 'attn_mask' and 'key_padding_mask', expected one of them")
            if got.shape != (n, keys) or got.dtype not in FLOAT_OR_BOOL:
                raise ShapeError(
                    f"'key_padding_mask' is {got!r}, expected float32 or bool {(n, keys)}"
                )
        weights = (queries, keys + self.add_bias_kv + self.add_zero_attn)
        return TensorSpec(query.shape), TensorSpec(weights if query.rank == 2 else (n, *weights))

    def bind(self: MultiheadAttention[TensorView], b: Binder) -> None:
        query, key, value, mask = _inputs(self)
        e, heads = self.embed_dim, self.num_heads
        if mask is not None and mask.dtype == BFLOAT16:
            mask = b.stored(mask, FLOAT32)
        q, k, v = _project(self, b, query, key, value)
        n, queries = _lengths(self, query)
        keys = k.shape[-2]
        context = b.temporary((math.prod(query.shape[:-1]), e), self.core_dtype(b))
        weights = b.temporary((n, heads, queries, keys)) if self.n_outputs > 1 else None
        out = _heads(context, n, queries, heads, self.batch_first)
        given = 0  # sequences that the mask covers
        if self.key_padding_mask is not None:
            mask = self.key_padding_mask
            if mask.dtype == BFLOAT16:
                mask = b.stored(mask, FLOAT32)
            mask = _wider(b, mask, keys)
            step, along = mask.strides
            mask = mask.with_layout((1, n, heads, queries, keys), (0, step, 0, 0, along))
            given = n
        elif mask is not None:
            mask = _wider(b, mask, keys)
            # A mask for a part of the batch, such as the windows of one image, is repeated.
            given = mask.shape[0] // heads if mask.rank == 3 else max(n, 1)
            if mask.rank == 3:
                mask = mask.reshape((given, heads, queries, keys))
            mask = mask.expand((n // given, given, heads, queries, keys))
        split_weights = weights
        if mask is not None:
            q, k, v, out = (_split_batch(value, given) for value in (q, k, v, out))
            split_weights = None if weights is None else _split_batch(weights, given)
        bind_attention(
            b, q, k, v, out, (e // heads) ** -0.5, mask, split_weights, mask_hides=True
        )  # fmt: skip
        y = b.output()
        residual = residual_view(b)
        if residual is not None:
            residual = as_matrix(b, residual)
        rows = y.reshape((context.shape[0], e))
        assert rows is not None  # an output has one row stride
        layer = Layer("out", "out_proj_weight", self.out_proj_bias, slice(None), slice(None))
        if self.is_in_pairs(b):
            from kuiper.ops.product.narrow import rows_epilogue

            epilogue = rows_epilogue(b, residual)
        else:
            epilogue = make_epilogue(b, residual)
        self.product(b, layer)(context, rows, epilogue)
        if weights is not None:
            average = b.output(1)
            if average.dtype == BFLOAT16:
                wide = b.temporary(average.shape)
                _average(b, weights, wide)
                b.copy(wide, average)
            else:
                _average(b, weights, average)

    def is_in_pairs(self: MultiheadAttention[TensorView], b: Binder) -> bool:
        """Whether the linear layers multiply pairs of bfloat16."""
        values = (*_inputs(self)[:3], residual_view(b))
        return self.bfloat16 != "" and (
            b.output_dtype() == BFLOAT16
            or any(value is not None and value.dtype == BFLOAT16 for value in values)
        )

    def core_dtype(self: MultiheadAttention[TensorView], b: Binder) -> np.dtype:
        """Return the element type of queries, keys, values and their result."""
        in_pairs = (
            self.is_in_pairs(b)
            and dispatch.has_bfloat16_products()
            and self.n_outputs == 1
            and self.embed_dim // self.num_heads % 2 == 0
            and not (self.add_bias_kv or self.add_zero_attn)
        )
        return BFLOAT16 if in_pairs else FLOAT32

    def product(self: MultiheadAttention[TensorView], b: Binder, layer: Layer) -> Product:
        """Return the function that adds the step ``y = x @ weight.T + bias`` of a layer."""
        weight = getattr(self, layer.weight)
        if self.is_in_pairs(b):
            return _product_of_pairs(b, layer, weight)
        packed = _packed(b, layer, weight)

        def add(x: TensorView, y: TensorView, epilogue: Epilogue | None = None) -> None:
            b.step(linear.LinearStep(x, packed, y, epilogue))

        return add

    @staticmethod
    def batch(c: TracedCall) -> list[BatchAxis]:
        a = c.a
        specs = [s for s in (a.query, a.key, a.value) if isinstance(s, TensorSpec)]
        batch = c.first_batch(*specs)
        c.require(a.query.rank == 3 and batch.axis == (0 if a.batch_first else 1))
        for spec in specs:
            c.spread(spec, batch)
        if isinstance(a.attn_mask, TensorSpec):
            if a.attn_mask.rank == 3:
                c.spread(a.attn_mask, c.at(0, batch.outer, batch.inner * a.num_heads))
            elif a.attn_mask.rank == 4 and (c.batch_of(a.attn_mask) or a.attn_mask.shape[0] != 1):
                c.spread(a.attn_mask, batch._replace(axis=0))
            else:
                c.require_shared(a.attn_mask)
        if isinstance(a.key_padding_mask, TensorSpec):
            c.spread(a.key_padding_mask, batch._replace(axis=0))
        return [batch, batch._replace(axis=0)][: len(c.op.outputs)]


def _inputs(a: MultiheadAttention[Any]) -> Any:
    """Return query, key, value and mask; a file omits an input that equals the one before it.

    If the mask is a constant, pnnx puts it first but names the last input the mask.
    """
    given: Any = [tensor for tensor in (a.query, a.key, a.value) if tensor is not None]
    mask = a.attn_mask
    if mask is not None:
        turned = [*given[1:], mask]
        if not _takes_mask(a, given, mask) and _takes_mask(a, turned, given[0]):
            given, mask = turned, given[0]
    while len(given) < 3:
        given.append(given[-1])
    return *given, mask


def _takes_mask(a: MultiheadAttention[Any], given: Any, mask: Any) -> bool:
    """Whether a mask fits query and key: one for all heads, one per head, or any of rank 4."""
    query, key = given[0], given[min(len(given) - 1, 1)]
    if query.dtype not in (FLOAT32, BFLOAT16) or query.shape[-1] != a.embed_dim:
        return False
    (n, queries), keys = _lengths(a, query), _lengths(a, key)[1]
    if mask.rank == 4:
        scores = (n, a.num_heads, queries, keys)
        return mask.shape[3] == keys and all(
            got in (1, wanted) for got, wanted in zip(mask.shape, scores, strict=True)
        )
    masks, rest = divmod(mask.shape[0] if mask.rank == 3 else a.num_heads, a.num_heads)
    return (
        mask.shape[-2:] == (queries, keys)
        and rest == 0
        and (mask.rank == 2 or (masks > 0 and n % masks == 0) or masks == n == 0)
    )


def _split_batch(value: TensorView, inner: int) -> TensorView:
    """View (n, ...) as (n / inner, inner, ...)."""
    outer = value.shape[0] // inner if inner else 0
    return value.with_layout(
        (outer, inner, *value.shape[1:]), (inner * value.strides[0], *value.strides)
    )


def _lengths(a: MultiheadAttention[Any], tensor: Any) -> tuple[int, int]:
    """Return the number of sequences and their length."""
    if tensor.rank == 2:
        return 1, tensor.shape[0]
    first, second = tensor.shape[:2]
    return (first, second) if a.batch_first else (second, first)


def _check_weights(a: MultiheadAttention[TensorSpec], kdim: int, vdim: int) -> None:
    e = a.embed_dim
    expected = {
        "in_proj_weight": (3 * e, e),
        "q_proj_weight": (e, e),
        "k_proj_weight": (e, kdim),
        "v_proj_weight": (e, vdim),
        "in_proj_bias": (3 * e,),
        "out_proj_weight": (e, e),
        "out_proj_bias": (e,),
        "bias_k": (1, 1, e),
        "bias_v": (1, 1, e),
    }
    for name, shape in expected.items():
        weight = getattr(a, name)
        if weight is not None and weight.shape != shape:
            raise ShapeError(f"'{name}' has shape {weight.shape}, expected {shape}")
        if weight is not None and not weight.is_constant:
            raise ShapeError(f"'{name}' is computed, expected a weight of the file")
    separate = (a.q_proj_weight, a.k_proj_weight, a.v_proj_weight)
    if (a.in_proj_weight is None) == (None in separate):
        raise ShapeError("expected 'in_proj_weight', or 'q_', 'k_' and 'v_proj_weight'")
    if a.in_proj_weight is not None and (kdim, vdim) != (e, e):
        raise ShapeError(f"'kdim' is {kdim} and 'vdim' {vdim}, but 'in_proj_weight' makes them {e}")
    if a.add_bias_kv and (a.bias_k is None or a.bias_v is None):
        raise ShapeError("'add_bias_kv' is True, but 'bias_k' or 'bias_v' is missing")


def _project(
    a: MultiheadAttention[TensorView], b: Binder, query: Any, key: Any, value: Any
) -> list[TensorView]:
    """Add the linear layers; return q, k and v as (n, heads, length, features per head)."""
    e, heads, sources = a.embed_dim, a.num_heads, [query, key, value]
    extra = a.add_bias_kv + a.add_zero_attn
    results: list[TensorView] = []
    while len(results) < 3:
        first = last = len(results)
        # Consecutive projections of the same input are one product.
        while (
            a.in_proj_weight is not None
            and last < 2
            and sources[last + 1] is sources[first]
            and not (extra and first == 0)
        ):
            last += 1
        width = (last + 1 - first) * e
        part = slice(first * e, (last + 1) * e)
        if a.in_proj_weight is None:
            name = ("q_proj_weight", "k_proj_weight", "v_proj_weight")[first]
            layer = Layer(first, name, a.in_proj_bias, slice(None), part)
        else:
            layer = Layer((first, last), "in_proj_weight", a.in_proj_bias, part, part)
        product = a.product(b, layer)
        n, length = _lengths(a, sources[first])
        by_sequence = a.batch_first
        if first > 0 and extra:
            by_sequence = True
            rows = _extended(a, b, sources[first], product, width, first)
            length += extra
        else:
            x = as_matrix(b, sources[first])
            rows = b.temporary((x.shape[0], width), a.core_dtype(b))
            product(x, rows)
        for number in range(last + 1 - first):
            columns = rows.narrow(1, number * e, e)
            results.append(_heads(columns, n, length, heads, by_sequence))
    return results


def _packed(b: Binder, layer: Layer, weight: TensorView) -> TensorView:
    """Return the packed weight of a layer."""

    def fill(memory: np.ndarray) -> None:
        part = np.asarray(weight.constant, np.float32)[layer.rows]
        packing.pack_panels(part[:, np.newaxis, :], layer.shift(), b.n_threads, memory)

    columns = len(range(*layer.rows.indices(weight.shape[0])))
    return b.packed([PackedMatrix(columns, weight.shape[1], part=layer.key)], fill)


def _product_of_pairs(b: Binder, layer: Layer, weight: TensorView) -> Product:
    """Return the function that adds the step of a layer whose rows are rounded to bfloat16."""
    from kuiper.ops.product.narrow import linear_pairs_step

    def fill(memory: np.ndarray) -> None:
        part = np.asarray(weight.constant, np.float32)[layer.rows]
        packing.pack_pairs(part[:, np.newaxis, :], layer.shift(), b.n_threads, memory)

    columns, depth = len(range(*layer.rows.indices(weight.shape[0]))), weight.shape[1]
    packed = b.packed([PairPanels(columns, 1, depth, part=layer.key)], fill)

    def add(x: TensorView, y: TensorView, epilogue: Epilogue | None = None) -> None:
        b.step(linear_pairs_step(b, b.stored(x, BFLOAT16), packed, y, depth, epilogue))

    return add


def _heads(rows: TensorView, n: int, length: int, heads: int, batch_first: bool) -> TensorView:
    """View rows of features as (n, heads, length, features per head)."""
    step, width = rows.strides[0], rows.shape[1] // heads
    if batch_first:
        strides = (length * step, width, step, 1)
    else:
        strides = (step, width, n * step, 1)
    return rows.with_layout((n, heads, length, width), strides)


def _extended(
    a: MultiheadAttention[TensorView], b: Binder, source: TensorView, product: Product,
    width: int, first: int,
) -> TensorView:  # fmt: skip
    """Project keys or values; append the learned and the zero row to each sequence."""
    n, length = _lengths(a, source)
    e = a.embed_dim
    extra = a.add_bias_kv + a.add_zero_attn
    rows = b.temporary((n * (length + extra), width))
    for i in range(n):
        x = source
        if source.rank == 3:
            x = source.select(0 if a.batch_first else 1, i)
        part = rows.narrow(0, i * (length + extra), length + extra)
        product(as_matrix(b, x), part.narrow(0, 0, length))
        if a.add_bias_kv:
            row = part.narrow(0, length, 1)
            for number, bias in enumerate((a.bias_k, a.bias_v)[first - 1 :][: width // e]):
                assert bias is not None  # `infer` has checked it
                b.copy(bias.view((1, e)), row.narrow(1, number * e, e))
        if a.add_zero_attn:
            b.step(FillStep(part.narrow(0, length + extra - 1, 1), 0.0))
    return rows


def _wider(b: Binder, mask: TensorView, keys: int) -> TensorView:
    """Extend a mask to `keys` keys; the added ones are not hidden."""
    extra = keys - mask.shape[-1]
    if extra == 0:
        return mask
    if mask.constant is not None:
        widths = [(0, 0)] * (mask.rank - 1) + [(0, extra)]
        return b.constant(np.pad(mask.constant, widths))
    wide = b.temporary((*mask.shape[:-1], keys), mask.dtype)
    b.copy(mask, wide.narrow(mask.rank - 1, 0, keys - extra))
    b.step(FillStep(wide.narrow(mask.rank - 1, keys - extra, extra), 0))
    return wide


def _average(b: Binder, weights: TensorView, y: TensorView) -> None:
    """Average over heads: a row of 1 / heads times (heads, queries * keys)."""
    n, heads, queries, keys = weights.shape
    x = b.constant(np.full((1, heads), 1 / heads, np.float32)).expand((n, 1, heads))
    scratch = b.scratch(PackedMatrix(1, heads).panel_bytes)
    b.step(
        linear.MatmulStep(
            x, weights.reshape((n, heads, queries * keys)), y.reshape((n, 1, queries * keys)),
            scratch,
        )
    )  # fmt: skip


def is_same_for_all(mask: TensorSpec) -> bool:
    """Whether a layer's mask is a constant that is equal for all sequences."""
    values = mask.constant if mask.rank == 4 and mask.shape[0] > 0 else None
    return values is not None and bool(np.all(values == values[:1]))


@record("aten::_transformer_encoder_layer_fwd")
class EncoderLayer(Record[T]):
    """A transformer's encoder layer: attention and two linear layers, each with a sum and a norm.

    A pass replaces it by the operators that it consists of if its weights are constants.
    Source: torch.nn.TransformerEncoderLayer.

    Raises
    ------
    ShapeError
        If the input, the mask or a weight has the wrong shape or type, or a weight is computed.
    """

    batch = NoBatchRule("the shape of its mask does not say whether all members share it")
    src: T = Tensor(rank=3)
    embed_dim: int = Int(minimum=1)
    num_heads: int = Int(minimum=1)
    qkv_weight: T = Tensor(rank=2)
    qkv_bias: T = Tensor(rank=1)
    proj_weight: T = Tensor(rank=2)
    proj_bias: T = Tensor(rank=1)
    use_gelu: bool = Bool()
    norm_first: bool = Bool()
    eps: float = Float()
    norm_weight_1: T = Tensor(rank=1)
    norm_bias_1: T = Tensor(rank=1)
    norm_weight_2: T = Tensor(rank=1)
    norm_bias_2: T = Tensor(rank=1)
    ffn_weight_1: T = Tensor(rank=2)
    ffn_bias_1: T = Tensor(rank=1)
    ffn_weight_2: T = Tensor(rank=2)
    ffn_bias_2: T = Tensor(rank=1)
    mask: T | None = Tensor(optional=True, rank=(2, 4))
    mask_type: int | None = Int(None, nullable=True)

    def infer(self: EncoderLayer[TensorSpec]) -> TensorSpec:
        if self.src.shape[2] != self.embed_dim or self.src.dtype != np.float32:
            raise ShapeError(
                f"the input is {self.src!r}, expected float32 (n, length, {self.embed_dim})"
            )
        for name, tensor in vars(self).items():
            if name != "mask" and getattr(tensor, "dtype", self.src.dtype) != np.float32:
                raise ShapeError(f"'{name}' is {tensor.dtype}, expected float32")
        if self.mask is not None:
            n, length, _ = self.src.shape
            whole = (n, self.num_heads, length, length)
            fitting = {0: (length, length), 1: (n, length), 2: whole}
            if self.mask_type not in fitting:
                raise ShapeError(
                    f"'mask_type' is {self.mask_type}, expected 0 (of queries and keys), 1 (of "
                    "keys) or 2 (of both per head) for its mask"
                )
            expected = whole if self.mask.rank == 4 else fitting[self.mask_type]
            shape = self.mask.shape
            if shape != expected and shape[1:] == expected[1:] and is_same_for_all(self.mask):
                shape = expected
            if shape != expected:
                raise ShapeError(f"'mask' has shape {self.mask.shape}, expected {expected}")
        return TensorSpec(self.src.shape)

    def bind(self: EncoderLayer[TensorView], b: Binder) -> None:
        raise ShapeError("its weights are computed at run time, expected constants")
