"""Random programs of views and writes into them, against numpy's memory."""

from __future__ import annotations

import numpy as np
import pytest

from kuiper.model import Model

from ..support.engine import n_threads, run
from ..support.randomwrites import RandomWrites

SEEDS = range(150)
KINDS = {
    "Tensor.slice", "Tensor.slice_copy", "torch.slice_scatter", "aten::select_scatter",
    "aten::diagonal_scatter", "Tensor.copy", "Tensor.permute", "Tensor.reshape", "torch.chunk",
    "torch.split", "torch.tensor_split", "torch.unbind", "torch.cat", "torch.stack",
    "pnnx.Expression", "F.max_pool2d",
}  # fmt: skip


def check(seed: int) -> RandomWrites:
    """Run a program with and without optimization, twice each; the inputs must not change."""
    case = RandomWrites(seed, 3 + seed % 40)
    inputs = [x.copy() for x in case.inputs]
    for optimize in (True, False):
        model = Model(case.graph, optimize=optimize)
        for threads in (1, 2) if seed % 5 == 0 else (1, 1):
            with n_threads(threads):
                outputs = run(model, inputs)
            for number, (got, expected) in enumerate(zip(outputs, case.expected, strict=True)):
                where = f"seed {seed}, output {number}, optimize={optimize}"
                assert got.dtype == expected.dtype, where
                np.testing.assert_array_equal(got, expected, where)
            for x, given in zip(inputs, case.inputs, strict=True):
                np.testing.assert_array_equal(x, given, f"seed {seed}: an input was written to")
    return case


@pytest.mark.parametrize("first", SEEDS[::10])
def test_random_writes(first):
    for seed in range(first, first + 10):
        check(seed)


def test_random_writes_vary():
    types = set()
    for seed in SEEDS:
        case = RandomWrites(seed, 3 + seed % 40)
        types.update(case.graph.type_counts())
    assert types >= KINDS
