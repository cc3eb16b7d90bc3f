"""The graph, which owns operators and operands.

An :class:`~kuiper.ir.Operator` computes operands from operands; an :class:`~kuiper.ir.Attribute` is
a weight of an operator.  Every change goes through :class:`Graph`, which keeps ``operand.producer``
and ``operand.uses`` consistent with ``operator.inputs`` and ``operator.outputs``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from kuiper.errors import GraphError
from kuiper.ir.attribute import Attribute, Shape
from kuiper.ir.nodes import Operand, Operator, Use

__all__ = ["Graph"]


class Graph:
    """A directed acyclic graph of operators; its inputs and outputs are operators too.

    ``pnnx.Input`` operators have one output and no input, ``pnnx.Output`` operators any number of
    inputs and no output.  Iteration yields the operators in the order of insertion, which is
    topological in files; :meth:`topological_order` computes such an order for any graph.

    Attributes
    ----------
    derived : dict
        Attributes that passes computed from others.  Copies of a graph share it, so that each is
        computed once for all plans of a model.
    """

    def __init__(self) -> None:
        self._operators: dict[str, Operator] = {}
        self._operands: dict[str, Operand] = {}
        self.derived: dict[tuple[Any, ...], Any] = {}

    # -- reading ---------------------------------------------------------------------------

    @property
    def operators(self) -> tuple[Operator, ...]:
        """All operators, in the order of insertion."""
        return tuple(self._operators.values())

    @property
    def operands(self) -> tuple[Operand, ...]:
        """All operands, in the order of insertion."""
        return tuple(self._operands.values())

    @property
    def inputs(self) -> tuple[Operand, ...]:
        """The operands that the ``pnnx.Input`` operators produce, in order."""
        return tuple(
            operand
            for operator in self._operators.values()
            if operator.type == "pnnx.Input"
            for operand in operator.outputs
        )

    @property
    def outputs(self) -> tuple[Operand, ...]:
        """The operands that the ``pnnx.Output`` operators read, in order."""
        return tuple(
            operand
            for operator in self._operators.values()
            if operator.type == "pnnx.Output"
            for operand in operator.inputs
        )

    def __iter__(self) -> Iterator[Operator]:
        return iter(self.operators)

    def __len__(self) -> int:
        return len(self._operators)

    def operator(self, name: str) -> Operator:
        """Return the operator called `name`.

        Parameters
        ----------
        name : str

        Raises
        ------
        KeyError
            If there is none; the message lists similar names.
        """
        return _lookup(self._operators, name, "operator")

    def operand(self, name: str) -> Operand:
        """Return the operand called `name`.

        Parameters
        ----------
        name : str

        Raises
        ------
        KeyError
            If there is none; the message lists similar names.
        """
        return _lookup(self._operands, name, "operand")

    def has_operand(self, name: str) -> bool:
        """Tell whether there is an operand called `name`."""
        return name in self._operands

    def has_operator(self, name: str) -> bool:
        """Tell whether there is an operator called `name`."""
        return name in self._operators

    def find(self, type: str | None = None, name: str | None = None) -> list[Operator]:
        """Return the operators whose type and name match shell patterns.

        Parameters
        ----------
        type, name : str, optional
            Patterns with ``*``, ``?`` and ``[abc]``; None matches all.

        Returns
        -------
        list of Operator
            In the order of insertion.

        Examples
        --------
        >>> graph = Graph()
        >>> _ = graph.add_operator("pnnx.Input", "in0", outputs=["0"])
        >>> _ = graph.add_operator("nn.ReLU", "act", ["0"], ["1"])
        >>> graph.find("nn.*")
        [<nn.ReLU 'act'>]
        """
        has_type, has_name = _matcher(type), _matcher(name)
        return [
            operator
            for operator in self._operators.values()
            if has_type(operator.type) and has_name(operator.name)
        ]

    def type_counts(self) -> Counter[Any]:
        """Return the number of operators of each type."""
        return Counter(operator.type for operator in self._operators.values())

    # -- changing --------------------------------------------------------------------------

    def add_operand(
        self, name: str, shape: Shape | None = None, dtype: str | None = None
    ) -> Operand:
        """Add an operand that nothing produces yet.

        Parameters
        ----------
        name : str
            Not yet in the graph.
        shape : tuple of (int or None), optional
            The annotation; None inside marks a dynamic extent.
        dtype : str, optional
            PNNX's name of the element type, such as ``"f32"``.

        Returns
        -------
        Operand

        Raises
        ------
        GraphError
            If an operand has this name.
        """
        if name in self._operands:
            raise GraphError(f"operand '{name}' exists already")
        operand = self._operands[name] = Operand(name, shape, dtype)
        return operand

    def add_operator(
        self,
        type: str,
        name: str,
        inputs: Iterable[Operand | str] = (),
        outputs: Iterable[Operand | str] = (),
        *,
        params: Mapping[str, Any] | None = None,
        attributes: Mapping[str, Attribute] | None = None,
        input_keys: Sequence[str | None] | None = None,
        location: str | None = None,
    ) -> Operator:
        """Add an operator, and those of its operands that do not exist.

        Parameters
        ----------
        type : str
            Such as ``"nn.Conv2d"``.
        name : str
            Not yet in the graph.
        inputs, outputs : iterable of (Operand or str)
            Operands or their names; no output may have a producer.
        params : mapping of str, optional
            Literal arguments.
        attributes : mapping of str to Attribute, optional
            Weights.
        input_keys : sequence of (str or None), optional
            The keyword of each input; by default all are positional.
        location : str, optional
            ``file:line``, for messages.

        Returns
        -------
        Operator

        Raises
        ------
        GraphError
            If the name is taken, an output has a producer, or an operand belongs to another graph;
            the graph is unchanged then.
        """
        if name in self._operators:
            raise GraphError(f"operator '{name}' exists already")
        operator = Operator(type, name)
        operator.params = dict(params or {})
        operator.attributes = dict(attributes or {})
        operator.location = location
        inputs, outputs = list(inputs), list(outputs)
        for operand in (*inputs, *outputs):
            self._check_operand(operand)
        keys = _checked_keys(operator, inputs, input_keys)
        for target in _checked_outputs(operator, outputs):
            known = self._operands.get(target)
            if known is not None and known.producer is not None:
                raise GraphError(
                    f"{operator.label}: operand '{target}' is already produced by "
                    f"{known.producer.label}"
                )
        # All checks are done: from here on the graph changes.
        sources = [self._resolve(operand) for operand in inputs]
        self._append(operator, sources, keys, [self._resolve(operand) for operand in outputs])
        return operator

    def remove_operator(self, operator: Operator) -> None:
        """Remove an operator; outputs that are read stay, without a producer.

        The operator keeps its lists of inputs and outputs.

        Parameters
        ----------
        operator : Operator

        Raises
        ------
        GraphError
            If it belongs to another graph.
        """
        self._check_owned(operator)
        del self._operators[operator.name]
        self._disconnect(operator)
        for operand in operator._outputs:
            operand.producer = None
        self._drop_unused(operator._inputs + operator._outputs)

    def set_inputs(
        self,
        operator: Operator,
        inputs: Sequence[Operand],
        input_keys: Sequence[str | None] | None = None,
    ) -> None:
        """Replace the inputs of an operator.

        Old inputs without a producer and without another reader leave the graph.

        Parameters
        ----------
        operator : Operator
        inputs : sequence of Operand
        input_keys : sequence of (str or None), optional
            The keyword of each input; by default all are positional.

        Raises
        ------
        GraphError
            If the operator or an operand belongs to another graph, or the numbers of inputs and
            keys differ.
        """
        self._check_owned(operator)
        keys = _checked_keys(operator, inputs, input_keys)
        sources = [self._resolve(operand) for operand in inputs]
        before = operator._inputs
        self._disconnect(operator)
        self._connect(operator, sources, keys)
        self._drop_unused(before)

    def set_outputs(self, operator: Operator, outputs: Sequence[Operand]) -> None:
        """Replace the outputs of an operator; their previous producers lose them.

        Parameters
        ----------
        operator : Operator
        outputs : sequence of Operand
            Each once.

        Raises
        ------
        GraphError
            If the operator or an operand belongs to another graph, or an operand occurs twice.
        """
        self._check_owned(operator)
        targets = [self._resolve(operand) for operand in outputs]
        _checked_outputs(operator, targets)
        before = operator._outputs
        for operand in before:
            operand.producer = None
        for operand in targets:
            if operand.producer is not None:
                operand.producer._outputs.remove(operand)
            operand.producer = operator
        operator._outputs = targets
        self._drop_unused(before)

    def replace_uses(self, old: Operand, new: Operand) -> None:
        """Let all readers of `old` read `new`.

        Parameters
        ----------
        old, new : Operand

        Raises
        ------
        GraphError
            If one belongs to another graph.
        """
        self._check_operand(old)
        self._check_operand(new)
        if old is new:
            return
        for use in old._uses:
            use.operator._inputs[use.slot] = new
            new._uses[use] = None
        old._uses = {}
        self._drop_unused([old])

    def add_parsed(
        self,
        operator: Operator,
        inputs: Sequence[str],
        input_keys: Sequence[str | None],
        outputs: Mapping[str, tuple[Shape | None, str | None]],
    ) -> None:
        """Add an operator of a file without any checks: the parser has checked all names.

        Parameters
        ----------
        operator : Operator
            Without inputs and outputs; with a name that is not in the graph.
        inputs : sequence of str
            Operands of the graph.
        input_keys : sequence of (str or None)
            The keyword of each.
        outputs : mapping of str to (shape, dtype)
            New operands, with their annotations.
        """
        operands = self._operands
        made = []
        for name, (shape, dtype) in outputs.items():
            operand = operands[name] = Operand(name, shape, dtype)
            made.append(operand)
        self._append(operator, [operands[name] for name in inputs], tuple(input_keys), made)

    def _append(
        self,
        operator: Operator,
        inputs: list[Operand],
        keys: tuple[str | None, ...],
        outputs: list[Operand],
    ) -> None:
        """Add an operator with a new name and operands of this graph, without checks."""
        self._operators[operator.name] = operator
        self._connect(operator, inputs, keys)
        operator._outputs = outputs
        for operand in outputs:
            operand.producer = operator

    def _connect(
        self, operator: Operator, inputs: list[Operand], keys: tuple[str | None, ...]
    ) -> None:
        operator._inputs = inputs
        operator.input_keys = keys
        for slot, operand in enumerate(inputs):
            operand._uses[Use(operator, slot)] = None

    def _disconnect(self, operator: Operator) -> None:
        """Remove the operator from the uses of its inputs; its list of inputs stays."""
        for slot, operand in enumerate(operator._inputs):
            del operand._uses[Use(operator, slot)]

    def _drop_unused(self, operands: Iterable[Operand]) -> None:
        """Remove those operands that have neither a producer nor a reader."""
        for operand in operands:
            if operand.producer is None and not operand._uses:
                self._operands.pop(operand.name, None)

    def unique_name(self, prefix: str) -> str:
        """Return a name that neither an operator nor an operand has.

        Parameters
        ----------
        prefix : str
            Returned as it is if it is free, otherwise with a number appended.

        Returns
        -------
        str
        """
        name, number = prefix, 0
        while name in self._operators or name in self._operands:
            number += 1
            name = f"{prefix}_{number}"
        return name

    def copy(self) -> Graph:
        """Return an independent graph that shares the attributes' bytes."""
        other = Graph()
        other.derived = self.derived
        for name, operand in self._operands.items():
            other._operands[name] = Operand(name, operand.shape, operand.dtype)
        for operator in self._operators.values():
            other._add_twin(operator)
        return other

    def _add_twin(self, operator: Operator) -> None:
        """Add a copy of another graph's operator, whose operands exist here by the same names.

        It is not checked again, because every plan copies its graph.
        """
        twin = Operator(operator.type, operator.name)
        twin.params = dict(operator.params)
        twin.attributes = dict(operator.attributes)
        twin.post_ops = operator.post_ops
        twin.template = operator.template
        twin.location = operator.location
        inputs = [self._operands[operand.name] for operand in operator._inputs]
        outputs = [self._operands[operand.name] for operand in operator._outputs]
        self._append(twin, inputs, operator.input_keys, outputs)

    # -- order and invariants --------------------------------------------------------------

    def topological_order(self) -> list[Operator]:
        """Return the operators so that each follows the producers of its inputs.

        Kahn's algorithm, O(n log n).  Of the operators that are ready, the one inserted first comes
        first, so a graph in topological order keeps its order.

        Raises
        ------
        GraphError
            If the graph has a cycle; the message names the operators on it.
        """
        if self._is_in_order():
            return list(self._operators.values())
        import heapq  # rarely needed: files are in order

        position = {operator: i for i, operator in enumerate(self._operators.values())}
        missing = {
            operator: len({p for p in (o.producer for o in operator._inputs) if p is not None})
            for operator in position
        }
        ready = [position[operator] for operator, count in missing.items() if count == 0]
        heapq.heapify(ready)
        operators = list(position)
        order: list[Operator] = []
        while ready:
            operator = operators[heapq.heappop(ready)]
            order.append(operator)
            for consumer in dict.fromkeys(
                c for operand in operator._outputs for c in operand.consumers
            ):
                missing[consumer] -= 1
                if missing[consumer] == 0:
                    heapq.heappush(ready, position[consumer])
        if len(order) < len(operators):
            cycle = self._find_cycle(set(operators) - set(order))
            path = " -> ".join(f"'{operator.name}'" for operator in [*cycle, cycle[0]])
            raise GraphError(f"the graph has a cycle: {path}")
        return order

    def _is_in_order(self) -> bool:
        """Tell whether each operator was inserted after the producers of its inputs."""
        done: set[Operator | None] = {None}
        for operator in self._operators.values():
            for operand in operator._inputs:
                if operand.producer not in done:
                    return False
            done.add(operator)
        return True

    @staticmethod
    def _find_cycle(stuck: set[Operator]) -> list[Operator]:
        """Follow producers from an operator that never became ready until one repeats."""
        operator = min(stuck, key=lambda o: o.name)
        seen: dict[Operator, int] = {}
        walk: list[Operator] = []
        while operator not in seen:
            seen[operator] = len(walk)
            walk.append(operator)
            operator = next(o.producer for o in operator._inputs if o.producer in stuck)
        return walk[seen[operator] :][::-1]

    def verify(self) -> None:
        """Check all invariants of the graph.

        Raises
        ------
        GraphError
            If an operand is read but never produced, if producers, inputs, outputs and uses
            disagree, or if there is a cycle.
        """
        produced: dict[Operand, Operator] = {}
        for name, operator in self._operators.items():
            if operator.name != name:
                raise GraphError(f"{operator.label} is filed under '{name}'")
            if len(operator.input_keys) != len(operator._inputs):
                raise GraphError(f"{operator.label}: input keys and inputs differ in number")
            for slot, operand in enumerate(operator._inputs):
                if self._operands.get(operand.name) is not operand:
                    raise GraphError(
                        f"{operator.label}: input '{operand.name}' is not in the graph"
                    )
                if Use(operator, slot) not in operand._uses:
                    raise GraphError(f"{operator.label}: use of '{operand.name}' is not recorded")
            for operand in operator._outputs:
                if self._operands.get(operand.name) is not operand:
                    raise GraphError(
                        f"{operator.label}: output '{operand.name}' is not in the graph"
                    )
                if operand.producer is not operator or operand in produced:
                    raise GraphError(
                        f"{operator.label}: output '{operand.name}' has another producer"
                    )
                produced[operand] = operator
        for name, operand in self._operands.items():
            if operand.name != name:
                raise GraphError(f"operand '{operand.name}' is filed under '{name}'")
            if operand.producer is None:
                readers = ", ".join(f"'{o.name}'" for o in operand.consumers) or "nothing"
                raise GraphError(f"operand '{name}' has no producer; it is read by {readers}")
            if operand not in produced:
                raise GraphError(
                    f"operand '{name}' is not among the outputs of {operand.producer.label}"
                )
            for use in operand._uses:
                reader = use.operator
                if (
                    self._operators.get(reader.name) is not reader
                    or use.slot >= len(reader._inputs)
                    or reader._inputs[use.slot] is not operand
                ):
                    raise GraphError(f"operand '{name}' is not input {use.slot} of {reader.label}")
        self.topological_order()

    def subgraph(self, inputs: Sequence[Operand | str], outputs: Sequence[Operand | str]) -> Graph:
        """Return a new graph that computes `outputs` from `inputs`.

        Parameters
        ----------
        inputs, outputs : sequence of (Operand or str)
            Operands of this graph.

        Returns
        -------
        Graph
            Shares the attributes' bytes.

        Raises
        ------
        GraphError
            If `outputs` depend on an input of this graph that is not among `inputs`.
        """
        sources = dict.fromkeys(self.operand(_name(operand)) for operand in inputs)
        targets = [self.operand(_name(operand)) for operand in outputs]
        needed: set[Operator] = set()
        pending = list(targets)
        while pending:
            operand = pending.pop()
            if operand in sources or operand.producer in needed:
                continue
            operator = operand.producer
            if operator is None or operator.type == "pnnx.Input":
                raise GraphError(
                    f"the subgraph needs operand '{operand.name}', which its inputs do not provide"
                )
            needed.add(operator)
            pending.extend(operator._inputs)
        part = Graph()
        taken = {operator.name for operator in needed}

        def free_name(name: str) -> str:
            while name in taken:
                name += "_"
            return name

        for number, operand in enumerate(sources):
            part.add_operand(operand.name, operand.shape, operand.dtype)
            name = free_name(f"pnnx_input_{number}")
            part.add_operator("pnnx.Input", name, outputs=[operand.name])
        operators = [operator for operator in self._operators.values() if operator in needed]
        for operator in operators:
            for operand in operator._outputs:
                if operand in sources:
                    raise GraphError(
                        f"the subgraph has '{operand.name}' as an input, but also needs another "
                        f"output of {operator.label}, which produces it; make that one an input"
                    )
                part.add_operand(operand.name, operand.shape, operand.dtype)
        # Only now, because a pass may have added a producer after the readers of its outputs.
        for operator in operators:
            part._add_twin(operator)
        for number, operand in enumerate(targets):
            name = free_name(f"pnnx_output_{number}")
            part.add_operator("pnnx.Output", name, [operand.name])
        return part

    def __str__(self) -> str:
        lines = [f"graph with {len(self._operators)} operators, {len(self._operands)} operands"]
        for operator in self._operators.values():
            lines.append(f"  {operator.name}: {operator}")
        return "\n".join(lines)

    def __repr__(self) -> str:
        return (
            f"<Graph: {len(self._operators)} operators, {len(self.inputs)} inputs, "
            f"{len(self.outputs)} outputs>"
        )

    def _resolve(self, operand: Operand | str) -> Operand:
        if isinstance(operand, str):
            found = self._operands.get(operand)
            return self.add_operand(operand) if found is None else found
        self._check_operand(operand)
        return operand

    def _check_operand(self, operand: Operand | str) -> None:
        if not isinstance(operand, str) and self._operands.get(operand.name) is not operand:
            raise GraphError(f"operand '{operand.name}' belongs to another graph")

    def _check_owned(self, operator: Operator) -> None:
        if self._operators.get(operator.name) is not operator:
            raise GraphError(f"{operator.label} belongs to another graph")


def _name(operand: Operand | str) -> str:
    return operand if isinstance(operand, str) else operand.name


def _checked_keys(
    operator: Operator, inputs: Sequence[Any], keys: Sequence[str | None] | None
) -> tuple[str | None, ...]:
    keys = (None,) * len(inputs) if keys is None else tuple(keys)
    if len(keys) != len(inputs):
        raise GraphError(f"{operator.label}: {len(keys)} input keys for {len(inputs)} inputs")
    return keys


def _checked_outputs(operator: Operator, outputs: Sequence[Operand | str]) -> list[str]:
    names = [_name(operand) for operand in outputs]
    if len(set(names)) != len(names):
        raise GraphError(f"{operator.label}: an operand stands twice among the outputs")
    return names


def _matcher(pattern: str | None) -> Callable[[str], Any]:
    """Return a function that tells whether a name matches a shell pattern."""
    if pattern is None:
        return lambda name: True
    if not any(character in pattern for character in "*?["):
        return pattern.__eq__
    import re
    from fnmatch import translate

    return re.compile(translate(pattern)).match


def _lookup(table: Mapping[str, Any], name: str, kind: str) -> Any:
    try:
        return table[name]
    except KeyError:
        from difflib import get_close_matches

        near = get_close_matches(name, table, 3)
        hint = f"; similar names: {', '.join(near)}" if near else ""
        raise KeyError(f"no {kind} '{name}' in the graph{hint}") from None
