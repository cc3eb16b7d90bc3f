"""Where the batch goes: for each operator, the axis of its output that holds the batch.

The batch is one axis of a model's input along which everything is independent: a batch of eight
gives what eight runs give.  Inside a graph it may share an axis with others (windows of Swin, heads
of an attention), always in the same form: an axis of extent ``outer * batch * inner``.

A rule answers for one type of operator: given where the batch of its inputs lies, is the operator
the same function for each member of the batch, and where is the batch in its outputs?  It raises
:class:`Mixed` where members would meet.  A constant takes part for every member; where its shape
says how many there are, it has to be repeated, and the rule asks for that with ``Call.spread``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

from kuiper._value import TensorSpec
from kuiper.expression import Call as Application
from kuiper.expression import List, Ref, parse
from kuiper.ir import Operator
from kuiper.ops import find_record
from kuiper.ops._schema import Host

__all__ = ["RESHAPES", "Call", "Lost", "Mixed", "Place", "reshaped_places", "rule_for"]


class Place(NamedTuple):
    """Where the batch of a tensor lies: an axis of extent ``outer * batch * inner``."""

    axis: int
    outer: int = 1
    inner: int = 1


class Lost:
    """Marks a tensor of which nobody can say where its batch is."""


class Mixed(Exception):
    """The members of the batch would meet in this operator."""


class Call:
    """An operator with its arguments, as a rule sees it.

    Attributes
    ----------
    op : Operator
    a : types.SimpleNamespace
        Its arguments; tensors as :class:`TensorSpec` of the traced shape.
    traced : int
        The batch at export.
    outputs : list of (TensorSpec or Host)
    repeats : list of (TensorSpec, int)
        Constants to be repeated, and along which axis.
    rewrites : dict of str to (tuple, int)
        Parameters whose element holds the extent of the output's axis: (value, index).
    as_groups : bool
        Whether it is a convolution with filters of each member: with as many groups, of one image
        that has the channels of all members.
    """

    def __init__(
        self,
        op: Operator,
        a: Any,
        inputs: Sequence[Any],
        outputs: Sequence[Any],
        places: dict[int, Place],
        traced: int,
    ) -> None:
        self.op, self.a, self.outputs, self.traced = op, a, outputs, traced
        self._inputs = {id(spec) for spec in inputs}
        self._places = places
        self.repeats: list[tuple[TensorSpec, int]] = []
        self.rewrites: dict[str, tuple[tuple[int, ...], int]] = {}
        self.as_groups = False

    def place(self, spec: Any) -> Place | None:
        """Return where the batch of an argument is; None for what is the same for all members."""
        return self._places.get(id(spec)) if isinstance(spec, TensorSpec) else None

    def placed(self, *specs: Any) -> Place:
        """Return where the batch of the first argument is that has one; one of them must."""
        for spec in specs:
            place = self.place(spec)
            if place is not None:
                return place
        raise Mixed

    def need(self, condition: bool) -> None:
        """Raise :class:`Mixed` unless `condition` holds."""
        if not condition:
            raise Mixed

    def constant(self, *specs: Any) -> None:
        """Insist that arguments are the same for all members."""
        self.need(all(self.place(spec) is None for spec in specs))

    def spread(self, spec: TensorSpec, place: Place) -> None:
        """Let a constant have the batch at `place`, as other arguments have it."""
        extent = spec.shape[place.axis]
        if self.place(spec) is not None:
            self.need(self.place(spec) == place)
            return
        # Repeated as a whole, it has the batch outermost.  A weight of the operator stays.
        self.need(self.traced == 1 and place.outer == 1 and extent == place.inner)
        self.need(id(spec) in self._inputs)
        if all(spec is not other for other, _ in self.repeats):
            self.repeats.append((spec, place.axis))


Placing: TypeAlias = "Place | type[Lost] | None"
Rule: TypeAlias = "Callable[[Call], Placing | Sequence[Placing]]"


def _axis(dim: int, spec: TensorSpec) -> int:
    return dim % max(spec.rank, 1)


def _same(c: Call) -> Place:
    return c.placed(c.a.input)


# -- elementwise -------------------------------------------------------------------------------


def _together(c: Call, specs: list[TensorSpec], rank: int, rows: int = 0) -> Place:
    """Return where the batch is after broadcasting, apart from the last `rows` axes."""
    places = [(s.rank - p.axis, p.outer, p.inner) for s in specs if (p := c.place(s))]
    c.need(len(set(places)) == 1)
    back, outer, inner = places[0]
    c.need(rows < back <= rank)
    for spec in specs:
        if c.place(spec) is None and spec.rank >= back and spec.shape[spec.rank - back] != 1:
            c.spread(spec, Place(spec.rank - back, outer, inner))
    return Place(rank - back, outer, inner)


def _elementwise(c: Call) -> Place:
    specs = [value for value in vars(c.a).values() if isinstance(value, TensorSpec)]
    return _together(c, specs, c.outputs[0].rank)


def _expression(c: Call) -> Any:
    tree = parse(c.a.expr, len(c.op.inputs)) if isinstance(c.a.expr, str) else c.a.expr
    measured: set[int] = set()
    for node in tree.preorder():
        if isinstance(node, Application) and node.name == "size":
            tensor = node.children[0]
            if not isinstance(tensor, Ref):
                raise Mixed
            spec = c.a.operands[tensor.index]
            place = c.place(spec)
            if place is not None:
                # The number of members must not get into the numbers.
                axis = getattr(node.children[1], "value", None) if len(node.children) > 1 else None
                c.need(isinstance(axis, int) and _axis(axis, spec) != place.axis)
            measured.add(id(tensor))
    read = {
        node.index for node in tree.preorder() if isinstance(node, Ref) and id(node) not in measured
    }
    specs = [c.a.operands[i] for i in sorted(read) if isinstance(c.a.operands[i], TensorSpec)]
    if isinstance(c.outputs[0], Host):
        if not any(c.place(spec) for spec in specs):
            return None
        c.need(isinstance(tree, List))
        if not all(op.type == "Tensor.index" for op in c.op.outputs[0].consumers):
            _ends(c)
        return Lost
    if not any(c.place(spec) for spec in specs):
        return None
    return _together(c, specs, c.outputs[0].rank)


def _prelu(c: Call) -> Place:
    place = _same(c)
    c.constant(c.a.weight)
    c.need(c.a.weight.size == 1 or place.axis != 1)
    return place


def _like(c: Call) -> Place | None:
    return c.place(c.a.input)  # None where only the other argument, a shape or dtype, has members


def _new(c: Call) -> None:
    return None  # of the input, only the dtype matters


# -- along axes --------------------------------------------------------------------------------


def _images(c: Call) -> Any:
    """Samples along the first axis, each with its channels and pixels."""
    first = _same(c)
    tensors = [v for v in vars(c.a).values() if isinstance(v, TensorSpec)]
    c.constant(*(spec for spec in tensors if spec is not c.a.input))
    spatial = next((int(d) for d in "123" if f"{d}d" in c.op.type), None)
    rank = c.a.input.rank
    if "BatchNorm1d" in c.op.type:
        c.need(rank in (2, 3))
    elif spatial is not None:
        # Padding takes images without channels, too.
        c.need(rank == spatial + 2 or (rank == spatial + 1 and "Pad" in c.op.type))
    else:
        c.need(rank >= 3 or (rank == 2 and c.op.type in ("nn.GroupNorm", "F.group_norm")))
    c.need(first.axis == 0)
    return [Place(0, first.outer, first.inner)] * len(c.outputs)


def _conv(c: Call) -> Any:
    """The same filters for all, or (in StyleGAN) each member's own."""
    a = c.a
    filters = c.place(a.weight)
    if filters is None:
        return _images(c)
    c.need(a.input.rank == a.weight.rank and a.input.shape[0] == 1)
    c.need((filters.axis, filters.outer) == (0, 1))
    c.need(a.groups % c.traced == a.input.shape[1] % c.traced == 0)
    side_by_side = Place(1, 1, a.input.shape[1] // c.traced)
    if c.traced > 1 or c.place(a.input) != Place(0):
        c.spread(a.input, side_by_side)
    channels = c.outputs[0].shape[1] // c.traced
    if isinstance(a.bias, TensorSpec):
        c.spread(a.bias, Place(0, 1, channels))
    c.as_groups = True
    # A reshape to images of their own is gone where there was but one.
    return Place(0) if c.traced == 1 else side_by_side._replace(inner=channels)


def _pad(c: Call) -> Place:
    place = _same(c)
    # Two numbers for each axis, the last one first.
    back = c.a.input.rank - 1 - place.axis
    c.need(not any(c.a.pad[2 * back : 2 * back + 2]))
    return place


def _same_padding(c: Call) -> Place:
    place = c.placed(c.a.input)
    c.need(place.axis < c.a.input.rank - 2)
    return place


def _linear(c: Call) -> Place:
    place = _same(c)
    c.constant(c.a.weight, c.a.bias)
    c.need(place.axis != c.a.input.rank - 1)
    return place


def _layer_norm(c: Call) -> Place:
    place = _same(c)
    c.constant(c.a.weight, getattr(c.a, "bias", None))
    c.need(place.axis < c.a.input.rank - len(c.a.normalized_shape))
    return place


def _dims(c: Call) -> list[int]:
    dims = getattr(c.a, "dim", None)
    dims = getattr(c.a, "dims", None) if dims is None else dims
    c.need(dims is not None)
    return [_axis(d, c.a.input) for d in (dims if isinstance(dims, tuple | list) else (dims,))]


def _along(c: Call) -> list[Place]:
    """Something happens along given axes, and nothing across the others."""
    place = _same(c)
    c.need(place.axis not in _dims(c))
    return [place] * len(c.outputs)


def _split(c: Call) -> list[Place]:
    source = c.a.tensor if hasattr(c.a, "tensor") else c.a.input
    place = c.placed(source)
    c.need(not isinstance(c.outputs[0], Host))
    if place.axis == _axis(c.a.dim, source):
        # Two images of each member, say, that went through a network together.
        chunks = getattr(c.a, "chunks", 0)
        c.need(chunks > 0 and place.outer % chunks == 0)
        place = place._replace(outer=place.outer // chunks)
    return [place] * len(c.op.outputs)


def _reduction(c: Call) -> list[Place]:
    place, dims = _same(c), _dims(c)
    c.need(place.axis not in dims and len(dims) > 0)
    gone = 0 if getattr(c.a, "keepdim", False) else sum(d < place.axis for d in dims)
    return [place._replace(axis=place.axis - gone)] * len(c.op.outputs)


def _dropped(place: Place, axis: int) -> Place:
    return place._replace(axis=place.axis - (axis < place.axis))


def _triangle(c: Call) -> Place:
    place = _same(c)
    c.need(place.axis < c.a.input.rank - 2)
    return place


def _windows(c: Call) -> Place:
    place = _same(c)
    c.need(place.axis != _axis(c.a.dimension, c.a.input))
    return place


def _unbind(c: Call) -> list[Place]:
    place, axis = _same(c), _axis(c.a.dim, c.a.input)
    c.need(place.axis != axis)
    return [_dropped(place, axis)] * len(c.op.outputs)


def _select(c: Call) -> Place:
    place, axis = _same(c), _axis(c.a.dim, c.a.input)
    c.need(place.axis != axis)
    return _dropped(place, axis)


def _slice(c: Call) -> Place:
    place, a = _same(c), c.a
    many = a.dims is not None
    axes = [_axis(d, a.input) for d in (a.dims if many else a.dim)]
    lists = [getattr(a, key + "s" * many) for key in ("start", "end", "step", "select")]
    gone = 0
    for number, axis in enumerate(axes):
        start, end, step, select = (items and items[number] for items in lists)
        if select is not None and select != OPEN:
            c.need(axis != place.axis)
            gone += axis < place.axis
        elif axis == place.axis:
            c.need(not start and (end is None or end >= OPEN) and step in (None, 1))
    return place._replace(axis=place.axis - gone)


OPEN = 2**31 - 1


def _slice_copy(c: Call) -> Place:
    a = c.a
    many = getattr(a, "dims", None) is not None
    axes = [_axis(d, a.input) for d in (a.dims if many else a.dim)]
    selects = getattr(a, "selects" if many else "select", None) or [OPEN] * len(axes)
    # What is written lacks the axes of which one place is selected.
    gone = [axis for axis, place in zip(axes, selects, strict=True) if place not in (None, OPEN)]
    left = [axis for axis in range(a.input.rank) if axis not in gone]
    c.need(len(left) == a.src.rank)
    place = c.place(a.input)
    if place is None:
        written = c.placed(a.src)
        place = written._replace(axis=left[written.axis])
    c.need(place.axis not in axes)
    c.spread(a.input, place)
    c.spread(a.src, place._replace(axis=left.index(place.axis)))
    return place


def _cat(c: Call) -> Place:
    specs = [s for s in c.a.tensors if isinstance(s, TensorSpec) and s.shape != (0,)]
    place = next(p for s in specs if (p := c.place(s)))
    axis = _axis(c.a.dim, specs[0])
    if place.axis == axis:
        places = [c.placed(s) for s in specs]
        c.need(all((p.axis, p.inner) == (axis, place.inner) for p in places))
        return place._replace(outer=sum(p.outer for p in places))
    for spec in specs:
        c.spread(spec, place)
    return place


def _stack(c: Call) -> Place:
    specs = list(c.a.tensors)
    place = next(p for s in specs if (p := c.place(s)))
    for spec in specs:
        c.spread(spec, place)
    axis = c.a.dim % (specs[0].rank + 1)
    return place._replace(axis=place.axis + (axis <= place.axis))


def _permute(c: Call) -> Place:
    place = _same(c)
    axes = [_axis(d, c.a.input) for d in c.a.dims]
    return place._replace(axis=axes.index(place.axis))


def _transpose(c: Call) -> Place:
    place = _same(c)
    first, second = (_axis(d, c.a.input) for d in (c.a.dim0, c.a.dim1))
    return place._replace(axis={first: second, second: first}.get(place.axis, place.axis))


def _t(c: Call) -> Place:
    place = _same(c)
    return place._replace(axis=c.a.input.rank - 1 - place.axis)


def _flatten(c: Call) -> Place:
    place, spec = _same(c), c.a.input
    start, end = _axis(c.a.start_dim, spec), _axis(c.a.end_dim, spec)
    if place.axis < start:
        return place
    if place.axis > end:
        return place._replace(axis=place.axis - (end - start))
    before = math.prod(spec.shape[start : place.axis])
    after = math.prod(spec.shape[place.axis + 1 : end + 1])
    return Place(start, before * place.outer, place.inner * after)


def _unflatten(c: Call) -> Place:
    place, axis = _same(c), _axis(c.a.dim, c.a.input)
    c.need(place.axis != axis)
    added = c.outputs[0].rank - c.a.input.rank
    return place._replace(axis=place.axis + (added if axis < place.axis else 0))


def _squeeze(c: Call) -> Place:
    place, axes = _same(c), _dims(c)
    c.need(place.axis not in axes)
    gone = sum(axis < place.axis and c.a.input.shape[axis] == 1 for axis in axes)
    return place._replace(axis=place.axis - gone)


def _unsqueeze(c: Call) -> Place:
    place, rank = _same(c), c.outputs[0].rank
    added = {d % rank for d in c.a.dim}
    return place._replace(axis=[d for d in range(rank) if d not in added][place.axis])


def _expand(c: Call) -> Place:
    place = _same(c)
    key = "shape" if c.a.sizes is None else "sizes"
    sizes = getattr(c.a, key)
    axis = place.axis + len(sizes) - c.a.input.rank
    if sizes[axis] != -1:
        c.rewrites[key] = sizes, axis
    return place._replace(axis=axis)


def _expand_as(c: Call) -> Place:
    place = _together(c, [c.a.input, c.a.other], c.a.other.rank)
    c.need(c.place(c.a.other) is not None)
    return place


def _repeat(c: Call) -> Place:
    place = _same(c)
    repeats = c.a.sizes if hasattr(c.a, "sizes") else c.a.dims
    axis = place.axis + c.outputs[0].rank - c.a.input.rank
    own = place.axis + len(repeats) - c.a.input.rank  # torch.tile fills up with ones in front
    times = repeats[own] if own >= 0 else 1
    return Place(axis, place.outer * times, place.inner)


def _repeat_interleave(c: Call) -> Place:
    c.need(hasattr(c.a, "input"))
    place = _same(c)
    c.need(c.a.dim is not None)
    if _axis(c.a.dim[0], c.a.input) == place.axis:
        c.need(isinstance(c.a.repeats, int))
        return place._replace(inner=place.inner * c.a.repeats)
    return place


def reshaped_places(
    spec: TensorSpec, place: Place, shape: tuple[int, ...], traced: int
) -> list[Place]:
    """Return every place that the batch may have in another shape, likely ones first.

    Elements keep their order, so the batch keeps its stride: the product of what lies behind it.
    An extent of 1 beside it leaves a choice.
    """
    stride = place.inner * math.prod(spec.shape[place.axis + 1 :])
    found = []
    for axis, extent in enumerate(shape):
        behind = math.prod(shape[axis + 1 :])
        if extent % traced or not behind or stride % behind:
            continue
        inner, rest = stride // behind, extent // traced
        if inner and rest % inner == 0:
            found.append(Place(axis, rest // inner, inner))
    # An axis of its own, then the slowest part of one.
    return sorted(found, key=lambda p: (p.outer * p.inner != 1, p.outer != 1, p.axis))


# -- products ----------------------------------------------------------------------------------


def _reshape_as(c: Call) -> Place:
    source, place = c.place(c.a.input), c.place(c.a.other)
    if source is None or place is None:
        raise Mixed
    c.need(place in reshaped_places(c.a.input, source, c.a.other.shape, c.traced))
    return place


def _matmul(c: Call) -> Place:
    a = c.a.input
    b = next(v for k, v in vars(c.a).items() if k != "input" and isinstance(v, TensorSpec))
    left, right, rank = c.place(a), c.place(b), c.outputs[0].rank
    if left and right:
        return _together(c, [a, b], rank, rows=2)
    if right:
        c.need(b.rank >= 2 and right.axis != b.rank - 2)
        if right.axis == b.rank - 1:
            c.need(a.rank <= 2 or a.rank == rank)
            return right._replace(axis=rank - 1)
        return _together(c, [a, b], rank, rows=2)
    left = c.placed(a)
    c.need(a.rank >= 2 and left.axis != a.rank - 1)
    if left.axis == a.rank - 2:
        return left._replace(axis=rank - 1 if b.rank == 1 else rank - 2)
    return left if b.rank <= 2 else _together(c, [a, b], rank, rows=2)


def _distances(c: Call) -> Place:
    x, y, rank = c.a.x1, c.a.x2, c.outputs[0].rank
    for axis, spec, other in ((rank - 2, x, y), (rank - 1, y, x)):
        place = c.place(spec)
        if place is not None and place.axis == spec.rank - 2:
            c.constant(other)
            return place._replace(axis=axis)
    return _together(c, [x, y], rank, rows=2)


def _sum_of_products(c: Call) -> Place:
    """baddbmm, addmm: a summand that broadcasts, and a product."""
    tensors = [v for v in vars(c.a).values() if isinstance(v, TensorSpec)]
    summand, a, b = tensors
    rank = c.outputs[0].rank
    if rank == 3:
        place = _together(c, [a, b], rank, rows=2)
    else:
        c.constant(b)
        place = c.placed(a)
        c.need(place.axis == 0)
    added = c.place(summand)
    if added is not None:
        c.need((summand.rank - added.axis) == rank - place.axis)
    elif summand.rank >= rank - place.axis:
        axis = summand.rank - (rank - place.axis)
        if summand.shape[axis] != 1:
            c.spread(summand, place._replace(axis=axis))
    return place


def _attention(c: Call) -> Place:
    a = c.a
    heads = 3 if getattr(a, "enable_gqa", False) else 2
    specs = [s for s in (a.query, a.key, a.value) if isinstance(s, TensorSpec)]
    place = _together(c, specs, c.outputs[0].rank, rows=heads)
    back = c.outputs[0].rank - place.axis
    for spec in specs:
        c.need(spec.rank >= back)
        c.spread(spec, place._replace(axis=spec.rank - back))
    if isinstance(a.attn_mask, TensorSpec):
        _together(c, [*specs, a.attn_mask], c.outputs[0].rank, rows=2)
    return place


def _multihead(c: Call) -> list[Place]:
    a = c.a
    specs = [s for s in (a.query, a.key, a.value) if isinstance(s, TensorSpec)]
    place = c.placed(*specs)
    c.need(a.query.rank == 3 and place.axis == (0 if a.batch_first else 1))
    for spec in specs:
        c.spread(spec, place)
    if isinstance(a.attn_mask, TensorSpec):
        if a.attn_mask.rank == 3:
            c.spread(a.attn_mask, Place(0, place.outer, place.inner * a.num_heads))
        else:
            c.constant(a.attn_mask)
    if isinstance(a.key_padding_mask, TensorSpec):
        c.spread(a.key_padding_mask, place._replace(axis=0))
    return [place, place._replace(axis=0)][: len(c.op.outputs)]


def _recurrent(c: Call) -> list[Place]:
    a, place = c.a, _same(c)
    c.need(a.input.rank == 3 and place.axis == (0 if a.batch_first else 1))
    state = place._replace(axis=1)
    for spec in (a.hx, getattr(a, "cx", None)):
        if isinstance(spec, TensorSpec):
            c.spread(spec, state)
    return [place, state, state][: len(c.op.outputs)]


def _einsum(c: Call) -> Place:
    terms, _, result = c.a.equation.replace(" ", "").partition("->")
    letters: set[str] = set()
    found: list[Place] = []
    specs = list(_tensors_of(c.a))
    c.need("." not in c.a.equation and bool(result) and len(terms.split(",")) == len(specs))
    for term, spec in zip(terms.split(","), specs, strict=True):
        c.need(len(term) == spec.rank)
        place = c.place(spec)
        if place is not None:
            letters.add(term[place.axis])
            found.append(place)
            c.need(term.count(term[place.axis]) == 1)
    c.need(len(letters) == 1 and len({(p.outer, p.inner) for p in found}) == 1)
    letter = letters.pop()
    c.need(letter in result)
    for term, spec in zip(terms.split(","), specs, strict=True):
        if c.place(spec) is None and letter in term and spec.shape[term.index(letter)] != 1:
            c.spread(spec, found[0]._replace(axis=term.index(letter)))
    return found[0]._replace(axis=result.index(letter))


def _tensors_of(a: Any) -> Iterator[TensorSpec]:
    for value in vars(a).values():
        for item in value if isinstance(value, tuple | list) else (value,):
            if isinstance(item, TensorSpec):
                yield item


# -- looking up --------------------------------------------------------------------------------


def _embedding(c: Call) -> Place:
    c.constant(c.a.weight)
    return _same(c)


def _index(c: Call) -> Place:
    place, taken = _same(c), [n for n, item in enumerate(c.a.expr) if item is not None]
    c.constant(*(item for item in c.a.expr if isinstance(item, TensorSpec)))
    c.need(bool(taken) and place.axis not in taken)
    # Masks may stand for several axes.
    c.need(all(c.a.expr[n].dtype not in ("bool", "uint8") for n in taken))
    added = c.outputs[0].rank - (c.a.input.rank - len(taken))
    side_by_side = taken[-1] - taken[0] + 1 == len(taken)
    before = sum(n < place.axis for n in taken)
    in_front = not side_by_side or taken[0] < place.axis
    return place._replace(axis=place.axis - before + (added if in_front else 0))


def _gather(c: Call) -> Place:
    place = c.placed(c.a.input, c.a.index)
    c.need(place.axis != _axis(c.a.dim, c.a.input))
    c.spread(c.a.input, place)
    c.spread(c.a.index, place)
    return place


def _scatter(c: Call) -> Place:
    a = c.a
    specs = [spec for spec in (a.input, a.index, a.src) if isinstance(spec, TensorSpec)]
    place = c.placed(*specs)
    c.need(place.axis != _axis(a.dim, a.input))
    for spec in specs:
        c.spread(spec, place)
    return place


def _index_select(c: Call) -> Place:
    c.constant(c.a.index)
    place = _same(c)
    c.need(place.axis != _axis(c.a.dim, c.a.input))
    return place


def _grid_sample(c: Call) -> Place:
    place = c.placed(c.a.input, c.a.grid)
    for spec in (c.a.input, c.a.grid):
        c.spread(spec, place)
        c.need((c.place(spec) or Place(0)).axis == 0)
    return place


def _items(c: Call) -> Any:
    _ends(c)
    return Lost


def _ends(c: Call) -> None:
    """Insist that the output, a list of tensors, goes nowhere but out of the graph."""
    ends = ("pnnx.Output", "prim::TupleConstruct", "prim::ListConstruct")
    c.need(all(op.type in ends for operand in c.op.outputs for op in operand.consumers))


def _table() -> dict[str, Rule]:
    rules: dict[str, Rule] = {}

    def add(rule: Rule, names: str) -> None:
        rules.update(dict.fromkeys(names.split(), rule))

    add(_expression, "pnnx.Expression")
    add(
        _elementwise,
        "Tensor.to Tensor.masked_fill torch.where torch.eq torch.ne torch.lt torch.le torch.gt "
        "torch.ge torch.logical_and torch.logical_or torch.logical_xor torch.logical_not "
        "torch.bitwise_and torch.bitwise_or torch.bitwise_xor torch.bitwise_not torch.positive "
        "torch.real torch.imag torch.complex torch.lgamma torch.addcmul torch.addcdiv torch.lerp "
        "aten::addcmul aten::addcdiv aten::lerp aten::clamp_min aten::clamp_max aten::where "
        "aten::angle aten::_conj aten::resolve_conj aten::resolve_neg aten::polar "
        "torch.view_as_real",
    )
    add(_like, "Tensor.type_as torch.zeros_like torch.ones_like torch.full_like torch.empty_like "
               "aten::zero aten::one_hot")  # fmt: skip
    add(_prelu, "nn.PReLU F.prelu")
    add(_new, "Tensor.new_zeros Tensor.new_ones Tensor.new_empty aten::new_full")
    spatial = (
        "nn.Conv{} F.conv{} nn.ConvTranspose{} F.conv_transpose{} nn.MaxPool{} F.max_pool{} "
        "nn.AvgPool{} F.avg_pool{} nn.LPPool{} F.lp_pool{} nn.AdaptiveAvgPool{} "
        "F.adaptive_avg_pool{} nn.AdaptiveMaxPool{} F.adaptive_max_pool{} nn.BatchNorm{} "
        "nn.InstanceNorm{} nn.ReflectionPad{} nn.ReplicationPad{} nn.ConstantPad{} nn.ZeroPad{}"
    )
    for size in ("1d", "2d", "3d"):
        add(_images, spatial.replace("{}", size))
        add(_conv, f"F.conv{size} F.conv_transpose{size}")
    add(
        _images,
        "F.batch_norm F.instance_norm nn.GroupNorm F.group_norm nn.LocalResponseNorm "
        "F.local_response_norm nn.Upsample F.interpolate F.upsample F.upsample_nearest "
        "F.upsample_bilinear nn.UpsamplingNearest2d nn.UpsamplingBilinear2d nn.PixelShuffle "
        "F.pixel_shuffle torch.pixel_shuffle nn.PixelUnshuffle F.pixel_unshuffle "
        "torch.pixel_unshuffle nn.ChannelShuffle F.channel_shuffle torch.channel_shuffle "
        "nn.Unfold F.unfold nn.Fold F.fold nn.Softmax2d",
    )
    add(_pad, "F.pad")
    add(_same_padding, "kuiper.SamePadding")
    add(_linear, "nn.Linear F.linear")
    add(_layer_norm, "nn.LayerNorm F.layer_norm nn.RMSNorm F.rms_norm")
    add(
        _along,
        "nn.Softmax F.softmax nn.LogSoftmax F.log_softmax nn.Softmin F.softmin nn.GLU F.glu "
        "torch.cumsum torch.cumprod torch.topk aten::sort aten::argsort F.normalize "
        "torch.flip Tensor.flip torch.roll Tensor.roll Tensor.narrow torch.narrow",
    )
    add(
        _split,
        "torch.chunk Tensor.chunk torch.split Tensor.split torch.tensor_split Tensor.tensor_split",
    )
    add(
        _reduction,
        "torch.sum torch.mean torch.prod torch.amax torch.amin torch.logsumexp torch.var "
        "torch.std torch.norm torch.max torch.min torch.argmax torch.argmin aten::any aten::all "
        "aten::median aten::count_nonzero",
    )
    add(_triangle, "aten::triu aten::tril")
    add(_windows, "aten::unfold")
    add(_unbind, "torch.unbind Tensor.unbind")
    add(_select, "torch.select Tensor.select")
    add(_slice, "Tensor.slice")
    add(_slice_copy, "Tensor.slice_copy")
    add(_cat, "torch.cat torch.concat")
    add(_stack, "torch.stack")
    add(_permute, "Tensor.permute torch.permute")
    add(_transpose, "Tensor.transpose torch.transpose")
    add(_t, "Tensor.t torch.t")
    add(_flatten, "nn.Flatten torch.flatten Tensor.flatten")
    add(_unflatten, "nn.Unflatten torch.unflatten Tensor.unflatten")
    add(_squeeze, "torch.squeeze Tensor.squeeze")
    add(_unsqueeze, "torch.unsqueeze Tensor.unsqueeze")
    add(_expand, "Tensor.expand")
    add(_expand_as, "Tensor.expand_as")
    add(_reshape_as, "Tensor.reshape_as Tensor.view_as")
    add(_repeat, "Tensor.repeat Tensor.tile torch.tile")
    add(
        _repeat_interleave,
        "Tensor.repeat_interleave torch.repeat_interleave aten::repeat_interleave",
    )
    add(_matmul, "torch.matmul torch.bmm torch.mm torch.mv")
    add(_distances, "aten::cdist")
    add(_sum_of_products, "torch.baddbmm torch.addmm")
    add(_attention, "F.scaled_dot_product_attention")
    add(_multihead, "nn.MultiheadAttention")
    add(_recurrent, "nn.LSTM nn.GRU nn.RNN")
    add(_einsum, "torch.einsum")
    add(_embedding, "nn.Embedding F.embedding")
    add(_index, "Tensor.index")
    add(_gather, "torch.gather")
    add(_scatter, "aten::scatter torch.scatter_add")
    add(_index_select, "torch.index_select")
    add(
        _grid_sample,
        "F.grid_sample aten::grid_sampler_2d aten::grid_sampler_3d",
    )
    add(_items, "prim::TupleConstruct prim::ListConstruct")
    return rules


RULES = _table()


def rule_for(type: str) -> Rule | None:
    """Return the rule for a type of operator, None where nothing is known of it."""
    found = RULES.get(type)
    if found is None:
        record = find_record(type)
        if record is not None and (record.activation is not None or record.identity):
            return _same
    return found


# Which operators move the batch by a shape that the file spells out.
RESHAPES = ("Tensor.reshape", "Tensor.view", "torch.reshape")
