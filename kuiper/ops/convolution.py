"""Convolution and transposed convolution."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from kuiper._kernels import _dispatch, _pack, _window, conv, grouped, winograd
from kuiper._value import TensorSpec, Value
from kuiper.errors import ShapeError
from kuiper.ops._binder import Binder
from kuiper.ops._post import activation_post, make_post, residual_value
from kuiper.ops._record import Record, record
from kuiper.ops._regions import Band, cut_regions
from kuiper.ops._schema import Argument, Float, Int, Ints, Str, Tensor
from kuiper.ops._strassen import strassen_pays, strassen_step

__all__ = ["Conv", "Conv1d", "ConvTranspose", "ConvTranspose1d", "ExpandDepthwise"]

# Up to this many input channels a tap is too short a loop; it runs along filter rows instead.
SHALLOW_CHANNELS = 8

# Per core, of machines that kuiper meets; used in estimates only.
L2_BYTES = 1 << 20
BYTES_PER_CYCLE = 14  # from beyond it

# Above this, Winograd's intermediate matrices leave the caches, and blocks of tiles do better.
STAGED_BYTES = 6 << 20
# So they do where a share of the tiles is worth the weights: in weights for each number that goes
# from stage to stage, and in tiles for each thread.
BLOCKED_WEIGHTS = 1.5
BLOCKED_TILES = 24

# Of an image of a group, below which all groups are faster together, by the definition.
GROUP_PRODUCTS = 900_000

# What an inverted residual keeps of its wide image: it shares the L2 cache with weights and images.
RING_BYTES = 400 << 10


_ONE_PLANE = winograd.Planes()


class Geometry:
    """A convolution's arguments, brought to two spatial axes.

    Attributes
    ----------
    kernel, stride, dilation : (int, int)
    padding : (int, int, int, int)
        Top, bottom, left, right.
    """

    def __init__(self, a: SimpleNamespace, spatial: int) -> None:
        lead = (1,) * (2 - spatial)
        self.kernel = lead + tuple(a.weight.shape[2:])
        self.stride = lead + per_axis(a.stride, spatial)
        self.dilation = lead + per_axis(a.dilation, spatial)
        if a.padding == "valid":
            sides = [(0, 0)] * spatial
        elif a.padding == "same":
            # The odd one goes to the far side, as in PyTorch.
            totals = [
                d * (k - 1)
                for d, k in zip(
                    self.dilation[2 - spatial :], self.kernel[2 - spatial :], strict=True
                )
            ]
            sides = [(total // 2, total - total // 2) for total in totals]
        elif len(a.padding) == 2 * spatial:
            # Both sides of each axis, last axis first, as F.pad has them.
            sides = [a.padding[2 * i : 2 * i + 2] for i in reversed(range(spatial))]
        else:
            sides = [(p, p) for p in per_axis(a.padding, spatial)]
        sides = [(0, 0)] * (2 - spatial) + sides
        self.padding = (*sides[0], *sides[1])

    def output_extents(self, height: int, width: int) -> tuple[int, int]:
        top, bottom, left, right = self.padding
        return tuple(
            (extent + pad - d * (k - 1) - 1) // s + 1
            for extent, pad, k, s, d in zip(
                (height, width),
                (top + bottom, left + right),
                self.kernel,
                self.stride,
                self.dilation,
                strict=True,
            )
        )


def per_axis(items: Any, spatial: int) -> tuple[int, ...]:
    return tuple(items) * spatial if len(items) == 1 else tuple(items)


def check_weight(a: SimpleNamespace, spatial: int, in_axis: int) -> None:
    """Compare the weight's shape with what the module says of itself."""
    if a.weight.rank != spatial + 2:
        raise ShapeError(f"'weight' has shape {a.weight.shape}, expected rank {spatial + 2}")
    channels, filters = a.weight.shape[in_axis], a.weight.shape[1 - in_axis]
    in_channels = channels * a.groups if in_axis == 1 else channels
    out_channels = filters if in_axis == 1 else filters * a.groups
    for name, got in (("in_channels", in_channels), ("out_channels", out_channels)):
        said = getattr(a, name)
        if said is not None and said != got:
            raise ShapeError(f"'{name}' is {said}, but 'weight' {a.weight.shape} makes it {got}")
    if in_channels % a.groups or out_channels % a.groups:
        raise ShapeError(
            f"'groups' is {a.groups}, which does not divide {in_channels} input and "
            f"{out_channels} output channels"
        )
    if a.kernel_size is not None and per_axis(a.kernel_size, spatial) != a.weight.shape[2:]:
        raise ShapeError(f"'kernel_size' is {a.kernel_size}, but 'weight' has {a.weight.shape}")
    if min(a.weight.shape[2:], default=1) < 1:
        raise ShapeError(f"'weight' has shape {a.weight.shape}, expected extents >= 1")
    for name in ("stride", "dilation", "output_padding"):
        items = getattr(a, name, None)
        if items is not None and len(items) not in (1, spatial):
            raise ShapeError(f"'{name}' is {items}, expected {spatial} integers")
    if not isinstance(a.padding, str) and len(a.padding) not in (1, spatial, 2 * spatial):
        raise ShapeError(f"'padding' is {a.padding}, expected {spatial} or {2 * spatial} integers")
    if a.bias is not None and a.bias.shape != (out_channels,):
        raise ShapeError(f"'bias' has shape {a.bias.shape}, expected ({out_channels},)")
    if a.input.rank not in (spatial + 1, spatial + 2):
        raise ShapeError(
            f"the input has shape {a.input.shape}, expected rank {spatial + 2} "
            f"(or {spatial + 1} without a batch)"
        )
    got = a.input.shape[a.input.rank - spatial - 1]
    if got != in_channels:
        raise ShapeError(
            f"the input has shape {a.input.shape} with {got} channels, expected {in_channels}"
        )
    if a.input.dtype != np.float32 or a.weight.dtype != np.float32:
        raise ShapeError(
            f"the input is {a.input.dtype} and the weight {a.weight.dtype}, expected float32"
        )


class Filters:
    """The weight and bias of a convolution, read and widened only when they are packed.

    A slice of it is an array of some filters.

    Attributes
    ----------
    shape : tuple of int
        Of the weight, with two spatial axes.
    is_constant : bool
        Whether they are known while planning.
    """

    def __init__(self, weight: Any, bias: Any, shape: Any) -> None:
        self._weight, self._bias = weight, bias
        self.shape = shape
        self.is_constant = all(v is None or v.is_constant for v in (weight, bias))

    @property
    def are_halves(self) -> bool:
        """Whether they are stored as float16."""
        return str(self._weight.source.dtype) in ("f16", "float16")

    def stored(self) -> np.ndarray:
        """Return the weight as it lies in memory, where that is in C order: no copy is made."""
        return np.ascontiguousarray(self._weight.constant).reshape(self.shape)

    def weight(self) -> np.ndarray:
        return np.ascontiguousarray(self._weight.constant, np.float32).reshape(self.shape)

    def __getitem__(self, rows: slice) -> np.ndarray:
        filters = np.ascontiguousarray(self._weight.rows(rows.start, rows.stop), np.float32)
        return filters.reshape(len(filters), *self.shape[1:])

    def some(self, start: int, count: int) -> Filters:
        """Return the filters from number `start` on, where they are constants."""
        return _SomeFilters(self, start, count)

    def bias(self) -> np.ndarray | None:
        return None if self._bias is None else np.asarray(self._bias.constant, np.float32)


class _SomeFilters(Filters):
    """A few of a convolution's filters."""

    def __init__(self, all_: Filters, start: int, count: int) -> None:
        self._all, self._start = all_, start
        self.shape = (count, *all_.shape[1:])
        self.is_constant = True

    @property
    def are_halves(self) -> bool:
        return self._all.are_halves

    def stored(self) -> np.ndarray:
        return self._all.stored()[self._start : self._start + self.shape[0]]

    def weight(self) -> np.ndarray:
        return self[0 : self.shape[0]]

    def __getitem__(self, rows: slice) -> np.ndarray:
        return self._all[self._start + rows.start : self._start + rows.stop]

    def bias(self) -> np.ndarray | None:
        bias = self._all.bias()
        return None if bias is None else bias[self._start : self._start + self.shape[0]]


_COMMON = (
    Tensor("input"),
    Tensor("weight", rank=4),
    Tensor("bias", optional=True),
    Int("in_channels", None, minimum=1),
    Int("out_channels", None, minimum=1),
    Ints("kernel_size", default=None, minimum=1),
    Ints("stride", default=(1,), minimum=1),
    Ints("dilation", default=(1,), minimum=1),
    Int("groups", 1, minimum=1),
)


def for_axes(arguments: tuple[Argument, ...], spatial: int) -> tuple[Argument, ...]:
    """Return the arguments of a 2-d convolution for another number of spatial axes."""
    weight = Tensor("weight", rank=spatial + 2)
    return tuple(
        weight if argument.name == "weight" else argument
        for argument in arguments
        if argument.name != "input_scale"
    )


@record("nn.Conv2d", "F.conv2d")
class Conv(Record):
    """Cross-correlation of an input with filters.

    ``y[n, o, i, j] = bias[o] + sum x[n, c, i * s + u * d - p, j * s + v * d - p] * w[o, c, u, v]``

    Input (n, c, h, w) or (c, h, w), weight (out, in / groups, kh, kw).  `input_scale`, of shape
    (n, c, 1, 1), comes from the pass `fuse_gate` alone.
    Source: torch.nn.Conv2d.
    """

    arguments: tuple[Argument, ...] = (
        *_COMMON,
        Ints("padding", default=(0,), minimum=0, words=("same", "valid")),
        Str("padding_mode", ("zeros", "reflect", "replicate", "circular"), "zeros"),
        Tensor("input_scale", optional=True),
    )
    layout = "channels_last"
    post_ops = True

    @staticmethod
    def infer(a: SimpleNamespace) -> TensorSpec:
        spatial = a.weight.rank - 2
        check_weight(a, spatial, in_axis=1)
        geometry = Geometry(a, spatial)
        extents = (1,) * (2 - spatial) + a.input.shape[a.input.rank - spatial :]
        out = geometry.output_extents(*extents)
        if min(out) < 1:
            raise ShapeError(
                f"the kernel {a.weight.shape[2:]} with dilation {a.dilation} is larger than the "
                f"padded input {a.input.shape}"
            )
        batch = a.input.shape[: a.input.rank - spatial - 1]
        scale = getattr(a, "input_scale", None)
        if scale is not None and (
            a.input.rank != 4
            or scale.shape != (*a.input.shape[:2], 1, 1)
            or scale.dtype != np.float32
            or (a.groups, geometry.kernel, geometry.stride) != (1, (1, 1), (1, 1))
            or any(geometry.padding)
        ):
            raise ShapeError(
                f"'input_scale' has shape {scale.shape}, expected one number for each channel of "
                f"the input {a.input.shape}, and a 1x1 kernel {geometry.kernel} without padding"
            )
        return TensorSpec((*batch, a.weight.shape[0], *out[2 - spatial :]))

    @staticmethod
    def bind(a: SimpleNamespace, b: Binder) -> None:
        spatial = a.weight.rank - 2
        geometry = Geometry(a, spatial)
        x = _as_image(a.input, spatial)
        top, bottom, left, right = geometry.padding
        if a.padding_mode != "zeros" and any(geometry.padding):
            from kuiper.ops.padding import pad_spatial

            x = pad_spatial(b, x, (left, right, top, bottom), a.padding_mode, 0.0)
            top = bottom = left = right = 0
        filters = Filters(a.weight, a.bias, (*a.weight.shape[:2], *geometry.kernel))
        y, image, residual = _output(a, b, spatial)
        post = make_post(b, residual)
        taps = _taps(geometry, (top, left))
        size = (image.shape[2], image.shape[3])
        out_channels, in_channels = filters.shape[:2]
        scale = getattr(a, "input_scale", None)
        if scale is not None:
            if not filters.is_constant:
                raise ShapeError("'input_scale' expects a weight and a bias that the file holds")
            step = _scaled(b, x, scale, image, filters, post)
        elif not filters.is_constant:
            x = b.channels_last(x)
            packed, offsets = pack_at_run_time(
                b, a, filters, a.groups, [list(np.ndindex(geometry.kernel))], by_column=True
            )
            step = _implicit(
                b, x, image, packed, [(0, 0, *size, taps, offsets[0])], geometry.stride, (1, 1),
                a.groups, in_channels, out_channels // a.groups, post,
            )  # fmt: skip
            _count(step, x, image, filters)
        else:
            step = image_steps(b, x, image, filters, geometry, (top, left), a.groups, post)
        b.step(step)
        _finish(b, y, image, spatial)


def image_steps(
    b: Binder,
    x: Value,
    image: Value,
    filters: Filters,
    geometry: Any,
    origin: tuple[int, int],
    groups: int,
    post: Any,
) -> Any:
    """Bind a convolution by constant filters: the last step is returned, those ahead are added.

    Parameters
    ----------
    b : Binder
    x, image : Value
        Input and output, (n, c, h, w).
    filters : Filters
    geometry : object
        `kernel`, `stride` and `dilation`, each (int, int).
    origin : (int, int)
        Padding above and to the left.
    groups : int
    post : Post or None
    """
    size, in_channels = (image.shape[2], image.shape[3]), filters.shape[1]
    if groups > 1:
        # Each group by itself, if that needs fewer products and is long against three steps.
        out_channels = filters.shape[0] // groups
        products = math.prod(size) * out_channels * math.prod(filters.shape[1:])
        tile = winograd_tile(geometry, (out_channels, in_channels), size)
        if tile and products >= GROUP_PRODUCTS:
            x, step = b.channels_last(x), None
            for group in range(groups):
                if step is not None:
                    b.step(step)
                part, channels = group * out_channels, (1, group * in_channels, in_channels)
                some = filters.some(part, out_channels)
                step = winograd_steps(
                    b, tile, geometry.stride[0], x.narrow(*channels),
                    image.narrow(1, part, out_channels), some, origin,
                    None if post is None else post.narrow(1, part, out_channels), group=group,
                )  # fmt: skip
                _count(step, x.narrow(*channels), image.narrow(1, part, out_channels), some)
            return step
    step = _whole_step(b, x, image, filters, geometry, origin, groups, post)
    _count(step, x, image, filters)
    return step


def _count(step: Any, x: Value, image: Value, filters: Filters) -> None:
    """Note how much a convolution has to do."""
    step.flops = 2.0 * image.size * math.prod(filters.shape[1:])
    step.bytes = 4.0 * (x.size + image.size + math.prod(filters.shape))


def _whole_step(
    b: Binder,
    x: Value,
    image: Value,
    filters: Filters,
    geometry: Any,
    origin: tuple[int, int],
    groups: int,
    post: Any,
) -> Any:
    """Bind a convolution with all its groups in one step."""
    taps = _taps(geometry, origin)
    size = (image.shape[2], image.shape[3])
    out_channels, in_channels = filters.shape[:2]
    if groups == x.shape[1] == out_channels and groups > 1:
        return _depthwise(b, x, image, filters, taps, geometry, size, post)
    if groups > 1 and grouped.is_grouped(in_channels, out_channels // groups):
        return _grouped(b, x, image, filters, taps, geometry, groups, post)
    if groups == 1 and (tile := winograd_tile(geometry, filters.shape, size)):
        return winograd_steps(b, tile, geometry.stride[0], x, image, filters, origin, post)
    if groups == 1 and x.shape[1] <= SHALLOW_CHANNELS:
        return _shallow(b, x, image, filters, origin, geometry, size, post)
    if regions := cut_regions(taps, geometry.stride, x.shape[2:], size):
        return _by_region(b, x, image, filters, regions, taps, geometry, groups, post)
    x = b.channels_last(x)
    if groups == 1 and strassen_pays(size[0] * size[1], len(taps), in_channels, out_channels):
        return strassen_step(
            b, x, image, _ByTap(filters), filters.bias, taps, geometry.stride, post
        )  # fmt: skip
    packed = b.packed("conv", lambda: pack_groups([filters], filters.bias(), groups, b.n_threads))
    return _implicit(
        b, x, image, packed, [(0, 0, *size, taps, 0)], geometry.stride, (1, 1), groups,
        in_channels, out_channels // groups, post,
    )  # fmt: skip


def _taps(geometry: Any, origin: tuple[int, int]) -> list[tuple[int, int]]:
    """Where the pixels of a window lie, relative to its place in the output."""
    return [
        (u * geometry.dilation[0] - origin[0], v * geometry.dilation[1] - origin[1])
        for u, v in np.ndindex(geometry.kernel)
    ]


def _as_image(value: Value, spatial: int) -> Value:
    """View (n, c, l), (c, h, w) or (c, l) as (n, c, h, w)."""
    if value.rank == spatial + 1:
        value = value.with_layout((1, *value.shape), (value.size, *value.strides))
    if spatial == 1:
        n, c, width = value.shape
        value = value.with_layout((n, c, 1, width), (*value.strides[:2], 0, value.strides[2]))
        # With one row the row stride is free; let it say what a channels-last row would.
        strides = (*value.strides[:2], value.strides[3] * width, value.strides[3])
        value = value.with_layout(value.shape, strides)
    return value


def _output(a: SimpleNamespace, b: Binder, spatial: int) -> Any:
    """Return the output, the same as a channels-last image, and the residual as an image."""
    residual = residual_value(b)
    if a.input.rank == 4 and spatial == 2:
        y = b.output(layout="channels_last")
        return y, y, None if residual is None else b.channels_last(residual)
    spec = b.output_spec()
    shape = spec.shape
    if a.input.rank == spatial + 1:
        shape = (1, *shape)
    if spatial == 1:
        shape = (*shape[:2], 1, shape[2])
    image = b.temporary(shape, np.float32, "channels_last")
    if residual is not None:
        residual = b.channels_last(_as_image(residual, spatial))
    return None, image, residual


def _finish(b: Binder, y: Any, image: Any, spatial: int) -> None:
    """Let an output that is no image be a view of the one that was computed."""
    if y is not None:
        return
    axes = [0, 1, 2, 3] if spatial == 2 else [0, 1, 3]
    if b.output_spec().rank == spatial + 1:
        axes = axes[1:]
    b.alias(image.with_layout([image.shape[d] for d in axes], [image.strides[d] for d in axes]))


class _ByTap:
    """Filters as (out_channels, taps, in_channels), slice by slice."""

    def __init__(self, filters: Any) -> None:
        out_channels, in_channels, *kernel = filters.shape
        self.shape = (out_channels, math.prod(kernel), in_channels)
        self._filters = filters

    def __getitem__(self, rows: slice) -> np.ndarray:
        filters = self._filters[rows]
        return filters.reshape(len(filters), *self.shape[:0:-1]).transpose(0, 2, 1)


def pack_groups(weights: Any, bias: Any, groups: int, n_threads: int) -> np.ndarray:
    """Pack the filters of each phase and group, one after the other.

    A weight is an array (out, in / groups, kh, kw) of one phase, or :class:`Filters`.
    """
    parts = []
    for weight in weights:
        out = weight.shape[0] // groups
        for g in range(groups):
            rows = slice(g * out, (g + 1) * out)
            by_tap = _ByTap(weight) if groups == 1 else _ByTap(weight)[rows]
            part = None if bias is None else np.ascontiguousarray(bias[rows])
            parts.append(_pack.pack_panels(by_tap, part, n_threads).reshape(-1))
    if len(parts) == 1:
        return parts[0]
    packed = _pack.aligned_empty((sum(part.size for part in parts),))
    return np.concatenate(parts, out=packed)


def panel_offsets(tap_lists: Any, groups: int, in_channels: int, out_channels: int) -> list[int]:
    """Return where the panels of each phase start, and where the last ones end, in elements."""
    panels = groups * _pack.n_panels(out_channels)
    sizes = [panels * _pack.panel_floats(len(taps) * in_channels) for taps in tap_lists]
    return np.cumsum([0, *sizes]).tolist()


def pack_at_run_time(
    b: Binder, a: SimpleNamespace, filters: Any, groups: int, tap_lists: Any, by_column: bool
) -> Any:
    """Add the steps that pack a computed weight; return the panels and where each phase starts.

    `by_column` tells whether the first axis of the weight counts filters (convolution) or input
    channels (transposed).
    """
    weight = b.contiguous(a.weight)
    bias = None if a.bias is None else b.contiguous(a.bias)
    first, second, kernel_h, kernel_w = filters.shape
    taps = kernel_h * kernel_w
    if by_column:
        out_channels, in_channels = first // groups, second
        strides = (out_channels * second * taps, second * taps, taps)
    else:
        in_channels, out_channels = first // groups, second
        strides = (in_channels * second * taps, taps, second * taps)
    offsets = panel_offsets(tap_lists, groups, in_channels, out_channels)
    packed = b.temporary((offsets[-1],))
    for phase_taps, start, end in zip(tap_lists, offsets, offsets[1:], strict=False):
        places = np.array([u * kernel_w + v for u, v in phase_taps] or [0], np.intp)
        b.step(
            _pack.PackStep(
                weight, bias, packed.narrow(0, start, end - start), b.constant(places), groups,
                out_channels, len(phase_taps), in_channels, strides,
            )
        )  # fmt: skip
    return packed, offsets


def _by_region(
    b: Binder,
    x: Any,
    image: Any,
    filters: Filters,
    regions: Sequence[tuple[Band, Band]],
    taps: Sequence[tuple[int, int]],
    geometry: Geometry,
    groups: int,
    post: Any,
) -> Any:
    """Bind a convolution of which each region of the output has taps of its own."""
    out_channels, in_channels = filters.shape[:2]
    (step_h, step_w), columns = geometry.stride, geometry.kernel[1]
    phases, start = [], 0
    for down, across in regions:
        seen = [
            taps[u * columns + v]
            for u in range(down.seen.start, down.seen.stop)
            for v in range(across.seen.start, across.seen.stop)
        ]
        # A phase counts its taps from its own first pixel.
        seen = [(dy + down.first * step_h, dx + across.first * step_w) for dy, dx in seen]
        phases.append((down.first, across.first, down.extent, across.extent, seen, start))
        start += (
            groups
            * _pack.n_panels(out_channels // groups)
            * _pack.panel_floats(len(seen) * in_channels)
        )
    key = tuple((d.seen.start, d.seen.stop, c.seen.start, c.seen.stop) for d, c in regions)

    def pack() -> np.ndarray:
        weight = filters.weight()  # read once for all regions
        parts = [weight[:, :, down.seen, across.seen] for down, across in regions]
        return pack_groups(parts, filters.bias(), groups, b.n_threads)

    packed = b.packed(("conv", key), pack)
    return _implicit(
        b, b.channels_last(x), image, packed, phases, geometry.stride, (1, 1), groups, in_channels,
        out_channels // groups, post,
    )  # fmt: skip


def _implicit(
    b: Binder,
    x: Any,
    image: Any,
    packed: Any,
    phases: Any,
    in_step: Any,
    out_step: Any,
    groups: Any,
    in_channels: Any,
    out_channels: Any,
    post: Any,
) -> Any:
    window = _window.Window(x, image, in_step, out_step, phases)
    scratch = b.scratch(8 * _dispatch.tile()[0] * window.max_taps)
    return conv.ConvStep(x, packed, image, window, groups, in_channels, out_channels, scratch, post)


def _scaled(b: Binder, x: Any, scale: Any, image: Any, filters: Any, post: Any) -> Any:
    """Bind a 1x1 convolution of images whose channels are scaled: each with weights of its own.

    The last step is returned, those ahead of it are added.
    """
    from kuiper._kernels.elementwise import ElementwiseStep
    from kuiper.expression import Call, Ref, fold

    x, scale = b.channels_last(x), b.contiguous(scale)
    out_channels, in_channels = filters.shape[:2]
    packed = b.packed("conv", lambda: pack_groups([filters], filters.bias(), 1, b.n_threads))
    nr, depth = _dispatch.tile()[1], in_channels + 1
    shape = (_pack.n_panels(out_channels), depth, nr)
    packed = packed.with_layout(shape, (depth * nr, nr, 1))
    size, step = image.shape[2:], None
    for i in range(x.shape[0]):
        if step is not None:
            b.step(step)
        panels = b.temporary(shape)
        b.copy(packed.narrow(1, 0, 1), panels.narrow(1, 0, 1))  # the bias
        terms, gate = packed.narrow(1, 1, in_channels), scale.select(0, i)
        gate = gate.with_layout((1, in_channels, 1), (0, 1, 0)).expand(terms.shape)
        program = fold(Call("mul", [Ref(0), Ref(1)]), [terms, gate])
        b.step(ElementwiseStep(program, [terms, gate], panels.narrow(1, 1, in_channels)))
        y = image.narrow(0, i, 1)
        step = _implicit(
            b, x.narrow(0, i, 1), y, panels, [(0, 0, *size, [(0, 0)], 0)], (1, 1), (1, 1), 1,
            in_channels, out_channels, None if post is None else post.narrow(0, i, 1),
        )  # fmt: skip
        step.flops = 2.0 * y.size * in_channels
        step.bytes = 4.0 * (y.size * (1 + in_channels / out_channels) + packed.size)
    return step


def _depthwise_blocks(filters: Any) -> np.ndarray:
    weight = filters.weight()
    return _pack.pack_depthwise(weight.reshape(weight.shape[0], -1), filters.bias())


def _depthwise(
    b: Binder, x: Any, image: Any, filters: Any, taps: Any, geometry: Any, size: Any, post: Any
) -> Any:
    x = b.channels_last(x)

    packed = b.packed("depthwise", lambda: _depthwise_blocks(filters))
    window = _window.Window(x, image, geometry.stride, (1, 1), [(0, 0, *size, taps, 0)])
    scratch = b.scratch(conv.depthwise_scratch_bytes(len(taps)))
    return conv.DepthwiseStep(
        x, packed, image, window, geometry.kernel, geometry.dilation, scratch, post
    )


def _grouped(
    b: Binder, x: Any, image: Any, filters: Any, taps: Any, geometry: Any, groups: int, post: Any
) -> Any:
    x = b.channels_last(x)
    packed = b.packed(
        "grouped", lambda: grouped.pack_grouped(filters.weight(), filters.bias(), groups)
    )
    phases = [(0, 0, *image.shape[2:], taps, 0)]
    window = _window.Window(x, image, geometry.stride, (1, 1), phases)
    scratch = b.scratch(grouped.grouped_scratch_bytes(len(taps)))
    return grouped.GroupedStep(x, packed, image, window, groups, scratch, post)


def _shallow(
    b: Binder, x: Any, image: Any, filters: Any, origin: Any, geometry: Any, size: Any, post: Any
) -> Any:
    """Bind a convolution of few channels; the order of a receptive field follows the layout."""
    out_channels, channels, kernel_h, kernel_w = filters.shape
    (top, left), (dilation_h, dilation_w) = origin, geometry.dilation
    channels_last = x.is_channels_last and x.pitch == channels and channels > 1
    if not channels_last:
        x = b.contiguous(x)
    unit = channels if channels_last else 1
    # Columns of one run must be adjacent, so a dilated row is cut into single columns.
    run, columns = (kernel_w, [0]) if dilation_w == 1 else (1, range(kernel_w))
    planes = [0] if channels_last else [c * x.strides[1] for c in range(channels)]
    taps, offsets = [], []
    for plane in planes:
        for u in range(kernel_h):
            for v in columns:
                dy, dx = u * dilation_h - top, v * dilation_w - left
                taps.append((dy, dx))
                offsets.append(plane + dy * x.strides[2] + dx * unit)

    def pack() -> np.ndarray:
        order = (0, 2, 3, 1) if channels_last else (0, 1, 2, 3)
        fields = filters.weight().transpose(order).reshape(out_channels, 1, -1)
        return _pack.pack_panels(np.ascontiguousarray(fields), filters.bias())

    packed = b.packed(("shallow", channels_last), pack)
    window = _window.Window(x, image, geometry.stride, (1, 1), [(0, 0, *size, taps, 0)])
    scratch = b.scratch(
        conv.shallow_scratch_bytes(x, image, geometry.stride[1], len(taps), run, unit)
    )
    return conv.ShallowConvStep(
        x, packed, image, window, offsets, unit, run, out_channels, scratch, post
    )


def winograd_tile(geometry: Any, shape: Any, size: Any, planes: int = 1) -> int:
    """Estimate how a convolution is fastest: by Winograd in tiles of side 4 or 2, or directly (0).

    With a stride of 2 there are no tiles of side 2.  `size` is that of one of the output's
    `planes`; of the filters' planes, each counts as so many channels.

    Large tiles multiply less, but read more weights, which small planes of many channels do not
    amortise.  The estimate knows neither the batch nor the number of threads: results must not
    depend on them.
    """
    out_channels, in_channels = shape[:2]
    least_channels = {(1, 1): 16, (2, 2): 32}.get(geometry.stride)
    if geometry.kernel != (3, 3) or geometry.dilation != (1, 1):
        return 0
    if least_channels is None or min(in_channels, out_channels) < least_channels:
        return 0
    # Cycles of one core per pair of channels: two FMAs on full vectors a cycle; the transforms;
    # the weights from the L3 cache or memory, where they exceed the L2 cache.
    lanes = _dispatch.lanes()

    def reading(weights: int) -> float:
        is_large = 4 * weights * in_channels * out_channels > L2_BYTES
        return 4 * weights / BYTES_PER_CYCLE if is_large else 0.0

    stride = geometry.stride[0]
    best, least = 0, 9 * planes * size[0] * size[1] / (2 * lanes) + reading(9)
    if stride == 1:
        least *= 0.9
    for tile, transform in ((4, 250), (2, 80)) if stride == 1 else ((4, 400),):
        tiles_h, tiles_w = -(-size[0] // tile), -(-size[1] // tile)
        tiles = tiles_h * tiles_w
        # Each tile takes two points more than it has outputs, along either axis.
        products = (size[0] + 2 * tiles_h) * (size[1] + 2 * tiles_w) if stride == 1 else 81 * tiles
        transforms = transform * tiles / lanes * (1 / in_channels + 1 / out_channels)
        cycles = planes * (products / (2 * lanes) + transforms) + reading((tile + 2) ** 2)
        if cycles < least:
            best, least = tile, cycles
    return best


def _winograd_is_blocked(
    frequencies: int, tiles: int, in_channels: int, out_channels: int, n_threads: int
) -> bool:
    """Decide whether each thread takes tiles through all stages; both forms give the same bits."""
    between = tiles * (in_channels + out_channels)
    if 4 * frequencies * between > STAGED_BYTES:
        return True
    # Each core then reads all weights, but none waits for frequencies that another one has written.
    return in_channels * out_channels <= BLOCKED_WEIGHTS * between and (
        tiles >= BLOCKED_TILES * n_threads
    )


def _winograd_block(tiles: int, stride: int, channels: int, n_threads: int) -> int:
    """Return how many tiles a thread should take through all stages at a time.

    Few, for their frequencies to stay in the L2 cache; with many channels more, since the weights
    are read once for each block.  As many blocks for one thread as for the other.
    """
    wanted = min(84, max(28, 14 * (channels // 256)))
    if stride == 2:
        # More than twice the frequencies, of which most share weights.
        wanted = 14 if channels >= 256 else 7
    blocks = -(-tiles // wanted)
    rounds = -(-blocks // n_threads)
    if tiles >= rounds * n_threads * min(wanted, 14):
        blocks = rounds * n_threads
    return -(-tiles // blocks)


def winograd_steps(
    b: Binder,
    tile: int,
    stride: int,
    x: Any,
    image: Any,
    filters: Any,
    padding: Any,
    post: Any,
    planes: winograd.Planes = _ONE_PLANE,
    group: int = 0,
) -> Any:
    """Bind a Winograd convolution: the last step is returned, those ahead of it are added."""
    x = b.channels_last(x)
    n, out_channels, height, width = image.shape
    in_channels = x.shape[1]
    weight = b.packed(
        ("winograd", tile, group),
        lambda: winograd.pack_winograd(filters, tile, b.n_threads, stride),
    )
    bias = filters.bias()
    bias = b.constant(np.zeros(out_channels, np.float32) if bias is None else bias)
    stacks = -(-height // tile) * -(-width // tile) * n // planes.outputs
    tiles = stacks * planes.outputs
    frequencies = winograd.n_frequencies(tile, stride)
    matrices = ((planes.inputs, in_channels), (planes.outputs, out_channels))
    if _winograd_is_blocked(frequencies, tiles, in_channels, out_channels, b.n_threads):
        block = _winograd_block(tiles, stride, in_channels + out_channels, b.n_threads)
        block = -(-block // planes.outputs)
        v, m = (
            b.scratch(4 * frequencies * winograd.frequency_stride(block * count, channels))
            for count, channels in matrices
        )
        return winograd.WinogradStep(
            tile, stride, x, weight, filters, bias, image, v, m, block, padding, post, planes
        )
    v, m = (
        b.temporary((frequencies, winograd.frequency_stride(stacks * count, channels)))
        for count, channels in matrices
    )
    operands = (tile, stride, x, weight, filters, bias, image, v, m, padding)
    b.step(winograd.WinogradStageStep(0, *operands, planes=planes))
    b.step(winograd.WinogradStageStep(1, *operands, planes=planes))
    return winograd.WinogradStageStep(2, *operands, post, planes)


@record("kuiper.ExpandDepthwise")
class ExpandDepthwise(Record):
    """A 1x1 convolution, an activation, and a depthwise convolution, in one sweep.

    Made by the pass `fuse_expand` of two operators; `expand_weight` (c, in, 1, 1), `expand_bias`
    and `activation` are the first one's, the rest is the second one's.
    """

    arguments = (
        Tensor("input", rank=4),
        Tensor("expand_weight", rank=4),
        Tensor("expand_bias", optional=True),
        Str("activation", default=None),
        Float("activation_p0", 0.0),
        Float("activation_p1", 0.0),
        Tensor("weight", rank=4),
        Tensor("bias", optional=True),
        Ints("stride", default=(1,), minimum=1),
        Ints("dilation", default=(1,), minimum=1),
        Ints("padding", default=(0,), minimum=0, words=("same", "valid")),
    )
    internal = True
    layout = "channels_last"
    post_ops = True

    @staticmethod
    def infer(a: SimpleNamespace) -> TensorSpec:
        height, width = Geometry(a, 2).output_extents(*a.input.shape[2:])
        return TensorSpec((a.input.shape[0], a.weight.shape[0], height, width))

    @staticmethod
    def bind(a: SimpleNamespace, b: Binder) -> None:
        from kuiper._kernels import expand_depthwise as kernel

        geometry = Geometry(a, 2)
        x = b.channels_last(a.input)
        image, _, residual = _output(a, b, 2)
        expand = Filters(a.expand_weight, a.expand_bias, a.expand_weight.shape)
        filters = Filters(a.weight, a.bias, a.weight.shape)
        act = None
        if a.activation is not None:
            act = activation_post(a.activation, (a.activation_p0, a.activation_p1))
        channels, in_channels = a.expand_weight.shape[:2]
        first = b.packed("expand", lambda: pack_groups([expand], expand.bias(), 1, b.n_threads))
        second = b.packed("depthwise", lambda: _depthwise_blocks(filters))
        windows = (
            geometry.kernel, geometry.stride, geometry.dilation,
            (geometry.padding[0], geometry.padding[2]),
        )  # fmt: skip
        ring = kernel.Ring(x, image, *windows, RING_BYTES)
        step = kernel.ExpandDepthwiseStep(
            x, first, second, image, b.scratch(ring.n_bytes), ring, *windows, act,
            make_post(b, residual),
        )  # fmt: skip
        taps = geometry.kernel[0] * geometry.kernel[1]
        step.flops = 2.0 * (x.size * channels + image.size * taps)
        step.bytes = 4.0 * (x.size + image.size + channels * (in_channels + taps))
        b.step(step)


# Each place in the stride of a transposed convolution costs time when it is planned.
MAX_PHASES = 1 << 16


@record("nn.ConvTranspose2d", "F.conv_transpose2d")
class ConvTranspose(Record):
    """Transposed convolution: the adjoint of a convolution with the same arguments.

    Output extent ``(l - 1) * stride - 2 * padding + dilation * (k - 1) + output_padding + 1``.
    The extents of the stride have a product of 65536 at most.
    Input (n, c, h, w) or (c, h, w), weight (in, out / groups, kh, kw).
    Source: torch.nn.ConvTranspose2d.
    """

    arguments: tuple[Argument, ...] = (
        *_COMMON,
        Ints("padding", default=(0,), minimum=0),
        Ints("output_padding", default=(0,), minimum=0),
    )
    layout = "channels_last"
    post_ops = True

    @staticmethod
    def infer(a: SimpleNamespace) -> TensorSpec:
        spatial = a.weight.rank - 2
        check_weight(a, spatial, in_axis=0)
        if len(a.padding) not in (1, spatial):
            raise ShapeError(f"'padding' is {a.padding}, expected {spatial} integers")
        extents = a.input.shape[a.input.rank - spatial :]
        out = tuple(
            (extent - 1) * s - 2 * p + d * (k - 1) + more + 1
            for extent, s, p, d, k, more in zip(
                extents,
                per_axis(a.stride, spatial),
                per_axis(a.padding, spatial),
                per_axis(a.dilation, spatial),
                a.weight.shape[2:],
                per_axis(a.output_padding, spatial),
                strict=True,
            )
        )
        for more, s, d in zip(
            per_axis(a.output_padding, spatial),
            per_axis(a.stride, spatial),
            per_axis(a.dilation, spatial),
            strict=True,
        ):
            if more >= max(s, d):
                raise ShapeError(
                    f"'output_padding' is {a.output_padding}, expected less than stride {a.stride} "
                    f"or dilation {a.dilation}"
                )
        if min(out) < 1:
            raise ShapeError(f"the output of an input {a.input.shape} would be {out}")
        phases = math.prod(map(min, per_axis(a.stride, spatial), out))
        if phases > MAX_PHASES:
            raise ShapeError(
                f"'stride' is {a.stride}, which makes {phases} kinds of places in an output of "
                f"{out}, at most {MAX_PHASES} are supported"
            )
        batch = a.input.shape[: a.input.rank - spatial - 1]
        return TensorSpec((*batch, a.weight.shape[1] * a.groups, *out))

    @staticmethod
    def bind(a: SimpleNamespace, b: Binder) -> None:
        spatial = a.weight.rank - 2
        geometry = Geometry(a, spatial)
        x = b.channels_last(_as_image(a.input, spatial))
        y, image, residual = _output(a, b, spatial)
        post = make_post(b, residual)
        filters = Filters(a.weight, a.bias, (*a.weight.shape[:2], *geometry.kernel))
        phases, tap_lists = _phases(geometry, image.shape[2:])
        groups = a.groups
        in_channels, out_channels = filters.shape[0] // groups, filters.shape[1]

        def pack() -> np.ndarray:
            # (in, out / groups, kh, kw) -> (out, in / groups, kh, kw), as a convolution has it.
            grouped = filters.weight().reshape(groups, in_channels, out_channels, *geometry.kernel)
            swapped = grouped.transpose(0, 2, 1, 3, 4)
            forward = swapped.reshape(groups * out_channels, in_channels, *geometry.kernel)
            parts = [
                np.stack([forward[:, :, u, v] for u, v in taps], axis=2)
                if taps
                else forward[:, :, :0, 0]
                for taps in tap_lists
            ]
            return pack_groups(parts, filters.bias(), groups, b.n_threads)

        if filters.is_constant:
            packed = b.packed("conv_transpose", pack)
            offsets = panel_offsets(tap_lists, groups, in_channels, out_channels)
        else:
            packed, offsets = pack_at_run_time(b, a, filters, groups, tap_lists, by_column=False)
        phases = [(*phase, offsets[kind]) for *phase, kind in phases]
        step = _implicit(
            b, x, image, packed, phases, (1, 1), geometry.stride, groups, in_channels, out_channels,
            post,
        )  # fmt: skip
        step.kind = "conv_transpose"
        step.flops = 2.0 * x.size * a.weight.size / a.weight.shape[0]
        step.bytes = 4.0 * (x.size + image.size + a.weight.size)
        b.step(step)
        _finish(b, y, image, spatial)


def _phases(geometry: Geometry, extents: Any) -> Any:
    """Split the output pixels by their place in the stride.

    All pixels of one phase see the same taps of the kernel, at the same distance: output pixel
    ``q * s + r`` sees tap u of the input pixel ``q + (r + p - u * d) / s`` where that is whole.

    Returns
    -------
    phases : list of (first_h, first_w, height, width, [(dy, dx)], kind)
    taps : list of ((u, v), ...)
        Which taps of the kernel the phases of each kind take.
    """
    by_axis = []
    for axis in range(2):
        stride, dilation = geometry.stride[axis], geometry.dilation[axis]
        padding, kernel = geometry.padding[2 * axis], geometry.kernel[axis]
        choices = []
        for first in range(min(stride, extents[axis])):
            taps = [
                (u, (first + padding - u * dilation) // stride)
                for u in range(kernel)
                if (first + padding - u * dilation) % stride == 0
            ]
            choices.append((first, -(-(extents[axis] - first) // stride), taps))
        by_axis.append(choices)
    phases: list[tuple[Any, ...]] = []
    kinds: dict[tuple[tuple[int, int], ...], int] = {}
    for first_h, height, taps_h in by_axis[0]:
        for first_w, width, taps_w in by_axis[1]:
            taken = tuple((u, v) for u, _ in taps_h for v, _ in taps_w)
            seen = [(dy, dx) for _, dy in taps_h for _, dx in taps_w]
            kind = kinds.setdefault(taken, len(kinds))
            phases.append((first_h, first_w, height, width, seen, kind))
    return phases, list(kinds)


@record("nn.Conv1d", "F.conv1d")
class Conv1d(Conv):
    """Cross-correlation of rows with filters.

    Input (n, c, l) or (c, l), weight (out, in / groups, k).  Source: torch.nn.Conv1d.
    """

    arguments = for_axes(Conv.arguments, 1)


@record("nn.ConvTranspose1d", "F.conv_transpose1d")
class ConvTranspose1d(ConvTranspose):
    """Transposed convolution of rows: the adjoint of a convolution with the same arguments.

    Input (n, c, l) or (c, l), weight (in, out / groups, k).  Source: torch.nn.ConvTranspose1d.
    """

    arguments = for_axes(ConvTranspose.arguments, 1)
