"""Batch rules: how operators carry the batch axis from their inputs to their outputs.

The batch is an axis of a model's input whose members are independent: a batch of eight gives the
results of eight runs.  Inside a graph it may share an axis with others (the windows of Swin, the
heads of an attention), always in the same form: an axis of extent ``outer * batch * inner``.

Given the batch axes of an operator's inputs, a rule tells whether the operator computes the same
function for each member, and returns the batch axes of its outputs.  It raises
:class:`MembersMeet` if the operator mixes members.  A constant serves all members; if its shape
depends on their number it has to be repeated, which the rule requests with
:meth:`TracedCall.spread`.

A rule that several families share is a function of this module, named by their records; the rule
of one family is a method `batch` of its record.  This module is imported only when a model runs
with another batch size than it was exported for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, NoReturn, TypeAlias

from kuiper.ir import Operator
from kuiper.ir.view import TensorSpec
from kuiper.ops.core.record import NoBatchRule, Record

__all__ = ["BatchAxis", "Lost", "MembersMeet", "Rule", "TracedCall", "batch_rule", "reshaped_axes"]


class BatchAxis(NamedTuple):
    """The axis of a tensor that holds the batch; its extent is ``outer * batch * inner``."""

    axis: int
    outer: int = 1
    inner: int = 1


class Lost:
    """The batch axis of a value that holds all members, but not along one axis, such as a tuple."""


class MembersMeet(Exception):
    """The operator mixes members of the batch."""


Found: TypeAlias = "BatchAxis | type[Lost] | None"
Rule: TypeAlias = "Callable[[TracedCall], Found | Sequence[Found]]"


class TracedCall:
    """An operator with its arguments at the traced shapes: the input of a rule.

    Attributes
    ----------
    op : Operator
    a : Record
        Its arguments; tensors as :class:`TensorSpec` of the traced shape.
    traced : int
        The batch at export.
    outputs : list of (TensorSpec or StaticValue)
    repeats : list of (TensorSpec, int)
        Constants to repeat, each with the axis.
    rewrites : dict of str to (tuple, int)
        Parameters with an item that is the extent of the output's batch axis: (value, index).
    as_groups : bool
        Whether it is a convolution whose members have different filters; it runs as one image with
        the channels of all members side by side, and the groups multiplied by the batch.
    """

    at = BatchAxis
    lost = Lost

    def __init__(
        self,
        op: Operator,
        a: Any,
        inputs: Sequence[Any],
        outputs: Sequence[Any],
        axes: dict[int, BatchAxis],
        traced: int,
    ) -> None:
        self.op, self.a, self.outputs, self.traced = op, a, outputs, traced
        self._inputs = {id(spec) for spec in inputs}
        self._axes = axes
        self.repeats: list[tuple[TensorSpec, int]] = []
        self.rewrites: dict[str, tuple[tuple[int, ...], int]] = {}
        self.as_groups = False

    @property
    def tensors(self) -> list[TensorSpec]:
        """The tensors among the arguments and their lists, in order."""
        found = []
        for value in vars(self.a).values():
            items = value if isinstance(value, tuple | list) else (value,)
            found += [item for item in items if isinstance(item, TensorSpec)]
        return found

    def batch_of(self, spec: Any) -> BatchAxis | None:
        """Return the batch axis of an argument; None if all members share it."""
        return self._axes.get(id(spec)) if isinstance(spec, TensorSpec) else None

    def first_batch(self, *specs: Any) -> BatchAxis:
        """Return the batch axis of the first argument with one; raise MembersMeet without any."""
        for spec in specs:
            batch = self.batch_of(spec)
            if batch is not None:
                return batch
        raise MembersMeet

    def refuse(self) -> NoReturn:
        """Raise :class:`MembersMeet`."""
        raise MembersMeet

    def require(self, condition: bool) -> None:
        """Raise :class:`MembersMeet` unless `condition` holds."""
        if not condition:
            raise MembersMeet

    def require_shared(self, *specs: Any) -> None:
        """Raise :class:`MembersMeet` unless all members share these arguments."""
        self.require(all(self.batch_of(spec) is None for spec in specs))

    def require_leaving(self) -> None:
        """Raise :class:`MembersMeet` if an output is read inside the graph."""
        ends = ("pnnx.Output", "prim::TupleConstruct", "prim::ListConstruct")
        self.require(all(op.type in ends for out in self.op.outputs for op in out.consumers))

    def spread(self, spec: TensorSpec, batch: BatchAxis) -> None:
        """Give a constant the batch axis that other arguments have."""
        extent = spec.shape[batch.axis]
        if self.batch_of(spec) is not None:
            self.require(self.batch_of(spec) == batch)
            return
        # A repeated constant has the batch outermost.  Weights of the operator cannot be repeated.
        self.require(self.traced == 1 and batch.outer == 1 and extent == batch.inner)
        self.require(id(spec) in self._inputs)
        if all(spec is not other for other, _ in self.repeats):
            self.repeats.append((spec, batch.axis))

    def broadcast(self, specs: Sequence[TensorSpec], rank: int, last_axes: int = 0) -> BatchAxis:
        """Return the batch axis after broadcasting; it must precede the last `last_axes` axes."""
        found = {(s.rank - b.axis, b.outer, b.inner) for s in specs if (b := self.batch_of(s))}
        self.require(len(found) == 1)
        from_end, outer, inner = found.pop()
        self.require(last_axes < from_end <= rank)
        for spec in specs:
            axis = spec.rank - from_end
            if self.batch_of(spec) is None and axis >= 0 and spec.shape[axis] != 1:
                self.spread(spec, BatchAxis(axis, outer, inner))
        return BatchAxis(rank - from_end, outer, inner)

    def samples(self, is_batched: bool) -> list[BatchAxis]:
        """Apply the rule :func:`samples`; `is_batched` tells whether axis 0 is the batch."""
        return samples(self, is_batched)

    def reshaped_axes(self, spec: TensorSpec, batch: BatchAxis, shape: Any) -> list[BatchAxis]:
        """Return all axes that may hold the batch in another shape, likely ones first."""
        return reshaped_axes(spec, batch, shape, self.traced)

    def dims(self) -> list[int]:
        """Return the axes of the argument `dim` or `dims`, counted from 0."""
        dims = getattr(self.a, "dim", None)
        dims = getattr(self.a, "dims", None) if dims is None else dims
        self.require(dims is not None)
        return [self.dim(d) for d in (dims if isinstance(dims, tuple | list) else (dims,))]

    def dim(self, dim: int) -> int:
        """Return an axis of the input, counted from 0."""
        return int(dim % max(self.a.input.rank, 1))


# -- rules that several families share ---------------------------------------------------------


def elementwise(c: TracedCall) -> BatchAxis:
    """Compute each element from the broadcast elements of all tensors."""
    return c.broadcast(c.tensors, c.outputs[0].rank)


def like_input(c: TracedCall) -> BatchAxis | None:
    """Keep the batch axis of the input; only shapes and dtypes of other tensors matter."""
    return c.batch_of(c.a.input)


def shared(c: TracedCall) -> None:
    """Depend neither on values nor on the shape of the input."""


def samples(c: TracedCall, is_batched: bool | None = None) -> list[BatchAxis]:
    """Process each sample (axis 0) with its channels and pixels; other tensors are shared.

    Unless `is_batched` is given, the number of spatial axes in the name of the type tells whether
    the input has a batch axis.
    """
    batch, rank = c.first_batch(c.a.input), c.a.input.rank
    c.require_shared(*(spec for spec in c.tensors if spec is not c.a.input))
    spatial = next((int(d) for d in "123" if f"{d}d" in c.op.type), None)
    if is_batched is None:
        is_batched = rank >= 3 if spatial is None else rank == spatial + 2
    c.require(is_batched)
    c.require(batch.axis == 0)
    return [batch] * len(c.outputs)


def convolution(c: TracedCall) -> Any:
    """Convolve with the same filters for all members or, as in StyleGAN, one set per member."""
    a = c.a
    filters = c.batch_of(a.weight)
    if filters is None:
        return samples(c)
    c.require(a.input.rank == a.weight.rank and a.input.shape[0] == 1)
    c.require((filters.axis, filters.outer) == (0, 1))
    c.require(a.groups % c.traced == a.input.shape[1] % c.traced == 0)
    side_by_side = BatchAxis(1, 1, a.input.shape[1] // c.traced)
    if c.traced > 1 or c.batch_of(a.input) != BatchAxis(0):
        c.spread(a.input, side_by_side)
    channels = c.outputs[0].shape[1] // c.traced
    if isinstance(a.bias, TensorSpec):
        c.spread(a.bias, BatchAxis(0, 1, channels))
    c.as_groups = True
    # An export with one member has no reshape from channels to images.
    return BatchAxis(0) if c.traced == 1 else side_by_side._replace(inner=channels)


def along_axes(c: TracedCall) -> list[BatchAxis]:
    """Process each line along the given axes separately."""
    batch = c.first_batch(c.a.input)
    c.require(batch.axis not in c.dims())
    return [batch] * len(c.outputs)


def reduction(c: TracedCall) -> list[BatchAxis]:
    """Like :func:`along_axes`, but drop the axes unless `keepdim` is set."""
    batch, dims = c.first_batch(c.a.input), c.dims()
    c.require(batch.axis not in dims and len(dims) > 0)
    gone = 0 if getattr(c.a, "keepdim", False) else sum(d < batch.axis for d in dims)
    return [batch._replace(axis=batch.axis - gone)] * len(c.op.outputs)


def last_two_axes(c: TracedCall) -> BatchAxis:
    """Process each matrix of the last two axes separately."""
    batch = c.first_batch(c.a.input)
    c.require(batch.axis < c.a.input.rank - 2)
    return batch


def reshaped_axes(
    spec: TensorSpec, batch: BatchAxis, shape: tuple[int, ...], traced: int
) -> list[BatchAxis]:
    """Return all axes that may hold the batch in another shape, likely ones first.

    Elements keep their order, so the batch keeps its stride: the product of the extents after it.
    Adjacent extents of 1 make the axis ambiguous.
    """
    stride = batch.inner * math.prod(spec.shape[batch.axis + 1 :])
    found = []
    for axis, extent in enumerate(shape):
        after = math.prod(shape[axis + 1 :])
        if extent % traced or not after or stride % after:
            continue
        inner, rest = stride // after, extent // traced
        if inner and rest % inner == 0:
            found.append(BatchAxis(axis, rest // inner, inner))
    # A separate axis first, then the slowest part of an axis.
    return sorted(found, key=lambda b: (b.outer * b.inner != 1, b.outer != 1, b.axis))


RULES: dict[str, Rule] = {
    rule.__name__: rule
    for rule in (
        elementwise,
        like_input,
        shared,
        samples,
        convolution,
        along_axes,
        reduction,
        last_two_axes,
    )
}


def batch_rule(record: type[Record[Any]] | None) -> Rule | None:
    """Return the rule of a record; None if it has none or is a reshape.

    A reshape to a literal shape is ambiguous, so the search decides on it.
    """
    batch = None if record is None else record.batch
    if batch is None or isinstance(batch, NoBatchRule) or batch == "reshape":
        return None
    return RULES[batch] if isinstance(batch, str) else batch
