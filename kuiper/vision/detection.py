"""Object detection: from pictures to boxes of objects.

The format of a detector's output follows from its shape.  An input of h x w pixels has
ceil(h / s) * ceil(w / s) grid cells of stride s, and

=============  =================================  ============================================
decoder        output                             columns
=============  =================================  ============================================
``nanodet``    (n, cells, classes + 32)           class scores, 4 x 8 logits of distances
``yolov5``     (n, 3 * cells, 5 + classes)        x, y, w, h, objectness, class scores
``yolov8``     (n, 4 + classes, cells)            x, y, w, h, class scores (YOLOv8, v9, 11)
``end2end``    (n, 300, 6)                        x0, y0, x1, y1, score, class (YOLOv10)
=============  =================================  ============================================

where `cells` is the sum over the strides 8, 16 and 32 (and possibly 64).  NanoDet may also have
separate outputs for scores and distances of each stride.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

import kuiper
from kuiper.vision._opencv import cv2
from kuiper.vision.classification import load_labels, softmax
from kuiper.vision.images import Preprocessing, as_image, as_images, input_size, normalised
from kuiper.vision.model_zoo import load_network

__all__ = [
    "DECODERS",
    "Detection",
    "Detector",
    "Letterbox",
    "letterbox",
    "non_maximum_suppression",
]

STRIDES = ((8, 16, 32), (8, 16, 32, 64))

NANODET = Preprocessing(
    mean=(103.53, 116.28, 123.675),
    std=(1 / 0.017429, 1 / 0.017507, 1 / 0.017125),
    scale=1,
    bgr=True,
)
YOLO = Preprocessing(mean=(0, 0, 0), std=(1, 1, 1))


@dataclass(frozen=True)
class Detection:
    """An object in a picture.

    Attributes
    ----------
    index : int
        Index of the class.
    label : str
    score : float
    box : tuple of float
        Left, top, right, bottom, in pixels of the picture.
    """

    index: int
    label: str
    score: float
    box: tuple[float, float, float, float]


# -- letterbox -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Letterbox:
    """The position and scale of a picture within a network's input.

    Attributes
    ----------
    scale : float
        Pixels of the input per pixel of the picture.
    left, top : int
        Widths of the bars in pixels of the input.
    shape : tuple of int
        Height and width of the picture.
    """

    scale: float
    left: int
    top: int
    shape: tuple[int, int]

    def to_picture(self, boxes: np.ndarray) -> np.ndarray:
        """Convert boxes from the input to the picture and clip them to its border.

        Parameters
        ----------
        boxes : numpy.ndarray of float, shape (n, 4)
            Left, top, right, bottom, in pixels of the network's input.

        Returns
        -------
        numpy.ndarray of float, shape (n, 4)
            In pixels of the picture.
        """
        moved = (boxes - np.array([self.left, self.top] * 2)) / self.scale
        height, width = self.shape
        return np.clip(moved, 0, np.array([width, height] * 2))


def letterbox(
    image: np.ndarray, size: tuple[int, int], value: int = 114
) -> tuple[np.ndarray, Letterbox]:
    """Scale a picture in proportion into height x width and fill the rest with grey.

    Parameters
    ----------
    image : numpy.ndarray
    size : tuple of int
        Height and width.
    value : int, default=114
        The grey of the bars; 114 for YOLO, 0 for NanoDet.

    Returns
    -------
    numpy.ndarray, Letterbox
        The new picture, and the position of the old one in it.
    """
    old_height, old_width = image.shape[:2]
    height, width = size
    scale = min(height / old_height, width / old_width)
    new_height = min(height, max(1, round(old_height * scale)))
    new_width = min(width, max(1, round(old_width * scale)))
    top, left = (height - new_height) // 2, (width - new_width) // 2
    canvas = np.full((height, width, 3), value, np.uint8)
    canvas[top : top + new_height, left : left + new_width] = cv2.resize(
        image, (new_width, new_height), interpolation=cv2.INTER_LINEAR
    )
    return canvas, Letterbox(scale, left, top, (old_height, old_width))


# -- non-maximum suppression ---------------------------------------------------------------


def non_maximum_suppression(
    boxes: np.ndarray, scores: np.ndarray, classes: np.ndarray, iou: float = 0.5, limit: int = 300
) -> np.ndarray:
    """Keep the best of overlapping boxes of the same class.

    Parameters
    ----------
    boxes : numpy.ndarray, shape (n, 4)
        Left, top, right, bottom.
    scores, classes : numpy.ndarray, shape (n,)
    iou : float, default=0.5
        Boxes of a class are duplicates if intersection over union of their areas exceeds this.
    limit : int, default=300
        Maximum number of boxes to keep.

    Returns
    -------
    numpy.ndarray of int
        Indices of the kept boxes, the best first.
    """
    order = np.argsort(-scores, kind="stable")
    areas = np.maximum(boxes[:, 2:] - boxes[:, :2], 0).prod(axis=1)
    kept: list[int] = []
    while order.size and len(kept) < limit:
        best, rest = order[0], order[1:]
        kept.append(int(best))
        low = np.maximum(boxes[best, :2], boxes[rest, :2])
        high = np.minimum(boxes[best, 2:], boxes[rest, 2:])
        intersection = np.maximum(high - low, 0).prod(axis=1)
        union = np.maximum(areas[best] + areas[rest] - intersection, 1e-12)
        order = rest[(intersection / union <= iou) | (classes[rest] != classes[best])]
    return np.array(kept, np.intp)


# -- decoders: output arrays -> boxes (m, 4) in pixels of the input, class scores (m, classes) -----

Decoded = tuple[np.ndarray, np.ndarray]
Decoder = Callable[[Sequence[np.ndarray], tuple[int, int], float], list[Decoded]]


def _n_cells(size: tuple[int, int], strides: Sequence[int]) -> int:
    return sum(math.ceil(size[0] / s) * math.ceil(size[1] / s) for s in strides)


def _centres(size: tuple[int, int], strides: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """Return the centre (cells, 2) in pixels and the stride (cells, 1) of every grid cell."""
    centres, steps = [], []
    for stride in strides:
        rows, columns = np.indices([math.ceil(n / stride) for n in size]).reshape(2, -1)
        centres.append((np.stack([columns, rows], axis=1) + 0.5) * stride)
        steps.append(np.full((len(rows), 1), stride))
    return np.concatenate(centres).astype(np.float32), np.concatenate(steps).astype(np.float32)


def decode_nanodet(
    outputs: Sequence[np.ndarray], size: tuple[int, int], threshold: float
) -> list[Decoded]:
    """Decode NanoDet: each side's distance is the mean of a distribution over 0..7 strides."""
    if len(outputs) > 1:  # separate scores and distances for each stride
        pairs = zip(outputs[::2], outputs[1::2], strict=True)
        joined = np.concatenate([np.concatenate(pair, axis=2) for pair in pairs], axis=1)
    else:
        joined = outputs[0]
    strides = next(s for s in STRIDES if _n_cells(size, s) == joined.shape[1])
    centres, steps = _centres(size, strides)
    results = []
    for rows in joined:
        scores, logits = rows[:, :-32], rows[:, -32:]
        good = scores.max(axis=1) >= threshold
        weights = softmax(logits[good].reshape(-1, 4, 8), axis=2)
        means = weights @ np.arange(8, dtype=np.float32)
        distances = means * steps[good]  # left, top, right, bottom
        low, high = centres[good] - distances[:, :2], centres[good] + distances[:, 2:]
        results.append((np.concatenate([low, high], axis=1), scores[good]))
    return results


def decode_yolov5(
    outputs: Sequence[np.ndarray], size: tuple[int, int], threshold: float
) -> list[Decoded]:
    """Decode YOLOv5 (and v7): class scores are multiplied by the objectness."""
    results = []
    for rows in _first_of_rank(outputs, 3):
        rows = rows[rows[:, 4] >= threshold]
        results.append((_corners(rows[:, :4]), rows[:, 5:] * rows[:, 4:5]))
    return results


def decode_yolov8(
    outputs: Sequence[np.ndarray], size: tuple[int, int], threshold: float
) -> list[Decoded]:
    """Decode YOLOv8, v9 and 11: one column per cell; a segmentation's 32 factors are ignored."""
    predictions = _first_of_rank(outputs, 3)
    factors = next((y.shape[1] for y in outputs if y.ndim == 4 and y.shape[1] == 32), 0)
    end = predictions.shape[1] - factors
    return [(_corners(y[:4].T), y[4:end].T) for y in predictions]


def decode_end2end(
    outputs: Sequence[np.ndarray], size: tuple[int, int], threshold: float
) -> list[Decoded]:
    """Decode YOLOv10 and other exports that include non-maximum suppression."""
    results = []
    for rows in _first_of_rank(outputs, 3):
        classes = rows[:, 5].astype(int)
        scores = np.zeros((len(rows), max(80, classes.max(initial=0) + 1)), np.float32)
        scores[np.arange(len(rows)), classes] = rows[:, 4]
        results.append((rows[:, :4], scores))
    return results


DECODERS: dict[str, Decoder] = {
    "nanodet": decode_nanodet,
    "yolov5": decode_yolov5,
    "yolov8": decode_yolov8,
    "end2end": decode_end2end,
}


def _first_of_rank(outputs: Sequence[np.ndarray], rank: int) -> np.ndarray:
    return next(y for y in outputs if y.ndim == rank)


def _corners(boxes: np.ndarray) -> np.ndarray:
    """Convert boxes from centre and extent to left, top, right, bottom."""
    half = boxes[:, 2:] / 2
    return np.concatenate([boxes[:, :2] - half, boxes[:, :2] + half], axis=1)


def guess_decoder(outputs: Sequence[np.ndarray], size: tuple[int, int]) -> str:
    """Return the name of the decoder that fits the shapes of a model's outputs.

    Raises
    ------
    ValueError
        If none fits.
    """
    counts = [_n_cells(size, strides) for strides in STRIDES]
    predictions = [y for y in outputs if y.ndim == 3]
    if len(predictions) in (6, 8) and sum(y.shape[1] for y in predictions[::2]) in counts:
        return "nanodet"
    for _, rows, columns in (y.shape for y in predictions):
        if rows in [3 * count for count in counts] and columns > 5:
            return "yolov5"
        if rows in counts and columns > 32:
            return "nanodet"
        if columns in counts and rows > 4:
            return "yolov8"
        if columns == 6 and rows <= 1000:
            return "end2end"
    raise ValueError(
        f"outputs {', '.join(str(y.shape) for y in outputs)} for an input of {size[0]}x{size[1]} "
        f"do not fit a known detector; known: {', '.join(DECODERS)}"
    )


# -- the detector ------------------------------------------------------------------------------


class Detector:
    """An object detection network.

    Parameters
    ----------
    model : str, Path or kuiper.Model
        The name of a bundled model, a ``.param`` file, or a model: NanoDet, YOLOv5, v8, v9, v10
        or 11.
    labels : str or Path, optional
        A file with one name per line; by default the names of COCO for 80 classes.
    threshold : float, optional
        Minimum score of a box; by default 0.4 for NanoDet and 0.25 for others.
    iou : float, default=0.5
        See :func:`non_maximum_suppression`.
    decoder : str, optional
        One of :data:`DECODERS`; by default the one that fits the output shapes.
    size : tuple of int, optional
        Height and width of the network's input, if they differ from those of the trace.

    Examples
    --------
    >>> from kuiper.vision import Detector, load_image                    # doctest: +SKIP
    >>> Detector()([load_image("examples/photos/chelsea.png")])           # doctest: +SKIP
    [[Detection(index=15, label='cat', score=0.74, box=(...))]]
    """

    def __init__(
        self,
        model: str | Path | kuiper.Model = "nanodet_m",
        labels: str | Path | None = None,
        threshold: float | None = None,
        iou: float = 0.5,
        decoder: str | None = None,
        size: tuple[int, int] | None = None,
    ) -> None:
        self.model = load_network(model, "a detector")
        if decoder is not None and decoder not in DECODERS:
            raise ValueError(f"decoder {decoder!r}, expected one of {', '.join(DECODERS)}")
        self.size = input_size(self.model, 640) if size is None else size
        if decoder is None:
            outputs = self._outputs(np.zeros((1, 3, *self.size), np.float32))
            decoder = guess_decoder(outputs, self.size)
        self.decoder = decoder
        nanodet = decoder == "nanodet"
        default = 0.4 if nanodet else 0.25
        self.threshold = default if threshold is None else threshold
        self.iou = iou
        self.how = replace(NANODET if nanodet else YOLO, size=self.size)
        self._grey = 0 if nanodet else 114
        self._labels_file = labels
        self._labels: list[str] | None = None

    def __repr__(self) -> str:
        height, width = self.size
        return (
            f"<kuiper.vision.Detector: {self.decoder}, {height}x{width} pixels, threshold "
            f"{self.threshold}, iou {self.iou}, of {self.model!r}>"
        )

    def _outputs(self, x: np.ndarray) -> list[np.ndarray]:
        outputs = self.model(x)
        return list(outputs) if isinstance(outputs, tuple) else [outputs]

    def preprocess(self, image: np.ndarray) -> tuple[np.ndarray, Letterbox]:
        """Return the network's input for one picture, and its letterbox.

        Parameters
        ----------
        image : numpy.ndarray of uint8, shape (height, width, 3)
            Blue first, of any size.

        Returns
        -------
        numpy.ndarray of float32, shape (3, height, width)
        Letterbox
            The position of the picture in it.
        """
        canvas, where = letterbox(as_image(image), self.size, self._grey)
        return normalised(canvas, self.how), where

    def detect(self, x: np.ndarray, boxes: Sequence[Letterbox]) -> list[list[Detection]]:
        """Run the network and return the objects in each picture.

        Parameters
        ----------
        x : numpy.ndarray of float32, shape (n, 3, height, width)
        boxes : sequence of Letterbox
            One per picture, from :meth:`preprocess`.

        Returns
        -------
        list of list of Detection
            In pixels of the pictures, by descending score.
        """
        decoded = DECODERS[self.decoder](self._outputs(x), self.size, self.threshold)
        return [self._detections(*one, where) for one, where in zip(decoded, boxes, strict=True)]

    def _detections(
        self, boxes: np.ndarray, scores: np.ndarray, where: Letterbox
    ) -> list[Detection]:
        if self._labels is None:
            self._labels = load_labels(self._labels_file, scores.shape[1])
        classes = scores.argmax(axis=1)
        best = scores[np.arange(len(scores)), classes]
        good = best >= self.threshold
        boxes, classes, best = boxes[good], classes[good], best[good]
        if self.decoder != "end2end":
            kept = non_maximum_suppression(boxes, best, classes, self.iou)
            boxes, classes, best = boxes[kept], classes[kept], best[kept]
        boxes = where.to_picture(boxes)
        return [
            Detection(int(i), self._labels[i], float(score), (left, top, right, bottom))
            for i, score, (left, top, right, bottom) in zip(
                classes, best, boxes.tolist(), strict=True
            )
        ]

    def __call__(self, images: Any, *, channels: str = "bgr") -> Any:
        """Return the objects in each picture.

        Parameters
        ----------
        images : path, PIL.Image.Image, numpy.ndarray of uint8, or an iterable of these
            One picture or many, of any sizes; see :func:`as_image`.
        channels : str, default="bgr"
            The order of the channels of arrays, ``"bgr"`` or ``"rgb"``.

        Returns
        -------
        list of list of Detection
            In pixels of the pictures, by descending score; a list of Detection for one picture that
            is not in a list.

        Raises
        ------
        InputError
            If there is no picture, or one is none.
        """
        pictures, single = as_images(images, channels)
        made: list[Any] = [self.preprocess(image) for image in pictures]
        found = self.detect(np.stack([x for x, _ in made]), [where for _, where in made])
        return found[0] if single else found
