"""Sliding blocks of images as columns and back, maximum unpooling, time-first convolution."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from kuiper._kernels.data.move import FillStep
from kuiper._kernels.spatial.fold import FoldStep
from kuiper.errors import ShapeError
from kuiper.expression import Call, Ref
from kuiper.ir.view import TensorSpec, TensorView
from kuiper.ops.core.axes import require_floats
from kuiper.ops.core.binder import Binder
from kuiper.ops.core.image import check_image
from kuiper.ops.core.numpy_step import KernelRecord, checked_index
from kuiper.ops.core.record import NoBatchRule, Record, T, record
from kuiper.ops.core.schema import Int, Ints, Tensor
from kuiper.ops.math.elementwise import write_tree
from kuiper.ops.product.linear import product
from kuiper.ops.tensor.strided import indexed_elements

__all__ = ["Fold", "MaxUnpool", "Unfold"]


class _Blocks(Record[T]):
    """Base of unfold and fold: the arguments that describe the sliding blocks."""

    batch = "samples"
    input: T = Tensor()
    kernel_size: tuple[int, ...] = Ints(length=2, minimum=1)
    dilation: tuple[int, ...] = Ints(length=2, default=(1, 1), minimum=1)
    padding: tuple[int, ...] = Ints(length=2, default=(0, 0), minimum=0)
    stride: tuple[int, ...] = Ints(length=2, default=(1, 1), minimum=1)


def _blocks(a: _Blocks[Any], extents: Any) -> tuple[int, int]:
    """Return the numbers of blocks along the two axes of a plane."""
    counts = tuple(
        (n + 2 * pad - dilation * (taps - 1) - 1) // stride + 1
        for n, taps, dilation, pad, stride in zip(
            extents, a.kernel_size, a.dilation, a.padding, a.stride, strict=True
        )
    )
    if min(counts) < 1:
        raise ShapeError(
            f"'kernel_size' {a.kernel_size} with 'dilation' {a.dilation} does not fit into a plane "
            f"of {tuple(extents)} with 'padding' {a.padding}"
        )
    return counts


@record("nn.Unfold", "F.unfold", "aten::im2col")
class Unfold(_Blocks[T]):
    """An image's sliding blocks as columns: (n, c, h, w) -> (n, c * taps, blocks).

    Source: torch.nn.Unfold.

    Raises
    ------
    ShapeError
        If the input is no image, or a block does not fit into it.
    """

    def infer(self: Unfold[TensorSpec]) -> TensorSpec:
        check_image(self.input, 2)
        *batch, channels, rows, columns = self.input.shape
        count = math.prod(_blocks(self, (rows, columns)))
        return TensorSpec((*batch, channels * math.prod(self.kernel_size), count), self.input.dtype)

    def bind(self: Unfold[TensorView], b: Binder) -> None:
        x, y = self.input, b.output()
        if y.size == 0:
            return
        if x.rank == 3:
            x = x.with_layout((1, *x.shape), (0, *x.strides))
        n, channels, *extents = x.shape
        if any(self.padding):
            shape = [extent + 2 * pad for extent, pad in zip(extents, self.padding, strict=True)]
            padded = b.temporary((n, channels, *shape), x.dtype)
            b.step(FillStep(padded, 0))
            inner = padded
            for axis, (pad, extent) in enumerate(zip(self.padding, extents, strict=True), 2):
                inner = inner.narrow(axis, pad, extent)
            b.copy(x, inner)
            x = padded
        # Consecutive taps are one dilation apart, blocks one stride; blocks may overlap.
        _, _, row, column = x.strides
        blocks = (n, channels, *self.kernel_size, *_blocks(self, extents))
        steps = (row * self.dilation[0], column * self.dilation[1], row * self.stride[0])
        view = x.with_layout(blocks, (*x.strides[:2], *steps, column * self.stride[1]))
        b.copy(view, y.view(blocks))


@record("nn.Fold", "F.fold", "aten::col2im")
class Fold(_Blocks[T], ahead=True):
    """Sliding blocks summed into an image: (n, c * taps, blocks) -> (n, c, h, w).

    Source: torch.nn.Fold.

    Raises
    ------
    ShapeError
        If the input does not hold the blocks of an image of `output_size`, or is not of floats.
    """

    input: T = Tensor()
    output_size: tuple[int, ...] = Ints(length=2, minimum=1)

    def infer(self: Fold[TensorSpec]) -> TensorSpec:
        taps = math.prod(self.kernel_size)
        counts = _blocks(self, self.output_size)
        blocks = math.prod(counts)
        shape = self.input.shape
        if len(shape) not in (2, 3) or shape[-2] % taps or shape[-1] != blocks:
            raise ShapeError(
                f"the input has shape {shape}, expected (n, channels * {taps}, {blocks}) for "
                f"{counts[0]} by {counts[1]} blocks of {self.kernel_size}"
            )
        require_floats(self.input)
        return TensorSpec((*shape[:-2], shape[-2] // taps, *self.output_size), self.input.dtype)

    def bind(self: Fold[TensorView], b: Binder) -> None:
        y = b.output()
        if y.size == 0:
            return
        counts = _blocks(self, self.output_size)
        if y.dtype != np.float32:
            b.python(lambda x: _folded(x, self, counts, y.shape), [self.input], [y])
            return
        shape = math.prod(y.shape[:-2]), math.prod(self.kernel_size), self.input.shape[-1]
        x = b.contiguous(self.input).view(shape)
        planes = y if y.is_contiguous else b.temporary(y.shape)
        images = planes.view((x.shape[0], *self.output_size))
        blocks = self.kernel_size, self.dilation, self.stride, self.padding
        b.step(FoldStep(x, images, counts, *blocks))
        if planes is not y:
            b.copy(planes, y)


def _folded(x: np.ndarray, a: Fold[Any], counts: Any, shape: Any) -> np.ndarray:
    rows, columns = (n + 2 * pad for n, pad in zip(a.output_size, a.padding, strict=True))
    y = np.zeros((*shape[:-2], rows, columns), x.dtype)
    x = x.reshape(*shape[:-2], *a.kernel_size, *counts)
    for i in range(a.kernel_size[0]):
        for j in range(a.kernel_size[1]):
            vertical, horizontal = (
                slice(k * d, k * d + (n - 1) * s + 1, s)
                for k, d, n, s in zip((i, j), a.dilation, counts, a.stride, strict=True)
            )
            y[..., vertical, horizontal] += x[..., i, j, :, :]
    top, left = a.padding
    return y[..., top : rows - top, left : columns - left]


# -- maximum unpooling -------------------------------------------------------------------------

UNPOOL_SUMMARY = (
    "Values written to the pixels that maximum pooling took them from, zeros elsewhere."
)


class MaxUnpool(KernelRecord[T]):
    """Base of the maximum unpoolings over one, two and three axes."""

    batch = NoBatchRule("rare: no known export uses it with another batch")
    spatial = 2
    input: T
    indices: T
    output_size: tuple[int, ...] | None
    kernel_size: tuple[int, ...] = ()
    stride: tuple[int, ...] | None
    padding: tuple[int, ...] | None

    def _extents(self: MaxUnpool[Any]) -> tuple[int, ...]:
        if self.output_size is not None:
            if len(self.output_size) < self.spatial:
                raise ShapeError(
                    f"'output_size' is {self.output_size}, expected {self.spatial} extents"
                )
            return self.output_size[-self.spatial :]
        stride = self.kernel_size if self.stride is None else self.stride
        extents = self.input.shape[-self.spatial :]
        axes = zip(extents, stride, self.padding or (), self.kernel_size, strict=True)
        return tuple((n - 1) * step - 2 * pad + taps for n, step, pad, taps in axes)

    def result(self: MaxUnpool[TensorSpec]) -> TensorSpec:
        check_image(self.input, self.spatial)
        if self.indices.shape != self.input.shape or self.indices.dtype.kind not in "iu":
            raise ShapeError(
                f"'indices' is {self.indices!r}, expected integers of shape {self.input.shape}"
            )
        return TensorSpec((*self.input.shape[: -self.spatial], *self._extents()), self.input.dtype)

    def compute(self: MaxUnpool[np.ndarray]) -> Any:
        extents = self._extents()
        shape = (*self.input.shape[: -self.spatial], *extents)
        planes, size = math.prod(shape[: -self.spatial]), math.prod(extents)
        y = np.zeros((planes, size), self.input.dtype)
        index = checked_index(self.indices.reshape(planes, -1), size)
        np.put_along_axis(y, index, self.input.reshape(planes, -1), 1)
        return y.reshape(shape)

    def steps(self: MaxUnpool[TensorView], b: Binder) -> None:
        y = b.output()
        b.step(FillStep(y, 0))
        planes, taken = math.prod(y.shape[: -self.spatial]), math.prod(self._extents())
        if self.input.size:
            source, index = (
                b.contiguous(tensor).view((planes, tensor.size // planes))
                for tensor in (self.input, self.indices)
            )
            indexed_elements(b, y.view((planes, taken)), index, 1).scatter(source)


def _register(spatial: int) -> None:
    """Register the module and the function for images with `spatial` axes."""

    class Unpool(MaxUnpool[T]):
        input: T = Tensor()
        indices: T = Tensor()
        kernel_size: tuple[int, ...] = Ints(length=spatial, minimum=1)
        stride: tuple[int, ...] | None = Ints(
            length=spatial, default=None, minimum=1, nullable=True
        )
        padding: tuple[int, ...] = Ints(length=spatial, default=(0,) * spatial, minimum=0)
        output_size: tuple[int, ...] | None = Ints(default=None, nullable=True)

    class Placed(MaxUnpool[T]):
        input: T = Tensor()
        indices: T = Tensor()
        output_size: tuple[int, ...] = Ints(length=spatial, minimum=1)
        stride: tuple[int, ...] | None = Ints(default=None, nullable=True)
        padding: tuple[int, ...] | None = Ints(default=None, nullable=True)

    for cls, source in (
        (Unpool, f"torch.nn.MaxUnpool{spatial}d"),
        (Placed, f"torch.nn.functional.max_unpool{spatial}d"),
    ):
        cls.spatial = spatial
        cls.__name__ = cls.__qualname__ = f"Max{cls.__name__}{spatial}d"
        cls.__doc__ = f"{UNPOOL_SUMMARY}\n\nSource: {source}."
    record(f"nn.MaxUnpool{spatial}d", f"F.max_unpool{spatial}d")(Unpool)
    if spatial > 1:
        record(f"aten::max_unpool{spatial}d")(Placed)


for _spatial in (1, 2, 3):
    _register(_spatial)


@record("aten::conv_tbc")
class ConvTimeFirst(KernelRecord[T]):
    """Convolution along the first axis: (time, batch, channels), weight (kernel, in, out).

    Source: torch.conv_tbc.

    Raises
    ------
    ShapeError
        If the shapes do not match, or the kernel is longer than the padded input.
    """

    batch = NoBatchRule("its batch is the second axis, after time")
    input: T = Tensor(rank=3)
    weight: T = Tensor(rank=3)
    bias: T = Tensor(rank=1)
    pad: int = Int(0, minimum=0)

    def result(self: ConvTimeFirst[TensorSpec]) -> TensorSpec:
        time, batch, channels = self.input.shape
        kernel, expected, filters = self.weight.shape
        if channels != expected or self.bias.shape != (filters,):
            raise ShapeError(
                f"the input has shape {self.input.shape}, 'weight' {self.weight.shape} and 'bias' "
                f"{self.bias.shape}, expected (time, batch, in), (kernel, in, out) and (out,)"
            )
        if time + 2 * self.pad < kernel:
            raise ShapeError(f"an input of shape {self.input.shape} is shorter than {kernel} taps")
        return TensorSpec((time + 2 * self.pad - kernel + 1, batch, filters), self.input.dtype)

    def compute(self: ConvTimeFirst[np.ndarray]) -> Any:
        x = np.pad(self.input, ((self.pad, self.pad), (0, 0), (0, 0)))
        steps = len(x) - len(self.weight) + 1
        y = self.bias
        for tap, weight in enumerate(self.weight):
            y = y + x[tap : tap + steps] @ weight
        return y

    def steps(self: ConvTimeFirst[TensorView], b: Binder) -> None:
        time, batch, channels = self.input.shape
        kernel, _, filters = self.weight.shape
        single = self.input.dtype == self.weight.dtype == self.bias.dtype == np.float32
        if not single or not self.weight.size:
            self.in_numpy(b)
            return
        y, x = b.output(), b.contiguous(self.input)
        if y.size == 0:
            return
        if self.pad:
            padded = b.temporary((time + 2 * self.pad, batch, channels))
            for start in (0, self.pad + time):
                b.step(FillStep(padded.narrow(0, start, self.pad), 0.0))
            b.copy(x, padded.narrow(0, self.pad, time))
            x = padded
        # The inputs of one output are `batch` rows apart.
        steps, row = y.shape[0], batch * channels
        windows = x.with_layout((steps, batch, kernel, channels), (row, channels, row, 1))
        windows = b.contiguous(windows).view((steps * batch, kernel * channels))
        weight = b.contiguous(self.weight).view((kernel * channels, filters))
        product(b, windows, weight, y.view((steps * batch, filters)))
        write_tree(b, Call("add", [Ref(0), Ref(1)]), [y, self.bias], y)
