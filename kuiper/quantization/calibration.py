"""Run a model on calibration data and observe its tensors."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from kuiper.errors import InputError, KuiperError
from kuiper.ir import Graph, Operand
from kuiper.ir.view import TensorSpec
from kuiper.model import Model
from kuiper.passes import restore_exported, unfreeze_batch
from kuiper.passes.optimize.eliminate import eliminate_dead, eliminate_identity
from kuiper.passes.optimize.fold_batch_norm import fold_batch_norm
from kuiper.passes.optimize.fuse_pad import fuse_pad
from kuiper.passes.restore.split_encoder_layer import split_encoder_layer
from kuiper.planning.infer import infer_known
from kuiper.quantization.attention import split_attention
from kuiper.quantization.observers import Observer

if TYPE_CHECKING:
    from kuiper.quantization.smoothing import Rows

__all__ = ["Progress", "Samples", "observe", "prepared", "sqnr"]

# Of intermediate tensors that one run returns.
TRACED_BYTES = 1 << 28
# Of calibration inputs that are kept for the corrections after the first pass.
KEPT_BYTES = 1 << 28
# Inputs that are read before the pass over all of them.
HEAD = 4

Progress = Callable[[Iterable[Any], "int | None", str], Iterator[Any]]


class Samples:
    """The calibration data: the inputs of runs, checked.

    Parameters
    ----------
    model : Model
    data : iterable
        Of inputs as a call takes them.
    keep : int
        How many of the first ones are kept for further passes.

    Attributes
    ----------
    kept : list of list of numpy.ndarray
        Those of them that have been read.
    head : list of list of numpy.ndarray
        The first ones, at least one.
    total : int or None
        How many there are, if that is known.
    """

    def __init__(self, model: Model, data: Iterable[Any], keep: int) -> None:
        self.model = model
        self.kept: list[list[np.ndarray]] = []
        self._keep = keep
        self._bytes = 0
        self.total = len(data) if isinstance(data, Sized) else None
        self._iterator = self._checked(data)
        self.head = list(islice(self._iterator, HEAD))
        if not self.head:
            raise InputError("calibration is empty, expected at least one input of the model")

    @property
    def shapes(self) -> list[TensorSpec]:
        """Shapes and dtypes of the first inputs."""
        return [TensorSpec(array.shape, array.dtype) for array in self.head[0]]

    def __iter__(self) -> Iterator[list[np.ndarray]]:
        """Yield all inputs, once."""
        yield from self.head
        yield from self._iterator

    def _checked(self, data: Any) -> Iterator[list[np.ndarray]]:
        model = self.model
        names = ", ".join(f"'{info.name}'" for info in model.inputs)
        if isinstance(data, np.ndarray | str | bytes | Mapping) or not hasattr(data, "__iter__"):
            raise InputError(
                f"calibration is {type(data).__name__}, expected an iterable of inputs of the "
                f"model ({names}), such as a list of arrays with a batch axis"
            )
        for number, sample in enumerate(data):
            try:
                given = sample if isinstance(sample, tuple | list) else (sample,)
                arrays = model._checker.check(given)
            except InputError as error:
                raise InputError(f"calibration input {number}: {error}") from None
            for info, array in zip(model.inputs, arrays, strict=True):
                if array.dtype.kind == "f" and not np.isfinite(array).all():
                    raise InputError(
                        f"calibration input {number}: '{info.name}' contains an infinity or NaN"
                    )
            size = sum(array.nbytes for array in arrays)
            if len(self.kept) < self._keep and self._bytes + size <= KEPT_BYTES:
                self._bytes += size
                self.kept.append([array.copy() for array in arrays])
            yield arrays


def prepared(model: Model, shapes: Sequence[TensorSpec]) -> tuple[Graph, dict[Operand, Any]]:
    """Return a copy of a model's graph and its specs.

    Batch normalisation and padding are folded, attention and encoder layers are split.

    Parameters
    ----------
    model : Model
    shapes : sequence of TensorSpec
        Of its inputs.
    """
    inferred = model.graph.copy()
    restore_exported(inferred)
    unfreeze_batch(inferred, [s.shape for s in shapes], lambda *given: infer_known(*given)[0])
    found, waiting = infer_known(inferred, dict(zip(inferred.inputs, shapes, strict=True)))
    graph = model.graph.copy()
    specs = {
        graph.operand(operand.name): spec
        for operand, spec in found.items()
        if graph.has_operand(operand.name)
    }
    known = all(operand in specs for operand in graph.operands)
    if not waiting and known:
        eliminate_identity(graph, specs)
        fuse_pad(graph, specs)
        fold_batch_norm(graph, specs)
        split_encoder_layer(graph, specs, masked=False)
        split_attention(graph, specs)
        eliminate_dead(graph, specs)
    return graph, specs


def _trace_parts(
    model: Model, arrays: Sequence[np.ndarray], names: Sequence[str], bytes_of: Callable[[str], int]
) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the values of operands, in runs that return a limited number of bytes.

    Parameters
    ----------
    model : Model
    arrays : sequence of numpy.ndarray
    names : sequence of str
        Of operands, each one tensor.
    bytes_of : callable
        The name of an operand -> its size.
    """
    part: list[str] = []
    size = 0
    for name in [*names, None]:
        more = 0 if name is None else bytes_of(name)
        if part and (name is None or size + more > TRACED_BYTES):
            yield from model.trace(tuple(arrays), part).items()
            part, size = [], 0
        if name is not None:
            part.append(name)
            size += more


def observe(
    model: Model,
    samples: Iterable[Sequence[np.ndarray]],
    observers: Mapping[str, Observer | Rows],
    sizes: Callable[[str], int],
    progress: Progress,
) -> None:
    """Run calibration data and let observers see tensors.

    Parameters
    ----------
    model : Model
    samples : Samples or sequence
        Inputs of the model.
    observers : mapping of str to (Observer or Rows)
        By the name of the operand.
    sizes : callable
        The name of an operand -> its bytes.
    progress : callable
        ``progress(items, total, label)`` yields the items.

    Raises
    ------
    InputError
        If the model does not take an input, or a tensor contains an infinity or NaN.
    """
    total = samples.total if isinstance(samples, Samples) else None
    for number, arrays in enumerate(progress(samples, total, "calibration")):
        try:
            for name, values in _trace_parts(model, arrays, list(observers), sizes):
                try:
                    observers[name].add(values)
                except ValueError as error:
                    producer = model.graph.operand(name).required_producer
                    raise InputError(
                        f"calibration input {number}: '{name}', the result of {producer.label}, "
                        f"contains {error}, which bytes cannot represent"
                    ) from None
        except InputError:
            raise
        except KuiperError as error:
            raise type(error)(f"calibration input {number}: {error}") from None


def sqnr(signal: float, noise: float) -> float:
    """Return a ratio of sums of squares in dB."""
    if not noise:
        return math.inf
    return 10 * math.log10(signal / noise) if signal else -math.inf
