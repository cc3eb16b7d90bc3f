"""Operators of images: convolution, pooling, resizing, normalisation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from kuiper.onnx.builder import Builder, torch_name
from kuiper.onnx.computed import reshaped
from kuiper.onnx.registry import op
from kuiper.onnx.shapes import padded
from kuiper.onnx.values import Known, Ref, Size, product

__all__ = ["average_pool", "conv", "global_average_pool", "window_pads", "with_margins"]


def window_pads(
    b: Builder, x: Any, auto_pad: str, pads: Any, kernel: Sequence[int], strides: Sequence[int],
    dilations: Sequence[int],
) -> list[tuple[Any, Any]]:  # fmt: skip
    """Return the amounts before and after each spatial axis."""
    rank = len(kernel)
    if auto_pad in ("NOTSET", ""):
        flat = [0] * (2 * rank) if not pads else list(pads)
        if len(flat) != 2 * rank:
            raise b.error(f"pads has {len(flat)} numbers, expected {2 * rank}")
        return [(flat[i], flat[i + rank]) for i in range(rank)]
    if auto_pad == "VALID":
        return [(0, 0)] * rank
    if auto_pad not in ("SAME_UPPER", "SAME_LOWER"):
        raise b.error(f"auto_pad is '{auto_pad}', expected SAME_UPPER, SAME_LOWER or VALID")
    found = []
    for n, k, s, d in zip(b.extents(x)[2:], kernel, strides, dilations, strict=True):
        reach = (k - 1) * d + 1
        total: Any = reach - 1
        if s > 1:
            count = (n + (s - 1)) // s
            total = (count - 1) * s + reach - n
            total = total.apply("max", 0) if isinstance(total, Size) else max(total, 0)
        half = total // 2
        found.append((half, total - half) if auto_pad == "SAME_UPPER" else (total - half, half))
    return found


def _same_on_both_sides(pads: Sequence[tuple[Any, Any]]) -> bool:
    return all(isinstance(a, int) and isinstance(c, int) and a == c >= 0 for a, c in pads)


def with_margins(b: Builder, x: Any, pads: Sequence[tuple[Any, Any]], value: float) -> Any:
    amounts = [0, 0, *(a for a, _ in pads), 0, 0, *(c for _, c in pads)]
    return padded(b, x, amounts, "constant", value)


def _spatial(b: Builder, x: Any, what: str) -> int:
    rank = x.rank - 2
    if not 1 <= rank <= 3:
        raise b.error(f"{what} has {rank} spatial axes, expected 1, 2 or 3")
    return rank


@op("Conv")
def conv(
    b: Builder, x: Any, w: Any, bias: Any = None, *, auto_pad: str = "NOTSET",
    dilations: Any = None, group: int = 1, kernel_shape: Any = None, pads: Any = None,
    strides: Any = None,
) -> Any:  # fmt: skip
    rank = w.rank - 2
    if not 1 <= rank <= 3:
        raise b.error(f"has filters with {rank} spatial axes, expected 1, 2 or 3")
    extents = b.extents(w)
    kernel = list(kernel_shape or extents[2:])
    if not all(isinstance(n, int) for n in (*kernel, *extents[:2])):
        raise b.error("has filters of open extents")
    stride, dilation = list(strides or [1] * rank), list(dilations or [1] * rank)
    margins = window_pads(b, x, auto_pad, pads, kernel, stride, dilation)
    if not _same_on_both_sides(margins):
        x = with_margins(b, x, margins, 0.0)
        margins = [(0, 0)] * rank
    params: dict[str, Any] = {
        "stride": tuple(stride), "padding": tuple(a for a, _ in margins),
        "dilation": tuple(dilation), "groups": group,
    }  # fmt: skip
    is_layer = isinstance(w, Known) and (bias is None or isinstance(bias, Known))
    if is_layer and w.dtype == np.float32 and extents[0] % max(group, 1) == 0:
        weights = {"weight": b.attribute(w)}
        if bias is not None:
            weights["bias"] = b.attribute(bias)
        params |= {
            "in_channels": extents[1] * group, "out_channels": extents[0],
            "kernel_size": tuple(kernel), "bias": bias is not None, "padding_mode": "zeros",
        }  # fmt: skip
        return b.module(f"nn.Conv{rank}d", [x], params, weights)
    return b.emit(f"F.conv{rank}d", x, weight=w, bias=bias, **params)


@op("ConvTranspose")
def conv_transpose(
    b: Builder, x: Any, w: Any, bias: Any = None, *, auto_pad: str = "NOTSET",
    dilations: Any = None, group: int = 1, kernel_shape: Any = None, pads: Any = None,
    strides: Any = None, output_padding: Any = None, output_shape: Any = None,
) -> Any:  # fmt: skip
    rank = w.rank - 2
    extents = b.extents(w)
    kernel = list(kernel_shape or extents[2:])
    stride, dilation = list(strides or [1] * rank), list(dilations or [1] * rank)
    extra = list(output_padding or [0] * rank)
    margins = [(0, 0)] * rank
    spatial = b.extents(x)[2:]
    full = [
        (n - 1) * s + (k - 1) * d + 1 + e
        for n, s, k, d, e in zip(spatial, stride, kernel, dilation, extra, strict=True)
    ]
    wanted: Any = list(output_shape)[-rank:] if output_shape else None
    if wanted is None and auto_pad in ("SAME_UPPER", "SAME_LOWER"):
        wanted = [n * s for n, s in zip(spatial, stride, strict=True)]
    if wanted is not None:
        margins = []
        for n, target in zip(full, wanted, strict=True):
            total = n - target
            half = total // 2
            upper = auto_pad == "SAME_UPPER"
            margins.append((half, total - half) if upper else (total - half, half))
    elif pads and auto_pad in ("NOTSET", ""):
        margins = window_pads(b, x, "NOTSET", pads, kernel, stride, dilation)
    even = _same_on_both_sides(margins)
    params: dict[str, Any] = {
        "stride": tuple(stride), "padding": tuple(a if even else 0 for a, _ in margins),
        "dilation": tuple(dilation), "groups": group, "output_padding": tuple(extra),
    }  # fmt: skip
    is_layer = isinstance(w, Known) and (bias is None or isinstance(bias, Known)) and rank < 3
    fits = all(e < max(s, d) for e, s, d in zip(extra, stride, dilation, strict=True))
    if not fits:  # PyTorch takes less: add the rest as margin, which has the value of the bias
        raise b.error(f"output_padding is {extra}, expected less than the strides {stride}")
    if is_layer and w.dtype == np.float32:
        weights = {"weight": b.attribute(w)}
        if bias is not None:
            weights["bias"] = b.attribute(bias)
        params |= {
            "in_channels": extents[0], "out_channels": extents[1] * group,
            "kernel_size": tuple(kernel), "bias": bias is not None,
        }  # fmt: skip
        result = b.module(f"nn.ConvTranspose{rank}d", [x], params, weights)
    else:
        result = b.emit(f"F.conv_transpose{rank}d", x, weight=w, bias=bias, **params)
    if even:
        return result
    cropped = [(0 - a, 0 - c) for a, c in margins]
    return with_margins(b, result, cropped, 0.0)


def _ceil_tail(
    n: Any, k: int, s: int, d: int, pair: tuple[Any, Any], ceil_mode: int
) -> tuple[int, int]:
    """Return the number of windows, and how far the last one exceeds the padded input."""
    reach = (k - 1) * d + 1
    room = n + pair[0] + pair[1] - reach
    count = (-(-room // s) if ceil_mode else room // s) + 1
    # The last window begins inside of the input or the margin before it.
    if ceil_mode and (count - 1) * s >= n + pair[0]:
        count -= 1
    return count, max(0, (count - 1) * s + reach - n - pair[0] - pair[1])


@op("MaxPool")
def max_pool(
    b: Builder, x: Any, *, auto_pad: str = "NOTSET", ceil_mode: int = 0, dilations: Any = None,
    kernel_shape: Any, pads: Any = None, storage_order: int = 0, strides: Any = None,
) -> Any:  # fmt: skip
    rank = _spatial(b, x, "the input")
    kernel = list(kernel_shape)
    stride, dilation = list(strides or [1] * rank), list(dilations or [1] * rank)
    margins = window_pads(b, x, auto_pad, pads, kernel, stride, dilation)
    dtype = x.dtype
    if dtype.kind in "iu":
        x = b.cast(b.ref(x), np.float32)
    small = all(
        isinstance(a, int) and 2 * a <= k for (a, _), k in zip(margins, kernel, strict=True)
    )
    returns_indices = b.wants(1)
    source = x
    if not (_same_on_both_sides(margins) and small):
        x = with_margins(b, x, margins, -math.inf)
        margins = [(0, 0)] * rank
    result = b.emit(
        f"F.max_pool{rank}d", x, n=2 if returns_indices else 1, kernel_size=tuple(kernel),
        stride=tuple(stride), padding=tuple(a for a, _ in margins), dilation=tuple(dilation),
        ceil_mode=bool(ceil_mode), return_indices=returns_indices,
    )  # fmt: skip
    if not returns_indices:
        return b.cast(result, dtype)
    if x is not source:
        raise b.error("returns indices of a pooling with uneven margins")
    values, indices = result
    return b.cast(values, dtype), _whole_indices(b, source, indices, storage_order)


def _whole_indices(b: Builder, x: Any, indices: Ref, storage_order: int) -> Any:
    """Return indices into the flattened tensor, of indices into each channel."""
    n, c, *spatial = b.extents(x)
    plane = product(spatial)
    if storage_order and len(spatial) == 2:
        row = b.call("floor_divide", indices, spatial[1])
        column = b.call("remainder", indices, spatial[1])
        indices = b.formula("add(mul(@0,@1),@2)", column, spatial[0], row)
    first = b.emit("torch.arange", start=0, end=n * c, step=1, dtype="torch.long")
    first = b.emit("Tensor.reshape", first, shape=[n, c, *[1] * len(spatial)])
    return b.formula("add(@0,mul(@1,@2))", indices, first, plane)


@op("AveragePool")
def average_pool(
    b: Builder, x: Any, *, auto_pad: str = "NOTSET", ceil_mode: int = 0,
    count_include_pad: int = 0, dilations: Any = None, kernel_shape: Any, pads: Any = None,
    strides: Any = None,
) -> Any:  # fmt: skip
    rank = _spatial(b, x, "the input")
    kernel = list(kernel_shape)
    stride, dilation = list(strides or [1] * rank), list(dilations or [1] * rank)
    margins = window_pads(b, x, auto_pad, pads, kernel, stride, dilation)
    small = all(
        isinstance(a, int) and 2 * a <= k for (a, _), k in zip(margins, kernel, strict=True)
    )
    if _same_on_both_sides(margins) and small and set(dilation) == {1}:
        return b.emit(
            f"F.avg_pool{rank}d", x, kernel_size=tuple(kernel), stride=tuple(stride),
            padding=tuple(a for a, _ in margins), ceil_mode=bool(ceil_mode),
            count_include_pad=bool(count_include_pad),
        )  # fmt: skip
    return _mean_of_windows(b, x, margins, kernel, stride, dilation, ceil_mode, count_include_pad)


def _mean_of_windows(
    b: Builder, x: Any, margins: Any, kernel: Any, stride: Any, dilation: Any, ceil_mode: int,
    count_include_pad: int,
) -> Any:  # fmt: skip
    """Return means as quotients of sums: of the elements, and of ones where they count."""
    rank = len(kernel)
    spatial = b.extents(x)[2:]
    tails = [0] * rank
    if ceil_mode:
        if any(isinstance(n, Size) for n in spatial):
            raise b.error("has uneven margins and ceil_mode, and its input has open extents")
        tails = [
            _ceil_tail(*each, ceil_mode)[1]
            for each in zip(spatial, kernel, stride, dilation, margins, strict=True)
        ]
    channels = b.extents(x)[1]
    if not isinstance(channels, int):
        raise b.error("has uneven margins, and the number of channels is open")
    ones = b.emit("torch.ones_like", x)
    if count_include_pad:
        ones = with_margins(b, ones, margins, 1.0)
        ones = with_margins(b, ones, [(0, t) for t in tails], 0.0)
    else:
        ones = with_margins(
            b, ones, [(a, c + t) for (a, c), t in zip(margins, tails, strict=True)], 0.0
        )
    wide = with_margins(b, x, [(a, c + t) for (a, c), t in zip(margins, tails, strict=True)], 0.0)
    filters = Known(np.ones((channels, 1, *kernel), np.float32))
    params: dict[str, Any] = {
        "stride": tuple(stride), "padding": (0,) * rank, "dilation": tuple(dilation),
        "groups": channels,
    }  # fmt: skip
    total = b.emit(f"F.conv{rank}d", wide, weight=filters, **params)
    count = b.emit(f"F.conv{rank}d", ones, weight=filters, **params)
    return b.call("div", total, count)


@op("GlobalAveragePool")
def global_average_pool(b: Builder, x: Any) -> Any:
    rank = x.rank - 2
    if 1 <= rank <= 3:
        return b.emit(f"F.adaptive_avg_pool{rank}d", x, output_size=(1,) * rank)
    return b.emit("torch.mean", x, dim=tuple(range(2, x.rank)), keepdim=True)


@op("GlobalMaxPool")
def global_max_pool(b: Builder, x: Any) -> Any:
    return b.emit("torch.amax", x, dim=tuple(range(2, x.rank)), keepdim=True)


@op("GlobalLpPool")
def global_lp_pool(b: Builder, x: Any, *, p: int = 2) -> Any:
    powers = b.call("pow", b.call("abs", b.ref(x)), float(p))
    total = b.emit("torch.sum", powers, dim=tuple(range(2, x.rank)), keepdim=True)
    return b.call("pow", total, 1.0 / p)


@op("LpPool")
def lp_pool(
    b: Builder, x: Any, *, auto_pad: str = "NOTSET", ceil_mode: int = 0, dilations: Any = None,
    kernel_shape: Any, p: int = 2, pads: Any = None, strides: Any = None,
) -> Any:  # fmt: skip
    rank = _spatial(b, x, "the input")
    kernel = list(kernel_shape)
    stride, dilation = list(strides or [1] * rank), list(dilations or [1] * rank)
    channels = b.extents(x)[1]
    if ceil_mode or not isinstance(channels, int):
        raise b.error("has ceil_mode or an open number of channels")
    margins = window_pads(b, x, auto_pad, pads, kernel, stride, dilation)
    powers = b.call("pow", b.call("abs", b.ref(x)), float(p))
    powers = with_margins(b, powers, margins, 0.0)
    filters = Known(np.ones((channels, 1, *kernel), np.float32))
    total = b.emit(
        f"F.conv{rank}d", powers, weight=filters, stride=tuple(stride), padding=(0,) * rank,
        dilation=tuple(dilation), groups=channels,
    )  # fmt: skip
    return b.call("pow", total, 1.0 / p)


@op("MaxUnpool")
def max_unpool(
    b: Builder, x: Any, indices: Any, output_shape: Any = None, *, kernel_shape: Any,
    pads: Any = None, strides: Any = None,
) -> Any:  # fmt: skip
    rank = _spatial(b, x, "the input")
    kernel, stride = list(kernel_shape), list(strides or [1] * rank)
    margins = window_pads(b, x, "NOTSET", pads, kernel, stride, [1] * rank)
    n, c, *spatial = b.extents(x)
    shape = [
        (size - 1) * s + k - sum(pair)
        for size, s, k, pair in zip(spatial, stride, kernel, margins, strict=True)
    ]
    if output_shape is not None:
        # Indices count in the result, whose shape the pooled tensor leaves open.
        asked = b.numbers(output_shape, "output_shape")
        if len(asked) != rank + 2:
            raise b.error(f"output_shape has {len(asked)} numbers, expected {rank + 2}")
        shape = asked[2:]
    zeros = b.emit("torch.zeros", size=[product([n, c, *shape])], dtype=torch_name(x.dtype))
    index, source = (b.emit("Tensor.reshape", v, shape=(-1,)) for v in (indices, x))
    done = b.emit("aten::scatter", zeros, b.number(0), b.cast(index, np.int64), source)
    return b.emit("Tensor.reshape", done, shape=[n, c, *shape])


@op("Col2Im")
def col2im(
    b: Builder, x: Any, image_shape: Any, block_shape: Any, *, dilations: Any = None,
    pads: Any = None, strides: Any = None,
) -> Any:  # fmt: skip
    image, block = b.numbers(image_shape, "image_shape"), b.numbers(block_shape, "block_shape")
    rank = len(image)
    stride, dilation = list(strides or [1] * rank), list(dilations or [1] * rank)
    if not rank == len(block) == len(stride) == len(dilation):
        raise b.error(f"the image has {rank} axes, expected as many blocks, strides, dilations")
    margins = window_pads(b, x, "NOTSET", pads, block, stride, dilation)
    if rank == 2 and _same_on_both_sides(margins):
        return b.emit(
            "F.fold", x, output_size=image, kernel_size=block, stride=tuple(stride),
            dilation=tuple(dilation), padding=tuple(a for a, _ in margins),
        )  # fmt: skip
    wide = [n + a + c for n, (a, c) in zip(image, margins, strict=True)]
    windows = list(zip(wide, block, stride, dilation, strict=True))
    result = _folded(b, x, windows)
    cropped = [(-a, -c) for a, c in margins]
    return with_margins(b, result, cropped, 0.0)


def _folded(b: Builder, x: Any, windows: list[tuple[Any, Any, int, int]]) -> Any:
    """Return blocks summed into an image of any rank, up to two axes at a time.

    ``windows`` has, for each axis, the extent of the image and of the blocks, their stride and
    their dilation.
    """
    n, columns = b.extents(x)[:2]
    block = [k for _, k, _, _ in windows]
    counts = [(size - (k - 1) * d - 1) // s + 1 for size, k, s, d in windows]
    done: list[Any] = []  # axes of the image that are summed; they count as members of the batch
    result = reshaped(b, x, [-1, *block, *counts])
    for stop in range(len(windows), 0, -2):
        start = max(stop - 2, 0)
        m = stop - start
        own = list(zip(*windows[start:stop], strict=True))
        rest = [*range(1, 1 + start), *range(1 + stop, 1 + stop + start)]
        folded = [*range(1 + 2 * stop, 1 + 2 * stop + len(done))]
        inner = [*range(1 + start, 1 + stop), *range(1 + stop + start, 1 + 2 * stop)]
        moved = b.emit("Tensor.permute", result, dims=[0, *rest, *folded, *inner])
        flat = reshaped(b, moved, [-1, product(block[start:stop]), product(counts[start:stop])])
        ones = (1,) * (2 - m)
        image = b.emit(
            "F.fold", flat, output_size=[*own[0], *ones], kernel_size=[*own[1], *ones],
            stride=(*own[2], *ones), dilation=(*own[3], *ones),
        )  # fmt: skip
        done += own[0]
        result = reshaped(b, image, [-1, *block[:start], *counts[:start], *done])
    # The last axes were summed first.
    pairs = [list(range(start, min(start + 2, len(done)))) for start in range(0, len(done), 2)]
    order = [0, *(1 + axis for pair in reversed(pairs) for axis in pair)]
    result = b.emit("Tensor.permute", result, dims=order)
    extents = [size for size, _, _, _ in windows]
    return reshaped(b, result, [n, columns // product(block), *extents])


# -- normalisation ------------------------------------------------------------------------------


@op("BatchNormalization")
def batch_normalization(
    b: Builder, x: Any, scale: Any, bias: Any, mean: Any, var: Any, *, epsilon: float = 1e-5,
    momentum: float = 0.9, training_mode: int = 0, is_test: int = 1, spatial: int = 1,
    consumed_inputs: Any = None,
) -> Any:  # fmt: skip
    if not spatial:
        raise b.error("is not spatial, which kuiper does not support")
    if training_mode:
        if b.wants(1) or b.wants(2):
            raise b.error("trains; export the model for inference")
        return _normalized(b, x, scale, bias, epsilon)
    vectors = {"weight": scale, "bias": bias, "running_mean": mean, "running_var": var}
    if all(isinstance(v, Known) and v.dtype == np.float32 for v in vectors.values()):
        rank = max(x.rank - 2, 1)
        if rank <= 3:
            return b.module(
                f"nn.BatchNorm{rank}d", [x],
                {"num_features": scale.size, "eps": epsilon, "affine": True},
                {key: b.attribute(v) for key, v in vectors.items()},
            )  # fmt: skip
    return b.emit("F.batch_norm", x, **vectors, eps=epsilon)


def _normalized(b: Builder, x: Any, scale: Any, bias: Any, epsilon: float) -> Any:
    """Return a tensor normalised by its own mean and variance, as standardised weights are."""
    dims = [0, *range(2, x.rank)]
    mean = b.emit("torch.mean", x, dim=dims, keepdim=True)
    centred = b.call("sub", b.ref(x), mean)
    variance = b.emit("torch.mean", b.call("square", centred), dim=dims, keepdim=True)
    shape = [1, -1, *[1] * (x.rank - 2)]
    factor, shift = (b.emit("Tensor.reshape", v, shape=shape) for v in (scale, bias))
    text = f"add(mul(mul(@0,rsqrt(add(@1,{epsilon!r}))),@2),@3)"
    return b.formula(text, centred, variance, factor, shift)


@op("InstanceNormalization")
def instance_normalization(
    b: Builder, x: Any, scale: Any, bias: Any, *, epsilon: float = 1e-5,
    consumed_inputs: Any = None,
) -> Any:  # fmt: skip
    return b.emit("F.instance_norm", x, weight=scale, bias=bias, eps=epsilon)


@op("GroupNormalization")
def group_normalization(
    b: Builder, x: Any, scale: Any, bias: Any, *, epsilon: float = 1e-5, num_groups: int,
    stash_type: int = 1,
) -> Any:  # fmt: skip
    channels = b.extents(x)[1]
    if b.opset < 21 and isinstance(channels, int) and isinstance(scale, Known):
        # One scale per group before opset 21.
        scale, bias = (Known(np.repeat(v.array, channels // num_groups)) for v in (scale, bias))
    return b.emit("F.group_norm", x, weight=scale, bias=bias, num_groups=num_groups, eps=epsilon)


@op("LayerNormalization")
def layer_normalization(
    b: Builder, x: Any, scale: Any, bias: Any = None, *, axis: int = -1, epsilon: float = 1e-5,
    stash_type: int = 1,
) -> Any:  # fmt: skip
    if b.wants(1) or b.wants(2):
        return _with_statistics(b, x, scale, bias, b.axis(axis, x.rank), epsilon)
    return layer_norm(b, x, scale, bias, axis, epsilon)


def layer_norm(b: Builder, x: Any, scale: Any, bias: Any, axis: int, epsilon: float) -> Any:
    """Return a tensor normalised along the axes from `axis` on."""
    axis = b.axis(axis, x.rank)
    extents = b.extents(x)[axis:]
    is_plain = all(isinstance(n, int) for n in extents) and list(scale.shape or ()) == extents
    if not is_plain or (bias is not None and bias.shape != scale.shape):
        return _with_statistics(b, x, scale, bias, axis, epsilon)[0]
    shape = tuple(extents)
    if all(isinstance(v, Known) and v.dtype == np.float32 for v in (scale, bias)):
        return b.module(
            "nn.LayerNorm", [x],
            {"normalized_shape": shape, "eps": epsilon, "elementwise_affine": True},
            {"weight": b.attribute(scale), "bias": b.attribute(bias)},
        )  # fmt: skip
    return b.emit("F.layer_norm", x, weight=scale, bias=bias, normalized_shape=shape, eps=epsilon)


def _with_statistics(b: Builder, x: Any, scale: Any, bias: Any, axis: int, epsilon: float) -> Any:
    """Return layer normalisation, the mean, and the inverse of the standard deviation."""
    x = b.ref(x)
    dims = tuple(range(axis, x.rank))
    mean = b.emit("torch.mean", x, dim=dims, keepdim=True)
    centred = b.call("sub", x, mean)
    variance = b.emit("torch.mean", b.call("square", centred), dim=dims, keepdim=True)
    inverse = b.formula(f"rsqrt(add(@0,{epsilon!r}))", variance)
    result = b.call("mul", b.call("mul", centred, inverse), scale)
    if bias is not None:
        result = b.call("add", result, bias)
    return result, mean, inverse


@op("RMSNormalization")
@op("SimplifiedLayerNormalization")
def rms_normalization(
    b: Builder, x: Any, scale: Any, *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1
) -> Any:
    x = b.ref(x)
    axis = b.axis(axis, x.rank)
    extents = b.extents(x)[axis:]
    if all(isinstance(n, int) for n in extents) and list(scale.shape or ()) == extents:
        return b.emit("F.rms_norm", x, weight=scale, normalized_shape=tuple(extents), eps=epsilon)
    dims = tuple(range(axis, x.rank))
    mean = b.emit("torch.mean", b.call("square", x), dim=dims, keepdim=True)
    return b.formula(f"mul(mul(@0,rsqrt(add(@1,{epsilon!r}))),@2)", x, mean, scale)


@op("MeanVarianceNormalization")
def mean_variance_normalization(b: Builder, x: Any, *, axes: Any = None) -> Any:
    dims = tuple(b.axis(a, x.rank) for a in axes or (0, 2, 3))
    mean = b.emit("torch.mean", x, dim=dims, keepdim=True)
    centred = b.call("sub", b.ref(x), mean)
    variance = b.emit("torch.mean", b.call("square", centred), dim=dims, keepdim=True)
    return b.formula("div(@0,add(sqrt(@1),1e-09))", centred, variance)


@op("LRN")
def lrn(
    b: Builder, x: Any, *, alpha: float = 1e-4, beta: float = 0.75, bias: float = 1.0, size: int
) -> Any:
    return b.emit("F.local_response_norm", x, size=size, alpha=alpha, beta=beta, k=bias)


# -- sampling ---------------------------------------------------------------------------------


@op("GridSample")
def grid_sample(
    b: Builder, x: Any, grid: Any, *, align_corners: int = 0, mode: str = "linear",
    padding_mode: str = "zeros",
) -> Any:  # fmt: skip
    name = {"linear": "bilinear", "cubic": "bicubic"}.get(mode, mode)
    return b.emit(
        "F.grid_sample", x, grid, mode=name, padding_mode=padding_mode,
        align_corners=bool(align_corners),
    )  # fmt: skip


@op("AffineGrid")
def affine_grid(b: Builder, theta: Any, size: Any, *, align_corners: int = 0) -> Any:
    return b.emit(
        "F.affine_grid", theta, size=b.numbers(size, "size"), align_corners=bool(align_corners)
    )
