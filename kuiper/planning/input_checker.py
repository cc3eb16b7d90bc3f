"""Checks of the arrays that a caller passes to a model, for inputs and for results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from kuiper.errors import InputError
from kuiper.ir import Graph
from kuiper.ir.dtypes import DTYPES
from kuiper.ir.view import TensorSpec
from kuiper.planning.names import names_at, tensors_at
from kuiper.pnnx._messages import plural

__all__ = ["InputChecker", "TensorInfo", "shape_hint", "shape_text", "tensor_infos"]


class TensorInfo(NamedTuple):
    """Name, shape and dtype of an input or output.

    Attributes
    ----------
    name : str
        That of the exported module or ONNX file if the ``.param`` file keeps it, else that of the
        operand.
    shape : tuple of (int or None), or None
        As traced; None inside marks a dynamic extent, None alone an unknown shape.  Other extents
        work if the graph allows them.
    dtype : numpy.dtype
    """

    name: str
    shape: tuple[int | None, ...] | None
    dtype: np.dtype

    def __repr__(self) -> str:
        return f"TensorInfo(name={self.name!r}, shape={self.shape}, dtype={self.dtype.name})"


def tensor_infos(graph: Graph, end: str) -> tuple[TensorInfo, ...]:
    """Return the descriptions of the tensors at one end, ``pnnx.Input`` or ``pnnx.Output``."""
    operands = [operand for _, tensors in tensors_at(graph, end) for operand in tensors]
    return tuple(
        TensorInfo(
            name,
            operand.shape,
            DTYPES[operand.dtype].value if operand.dtype in DTYPES else np.dtype(np.float32),
        )
        for name, operand in zip(names_at(graph, end), operands, strict=True)
    )


def shape_text(shape: tuple[int | None, ...] | None) -> str:
    """Return a shape as text after a space; nothing for an unknown shape."""
    if shape is None:
        return ""
    return " (" + ", ".join("?" if n is None else str(n) for n in shape) + ")"


class InputChecker:
    """Converts the arguments of a call to arrays that match the inputs of a graph.

    Parameters
    ----------
    graph : Graph

    Attributes
    ----------
    infos : tuple of TensorInfo
        One per input.
    undeclared : tuple of int
        Numbers of the inputs without a dtype, since pnnx declares none for 0-d inputs: float32 is
        assumed, integers and bools are accepted.
    """

    def __init__(self, graph: Graph) -> None:
        operands = graph.inputs
        self.infos = tensor_infos(graph, "pnnx.Input")
        self.undeclared = tuple(n for n, o in enumerate(operands) if o.dtype not in DTYPES)
        self._names = [info.name for info in self.infos]
        # A mapping may also have the names of the operands or operators; the first meaning counts.
        self._aliases: dict[Any, str] = {}
        others = ([o.name for o in operands], [o.required_producer.name for o in operands])
        for names in (self._names, *others):
            for alias, name in zip(names, self._names, strict=True):
                self._aliases.setdefault(alias, name)

    def check(
        self, inputs: Sequence[Any], named: Mapping[str, Any] | None = None
    ) -> list[np.ndarray]:
        """Return the caller's inputs as C-order arrays; copy only those in another order.

        Parameters
        ----------
        inputs : sequence
            Positional arguments of the call: arrays, or one mapping from names to arrays.
        named : mapping of str, optional
            Keyword arguments of the call.

        Raises
        ------
        InputError
            If the number of arrays, or the name, dtype or rank of one is wrong.
        """
        if len(inputs) == 1 and isinstance(inputs[0], Mapping):
            if named and (twice := sorted(named.keys() & inputs[0].keys())):
                raise InputError(f"got {twice} both in the mapping and as keyword arguments")
            inputs = self._by_name({**inputs[0], **(named or {})})
        elif named:
            if len(inputs) > len(self.infos):
                raise self._wrong_number(len(inputs) + len(named))
            first = [(self._names[number], value) for number, value in enumerate(inputs)]
            inputs = self._by_name(named, dict(first))
        if len(inputs) != len(self.infos):
            hint = ""
            if len(inputs) == 1 and _is_list_of_arrays(inputs[0]):
                hint = f"; model(*arrays) passes the arrays of a {type(inputs[0]).__name__}"
            raise self._wrong_number(len(inputs), hint)
        arrays: list[np.ndarray] = []
        for info, value in zip(self.infos, inputs, strict=True):
            array = _as_array(info, value)
            if (
                array.dtype != info.dtype
                and not (len(arrays) in self.undeclared and array.dtype.kind in "biu")
            ) or (info.shape is not None and len(info.shape) != array.ndim):
                raise _input_error(info, array, value)
            if not (array.flags.c_contiguous and array.flags.aligned):
                array = np.require(array, requirements=["C", "A"])
            arrays.append(array)
        return arrays

    def _wrong_number(self, count: int, hint: str = "") -> InputError:
        names = ", ".join(f"'{name}'" for name in self._names) or "none"
        expected = f"expected {len(self.infos)}: {names}{hint}{self._reserved()}"
        return InputError(f"got {plural(count, 'input')}, {expected}")

    def _reserved(self) -> str:
        """Return a hint if a keyword argument cannot pass an input, after a semicolon."""
        taken = [name for name in self._names if name in ("out", "as_dict", "runs")]
        if not taken:
            return ""
        return f"; model({{'{taken[0]}': x, ...}}) passes inputs that have a parameter's name"

    def _by_name(
        self, mapping: Mapping[Any, Any], positional: Mapping[str, Any] | None = None
    ) -> list[Any]:
        names = self._names
        given: dict[str, Any] = dict(positional or {})
        got = [*given, *map(str, mapping)]
        unknown, twice = [], []
        for key, value in mapping.items():
            name = self._aliases.get(key)
            if name is None:
                unknown.append(key)
            elif name in given:
                twice.append(name)
            else:
                given[name] = value
        missing = [name for name in names if name not in given]
        faults = {"missing": missing, "unknown": unknown, "given twice": twice}
        if any(faults.values()):
            raise InputError(
                f"got inputs {sorted(got)}, expected {names}"
                + "".join(f"; {word}: {found}" for word, found in faults.items() if found)
                + self._reserved()
            )
        return [given[name] for name in names]

    def check_outputs(
        self, out: Any, specs: Sequence[Any], arrays: Sequence[np.ndarray]
    ) -> list[np.ndarray]:
        """Return the caller's arrays for results.

        Parameters
        ----------
        out : numpy.ndarray or sequence of numpy.ndarray
        specs : sequence of (TensorSpec or array_like)
            One per result.
        arrays : sequence of numpy.ndarray
            The inputs; no result may share memory with them.

        Raises
        ------
        InputError
            If an array does not fit its result, or shares memory with another one.
        """
        outs = list(out) if isinstance(out, list | tuple) else [out]
        if len(outs) != len(specs):
            raise InputError(f"got {len(outs)} arrays for results, expected {len(specs)}")
        others = {f"input '{name}'": a for name, a in zip(self._names, arrays, strict=True)}
        for number, (array, spec) in enumerate(zip(outs, specs, strict=True)):
            if not isinstance(spec, TensorSpec):
                spec = np.asarray(spec)
            if not _takes(array, spec):
                raise InputError(
                    f"result {number}: got {_described(array)}, expected a writeable C-order array "
                    f"{spec.dtype} {spec.shape}{_how_to_write(array)}"
                )
            for name, other in others.items():
                # All arrays are contiguous, so comparing their bounds is exact.
                if np.may_share_memory(array, other):
                    raise InputError(
                        f"result {number}: its array shares memory with {name}, which is read "
                        "while results are written; pass another array"
                    )
            others[f"result {number}"] = array
        return outs


def _takes(array: Any, spec: Any) -> bool:
    """Tell whether a result can be written to the caller's array."""
    return (
        isinstance(array, np.ndarray)
        and array.shape == spec.shape
        and array.dtype == spec.dtype
        and array.flags.c_contiguous
        and array.flags.writeable
        and array.flags.aligned
    )


def _described(value: Any) -> str:
    """Return what a caller passed in a few words; the values of a large tensor are not printed."""
    if isinstance(value, np.ndarray):
        return f"{value.dtype} {value.shape}"
    kind = type(value).__qualname__
    if type(value).__module__ != "builtins":
        kind = f"{type(value).__module__}.{kind}"
    text = f"{'an' if kind[0] in 'aeiouAEIOU' else 'a'} {kind}"
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    if shape is None or dtype is None:
        return text
    return f"{text} of {str(dtype).removeprefix('torch.')} {tuple(shape)}"


def _how_to_write(value: Any) -> str:
    """Return how to pass another library's tensor for a result, after a semicolon."""
    if isinstance(value, np.ndarray) or not hasattr(value, "shape"):
        return ""
    has_numpy = callable(getattr(value, "numpy", None))
    return f"; pass {'x.numpy()' if has_numpy else 'np.asarray(x)'}, which shares its memory"


def _is_list_of_arrays(value: Any) -> bool:
    return isinstance(value, list | tuple) and any(hasattr(one, "shape") for one in value)


def _innermost(value: Any) -> Any:
    """Return what is in a list of one list of one ... item."""
    while isinstance(value, list | tuple) and len(value) == 1:
        value = value[0]
    return value


def _as_array(info: TensorInfo, value: Any) -> np.ndarray:
    """Return the caller's object as an array, without a copy if it exposes its memory."""
    if isinstance(value, np.ndarray):
        return value
    try:
        # numpy reads __array__, the buffer protocol and lists.  Arrays of libraries without these
        # export their memory through __dlpack__.
        by_dlpack = hasattr(value, "__dlpack__") and not hasattr(value, "__array__")
        return np.from_dlpack(value) if by_dlpack else np.asarray(value)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        if isinstance(value, list | tuple):
            raise InputError(
                f"input '{info.name}': got a {type(value).__name__} that is no array ({error}); "
                f"expected an array of {info.dtype}{shape_text(info.shape)}"
            ) from error
        kind = f"{type(value).__module__}.{type(value).__qualname__}"
        raise InputError(
            f"input '{info.name}': a {kind} that numpy cannot read ({error}); pass an array in the "
            "memory of the CPU, for a tensor of PyTorch x.detach().cpu() (.float() for bfloat16)"
        ) from error


def _input_error(info: TensorInfo, array: np.ndarray, value: Any) -> InputError:
    wanted = f"{info.dtype}{shape_text(info.shape)}"
    if array.dtype == object or (array.dtype.kind in "US" and not isinstance(value, np.ndarray)):
        # numpy wraps any other object
        return InputError(
            f"input '{info.name}': got {_described(value)}, expected an array of {wanted}"
        )
    where = f"input '{info.name}': got {array.dtype} {array.shape}"
    if array.dtype != info.dtype:
        if _is_picture(info, array):
            return InputError(
                f"{where}, expected {wanted}; this is a picture of (height, width, channels), "
                "which kuiper.vision.preprocess converts to the input of a network"
            )
        if _channels_last(info, array.shape):
            return InputError(
                f"{where}, expected {wanted}; these are pictures of (height, width, channels): "
                "np.stack([kuiper.vision.preprocess(p, how) for p in x]) converts them to the "
                "input of a network"
            )
        how = f"x.astype(np.{info.dtype})"
        if not hasattr(value, "astype"):  # a list, or a tensor of PyTorch
            how = f"np.asarray(x, np.{info.dtype})"
        return InputError(f"{where}, expected {wanted}; pass {how}")
    expected = info.shape or ()
    hint = ""
    if array.ndim == len(expected) - 1 and _fits(expected[1:], array.shape):
        hint = "; x[None] adds a batch axis"
    elif _is_picture(info, array):
        hint = "; x.transpose(2, 0, 1)[None] puts the channels first and adds a batch axis"
    elif array.ndim == len(expected) + 1 and _is_list_of_arrays(value):
        kind = type(value).__name__
        hint = f"; this is a {kind} of arrays: pass the array itself, model(x)"
        if len(value) > 1:
            hint = f"; this is a {kind} of arrays: np.concatenate joins them to one batch"
    elif array.ndim > len(expected) and hasattr(_innermost(value), "shape") and value is not array:
        hint = "; the array is in several lists: pass the array itself, model(x)"
    return InputError(f"{where}, expected rank {len(expected)}, like{shape_text(info.shape)}{hint}")


def shape_hint(infos: Sequence[TensorInfo], shapes: Sequence[Sequence[int]]) -> str:
    """Return what the inputs' shapes tell about an error of planning, after a semicolon."""
    for info, shape in zip(infos, shapes, strict=True):
        if _channels_last(info, shape):
            return (
                f"; input '{info.name}' has the channels last, expected{shape_text(info.shape)}: "
                "pass x.transpose(0, 3, 1, 2)"
            )
    for info, shape in zip(infos, shapes, strict=True):
        traced = info.shape or ()
        if len(traced) == len(shape) and not _fits(traced[1:], shape[1:]):
            return (
                f"; input '{info.name}' has shape {tuple(shape)}, the file was exported for"
                f"{shape_text(info.shape)}"
            )
    return ""


def _fits(expected: Sequence[int | None], shape: Sequence[int]) -> bool:
    return all(n is None or n == m for n, m in zip(expected, shape, strict=True))


def _is_picture(info: TensorInfo, array: np.ndarray) -> bool:
    """Tell whether an array is (height, width, channels) and the input is a batch of images."""
    return array.ndim == 3 and _channels_last(info, (1, *array.shape))


def _channels_last(info: TensorInfo, shape: Sequence[int]) -> bool:
    """Tell whether the channels of an image input are the last axis of `shape`, not the second."""
    if info.shape is None or not len(info.shape) == len(shape) == 4:
        return False
    channels = info.shape[1]
    return channels in (1, 3, 4) and shape[1] != channels == shape[3]
