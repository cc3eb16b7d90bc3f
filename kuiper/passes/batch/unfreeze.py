"""Make a model that was exported with one batch run with another.

With a single ``inputshape`` pnnx writes every target of a reshape or expand as the traced numbers,
the batch among them, and drops an expand that did nothing then::

    Tensor.reshape  r 1 1 x y shape=(1,64,8,7,8,7)    #x=(1,64,56,56)f32
    torch.cat       c 2 1 token x y dim=1             #token=(1,1,768)f32 #x=(1,196,768)f32

For a batch of 8 this pass follows the batch from the inputs through the graph (the rules are in
`_batch_rules`), and writes its extent where it arrives::

    Tensor.reshape  r 1 1 x y shape=(8,64,8,7,8,7)
    Tensor.expand   e 1 1 token token_0 sizes=(8,-1,-1)
    torch.cat       c 2 1 token_0 x y dim=1

Numbers alone do not always tell where a reshape leaves the batch: ``(1,768)`` to ``(1,1,768)`` may
put it first or second.  The pass tries the likely place and goes on; where that makes members of
the batch meet, in a softmax over them or a recurrent layer that takes them for time, it tries the
next.  What holds together to the end is right, because every operator then is the same function for
each member.  What does not is left as it is, so that planning refuses it and names the operator.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np

from kuiper._dtypes import DTYPES
from kuiper._value import TensorSpec
from kuiper.errors import KuiperError
from kuiper.expression import List, Ref, parse
from kuiper.ir import Attribute, Graph, Operand, Operator
from kuiper.ops import known_record
from kuiper.ops._numpy import Overloaded
from kuiper.ops._schema import Host, attribute_spec, resolve
from kuiper.passes.batch._batch_rules import (
    RESHAPES,
    Call,
    Lost,
    Mixed,
    Place,
    Placing,
    reshaped_places,
    rule_for,
)
from kuiper.passes.literals import literal_indices

__all__ = ["unfreeze_batch"]

Infer = Callable[[Graph, dict[Operand, TensorSpec]], dict[Operand, Any]]

# After so many wrong guesses the rest stays as it is.
PATIENCE = 400


def unfreeze_batch(graph: Graph, shapes: Sequence[tuple[int, ...]], infer: Infer) -> None:
    """Write the batch of `shapes` wherever the graph provably holds the traced one.

    Parameters
    ----------
    graph : Graph
        Changed in place, if the shapes differ from the traced ones in their batch.
    shapes : sequence of tuple of int
        Of the inputs of a run.
    infer : callable
        Returns the specs of all operands whose shapes do not depend on data.
    """
    starts, pair = _batch_axes(graph, shapes)
    if pair is None:
        return
    traced, batch = pair
    try:
        specs = infer(graph, {o: TensorSpec(o.known_shape, _dtype(o)) for o in graph.inputs})
    except KuiperError:
        return  # the annotations are not what was traced
    search = _Search(graph, specs, starts, traced)
    search.run()
    search.apply(batch)


def _dtype(operand: Operand) -> np.dtype:
    return DTYPES["f32" if operand.dtype is None else operand.dtype].value


def _batch_axes(
    graph: Graph, shapes: Sequence[tuple[int, ...]]
) -> tuple[dict[Operand, Place], tuple[int, int] | None]:
    """Return the axis of each input that holds the batch, and (traced, wanted) extents."""
    starts: dict[Operand, Place] = {}
    pair: tuple[int, int] | None = None
    for operand, shape in zip(graph.inputs, shapes, strict=True):
        if operand.shape is None or None in operand.shape or len(operand.shape) != len(shape):
            return {}, None
        traced = operand.known_shape
        changed = [d for d, (was, now) in enumerate(zip(traced, shape, strict=True)) if was != now]
        if not changed:
            continue
        # Usually the first; the states of a recurrent layer have it second.
        axes = [d for d in changed if pair in (None, (traced[d], shape[d]))]
        if not axes or not traced[axes[0]]:
            return {}, None
        starts[operand] = Place(axes[0])
        pair = traced[axes[0]], shape[axes[0]]
    return starts, pair


class _Search:
    """Follows the batch through a graph, guessing where a shape leaves a choice.

    `places` holds for each operand a Place, None (the same for all members) or Lost.  `origins`
    holds the guesses on which that rests, so that a contradiction leads back to one of them.
    """

    def __init__(
        self,
        graph: Graph,
        specs: dict[Operand, Any],
        starts: dict[Operand, Place],
        traced: int,
    ) -> None:
        self.graph, self.traced, self.starts = graph, traced, starts
        self.order = graph.topological_order()
        self.position = {op: number for number, op in enumerate(self.order)}
        # Copies, so that each object stands for one operand.
        self.specs = {
            operand: TensorSpec(spec.shape, spec.dtype, spec.source)
            if isinstance(spec, TensorSpec)
            else spec
            for operand, spec in specs.items()
        }
        self.attributes = {
            op: {key: attribute_spec(a) for key, a in op.attributes.items()} for op in self.order
        }
        self.places: dict[Operand, Any] = {}
        self.origins: dict[Operand, frozenset[Operator]] = {}
        self.calls: dict[Operator, Call] = {}
        self.choices: dict[Operator, int] = {}
        self.blamed: dict[Operator, set[Operator]] = {}
        self.frozen: set[Operator] = set()
        # Operators of which the first index counts the members.
        self.counting: set[Operator] = set()
        # Operators that take rows of all members by places among the rows of one.
        self.lists: set[Operator] = set()
        # Reshapes of which no more is known than that the first axis can only stay what it is.
        self.copied: set[Operator] = set()

    def run(self) -> None:
        """Find places that agree with each other."""
        start, conflicts = 0, 0
        first: Operator | None = None
        while start < len(self.order):
            op = self.order[start]
            culprits = self.visit(op)
            if culprits is None:
                start += 1
                continue
            conflicts += 1
            first = first or self.latest(culprits)
            start, solved = self.back_to(culprits)
            if not solved or conflicts > PATIENCE:
                # No choice helps: the guess that met it first is none, its shape stays.
                self.frozen.add(first)
                self.choices.clear()
                self.blamed.clear()
                start, conflicts, first = 0, 0, None

    def latest(self, operators: set[Operator]) -> Operator:
        return max(operators, key=lambda op: self.position[op])

    def back_to(self, culprits: set[Operator]) -> tuple[int, bool]:
        """Take the next choice of the latest guess that is to blame; say where to go on."""
        culprits = set(culprits)
        while culprits:
            latest = self.latest(culprits)
            culprits.discard(latest)
            self.blamed.setdefault(latest, set()).update(culprits)
            for op in [o for o in self.choices if self.position[o] > self.position[latest]]:
                self.choices.pop(op)
                self.blamed.pop(op, None)
            self.choices[latest] = self.choices.get(latest, 0) + 1
            if self.choices[latest] < len(self.candidates(latest)):
                return self.position[latest], True
            self.choices.pop(latest)
            culprits |= self.blamed.pop(latest) | self.origins.get(latest.inputs[0], frozenset())
        return 0, False

    def visit(self, op: Operator) -> set[Operator] | None:
        """Find the places of an operator's outputs; return the guesses that cannot be, if so."""
        self.calls.pop(op, None)
        self.copied.discard(op)
        self.counting.discard(op)
        self.lists.discard(op)
        if op.type == "pnnx.Input":
            self.places[op.outputs[0]] = self.starts.get(op.outputs[0])
            return None
        if op.type == "pnnx.Output":
            return None
        if not all(operand in self.specs for operand in (*op.inputs, *op.outputs)):
            # Its shape depends on data.
            return self.settle(op, [Lost] * len(op.outputs), frozenset())
        known = [self.places.get(operand) for operand in op.inputs]
        nothing: frozenset[Operator] = frozenset()
        origins = nothing.union(*(self.origins.get(o, nothing) for o in op.inputs))
        if all(place is None for place in known):
            return self.settle(op, [None] * len(op.outputs), frozenset())
        if op.type == "Tensor.index" and self.counts_members(op):
            self.counting.add(op)
            return self.settle(op, [Place(0)], origins)
        if op.type == "Tensor.index" and (place := self.rows_of_members(op)):
            self.lists.add(op)
            return self.settle(op, [place], origins | self.origins_of_index(op))
        if any(place is Lost for place in known):
            if op.type in RESHAPES and self.keeps_first(op) and -1 not in self.call(op).a.shape:
                self.copied.add(op)
            return self.settle(op, [Lost] * len(op.outputs), frozenset())
        if op.type in RESHAPES:
            return self.visit_reshape(op, origins)
        rule = rule_for(op.type)
        try:
            if rule is None:
                raise Mixed
            call = self.call(op)
            found = rule(call)
        except Mixed:
            if origins:
                return set(origins)
            return self.settle(op, [Lost] * len(op.outputs), frozenset())
        self.calls[op] = call
        several = (
            list(found) if isinstance(found, list) else [cast("Placing", found)] * len(op.outputs)
        )
        return self.settle(op, several[: len(op.outputs)], origins)

    def settle(
        self, op: Operator, found: Sequence[Placing], origins: frozenset[Operator]
    ) -> set[Operator] | None:
        """Note places; return what :meth:`visit` does where all is well."""
        for operand, place in zip(op.outputs, found, strict=True):
            self.places[operand] = place
            self.origins[operand] = origins if isinstance(place, Place) else frozenset()
        return None

    def call(self, op: Operator) -> Call:
        rule = known_record(op.type)
        a = resolve(op, rule.arguments, self.specs, self.attributes[op])
        if issubclass(rule, Overloaded):  # of several schemas, so its arguments have names only now
            a.n_outputs = len(op.outputs)
            a = rule.read(a)
        places = {
            id(self.specs[o]): self.places[o]
            for o in op.inputs
            if isinstance(self.places.get(o), Place)
        }
        inputs, outputs = ([self.specs[o] for o in group] for group in (op.inputs, op.outputs))
        return Call(op, a, inputs, outputs, places, self.traced)

    # -- indices -------------------------------------------------------------------------------

    def counts_members(self, op: Operator) -> bool:
        """Tell whether an operator is ``x[arange(batch), i, ...]``, one place of each member.

        That is how text models take what stands where a sentence ends.
        """
        first, *others = self.indices(op) or [(None, set())]
        if not others or self.places.get(op.inputs[0]) != Place(0) or first[0] is None:
            return False
        return np.array_equal(first[0], np.arange(self.traced)) and all(
            places == {Place(0)} or (constant is not None and constant.size == 1)
            for constant, places in others
        )

    def rows_of_members(self, op: Operator) -> Place | None:
        """Return where the batch is in ``x[places]``, where both hold one member after the other.

        That is how models of point clouds take the neighbours of each point.  What is added to the
        places for each member is zero where there is one, so it has to be added anew.
        """
        indices = self.indices(op)
        if self.traced != 1 or len(indices) != 1 or len(op.inputs) != 2:
            return None
        known, places = indices[0]
        rows = self.places.get(op.inputs[0])
        if known is not None or len(places) != 1 or not isinstance(rows, Place):
            return None
        place = places.pop()
        if not isinstance(place, Place) or rows[:2] != (0, 1) or place[:2] != (0, 1):
            return None
        return place

    def origins_of_index(self, op: Operator) -> frozenset[Operator]:
        """Return the guesses on which the places of an index rest."""
        maker = cast("Operator", op.inputs[1].producer)
        nothing: frozenset[Operator] = frozenset()
        return nothing.union(*(self.origins.get(o, nothing) for o in maker.inputs))

    def indices(self, op: Operator) -> list[tuple[np.ndarray | None, set[Any]]]:
        """Return the values of each index, if they are known, and where the batch of others is.

        Nothing, unless all are vectors of whole numbers, one for each axis from the first one on.
        """
        found: list[tuple[np.ndarray | None, set[Any]]] = []
        if len(op.inputs) == 1:
            lists = literal_indices(op.params.get("expr"))
            return [(np.array(one), set()) for one in lists] if lists and None not in lists else []
        maker = op.inputs[1].producer
        if len(op.inputs) != 2 or maker is None or maker.type != "pnnx.Expression":
            return []
        tree = parse(str(maker.params.get("expr")), len(maker.inputs))
        if not isinstance(tree, List):
            return []
        for item in tree.children:
            read = [maker.inputs[n.index] for n in item.preorder() if isinstance(n, Ref)]
            specs = [self.specs.get(operand) for operand in read]
            if not read or any(
                not isinstance(s, TensorSpec) or s.rank != 1 or s.dtype.kind not in "iu"
                for s in specs
            ):
                return []
            known = getattr(specs[0], "constant", None) if isinstance(item, Ref) else None
            found.append((known, {self.places.get(operand) for operand in read}))
        return found

    def count(self, op: Operator, batch: int) -> None:
        """Let the first index of an operator count another number of members."""
        if len(op.inputs) == 1:
            lists = literal_indices(op.params["expr"]) or []
            text = ",".join(str(one).replace(" ", "") for one in [[*range(batch)], *lists[1:]])
            op.params = {**op.params, "expr": f"[{text}]"}
            return
        maker = op.inputs[1].producer
        assert maker is not None  # `indices` has seen it
        tree = parse(str(maker.params["expr"]), len(maker.inputs))
        first = cast("Ref", tree.children[0]).index
        name = self.graph.unique_name(f"{op.name}_members")
        self.graph.add_operator(
            "pnnx.Attribute",
            name,
            [],
            [self.graph.add_operand(name, (batch,), "i64")],
            attributes={"data": Attribute.from_array(np.arange(batch))},
            location=op.location,
        )
        others = [self.graph.operand(name) if n == first else o for n, o in enumerate(maker.inputs)]
        name = self.graph.unique_name(f"{op.name}_list")
        self.graph.add_operator(
            "pnnx.Expression",
            name,
            others,
            [self.graph.add_operand(name)],
            params=maker.params,
            location=op.location,
        )
        self.graph.set_inputs(op, [op.inputs[0], self.graph.operand(name)], op.input_keys)

    def offset(self, op: Operator, batch: int) -> None:
        """Let places among the rows of one member be those among the rows of all."""
        maker = cast("Operator", op.inputs[1].producer)
        (places,) = maker.inputs
        spec, rows = self.specs[places], self.specs[op.inputs[0]].shape[0]
        first = np.repeat(np.arange(batch) * rows, spec.shape[0])
        name = self.graph.unique_name(f"{op.name}_rows")
        offsets = self.graph.add_operand(name, first.shape, "i64")
        self.graph.add_operator(
            "pnnx.Attribute", name, [], [offsets],
            attributes={"data": Attribute.from_array(first)}, location=op.location,
        )  # fmt: skip
        name = self.graph.unique_name(f"{op.name}_places")
        # How often the rows fit is 0, or -1 counted from the end; other places are none of the
        # next member's, but beyond all rows.
        times = f"floor_divide(@0,{rows})"
        beyond = f"mul(mul({times},add({times},1)),{rows * batch})"
        self.graph.add_operator(
            "pnnx.Expression", name, [places, offsets], [self.graph.add_operand(name)],
            params={"expr": f"[add(add(remainder(@0,{rows}),@1),{beyond})]"}, location=op.location,
        )  # fmt: skip
        self.graph.set_inputs(op, [op.inputs[0], self.graph.operand(name)], op.input_keys)

    # -- reshapes ------------------------------------------------------------------------------

    def candidates(self, op: Operator) -> list[Place]:
        source = op.inputs[0]
        found = reshaped_places(
            self.specs[source], self.places[source], self.specs[op.outputs[0]].shape, self.traced
        )
        shape = self.call(op).a.shape
        # A -1 says itself where another batch goes.
        return [p for p in found if shape[p.axis] == -1] if -1 in shape else found

    def visit_reshape(self, op: Operator, origins: frozenset[Operator]) -> set[Operator] | None:
        source = op.inputs[0]
        found = self.candidates(op) if isinstance(self.places[source], Place) else []
        if not found or op in self.frozen:
            return self.settle(op, [Lost], frozenset())
        place = found[self.choices.get(op, 0)]
        call = self.call(op)
        shape = call.a.shape
        axis = self.places[source].axis
        if axis < len(shape) and shape[axis] == 0 and axis != place.axis:
            # It copies the extent of an axis that holds the batch to one that does not.
            shape = (*shape[:axis], self.specs[op.outputs[0]].shape[axis], *shape[axis + 1 :])
        if shape[place.axis] != -1 and (shape[place.axis] != 0 or axis != place.axis):
            call.rewrites["shape"] = shape, place.axis
        self.calls[op] = call
        if not (place == Place(0) == self.places[source] and self.keeps_first(op)):
            origins |= {op}
        return self.settle(op, [place], origins)

    def keeps_first(self, op: Operator) -> bool:
        """Tell whether a reshape can only mean that the batch stays first, by itself."""
        before, after = self.specs[op.inputs[0]].shape, self.specs[op.outputs[0]].shape
        return (
            bool(before and after)
            and before[0] == after[0] == self.traced
            and (len(after) == 1 or after[1] != self.traced)
        )

    # -- writing -------------------------------------------------------------------------------

    def apply(self, batch: int) -> None:
        """Write a batch where it was found."""
        for op, call in self.calls.items():
            for key, (value, index) in call.rewrites.items():
                place = self.places[op.outputs[0]]
                extent = place.outer * batch * place.inner
                self.write(op, key, (*value[:index], extent, *value[index + 1 :]))
            for spec, axis in call.repeats:
                self.repeat(op, spec, axis, batch)
            if call.as_groups:
                self.group(op, call, batch)
        for op in self.counting:
            self.count(op, batch)
        for op in self.lists:
            self.offset(op, batch)
        for op in self.copied:
            self.write(op, "shape", (0, *self.call(op).a.shape[1:]))

    def group(self, op: Operator, call: Call, batch: int) -> None:
        """Let a convolution take its members as groups, side by side in one image."""
        op.params = {**op.params, "groups": call.a.groups // self.traced * batch}
        others = (0,) * (call.a.input.rank - 2)

        def reshape(name: str, source: Operand, target: Operand, first: int) -> None:
            params = {"shape": (first, -1, *others)}
            self.graph.add_operator(
                "Tensor.reshape", name, [source], [target], params=params, location=op.location
            )

        source, result = op.inputs[0], op.outputs[0]
        if self.places.get(source) == Place(0):
            name = self.graph.unique_name(f"{source.name}_members")
            joined = self.graph.add_operand(name, None, source.dtype)
            reshape(name, source, joined, 1)
            self.graph.set_inputs(op, [joined, *op.inputs[1:]], op.input_keys)
        if self.places[result] == Place(0):
            name = self.graph.unique_name(f"{result.name}_members")
            joined = self.graph.add_operand(name, None, result.dtype)
            self.graph.set_outputs(op, [joined])
            reshape(name, joined, result, batch)

    def write(self, op: Operator, key: str, value: tuple[int, ...]) -> None:
        """Set a parameter, which may have been an operand."""
        slots = [
            slot for slot, operand in enumerate(op.inputs)
            if not isinstance(self.specs.get(operand), Host)
        ]  # fmt: skip
        if len(slots) < len(op.inputs):
            keys = [op.input_keys[slot] for slot in slots]
            self.graph.set_inputs(op, [op.inputs[slot] for slot in slots], keys)
        op.params = {**op.params, key: value}

    def repeat(self, op: Operator, spec: TensorSpec, axis: int, batch: int) -> None:
        """Put a constant into the batch: as a view where it has one member, else as copies."""
        source = next(operand for operand in op.inputs if self.specs.get(operand) is spec)
        sizes = [1] * spec.rank
        sizes[axis] = batch
        if spec.shape[axis] == 1:
            type = "Tensor.expand"
            sizes = [n if d == axis else -1 for d, n in enumerate(sizes)]
        else:
            type = "Tensor.repeat"
        shape = [n * batch if d == axis else n for d, n in enumerate(spec.shape)]
        name = self.graph.unique_name(f"{source.name}_batch")
        result = self.graph.add_operand(name, tuple(shape), source.dtype)
        self.graph.add_operator(
            type, name, [source], [result], params={"sizes": tuple(sizes)}, location=op.location
        )
        inputs = [result if operand is source else operand for operand in op.inputs]
        self.graph.set_inputs(op, inputs, op.input_keys)
