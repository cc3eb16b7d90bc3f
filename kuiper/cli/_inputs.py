"""Models, shapes and arrays that the command line names."""

from __future__ import annotations

import argparse
import io
import runpy
import sys
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

import kuiper
from kuiper.pnnx._messages import recognise

if TYPE_CHECKING:
    from kuiper.vision import Preprocessing

__all__ = [
    "input_shapes",
    "load_graph",
    "load_model",
    "model_title",
    "preprocessing",
    "random_inputs",
    "read_array",
    "read_arrays",
    "read_inputs",
    "run_plugins",
]

ARRAY_SUFFIXES = (".npy", ".npz")


def _model_path(options: argparse.Namespace) -> Path:
    """Return the path of the model; a bare name is that of a bundled model."""
    path = Path(options.model)
    if path.exists() or path.suffix:
        return path
    from kuiper.vision.model_zoo import find_model

    return find_model(options.model)


def run_plugins(options: argparse.Namespace) -> None:
    """Run the Python files that define operators and functions."""
    for plugin in options.plugin:
        runpy.run_path(plugin)


def load_graph(options: argparse.Namespace) -> kuiper.ir.Graph:
    """Load the graph that `options.model` names, after the plugins have run."""
    run_plugins(options)
    return kuiper.load_graph(_model_path(options), options.bin, check_crc=options.check)


def load_model(options: argparse.Namespace) -> kuiper.Model:
    """Load the model that `options.model` names."""
    return kuiper.Model(load_graph(options), optimize=not options.no_optimize)


def input_shapes(
    model: kuiper.Model, wanted: Sequence[tuple[int, ...]] | None, batch: int | None = None
) -> list[tuple[int, ...]]:
    """Return the shape of every input: as wanted, else that of the file with extents filled in.

    Raises
    ------
    kuiper.InputError
        If the number of shapes is wrong or the file gives no shape.
    """
    infos = model.inputs
    if wanted and len(wanted) != len(infos):
        names = ", ".join(f"'{info.name}'" for info in infos)
        raise kuiper.InputError(
            f"--shape was given {len(wanted)} times, the model has {len(infos)} inputs: {names}"
        )
    shapes = []
    for number, info in enumerate(infos):
        if wanted:
            shape = wanted[number]
        elif info.shape is None:
            raise kuiper.InputError(
                f"input '{info.name}': the file does not give its shape; pass --shape"
            )
        else:
            shape = _filled(info.shape)
        if batch is not None and shape:
            shape = (batch, *shape[1:])
        shapes.append(shape)
    return shapes


def _filled(shape: Sequence[int | None]) -> tuple[int, ...]:
    """Fill open extents: 1 for the batch, 224 for height and width, 16 otherwise.

    Most networks reject a height and width of 1, which would not represent their cost either.
    """
    usual = [1] + [16] * (len(shape) - 1)
    if len(shape) >= 4:
        usual[-2:] = [224, 224]
    return tuple(n if k is None else k for k, n in zip(shape, usual, strict=False))


def random_inputs(model: kuiper.Model, shapes: Sequence[tuple[int, ...]]) -> list[np.ndarray]:
    """Return reproducible noise for every input; 0 or 1 for integers."""
    generator = np.random.default_rng(0)
    arrays = []
    for info, shape in zip(model.inputs, shapes, strict=True):
        if info.dtype.kind in "fc":
            arrays.append(generator.standard_normal(shape).astype(info.dtype))
        else:
            arrays.append(generator.integers(0, 2, shape).astype(info.dtype))
    return arrays


def preprocessing(options: argparse.Namespace, base: Preprocessing) -> Preprocessing:
    """Return `base`, or the preset of the options, with the changes of the options."""
    from kuiper.vision import PRESETS

    names = ("size", "crop", "resize", "filter", "antialias", "scale", "mean", "std", "bgr")
    named = {name: getattr(options, name) for name in names}
    changes: dict[str, Any] = {name: value for name, value in named.items() if value is not None}
    how = PRESETS[options.preset] if options.preset else base
    how = replace(how, **{"size": base.size, **changes})
    if how.resize is not None and not how.crop:
        raise ValueError("--resize is the short side before the crop; it needs --crop")
    return how


def read_inputs(
    model: kuiper.Model, paths: Sequence[str], options: argparse.Namespace
) -> list[np.ndarray]:
    """Read the inputs of a model from files.

    The files are one ``.npz`` with the names of the inputs, or one ``.npy`` or picture per input,
    in order; several pictures for a model with one input form a batch.  A path ``-`` is standard
    input, which holds any one of these.  Integers and floats are
    widened to the input's type, and float64 is rounded to float32.
    """
    piped: bytes | None = None
    if "-" in paths:
        if len(paths) > 1:
            raise kuiper.InputError(
                "standard input (-) holds all inputs of a run; pass no other file, or an .npz file "
                "with the names of the inputs on standard input"
            )
        piped = sys.stdin.buffer.read()
        if not piped:
            raise kuiper.InputError("standard input (-) is empty; expected .npz, .npy or a picture")
        paths = [f"<stdin>{_array_suffix(piped)}"]
    if len(paths) == 1 and paths[0].endswith(".npz"):
        arrays = read_arrays(paths[0], piped)
        names = [info.name for info in model.inputs]
        if not arrays.keys() >= set(names):  # files from before the model had names
            names = [operand.name for operand in model.graph.inputs]
        if len(names) == len(arrays) == 1:
            names = list(arrays)
        if not arrays.keys() >= set(names):
            wanted = ", ".join(f"'{info.name}'" for info in model.inputs)
            held = ", ".join(f"'{name}'" for name in arrays) or "nothing"
            raise kuiper.InputError(
                f"{paths[0]}: it holds {held}, expected arrays for the inputs {wanted}"
            )
        return _as_taken(model, [arrays[name] for name in names])
    if all(path.endswith(ARRAY_SUFFIXES) for path in paths):
        return _as_taken(model, [read_array(path, piped) for path in paths])
    from kuiper.vision import PRESETS, load_image, preprocess
    from kuiper.vision.images import input_size

    if len(model.inputs[0].shape or (0,) * 4) != 4:
        raise kuiper.InputError(
            f"{paths[0]}: neither .npy nor .npz, and input '{model.inputs[0].name}' of shape "
            f"{model.inputs[0].shape} takes no pictures"
        )
    base = replace(PRESETS["imagenet"], size=input_size(model))
    how = preprocessing(options, base)
    sources: Sequence[Any] = paths
    if piped is not None:
        stream = io.BytesIO(piped)
        stream.name = "standard input, which holds neither .npz nor .npy"
        sources = [stream]
    pictures = [preprocess(load_image(source), how) for source in sources]
    if len(model.inputs) == 1:
        return [np.stack(pictures)]
    return [picture[None] for picture in pictures]


def _array_suffix(data: bytes) -> str:
    """Return the suffix of numpy's file format that these bytes have; empty for another format."""
    if data.startswith(b"\x93NUMPY"):
        return ".npy"
    return ".npz" if data.startswith(b"PK") else ""


def model_title(options: argparse.Namespace) -> str:
    """Return the file name of the model without its suffixes."""
    name = Path(options.model).name
    return name.removesuffix(".onnx").removesuffix(".param").removesuffix(".pnnx")


def _as_taken(model: kuiper.Model, arrays: list[np.ndarray]) -> list[np.ndarray]:
    """Convert to the types of the inputs where that is safe, or from float64 to float32."""
    if len(arrays) != len(model.inputs):
        return arrays  # the model raises the error
    return [
        array.astype(info.dtype)
        if np.can_cast(array.dtype, info.dtype, "safe")
        or array.dtype.kind == info.dtype.kind == "f"
        else array
        for array, info in zip(arrays, model.inputs, strict=True)
    ]


def read_array(path: str, data: bytes | None = None) -> np.ndarray:
    """Read an ``.npy`` file, or `data` that `path` names; raise InputError if it is none."""
    loaded = _loaded(path, data)
    if isinstance(loaded, dict):
        held = ", ".join(f"'{name}'" for name in loaded) or "nothing"
        raise kuiper.InputError(
            f"{path}: an .npz file, which holds {held}; expected one array (.npy) here"
        )
    return loaded


def read_arrays(path: str, data: bytes | None = None) -> dict[str, np.ndarray]:
    """Read the arrays of an ``.npz`` file by name; raise InputError if it is none."""
    loaded = _loaded(path, data)
    if not isinstance(loaded, dict):
        raise kuiper.InputError(
            f"{path}: one array (.npy); expected an .npz file, as numpy.savez writes it, whose "
            "arrays have names"
        )
    return loaded


def _loaded(path: str, data: bytes | None) -> np.ndarray | dict[str, np.ndarray]:
    """Read a file, or `data` in its stead, with numpy."""

    def opened() -> BinaryIO:
        return open(path, "rb") if data is None else io.BytesIO(data)

    try:
        with opened() as file:  # np.load would leak the file if the archive is damaged
            loaded = np.load(file)
            return loaded if isinstance(loaded, np.ndarray) else dict(loaded)
    except (ValueError, EOFError, zipfile.BadZipFile, zlib.error, KeyError) as error:
        with opened() as file:
            head = file.read(256)
        if not head:
            what = "it is empty"
        elif head.startswith((b"\x93NUMPY", b"PK")):
            what = f"{error}"  # damaged, or an array of Python objects
        else:
            what = recognise(head) or f"it begins with the bytes {head[:8]!r}"
        raise kuiper.InputError(f"{path}: not a .npy or .npz file of numbers: {what}") from error
