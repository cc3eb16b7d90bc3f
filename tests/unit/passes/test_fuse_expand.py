"""Fused inverted residuals give the bits of two separate convolutions."""

from __future__ import annotations

import re
from importlib import import_module

import numpy as np
import pytest

from kuiper.errors import UnsupportedOperatorError
from kuiper.model import Model
from kuiper.ops.product.algorithms import expand

from ...reference.graph import read_graph, run_graph
from ...support import assert_outputs, assert_same_bits
from ...support.textgraph import conv, files_of, graph_of, text, values
from ...support.workbench import ISAS, PAIR_ISAS, isa

# A function of this name hides the module, so `from ... import` cannot reach it.
fuse_expand = import_module("kuiper.passes.optimize.fuse_expand")

FUSED = "kuiper.ExpandDepthwise"
# channels in and in between, height and width, kernel, stride, padding, dilation, activation
BLOCKS = {
    "3x3": (16, 48, (11, 19), (3, 3), 1, 1, 1, "nn.ReLU6"),
    "3x3 stride 2": (12, 40, (12, 20), (3, 3), 2, 1, 1, "nn.SiLU"),
    "5x5": (9, 33, (9, 17), (5, 5), 1, 2, 1, "nn.Hardswish"),
    "5x5 stride 2": (16, 64, (13, 23), (5, 5), 2, 2, 1, None),
    "no padding": (16, 32, (9, 13), (3, 3), 1, 0, 1, "nn.ReLU"),
    "more padding than the window": (16, 32, (5, 12), (3, 3), 1, 4, 1, "nn.ReLU"),
    "dilated": (16, 32, (9, 13), (3, 3), 1, 2, 2, "nn.ReLU"),
    "7x1": (16, 32, (9, 13), (7, 1), 1, 1, 1, "nn.ReLU"),
    "4x4 stride 3": (16, 32, (14, 17), (4, 4), 3, 1, 1, "nn.ReLU"),
    "narrow": (16, 32, (9, 5), (3, 3), 1, 1, 1, "nn.ReLU"),
    "one pixel": (16, 32, (1, 1), (3, 3), 1, 1, 1, "nn.ReLU"),
}


def depthwise(x, y, c, kernel, stride, padding, dilation) -> str:
    kh, kw = kernel
    return (
        f"nn.Conv2d d 1 1 {x} {y} bias=True dilation=({dilation},{dilation}) groups={c} "
        f"in_channels={c} kernel_size=({kh},{kw}) out_channels={c} padding=({padding},{padding}) "
        f"padding_mode=zeros stride=({stride},{stride}) @bias=({c})f32 @weight=({c},1,{kh},{kw})f32"
    )


def block(name: str, tail=("nn.ReLU t 1 1 q y",), inputs=("x",), outputs=("y",)):
    """Return the graph of a block, and two images for it."""
    return graph_of(block_lines(name, tail, inputs, outputs)), image(name)


def block_lines(name: str, tail=("nn.ReLU t 1 1 q y",), inputs=("x",), outputs=("y",)) -> str:
    c, wide, _, kernel, stride, padding, dilation, activation = BLOCKS[name]
    lines = [
        conv("e", "x", "p", c, wide),
        f"{activation or 'nn.Identity'} act 1 1 p a",
        depthwise("a", "q", wide, kernel, stride, padding, dilation),
    ]
    return text(*lines, *tail, inputs=inputs, outputs=outputs)


def image(name: str) -> np.ndarray:
    c, _, (h, w), *_ = BLOCKS[name]
    return values(2, c, h, w)


@pytest.fixture(autouse=True)
def fuse_small_images(monkeypatch):
    monkeypatch.setattr(fuse_expand, "MIN_BYTES", 0)


def run_unfused(graph, monkeypatch, *inputs, **options):
    """Run the graph with two separate convolutions."""
    with monkeypatch.context() as patch:
        patch.setattr(fuse_expand, "MIN_BYTES", 1 << 60)
        model = Model(graph, **options)
        result = model(*inputs)
        assert FUSED not in types(model, inputs)
    return result


def types(model: Model, inputs) -> list[str]:
    return [op.type for op in model.planned_graph(*[x.shape for x in inputs])]


@pytest.mark.parametrize("variant", ISAS)
@pytest.mark.parametrize("name", BLOCKS)
def test_the_fused_kernel_gives_the_bits_of_two_convolutions(name, variant, monkeypatch):
    graph, x = block(name)
    with isa(variant):
        expected = run_unfused(graph, monkeypatch, x)
        model = Model(graph)
        assert types(model, [x]).count(FUSED) == 1
        assert np.std(expected) > 0
        assert_same_bits(model(x), expected, name)


@pytest.mark.parametrize("variant", PAIR_ISAS)
@pytest.mark.parametrize("ring", [1, expand.RING_BYTES])
@pytest.mark.parametrize("name", BLOCKS)
def test_the_fused_kernel_gives_the_same_bits_in_bfloat16(name, ring, variant, monkeypatch):
    # A product after the block, whose input is stored in bfloat16.
    graph, x = block(name, [conv("z", "q", "y", BLOCKS[name][1], 8)])
    monkeypatch.setattr(expand, "RING_BYTES", ring)
    with isa(variant):
        expected = run_unfused(graph, monkeypatch, x, precision="bfloat16")
        for threads in (1, 3):
            model = Model(graph, precision="bfloat16", threads=threads)
            assert types(model, [x]).count(FUSED) == 1
            assert_same_bits(model(x), expected, name)
        assert_outputs([expected], [Model(graph)(x)], 0.02, name)


@pytest.mark.parametrize("variant", ISAS)
@pytest.mark.parametrize("name", BLOCKS)
def test_the_fused_kernel_agrees_with_the_reference(name, variant):
    """The two compared above share the kernel of rows; the reference shares nothing."""
    lines, x = block_lines(name), image(name)
    files = files_of(lines)
    (expected,) = run_graph(read_graph(*files), [x])
    with isa(variant):
        model = Model(graph_of(lines))
        assert types(model, [x]).count(FUSED) == 1
        assert_outputs([model(x)], [expected], 1e-5, name)


@pytest.mark.parametrize("ring", [1, 40 << 10])
@pytest.mark.parametrize("name", ["3x3", "3x3 stride 2", "5x5 stride 2", "dilated"])
def test_channels_are_processed_in_blocks_if_the_ring_is_small(name, ring, monkeypatch):
    graph, x = block(name)
    expected = Model(graph)(x)
    monkeypatch.setattr(expand, "RING_BYTES", ring)
    assert_same_bits(Model(graph)(x), expected, name)


@pytest.mark.parametrize("threads", [2, 3, 7])
@pytest.mark.parametrize("name", BLOCKS)
def test_the_bits_are_independent_of_threads_and_batch(name, threads):
    graph, x = block(name)
    expected = Model(graph, threads=1)(x)
    assert_same_bits(Model(graph, threads=threads)(x), expected, "threads")
    assert_same_bits(Model(graph)(x[1:]), expected[1:], "batch")


@pytest.mark.parametrize(
    "tail",
    [
        "pnnx.Expression s 2 1 q r y expr=add(@0,@1)",
        "nn.SiLU t 1 1 q v\npnnx.Expression s 2 1 v r y expr=add(@0,@1)",
        "pnnx.Expression s 2 1 q r v expr=add(@0,@1)\nnn.Hardswish t 1 1 v y",
    ],
)
@pytest.mark.parametrize("name", ["3x3", "narrow"])
def test_a_residual_sum_after_the_block(name, tail, monkeypatch):
    graph, x = block(name, tail.split("\n"), inputs=("x", "r"))
    r = values(2, BLOCKS[name][1], *x.shape[2:])
    model = Model(graph)
    assert types(model, [x, r]).count(FUSED) == 1
    assert_same_bits(model(x, r), run_unfused(graph, monkeypatch, x, r), name)
    assert_outputs([model(x, r)], [Model(graph, optimize=False)(x, r)], 1e-5, "without passes")


def test_steps_count_both_convolutions():
    graph, x = block("3x3")
    steps = Model(graph).plan(x.shape).steps
    (step,) = [step for step in steps if step.kind == "conv_expand_depthwise"]
    pixels = 2 * 11 * 19
    assert step.flops == 2.0 * pixels * 48 * (16 + 9)


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param([conv("e", "x", "a", 16, 48), "nn.ReLU b 1 1 a w"], id="read twice"),
        pytest.param([conv("e", "x", "a", 16, 48, kernel=3, padding=1)], id="3x3"),
        pytest.param([conv("e", "x", "a", 16, 48).replace("stride=(1,1)", "stride=(2,2)")], id="2"),
        pytest.param([conv("e", "x", "a", 16, 48, padding=1)], id="padded"),
        pytest.param([conv("e", "x", "a", 64, 48)], id="narrowing"),
    ],
)
def test_convolutions_that_are_not_fused(lines):
    outputs = ("y", "w") if len(lines) > 1 else ("y",)
    graph = graph_of(text(*lines, depthwise("a", "y", 48, (3, 3), 1, 1, 1), outputs=outputs))
    x = values(1, 64 if "in_channels=64" in lines[0] else 16, 8, 12)
    assert FUSED not in types(Model(graph), [x])


def test_a_grouped_convolution_is_not_fused():
    grouped = depthwise("a", "y", 48, (3, 3), 1, 1, 1)
    grouped = grouped.replace("groups=48", "groups=24").replace("(48,1,3,3)", "(48,2,3,3)")
    graph = graph_of(text(conv("e", "x", "a", 16, 48), grouped))
    assert FUSED not in types(Model(graph), [values(1, 16, 8, 12)])


def test_small_images_are_not_fused(monkeypatch):
    monkeypatch.undo()
    graph, x = block("3x3")
    assert FUSED not in types(Model(graph), [x])


def test_a_file_cannot_hold_the_fused_operator():
    line = "kuiper.ExpandDepthwise e 1 1 x y @expand_weight=(32,16,1,1)f32 @weight=(32,1,3,3)f32"
    with pytest.raises(UnsupportedOperatorError, match=re.escape(FUSED)):
        Model(graph_of(text(line)))
