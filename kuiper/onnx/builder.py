"""The graph that an ONNX model becomes, operator by operator.

A :class:`Builder` is what the functions of the operators see.  It adds operators to a
:class:`~kuiper.ir.Graph`, infers what is known of their outputs, and writes extents that the file
leaves open as expressions.

Shapes are inferred by the records themselves, for one or two trial shapes of the inputs: an extent
that is equal in both does not depend on those that the file leaves open.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from kuiper.errors import KuiperError, OperatorError, ShapeError
from kuiper.ir import Attribute, Graph, Operand, Operator
from kuiper.ir.dtypes import from_numpy
from kuiper.ir.view import TensorSpec
from kuiper.onnx.values import Known, Ref, Size, merged
from kuiper.ops import record_or_none
from kuiper.ops.core.schema import StaticValue, ValuesNeeded
from kuiper.planning.infer import infer_operator

__all__ = ["Builder", "torch_name"]

# What an extent that depends on data may be; those that are equal for all do not depend on it.
EXTENTS = (2, 0, 1000)
UNSAFE = str.maketrans(dict.fromkeys(" \t\n\r\x0b\x0c\x00=#@$%()[],\\\"'", "_"))


def torch_name(dtype: Any) -> str:
    """Return PyTorch's name of a dtype."""
    return from_numpy(dtype).torch


class Builder:
    """Adds operators to a graph.

    Parameters
    ----------
    graph : Graph
    trials : int
        Number of trial shapes of the inputs.
    limit : int
        Maximum number of operators.

    Attributes
    ----------
    opset : int
        Version of the operators of the node that is translated.
    where : str
        The node in messages.
    outputs : tuple of bool
        Which outputs of the node are used.
    """

    def __init__(self, graph: Graph, trials: int, limit: int) -> None:
        self.graph = graph
        self.limit = limit
        self.opset = 0
        self.where = ""
        self.outputs: tuple[bool, ...] = (True,)
        self.specs: list[dict[Operand, Any]] = [{} for _ in range(trials)]
        # Specs of operands that the values of a run determine, if its computed numbers were 0, and
        # for several extents that depend on data: ranks and dtypes do not depend on them.
        self._guesses: dict[Operand, tuple[Any, ...]] = {}
        self._exact: set[Operand] = set()  # those that do not depend on computed numbers
        self._name = ""
        self._counts: dict[str, int] = {}

    # -- the node -------------------------------------------------------------------------------

    def enter(self, name: str, where: str, opset: int, outputs: tuple[bool, ...]) -> None:
        """Begin a node: its operators are called `name`."""
        self._name = name.translate(UNSAFE) or "_"
        self.where, self.opset, self.outputs = where, opset, outputs

    def wants(self, output: int) -> bool:
        """Tell whether an output of the node is used."""
        return output < len(self.outputs) and self.outputs[output]

    def error(self, text: str) -> OperatorError:
        """Return the exception for arguments that kuiper does not support."""
        return OperatorError(f"{self.where}: {text}")

    # -- values ---------------------------------------------------------------------------------

    def operand(self, value: Any) -> Operand:
        """Return the operand of a tensor; a known array becomes a constant of the graph."""
        if isinstance(value, Ref):
            return value.operand
        if not isinstance(value, Known):
            value = Known(np.asarray(value))
        if value.operand is None:
            if value.is_open:
                value.operand = self._open_tensor(value).operand
            else:
                value.operand = self._constant(value)
        return value.operand

    def ref(self, value: Any) -> Ref:
        """Return a value as a tensor of a run."""
        if isinstance(value, Ref):
            return value
        operand = self.operand(value)
        return Ref(operand, value.dtype, value.shape, (value.shape,) * len(self.specs))

    def attribute(self, value: Known) -> Attribute:
        """Return a known array as a weight."""
        if value.attribute is None:
            try:
                value.attribute = Attribute.from_array(np.asarray(value.array, order="C"))
            except KuiperError:
                raise self.error(f"a tensor has the dtype {value.dtype}, which runs lack") from None
        return value.attribute

    def _constant(self, value: Known) -> Operand:
        data = {"data": self.attribute(value)}
        name, self._name = self._name, f"{self._name}.constant"
        found: Ref = self._add("pnnx.Attribute", [], [], {}, data, 1)[0]
        self._name = name
        return found.operand

    def _open_tensor(self, value: Known) -> Ref:
        """Return a tensor of numbers that follow from the shapes of a run."""
        name = torch_name(value.dtype)
        items = [
            self.emit("aten::scalar_tensor", self.number(item), dtype=name)
            for item in value.array.reshape(-1).tolist()
        ]
        if value.shape:
            found = self.emit("torch.stack", *items, dim=0)
            if value.rank != 1:
                found = self.emit("Tensor.reshape", found, shape=value.shape)
        else:
            found = items[0]
        if found.operand in self._guesses:
            found = self.declared(found, value.dtype, value.shape)
        return found

    def number(self, item: Any) -> Ref:
        """Return a number as the result of an expression."""
        return self._expression(item)

    def numbers(self, value: Any, what: str = "an input") -> list[Any]:
        """Return the elements of a vector: Python numbers, or Sizes for those a run computes."""
        if isinstance(value, Known):
            return list(value.array.reshape(-1).tolist())
        if not isinstance(value, Ref):
            return list(value)
        if value.shape is None or None in value.shape:
            raise self.error(f"{what} has an unknown number of elements, expected a known one")
        if value.shape == ():
            return [Size("value", (value.operand,), None)]
        if value.rank != 1:
            raise self.error(f"{what} has the shape {value.shape}, expected a vector")
        return [
            Size("value", (self.emit("Tensor.select", value, dim=0, index=i).operand,), None)
            for i in range(value.shape[0] or 0)
        ]

    def ints(self, value: Any, what: str) -> list[int]:
        """Return the elements of a vector that the file must determine."""
        if isinstance(value, int):
            return [value]
        if isinstance(value, Ref) or (isinstance(value, Known) and value.is_open):
            raise self.error(f"{what} is computed by the model, expected a constant")
        return [int(item) for item in self.numbers(value)]

    def array(self, value: Any, what: str) -> np.ndarray:
        """Return the elements of an array that the file must determine."""
        if not isinstance(value, Known) or value.is_open:
            raise self.error(f"{what} is computed by the model, expected a constant")
        return value.array

    def rank(self, value: Known | Ref) -> int:
        """Return the number of axes."""
        return value.rank

    def axis(self, axis: int, rank: int) -> int:
        """Return an axis that may count from the end, checked."""
        if not -rank <= axis < max(rank, 1):
            raise self.error(f"axis is {axis}, expected one of {rank} axes")
        return axis + rank if axis < 0 else axis

    def extents(self, value: Known | Ref) -> list[Any]:
        """Return the extents of a tensor: ints and Sizes."""
        return list(value.shape) if isinstance(value, Known) else value.extents()

    # -- operators ------------------------------------------------------------------------------

    def emit(self, type: str, *inputs: Any, n: int = 1, dtype: Any = None, **params: Any) -> Any:
        """Add an operator and return its output, or a tuple of `n`.

        Parameters
        ----------
        type : str
        *inputs : Ref, Known or array-like
            By position.
        n : int
        **params : object
            Literals; a Size or a list that contains one becomes an expression, a Ref an input with
            a keyword, a Known a weight of a module (``nn.``) or such an input.  None is omitted.
        """
        if dtype is not None:
            params["dtype"] = dtype
        operands = [self.operand(value) for value in inputs]
        keys: list[str | None] = [None] * len(operands)
        plain: dict[str, Any] = {}
        attributes: dict[str, Attribute] = {}
        for key, value in params.items():
            if value is None:
                continue
            if isinstance(value, Known) and type.startswith("nn.") and not value.is_open:
                attributes[key] = self.attribute(value)
            elif isinstance(value, Known | Ref):
                operands.append(self.operand(value))
                keys.append(key)
            elif isinstance(value, Size) or (
                isinstance(value, list | tuple) and any(isinstance(v, Size) for v in value)
            ):
                operands.append(self._expression(value).operand)
                keys.append(key)
            else:
                plain[key] = tuple(value) if isinstance(value, list) else value
        results = self._add(type, operands, keys, plain, attributes, n)
        return results[0] if n == 1 else tuple(results)

    def module(
        self,
        type: str,
        inputs: Sequence[Any],
        params: dict[str, Any],
        weights: dict[str, Attribute],
    ) -> Any:
        """Add a layer with weights and return its output."""
        operands = [self.operand(value) for value in inputs]
        keys: list[str | None] = [None] * len(operands)
        return self._add(type, operands, keys, params, weights, 1)[0]

    def call(self, name: str, *arguments: Any) -> Any:
        """Add an elementwise function of tensors and numbers."""
        marks = ",".join(f"@{i}" for i in range(len(arguments)))
        return self.formula(f"{name}({marks})", *arguments)

    def formula(self, text: str, *arguments: Any) -> Any:
        """Add an expression of tensors and numbers; `text` calls them ``@0``, ``@1``, ...."""
        leaves: dict[Any, int] = {}
        parts = []
        rank = max((len(a.shape or ()) for a in arguments if isinstance(a, Ref)), default=0)
        for given in arguments:
            argument = _extent(given, rank)
            literal = _literal(argument, rank)
            if literal is not None:
                parts.append(literal)
            elif isinstance(argument, Size):
                parts.append(argument.text(leaves))
            else:
                operand = self.operand(argument)
                parts.append(f"@{leaves.setdefault(operand, len(leaves))}")
        pieces = text.split("@")
        filled = pieces[0]
        for piece in pieces[1:]:
            digits = len(piece) - len(piece.lstrip("0123456789"))
            filled += parts[int(piece[:digits])] + piece[digits:]
        return self._add(
            "pnnx.Expression", list(leaves), [None] * len(leaves), {"expr": filled}, {}, 1
        )[0]

    def cast(self, value: Any, dtype: Any) -> Any:
        """Return a tensor cast to a dtype."""
        if value.dtype == dtype:
            return value
        return self.emit("Tensor.to", value, dtype=torch_name(dtype), copy=False)

    def _expression(self, value: Any) -> Ref:
        """Return the operand of a number, or of a list of them."""
        leaves: dict[Any, int] = {}
        items = value if isinstance(value, list | tuple) else [value]
        texts = [v.text(leaves) if isinstance(v, Size) else repr(v) for v in items]
        is_list = isinstance(value, list | tuple)
        text = f"[{','.join(texts)}]" if is_list else texts[0]
        result: Ref = self._add(
            "pnnx.Expression", list(leaves), [None] * len(leaves), {"expr": text}, {}, 1
        )[0]
        is_computed = any(isinstance(v, Size) and v.is_computed for v in items)
        if is_computed or not self._is_exact(result.operand):
            self._exact.discard(result.operand)
            numbers = [0 if isinstance(v, Size) else v for v in items]
            guess = StaticValue(numbers if is_list else numbers[0])
            self._guesses[result.operand] = (guess,) * len(EXTENTS)
        return result

    def declared(self, value: Ref, dtype: Any, shape: Sequence[int | None]) -> Ref:
        """Return a tensor whose shape depends on data, with the dtype and the shape that it has."""
        if value.shape is not None and None not in value.shape:
            return value
        self._guesses[value.operand] = tuple(
            TensorSpec([guess if n is None else n for n in shape], np.dtype(dtype))
            for guess in EXTENTS
        )
        self._exact.add(value.operand)
        return Ref(value.operand, dtype, tuple(shape))

    def _unique(self) -> str:
        """Return a name for an operator of the node."""
        while True:
            count = self._counts.get(self._name, 0)
            self._counts[self._name] = count + 1
            name = f"{self._name}.{count}" if count else self._name
            if not self.graph.has_operator(name) and not self.graph.has_operand(name):
                return name

    def _add(
        self,
        type: str,
        inputs: Sequence[Operand],
        keys: Sequence[str | None],
        params: dict[str, Any],
        attributes: dict[str, Attribute],
        n: int,
    ) -> list[Ref]:
        if len(self.graph) >= self.limit:
            raise self.error(f"the graph has more than {self.limit} operators")
        name = self._unique()
        op = Operator(type, name)
        op.params, op.attributes, op.location = params, attributes, self.where
        names = [name] if n == 1 else [f"{name}.out{i}" for i in range(n)]
        self.graph.add_parsed(
            op, [operand.name for operand in inputs], keys, dict.fromkeys(names, (None, None))
        )
        found = [self._infer(op, specs) for specs in self.specs]
        if None in found:
            self._guess(op)
            return [self._guessed(operand) for operand in op.outputs]
        return [
            self._result(operand, [outputs[i] for outputs in found if outputs])
            for i, operand in enumerate(op.outputs)
        ]

    def _infer(self, op: Operator, specs: dict[Operand, Any]) -> list[Any] | None:
        """Return the specs of the outputs for one trial shape, None if they are unknown."""
        if not all(operand in specs for operand in op.inputs):
            return None
        if record_or_none(op.type) is None:
            return None
        try:
            found = infer_operator(op, specs)
        except ValuesNeeded:
            return None
        except ShapeError:
            if len(self.specs) == 1:
                raise
            return None  # the trial shape may be one that the model does not take
        specs.update(found)
        return list(found.values())

    def _guess(self, op: Operator) -> None:
        """Infer the outputs for extents that depend on data, and for computed numbers that are 0.

        Their ranks and dtypes depend on neither.
        """
        found = self._guess_for(op, 0)
        if not found:
            return
        others: list[dict[Operand, Any]] = []
        if all(self._is_exact(operand) for operand in op.inputs):
            others = [self._guess_for(op, number) for number in range(1, len(EXTENTS))]
        is_exact = bool(others) and all(others)
        for operand, spec in found.items():
            rest = [each[operand] for each in others] if is_exact else [spec] * (len(EXTENTS) - 1)
            self._guesses[operand] = (spec, *rest)
        if is_exact:
            self._exact.update(found)

    def _guess_for(self, op: Operator, number: int) -> dict[Operand, Any]:
        """Return specs of the outputs for one guess, empty if there are none."""
        trial = self.specs[-1 if number == len(EXTENTS) - 1 else 0]
        specs = {
            operand: self._guesses[operand][number] if operand in self._guesses else trial[operand]
            for operand in op.inputs
            if operand in self._guesses or operand in trial
        }
        if len(specs) < len(set(op.inputs)) or record_or_none(op.type) is None:
            return {}
        try:
            return infer_operator(op, specs)
        except KuiperError:
            return {}

    def _is_exact(self, operand: Operand) -> bool:
        """Tell whether the guesses of an operand differ where its extents depend on data."""
        if operand in self._guesses:
            return operand in self._exact
        return all(operand in specs for specs in self.specs)

    def _guessed(self, operand: Operand) -> Ref:
        """Return an output that depends on data or on computed numbers."""
        specs = self._guesses.get(operand, (None,))
        spec = specs[0]
        if isinstance(spec, TensorSpec):
            is_exact = operand in self._exact
            shapes = [each.shape for each in specs if isinstance(each, TensorSpec)]
            shape = merged(shapes) if is_exact else (None,) * len(spec.shape)
            return Ref(operand, spec.dtype, shape)
        if isinstance(spec, StaticValue):
            return Ref(operand, np.int64, ())
        return Ref(operand, np.float32, None)

    def _result(self, operand: Operand, specs: list[Any]) -> Ref:
        """Return an output, of which there are specs for each trial shape."""
        spec = specs[0]
        if not isinstance(spec, TensorSpec):
            return Ref(operand, np.int64, ())
        shapes = tuple(each.shape for each in specs)
        shape = merged(shapes)
        operand.shape = shape or None
        try:
            operand.dtype = from_numpy(spec.dtype).name
        except KeyError:
            operand.dtype = None
        return Ref(operand, spec.dtype, shape, shapes)


def _extent(value: Any, rank: int) -> Any:
    """Return a Size instead of an array of one, if tensors of a rank give the result its shape."""
    is_one = isinstance(value, Known) and value.size == 1 and value.rank <= rank and value.is_open
    return value.array.item() if is_one and value.dtype in (np.int64, np.float32) else value


def _literal(value: Any, rank: int) -> str | None:
    """Return a number as text, if it may stand in an expression with tensors of a rank."""
    if isinstance(value, Known) and value.size == 1 and value.rank <= rank and not value.is_open:
        if value.dtype.kind not in "fi" or (value.dtype.kind == "i" and value.dtype != np.int64):
            return None
        value = value.array.item()
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return repr(value)
