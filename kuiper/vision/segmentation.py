"""Segmentation: from pictures to masks of the foreground or of classes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

import kuiper
from kuiper.vision._opencv import cv2
from kuiper.vision.classification import probabilities
from kuiper.vision.drawing import class_colour
from kuiper.vision.images import (
    Preprocessing,
    as_image,
    as_images,
    input_size,
    normalised,
    resize_lanczos,
)
from kuiper.vision.model_zoo import load_network

__all__ = ["SEGMENTERS", "Segmenter", "SegmenterKind", "cut_out", "overlay"]


@dataclass(frozen=True)
class SegmenterKind:
    """Pre- and postprocessing of a family of networks.

    Attributes
    ----------
    how : Preprocessing
        The picture is always distorted to the input size.
    by_maximum : bool
        Divide by the maximum of the picture instead of 255.
    lanczos : bool
        Resize like Pillow's LANCZOS instead of OpenCV's bilinear.
    stretch : bool
        Map the range of the output to 0..1.
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
    """A network that separates the foreground of a picture from its background, or classes.

    Parameters
    ----------
    model : str, Path or kuiper.Model
        The name of a bundled model (``u2netp``, ``selfie``), a ``.param`` file, or a model.  The
        first output counts: (n, 1, h, w) is foreground, as probability or logit; (n, k, h, w) is a
        score for each of k classes, of which the first is background.
    kind : str, optional
        One of :data:`SEGMENTERS`: by default that of the bundled model, else ``"unet"`` (RGB, 0..1,
        as in the course of KuiperInfer).  ``"imagenet"`` also subtracts ImageNet's mean, as the
        models of torchvision need.
    size : tuple of int, optional
        Height and width of the network's input, if they differ from those of the trace.
    """

    def __init__(
        self,
        model: str | Path | kuiper.Model = "u2netp",
        kind: str | None = None,
        size: tuple[int, int] | None = None,
    ) -> None:
        kind = _KIND_OF.get(str(model), "unet") if kind is None else kind
        if kind not in SEGMENTERS:
            raise ValueError(f"kind {kind!r}, expected one of {', '.join(SEGMENTERS)}")
        self.model = load_network(model, "a segmentation model")
        self.kind = SEGMENTERS[kind]
        self._kind_name = kind
        self.size = input_size(self.model, 320) if size is None else size

    def __repr__(self) -> str:
        height, width = self.size
        return (
            f"<kuiper.vision.Segmenter: {self._kind_name}, {height}x{width} pixels, of "
            f"{self.model!r}>"
        )

    def preprocess(self, image: np.ndarray) -> np.ndarray:
        """Return the network's input for one picture.

        Parameters
        ----------
        image : numpy.ndarray of uint8, shape (height, width, 3)
            Blue first, of any size; it is distorted to the input size.

        Returns
        -------
        numpy.ndarray of float32, shape (3, height, width)
        """
        image = as_image(image)
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
        """Run the network.

        Parameters
        ----------
        x : numpy.ndarray of float32, shape (n, 3, h, w)

        Returns
        -------
        numpy.ndarray of float32, shape (n, classes, h, w)
            Probabilities; only that of the foreground if the network has one output channel.

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
            return probabilities(y)
        if self.kind.stretch:
            low, high = y.min(axis=(1, 2, 3), keepdims=True), y.max(axis=(1, 2, 3), keepdims=True)
            return (y - low) / np.maximum(high - low, 1e-12)
        return y if y.min() >= 0 and y.max() <= 1 else 1 / (1 + np.exp(-y))

    def planes(self, images: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Return the probabilities of the classes for each pixel.

        Parameters
        ----------
        images : sequence of numpy.ndarray of uint8, shape (height, width, 3)
            Blue first; their sizes may differ.

        Returns
        -------
        list of numpy.ndarray of float32, shape (classes, height, width)
            For each picture, in its size.  A network with one output channel has two classes,
            background and foreground.
        """
        images, _ = as_images(images)
        x = np.stack([self.preprocess(image) for image in images])
        return self._planes(x, [image.shape[:2] for image in images])

    def _planes(self, x: np.ndarray, sizes: Sequence[tuple[int, ...]]) -> list[np.ndarray]:
        scores = self.scores(x)
        if scores.shape[1] == 1:
            scores = np.concatenate([1 - scores, scores], axis=1)
        return [
            np.stack([_resized(plane, size) for plane in planes])
            for planes, size in zip(scores, sizes, strict=True)
        ]

    def masks(self, x: np.ndarray, sizes: Sequence[tuple[int, ...]]) -> list[np.ndarray]:
        """Run the network and return the probability of the foreground for each pixel.

        Parameters
        ----------
        x : numpy.ndarray of float32, shape (n, 3, h, w)
            Pictures from :meth:`preprocess`.
        sizes : sequence of tuple of int
            Height and width of each picture.

        Returns
        -------
        list of numpy.ndarray of float32, shape (height, width)
            For each picture, in its size, 0 to 1.
        """
        return [np.clip(1 - planes[0], 0, 1) for planes in self._planes(x, sizes)]

    def __call__(self, images: Any, *, channels: str = "bgr") -> Any:
        """Return the probability of the foreground for each pixel.

        Parameters
        ----------
        images : path, PIL.Image.Image, numpy.ndarray of uint8, or an iterable of these
            One picture or many, of any sizes; see :func:`as_image`.
        channels : str, default="bgr"
            The order of the channels of arrays, ``"bgr"`` or ``"rgb"``.

        Returns
        -------
        list of numpy.ndarray of float32, shape (height, width)
            For each picture, in its size, 0 to 1; an array for one picture that is not in a list.

        Raises
        ------
        InputError
            If there is no picture, or one is none.
        """
        pictures, single = as_images(images, channels)
        x = np.stack([self.preprocess(image) for image in pictures])
        found = self.masks(x, [image.shape[:2] for image in pictures])
        return found[0] if single else found

    def classes(self, images: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Return the index of the most probable class of each pixel.

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
    """Return the picture with a mask as an overlay in the colour of a class.

    Parameters
    ----------
    image : numpy.ndarray of uint8, shape (height, width, 3)
    mask : numpy.ndarray of float, shape (height, width)
        0 to 1.
    index : int, default=1
        The class that selects the colour; see :func:`class_colour`.
    strength : float, default=0.5
        Opacity of the colour where the mask is 1.

    Returns
    -------
    numpy.ndarray of uint8, shape (height, width, 3)
    """
    alpha = (mask * strength).astype(np.float32)[:, :, None]
    colour = np.array(class_colour(index), np.float32)
    return np.rint(image * (1 - alpha) + colour * alpha).astype(np.uint8)


def cut_out(image: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Return the foreground with a transparent background.

    Parameters
    ----------
    image : numpy.ndarray of uint8, shape (height, width, 3)
    mask : numpy.ndarray of float, shape (height, width)
        The opacity, 0 to 1.

    Returns
    -------
    numpy.ndarray of uint8, shape (height, width, 4)
        PNG and WebP files keep the opacity.
    """
    return np.dstack([image, np.rint(mask * 255).astype(np.uint8)])
