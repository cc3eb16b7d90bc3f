"""Convolutions of bytes in models of the precision bfloat16: by Winograd's algorithm if faster."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import pytest

from kuiper._kernels.micro import dispatch
from kuiper.ir import Attribute
from kuiper.model import Model
from kuiper.ops.product.algorithms.base import MAX_ERROR_DILUTED

from ...support.halves import relative_error
from ...support.textgraph import conv, graph_of, text, values
from ...support.workbench import isa

QUANTIZE = "kuiper.QuantizeLinear {} 1 1 {} {} scale={} zero_point={}"
CHANNELS = 64

native = pytest.mark.skipif(not dispatch.tried(), reason="no instruction for products of bfloat16")


@pytest.fixture(autouse=True)
def without_tile_registers():
    """Their products are so fast that Winograd's algorithm does not pay."""
    with isa(dispatch.tried()[0]) if dispatch.tried() else nullcontext():
        yield


def layer(name: str, x: str, y: str, outputs: int = CHANNELS, scale=0.02, zero=100) -> str:
    line = conv(name, x, y, CHANNELS, outputs, type="nn.quantized.Conv2d", kernel=3, padding=1)
    return f"{line}input_scale={scale} input_zero_point={zero} @weight_scale=({outputs})f32"


def network(*lines: str, weight_scale: float = 1e-3):
    """Return a graph whose convolutions have weights of bytes."""
    graph = graph_of(text(QUANTIZE.format("q", "x", "b", 0.02, 100), *lines))
    rng = np.random.default_rng(0)
    for op in graph:
        if "weight_scale" in op.attributes:
            shape = op.attributes["weight"].shape
            bytes_ = rng.integers(-127, 128, shape, np.int8)
            scales = (weight_scale * rng.uniform(0.5, 2, shape[0])).astype(np.float32)
            changed = {"weight": bytes_, "weight_scale": scales}
            op.attributes |= {name: Attribute.from_array(a) for name, a in changed.items()}
    return graph


NETWORKS = {
    "to bytes": [
        layer("c", "b", "r"),
        "nn.ReLU a 1 1 r s",
        QUANTIZE.format("p", "s", "e", 0.03, 3),
        layer("d", "e", "y", CHANNELS, 0.03, 3),
    ],
    "residual of bytes": [
        "kuiper.DequantizeLinear f 1 1 b g scale=0.02 zero_point=100",
        layer("c", "b", "r"),
        "pnnx.Expression h 2 1 r g s expr=add(@0,@1)",
        "nn.ReLU a 1 1 s t",
        QUANTIZE.format("p", "t", "e", 0.03, 3),
        layer("d", "e", "y", CHANNELS, 0.03, 3),
    ],
    "function before a residual": [
        "kuiper.DequantizeLinear f 1 1 b g scale=0.02 zero_point=100",
        layer("c", "b", "r"),
        "nn.SiLU a 1 1 r s",
        "pnnx.Expression h 2 1 s g t expr=add(@0,@1)",
        QUANTIZE.format("p", "t", "e", 0.03, 90),
        layer("d", "e", "y", CHANNELS, 0.03, 90),
    ],
}  # fmt: skip


def kinds_of(model: Model, x: np.ndarray) -> list[str]:
    return [row["kind"] for row in model.profile(x, runs=1).rows]


@native
@pytest.mark.parametrize("size", [(12, 12), (55, 54)], ids=str)
@pytest.mark.parametrize("name", NETWORKS)
def test_close_to_exact_sums(name, size):
    graph = network(*NETWORKS[name])
    x = values(2, CHANNELS, *size)
    exact = Model(graph)
    mixed = Model(graph, precision="bfloat16")
    assert not any("winograd" in kind for kind in kinds_of(exact, x))
    kinds = kinds_of(mixed, x)
    assert sum(kind in ("conv_winograd", "winograd_gemm") for kind in kinds) == 2, kinds
    assert relative_error(mixed(x), exact(x)) < 1.5 * MAX_ERROR_DILUTED
    assert mixed.with_threads(1)(x).tobytes() == mixed(x).tobytes()


@native
def test_weights_whose_sums_may_overflow_stay_exact():
    graph = network(layer("c", "b", "y"), weight_scale=1e28)
    x = values(1, CHANNELS, 12, 12)
    y = Model(graph, precision="bfloat16")(x)
    assert y.tobytes() == Model(graph)(x).tobytes()


def test_without_the_instruction_sums_stay_exact():
    graph = network(*NETWORKS["to bytes"])
    x = values(1, CHANNELS, 12, 12)
    with isa("baseline"):
        y = Model(graph, precision="bfloat16")(x)
        assert y.tobytes() == Model(graph)(x).tobytes()
