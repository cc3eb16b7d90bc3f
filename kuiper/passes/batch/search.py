"""Follow the batch through a graph.

Shapes alone do not always determine the axis on which a reshape leaves the batch: ``(1,768)`` to
``(1,1,768)`` may put it first or second.  The search guesses the more likely axis and continues.
If an operator then mixes members of the batch, such as a softmax over them or a recurrent layer
that takes them for time steps, it tries the next candidate.  A consistent assignment is correct,
because every operator computes the same function of each member.  A reshape without a consistent
candidate keeps its traced shape, so that planning refuses it and names the operator.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from typing import Any, TypeAlias, cast

from kuiper.ir import Graph, Operand, Operator
from kuiper.ir.view import TensorSpec
from kuiper.ops import find_record, record_or_none
from kuiper.ops.core.batch import (
    BatchAxis,
    Found,
    Lost,
    MembersMeet,
    TracedCall,
    batch_rule,
    reshaped_axes,
)
from kuiper.ops.core.numpy_step import Schemas
from kuiper.ops.core.resolve import resolve
from kuiper.ops.core.schema import attribute_spec
from kuiper.passes.batch.members import (
    counts_members,
    index_source,
    lists_rows_of_members,
    looks_up,
)

__all__ = ["BatchSearch", "Infer"]

Infer: TypeAlias = "Callable[[Graph, dict[Operand, TensorSpec]], dict[Operand, Any]]"
Guesses: TypeAlias = "frozenset[Operator]"

NO_GUESSES: Guesses = frozenset()

# After this many wrong guesses, the reshape that led to them keeps its traced shape.
MAX_CONFLICTS = 400


class BatchSearch:
    """A depth-first search with backtracking over the reshapes that leave a choice.

    Attributes
    ----------
    axes : dict of Operand to (BatchAxis, Lost or None)
        The batch axis of each operand; None for operands that all members share.
    origins : dict of Operand to frozenset of Operator
        The guesses on which an axis depends, for backtracking.
    calls : dict of Operator to TracedCall
        The rewrites that batch rules request.
    counting : set of Operator
        Operators whose first index counts the members.
    listing : set of Operator
        Operators that select rows of all members by indices into the rows of one.
    copying : set of Operator
        Reshapes of which only the first axis is known, which keeps its extent.
    """

    def __init__(
        self,
        graph: Graph,
        specs: dict[Operand, Any],
        starts: dict[Operand, BatchAxis],
        traced: int,
    ) -> None:
        self.graph, self.traced, self.starts = graph, traced, starts
        self.order = graph.topological_order()
        self.position = {op: number for number, op in enumerate(self.order)}
        # A separate object for each operand, so that identity tells them apart.
        self.specs = {
            operand: TensorSpec(spec.shape, spec.dtype, spec.source)
            if isinstance(spec, TensorSpec)
            else spec
            for operand, spec in specs.items()
        }
        self.attributes = {
            op: {key: attribute_spec(a) for key, a in op.attributes.items()} for op in self.order
        }
        self.axes: dict[Operand, Any] = {}
        self.origins: dict[Operand, Guesses] = {}
        self.calls: dict[Operator, TracedCall] = {}
        self.counting: set[Operator] = set()
        self.listing: set[Operator] = set()
        self.copying: set[Operator] = set()
        self._choices: dict[Operator, int] = {}
        self._blamed: dict[Operator, set[Operator]] = {}
        self._frozen: set[Operator] = set()

    # -- backtracking --------------------------------------------------------------------------

    def run(self) -> None:
        """Find a consistent assignment of axes."""
        start, conflicts = 0, 0
        first: Operator | None = None
        while start < len(self.order):
            culprits = self._visit(self.order[start])
            if not culprits:
                start += 1
                continue
            conflicts += 1
            first = first or self._latest(culprits)
            start, solved = self._back_to(culprits)
            if not solved or conflicts > MAX_CONFLICTS:
                # No choice is consistent: freeze the first reshape that led to a conflict.
                self._frozen.add(first)
                self._choices.clear()
                self._blamed.clear()
                start, conflicts, first = 0, 0, None

    def _latest(self, operators: Set[Operator]) -> Operator:
        return max(operators, key=lambda op: self.position[op])

    def _back_to(self, guesses: Guesses) -> tuple[int, bool]:
        """Take the next choice of the latest guess; return where to continue, and success."""
        culprits = set(guesses)
        while culprits:
            latest = self._latest(culprits)
            culprits.discard(latest)
            self._blamed.setdefault(latest, set()).update(culprits)
            for op in [o for o in self._choices if self.position[o] > self.position[latest]]:
                self._choices.pop(op)
                self._blamed.pop(op, None)
            self._choices[latest] = self._choices.get(latest, 0) + 1
            if self._choices[latest] < len(self._candidates(latest)):
                return self.position[latest], True
            self._choices.pop(latest)
            culprits |= self._blamed.pop(latest) | self.origins.get(latest.inputs[0], NO_GUESSES)
        return 0, False

    # -- one operator --------------------------------------------------------------------------

    def _visit(self, op: Operator) -> Guesses:
        """Set the batch axes of an operator's outputs; return the guesses that cause a conflict."""
        self.calls.pop(op, None)
        for kind in (self.copying, self.counting, self.listing):
            kind.discard(op)
        if op.type == "pnnx.Input":
            return self._set(op, [self.starts.get(op.outputs[0])], NO_GUESSES)
        if op.type == "pnnx.Output":
            return NO_GUESSES
        if not all(operand in self.specs for operand in (*op.inputs, *op.outputs)):
            return self._lose(op)  # its shape depends on data
        known = [self.axes.get(operand) for operand in op.inputs]
        origins = NO_GUESSES.union(*(self.origins.get(o, NO_GUESSES) for o in op.inputs))
        if all(axis is None for axis in known):
            return self._set(op, [None] * len(op.outputs), NO_GUESSES)
        if op.type == "Tensor.index" and counts_members(self, op):
            self.counting.add(op)
            return self._set(op, [BatchAxis(0)], origins)
        if op.type == "Tensor.index" and (batch := lists_rows_of_members(self, op)):
            self.listing.add(op)
            return self._set(op, [batch], origins | self._index_origins(op))
        if op.type == "Tensor.index" and (batch := looks_up(self, op)):
            return self._set(op, [batch], origins | self._index_origins(op))
        record = record_or_none(op.type)
        is_reshape = record is not None and record.batch == "reshape"
        if any(axis is Lost for axis in known):
            if is_reshape and self._keeps_first(op) and -1 not in self.call(op).a.shape:
                self.copying.add(op)
            return self._lose(op)
        if is_reshape:
            return self._visit_reshape(op, origins)
        return self._apply_rule(op, origins)

    def _index_origins(self, op: Operator) -> Guesses:
        """Return the guesses on which the axes of an operator's indices depend."""
        sources = index_source(op).inputs
        return NO_GUESSES.union(*(self.origins.get(o, NO_GUESSES) for o in sources))

    def _apply_rule(self, op: Operator, origins: Guesses) -> Guesses:
        rule = batch_rule(record_or_none(op.type))
        try:
            if rule is None:
                raise MembersMeet
            call = self.call(op)
            found = rule(call)
        except MembersMeet:
            return origins or self._lose(op)
        self.calls[op] = call
        axes = list(found) if isinstance(found, list) else [cast("Found", found)] * len(op.outputs)
        return self._set(op, axes[: len(op.outputs)], origins)

    def _set(self, op: Operator, axes: Sequence[Found], origins: Guesses) -> Guesses:
        """Set the axes of an operator's outputs; return that there is no conflict."""
        for operand, batch in zip(op.outputs, axes, strict=True):
            self.axes[operand] = batch
            self.origins[operand] = origins if isinstance(batch, BatchAxis) else NO_GUESSES
        return NO_GUESSES

    def _lose(self, op: Operator) -> Guesses:
        return self._set(op, [Lost] * len(op.outputs), NO_GUESSES)

    def call(self, op: Operator) -> TracedCall:
        """Return an operator with its arguments and the batch axes of its inputs."""
        record = find_record(op.type)
        a: Any = resolve(op, record, self.specs, self.attributes[op])
        if issubclass(record, Schemas):  # several overloads; `read` selects one
            a.n_outputs = len(op.outputs)
            a = a.read()
        axes = {
            id(self.specs[o]): self.axes[o]
            for o in op.inputs
            if isinstance(self.axes.get(o), BatchAxis)
        }
        inputs, outputs = ([self.specs[o] for o in group] for group in (op.inputs, op.outputs))
        return TracedCall(op, a, inputs, outputs, axes, self.traced)

    # -- reshapes ------------------------------------------------------------------------------

    def _candidates(self, op: Operator) -> list[BatchAxis]:
        source = op.inputs[0]
        found = reshaped_axes(
            self.specs[source], self.axes[source], self.specs[op.outputs[0]].shape, self.traced
        )
        shape = self.call(op).a.shape
        if -1 not in shape:
            return found
        # A -1 determines the axis: its extent depends on the batch.  If that leads nowhere, a 1 is
        # the extent of a trace's single member, as in `x.view(len(x), n, -1, 16)`.
        found = sorted(found, key=lambda b: shape[b.axis] != -1)
        return found if self.traced == 1 else [b for b in found if shape[b.axis] == -1]

    def _visit_reshape(self, op: Operator, origins: Guesses) -> Guesses:
        source = op.inputs[0]
        found = self._candidates(op) if isinstance(self.axes[source], BatchAxis) else []
        if not found or op in self._frozen:
            return self._lose(op)
        batch = found[self._choices.get(op, 0)]
        call = self.call(op)
        shape = call.a.shape
        axis = self.axes[source].axis
        if axis < len(shape) and shape[axis] == 0 and axis != batch.axis:
            # A 0 copies the extent of the batch axis to an axis without the batch.
            shape = (*shape[:axis], self.specs[op.outputs[0]].shape[axis], *shape[axis + 1 :])
        if shape[batch.axis] != -1 and (shape[batch.axis] != 0 or axis != batch.axis):
            call.rewrites["shape"] = shape, batch.axis
        self.calls[op] = call
        if not (batch == BatchAxis(0) == self.axes[source] and self._keeps_first(op)):
            origins |= {op}
        return self._set(op, [batch], origins)

    def _keeps_first(self, op: Operator) -> bool:
        """Tell whether the shapes alone determine that the batch stays first."""
        before, after = self.specs[op.inputs[0]].shape, self.specs[op.outputs[0]].shape
        return (
            bool(before and after)
            and before[0] == after[0] == self.traced
            and (len(after) == 1 or after[1] != self.traced)
        )
