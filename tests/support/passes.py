"""Run passes on a graph and check that it stays consistent and computes the same."""

from __future__ import annotations

import numpy as np

from kuiper.ir import Graph
from kuiper.ir.view import TensorSpec
from kuiper.ops.core.schema import StaticValue
from kuiper.passes import PASSES
from kuiper.planning.infer import infer_specs
from kuiper.planning.planner import make_plan

from . import assert_outputs
from .textgraph import values

__all__ = ["PASS_BY_NAME", "X", "assert_specs", "optimized", "run"]

X = values(2, 3, 5, 6)
PASS_BY_NAME = {run.__name__: run for run in PASSES}


def optimized(graph: Graph, inputs, *names: str) -> Graph:
    """Return the graph after the passes called `names`, or after all passes.

    The graph is verified after each pass and must compute the same before and after.
    """
    specs_of = {o: TensorSpec(x.shape, x.dtype) for o, x in zip(graph.inputs, inputs, strict=True)}
    specs = infer_specs(graph, specs_of)
    expected = run(graph, inputs)
    chosen = [PASS_BY_NAME[name] for name in names] if names else PASSES
    for change in chosen:
        change(graph, specs)
        graph.verify()
        assert_specs(graph, specs)
    assert all(np.std(x) > 0 for x in expected if x.size > 1), "constant data proves nothing"
    assert_outputs(run(graph, inputs), expected, 1e-5, "after the passes")
    return graph


def run(graph: Graph, inputs) -> list[np.ndarray]:
    """Plan and run a graph without passes."""
    specs = {o: TensorSpec(x.shape, x.dtype) for o, x in zip(graph.inputs, inputs, strict=True)}
    return make_plan(graph, specs, 1).run([np.ascontiguousarray(x) for x in inputs])


def assert_specs(graph: Graph, specs) -> None:
    """Fail unless `specs` equals the result of a new shape inference."""
    sources = {operand: specs[operand] for operand in graph.inputs}
    for operand, spec in infer_specs(graph, sources).items():
        if isinstance(spec, StaticValue):
            continue
        assert specs[operand] == spec, f"{operand}: {specs[operand]} is really {spec}"
