"""Detector heads that an export kept as one operator."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import numpy as np

from kuiper._kernels.linear import linear
from kuiper._kernels.micro import packing
from kuiper._kernels.micro.packed import PackedMatrix
from kuiper.errors import ShapeError
from kuiper.expression import parse
from kuiper.ir.view import TensorSpec, TensorView
from kuiper.ops.core.binder import Binder
from kuiper.ops.core.epilogue import activation_epilogue
from kuiper.ops.core.record import NoBatchRule, Record, T, record
from kuiper.ops.core.schema import Tensors, Weights
from kuiper.ops.math.elementwise import write_tree
from kuiper.ops.product.linear import as_matrix

__all__ = ["YoloDetect"]

# With s = sigmoid(map): centre = (2 s - 0.5 + cell) stride, extent = (2 s)**2 anchor, score = s.
# All three have the form s (a + s b) + c.
_BOXES = "add(mul(@0,add(@1,mul(@0,@2))),@3)"


class _Level(NamedTuple):
    """The constants of one map; `anchors` (n, 2) are width and height."""

    weight: Any
    bias: Any
    stride: float
    anchors: np.ndarray

    @property
    def n_outputs(self) -> int:
        """The numbers per anchor: a box (4), its confidence (1), a score per class."""
        return self.weight.shape[0] // len(self.anchors)


@record("models.yolo.Detect")
class YoloDetect(Record[T]):
    """YOLOv5's head: maps -> per box x, y, w, h, a confidence and the scores of the classes.

    pnnx keeps a class that ``moduleop=`` names as one operator, as the KuiperInfer course does with
    this one.  Its attributes are the weights of 1x1 convolutions, a grid and the anchors of each
    map, and the strides.  The constants have no names; their shapes and values identify them.  They
    are checked to be the ones that the class computes for a map of their size, so maps may have
    other sizes than the traced ones.  :func:`kuiper.operator` with ``replace=True`` replaces this
    record for another class of the same name.

    Raises
    ------
    ShapeError
        If a map, a weight or a constant is not as the class computes it.
    """

    batch = NoBatchRule("its levels hold boxes of all members along one axis")
    maps: list[T] = Tensors()
    weights: dict[str, T] = Weights()
    replaceable = True

    def infer(self: YoloDetect[TensorSpec]) -> TensorSpec:
        if self.n_outputs != 1:
            raise ShapeError(f"it has {self.n_outputs} outputs, expected 1")
        levels = _levels(self)
        n_boxes = 0
        for number, (x, level) in enumerate(zip(self.maps, levels, strict=True)):
            channels = level.weight.shape[1]
            if x.rank != 4 or x.shape[1] != channels or x.dtype != np.float32:
                raise ShapeError(f"map {number} is {x!r}, expected float32 (n, {channels}, h, w)")
            for what, got, first in (
                ("images", x.shape[0], self.maps[0].shape[0]),
                ("numbers for an anchor", level.n_outputs, levels[0].n_outputs),
            ):
                if got != first:
                    raise ShapeError(f"map {number} has {got} {what}, map 0 has {first}")
            n_boxes += len(level.anchors) * x.shape[2] * x.shape[3]
        return TensorSpec((self.maps[0].shape[0], n_boxes, levels[0].n_outputs))

    def bind(self: YoloDetect[TensorView], b: Binder) -> None:
        y = b.output()
        start = 0
        for number, (x, level) in enumerate(zip(self.maps, _levels(self), strict=True)):
            n, _, height, width = x.shape
            n_anchors = len(level.anchors)
            n_boxes = n_anchors * height * width
            boxes = y.narrow(1, start, n_boxes)
            start += n_boxes
            if boxes.size == 0:
                continue
            pixels = as_matrix(b, b.channels_last(x).permute((0, 2, 3, 1)))
            scores = b.temporary((n * height * width, level.weight.shape[0]))
            columns, depth = level.weight.shape[:2]
            matrix = PackedMatrix(columns, depth, part=number)
            panels = b.packed([matrix], partial(_pack_level, level, b.n_threads))
            b.step(linear.LinearStep(pixels, panels, scores, activation_epilogue("sigmoid", ())))
            scores = scores.view((n, height, width, n_anchors, level.n_outputs))
            scores = scores.permute((0, 3, 1, 2, 4))
            terms = [b.constant(term) for term in _terms(level, height, width)]
            write_tree(b, parse(_BOXES, custom=False), [scores, *terms], boxes.view(scores.shape))


def _pack_level(level: _Level, n_threads: int, memory: np.ndarray) -> None:
    weight = np.asarray(level.weight.constant, np.float32)
    bias = None if level.bias is None else np.asarray(level.bias.constant, np.float32)
    packing.pack_panels(weight.reshape(len(weight), 1, -1), bias, n_threads, memory)


def _terms(level: _Level, height: int, width: int) -> list[np.ndarray]:
    """Return a, b and c of the formula, each broadcast to (anchor, row, column, number)."""
    a = np.ones((1, 1, 1, level.n_outputs), np.float32)
    a[..., :2], a[..., 2:4] = 2 * level.stride, 0
    b = np.zeros((len(level.anchors), 1, 1, level.n_outputs), np.float32)
    b[..., 2:4] = 4 * level.anchors[:, np.newaxis, np.newaxis]
    c = np.zeros((1, height, width, level.n_outputs), np.float32)
    c[..., :2] = (_cells(height, width) - np.float32(0.5)) * np.float32(level.stride)
    return [a, b, c]


def _cells(height: int, width: int) -> np.ndarray:
    """Return the column and row of each cell: (height, width, 2)."""
    return np.stack(np.meshgrid(np.arange(width), np.arange(height)), -1).astype(np.float32)


# -- identification of the constants -----------------------------------------------------------


def _levels(a: YoloDetect[Any]) -> list[_Level]:
    """Return the constants of each map, or raise ShapeError."""
    weights = a.weights or {}
    for name, value in weights.items():
        if value.dtype.kind == "c":
            raise ShapeError(f"'{name}' is {value.dtype}, expected real numbers")
    constants = [
        np.asarray(value.constant, np.float32)
        for name, value in weights.items()
        if not name.startswith("m.")
    ]
    strides = _strides(constants, len(a.maps))
    pairs = _pairs(constants, len(a.maps))
    levels: list[_Level] = []
    # Pairs are sorted from the largest map, which has the smallest stride.
    ranks = {number: rank for rank, number in enumerate(np.argsort(strides, kind="stable"))}
    for number, stride in enumerate(strides):
        weight, bias = weights.get(f"m.{number}.weight"), weights.get(f"m.{number}.bias")
        anchors = _anchors(*pairs[ranks[number]])
        if weight is None or weight.rank != 4 or weight.shape[2:] != (1, 1):
            raise ShapeError(
                f"'m.{number}.weight' is {weight!r}, expected that of a 1x1 convolution"
            )
        outputs = weight.shape[0]
        if not len(anchors) or outputs % len(anchors) or outputs < 5 * len(anchors):
            raise ShapeError(
                f"'m.{number}.weight' has {outputs} rows, expected 5 or more for each of "
                f"{len(anchors)} anchors"
            )
        if bias is not None and bias.shape != (outputs,):
            raise ShapeError(f"'m.{number}.bias' has shape {bias.shape}, expected ({outputs},)")
        levels.append(_Level(weight, bias, float(stride), anchors))
    return levels


def _strides(constants: list[np.ndarray], n_maps: int) -> np.ndarray:
    found = [array for array in constants if array.shape == (n_maps,)]
    if len(found) != 1 or len(set(found[0])) != n_maps:
        raise ShapeError(
            f"it has {len(found)} constants of shape ({n_maps},), expected one: the strides, all "
            "different"
        )
    return found[0]


def _pairs(constants: list[np.ndarray], n_maps: int) -> list[list[np.ndarray]]:
    """Return two constants per map, grid and anchors in either order; the largest map is first."""
    by_size: dict[tuple[int, ...], list[np.ndarray]] = {}
    for array in constants:
        if array.ndim == 5 and array.shape[0] == 1 and array.shape[4] == 2:
            by_size.setdefault(array.shape[2:4], []).append(array)
    if len(by_size) != n_maps or any(len(pair) != 2 for pair in by_size.values()):
        listed = ", ".join(str(array.shape) for array in constants if array.ndim > 1) or "none"
        raise ShapeError(
            f"its constants are {listed}, expected two of shape (1, anchors, h, w, 2) for each of "
            f"{n_maps} maps of different sizes"
        )
    return [by_size[size] for size in sorted(by_size, key=np.prod, reverse=True)]


def _anchors(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return the anchors (n, 2) of a map, given its grid and its anchors per cell in any order."""
    for grid, anchors in ((first, second), (second, first)):
        cells = _cells(*grid.shape[2:4])
        # Since YOLOv5 6.2 the grid includes the offset of -0.5.
        if any(np.array_equal(grid, np.broadcast_to(cells - h, grid.shape)) for h in (0, 0.5)):
            sizes = anchors[0, :, 0, 0]
            if np.array_equal(
                anchors, np.broadcast_to(sizes[:, np.newaxis, np.newaxis], anchors.shape)
            ):
                return sizes
    raise ShapeError(
        f"its constants of shape {first.shape} are not a grid and the anchors of YOLOv5; if it is "
        "a class of your own, add it with @kuiper.operator"
    )
