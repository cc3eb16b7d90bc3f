"""Convolutions of bytes with few input channels, whose sums run along rows of the filter."""

from __future__ import annotations

import numpy as np
import pytest

from kuiper.ir import Attribute
from kuiper.model import Model

from ...reference.convolution import conv2d
from ...support.textgraph import graph_of, text, values
from ...support.workbench import ISAS, isa

ZERO, SCALE = 113, 0.02
QUANTIZE = f"kuiper.QuantizeLinear q 1 1 x b scale={SCALE} zero_point={ZERO}"


def layer(channels, outputs, kernel, stride, padding, dilation) -> str:
    sizes = ",".join(map(str, kernel))
    return (
        f"nn.quantized.Conv2d c 1 1 b y bias=True dilation=({dilation},{dilation}) groups=1 "
        f"in_channels={channels} kernel_size=({sizes}) out_channels={outputs} "
        f"padding=({padding},{padding}) padding_mode=zeros stride=({stride},{stride}) "
        f"input_scale={SCALE} input_zero_point={ZERO} @bias=({outputs})f32 "
        f"@weight=({outputs},{channels},{sizes})f32 @weight_scale=({outputs})f32"
    )


@pytest.mark.parametrize(
    ("shape", "arguments", "is_padded_first"),
    [
        ((2, 3, 19, 41), (37, (7, 7), 2, 3, 1), True),
        ((1, 3, 16, 16), (33, (3, 3), 1, 1, 1), True),
        ((1, 1, 9, 12), (8, (3, 4), 1, 2, 1), True),
        ((3, 4, 7, 7), (5, (2, 2), 3, 1, 1), True),
        ((1, 3, 12, 12), (9, (3, 3), 1, 2, 2), False),
        ((1, 8, 10, 10), (9, (3, 3), 1, 1, 1), False),
    ],
    ids=str,
)  # fmt: skip
def test_sums_are_exact(shape, arguments, is_padded_first):
    outputs, kernel, stride, padding, dilation = arguments
    graph = graph_of(text(QUANTIZE, layer(shape[1], *arguments)))
    rng = np.random.default_rng(0)
    weight = rng.integers(-127, 128, (outputs, shape[1], *kernel), np.int8)
    scales = rng.uniform(0.001, 0.1, outputs).astype(np.float32)
    bias = values(outputs, seed=3)
    graph.operator("c").attributes = {
        "weight": Attribute.from_array(weight),
        "weight_scale": Attribute.from_array(scales),
        "bias": Attribute.from_array(bias),
    }
    x = values(*shape)
    steps = np.clip(np.rint(x * (np.float32(1) / np.float32(SCALE))) + ZERO, 0, 255) - ZERO
    sums = conv2d(
        steps.astype(np.float64), weight.astype(np.float64), stride=(stride, stride),
        padding=(padding, padding), dilation=(dilation, dilation), groups=1,
    )  # fmt: skip
    factors = (scales * np.float32(SCALE))[:, None, None]
    expected = sums.astype(np.float32) * factors + bias[:, None, None]
    for name in ISAS:
        with isa(name):
            model = Model(graph)
            kinds = [row["kind"] for row in model.profile(x, runs=1).rows]
            assert ("pad_image" in kinds) == is_padded_first, kinds
            np.testing.assert_array_equal(model(x), expected)
            assert model.with_threads(1)(x).tobytes() == model(x).tobytes()
