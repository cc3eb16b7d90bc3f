"""The operators that a mean follows on every path to a result, and the errors they may have."""

from __future__ import annotations

import pytest

from kuiper._kernels.micro import dispatch
from kuiper._runtime.weights import WeightCache
from kuiper.ir.view import TensorSpec
from kuiper.model import Model
from kuiper.ops.product.algorithms.base import MAX_ERROR
from kuiper.planning.averages import averaged_operators
from kuiper.planning.planner import Planner

from ...support.halves import relative_error
from ...support.textgraph import conv, graph_of, text, values

CHANNELS = 64
POOL = "nn.AdaptiveAvgPool2d m 1 1 {} {} output_size=({size},{size})"


def layer(name: str, x: str, y: str) -> str:
    return conv(name, x, y, CHANNELS, CHANNELS, kernel=3, padding=1)


def averaged(*lines: str, outputs=("y",), side: int = 8) -> set[str]:
    """Return the names of the averaged operators of a network."""
    graph = graph_of(text(*lines, outputs=outputs))
    inputs = {graph.inputs[0]: TensorSpec((2, CHANNELS, side, side))}
    planner = Planner(graph, inputs, 1, WeightCache())
    planner.infer({})
    found = averaged_operators(planner.order, planner.specs, set(graph.outputs))
    return {operator.name for operator in found}


@pytest.mark.parametrize(
    "mean",
    [
        POOL.format("b", "y", size=1),
        "nn.AvgPool2d m 1 1 b y kernel_size=(8,8)",
        "torch.mean m 1 1 b y dim=(2,3) keepdim=False",
    ],
)
def test_before_a_mean(mean):
    assert averaged(layer("c", "x", "a"), "nn.ReLU r 1 1 a b", mean) == {"in_x", "c", "r"}


def test_through_operators_to_a_mean():
    lines = [
        layer("c", "x", "a"),
        layer("d", "a", "b"),
        "pnnx.Expression e 2 1 a b s expr=add(@0,@1)",
        POOL.format("s", "t", size=1),
        "torch.flatten f 1 1 t y start_dim=1 end_dim=-1",
    ]
    assert averaged(*lines) == {"in_x", "c", "d", "e"}


def test_a_second_path_without_a_mean():
    gate = [
        layer("c", "x", "a"),
        POOL.format("a", "b", size=1),
        "nn.Sigmoid g 1 1 b s",
        "pnnx.Expression e 2 1 a s y expr=mul(@0,@1)",
    ]
    assert averaged(*gate) == set()


def test_a_result_before_the_mean():
    lines = [layer("c", "x", "a"), layer("d", "a", "b"), POOL.format("b", "y", size=1)]
    assert averaged(*lines) == {"in_x", "c", "d"}
    assert averaged(*lines, outputs=("a", "y")) == {"d"}


@pytest.mark.parametrize(("size", "expected"), [(1, True), (2, True), (4, False), (8, False)])
def test_a_mean_of_few_pixels_does_not_count(size, expected):
    found = averaged(layer("c", "x", "a"), POOL.format("a", "y", size=size))
    assert ("c" in found) == expected


def test_a_maximum_is_no_mean():
    line = "nn.AdaptiveMaxPool2d m 1 1 a y output_size=(1,1) return_indices=False"
    assert averaged(layer("c", "x", "a"), line) == set()


@pytest.mark.skipif(not dispatch.has_bfloat16_products(), reason="other costs")
def test_a_mean_allows_larger_tiles():
    """A larger tile saves more products."""
    x = values(1, CHANNELS, 56, 56)
    saved = {}
    for size in (1, 56):
        graph = graph_of(text(layer("c", "x", "a"), POOL.format("a", "y", size=size)))
        model = Model(graph, precision="bfloat16")
        saved[size] = sum(row["saved_flops"] for row in model.profile(x, runs=1).rows)
        assert relative_error(model(x), Model(graph)(x)) < MAX_ERROR
    assert saved[1] > 1.2 * saved[56] > 0
