"""From a picture to a mask: which pixels are foreground, a person, or of which class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

import kuiper
from kuiper.vision._opencv import cv2
from kuiper.vision.classification import shapes
from kuiper.vision.drawing import class_colour
from kuiper.vision.images import (
    Preprocessing,
    input_shape,
    input_size,
    normalised,
    resize_lanczos,
)
from kuiper.vision.model_zoo import find_model

__all__ = ["SEGMENTERS", "Segmenter", "SegmenterKind", "cut_out", "overlay"]


@dataclass(frozen=True)
class SegmenterKind:
    """What a family of networks wants and gives.

    Attributes
    ----------
    how : Preprocessing
        The picture is always squeezed into the input.
    by_maximum : bool
        Divide by the picture's largest value instead of by 255.
    lanczos : bool
        Resize as Pillow's LANCZOS does, instead of OpenCV's bilinear.
    stretch : bool
        Stretch the output to 0..1.
    """

    how: Preprocessing
    by_maximum: bool = False
    lanczos: bool = False
    stretch: bool = False


_PLAIN = Preprocessing(mean=(0, 0, 0), std=(1, 1, 1), crop=False, antialias=False)
_IMAGENET = replace(_PLAIN, mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))

SEGMENTERS = {
    "u2net": SegmenterKind(_IMAGENET, by_maximum=True, lanczos=True, stretch=True),
    "selfie": SegmenterKind(_PLAIN),
    "unet": SegmenterKind(_PLAIN),
    "imagenet": SegmenterKind(_IMAGENET),
}

_KIND_OF = {"u2netp": "u2net", "selfie": "selfie"}


class Segmenter:
    """A network that separates a picture's foreground from its background, or its classes.

    Parameters
    ----------
    model : str, Path or kuiper.Model
        The name of a bundled model (``u2netp``, ``selfie``), a ``.param`` file, or a model.  The
        first output counts: (n, 1, h, w) is foreground, as probability or logit; (n, k, h, w) is a
        score for each of k classes, of which the first is background.
    kind : str, optional
        One of :data:`SEGMENTERS`: by default that of the bundled model, else ``"unet"`` (RGB, 0..1,
        as in the course of KuiperInfer).  ``"imagenet"`` also subtracts ImageNet's mean, as
        torchvision's models want it.
    size : tuple of int, optional
        Height and width of the network's input, where the model takes others than the traced ones.
    """

    def __init__(
        self,
        model: str | Path | kuiper.Model = "u2netp",
        kind: str | None = None,
        size: tuple[int, int] | None = None,
    ) -> None:
        name = str(model)
        kind = _KIND_OF.get(name, "unet") if kind is None else kind
        if kind not in SEGMENTERS:
            raise ValueError(f"kind {kind!r}, expected one of {', '.join(SEGMENTERS)}")
        if not isinstance(model, kuiper.Model):
            model = kuiper.load(find_model(name))
        if len(model.inputs) != 1 or len(input_shape(model)) != 4:
            raise ValueError(
                f"{name}: not a segmentation model: inputs {shapes(model.inputs)}, expected one "
                "input (batch, 3, height, width)"
            )
        self.model = model
        self.kind = SEGMENTERS[kind]
        self.size = input_size(model, 320) if size is None else size

    def preprocess(self, image: np.ndarray) -> np.ndarray:
        """Return the network's input for one picture, (3, height, width).

        Parameters
        ----------
        image : numpy.ndarray of uint8, shape (height, width, 3)
            Blue first, of any size; all of it is squeezed into the input.

        Returns
        -------
        numpy.ndarray of float32, shape (3, height, width)
        """
        height, width = self.size
        if self.kind.lanczos:
            resized = resize_lanczos(image, height, width)
        else:
            resized = cv2.resize(image, (width, height), interpolation=cv2.INTER_LINEAR)
        how = self.kind.how
        if self.kind.by_maximum:
            how = replace(how, scale=1 / max(1, int(resized.max())))
        return normalised(resized, how)

    def scores(self, x: np.ndarray) -> np.ndarray:
        """Run the network on x (n, 3, h, w); return probabilities (n, classes, h, w).

        Parameters
        ----------
        x : numpy.ndarray of float32, shape (n, 3, h, w)

        Returns
        -------
        numpy.ndarray of float32, shape (n, classes, h, w)
            Probabilities; a network with one channel gives that of the foreground.

        Raises
        ------
        ValueError
            If the first output has another shape.
        """
        y = self.model(x)
        y = y[0] if isinstance(y, tuple) else y
        if y.ndim != 4 or len(y) != len(x):
            raise ValueError(
                f"the model's first output has shape {y.shape}; a segmentation model gives "
                "(batch, classes, height, width)"
            )
        if y.shape[1] > 1:
            if (y >= 0).all() and np.allclose(y.sum(axis=1), 1, atol=1e-3):
                return y
            powers = np.exp(y - y.max(axis=1, keepdims=True))
            return powers / powers.sum(axis=1, keepdims=True)
        if self.kind.stretch:
            low, high = y.min(axis=(1, 2, 3), keepdims=True), y.max(axis=(1, 2, 3), keepdims=True)
            return (y - low) / np.maximum(high - low, 1e-12)
        return y if y.min() >= 0 and y.max() <= 1 else 1 / (1 + np.exp(-y))

    def planes(self, images: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Return the probability of each class for each pixel.

        Parameters
        ----------
        images : sequence of numpy.ndarray of uint8, shape (height, width, 3)
            Blue first; their sizes may differ.

        Returns
        -------
        list of numpy.ndarray of float32, shape (classes, height, width)
            For each picture, in its own size.  One output channel of the network stands for two
            classes, background and foreground.
        """
        scores = self.scores(np.stack([self.preprocess(image) for image in images]))
        if scores.shape[1] == 1:
            scores = np.concatenate([1 - scores, scores], axis=1)
        return [
            np.stack([_resized(plane, image.shape[:2]) for plane in planes])
            for planes, image in zip(scores, images, strict=True)
        ]

    def __call__(self, images: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Return the foreground of each picture: float32 (height, width), 0 to 1.

        Parameters
        ----------
        images : sequence of numpy.ndarray of uint8, shape (height, width, 3)
            Blue first; their sizes may differ.

        Returns
        -------
        list of numpy.ndarray of float32, shape (height, width)
            For each picture, in its own size, 0 to 1.
        """
        return [np.clip(1 - planes[0], 0, 1) for planes in self.planes(images)]

    def classes(self, images: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Return the number of the likeliest class of each pixel: int (height, width).

        Parameters
        ----------
        images : sequence of numpy.ndarray of uint8, shape (height, width, 3)

        Returns
        -------
        list of numpy.ndarray of int, shape (height, width)
            For each picture; 0 is the background.
        """
        return [planes.argmax(axis=0) for planes in self.planes(images)]


def _resized(plane: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    size = (shape[1], shape[0])
    resized = cv2.resize(np.ascontiguousarray(plane), size, interpolation=cv2.INTER_LINEAR)
    return np.clip(resized, 0, 1)


def overlay(
    image: np.ndarray, mask: np.ndarray, index: int = 1, strength: float = 0.5
) -> np.ndarray:
    """Return the picture with a mask (height, width), 0 to 1, laid over it in a class's colour.

    Parameters
    ----------
    image : numpy.ndarray of uint8, shape (height, width, 3)
    mask : numpy.ndarray of float, shape (height, width)
        0 to 1.
    index : int, default=1
        The class whose colour it gets; see :func:`class_colour`.
    strength : float, default=0.5
        How much of the colour there is where the mask is 1.

    Returns
    -------
    numpy.ndarray of uint8, shape (height, width, 3)
    """
    alpha = (mask * strength).astype(np.float32)[:, :, None]
    colour = np.array(class_colour(index), np.float32)
    return np.rint(image * (1 - alpha) + colour * alpha).astype(np.uint8)


def cut_out(image: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Return the foreground with a transparent background: uint8 (height, width, 4).

    Parameters
    ----------
    image : numpy.ndarray of uint8, shape (height, width, 3)
    mask : numpy.ndarray of float, shape (height, width)
        0 to 1; it becomes the opacity.

    Returns
    -------
    numpy.ndarray of uint8, shape (height, width, 4)
        Save it as PNG or WebP, which keep the opacity.
    """
    return np.dstack([image, np.rint(mask * 255).astype(np.uint8)])
