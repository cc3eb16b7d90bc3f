"""Checks of a loaded graph: kuiper has its operators and can read their arguments."""

from __future__ import annotations

from kuiper.errors import GraphError, OperatorError, UnsupportedOperatorError
from kuiper.ir import Graph, Operand
from kuiper.ops import find_record, record_or_none
from kuiper.ops.core.resolve import resolve
from kuiper.ops.core.schema import attribute_spec

__all__ = ["GRAPH_TYPES", "verify_operators"]

MAX_NESTING = 100  # of lists inside lists, because recursive functions traverse them

GRAPH_TYPES = ("pnnx.Input", "pnnx.Output")


def verify_operators(graph: Graph) -> None:
    """Check that every operator of a graph can be planned.

    Raises
    ------
    GraphError
        If an operator has the wrong number of inputs or outputs, or lists are nested too deeply.
    UnsupportedOperatorError
        If there are operators without a record; all are listed.
    OperatorError
        If an operator's arguments are wrong.
    """
    _verify_ends(graph)
    _verify_types(graph)
    _verify_arguments(graph)


def _verify_ends(graph: Graph) -> None:
    """Check the number of inputs and outputs of every operator, and the depth of lists."""
    depths: dict[Operand, int] = {}  # of lists inside lists
    for op in graph.topological_order():
        if op.type in ("prim::TupleConstruct", "prim::ListConstruct"):
            depth = 1 + max((depths.get(operand, 0) for operand in op.inputs), default=0)
            depths.update(dict.fromkeys(op.outputs, depth))
            if depth > MAX_NESTING:
                raise GraphError(
                    f"{op.label}: makes a list of lists that is {depth} deep, "
                    f"expected up to {MAX_NESTING}"
                )
        if op.type == "pnnx.Input":
            expected, fits = "no input and one output", not op.inputs and len(op.outputs) == 1
        elif op.type == "pnnx.Output":
            expected, fits = "no output", not op.outputs
        else:
            expected, fits = "an output", bool(op.outputs)
        if not fits:
            raise GraphError(
                f"{op.label}: has {len(op.inputs)} inputs and {len(op.outputs)} outputs, "
                f"expected {expected}"
            )


def _verify_types(graph: Graph) -> None:
    unknown = {
        type: count
        for type, count in graph.type_counts().items()
        if type not in GRAPH_TYPES and getattr(record_or_none(type), "internal", True)
    }
    if not unknown:
        return
    listed = ", ".join(
        f"{type} ({count} use{'s' if count > 1 else ''}, first "
        f"'{graph.find(type=_literal(type))[0].name}'{_advice(type)})"
        for type, count in unknown.items()
    )
    many = len(unknown) > 1
    raise UnsupportedOperatorError(
        f"{len(unknown)} operator{'s are' if many else ' is'} not supported: {listed}. "
        "See kuiper.supported_operators(); @kuiper.operator adds one of your own."
    )


def _verify_arguments(graph: Graph) -> None:
    """Check literal arguments; planning checks those that depend on shapes."""
    for op in graph:
        if op.type in GRAPH_TYPES:
            continue
        attributes = {key: attribute_spec(a) for key, a in op.attributes.items()}
        arguments = resolve(op, find_record(op.type), {}, attributes)
        if arguments.verify is not None:
            arguments.verify(op)
        for key, spec in attributes.items():
            if op.type.startswith("nn.") and spec.dtype.kind == "c":
                raise OperatorError(
                    f"{op.label}: its weight '{key}' is {spec.dtype}, expected real numbers"
                )


def _advice(type: str) -> str:
    """Return advice on an unknown operator, for the error message."""
    from kuiper.ops.core.advice import advice

    said = advice(type)
    return f"; {said}" if said else ""


def _literal(pattern: str) -> str:
    """Escape a text for :meth:`~kuiper.ir.Graph.find`."""
    return "".join(f"[{c}]" if c in "*?[" else c for c in pattern)
