"""Convolutions and poolings of random geometry against the numpy references.

The stored cases cover common geometries; these cover unusual combinations.  A seed always gives the
same geometry, so that a failure can be reproduced by its number.
"""

from __future__ import annotations

import numpy as np
import pytest

import kuiper

from ..reference import read_graph, run_graph
from ..support import assert_outputs, assert_same_bits, uniform
from ..support.engine import n_threads, run
from ..support.textgraph import files_of
from ..support.workbench import ISAS, isa

CHANNELS = (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 24, 31, 32, 33, 40, 48, 64, 65)

ACTIVATIONS = ("", "nn.ReLU", "nn.SiLU", "nn.Hardswish", "nn.LeakyReLU negative_slope=0.1")


def convolution(rng: np.random.Generator) -> tuple[tuple[int, ...], str]:
    """Return input shape and text of a convolution, possibly transposed, with an activation."""
    transposed = rng.random() < 0.25
    groups, inside, outside = _grouping(rng)
    kernel = _pair(rng, (1, 1, 2, 3, 3, 3, 4, 5, 7))
    stride, dilation = _pair(rng, (1, 1, 1, 2, 3)), _pair(rng, (1, 1, 1, 2))
    reach = [d * (k - 1) + 1 for k, d in zip(kernel, dilation, strict=True)]
    padding = [int(rng.integers(0, r // 2 + 1)) for r in reach]
    plane = _plane(rng, reach, padding)
    bias = bool(rng.random() < 0.8)
    kind, extra, weight = "nn.Conv2d", "padding_mode=zeros", (outside, inside // groups)
    if transposed:
        spare = [int(rng.integers(0, max(s, d))) for s, d in zip(stride, dilation, strict=True)]
        kind, extra = "nn.ConvTranspose2d", f"output_padding={_text(spare)}"
        weight = (inside, outside // groups)
        # The padding must not crop the whole output.
        padding = [min(p, (r + 1) // 2 - 1) for p, r in zip(padding, reach, strict=True)]
    fields = [
        f"{kind} conv 1 1 0 1 in_channels={inside} out_channels={outside} groups={groups}",
        f"kernel_size={_text(kernel)} stride={_text(stride)} padding={_text(padding)}",
        f"dilation={_text(dilation)} bias={bias} {extra} @weight={_text((*weight, *kernel))}f32",
    ]
    if bias:
        fields.append(f"@bias=({outside})f32")
    shape = (int(rng.integers(1, 4)), inside, *plane)
    return shape, _graph(shape, " ".join(fields), rng.choice(ACTIVATIONS))


def pooling(rng: np.random.Generator) -> tuple[tuple[int, ...], str]:
    """Return input shape and text of a maximum or average pooling."""
    kernel, stride = _pair(rng, (1, 2, 2, 3, 3, 5)), _pair(rng, (1, 1, 2, 2, 3))
    padding = [int(rng.integers(0, k // 2 + 1)) for k in kernel]
    maximum = rng.random() < 0.5
    dilation = _pair(rng, (1, 1, 2)) if maximum else (1, 1)
    reach = [d * (k - 1) + 1 for k, d in zip(kernel, dilation, strict=True)]
    fields = f"kernel_size={_text(kernel)} stride={_text(stride)} padding={_text(padding)}"
    fields += f" ceil_mode={bool(rng.random() < 0.5)}"
    if maximum:
        line = f"nn.MaxPool2d pool 1 1 0 1 {fields} dilation={_text(dilation)} return_indices=False"
    else:
        divisor = rng.choice(["None", "None", "4"])
        flags = f"count_include_pad={bool(rng.random() < 0.5)} divisor_override={divisor}"
        line = f"nn.AvgPool2d pool 1 1 0 1 {fields} {flags}"
    shape = (int(rng.integers(1, 4)), int(rng.choice(CHANNELS)), *_plane(rng, reach, padding))
    return shape, _graph(shape, line, "")


def _grouping(rng: np.random.Generator) -> tuple[int, int, int]:
    """Return groups, input and output channels: dense, depthwise or grouped."""
    inside, outside = int(rng.choice(CHANNELS)), int(rng.choice(CHANNELS))
    kind = rng.choice(["dense", "dense", "depthwise", "multiplied", "grouped"])
    if kind == "dense":
        return 1, inside, outside
    if kind == "depthwise":
        return inside, inside, inside
    if kind == "multiplied":
        return inside, inside, inside * int(rng.integers(2, 4))
    groups = int(rng.integers(2, 6))
    return groups, groups * (1 + inside % 9), groups * (1 + outside % 9)


def _pair(rng: np.random.Generator, values: tuple[int, ...]) -> tuple[int, int]:
    first, second = (int(n) for n in rng.choice(values, 2))
    return (first, first) if rng.random() < 0.6 else (first, second)


def _plane(rng: np.random.Generator, reach, padding) -> list[int]:
    """Return extents that contain at least one window."""
    least = [max(1, r - 2 * p) for r, p in zip(reach, padding, strict=True)]
    return [n + int(rng.integers(0, rng.choice([1, 4, 16]))) for n in least]


def _text(numbers) -> str:
    return f"({','.join(map(str, numbers))})"


def _graph(shape, line: str, activation: str) -> str:
    lines = [f"pnnx.Input in 0 1 0 #0={_text(shape)}f32", line]
    if activation:
        kind, *params = activation.split()
        lines.append(" ".join([kind, "act 1 1 1 2", *params]))
    lines.append(f"pnnx.Output out 1 0 {len(lines) - 1}")
    return "\n".join(lines)


@pytest.mark.parametrize("variant", ISAS)
@pytest.mark.parametrize(
    ("make", "seed"),
    [
        pytest.param(make, seed, id=f"{make.__name__}-{seed}")
        for make, count in ((convolution, 150), (pooling, 60))
        for seed in range(count)
    ],
)
def test_random_window(make, seed, variant):
    shape, text = make(np.random.default_rng(seed))
    key = f"{make.__name__} {seed}"
    files = files_of(text, key)
    x = uniform(key, shape, -2, 2)
    expected = run_graph(read_graph(*files), [x])
    # A dilated window that steps over a small input has the maximum -infinity.
    finite = expected[0][np.isfinite(expected[0])]
    assert finite.size <= 1 or finite.any()
    with isa(variant):
        model = kuiper.load(*files)
        with n_threads(1):
            outputs = run(model, [x])
            last = run(model, [x[-1:]])
        with n_threads(2):
            parallel = run(model, [x])
    assert_outputs(outputs, expected, 1e-5, text)
    assert_same_bits(parallel, outputs, f"two threads against one\n{text}")
    assert_same_bits(last, [y[-1:] for y in outputs], f"one image against a batch\n{text}")


def test_geometries_differ():
    for make in (convolution, pooling):
        assert len({make(np.random.default_rng(seed)) for seed in range(60)}) == 60
