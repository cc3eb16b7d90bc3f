"""Draw what was found onto a picture."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from kuiper.vision._opencv import cv2

if TYPE_CHECKING:
    from kuiper.vision.detection import Detection

__all__ = ["class_colour", "draw_detections", "draw_text"]


def class_colour(index: int) -> tuple[int, int, int]:
    """Return a colour for a class; neighbours differ, and it is always the same.

    Parameters
    ----------
    index : int
        Number of the class.

    Returns
    -------
    tuple of int
        Blue, green, red, each 0..255.
    """
    hue = index * 67 % 180  # 67 is prime to 180, so all hues come before one comes twice
    pixel = cv2.cvtColor(np.array([[[hue, 200, 230]]], np.uint8), cv2.COLOR_HSV2BGR)[0, 0]
    return int(pixel[0]), int(pixel[1]), int(pixel[2])


def draw_text(
    picture: np.ndarray, text: str, left: int, bottom: int, colour: tuple[int, int, int]
) -> None:
    """Write a line of text on a bar of `colour`, in place; kept inside the picture."""
    size = max(0.4, picture.shape[1] / 1400)
    thickness = max(1, round(size * 1.5))
    (width, height), below = cv2.getTextSize(text, cv2.FONT_HERSHEY_SIMPLEX, size, thickness)
    left = max(0, min(left, picture.shape[1] - width))
    bottom = max(height + below, min(bottom, picture.shape[0]))
    corner = (left + width, bottom - height - below)
    cv2.rectangle(picture, (left, bottom), corner, colour, cv2.FILLED)
    light = 0.114 * colour[0] + 0.587 * colour[1] + 0.299 * colour[2]
    ink = (0, 0, 0) if light > 120 else (255, 255, 255)
    at = (left, bottom - below)
    cv2.putText(picture, text, at, cv2.FONT_HERSHEY_SIMPLEX, size, ink, thickness, cv2.LINE_AA)


def draw_detections(image: np.ndarray, detections: Sequence[Detection]) -> np.ndarray:
    """Return a copy of the picture with a box and a label for each detection.

    Parameters
    ----------
    image : numpy.ndarray of uint8, shape (height, width, 3)
        Blue first.
    detections : sequence of Detection
        Boxes in pixels of the picture; the first is drawn last, on top of the others.

    Returns
    -------
    numpy.ndarray of uint8, shape (height, width, 3)
    """
    picture = image.copy()
    thickness = max(1, round(min(picture.shape[:2]) / 200))
    for found in reversed(detections):  # the surest on top
        colour = class_colour(found.index)
        left, top, right, bottom = (round(value) for value in found.box)
        cv2.rectangle(picture, (left, top), (right, bottom), colour, thickness)
        draw_text(picture, f"{found.label} {found.score:.2f}", left, top, colour)
    return picture
