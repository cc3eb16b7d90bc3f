"""From a picture to the names of what is on it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

import kuiper
from kuiper.vision._opencv import cv2
from kuiper.vision.images import PRESETS, Preprocessing, input_shape, input_size, preprocess
from kuiper.vision.model_zoo import find_labels, find_model

__all__ = ["Classifier", "Guess", "best_guesses", "draw_guesses", "load_labels", "probabilities"]

# The preset that each bundled model was trained with; other models get the first.
_PRESET_OF = {"mobilenet_v2": "imagenet", "squeezenet": "caffe"}


@dataclass(frozen=True)
class Guess:
    """One class that may be on the picture.

    Attributes
    ----------
    index : int
        Number of the class, from 0.
    label : str
    probability : float
        0 to 1.
    """

    index: int
    label: str
    probability: float


def probabilities(scores: np.ndarray) -> np.ndarray:
    """Return scores (n, classes) as probabilities; softmax only where they are none yet.

    Parameters
    ----------
    scores : numpy.ndarray of float, shape (n, classes)
        Logits, or probabilities, whose rows are not negative and add up to 1.

    Returns
    -------
    numpy.ndarray of float, shape (n, classes)
        Each row adds up to 1.
    """
    if (scores >= 0).all() and np.allclose(scores.sum(axis=1), 1, atol=1e-3):
        return scores
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def best_guesses(row: np.ndarray, labels: Sequence[str], count: int) -> list[Guess]:
    """Return the `count` most probable classes, the best first.

    Parameters
    ----------
    row : numpy.ndarray of float, shape (classes,)
        Probabilities.
    labels : sequence of str
        A name for each class.
    count : int
        How many to return at most.

    Returns
    -------
    list of Guess
    """
    order = np.argsort(-row, kind="stable")[:count]
    return [Guess(int(i), labels[i], float(row[i])) for i in order]


def load_labels(path: str | Path | None, n_classes: int) -> list[str]:
    """Return the classes' names: a file's lines, ImageNet's or COCO's where they fit, or numbers.

    Parameters
    ----------
    path : str, Path or None
        A text file in UTF-8, one name a line.
    n_classes : int

    Returns
    -------
    list of str
        As many as there are classes.

    Raises
    ------
    ValueError
        If the file has another number of lines than there are classes.
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


def shapes(tensors: Sequence[Any]) -> str:
    """List the shapes of a model's inputs or outputs."""
    return ", ".join(str(tensor.shape) for tensor in tensors)


class Classifier:
    """A network that says what is on a picture.

    Parameters
    ----------
    model : str, Path or kuiper.Model
        The name of a bundled model, a ``.param`` file, or a model.
    how : Preprocessing, optional
        By default that of the bundled model, else ImageNet's.
    labels : str or Path, optional
        A file with a name a line; see :func:`load_labels`.

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
        name = str(model)
        if not isinstance(model, kuiper.Model):
            model = kuiper.load(find_model(name))
        if len(model.inputs) != 1 or len(input_shape(model)) != 4 or len(model.outputs) != 1:
            raise ValueError(
                f"{name}: not an image classification model: inputs {shapes(model.inputs)}, "
                f"outputs {shapes(model.outputs)}, expected one input (batch, 3, height, width) "
                "and one output"
            )
        self.model = model
        how = PRESETS[_PRESET_OF.get(name, "imagenet")] if how is None else how
        self.how = how if how.size else replace(how, size=input_size(model))
        self._labels_file = labels
        self._labels: list[str] | None = None

    def preprocess(self, image: np.ndarray) -> np.ndarray:
        """Return the network's input for one picture, (3, height, width).

        Parameters
        ----------
        image : numpy.ndarray of uint8, shape (height, width, 3)
            Blue first, of any size.

        Returns
        -------
        numpy.ndarray of float32, shape (3, height, width)

        Raises
        ------
        ValueError
            If the picture is smaller than the cut that `how` wants.
        """
        return preprocess(image, self.how)

    def scores(self, x: np.ndarray) -> np.ndarray:
        """Run the network on x (n, 3, height, width); return scores (n, classes).

        Parameters
        ----------
        x : numpy.ndarray of float32, shape (n, 3, height, width)

        Returns
        -------
        numpy.ndarray of float32, shape (n, classes)
            What the network gives: logits or probabilities.

        Raises
        ------
        ValueError
            If the output is not one row of scores for each picture.
        """
        y = self.model(x)
        if y.shape[0] != len(x) or y.size != y.shape[0] * y.shape[1]:
            raise ValueError(
                f"the model's output has shape {y.shape}; a classification model gives one row of "
                f"scores for each of the {len(x)} images"
            )
        return y.reshape(len(x), -1)

    def guesses(self, scores: np.ndarray, count: int = 5) -> list[list[Guess]]:
        """Return the best classes for each row of scores.

        Parameters
        ----------
        scores : numpy.ndarray of float, shape (n, classes)
        count : int, default=5
            How many for each row.

        Returns
        -------
        list of list of Guess

        Raises
        ------
        ValueError
            If the file of labels has another number of lines than there are classes.
        """
        if self._labels is None:
            self._labels = load_labels(self._labels_file, scores.shape[1])
        return [best_guesses(row, self._labels, count) for row in probabilities(scores)]

    def __call__(self, images: Sequence[np.ndarray], count: int = 5) -> list[list[Guess]]:
        """Return the best guesses for each picture.

        Parameters
        ----------
        images : sequence of numpy.ndarray of uint8, shape (height, width, 3)
            Blue first; their sizes may differ.
        count : int, default=5
            How many guesses for each.

        Returns
        -------
        list of list of Guess
            For each picture the most probable classes, the best first.
        """
        x = np.stack([self.preprocess(image) for image in images])
        return self.guesses(self.scores(x), count)


def draw_guesses(image: np.ndarray, guesses: Sequence[Guess]) -> np.ndarray:
    """Return a copy of the picture with the guesses on it, their probabilities as bars.

    Parameters
    ----------
    image : numpy.ndarray of uint8, shape (height, width, 3)
        Blue first; one narrower than 320 pixels is enlarged, so that the text can be read, and one
        that is too low for it gets a black strip below.
    guesses : sequence of Guess

    Returns
    -------
    numpy.ndarray of uint8, shape (height, width, 3)
    """
    height, width = image.shape[:2]
    if width < 320:
        factor = min(320 / width, 8)  # a line of pixels would become a tower
        enlarged = (round(width * factor), max(1, round(height * factor)))
        image = cv2.resize(image, enlarged)
        height, width = image.shape[:2]
    # The letters' size; everything else follows it.  They take the width, where that leaves some
    # of the picture to see.
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
