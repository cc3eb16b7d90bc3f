"""Images cut into sliding blocks and put together again; the inverse of maximum pooling."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np

from kuiper._kernels.data.move import FillStep
from kuiper._kernels.spatial.fold import FoldStep
from kuiper.errors import ShapeError
from kuiper.expression import Call, Ref
from kuiper.ir.view import TensorSpec
from kuiper.ops.core.binder import Binder
from kuiper.ops.core.image import check_image
from kuiper.ops.core.numpy_step import KernelRecord, checked_index
from kuiper.ops.core.record import NoBatchRule, Record, record
from kuiper.ops.core.schema import Int, Ints, Tensor
from kuiper.ops.math.elementwise import write_tree
from kuiper.ops.product.linear import product
from kuiper.ops.tensor.strided import indexed_elements

__all__ = ["Fold", "MaxUnpool", "Unfold"]

_WINDOW = (
    Ints("kernel_size", length=2, minimum=1),
    Ints("dilation", length=2, default=(1, 1), minimum=1),
    Ints("padding", length=2, default=(0, 0), minimum=0),
    Ints("stride", length=2, default=(1, 1), minimum=1),
)


def _blocks(a: SimpleNamespace, extents: Any) -> tuple[int, int]:
    """Return how many blocks there are along rows and columns of a plane."""
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
class Unfold(Record):
    """An image's sliding blocks as columns: (n, c, h, w) -> (n, c * taps, blocks).

    Source: torch.nn.Unfold.
    """

    batch = "samples"
    arguments = (Tensor("input"), *_WINDOW)

    @staticmethod
    def infer(a: SimpleNamespace) -> TensorSpec:
        check_image(a.input, 2)
        *batch, channels, rows, columns = a.input.shape
        count = math.prod(_blocks(a, (rows, columns)))
        return TensorSpec((*batch, channels * math.prod(a.kernel_size), count), a.input.dtype)

    @staticmethod
    def bind(a: SimpleNamespace, b: Binder) -> None:
        x, y = a.input, b.output()
        if y.size == 0:
            return
        if x.rank == 3:
            x = x.with_layout((1, *x.shape), (0, *x.strides))
        n, channels, *extents = x.shape
        if any(a.padding):
            shape = [extent + 2 * pad for extent, pad in zip(extents, a.padding, strict=True)]
            padded = b.temporary((n, channels, *shape), x.dtype)
            b.step(FillStep(padded, 0))
            inner = padded
            for axis, (pad, extent) in enumerate(zip(a.padding, extents, strict=True), 2):
                inner = inner.narrow(axis, pad, extent)
            b.copy(x, inner)
            x = padded
        # Each tap starts one dilation, each block one stride further on; the blocks overlap.
        _, _, row, column = x.strides
        blocks = (n, channels, *a.kernel_size, *_blocks(a, extents))
        steps = (row * a.dilation[0], column * a.dilation[1], row * a.stride[0])
        view = x.with_layout(blocks, (*x.strides[:2], *steps, column * a.stride[1]))
        b.copy(view, y.view(blocks))


@record("nn.Fold", "F.fold", "aten::col2im")
class Fold(Record):
    """Sliding blocks added up to an image: (n, c * taps, blocks) -> (n, c, h, w).

    Source: torch.nn.Fold.
    """

    batch = "samples"
    arguments = (Tensor("input"), Ints("output_size", length=2, minimum=1), *_WINDOW)

    @staticmethod
    def infer(a: SimpleNamespace) -> TensorSpec:
        taps = math.prod(a.kernel_size)
        counts = _blocks(a, a.output_size)
        blocks = math.prod(counts)
        shape = a.input.shape
        if len(shape) not in (2, 3) or shape[-2] % taps or shape[-1] != blocks:
            raise ShapeError(
                f"the input has shape {shape}, expected (n, channels * {taps}, {blocks}) for "
                f"{counts[0]} by {counts[1]} blocks of {a.kernel_size}"
            )
        if a.input.dtype.kind != "f":
            raise ShapeError(f"the input is {a.input.dtype}, expected float32")
        return TensorSpec((*shape[:-2], shape[-2] // taps, *a.output_size), a.input.dtype)

    @staticmethod
    def bind(a: SimpleNamespace, b: Binder) -> None:
        y = b.output()
        if y.size == 0:
            return
        counts = _blocks(a, a.output_size)
        if y.dtype != np.float32:
            b.python(lambda x: _folded(x, a, counts, y.shape), [a.input], [y])
            return
        x = b.contiguous(a.input).view((math.prod(y.shape[:-2]), *_flat(a)))
        planes = y if y.is_contiguous else b.temporary(y.shape)
        b.step(
            FoldStep(
                x, planes.view((x.shape[0], *a.output_size)), counts, a.kernel_size, a.dilation,
                a.stride, a.padding,
            )
        )  # fmt: skip
        if planes is not y:
            b.copy(planes, y)


def _flat(a: SimpleNamespace) -> tuple[int, int]:
    return math.prod(a.kernel_size), a.input.shape[-1]


def _folded(x: np.ndarray, a: SimpleNamespace, counts: Any, shape: Any) -> np.ndarray:
    rows, columns = (n + 2 * pad for n, pad in zip(a.output_size, a.padding, strict=True))
    y = np.zeros((*shape[:-2], rows, columns), x.dtype)
    x = x.reshape(*shape[:-2], *a.kernel_size, *counts)
    for i in range(a.kernel_size[0]):
        for j in range(a.kernel_size[1]):
            places = tuple(
                slice(k * d, k * d + (n - 1) * s + 1, s)
                for k, d, n, s in zip((i, j), a.dilation, counts, a.stride, strict=True)
            )
            y[..., places[0], places[1]] += x[..., i, j, :, :]
    top, left = a.padding
    return y[..., top : rows - top, left : columns - left]


# -- maximum pooling, the other way ------------------------------------------------------------


class MaxUnpool(KernelRecord):
    """Values put back to the places that maximum pooling took them from, zeros elsewhere."""

    batch = NoBatchRule("rare: no known export uses it with another batch")
    spatial = 2

    @classmethod
    def _extents(cls, a: SimpleNamespace) -> tuple[int, ...]:
        if a.output_size is not None:
            if len(a.output_size) < cls.spatial:
                raise ShapeError(
                    f"'output_size' is {a.output_size}, expected {cls.spatial} extents"
                )
            return a.output_size[-cls.spatial :]
        stride = a.kernel_size if a.stride is None else a.stride
        return tuple(
            (n - 1) * step - 2 * pad + taps
            for n, step, pad, taps in zip(
                a.input.shape[-cls.spatial :], stride, a.padding, a.kernel_size, strict=True
            )
        )

    @classmethod
    def result(cls, a: SimpleNamespace) -> TensorSpec:
        check_image(a.input, cls.spatial)
        if a.indices.shape != a.input.shape or a.indices.dtype.kind not in "iu":
            raise ShapeError(
                f"'indices' is {a.indices!r}, expected integers of shape {a.input.shape}"
            )
        return TensorSpec((*a.input.shape[: -cls.spatial], *cls._extents(a)), a.input.dtype)

    @classmethod
    def compute(cls, a: SimpleNamespace) -> Any:
        extents = cls._extents(a)
        shape = (*a.input.shape[: -cls.spatial], *extents)
        planes, size = math.prod(shape[: -cls.spatial]), math.prod(extents)
        y = np.zeros((planes, size), a.input.dtype)
        index = checked_index(a.indices.reshape(planes, -1), size)
        np.put_along_axis(y, index, a.input.reshape(planes, -1), 1)
        return y.reshape(shape)

    @classmethod
    def steps(cls, a: SimpleNamespace, b: Binder) -> None:
        y = b.output()
        b.step(FillStep(y, 0))
        planes, taken = math.prod(y.shape[: -cls.spatial]), math.prod(cls._extents(a))
        if a.input.size:
            source, index = (
                b.contiguous(tensor).view((planes, tensor.size // planes))
                for tensor in (a.input, a.indices)
            )
            indexed_elements(b, y.view((planes, taken)), index, 1).scatter(source)


def _register(spatial: int) -> None:
    """Register the module and the function for images of so many spatial axes."""

    class Unpool(MaxUnpool):
        arguments = (
            Tensor("input"),
            Tensor("indices"),
            Ints("kernel_size", length=spatial, minimum=1),
            Ints("stride", length=spatial, default=None, minimum=1, nullable=True),
            Ints("padding", length=spatial, default=(0,) * spatial, minimum=0),
            Ints("output_size", default=None, nullable=True),
        )

    class Placed(MaxUnpool):
        arguments = (
            Tensor("input"),
            Tensor("indices"),
            Ints("output_size", length=spatial, minimum=1),
            *(Ints(name, default=None, nullable=True) for name in ("stride", "padding")),
        )

    summary = "Values put back to the places that maximum pooling took them from, zeros elsewhere."
    for cls, source in (
        (Unpool, f"torch.nn.MaxUnpool{spatial}d"),
        (Placed, f"torch.nn.functional.max_unpool{spatial}d"),
    ):
        cls.spatial = spatial
        cls.__name__ = cls.__qualname__ = f"Max{cls.__name__}{spatial}d"
        cls.__doc__ = f"{summary}\n\nSource: {source}."
    record(f"nn.MaxUnpool{spatial}d", f"F.max_unpool{spatial}d")(Unpool)
    if spatial > 1:
        record(f"aten::max_unpool{spatial}d")(Placed)


for _spatial in (1, 2, 3):
    _register(_spatial)


@record("aten::conv_tbc")
class ConvTimeFirst(KernelRecord):
    """Convolution along the first axis: (time, batch, channels), weight (kernel, in, out).

    Source: torch.conv_tbc.
    """

    batch = NoBatchRule("its batch is the second axis, beside time")
    arguments = (
        Tensor("input", rank=3),
        Tensor("weight", rank=3),
        Tensor("bias", rank=1),
        Int("pad", 0, minimum=0),
    )

    @staticmethod
    def result(a: SimpleNamespace) -> TensorSpec:
        time, batch, channels = a.input.shape
        kernel, expected, filters = a.weight.shape
        if channels != expected or a.bias.shape != (filters,):
            raise ShapeError(
                f"the input has shape {a.input.shape}, 'weight' {a.weight.shape} and 'bias' "
                f"{a.bias.shape}, expected (time, batch, in), (kernel, in, out) and (out,)"
            )
        if time + 2 * a.pad < kernel:
            raise ShapeError(f"an input of shape {a.input.shape} is shorter than {kernel} taps")
        return TensorSpec((time + 2 * a.pad - kernel + 1, batch, filters), a.input.dtype)

    @staticmethod
    def compute(a: SimpleNamespace) -> Any:
        x = np.pad(a.input, ((a.pad, a.pad), (0, 0), (0, 0)))
        steps = len(x) - len(a.weight) + 1
        y = a.bias
        for tap, weight in enumerate(a.weight):
            y = y + x[tap : tap + steps] @ weight
        return y

    @classmethod
    def steps(cls, a: SimpleNamespace, b: Binder) -> None:
        time, batch, channels = a.input.shape
        kernel, _, filters = a.weight.shape
        if not a.input.dtype == a.weight.dtype == a.bias.dtype == np.float32 or not a.weight.size:
            cls.in_numpy(a, b)
            return
        y, x = b.output(), b.contiguous(a.input)
        if y.size == 0:
            return
        if a.pad:
            padded = b.temporary((time + 2 * a.pad, batch, channels))
            for start in (0, a.pad + time):
                b.step(FillStep(padded.narrow(0, start, a.pad), 0.0))
            b.copy(x, padded.narrow(0, a.pad, time))
            x = padded
        # What one output sees lies `batch` rows apart.
        steps, row = y.shape[0], batch * channels
        windows = x.with_layout((steps, batch, kernel, channels), (row, channels, row, 1))
        windows = b.contiguous(windows).view((steps * batch, kernel * channels))
        weight = b.contiguous(a.weight).view((kernel * channels, filters))
        product(b, windows, weight, y.view((steps * batch, filters)))
        write_tree(b, Call("add", [Ref(0), Ref(1)]), [y, a.bias], y)
