"""Tensors without elements: an empty batch, or an empty selection."""

from __future__ import annotations

import numpy as np
import pytest

import kuiper

from ..support import load_cases
from ..support.engine import n_threads, run

CASES = load_cases("operators")


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # mean of an empty slice
@pytest.mark.parametrize("family", sorted({case.family for case in CASES}))
def test_an_empty_batch(family):
    """It runs, or raises one of kuiper's errors where PyTorch raises too."""
    outcomes = []
    for case in (case for case in CASES if case.family == family):
        model = kuiper.load(case.param, case.bin)
        empty = [np.zeros((0, *x.shape[1:]), x.dtype) if x.ndim else x for x in case.inputs]
        with n_threads(2):
            try:
                outputs = run(model, empty)
            except kuiper.KuiperError:
                outcomes.append(False)
                continue
        outcomes.append(True)
        for output, golden in zip(outputs, case.goldens, strict=True):
            # With an empty tensor of weights PyTorch's counts stay integers.
            counts = case.name.startswith("bincount")
            assert output.dtype == (np.int64 if counts else golden.values.dtype), case.id
    assert any(outcomes)


def test_operators_without_results_make_no_steps():
    graph = kuiper.load_graph(
        b"""7767517
4 3
pnnx.Input in 0 1 x
nn.ReLU a 1 1 x y
nn.Softmax b 1 1 y z dim=1
pnnx.Output out 1 0 z
"""
    )
    model = kuiper.Model(graph)
    assert len(model.plan((2, 5)).steps) == 2
    assert model.plan((0, 5)).steps == ()
    assert model(np.zeros((0, 5), np.float32)).shape == (0, 5)
