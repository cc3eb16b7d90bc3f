"""Weights rounded to bfloat16 such that the sums of columns stay nearly the same."""

from __future__ import annotations

import numpy as np
import pytest

from kuiper._kernels.micro import dispatch
from kuiper._kernels.micro.packed import PairPanels
from kuiper._kernels.micro.packing import pack_pairs

from ...support.halves import rounded, values_of
from ...support.workbench import PAIR_ISAS, isa, noise

EACH = pytest.mark.parametrize("name", PAIR_ISAS)


def packed(weight):
    """Return a weight (columns, taps, channels) as the panels hold it."""
    columns, taps, channels = weight.shape
    memory = np.full(PairPanels(columns, taps, channels).shape, 0x7FFF, np.uint16)
    pack_pairs(weight, None, 2, memory)
    nr = dispatch.tile()[1]
    biases = 2  # rows of halves
    pairs = memory[:, biases:].reshape(len(memory), taps, -1, nr, 2)
    terms = values_of(pairs).transpose(0, 3, 1, 2, 4).reshape(len(memory) * nr, taps, -1)
    return terms[:columns, :, :channels]


def unit(weight):
    """Return the distance between neighbours in bfloat16."""
    return np.exp2(np.floor(np.log2(np.abs(weight))) - 7)


@EACH
@pytest.mark.parametrize("shape", [(3, 1, 1), (37, 9, 5), (64, 1, 2000), (20, 25, 64)])
def test_errors_are_small_and_so_are_their_sums(name, shape):
    weight = noise(shape, 1)
    with isa(name):
        got = packed(weight)
    errors = np.float64(got) - weight
    assert (np.abs(errors) <= 0.551 * unit(weight)).all()
    assert (rounded(got) == got).all()
    sums = np.abs(errors.sum(axis=(1, 2)))
    assert sums.max() <= 2 * unit(np.abs(weight).max())
    if weight[0].size > 1000:
        nearest = np.abs((np.float64(rounded(weight)) - weight).sum(axis=(1, 2)))
        assert sums.mean() < 0.2 * nearest.mean()


def test_every_instruction_set_rounds_alike():
    weight = noise((70, 9, 33), 2)
    results = []
    for name in PAIR_ISAS:
        with isa(name):
            results.append(packed(weight).tobytes())
    assert len(set(results)) == 1


@EACH
def test_weights_that_bfloat16_holds_stay_the_same(name):
    weight = rounded(noise((40, 9, 7), 3))
    weight[0, 0, :3] = 0.0, -0.0, 1e-39
    weight = rounded(weight)
    with isa(name):
        assert packed(weight).tobytes() == weight.tobytes()


@EACH
def test_large_weights_round_to_nearest(name):
    largest = np.finfo(np.float32).max
    special = np.array([np.inf, -np.inf, 3.39e38, -3.39e38, largest, -largest], np.float32)
    weight = noise((33, 1, 50), 4)
    weight[7, 0, 10:16] = special
    weight[8, 0, 3] = np.nan
    weight[9, 0, 3] = np.array(0x7F800001, np.uint32).view(np.float32)  # all bits in the lower half
    with isa(name):
        got = packed(weight)
    expected = [np.inf, -np.inf, *rounded(np.float32([3.39e38, -3.39e38])), np.inf, -np.inf]
    assert got[7, 0, 10:16].tolist() == expected
    assert np.isnan(got[8:10, 0, 3]).all()
    assert np.isnan(got).sum() == 2
    others = np.delete(np.arange(33), [7, 8, 9])
    assert np.isfinite(got[others]).all()
    finite = np.delete(np.arange(50), 3)
    errors = np.float64(got[8:10, 0, finite]) - weight[8:10, 0, finite]
    assert np.abs(errors.sum(axis=1)).max() < 2 * unit(4.0)


@EACH
def test_a_mean_of_results_for_positive_inputs_is_more_accurate(name):
    """What does not cancel in a mean over pixels is the error of the sums of the weights."""
    weight = noise((48, 1, 700), 5)
    x = rounded(np.abs(noise((300, 700), 6)))
    with isa(name):
        got = packed(weight)
    exact = (x @ np.float64(weight[:, 0]).T).mean(axis=0)
    kept = np.abs((x @ np.float64(got[:, 0]).T).mean(axis=0) - exact)
    nearest = np.abs((x @ np.float64(rounded(weight)[:, 0]).T).mean(axis=0) - exact)
    assert kept.mean() < 0.3 * nearest.mean()
