"""Boxes and regions of images by the rules of ONNX: suppression, maxima of regions."""

from __future__ import annotations

from typing import Any

import numpy as np

from kuiper._kernels.spatial import boxes
from kuiper.errors import ShapeError
from kuiper.ir.view import TensorSpec
from kuiper.ops.core.numpy_step import DataDependent, NumpyRecord
from kuiper.ops.core.record import NoBatchRule, T, record
from kuiper.ops.core.schema import Bool, Float, Int, Ints, Tensor
from kuiper.ops.nn.grid_sample import RoiAlign

__all__ = ["NonMaxSuppression", "RoiAlignMax", "RoiMaxPool"]

FLOAT32 = np.dtype(np.float32)


def _check_floats(**tensors: TensorSpec) -> None:
    for name, tensor in tensors.items():
        if tensor.dtype != FLOAT32:
            raise ShapeError(f"'{name}' is {tensor.dtype}, expected float32")


@record("kuiper.NonMaxSuppression")
class NonMaxSuppression(DataDependent[T]):
    """The best boxes of each image and class, as rows (image, class, box).

    Boxes (n, k, 4) are two opposite corners, or, with `centered`, the center, the width and the
    height; scores (n, classes, k).  A box counts if its score exceeds `score_threshold` and its
    overlap with no better, selected box of the class exceeds `iou_threshold`; of these, the best
    `limit`.  Source: https://onnx.ai/onnx/operators/onnx__NonMaxSuppression.html.

    Raises
    ------
    ShapeError
        If a tensor has the wrong shape or type, or `iou_threshold` is not from 0 to 1.
    """

    batch = NoBatchRule("it makes one list of the boxes of all members")
    boxes: T = Tensor(rank=3)
    scores: T = Tensor(rank=3)
    limit: int = Int(0)
    iou_threshold: float = Float(0.0)
    score_threshold: float | None = Float(None, nullable=True)
    centered: bool = Bool(False)

    def infer(self: NonMaxSuppression[TensorSpec]) -> Any:
        _check_floats(boxes=self.boxes, scores=self.scores)
        images, _, count = self.scores.shape
        if self.boxes.shape != (images, count, 4):
            raise ShapeError(
                f"'boxes' has shape {self.boxes.shape}, expected {(images, count, 4)} for scores "
                f"of shape {self.scores.shape}"
            )
        if not 0 <= self.iou_threshold <= 1:
            raise ShapeError(f"'iou_threshold' is {self.iou_threshold}, expected 0 to 1")
        return super().infer()

    def compute(self: NonMaxSuppression[np.ndarray]) -> Any:
        first, second = self.boxes[..., :2], self.boxes[..., 2:]
        if self.centered:
            first, second = first - second / 2, first + second / 2
            corners = np.concatenate([first, second], -1)
        else:
            corners = np.concatenate([np.minimum(first, second), np.maximum(first, second)], -1)
        found = [np.zeros((0, 3), np.int64)]
        for image, classes in enumerate(self.scores):
            for class_, scores in enumerate(classes):
                chosen = self._selected(corners[image], scores)
                rows = np.empty((chosen.size, 3), np.int64)
                rows[:] = image, class_, 0
                rows[:, 2] = chosen
                found.append(rows)
        return np.concatenate(found)

    def _selected(self: NonMaxSuppression[Any], corners: np.ndarray, scores: np.ndarray) -> Any:
        """Return the numbers of the boxes of one class of an image, best first."""
        order = np.argsort(-scores, kind="stable")
        if self.score_threshold is not None:
            order = order[scores[order] > np.float32(self.score_threshold)]
        best = np.ascontiguousarray(corners[order])
        limit = min(max(self.limit, 0), order.size)
        return order[boxes.suppress(best, self.iou_threshold, limit)]


@record("kuiper.RoiAlignMax")
class RoiAlignMax(RoiAlign[T]):
    """Regions of images, resized: each cell is the largest of the weighted pixels of its points.

    As torchvision.ops.RoIAlign, except that the four pixels around each point are weighed but not
    added.  A point outside of the image counts as 0.
    Source: https://onnx.ai/onnx/operators/onnx__RoiAlign.html, mode ``max``.
    """

    maximum = True


@record("kuiper.RoiMaxPool")
class RoiMaxPool(NumpyRecord[T]):
    """Regions of images, resized: each cell is the largest of its pixels, 0 if it has none.

    Input (n, c, h, w), boxes (k, 5): index of the image, left, top, right and bottom; coordinates
    times `spatial_scale`, rounded, are the first and the last pixels.
    Source: https://onnx.ai/onnx/operators/onnx__MaxRoiPool.html.

    Raises
    ------
    ShapeError
        If a tensor has the wrong shape or type, or a box belongs to no image.
    """

    batch = NoBatchRule("its boxes hold indices of batch members")
    input: T = Tensor(rank=4)
    boxes: T = Tensor(rank=2)
    output_size: tuple[int, ...] = Ints(length=2, minimum=1)
    spatial_scale: float = Float(1.0)

    def result(self: RoiMaxPool[TensorSpec]) -> TensorSpec:
        _check_floats(input=self.input, boxes=self.boxes)
        if self.boxes.shape[1] != 5:
            raise ShapeError(f"'boxes' has shape {self.boxes.shape}, expected (k, 5)")
        return TensorSpec((self.boxes.shape[0], self.input.shape[1], *self.output_size))

    def compute(self: RoiMaxPool[np.ndarray]) -> Any:
        count = self.input.shape[0]
        y = np.zeros((len(self.boxes), self.input.shape[1], *self.output_size), np.float32)
        for cells, box in zip(y, self.boxes, strict=True):
            if not 0 <= box[0] < count:
                raise ShapeError(f"a box belongs to image {box[0]:g}, expected one of {count}")
            image = self.input[int(box[0])]
            # Halves are rounded away from zero.
            scaled = box[1:] * np.float32(self.spatial_scale)
            edges = np.trunc(scaled + np.copysign(np.float32(0.5), scaled))
            columns = _cells(edges[0], edges[2], self.output_size[1], image.shape[2])
            for i, (top, bottom) in enumerate(
                _cells(edges[1], edges[3], self.output_size[0], image.shape[1])
            ):
                for j, (left, right) in enumerate(columns):
                    if top < bottom and left < right:
                        cells[:, i, j] = image[:, top:bottom, left:right].max((1, 2))
        return y


def _cells(first: Any, last: Any, count: int, extent: int) -> list[tuple[int, int]]:
    """Return the pixels from which and to which each cell along an axis reaches."""
    if not np.isfinite(last - first):
        raise ShapeError("a box has edges that are not finite")
    size = max(last - first + 1, np.float32(1)) / np.float32(count)
    steps = np.arange(count + 1, dtype=np.float32) * size
    starts = np.clip(np.floor(steps[:-1]) + first, 0, extent).astype(int)
    stops = np.clip(np.ceil(steps[1:]) + first, 0, extent).astype(int)
    return list(zip(starts.tolist(), stops.tolist(), strict=True))
