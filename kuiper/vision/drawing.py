"""Draw boxes and labels on pictures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from kuiper.vision._opencv import cv2

if TYPE_CHECKING:
    from kuiper.vision.detection import Detection

__all__ = ["class_colour", "draw_detections", "draw_text"]


def class_colour(index: int) -> tuple[int, int, int]:
    """Return the fixed colour of a class; those of consecutive classes differ.

    Parameters
    ----------
    index : int
        Index of the class.

    Returns
    -------
    tuple of int
        Blue, green, red, each 0..255.
    """
    hue = index * 67 % 180  # coprime factors visit all hues before one repeats
    pixel = cv2.cvtColor(np.array([[[hue, 200, 230]]], np.uint8), cv2.COLOR_HSV2BGR)[0, 0]
    return int(pixel[0]), int(pixel[1]), int(pixel[2])


def _lettering(picture: np.ndarray, text: str) -> tuple[float, int, int, int, int]:
    """Return font scale and thickness, and width, height and depth of a text in pixels."""
    # Both sides count, so that text is legible on narrow pictures, too.
    size = max(0.45, (picture.shape[0] + picture.shape[1]) / 1900)
    thickness = max(1, round(size * 1.5))
    (width, height), depth = cv2.getTextSize(text, cv2.FONT_HERSHEY_SIMPLEX, size, thickness)
    return size, thickness, width, height, depth


def draw_text(
    picture: np.ndarray, text: str, left: int, bottom: int, colour: tuple[int, int, int]
) -> None:
    """Draw a line of text on a bar of `colour`, in place and within the picture."""
    size, thickness, width, height, depth = _lettering(picture, text)
    left = max(0, min(left, picture.shape[1] - width))
    bottom = max(height + depth, min(bottom, picture.shape[0]))
    corner = (left + width, bottom - height - depth)
    cv2.rectangle(picture, (left, bottom), corner, colour, cv2.FILLED)
    light = 0.114 * colour[0] + 0.587 * colour[1] + 0.299 * colour[2]
    ink = (0, 0, 0) if light > 120 else (255, 255, 255)
    at = (left, bottom - depth)
    cv2.putText(picture, text, at, cv2.FONT_HERSHEY_SIMPLEX, size, ink, thickness, cv2.LINE_AA)


Rectangle: TypeAlias = tuple[int, int, int, int]  # left, top, right, bottom


def _common_area(a: Rectangle, b: Rectangle) -> int:
    width, height = min(a[2], b[2]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[1], b[1])
    return max(0, width) * max(0, height)


def _label_area(
    picture: np.ndarray, text: str, box: Rectangle, others: Sequence[Rectangle]
) -> Rectangle:
    """Return the area for the label of a box that overlaps other labels the least.

    Candidates are above the box, inside at its top and bottom, and below it, each aligned to the
    left and to the right; the first of equally good ones wins.
    """
    _, _, width, height, depth = _lettering(picture, text)
    height += depth
    left, top, right, bottom = box
    best, least = box, -1
    for lower in (top, top + height, bottom, bottom + height):
        for start in (left, right - width):
            x = max(0, min(start, picture.shape[1] - width))
            y = max(height, min(lower, picture.shape[0]))
            area = (x, y - height, x + width, y)
            hidden = sum(_common_area(area, other) for other in others)
            if least < 0 or hidden < least:
                best, least = area, hidden
    return best


def draw_detections(image: np.ndarray, detections: Sequence[Detection]) -> np.ndarray:
    """Return a copy of the picture with a box and a label for each detection.

    Parameters
    ----------
    image : numpy.ndarray of uint8, shape (height, width, 3)
        Blue first.
    detections : sequence of Detection
        Boxes in pixels of the picture; the first is drawn last, on top of the others.  A label is
        above its box unless it would hide labels of better detections.

    Returns
    -------
    numpy.ndarray of uint8, shape (height, width, 3)
    """
    picture = image.copy()
    thickness = max(1, round(min(picture.shape[:2]) / 200))
    boxes: list[Rectangle] = []
    labels: list[Rectangle] = []
    for found in detections:
        left, top, right, bottom = (round(value) for value in found.box)
        boxes.append((left, top, right, bottom))
        labels.append(_label_area(picture, _label(found), boxes[-1], labels))
    for found, box in zip(reversed(detections), reversed(boxes), strict=True):
        cv2.rectangle(picture, box[:2], box[2:], class_colour(found.index), thickness)
    for found, label in zip(reversed(detections), reversed(labels), strict=True):
        draw_text(picture, _label(found), label[0], label[3], class_colour(found.index))
    return picture


def _label(found: Detection) -> str:
    return f"{found.label} {found.score:.2f}"
