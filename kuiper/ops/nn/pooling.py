"""Pooling over one, two and three spatial axes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np

from kuiper._kernels.spatial import pool_windows
from kuiper._kernels.spatial.pool import PoolStep
from kuiper.errors import OperatorError, ShapeError
from kuiper.expression import Call, Literal, Ref
from kuiper.ir.dtypes import BFLOAT16
from kuiper.ir.view import Layout, TensorSpec, TensorView
from kuiper.ops.core.axes import require_floats
from kuiper.ops.core.binder import Binder
from kuiper.ops.core.image import (
    check_image,
    extents_of,
    image_input,
    image_output,
    spatial_extents,
)
from kuiper.ops.core.record import FOLLOWS, Record, T, record_later
from kuiper.ops.core.rows import bind_reduction
from kuiper.ops.core.schema import Bool, Float, Ints, Known, StaticValue, Tensor
from kuiper.ops.math.elementwise import write_tree

__all__ = ["AdaptiveAvgPool", "AdaptiveMaxPool", "AvgPool", "LPPool", "MaxPool"]

# The kernel computes the indices of maxima in 32-bit lanes.
MAX_PIXELS = 2**31
FLOAT32 = np.dtype(np.float32)


class _Pool(Record[T]):
    """Base of all poolings; a subclass sets `spatial`, the number of spatial axes."""

    batch = "samples"
    layout = Layout.CHANNELS_LAST
    bfloat16 = FOLLOWS
    spatial: ClassVar[int] = 2
    input: T

    def _windows(self: _Pool[Known]) -> list[pool_windows.Windows]:
        """Return the windows along d, h and w."""
        raise NotImplementedError

    def _spec(self: _Pool[Any], bytes_too: bool = False) -> TensorSpec:
        check_image(self.input, self.spatial)
        if not (bytes_too and self.input.dtype == np.uint8):
            require_floats(self.input)
        lead = self.input.shape[: self.input.rank - self.spatial]
        extents = [len(axis) for axis in self._windows()]
        spec = TensorSpec((*lead, *extents[3 - self.spatial :]), self.input.dtype)
        if spec.size and not self.input.size:
            raise ShapeError(f"the input has shape {self.input.shape}, nothing to pool")
        return spec

    def _bind(
        self: _Pool[TensorView], b: Binder, kind: str, divisor: int = 0, with_indices: bool = False
    ) -> None:
        windows = self._windows()
        if b.output_spec().size == 0:
            for index in range(1 + with_indices):
                b.output(index)
            return
        if self.input.dtype not in (np.float32, np.uint8, BFLOAT16):
            outputs = [b.output(index) for index in range(1 + with_indices)]
            options = windows, self.spatial, kind, divisor, with_indices
            b.python(lambda x: _pool_array(x, *options), [self.input], outputs)
            return
        x = image_input(b, self.input, self.spatial)
        y = image_output(b, self.spatial)
        indices = image_output(b, self.spatial, 1) if with_indices else None
        if x.dtype == y.dtype and not (with_indices and x.dtype == BFLOAT16):
            self._step(b, x, y, windows, kind, indices, divisor)
            return
        wide = y if y.dtype == FLOAT32 else b.temporary(y.shape, FLOAT32, Layout.CHANNELS_LAST)
        self._step(b, b.stored(x, FLOAT32), wide, windows, kind, indices, divisor)
        if wide is not y:
            b.copy(wide, y)

    @staticmethod
    def _step(
        b: Binder, x: TensorView, y: TensorView, windows: Any, kind: str, indices: Any = None,
        divisor: int = 0,
    ) -> None:  # fmt: skip
        scratch = b.scratch(pool_windows.scratch_bytes(windows))
        b.step(PoolStep(x, y, windows, kind, scratch, indices, divisor))


def _pool_array(
    x: Any, windows: Any, spatial: Any, kind: Any, divisor: Any, with_indices: Any
) -> Any:
    """Pool an array that is not float32, window by window."""
    depth, height, width = windows
    lead = x.shape[: x.ndim - spatial]
    extents = [axis.extent for axis in windows]
    x = x.reshape(*lead, *extents)
    y = np.empty((*lead, *map(len, windows)), x.dtype)
    indices = np.zeros(y.shape, np.int64)
    numbers = np.arange(np.prod(extents)).reshape(extents)
    for d, h, w in itertools.product(*map(range, map(len, windows))):
        cut = tuple(
            slice(axis.starts[i], axis.starts[i] + axis.counts[i] * axis.dilation, axis.dilation)
            for axis, i in zip(windows, (d, h, w), strict=True)
        )
        window = x[(..., *cut)].reshape(*lead, -1)
        if kind == "mean":
            by = divisor or depth.divisors[d] * height.divisors[h] * width.divisors[w]
            y[..., d, h, w] = window.sum(-1) / by
        else:
            y[..., d, h, w] = window.max(-1, initial=-np.inf)
            if window.shape[-1]:
                # Like the kernel, take the last NaN of a window that has any.
                is_nan = np.isnan(window)
                last = window.shape[-1] - 1 - is_nan[..., ::-1].argmax(-1)
                found = np.where(is_nan.any(-1), last, window.argmax(-1))
                indices[..., d, h, w] = numbers[cut].reshape(-1)[found]
    shape = (*lead, *map(len, windows[3 - spatial :]))
    y, indices = y.reshape(shape), indices.reshape(shape)
    return (y, indices) if with_indices else y


# -- fixed windows -----------------------------------------------------------------------------


class _FixedPool(_Pool[T]):
    """A pooling with a kernel."""

    kernel_size: tuple[int, ...]
    stride: tuple[int, ...] | None
    padding: tuple[int, ...] = (0,)
    dilation: tuple[int, ...] = (1,)
    ceil_mode: bool
    count_include_pad: bool = True

    def _geometry(self: _FixedPool[Known]) -> Iterator[tuple[int, int, int, int, int]]:
        """Return (extent, kernel, stride, padding, dilation) of d, h and w."""
        spatial = self.spatial
        kernel = extents_of("kernel_size", self.kernel_size, spatial)
        stride = extents_of("stride", self.stride, spatial) if self.stride else kernel
        padding = extents_of("padding", self.padding, spatial)
        dilation = extents_of("dilation", self.dilation, spatial)
        for k, p in zip(kernel, padding, strict=True):
            if p > k // 2:
                raise ShapeError(
                    f"'padding' is {padding}, expected at most half of the kernel size {kernel}"
                )
        extents, missing = spatial_extents(self.input.shape, spatial), (1,) * (3 - spatial)
        kernel, stride, dilation = missing + kernel, missing + stride, missing + dilation
        padding = (0,) * len(missing) + padding
        return zip(extents, kernel, stride, padding, dilation, strict=True)

    def _windows(self: _FixedPool[Known]) -> Any:
        windows = []
        for axis in self._geometry():
            if pool_windows.output_extent(*axis, self.ceil_mode) < 1:
                extent, kernel, _, padding, dilation = axis
                raise ShapeError(
                    f"a window of {dilation * (kernel - 1) + 1} pixels does not fit an extent of "
                    f"{extent} with {padding} of padding on each side, in an input of shape "
                    f"{self.input.shape}"
                )
            flags = self.ceil_mode, self.count_include_pad
            windows.append(pool_windows.fixed_windows(*axis, *flags))
        return windows


class MaxPool(_FixedPool[T]):
    """The maximum of each window; the padding counts as -infinity, and as 0 for bytes.

    ``y[n, c, i, j] = max over u, v of x[n, c, i * s + u * d - p, j * s + v * d - p]``

    Input (n, c, ...) or (c, ...).  With `return_indices` a second output holds the index of each
    maximum, counted over the spatial axes.  Source: torch.nn.MaxPool1d, MaxPool2d, MaxPool3d.

    Raises
    ------
    ShapeError
        If the input is no image of floats, or of bytes (without indices), a window does not fit, or
        `padding` exceeds half the kernel.
    """

    input: T = Tensor()
    kernel_size: tuple[int, ...] = Ints(minimum=1)
    stride: tuple[int, ...] | None = Ints(default=None, minimum=1, nullable=True)
    padding: tuple[int, ...] = Ints(default=(0,), minimum=0)
    dilation: tuple[int, ...] = Ints(default=(1,), minimum=1)
    ceil_mode: bool = Bool(False)
    return_indices: bool = Bool(False)

    def infer(self: MaxPool[TensorSpec]) -> Any:
        with_indices = self.n_outputs > 1
        spec = self._spec(bytes_too=not with_indices)
        return _with_indices(self, spec) if with_indices else spec

    def bind(self: MaxPool[TensorView], b: Binder) -> None:
        self._bind(b, "max", with_indices=self.n_outputs > 1)


def _with_indices(a: _Pool[Any], spec: TensorSpec) -> Any:
    if np.prod(a.input.shape[2:], dtype=np.int64) >= MAX_PIXELS:
        raise ShapeError(f"the input has shape {a.input.shape}, too large for indices")
    return spec, TensorSpec(spec.shape, np.int64)


class AvgPool(_FixedPool[T]):
    """The mean of each window.

    The divisor is `divisor_override` if set, else the number of pixels in the window; pixels of
    the padding count only with `count_include_pad`.

    Input (n, c, ...) or (c, ...).  Source: torch.nn.AvgPool1d, AvgPool2d, AvgPool3d.

    Raises
    ------
    ShapeError
        As for the maximum, or if `divisor_override` is 0.
    """

    takes_means = True
    input: T = Tensor()
    kernel_size: tuple[int, ...] = Ints(minimum=1)
    stride: tuple[int, ...] | None = Ints(default=None, minimum=1, nullable=True)
    padding: tuple[int, ...] = Ints(default=(0,), minimum=0)
    ceil_mode: bool = Bool(False)
    count_include_pad: bool = Bool(True)
    divisor_override: tuple[int, ...] | None = Ints(length=1, default=None, nullable=True)

    def infer(self: AvgPool[TensorSpec]) -> Any:
        if self.divisor_override == (0,):
            raise ShapeError("'divisor_override' is 0, expected another integer or None")
        return self._spec()

    def bind(self: AvgPool[TensorView], b: Binder) -> None:
        self._bind(b, "mean", divisor=self.divisor_override[0] if self.divisor_override else 0)


class LPPool(_FixedPool[T]):
    """The p-norm of each window: ``(sum x ** p) ** (1 / p)``.

    A window that crosses the far edge (`ceil_mode`) takes the mean of the pixels it covers times
    the size of the whole kernel, as in PyTorch.  Source: torch.nn.functional.lp_pool2d.

    Raises
    ------
    OperatorError
        If `norm_type` is 0.
    ShapeError
        As for the maximum.
    """

    bfloat16 = ""
    input: T = Tensor()
    norm_type: float = Float()
    kernel_size: tuple[int, ...] = Ints(minimum=1)
    stride: tuple[int, ...] | None = Ints(default=None, minimum=1, nullable=True)
    ceil_mode: bool = Bool(False)

    def infer(self: LPPool[TensorSpec]) -> Any:
        if self.norm_type == 0:
            raise OperatorError("argument 'norm_type' is 0, expected another number")
        return self._spec()

    def bind(self: LPPool[TensorView], b: Binder) -> None:
        size = int(np.prod(extents_of("kernel_size", self.kernel_size, self.spatial)))
        p, spatial = self.norm_type, self.spatial
        windows = self._windows()
        if b.output_spec().size == 0:
            b.output()
            return
        if self.input.dtype == np.float32:
            x = image_input(b, self.input, spatial)
            powers = b.temporary(x.shape, layout=Layout.CHANNELS_LAST)
            write_tree(b, Call("pow", [Ref(0), Literal(p)]), [x], powers)
            y = image_output(b, spatial)
            self._step(b, powers, y, windows, "mean")
            total = Call("mul", [Call("max", [Ref(0), Literal(0.0)]), Literal(float(size))])
            write_tree(b, Call("pow", [total, Literal(1 / p)]), [y], y)
            return

        def norm(x: Any) -> Any:
            powers = np.power(x.astype(np.float64), p)
            mean = _pool_array(powers, windows, spatial, "mean", 0, False)
            # PyTorch multiplies by the sign, so a negative sum of odd powers becomes zero.
            return np.power(np.maximum(mean, 0) * size, 1 / p)

        b.python(norm, [self.input], [b.output()])


# -- adaptive windows --------------------------------------------------------------------------


class _AdaptivePool(_Pool[T]):
    """A pooling to a given size; window i of an axis is [floor(i L / O), ceil((i + 1) L / O))."""

    output_size: tuple[int, ...]

    def _windows(self: _AdaptivePool[Known]) -> Any:
        extents = spatial_extents(self.input.shape, self.spatial)
        sizes = extents_of("output_size", self.output_size, self.spatial)
        sizes = (1,) * (3 - self.spatial) + sizes
        return [
            pool_windows.adaptive_windows(extent, size or extent)
            for extent, size in zip(extents, sizes, strict=True)
        ]


class AdaptiveAvgPool(_AdaptivePool[T]):
    """The mean of windows that cover the input, `output_size` of them per axis.

    Windows overlap unless the extents divide.  An `output_size` of 0, which is PyTorch's None,
    keeps the axis.  Input (n, c, ...) or (c, ...).  Source: torch.nn.AdaptiveAvgPool2d.

    Raises
    ------
    ShapeError
        If the input is no float image, or is empty while the output is not.
    """

    takes_means = True
    input: T = Tensor()
    output_size: tuple[int, ...] = Ints(minimum=0)

    def infer(self: AdaptiveAvgPool[TensorSpec]) -> Any:
        return self._spec()

    def bind(self: AdaptiveAvgPool[TensorView], b: Binder) -> None:
        x, spatial = self.input, self.spatial
        is_one = all(len(axis) == 1 for axis in self._windows())
        is_wide = x.dtype == np.float32 and b.output_dtype() == np.float32
        if is_one and is_wide and x.size and x.is_contiguous:
            # A contiguous plane is one row; no channels-last copy is needed.
            bind_reduction(b, x, range(x.rank - spatial, x.rank), True, "mean")
        else:
            self._bind(b, "mean")


class AdaptiveMaxPool(_AdaptivePool[T]):
    """The maximum of windows that cover the input, `output_size` of them per axis.

    Input (n, c, ...) or (c, ...).  With `return_indices` the indices of the maxima are a second
    output, or values and indices are one tuple.  Source: torch.nn.AdaptiveMaxPool2d.

    Raises
    ------
    ShapeError
        As for the mean, or if a plane has 2**31 pixels or more and indices are returned.
    """

    input: T = Tensor()
    output_size: tuple[int, ...] = Ints(minimum=0)
    return_indices: bool = Bool(False)

    def infer(self: AdaptiveMaxPool[TensorSpec]) -> Any:
        spec = self._spec()
        if self.n_outputs > 1:
            return _with_indices(self, spec)
        return StaticValue(_with_indices(self, spec)) if self.return_indices else spec

    def bind(self: AdaptiveMaxPool[TensorView], b: Binder) -> None:
        if self.n_outputs > 1 or not self.return_indices:
            self._bind(b, "max", with_indices=self.n_outputs > 1)
            return
        windows = self._windows()
        self.input = b.stored(self.input, FLOAT32) if self.input.dtype == BFLOAT16 else self.input
        specs = _with_indices(self, self._spec())
        values = [b.temporary(spec.shape, spec.dtype) for spec in specs]
        if specs[0].size:
            options = windows, self.spatial, "max", 0, True
            b.python(lambda x: _pool_array(x, *options), [self.input], values)
        b.static(tuple(values))


def _register(base: type[_Pool[Any]], module: str, function: str) -> None:
    """Register a pooling for one, two and three spatial axes."""
    for spatial in (1, 2, 3):
        types = module.format(spatial), function.format(spatial)
        name = f"{base.__name__}{spatial}d"
        record_later(types, base, name, spatial=spatial, __doc__=base.__doc__)


_register(MaxPool, "nn.MaxPool{}d", "F.max_pool{}d")
_register(AvgPool, "nn.AvgPool{}d", "F.avg_pool{}d")
_register(LPPool, "nn.LPPool{}d", "F.lp_pool{}d")
_register(AdaptiveAvgPool, "nn.AdaptiveAvgPool{}d", "F.adaptive_avg_pool{}d")
_register(AdaptiveMaxPool, "nn.AdaptiveMaxPool{}d", "F.adaptive_max_pool{}d")
