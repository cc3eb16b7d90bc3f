"""Which products compute with bytes, and which tensors are stored in bytes for them.

A tensor that a quantized product reads is stored in bytes.  So are tensors before it, if that keeps
a whole chain in bytes without another rounding than the one at its end: inputs of concatenations,
of max pooling and of operators that only move elements, which then share scale and zero point with
their outputs; and the summands of residual sums, which are added in the epilogue of a product.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Any

import numpy as np

from kuiper.errors import InputError
from kuiper.ir import Graph, Operand, Operator
from kuiper.ir.view import TensorSpec
from kuiper.ops import record_or_none
from kuiper.ops.core.quantization import CHOICES, JOINS, MAX_POOLS, MOVES, RESIZES
from kuiper.ops.product.quantized import MAX_TERMS
from kuiper.passes.optimize.match import is_float32, only_reader

__all__ = ["PRODUCTS", "Link", "Selection", "matching", "products_of", "select"]

PRODUCTS = {"nn.Conv2d": "nn.quantized.Conv2d", "nn.Linear": "nn.quantized.Linear"}
FLOATS = ("f32", "f16", "bf16")
# Smaller layers on single pixels or rows take no time worth a conversion of their input.
MIN_ELEMENTS = 4096


class Link:
    """An input of a concatenation that other operators read too.

    It shares the scale of the concatenation if that is about its own, otherwise its bytes are
    rescaled.

    Attributes
    ----------
    operand : Operand
    reader : Operator
        The concatenation.
    """

    __slots__ = "operand", "reader"

    def __init__(self, operand: Operand, reader: Operator) -> None:
        self.operand = operand
        self.reader = reader


class Selection:
    """What of a graph is to be quantized.

    Attributes
    ----------
    products : list of Operator
        In topological order.
    tensors : list of Operand
        The tensors that are stored in bytes.
    links : list of Link
    """

    def __init__(self, products: list[Operator]) -> None:
        self.products = products
        self.links: list[Link] = []
        self._parents: dict[Operand, Operand] = {}

    @property
    def tensors(self) -> list[Operand]:
        """The tensors that are stored in bytes."""
        return list(self._parents)

    def __contains__(self, operand: Operand) -> bool:
        return operand in self._parents

    def add(self, operand: Operand) -> None:
        """Store a tensor in bytes."""
        self._parents.setdefault(operand, operand)

    def root(self, operand: Operand) -> Operand:
        """Return the tensor that stands for all that share a scale with `operand`."""
        while (parent := self._parents[operand]) is not operand:
            self._parents[operand] = operand = self._parents[parent]
        return operand

    def join(self, a: Operand, b: Operand) -> None:
        """Let two tensors share a scale."""
        self._parents[self.root(a)] = self.root(b)

    def observed(self, operand: Operand) -> bool:
        """Tell whether the range of a tensor must be measured: others follow from their source."""
        producer = operand.required_producer
        return not (
            _moves(producer)
            and all(source in self for source in _moved(producer))
            and all(self.root(source) is self.root(operand) for source in _moved(producer))
        )


def products_of(graph: Graph, specs: dict[Operand, Any]) -> list[Operator]:
    """Return the products of a graph that can be quantized, in topological order.

    Parameters
    ----------
    graph : Graph
    specs : dict of Operand to (TensorSpec or StaticValue)
        Operators on operands without an entry stay float.
    """
    return [op for op in graph.topological_order() if is_product(op, specs)]


def select(graph: Graph, specs: dict[Operand, Any], kept: Collection[str] = ()) -> Selection:
    """Return the products of a graph to quantize, and the tensors to store in bytes for them.

    Parameters
    ----------
    graph : Graph
    specs : dict of Operand to (TensorSpec or StaticValue)
    kept : collection of str
        Names of products to leave.
    """
    selection = Selection([op for op in products_of(graph, specs) if op.name not in kept])
    position = {op: number for number, op in enumerate(graph.topological_order())}
    search = _Search(selection, specs, position)
    for op in selection.products:
        search.store(op.inputs[0])
    search.finish()
    return selection


def matching(operators: Sequence[Operator], keep: Iterable[str]) -> set[str]:
    """Return the names of the operators that patterns match.

    Parameters
    ----------
    operators : sequence of Operator
        Those that could be quantized.
    keep : iterable of str
        Names; ``*``, ``?`` and ``[abc]`` are wildcards.

    Raises
    ------
    InputError
        If `keep` is a text, or one pattern matches none.
    """
    if isinstance(keep, str):
        raise InputError(f"keep is {keep!r}, expected a list of names")
    found: set[str] = set()
    for pattern in keep:
        matched = {op.name for op in operators if fnmatchcase(op.name, pattern)}
        if not matched:
            names = ", ".join(f"'{op.name}'" for op in operators[:5])
            raise InputError(
                f"keep={pattern!r} matches no layer that can be quantized; they are "
                f"{names or 'none'}{', ...' if len(operators) > 5 else ''}"
            )
        found |= matched
    return found


def is_product(op: Operator, specs: dict[Operand, Any]) -> bool:
    """Tell whether an operator is a product with constant weights that bytes can replace."""
    weight = op.attributes.get("weight")
    if op.type not in PRODUCTS or weight is None or weight.dtype not in FLOATS:
        return False
    source, result = (specs.get(o) for o in (op.inputs[0], op.outputs[0]))
    if not (isinstance(source, TensorSpec) and isinstance(result, TensorSpec)):
        return False
    if len(op.inputs) != 1 or not source.dtype == result.dtype == np.float32:
        return False
    if not 0 < math.prod(weight.shape[1:]) <= MAX_TERMS:
        return False
    if op.type == "nn.Linear":
        return weight.size >= MIN_ELEMENTS
    if source.rank != 4 or op.params.get("padding_mode", "zeros") != "zeros":
        return False
    return weight.size >= MIN_ELEMENTS * 16 or math.prod(result.shape[2:]) > 1


def _moves(op: Operator) -> bool:
    """Tell whether the elements of an operator's outputs are elements of its inputs."""
    if op.type in RESIZES:
        return op.params.get("mode", "nearest") == "nearest"
    if op.type in MAX_POOLS:
        return len(op.outputs) == 1
    return op.type in MOVES or op.type in JOINS


def _moved(op: Operator) -> list[Operand]:
    """Return the inputs of an operator whose elements it moves."""
    if op.type in JOINS:
        keys = zip(op.inputs, op.input_keys, strict=True)
        return list(dict.fromkeys(o for o, key in keys if key in (None, "tensors")))
    return [op.inputs[0]]


class _Search:
    """The search for tensors to store in bytes, from the products to the inputs of the graph."""

    def __init__(
        self, selection: Selection, specs: dict[Operand, Any], position: dict[Operator, int]
    ) -> None:
        self.selection = selection
        self.specs = specs
        self.position = position
        self.products = set(selection.products)
        self.pending: list[Operand] = []

    def store(self, operand: Operand) -> None:
        if operand not in self.selection:
            self.selection.add(operand)
            self.pending.append(operand)

    def finish(self) -> None:
        while self.pending:
            operand = self.pending.pop()
            op = operand.required_producer
            if _moves(op):
                self.visit_move(op, operand)
            elif self.is_elementwise(op):
                self.visit_elementwise(op)
        self.selection.links = [link for link in self.selection.links if self.is_loose(link)]

    def visit_move(self, op: Operator, result: Operand) -> None:
        sources = _moved(op)
        if not all(is_float32(source, self.specs) for source in sources):
            return
        joins = op.type in JOINS
        if op.type in CHOICES and not self.is_chosen_from(op.inputs[0]):
            return
        for source in sources:
            if not (joins or source in self.selection or self.is_only_moved(source)):
                continue
            self.store(source)
            if joins and not self.is_only_moved(source):
                self.selection.links.append(Link(source, op))
            else:
                self.selection.join(source, result)

    def is_only_moved(self, operand: Operand) -> bool:
        """Tell whether no reader computes with the elements of a tensor."""
        return all(_moves(reader) for reader in operand.consumers)

    def is_chosen_from(self, operand: Operand) -> bool:
        """Tell whether a tensor of which an operator chooses elements shall be bytes for it.

        To store the chosen elements alone is less work if the others are not needed, and their
        range may be a smaller one.
        """
        if operand in self.selection:
            return True
        results = [result for reader in operand.consumers for result in reader.outputs]
        *parts, whole = (self.shape_of(operand) for operand in (*results, operand))
        return whole is not None and math.prod(whole) <= sum(
            math.prod(part) for part in parts if part is not None
        )

    def is_loose(self, link: Link) -> bool:
        selection = self.selection
        return selection.root(link.operand) is not selection.root(link.reader.outputs[0])

    def is_elementwise(self, op: Operator) -> bool:
        """Tell whether an operator computes each element of a tensor from one element of each."""
        if len(op.outputs) != 1 or not is_float32(op.outputs[0], self.specs):
            return False
        if op.type == "pnnx.Expression":
            return self.shape_of(op.outputs[0]) in map(self.shape_of, op.inputs)
        record = record_or_none(op.type)
        is_norm = op.type == "nn.BatchNorm2d" and len(op.inputs) == 1
        return is_norm or (
            record is not None and record.activation is not None and len(op.inputs) == 1
        )

    def shape_of(self, operand: Operand) -> tuple[int, ...] | None:
        spec = self.specs.get(operand)
        return spec.shape if isinstance(spec, TensorSpec) else None

    def visit_elementwise(self, op: Operator) -> None:
        """Store the tensors that an elementwise operator reads beside the result of a product."""
        shape = self.shape_of(op.outputs[0])
        sources = [o for o in dict.fromkeys(op.inputs) if self.shape_of(o) == shape]
        ends = [source for source in sources if self.ends_product(source)]
        # The sum is part of the later product, as in passes/optimize/fuse_residual.
        hosts = sorted(ends, key=lambda o: self.position[o.required_producer])[-1:]
        for source in sources:
            producer = source.required_producer
            if source in hosts or source in self.selection:
                continue
            is_elementwise = self.is_elementwise(producer)
            if is_elementwise and only_reader(source) is op and source not in ends:
                self.visit_elementwise(producer)
            elif is_elementwise or producer in self.products or _moves(producer):
                self.store(source)

    def ends_product(self, operand: Operand) -> bool:
        """Tell whether a tensor is the result of a product, and of an activation at most."""
        if len(operand.uses) != 1:
            return False
        op = operand.required_producer
        record = record_or_none(op.type)
        if record is not None and record.activation is not None and len(op.inputs) == 1:
            operand = op.inputs[0]
            op = operand.required_producer
        return op in self.products and len(operand.uses) == 1
