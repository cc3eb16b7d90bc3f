"""How much of the errors of each operator reaches the results, and the tiles that follow."""

from __future__ import annotations

import pytest

from kuiper._kernels.micro import dispatch
from kuiper._runtime.weights import WeightCache
from kuiper.ir.view import TensorSpec
from kuiper.model import Model
from kuiper.ops.product.algorithms.base import MAX_ERROR
from kuiper.planning.planner import Planner
from kuiper.planning.tolerance import influences, tolerant_operators

from ...support.halves import relative_error
from ...support.passes import optimized
from ...support.textgraph import conv, graph_of, text, values
from ...support.workbench import isa

CHANNELS = 64
POOL = "nn.AdaptiveAvgPool2d m 1 1 {} {} output_size=({size},{size})"


def layer(name: str, x: str, y: str) -> str:
    return conv(name, x, y, CHANNELS, CHANNELS, kernel=3, padding=1)


def found(*lines: str, outputs=("y",), fused: bool = False) -> dict[str, float]:
    """Return the influence of each operator of a network, by name."""
    graph = graph_of(text(*lines, outputs=outputs))
    if fused:
        graph = optimized(graph, [values(2, CHANNELS, 8, 8)])
        assert any(post.type == "add" for operator in graph for post in operator.post_ops)
    by_operator = influences(*planned(graph))
    return {operator.name: influence for operator, influence in by_operator.items()}


def planned(graph):
    """Return the arguments of the functions under test."""
    inputs = {graph.inputs[0]: TensorSpec((2, CHANNELS, 8, 8))}
    planner = Planner(graph, inputs, 1, WeightCache())
    planner.infer({})
    results = {operator.inputs[0] for operator in graph if operator.type == "pnnx.Output"}
    return planner.order, planner.specs, results


def test_a_chain_keeps_all_errors():
    lines = [layer("c", "x", "a"), "nn.ReLU r 1 1 a b", layer("d", "b", "y")]
    assert found(*lines) == {"in_x": 1, "c": 1, "r": 1, "d": 1, "out0_y": 0}


@pytest.mark.parametrize(
    "mean",
    [
        POOL.format("b", "y", size=1),
        "nn.AvgPool2d m 1 1 b y kernel_size=(8,8)",
        "torch.mean m 1 1 b y dim=(2,3) keepdim=False",
    ],
)
def test_a_mean_over_pixels(mean):
    each = found(layer("c", "x", "a"), "nn.ReLU r 1 1 a b", mean)
    assert each["m"] == 1
    assert each["c"] == each["r"] == 1 / 64


@pytest.mark.parametrize(("size", "expected"), [(2, 1 / 16), (4, 1 / 4), (8, 1)])
def test_a_mean_over_fewer_pixels(size, expected):
    assert found(layer("c", "x", "a"), POOL.format("a", "y", size=size))["c"] == expected


def test_a_maximum_is_no_mean():
    line = "nn.AdaptiveMaxPool2d m 1 1 a y output_size=(1,1) return_indices=False"
    assert found(layer("c", "x", "a"), line)["c"] == 1


def test_both_summands_have_a_half():
    lines = [layer("c", "x", "a"), layer("d", "a", "b"), layer("e", "b", "d")]
    each = found(*lines, "pnnx.Expression s 2 1 a d y expr=add(@0,@1)")
    assert each["d"] == each["e"] == 0.5
    assert each["c"] == 1  # on both ways


def test_a_fused_sum():
    lines = [layer("c", "x", "a"), layer("d", "a", "b"), layer("e", "b", "d")]
    each = found(*lines, "pnnx.Expression s 2 1 a d y expr=add(@0,@1)", fused=True)
    assert (each["c"], each["d"], each["e"]) == (1, 0.5, 0.5)


def test_a_part_of_a_concatenation():
    each = found(
        layer("c", "x", "a"), layer("d", "a", "b"), layer("e", "x", "d"),
        "torch.cat j 3 1 a b d p dim=1",
        conv("f", "p", "y", 3 * CHANNELS, CHANNELS),
    )  # fmt: skip
    assert each["d"] == each["e"] == pytest.approx(1 / 3)
    assert each["c"] == pytest.approx(2 / 3)


def test_a_result_on_the_way():
    lines = [layer("c", "x", "a"), layer("d", "a", "b"), POOL.format("b", "y", size=1)]
    assert found(*lines, outputs=("a", "y"))["c"] == 1
    assert found(*lines)["c"] == 1 / 64


def test_tolerant_operators():
    lines = [layer("c", "x", "a"), layer("d", "a", "b"), POOL.format("b", "z", size=1)]
    graph = graph_of(text(*lines, conv("e", "z", "y", CHANNELS, 10)))
    names = {operator.name for operator in tolerant_operators(*planned(graph))}
    assert {"c", "d"} <= names
    assert not {"m", "e"} & names


@pytest.mark.skipif(not dispatch.tried(), reason="other costs")
def test_a_mean_allows_larger_tiles():
    """A larger tile saves more products."""
    x = values(1, CHANNELS, 56, 56)
    saved = {}
    for size in (1, 56):
        lines = [layer("c", "x", "a"), POOL.format("a", "b", size=size)]
        graph = graph_of(text(*lines, conv("d", "b", "y", CHANNELS, 10)))
        with isa(dispatch.tried()[0]):  # without tile registers, whose products are faster
            model = Model(graph, precision="bfloat16")
            saved[size] = sum(row["saved_flops"] for row in model.profile(x, runs=1).rows)
            assert relative_error(model(x), Model(graph)(x)) < MAX_ERROR
    assert saved[1] > 1.2 * saved[56] > 0
