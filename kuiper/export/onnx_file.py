"""Write the model of an ONNX file as PNNX files."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from kuiper.errors import InputError
from kuiper.loading import load_graph, save
from kuiper.onnx import end_names
from kuiper.planning.names import INPUT, OUTPUT, tensors_at, write_names

__all__ = ["convert_onnx"]


def convert_onnx(
    source: str | os.PathLike[str],
    param: str | os.PathLike[str],
    shapes: Sequence[Sequence[int]] = (),
    shapes2: Sequence[Sequence[int]] = (),
    dtypes: Sequence[str] = (),
    *,
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
) -> Path:
    """Write `param` and the ``.bin`` beside it; they give the same bits as the ONNX file.

    Parameters
    ----------
    source : str or os.PathLike
        The ONNX file.
    param : str or os.PathLike
        File to write, ``*.param``.
    shapes, shapes2 : sequence of shapes
        Shapes of all inputs in order, which fix extents that the file leaves open; those that
        differ in `shapes2` stay open.  Without them the extents are those of the file.
    dtypes : sequence of str
        Element types of the inputs as pnnx names them; others than ``"f32"`` must be the file's.
    input_names, output_names : sequence of str, optional
        Names to write into `param` instead of those of the ONNX file.

    Returns
    -------
    Path
        `param`.

    Raises
    ------
    InputError
        If the shapes, types or names do not fit those of the file.
    KuiperError
        If kuiper cannot read the file, as :func:`kuiper.load_graph` describes.
    """
    target = Path(param)
    if target.suffix != ".param":
        raise InputError(f"{param}: the name must end in .param; the weights go to .bin beside it")
    wanted = None
    if shapes or shapes2:
        names, _ = end_names(source)
        for given in (shapes, shapes2 or shapes):
            if len(given) != len(names):
                raise InputError(
                    f"{source}: got {len(given)} shapes, expected {len(names)}, one per input: "
                    f"{', '.join(names) or '(none)'}"
                )
        wanted = {
            name: _open(name, shape, shape2)
            for name, shape, shape2 in zip(names, shapes, shapes2 or shapes, strict=True)
        }
    graph = load_graph(source, shapes=wanted)
    tensors = [tensor for _, found in tensors_at(graph, INPUT) for tensor in found]
    for tensor, dtype in zip(tensors, dtypes, strict=False):
        if dtype not in ("f32", tensor.dtype):
            raise InputError(
                f"{source}: --shape names the type {dtype}, but an input has {tensor.dtype}, which "
                "a conversion cannot change"
            )
    for end, given_names in ((INPUT, input_names), (OUTPUT, output_names)):
        if given_names is not None:
            write_names(graph, end, given_names)
    target.parent.mkdir(parents=True, exist_ok=True)
    save(graph, target)
    return target


def _open(name: str, shape: Sequence[int], shape2: Sequence[int]) -> tuple[int | None, ...]:
    """Return a shape whose extents are open where two shapes differ."""
    if len(shape) != len(shape2):
        raise InputError(
            f"the second shape of input '{name}' is {tuple(shape2)}, expected rank {len(shape)} as "
            f"in {tuple(shape)}"
        )
    return tuple(n if n == n2 else None for n, n2 in zip(shape, shape2, strict=True))
