"""Convolutions and linear layers between operands in bfloat16, against those in float32."""

from __future__ import annotations

import numpy as np
import pytest

from kuiper._kernels.micro import dispatch
from kuiper.model import Model
from kuiper.ops.product.algorithms.base import MAX_ERROR

from ...support.halves import relative_error
from ...support.textgraph import branch, conv, graph_of, linear, text, values
from ...support.workbench import PAIR_ISAS, isa

# Two layers that round their input, their weights and their result to 8 bits: about 1.6e-3 and
# 1.7e-3 each, and sums of squares.
BOUND = 6e-3


def transposed(name, x, y, c, o, kernel=3, stride=2, groups=1) -> str:
    return (
        f"nn.ConvTranspose2d {name} 1 1 {x} {y} bias=True dilation=(1,1) groups={groups} "
        f"in_channels={c} kernel_size=({kernel},{kernel}) out_channels={o} output_padding=(1,1) "
        f"padding=(1,1) stride=({stride},{stride}) @bias=({o})f32 "
        f"@weight=({c},{o // groups},{kernel},{kernel})f32"
    )


def conv1d(name, x, y, c, o, kernel=3) -> str:
    return (
        f"nn.Conv1d {name} 1 1 {x} {y} bias=True dilation=(1) groups=1 in_channels={c} "
        f"kernel_size=({kernel}) out_channels={o} padding=(1) padding_mode=zeros stride=(1) "
        f"@bias=({o})f32 @weight=({o},{c},{kernel})f32"
    )


def reflecting(line: str) -> str:
    return line.replace("padding_mode=zeros", "padding_mode=reflect")


def computed(function, more) -> str:
    """Return the line of a layer whose weight is an input of the model."""
    return f"{function} d 2 1 a w b bias=None {more} $input=a $weight=w"


# Name, shapes of the inputs, operators from x to y, kinds of steps that must be there.
CASES = {
    "odd channels": (
        [(1, 3, 9, 8)],
        [
            conv("c", "x", "a", 3, 13, kernel=3, padding=1),
            conv("d", "a", "b", 13, 37, kernel=3, padding=1),
            "nn.ReLU r 1 1 b e",
            conv("f", "e", "y", 37, 5),
        ],
        ["conv_few_inputs", "conv_bfloat16", "conv_bfloat16"],
    ),
    "few channels, stride 2": (
        [(2, 3, 19, 41)],
        [branch("c", "x", "a", (7, 7), (3, 3), 3, 37, stride=2), conv("d", "a", "y", 37, 5)],
        ["pad_image", "conv_few_inputs_bfloat16", "conv_bfloat16"],
    ),
    "one channel, uneven kernel": (
        [(1, 1, 16, 15)],
        [branch("c", "x", "a", (9, 6), (0, 2), 1, 40), conv("d", "a", "y", 40, 5)],
        ["pad_image", "conv_few_inputs_bfloat16", "conv_bfloat16"],
    ),
    "few channels, stride beyond the kernel": (
        [(1, 5, 13, 17)],
        [branch("c", "x", "a", (4, 3), (1, 1), 5, 40, stride=5), conv("d", "a", "y", 40, 5)],
        ["pad_image", "conv_few_inputs_bfloat16", "conv_bfloat16"],
    ),
    "few channels, dilated": (
        [(1, 3, 12, 12)],
        [branch("c", "x", "a", (3, 3), (2, 2), 3, 12, dilation=2), conv("d", "a", "y", 12, 5)],
        ["conv_few_inputs", "conv_bfloat16"],
    ),
    "residual and function": (
        [(2, 9, 7, 7)],
        [
            conv("c", "x", "a", 9, 20),
            conv("d", "a", "b", 20, 20, kernel=3, padding=1),
            "pnnx.Expression e 2 1 a b f expr=add(@0,@1)",
            "nn.SiLU g 1 1 f h",
            conv("i", "h", "y", 20, 6),
        ],
        ["conv_bfloat16", "conv_bfloat16", "conv_bfloat16"],
    ),
    "winograd": (
        [(1, 9, 9, 8)],  # too few tiles for blocks, on any number of threads
        [
            conv("c", "x", "a", 9, 64),
            conv("d", "a", "b", 64, 64, kernel=3, padding=1),
            "pnnx.Expression e 2 1 a b f expr=add(@0,@1)",
            "nn.SiLU g 1 1 f h",
            conv("i", "h", "y", 64, 6),
        ],
        ["conv_bfloat16", "winograd_input", "winograd_gemm", "winograd_output", "conv_bfloat16"],
    ),
    "groups": (
        [(1, 24, 6, 6)],
        [
            branch("c", "x", "a", (3, 3), (1, 1), 24, 48, groups=2),
            branch("d", "a", "b", (3, 3), (1, 1), 48, 48, groups=48),
            branch("e", "b", "f", (1, 1), (0, 0), 48, 96, groups=12),
            conv("i", "f", "y", 96, 6),
        ],
        ["conv_bfloat16", "conv_bfloat16"],
    ),
    "reflecting": (
        [(1, 10, 6, 6)],
        [
            conv("c", "x", "a", 10, 12),
            reflecting(conv("d", "a", "b", 12, 12, kernel=3, padding=1)),
            conv("e", "b", "y", 12, 6),
        ],
        ["conv_bfloat16", "conv_bfloat16", "conv_bfloat16"],
    ),
    "sequences": (
        [(2, 11, 13)],
        [conv1d("c", "x", "a", 11, 18), conv1d("d", "a", "b", 18, 9), conv1d("e", "b", "y", 9, 4)],
        ["conv_bfloat16", "conv_bfloat16", "conv_bfloat16"],
    ),
    "transposed": (
        [(1, 14, 5, 6)],
        [
            conv("c", "x", "a", 14, 15),
            transposed("d", "a", "b", 15, 21),
            transposed("e", "b", "f", 21, 6, stride=3, groups=3),
            conv("i", "f", "y", 6, 6),
        ],
        ["conv_bfloat16", "conv_transpose", "conv_transpose", "conv_bfloat16"],
    ),
    "linear": (
        [(3, 5, 33)],
        [
            linear("c", "x", "a", 33, 40),
            "nn.GELU g 1 1 a b approximate=none",
            linear("d", "b", "e", 40, 33),
            "pnnx.Expression f 2 1 x e h expr=add(@0,@1)",
            linear("i", "h", "y", 33, 10),
        ],
        ["linear_bfloat16", "linear_bfloat16", "linear_bfloat16"],
    ),
    "computed filters": (
        [(1, 7, 6, 6), (9, 8, 3, 3)],
        [
            conv("c", "x", "a", 7, 8),
            computed("F.conv2d", "dilation=(1,1) groups=1 padding=(1,1) stride=(1,1)"),
            conv("e", "b", "y", 9, 4),
        ],
        ["conv_few_inputs", "pack", "round_panels", "conv_bfloat16", "conv_bfloat16"],
    ),
    "computed transposed filters": (
        [(1, 7, 6, 6), (8, 10, 3, 3)],
        [
            conv("c", "x", "a", 7, 8),
            computed(
                "F.conv_transpose2d",
                "dilation=(1,1) groups=1 output_padding=(0,0) padding=(1,1) stride=(2,2)",
            ),
            conv("e", "b", "y", 10, 4),
        ],
        ["conv_few_inputs", "round_panels", "conv_transpose", "conv_bfloat16"],
    ),
    "computed matrix": (
        [(5, 7), (9, 12)],
        [linear("c", "x", "a", 7, 12), computed("F.linear", ""), linear("e", "b", "y", 9, 4)],
        ["linear_bfloat16", "pack", "round_panels", "linear_bfloat16", "linear_bfloat16"],
    ),
    "residual in bfloat16, result in float32": (
        [(1, 9, 5, 5)],
        [
            conv("c", "x", "a", 9, 11),
            conv("d", "a", "b", 11, 11),
            "pnnx.Expression e 2 1 b a y expr=add(@0,@1)",
        ],
        ["conv_bfloat16", "conv_bfloat16"],
    ),
    "input and result in float32, residual in bfloat16": (
        [(1, 9, 5, 5)],
        [
            conv("c", "x", "a", 9, 11),
            conv("d", "a", "e", 11, 11),
            conv("f", "x", "b", 9, 11),
            "pnnx.Expression g 2 1 b e y expr=add(@0,@1)",
        ],
        ["conv_bfloat16"],
    ),
    "linear of the same": (
        [(4, 9)],
        [
            linear("c", "x", "a", 9, 11),
            linear("d", "a", "e", 11, 11),
            linear("f", "x", "b", 9, 11),
            "pnnx.Expression g 2 1 b e y expr=add(@0,@1)",
        ],
        ["linear_bfloat16"],
    ),
    "gate": (
        [(2, 9, 16, 16)],
        [
            conv("c", "x", "a", 9, 12),
            "F.adaptive_avg_pool2d p 1 1 a b output_size=(1,1)",
            conv("d", "b", "e", 12, 12),
            "nn.Sigmoid s 1 1 e f",
            "pnnx.Expression m 2 1 a f g expr=mul(@0,@1)",
            conv("h", "g", "i", 12, 7),
            conv("j", "i", "y", 7, 4),
        ],
        ["conv_bfloat16", "round_panels", "conv_bfloat16"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_close_to_float32(case):
    shapes, lines, kinds = CASES[case]
    names = ("x", "w")[: len(shapes)]
    graph = graph_of(text(*lines, inputs=names))
    arrays = [values(*shape, seed=i) for i, shape in enumerate(shapes)]
    exact = Model(graph)(*arrays)
    for name in PAIR_ISAS:
        with isa(name):
            model = Model(graph, precision="bfloat16")
            found = [row["kind"] for row in model.profile(*arrays, runs=1).rows]
            wanted = iter(found)
            # Products in tile registers are so fast that Winograd's algorithm does not pay.
            expected = [k for k in kinds if dispatch.pair_rate() <= 4 or "winograd" not in k]
            assert all(kind in wanted for kind in expected), f"{name}: {found}"
            got = model(*arrays)
            assert got.dtype == np.float32
            bound = MAX_ERROR if "winograd" in case else BOUND
            assert relative_error(got, exact) < bound, name
            again = Model(graph, precision="bfloat16").with_threads(1)(*arrays)
            assert again.tobytes() == got.tobytes()


def test_a_single_layer_stays_in_float32():
    """Inputs and results of a model are float32 arrays, so there is nothing to store otherwise."""
    graph = graph_of(text(conv("c", "x", "y", 12, 12, kernel=3, padding=1)))
    x = values(2, 12, 6, 6)
    assert Model(graph, precision="bfloat16")(x).tobytes() == Model(graph)(x).tobytes()
