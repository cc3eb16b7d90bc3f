"""Ready-made stages on pictures: class names, boxes of objects, masks."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import kuiper
from kuiper.batch.fields import Type
from kuiper.batch.frames import Column
from kuiper.batch.predictor import check_errors
from kuiper.batch.stage import Stage, at_least_1, filled
from kuiper.errors import InputError

if TYPE_CHECKING:
    from kuiper.vision import Preprocessing

__all__ = ["Classify", "Detect", "PictureStage", "Segment", "decoded"]


class PictureStage(Stage):
    """A network on a column of pictures; the base of Classify, Detect and Segment.

    Parameters
    ----------
    model : str or os.PathLike
        See :class:`Stage`.
    column : str, default="image"
        The pictures: bytes of JPEG, PNG or other files; paths; arrays of uint8 (height, width, 3);
        or structs with the fields ``bytes`` and ``path``, as data sets of Hugging Face have them.
    channels : str, default="rgb"
        The order of the channels of arrays, ``"rgb"`` or ``"bgr"``.
    errors : str, default="column"
        ``"column"`` puts the reason why a picture cannot be read into the column ``error``, whose
        other results are missing in that row; ``"raise"`` raises it.
    keep, batch, threads, plugins, precision
        See :class:`Stage`.
    """

    def __init__(
        self,
        model: str | os.PathLike[str],
        column: str = "image",
        *,
        channels: str = "rgb",
        errors: str = "column",
        keep: Sequence[str] | None = None,
        batch: int | None = None,
        threads: int | None = None,
        plugins: Sequence[str | os.PathLike[str]] = (),
        precision: str | None = None,
    ) -> None:
        import_module("kuiper.vision._opencv")  # raises here, not in every process

        super().__init__(
            model, keep=keep, batch=batch, threads=threads, plugins=plugins, precision=precision
        )
        if not isinstance(column, str):
            raise InputError(f"column is {column!r}, expected the name of a column")
        if channels not in ("rgb", "bgr"):
            raise InputError(f"channels is {channels!r}, expected 'rgb' or 'bgr'")
        self.column = column
        self.channels = channels
        self.errors = check_errors(errors)

    _hint = "column= names that of the pictures"

    def consumes(self) -> tuple[str, ...]:
        """Return the name of the column of pictures."""
        return (self.column,)

    def fields(self) -> dict[str, Type]:
        """Return the types of the columns of results by name; see :mod:`kuiper.batch.fields`."""
        return {**self._fields(), "error": "string"}

    def _fields(self) -> dict[str, Type]:
        raise NotImplementedError

    def _found(self, network: Any, inputs: list[Any]) -> list[dict[str, Any]]:
        """Return the results of preprocessed pictures."""
        raise NotImplementedError

    def _input(self, network: Any, image: np.ndarray) -> Any:
        """Return the preprocessed picture."""
        return network.preprocess(image)

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the results that are arrays."""
        return {}

    def _default_batch(self, columns: Sequence[np.ndarray]) -> int:
        shape = self.network.model.inputs[0].shape or ()
        size = int(np.prod([extent or 224 for extent in shape[1:]]))
        return super()._default_batch([np.empty((1, size), np.bool_)])

    def _run(self, network: Any, columns: list[np.ndarray]) -> dict[str, Column]:
        rows = len(columns[0])
        inputs, errors = decoded(
            columns[0],
            lambda image: self._input(network, image),
            self.errors,
            self.channels,
            self.root,
        )
        found = self._found(network, list(inputs.values())) if inputs else []
        by_row = dict(zip(inputs, found, strict=True))
        shapes = self._shapes()
        columns_of = {
            name: filled(
                type, rows, {row: one[name] for row, one in by_row.items()}, shapes.get(name, ())
            )
            for name, type in self._fields().items()
        }
        return {**columns_of, "error": filled("string", rows, errors)}


def decoded(
    values: np.ndarray,
    convert: Callable[[np.ndarray], Any],
    errors: str,
    channels: str = "rgb",
    root: str = "",
) -> tuple[dict[int, Any], dict[int, str]]:
    """Read and convert pictures.

    Parameters
    ----------
    values : numpy.ndarray
        A column of pictures; see :class:`PictureStage`.
    convert : callable
        A picture as an OpenCV image -> the input of a network.
    errors, channels : str
        See :class:`PictureStage`.
    root : str
        The folder to which paths are relative.

    Returns
    -------
    dict of int to object
        Row -> input, for pictures that can be read.
    dict of int to str
        Row -> reason, for the others.
    """
    inputs: dict[int, Any] = {}
    reasons: dict[int, str] = {}
    for row, value in enumerate(values):
        try:
            inputs[row] = convert(_picture(value, channels, root))
        except InputError as error:  # of another kind than the stage expects, as all rows will be
            raise InputError(f"row {row}: {error}") from None
        except (OSError, ValueError) as error:
            if errors == "raise":
                raise
            reasons[row] = str(error)
    return inputs, reasons


def _picture(value: Any, channels: str, root: str) -> np.ndarray:
    """Return a value of a column of pictures as an OpenCV image."""
    from kuiper.vision import as_image

    if isinstance(value, dict):
        value = value.get("path") if value.get("bytes") is None else value["bytes"]
    # What stands for a missing value in Arrow and numpy, in pandas' text, and in its objects.
    if (
        value is None
        or type(value).__name__ == "NAType"
        or (isinstance(value, float) and np.isnan(value))
    ):
        raise ValueError("there is no picture: the value is missing")
    if isinstance(value, bytes | bytearray | memoryview):
        value = io.BytesIO(value)
        value.name = "the bytes of the picture"  # for messages
    elif isinstance(value, str):
        value = os.path.join(root, value)
    return as_image(value, channels)


class Classify(PictureStage):
    """A classification network: the columns ``index``, ``label`` and ``probability``.

    Parameters
    ----------
    model : str or os.PathLike, default="mobilenet_v2"
        See :class:`Stage`.
    column : str, default="image"
        See :class:`PictureStage`, also for what is not described here.
    topk : int, default=1
        Number of guesses; for more than one, the three columns hold arrays of this length, the best
        first.
    how : kuiper.vision.Preprocessing, optional
        By default that of the bundled model, or ImageNet's for other models.
    labels : str or os.PathLike, optional
        A file with one name per line; see :func:`kuiper.vision.load_labels`.
    channels, errors, keep, batch, threads, plugins, precision
        See :class:`PictureStage` and :class:`Stage`.

    Examples
    --------
    >>> from kuiper.batch import Classify                                 # doctest: +SKIP
    >>> Classify()({"image": ["examples/photos/chelsea.png"]})["label"]   # doctest: +SKIP
    array(['Egyptian cat'], dtype=object)
    """

    def __init__(
        self,
        model: str | os.PathLike[str] = "mobilenet_v2",
        column: str = "image",
        *,
        topk: int = 1,
        how: Preprocessing | None = None,
        labels: str | os.PathLike[str] | None = None,
        channels: str = "rgb",
        errors: str = "column",
        keep: Sequence[str] | None = None,
        batch: int | None = None,
        threads: int | None = None,
        plugins: Sequence[str | os.PathLike[str]] = (),
        precision: str | None = None,
    ) -> None:
        super().__init__(
            model, column, channels=channels, errors=errors, keep=keep, batch=batch,
            threads=threads, plugins=plugins, precision=precision,
        )  # fmt: skip
        self.topk = at_least_1("topk", topk)
        self.how = how
        self.labels = None if labels is None else str(Path(labels).absolute())

    def _options(self) -> dict[str, Any]:
        how = None if self.how is None else asdict(self.how)
        return {"column": self.column, "topk": self.topk, "how": how, "labels": self.labels}

    def _load(self, path: Path) -> tuple[Any, kuiper.Model]:
        from kuiper.vision import Classifier

        # A bundled model is named, since its preprocessing depends on the name.
        network = Classifier(self.model, self.how, self.labels)
        return network, network.model

    def _fields(self) -> dict[str, Type]:
        fields: dict[str, Type] = {"index": "int64", "label": "string", "probability": "float32"}
        return fields if self.topk == 1 else {name: [type] for name, type in fields.items()}

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        if self.topk == 1:
            return {}
        shape = self.network.model.outputs[0].shape or ()
        count = min([self.topk, *(extent for extent in shape[1:2] if extent)])
        return dict.fromkeys(self._fields(), (count,))

    def _found(self, network: Any, inputs: list[Any]) -> list[dict[str, Any]]:
        guesses = network.guesses(network.scores(np.stack(inputs)), self.topk)
        rows = [
            {
                "index": [guess.index for guess in best],
                "label": [guess.label for guess in best],
                "probability": [guess.probability for guess in best],
            }
            for best in guesses
        ]
        if self.topk > 1:
            return rows
        return [{name: values[0] for name, values in row.items()} for row in rows]


class Detect(PictureStage):
    """A detection network: the column ``detections``, a list of objects by descending score.

    Each has the fields ``index`` (of the class), ``label``, ``score`` and ``box``: left, top,
    right, bottom in pixels of the picture.

    Parameters
    ----------
    model : str or os.PathLike, default="nanodet_m"
        See :class:`Stage`.
    column : str, default="image"
        See :class:`PictureStage`, also for what is not described here.
    labels, threshold, iou, decoder, size
        See :class:`kuiper.vision.Detector`.
    channels, errors, keep, batch, threads, plugins, precision
        See :class:`PictureStage` and :class:`Stage`.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] = "nanodet_m",
        column: str = "image",
        *,
        labels: str | os.PathLike[str] | None = None,
        threshold: float | None = None,
        iou: float = 0.5,
        decoder: str | None = None,
        size: tuple[int, int] | None = None,
        channels: str = "rgb",
        errors: str = "column",
        keep: Sequence[str] | None = None,
        batch: int | None = None,
        threads: int | None = None,
        plugins: Sequence[str | os.PathLike[str]] = (),
        precision: str | None = None,
    ) -> None:
        super().__init__(
            model, column, channels=channels, errors=errors, keep=keep, batch=batch,
            threads=threads, plugins=plugins, precision=precision,
        )  # fmt: skip
        self.labels = None if labels is None else str(Path(labels).absolute())
        self.threshold, self.iou, self.decoder, self.size = threshold, iou, decoder, size

    def _options(self) -> dict[str, Any]:
        names = ("column", "labels", "threshold", "iou", "decoder", "size")
        return {name: getattr(self, name) for name in names}

    def _load(self, path: Path) -> tuple[Any, kuiper.Model]:
        from kuiper.vision import Detector

        network = Detector(
            self.model, self.labels, self.threshold, self.iou, self.decoder, self.size
        )
        return network, network.model

    def _fields(self) -> dict[str, Type]:
        one: dict[str, Type] = {
            "index": "int64", "label": "string", "score": "float32", "box": ["float32"],
        }  # fmt: skip
        return {"detections": [one]}

    def _found(self, network: Any, inputs: list[Any]) -> list[dict[str, Any]]:
        x, boxes = np.stack([x for x, _ in inputs]), [where for _, where in inputs]
        return [
            {"detections": [{**vars(d), "box": list(d.box)} for d in found]}
            for found in network.detect(x, boxes)
        ]


class Segment(PictureStage):
    """A segmentation network: the columns ``mask`` and ``foreground``.

    ``mask`` holds the bytes of a grey PNG file of the picture's size, in which 255 is foreground;
    ``foreground`` is its share of the pixels, 0 to 1.

    Parameters
    ----------
    model : str or os.PathLike, default="u2netp"
        See :class:`Stage`.
    column : str, default="image"
        See :class:`PictureStage`, also for what is not described here.
    kind, size
        See :class:`kuiper.vision.Segmenter`.
    channels, errors, keep, batch, threads, plugins, precision
        See :class:`PictureStage` and :class:`Stage`.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] = "u2netp",
        column: str = "image",
        *,
        kind: str | None = None,
        size: tuple[int, int] | None = None,
        channels: str = "rgb",
        errors: str = "column",
        keep: Sequence[str] | None = None,
        batch: int | None = None,
        threads: int | None = None,
        plugins: Sequence[str | os.PathLike[str]] = (),
        precision: str | None = None,
    ) -> None:
        super().__init__(
            model, column, channels=channels, errors=errors, keep=keep, batch=batch,
            threads=threads, plugins=plugins, precision=precision,
        )  # fmt: skip
        self.kind, self.size = kind, size

    def _options(self) -> dict[str, Any]:
        return {"column": self.column, "kind": self.kind, "size": self.size}

    def _load(self, path: Path) -> tuple[Any, kuiper.Model]:
        from kuiper.vision import Segmenter

        network = Segmenter(self.model, self.kind, self.size)
        return network, network.model

    def _fields(self) -> dict[str, Type]:
        return {"mask": "binary", "foreground": "float32"}

    def _input(self, network: Any, image: np.ndarray) -> Any:
        return network.preprocess(image), image.shape[:2]

    def _found(self, network: Any, inputs: list[Any]) -> list[dict[str, Any]]:
        from kuiper.vision._opencv import cv2

        results = []
        sizes = [size for _, size in inputs]
        for mask in network.masks(np.stack([x for x, _ in inputs]), sizes):
            _, png = cv2.imencode(".png", np.rint(mask * 255).astype(np.uint8))
            results.append({"mask": png.tobytes(), "foreground": float((mask > 0.5).mean())})
        return results
