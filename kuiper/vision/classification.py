"""Image classification: from pictures to class names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

import kuiper
from kuiper.vision._opencv import cv2
from kuiper.vision.images import PRESETS, Preprocessing, as_images, input_size, preprocess
from kuiper.vision.model_zoo import find_labels, load_network

__all__ = ["Classifier", "Guess", "best_guesses", "draw_guesses", "load_labels", "probabilities"]

# Presets of the bundled models; other models use that of ImageNet.
_PRESET_OF = {"mobilenet_v2": "imagenet", "squeezenet": "caffe"}


@dataclass(frozen=True)
class Guess:
    """A candidate class of a picture.

    Attributes
    ----------
    index : int
        Index of the class.
    label : str
    probability : float
        0 to 1.
    """

    index: int
    label: str
    probability: float


def softmax(x: np.ndarray, axis: int = 1) -> np.ndarray:
    """Return exp(x) / sum(exp(x)) along an axis, without overflow."""
    powers = np.exp(x - x.max(axis=axis, keepdims=True))
    return powers / powers.sum(axis=axis, keepdims=True)


def probabilities(scores: np.ndarray) -> np.ndarray:
    """Return scores as probabilities, by softmax unless they are probabilities already.

    Parameters
    ----------
    scores : numpy.ndarray of float, shape (n, classes, ...)
        Logits, or nonnegative probabilities that add up to 1 over the classes.

    Returns
    -------
    numpy.ndarray of float, shape (n, classes, ...)
    """
    if (scores >= 0).all() and np.allclose(scores.sum(axis=1), 1, atol=1e-3):
        return scores
    return softmax(scores)


def best_guesses(row: np.ndarray, labels: Sequence[str], count: int) -> list[Guess]:
    """Return the `count` most probable classes, the best first.

    Parameters
    ----------
    row : numpy.ndarray of float, shape (classes,)
        Probabilities.
    labels : sequence of str
        One name per class.
    count : int
        Maximum number of guesses.

    Returns
    -------
    list of Guess
    """
    order = np.argsort(-row, kind="stable")[:count]
    return [Guess(int(i), labels[i], float(row[i])) for i in order]


def load_labels(path: str | Path | None, n_classes: int) -> list[str]:
    """Return class names: from a file, else those of ImageNet or COCO if they fit, else numbers.

    Parameters
    ----------
    path : str, Path or None
        A UTF-8 text file with one name per line.
    n_classes : int

    Returns
    -------
    list of str
        One per class.

    Raises
    ------
    ValueError
        If the number of lines differs from the number of classes.
    """
    if path is None:
        known = {1000: "imagenet_classes.txt", 80: "coco80_classes.txt"}
        path = find_labels(known[n_classes]) if n_classes in known else None
        if path is None:
            return [f"class {number}" for number in range(n_classes)]
    labels = Path(path).read_text(encoding="utf-8").splitlines()
    if len(labels) != n_classes:
        raise ValueError(f"{path}: {len(labels)} lines, but the model knows {n_classes} classes")
    return labels


class Classifier:
    """An image classification network.

    Parameters
    ----------
    model : str, Path or kuiper.Model
        The name of a bundled model, a ``.param`` file, or a model.
    how : Preprocessing, optional
        By default that of the bundled model, or ImageNet's for other models.
    labels : str or Path, optional
        A file with one name per line; see :func:`load_labels`.

    Examples
    --------
    >>> from kuiper.vision import Classifier, load_image                  # doctest: +SKIP
    >>> Classifier("mobilenet_v2")([load_image("cat.jpg")], 1)            # doctest: +SKIP
    [[Guess(index=285, label='Egyptian cat', probability=0.7239)]]
    """

    def __init__(
        self,
        model: str | Path | kuiper.Model = "mobilenet_v2",
        how: Preprocessing | None = None,
        labels: str | Path | None = None,
    ) -> None:
        self.model = load_network(model, "an image classification model", one_output=True)
        how = PRESETS[_PRESET_OF.get(str(model), "imagenet")] if how is None else how
        self.how = how if how.size else replace(how, size=input_size(self.model))
        self._labels_file = labels
        self._labels: list[str] | None = None

    def __repr__(self) -> str:
        height, width = self.how.size or input_size(self.model)
        filter = f"{self.how.filter}{', cropped' if self.how.crop else ''}"
        return f"<kuiper.vision.Classifier: {height}x{width} pixels, {filter}, of {self.model!r}>"

    def preprocess(self, image: np.ndarray) -> np.ndarray:
        """Return the network's input for one picture; see :func:`preprocess`.

        Parameters
        ----------
        image : numpy.ndarray of uint8, shape (height, width, 3)
            Blue first, of any size.

        Returns
        -------
        numpy.ndarray of float32, shape (3, height, width)
        """
        return preprocess(image, self.how)

    def scores(self, x: np.ndarray) -> np.ndarray:
        """Run the network.

        Parameters
        ----------
        x : numpy.ndarray of float32, shape (n, 3, height, width)

        Returns
        -------
        numpy.ndarray of float32, shape (n, classes)
            Logits or probabilities, as the network returns them.

        Raises
        ------
        ValueError
            If the output is not one row of scores per picture.
        """
        y = self.model(x)
        if y.shape[0] != len(x) or y.size != y.shape[0] * y.shape[1]:
            raise ValueError(
                f"the model's output has shape {y.shape}; a classification model gives one row of "
                f"scores for each of the {len(x)} images"
            )
        return y.reshape(len(x), -1)

    def guesses(self, scores: np.ndarray, count: int = 5) -> list[list[Guess]]:
        """Return the most probable classes of each row of scores.

        Parameters
        ----------
        scores : numpy.ndarray of float, shape (n, classes)
        count : int, default=5
            Number of guesses per row.

        Returns
        -------
        list of list of Guess

        Raises
        ------
        ValueError
            If the number of labels differs from the number of classes.
        """
        if self._labels is None:
            self._labels = load_labels(self._labels_file, scores.shape[1])
        return [best_guesses(row, self._labels, count) for row in probabilities(scores)]

    def __call__(self, images: Any, count: int = 5, *, channels: str = "bgr") -> Any:
        """Classify pictures.

        Parameters
        ----------
        images : path, PIL.Image.Image, numpy.ndarray of uint8, or an iterable of these
            One picture or many, of any sizes; see :func:`as_image`.
        count : int, default=5
            Number of guesses per picture.
        channels : str, default="bgr"
            The order of the channels of arrays, ``"bgr"`` or ``"rgb"``.

        Returns
        -------
        list of list of Guess
            The most probable classes of each picture, the best first; a list of Guess for one
            picture that is not in a list.

        Raises
        ------
        InputError
            If there is no picture, or one is none.
        """
        pictures, single = as_images(images, channels)
        x = np.stack([self.preprocess(image) for image in pictures])
        found = self.guesses(self.scores(x), count)
        return found[0] if single else found


def draw_guesses(image: np.ndarray, guesses: Sequence[Guess]) -> np.ndarray:
    """Return a copy of the picture with the guesses and bars for their probabilities.

    Parameters
    ----------
    image : numpy.ndarray of uint8, shape (height, width, 3)
        Blue first.  Pictures narrower than 320 pixels are enlarged for legible text; if the height
        does not suffice, a black strip is added below.
    guesses : sequence of Guess

    Returns
    -------
    numpy.ndarray of uint8, shape (height, width, 3)
    """
    height, width = image.shape[:2]
    if width < 320:
        factor = min(320 / width, 8)  # limits the height of very narrow pictures
        enlarged = (round(width * factor), max(1, round(height * factor)))
        image = cv2.resize(image, enlarged)
        height, width = image.shape[:2]
    # The font scale, on which all lengths depend: as wide as the picture, but at most 60 % as high.
    lines = 44 * len(guesses) + 32
    size = max(320 / 900, min(width / 900, 0.6 * height / lines))
    line, margin, thickness = round(44 * size), round(16 * size), max(1, round(2 * size))
    below = max(0, 2 * margin + line * len(guesses) - height)
    picture = cv2.copyMakeBorder(image, 0, below, 0, max(0, 320 - width), cv2.BORDER_CONSTANT)
    width = picture.shape[1]
    panel = picture[: 2 * margin + line * len(guesses)]
    np.floor_divide(panel, 3, out=panel)
    white, blue = (255, 255, 255), (160, 110, 30)
    for number, guess in enumerate(guesses):
        top = margin + line * number
        end = margin + round((width - 2 * margin) * guess.probability)
        cv2.rectangle(picture, (margin, top), (end, top + line - margin // 2), blue, cv2.FILLED)
        text, at = f"{guess.probability:.1%}  {guess.label}", (2 * margin, top + line * 5 // 8)
        cv2.putText(
            picture, text, at, cv2.FONT_HERSHEY_SIMPLEX, size, white, thickness, cv2.LINE_AA
        )
    return picture
