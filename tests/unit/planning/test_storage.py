"""The operands that are stored in bfloat16."""

from __future__ import annotations

import pytest

from kuiper._runtime.weights import WeightCache
from kuiper.ir.view import TensorSpec
from kuiper.planning.planner import Planner
from kuiper.planning.storage import bfloat16_operands

from ...support.textgraph import conv, graph_of, linear, norm, text

FEATURES = 32


def stored(*lines: str, shape=(2, 5, FEATURES), outputs=("y",)) -> set[str]:
    """Return the names of the operands of a network that are stored in bfloat16."""
    graph = graph_of(text(*lines, outputs=outputs))
    planner = Planner(graph, {graph.inputs[0]: TensorSpec(shape)}, 1, WeightCache())
    planner.infer({})
    results = {operator.inputs[0] for operator in graph if operator.type == "pnnx.Output"}
    return {operand.name for operand in bfloat16_operands(planner.order, planner.specs, results)}


def layer(name: str, x: str, y: str) -> str:
    return linear(name, x, y, FEATURES, FEATURES)


def normalized(name: str, x: str, y: str, type: str = "nn.LayerNorm") -> str:
    bias = f"@bias=({FEATURES})f32 " if type == "nn.LayerNorm" else ""
    return (
        f"{type} {name} 1 1 {x} {y} elementwise_affine=True eps=1e-05 "
        f"normalized_shape=({FEATURES}) {bias}@weight=({FEATURES})f32"
    )


def add(name: str, a: str, b: str, y: str) -> str:
    return f"pnnx.Expression {name} 2 1 {a} {b} {y} expr=add(@0,@1)"


def test_a_chain_of_products():
    lines = [layer("a", "x", "p"), "nn.GELU g 1 1 p q approximate=none", layer("b", "q", "y")]
    assert stored(*lines) == {"p", "q"}


def test_what_follows_the_last_product_is_not_stored():
    """As the decoding of boxes, whose coordinates need more bits."""
    lines = [
        layer("a", "x", "p"), layer("b", "p", "q"), "nn.Sigmoid s 1 1 q r",
        "pnnx.Expression e 1 1 r t expr=mul(@0,8.0)", "F.softmax m 1 1 t y dim=-1",
    ]  # fmt: skip
    assert stored(*lines) == {"p"}


@pytest.mark.parametrize("type", ["nn.LayerNorm", "nn.RMSNorm"])
def test_a_residual_stream_stays_in_float32(type):
    lines = [
        layer("a", "x", "p"),
        normalized("n", "p", "q", type), layer("b", "q", "r"), add("s", "r", "p", "t"),
        normalized("m", "t", "u", type), layer("c", "u", "v"), add("w", "v", "t", "z"),
        normalized("o", "z", "f", type), layer("d", "f", "y"),
    ]  # fmt: skip
    assert stored(*lines) == {"q", "r", "u", "v", "f"}


def test_no_stream_if_a_product_reads_the_sum():
    lines = [
        layer("a", "x", "p"), normalized("n", "p", "q"), layer("b", "q", "r"),
        add("s", "r", "p", "t"), layer("c", "t", "y"),
    ]  # fmt: skip
    assert stored(*lines) == {"q", "r", "t"}
    lines[-1:] = [layer("c", "t", "u"), layer("d", "p", "v"), add("e", "u", "v", "y")]
    assert {"p", "q", "r", "t"} <= stored(*lines)


def test_no_stream_without_a_sum():
    lines = [layer("a", "x", "p"), normalized("n", "p", "q"), layer("b", "q", "y")]
    assert stored(*lines) == {"p", "q"}


def test_no_stream_of_images():
    lines = [
        conv("a", "x", "p", FEATURES, FEATURES), norm("n", "p", "q", FEATURES),
        conv("b", "q", "r", FEATURES, FEATURES), add("s", "r", "p", "t"),
        conv("c", "t", "y", FEATURES, FEATURES),
    ]  # fmt: skip
    assert {"p", "t"} <= stored(*lines, shape=(1, FEATURES, 6, 6))
