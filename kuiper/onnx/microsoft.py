"""Operators of com.microsoft: layers that onnxruntime's optimizers put together.

Their meaning is that of onnxruntime's kernels for the CPU.  What these do not compute, such as
packed or quantised keys and values, is refused.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from kuiper.onnx import elementwise
from kuiper.onnx.attention import (
    Mask,
    attend,
    joined_heads,
    one_open,
    positions,
    rotated,
    split_heads,
)
from kuiper.onnx.builder import Builder
from kuiper.onnx.products import gemm, is_matrix, linear, transposed
from kuiper.onnx.registry import op
from kuiper.onnx.shapes import gather
from kuiper.onnx.values import Known, Ref, Size
from kuiper.onnx.windows import conv, layer_norm, rms_normalization

__all__: list[str] = []

MICROSOFT = "com.microsoft"


# -- products and activations -----------------------------------------------------------------


def _activated(b: Builder, x: Any, name: str, numbers: list[float]) -> Any:
    """Return an activation that is part of a product; `numbers` are its parameters."""
    plain = {
        "": lambda: x,
        "Relu": lambda: b.emit("F.relu", x),
        "Sigmoid": lambda: b.emit("F.sigmoid", x),
        "Tanh": lambda: b.emit("F.tanh", x),
        "Softplus": lambda: b.emit("F.softplus", x),
        "Softsign": lambda: b.emit("F.softsign", x),
        "LeakyRelu": lambda: elementwise.leaky_relu(b, x, alpha=numbers[0]),
        "Elu": lambda: elementwise.elu(b, x, alpha=numbers[0]),
        "ThresholdedRelu": lambda: elementwise.thresholded_relu(b, x, alpha=numbers[0]),
        "HardSigmoid": lambda: elementwise.hard_sigmoid(b, x, alpha=numbers[0], beta=numbers[1]),
        "Clip": lambda: elementwise.clip(b, x, _number(numbers[0]), _number(numbers[1])),
    }
    counts = {"LeakyRelu": 1, "Elu": 1, "ThresholdedRelu": 1, "HardSigmoid": 2, "Clip": 2}
    if name not in plain:
        raise b.error(f"has the activation '{name}', expected one of {', '.join(plain)[2:]}")
    if len(numbers) < counts.get(name, 0):
        raise b.error(f"has {len(numbers)} numbers for {name}, expected {counts[name]}")
    return plain[name]()


def _number(value: float) -> Known:
    return Known(np.array(value, np.float32))


@op("FusedConv", domain=MICROSOFT)
def fused_conv(
    b: Builder, x: Any, w: Any, bias: Any = None, summand: Any = None, *, activation: str = "",
    activation_params: Any = None, auto_pad: str = "NOTSET", dilations: Any = None,
    group: int = 1, kernel_shape: Any = None, pads: Any = None, strides: Any = None,
) -> Any:  # fmt: skip
    y = conv(
        b, x, w, bias, auto_pad=auto_pad, dilations=dilations, group=group,
        kernel_shape=kernel_shape, pads=pads, strides=strides,
    )  # fmt: skip
    if summand is not None:
        y = b.call("add", y, b.ref(summand))
    return _activated(b, y, activation, list(activation_params or ()))


@op("FusedGemm", domain=MICROSOFT)
def fused_gemm(
    b: Builder, x: Any, y: Any, c: Any = None, *, activation: str = "",
    activation_alpha: float | None = None, activation_beta: float | None = None,
    activation_gamma: float | None = None, alpha: float = 1.0, beta: float = 1.0,
    transA: int = 0, transB: int = 0,
) -> Any:  # fmt: skip
    result = gemm(b, x, y, c, alpha=alpha, beta=beta, transA=transA, transB=transB)
    numbers = [n for n in (activation_alpha, activation_beta, activation_gamma) if n is not None]
    return _activated(b, result, activation, numbers)


@op("FusedMatMul", "TransposeMatMul", domain=MICROSOFT)
def fused_matmul(
    b: Builder, x: Any, y: Any, *, alpha: float = 1.0, transA: int = 0, transB: int = 0,
    transBatchA: int = 0, transBatchB: int = 0,
) -> Any:  # fmt: skip
    x = _turned(b, x, transA, transBatchA)
    if is_matrix(y) and isinstance(x, Ref) and x.rank > 1:
        product = linear(b, x, y if transB else transposed(b, y), None)
    else:
        product = b.emit("torch.matmul", x, _turned(b, y, transB, transBatchB))
    return product if alpha == 1.0 else b.call("mul", product, alpha)


def _turned(b: Builder, x: Any, swap: int, batch: int) -> Any:
    """Return a factor whose first axis becomes that of its rows, whose last two axes swap."""
    axes = list(range(x.rank))
    if batch and x.rank > 2:
        axes = [*axes[1:-1], 0, axes[-1]]
    if swap and x.rank > 1:
        axes[-2:] = axes[:-3:-1]
    return x if axes == sorted(axes) else b.emit("Tensor.permute", x, dims=tuple(axes))


@op("BiasGelu", domain=MICROSOFT)
def bias_gelu(b: Builder, x: Any, bias: Any) -> Any:
    return b.emit("F.gelu", b.call("add", b.ref(x), b.ref(bias)), approximate="none")


@op("FastGelu", domain=MICROSOFT)
def fast_gelu(b: Builder, x: Any, bias: Any = None) -> Any:
    if bias is not None:
        x = b.call("add", b.ref(x), b.ref(bias))
    return b.emit("F.gelu", x, approximate="tanh")


# -- normalisation ----------------------------------------------------------------------------


def _skipped(b: Builder, x: Any, skip: Any, bias: Any) -> Any:
    """Return the sum of a tensor, a residual and a vector."""
    if bias is not None:
        x = b.call("add", b.ref(x), b.ref(bias))
    return b.call("add", b.ref(x), b.ref(skip))


def _no_statistics(b: Builder) -> None:
    if b.wants(1) or b.wants(2):
        raise b.error("has the mean or the variance as output, which inference does not need")


@op("SkipLayerNormalization", domain=MICROSOFT)
def skip_layer_normalization(
    b: Builder, x: Any, skip: Any, gamma: Any, beta: Any = None, bias: Any = None, *,
    epsilon: float = 1e-12,
) -> Any:  # fmt: skip
    _no_statistics(b)
    total = _skipped(b, x, skip, bias)
    return layer_norm(b, total, gamma, beta, -1, epsilon), None, None, total


@op("SkipSimplifiedLayerNormalization", domain=MICROSOFT)
def skip_simplified_layer_normalization(
    b: Builder, x: Any, skip: Any, gamma: Any, bias: Any = None, *, epsilon: float = 1e-12
) -> Any:
    _no_statistics(b)
    total = _skipped(b, x, skip, bias)
    return rms_normalization(b, total, gamma, epsilon=epsilon), None, None, total


@op("EmbedLayerNormalization", domain=MICROSOFT)
def embed_layer_normalization(
    b: Builder, ids: Any, segments: Any = None, words: Any = None, rows: Any = None,
    kinds: Any = None, gamma: Any = None, beta: Any = None, mask: Any = None,
    position_ids: Any = None, *, epsilon: float = 1e-12, mask_index_type: int = 0,
) -> Any:  # fmt: skip
    if words is None or rows is None or gamma is None or (segments is None) != (kinds is None):
        raise b.error("lacks an embedding or gamma, or has segments without their embedding")
    batch, length = b.extents(ids)
    if position_ids is None:
        rows = b.emit("Tensor.slice", rows, dim=0, start=0, end=length, step=1)
    else:
        rows = gather(b, rows, position_ids)
    total = b.call("add", gather(b, words, ids), rows)
    if segments is not None:
        total = b.call("add", total, gather(b, kinds, segments))
    if mask is None:
        count: Any = b.emit("torch.zeros", size=[batch], dtype="torch.int")
    else:
        ones = b.cast(b.emit("torch.eq", b.ref(mask), 1), np.int32)
        count = b.cast(b.emit("torch.sum", ones, dim=(1,), keepdim=False), np.int32)
    return layer_norm(b, total, gamma, beta, -1, epsilon), count, total


# -- attention --------------------------------------------------------------------------------


class _Padding:
    """The mask of onnxruntime: what it hides is a number, not minus infinity.

    Queries that see nothing weigh the keys by their scores, as in onnxruntime.
    """

    def __init__(self, b: Builder, batch: Any, keys: Any, low: float) -> None:
        self._b, self._batch, self._keys, self._low = b, batch, keys, low

    def summand(self, mask: Any) -> Any:
        """Return a mask (batch,), (2 batch,), (batch, keys), (batch, queries, keys) as summand."""
        b, extents = self._b, self._b.extents(mask)
        if mask.rank == 1:
            seen = self._within(mask, extents[0])
        elif mask.rank in (2, 3):
            if self._differs(extents[-1], self._keys):
                raise b.error(f"has a mask of {extents[-1]} keys, expected {self._keys}")
            shape = [extents[0], 1, *([1] if mask.rank == 2 else extents[1:2]), extents[-1]]
            parts = b.emit("Tensor.reshape", b.ref(mask), shape=one_open(shape))
            seen = b.emit("torch.gt", parts, 0)
        else:
            raise b.error(f"has a mask of {mask.rank} axes, expected 1, 2 or 3")
        return b.emit("torch.where", seen, _number(0.0), _number(self._low))

    def _within(self, mask: Any, extent: Any) -> Any:
        """Return which keys are before the ends, and not before the starts if there are any."""
        b, batch = self._b, self._batch
        key = positions(b, 0, self._keys)
        ends = b.cast(b.ref(mask), np.int64)
        if not self._differs(extent, batch):
            return b.emit("torch.lt", key, b.emit("Tensor.reshape", ends, shape=[batch, 1, 1, 1]))
        if self._differs(extent, batch * 2):
            raise b.error(f"has a mask of {extent} numbers for a batch of {batch}")
        first, last = (
            b.emit("Tensor.reshape", part, shape=[batch, 1, 1, 1])
            for part in (
                b.emit("Tensor.slice", ends, dim=0, start=batch, end=batch * 2, step=1),
                b.emit("Tensor.slice", ends, dim=0, start=0, end=batch, step=1),
            )
        )
        return b.emit(
            "torch.logical_and", b.emit("torch.le", first, key), b.emit("torch.lt", key, last)
        )

    @staticmethod
    def _differs(x: Any, y: Any) -> bool:
        """Tell whether extents differ, for the trial shapes if they are open."""
        x, y = (n.probes if isinstance(n, Size) else n for n in (x, y))
        if x is None or y is None:
            return False
        count = max(len(n) if isinstance(n, tuple) else 1 for n in (x, y))
        x, y = (n if isinstance(n, tuple) else (n,) * count for n in (x, y))
        return bool(x != y)


def _attended(
    b: Builder, q: Any, k: Any, v: Any, padding: Any, bias: Any, *, low: float, scale: float,
    causal: bool, past: Any, scores: int | None,
) -> tuple[Any, Any]:  # fmt: skip
    """Return attention of heads (batch, heads, length, size), side by side, and the scores."""
    batch, keys, size = b.extents(q)[0], b.extents(k)[2], b.extents(q)[3]
    if not isinstance(size, int):
        raise b.error("the size of the heads is open, expected a known one")
    mask = Mask(b, keys)
    if padding is not None:
        mask.add(_Padding(b, batch, keys, low).summand(padding))
    if bias is not None:
        mask.add(bias)
    is_top_left = isinstance(past, int) and past == 0
    if causal and not is_top_left:
        mask.see_window(past, b.extents(q)[2], right=0)
    y, found = attend(
        b, q, k, v, mask, scale=scale or size**-0.5, causal=causal and is_top_left, scores=scores
    )
    return joined_heads(b, y), found


@op("Attention", domain=MICROSOFT)
def attention(
    b: Builder, x: Any, weights: Any, bias: Any = None, mask_index: Any = None, past: Any = None,
    attention_bias: Any = None, past_sequence_length: Any = None, *, do_rotary: int = 0,
    mask_filter_value: float = -10000.0, num_heads: int, past_present_share_buffer: int = 0,
    qkv_hidden_sizes: Any = None, rotary_embedding_dim: int = 0, scale: float = 0.0,
    unidirectional: int = 0,
) -> Any:  # fmt: skip
    if do_rotary or past_present_share_buffer:
        raise b.error("has do_rotary or past_present_share_buffer, which the CPU does not compute")
    width = b.extents(weights)[-1]
    if not isinstance(width, int):
        raise b.error("has weights of open extents")
    sizes = list(qkv_hidden_sizes or [width // 3] * 3)
    if len(sizes) != 3 or sum(sizes) != width or any(n % num_heads for n in sizes):
        raise b.error(f"has weights of {width} columns for {sizes} of {num_heads} heads")
    product = fused_matmul(b, x, weights)
    if bias is not None:
        product = b.call("add", product, b.ref(bias))
    q, k, v = _packed_heads(b, product, num_heads, sizes)
    first: Any = 0
    if past is not None:
        first = b.extents(past)[3]
        k, v = (
            b.emit("torch.cat", b.emit("Tensor.select", past, dim=0, index=i), part, dim=2)
            for i, part in enumerate((k, v))
        )
    y, _ = _attended(
        b, q, k, v, mask_index, attention_bias, low=mask_filter_value, scale=scale,
        causal=bool(unidirectional), past=first, scores=None,
    )  # fmt: skip
    return y, b.emit("torch.stack", k, v, dim=0) if b.wants(1) else None


def _packed_heads(b: Builder, x: Any, heads: int, sizes: list[int]) -> tuple[Any, ...]:
    """Return queries, keys and values that are side by side as heads."""
    if len(set(sizes)) == 1:
        batch, length, _ = b.extents(x)
        shape = one_open([batch, length, 3, heads, sizes[0] // heads])
        parts = b.emit("Tensor.reshape", x, shape=shape)
        parts = b.emit("Tensor.permute", parts, dims=(2, 0, 3, 1, 4))
        return tuple(b.emit("Tensor.select", parts, dim=0, index=i) for i in range(3))
    found, start = [], 0
    for size in sizes:
        part = b.emit("Tensor.slice", x, dim=-1, start=start, end=start + size, step=1)
        found.append(split_heads(b, part, heads, "an input"))
        start += size
    return tuple(found)


@op("MultiHeadAttention", domain=MICROSOFT)
def multi_head_attention(
    b: Builder, query: Any, key: Any = None, value: Any = None, bias: Any = None,
    key_padding_mask: Any = None, attention_bias: Any = None, past_key: Any = None,
    past_value: Any = None, past_sequence_length: Any = None, cache_indirection: Any = None, *,
    mask_filter_value: float = -10000.0, num_heads: int, scale: float = 0.0,
    unidirectional: int = 0,
) -> Any:  # fmt: skip
    if past_sequence_length is not None or cache_indirection is not None:
        raise b.error("has past_sequence_length or cache_indirection, expected whole caches")
    if key is None or value is None or query.rank != 3 or key.rank > 4:
        raise b.error("has packed queries, keys and values; expected three tensors")
    if (past_key is None) != (past_value is None):
        raise b.error("has one of past_key and past_value, expected both or none")
    if bias is not None:
        query, key, value = _biased(b, (query, key, value), bias)
    q, k, v = (
        split_heads(b, part, num_heads, name)
        for part, name in ((query, "query"), (key, "key"), (value, "value"))
    )
    past: Any = 0
    if past_key is not None:
        past = b.extents(past_key)[2]
        k, v = (b.emit("torch.cat", old, x, dim=2) for old, x in ((past_key, k), (past_value, v)))
    scores = 2 if b.wants(3) else None
    if scores is not None and unidirectional:
        raise b.error("has scores that are hidden from queries as output")
    y, found = _attended(
        b, q, k, v, key_padding_mask, attention_bias, low=mask_filter_value, scale=scale,
        causal=bool(unidirectional), past=past, scores=scores,
    )  # fmt: skip
    return y, k, v, found


def _biased(b: Builder, parts: tuple[Any, ...], bias: Any) -> list[Any]:
    """Return tensors plus the parts of a vector; heads of a cache have theirs."""
    widths = [b.extents(part)[-1] for part in parts]
    if not all(isinstance(n, int) for n in widths):
        raise b.error("has a bias for open extents")
    if parts[1].rank == 3 and bias.shape not in ((sum(widths),), (None,)):
        raise b.error(f"has a bias of the shape {bias.shape}, expected {sum(widths)} numbers")
    found, start = [], 0
    for part, width in zip(parts, widths, strict=True):
        stop = start + width
        if part.rank == 4:
            found.append(part)
            continue
        if isinstance(bias, Known):
            piece: Any = Known(np.ascontiguousarray(bias.array[start:stop]))
        else:
            piece = b.emit("Tensor.slice", bias, dim=0, start=start, end=stop, step=1)
        found.append(b.call("add", b.ref(part), b.ref(piece)))
        start = stop
    return found


# -- grouped queries --------------------------------------------------------------------------


@op("GroupQueryAttention", domain=MICROSOFT)
def group_query_attention(
    b: Builder, query: Any, key: Any = None, value: Any = None, past_key: Any = None,
    past_value: Any = None, seqlens_k: Any = None, total_sequence_length: Any = None,
    cos_cache: Any = None, sin_cache: Any = None, position_ids: Any = None,
    attention_bias: Any = None, head_sink: Any = None, *,
    causal: int = 1, do_rotary: int = 0, kv_cache_bit_width: int = 0, kv_num_heads: int,
    k_quant_type: str = "NONE", local_window_size: int = -1, num_heads: int, qk_output: int = 0,
    rotary_interleaved: int = 0, scale: float = 0.0, sliding_window_cache: int = 0,
    smooth_softmax: int = 0, softcap: float = 0.0, v_quant_type: str = "NONE",
) -> Any:  # fmt: skip
    if qk_output or sliding_window_cache or {k_quant_type, v_quant_type} != {"NONE"}:
        raise b.error("has qk_output, sliding_window_cache or quantised caches")
    if seqlens_k is None or total_sequence_length is None:
        raise b.error("lacks the input 'seqlens_k' or 'total_sequence_length'")
    q, k, v = _grouped_heads(b, query, key, value, num_heads, kv_num_heads)
    (_, _, length, size), keys = b.extents(q), b.numbers(total_sequence_length)[0]
    if not isinstance(size, int):
        raise b.error("the size of the heads is open, expected a known one")
    # Queries come last: those before them are in the cache.
    counts = b.call("add", b.cast(b.ref(seqlens_k), np.int64), 1)
    first: Any = 0
    if past_key is not None:
        first = b.formula("max(sub(@0,@1),0)", counts, length)
    if do_rotary:
        if cos_cache is None or sin_cache is None:
            raise b.error("has do_rotary, but lacks the caches of cosines and sines")
        cosines, sines = _turns(b, first, length, position_ids, cos_cache, sin_cache)
        turned = 2 * b.extents(cos_cache)[-1]
        q, k = (rotated(b, x, cosines, sines, rotary_interleaved, turned) for x in (q, k))
    if past_key is not None:
        k, v = (
            _cached(b, past, x, first, counts, keys) for past, x in ((past_key, k), (past_value, v))
        )
    mask = Mask(b, b.extents(k)[2])
    if attention_bias is not None:
        mask.add(attention_bias)
    left = max(local_window_size - 1, -1)
    is_top_left = isinstance(first, int)
    if not causal:
        mask.see_first(counts)
    elif left >= 0 or not is_top_left:
        mask.see_window(first, length, left, 0)
    sink = head_sink if head_sink is not None else _number(0.0) if smooth_softmax == 1 else None
    y, _ = attend(
        b, q, k, v, mask, scale=scale or size**-0.5, softcap=softcap, sink=sink,
        causal=bool(causal) and is_top_left and left < 0,
    )  # fmt: skip
    return joined_heads(b, y), k, v


def _grouped_heads(
    b: Builder, query: Any, key: Any, value: Any, heads: int, key_heads: int
) -> tuple[Any, Any, Any]:
    """Return heads of queries, keys and values, which may be side by side in the queries."""
    if (key is None) != (value is None):
        raise b.error("has one of key and value, expected both or none")
    if key is None:
        x = split_heads(b, query, heads + 2 * key_heads, "query")
        ends = (0, heads, heads + key_heads, heads + 2 * key_heads)
        q, k, v = (
            b.emit("Tensor.slice", x, dim=1, start=start, end=stop, step=1)
            for start, stop in pairwise(ends)
        )
        return q, k, v
    q = split_heads(b, query, heads, "query")
    k, v = (split_heads(b, x, key_heads, "key or value") for x in (key, value))
    return q, k, v


def _turns(
    b: Builder, first: Any, length: Any, position_ids: Any, cosines: Any, sines: Any
) -> tuple[Any, Any]:
    """Return cosines and sines of the positions, (batch or 1, 1, length, size / 2)."""
    if position_ids is not None:
        index: Any = position_ids
    elif isinstance(first, int):
        index = positions(b, first, length, (1, -1))
    else:
        start = b.emit("Tensor.reshape", first, shape=[-1, 1])
        index = b.call("add", start, b.ref(positions(b, 0, length, (1, -1))))
    cosines, sines = (gather(b, x, index) for x in (cosines, sines))
    return b.emit("torch.unsqueeze", cosines, dim=1), b.emit("torch.unsqueeze", sines, dim=1)


def _cached(b: Builder, past: Any, x: Any, first: Any, counts: Any, keys: Any) -> Any:
    """Return a cache of `keys` positions at least, with new ones from `first` on, then zeros."""
    length, capacity = b.extents(x)[2], b.extents(past)[2]
    if isinstance(capacity, int) and isinstance(keys, int):
        more: Any = max(keys - capacity, 0)
    else:
        more = keys - capacity
        more = more.apply("max", 0) if isinstance(more, Size) else more
    if isinstance(more, Size) or more:
        past = b.emit("F.pad", past, pad=[0, 0, 0, more], mode="constant", value=0.0)
    starts = b.emit("Tensor.reshape", first, shape=[-1, 1, 1, 1])
    index = b.call("add", starts, b.ref(positions(b, 0, length, (1, 1, -1, 1))))
    index = b.emit("Tensor.expand_as", index, x)
    new = b.emit("aten::scatter", past, b.number(2), index, x)
    ends = b.emit("Tensor.reshape", counts, shape=[-1, 1, 1, 1])
    used = b.emit("torch.gt", ends, positions(b, 0, b.extents(new)[2], (1, 1, -1, 1)))
    shape = [*b.extents(x)[:2], capacity + more, b.extents(x)[3]]
    result = b.emit("torch.where", used, new, _number(0.0))
    return b.declared(result, x.dtype, [None if isinstance(n, Size) else n for n in shape])


@op("RotaryEmbedding", domain=MICROSOFT)
def rotary_embedding(
    b: Builder, x: Any, position_ids: Any, cos_cache: Any, sin_cache: Any, *,
    interleaved: int = 0, is_packed_batching: int = 0, num_heads: int = 0,
    rotary_embedding_dim: int = 0, scale: float = 1.0,
) -> Any:  # fmt: skip
    if is_packed_batching or scale != 1.0:
        raise b.error("has is_packed_batching or a scale, which the CPU does not compute")
    shape, half = b.extents(x), b.extents(cos_cache)[-1]
    if not isinstance(half, int):
        raise b.error("the size of the heads is open, expected a known one")
    if x.rank == 3:
        heads = num_heads if rotary_embedding_dim else None
        width = shape[2] // heads if heads else 2 * half
        parts = b.emit("Tensor.reshape", x, shape=one_open([*shape[:2], shape[2] // width, width]))
        x = b.emit("Tensor.permute", parts, dims=(0, 2, 1, 3))
    elif x.rank != 4:
        raise b.error(f"the input has {x.rank} axes, expected 3 or 4")
    length = b.extents(x)[2]
    first: Any = 0
    index: Any = position_ids
    if position_ids.rank < 2:  # the position of the first one
        first, index = b.cast(b.ref(position_ids), np.int64), None
    cosines, sines = _turns(b, first, length, index, cos_cache, sin_cache)
    y = rotated(b, x, cosines, sines, interleaved, 2 * half)
    return joined_heads(b, y) if len(shape) == 3 else y
