"""From a PyTorch module through torch's ONNX exporter to a model."""

from __future__ import annotations

import importlib.util
import inspect
import re
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kuiper._support import log
from kuiper.errors import InputError, KuiperError, MissingPackageError
from kuiper.export import naming
from kuiper.export.pnnx_tool import checked, evaluating, in_float32, listed_inputs
from kuiper.ir import Attribute, Graph
from kuiper.loading import load_graph
from kuiper.model import Model
from kuiper.planning.names import INPUT, OUTPUT, tensors_at, write_names

__all__ = ["through_onnx"]

INSIDE_BYTES = 1 << 30  # larger weights go to another file: a message has less than 2 GB


def through_onnx(
    module: Any,
    example_inputs: Any,
    example_inputs2: Any = None,
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
) -> Model:
    """Export a module with ``torch.onnx.export`` and load the ONNX model.

    Parameters, result and errors are those of :func:`kuiper.from_torch`.
    """
    try:
        import torch
    except ImportError as error:
        raise MissingPackageError(
            "exporting a module needs PyTorch: pip install torch onnxscript"
        ) from error
    if importlib.util.find_spec("onnxscript") is None:
        raise MissingPackageError(
            "torch's exporter to ONNX needs onnxscript: pip install onnxscript"
        )
    keywords, inputs, inputs2 = checked(module, example_inputs, example_inputs2, torch)
    name = type(module).__name__
    if inputs2 is not None and all(
        x.shape == y.shape for x, y in zip(inputs, inputs2, strict=True)
    ):
        raise InputError(
            f"{name}: the second shapes equal the first ones, so no extent would become variable"
        )
    if inputs2 is not None:
        _, inputs2 = in_float32(module, inputs2, torch)
    module, inputs = in_float32(module, inputs, torch)
    names = list(keywords) or naming.parameter_names(module, len(inputs))
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        path = Path(folder, "model.onnx")
        try:
            with evaluating(module), torch.no_grad(), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                with naming.results_named(module) as found:
                    args, kwargs = _call(inputs, keywords)
                    module(*args, **kwargs)
                _export(module, keywords, inputs, inputs2, path, torch)
        except Exception as error:  # the module's own code may raise anything
            raise KuiperError(
                f"{name}: PyTorch cannot export it to ONNX with inputs "
                f"{listed_inputs(inputs, keywords)}: {type(error).__name__}: "
                + re.sub(r"\x1b\[[0-9;]*m", "", str(error))  # colours
            ) from error
        log.info("kuiper.export", "torch.onnx.export wrote %d bytes", path.stat().st_size)
        graph = load_graph(path)
        _read_weights(graph)  # before the folder is deleted
    for end, wanted, given in ((INPUT, input_names, names), (OUTPUT, output_names, found)):
        count = sum(len(tensors) for _, tensors in tensors_at(graph, end))
        if wanted is not None:
            write_names(graph, end, wanted)
        elif len(given) == count == len(set(given)) and all(given):
            write_names(graph, end, given)
    return Model(graph)


def _call(inputs: tuple[Any, ...], keywords: Sequence[str]) -> tuple[tuple[Any, ...], Any]:
    """Return the positional and the keyword arguments of a call."""
    return ((), dict(zip(keywords, inputs, strict=True))) if keywords else (inputs, {})


def _export(
    module: Any,
    keywords: Sequence[str],
    inputs: tuple[Any, ...],
    inputs2: tuple[Any, ...] | None,
    path: Path,
    torch: Any,
) -> None:
    """Write the ONNX file of a module; extents that differ in the second inputs are open."""
    dynamic: Any = None
    if inputs2 is not None:
        axes = [
            [axis for axis in range(x.dim()) if x.shape[axis] != y.shape[axis]]
            for x, y in zip(inputs, inputs2, strict=True)
        ]
        free = [dict.fromkeys(some, torch.export.Dim.DYNAMIC) for some in axes]
        dynamic = (
            dict(zip(keywords, free, strict=True)) if keywords else _by_parameter(module, free)
        )
        # torch takes an extent of 0 or 1 for a constant.
        if _smallest(inputs, axes) < 2 <= _smallest(inputs2, axes):
            inputs = inputs2
    args, kwargs = _call(inputs, keywords)
    nbytes = sum(part.numel() * part.element_size() for part in module.parameters())
    torch.onnx.export(
        module,
        args,
        str(path),
        kwargs=kwargs,
        dynamo=True,
        verbose=False,
        dynamic_shapes=dynamic,
        external_data=nbytes > INSIDE_BYTES,
    )


def _by_parameter(module: Any, free: list[Any]) -> Any:
    """Return what belongs to each input as torch wants it: ``*args`` are one parameter."""
    parameters = list(inspect.signature(module.forward).parameters.values())
    for number, parameter in enumerate(parameters):
        if parameter.kind is parameter.VAR_POSITIONAL:
            named = dict(zip([p.name for p in parameters[:number]], free, strict=False))
            return named | {parameter.name: tuple(free[number:])}
    return tuple(free)


def _smallest(inputs: Sequence[Any], axes: Sequence[Sequence[int]]) -> int:
    """Return the smallest extent along the given axes of each input."""
    return min(int(x.shape[axis]) for x, some in zip(inputs, axes, strict=True) for axis in some)


def _read_weights(graph: Graph) -> None:
    """Read what is still in a file."""
    for operator in graph:
        for key, old in operator.attributes.items():
            operator.attributes[key] = Attribute(old.shape, old.dtype, old.raw)
