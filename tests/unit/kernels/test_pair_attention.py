"""Attention of bfloat16, where its products are native, against float64."""

from __future__ import annotations

import numpy as np
import pytest

from kuiper._kernels.linear.attention import PairAttentionStep, pairs_scratch_bytes
from kuiper._kernels.micro import dispatch
from kuiper.ir.dtypes import BFLOAT16

from ...support.halves import halves_of, rounded, values_of
from ...support.workbench import PAIR_ISAS, Workbench, isa, noise


def is_native(name: str) -> bool:
    with isa(name):
        return dispatch.has_bfloat16_products()


NATIVE = [name for name in PAIR_ISAS if is_native(name)]
pytestmark = pytest.mark.skipif(not NATIVE, reason="no instruction for products of bfloat16")
EACH = pytest.mark.parametrize("name", NATIVE)

# (heads, queries, keys, depth, columns)
SHAPES = [
    (1, 1, 1, 2, 1),
    (3, 17, 29, 64, 64),
    (2, 49, 49, 32, 32),
    (2, 200, 197, 6, 10),
    (1, 37, 1031, 16, 33),
    (1, 300, 64, 128, 70),
]


def exact(q, k, v, scale, added=None, hidden=None, is_causal=False):
    """Return the attention of rounded operands; zeros for a query whose keys are all hidden."""
    scores = np.float64(q) @ np.float64(k).swapaxes(-1, -2) * scale
    if added is not None:
        scores = scores + added
    if hidden is not None:
        scores = np.where(hidden, -np.inf, scores)
    if is_causal:
        rows, columns = np.indices(scores.shape[-2:])
        scores = np.where(columns > rows, -np.inf, scores)
    top = scores.max(axis=-1, keepdims=True)
    terms = np.exp(scores - np.where(np.isinf(top), 0, top))
    return terms @ np.float64(v) / np.maximum(terms.sum(axis=-1, keepdims=True), 1e-30)


def attention(shape, scale=0.3, y_dtype=BFLOAT16, **options):
    """Return the result of the step on noise, and q, k and v."""
    heads, queries, keys, depth, columns = shape
    sizes = ((queries, depth), (keys, depth), (keys, columns))
    q, k, v = (rounded(noise((heads, *size), i)) for i, size in enumerate(sizes))
    bench = Workbench()
    operands = [bench.put(halves_of(x).reshape(x.shape)) for x in (q, k, v)]
    y = bench.output((heads, queries, columns), "contiguous", None, y_dtype)
    mask = options.pop("mask", None)
    if mask is not None:
        options["mask"] = bench.put(mask)
    scratch = bench.scratch(pairs_scratch_bytes(keys, depth, columns))
    got = bench.run_all_shards(
        lambda: PairAttentionStep(*operands, y, scratch, scale, **options), y
    )
    return values_of(got) if y_dtype == BFLOAT16 else got, (q, k, v)


def is_close(got, expected, v):
    """Terms and results are rounded once each."""
    bound = 2**-8 * np.abs(v).max() + 2**-8 * np.abs(expected) + 1e-5
    assert got.shape == expected.shape
    assert (np.abs(got - expected) <= bound).all()
    assert np.linalg.norm(got - expected) <= 4e-3 * np.linalg.norm(expected) + 1e-6


@EACH
@pytest.mark.parametrize("y_dtype", [BFLOAT16, np.dtype(np.float32)], ids=str)
@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape(name, shape, y_dtype):
    with isa(name):
        got, (q, k, v) = attention(shape, y_dtype=y_dtype)
    is_close(got, exact(q, k, v, 0.3), v)


@EACH
@pytest.mark.parametrize("shape", SHAPES[1:4])
@pytest.mark.parametrize("is_causal", [False, True])
def test_added_masks(name, shape, is_causal):
    heads, queries, keys = shape[:3]
    mask = noise((heads, queries, keys), 7)
    mask[:, ::3, ::2] = -np.inf
    mask[0, 5] = -np.inf
    with isa(name):
        got, (q, k, v) = attention(shape, mask=mask, is_causal=is_causal)
    is_close(got, exact(q, k, v, 0.3, added=mask, is_causal=is_causal), v)
    assert not got[0, 5].any()


@EACH
@pytest.mark.parametrize("hides", [False, True])
@pytest.mark.parametrize("shape", SHAPES[1:4])
def test_bool_masks(name, shape, hides):
    heads, queries, keys = shape[:3]
    mask = noise((heads, queries, keys), 8) > 0.4
    mask[0, 2] = hides
    with isa(name):
        got, (q, k, v) = attention(shape, mask=mask, mask_hides=hides)
    is_close(got, exact(q, k, v, 0.3, hidden=mask == hides), v)
    assert not got[0, 2].any()


@EACH
@pytest.mark.parametrize("shape", [(2, 50, 50, 16, 16), (1, 20, 7, 4, 5), (1, 7, 20, 4, 5)])
def test_causal(name, shape):
    with isa(name):
        got, (q, k, v) = attention(shape, is_causal=True)
    is_close(got, exact(q, k, v, 0.3, is_causal=True), v)


@EACH
@pytest.mark.parametrize("scale", [1e-3, 40.0])
def test_scales(name, scale):
    """Scores far apart leave one term; equal scores average the values."""
    with isa(name):
        got, (q, k, v) = attention((2, 21, 33, 8, 12), scale)
    is_close(got, exact(q, k, v, scale), v)


@EACH
def test_nan_stays_in_its_row(name):
    heads, queries, keys, depth, columns = 1, 30, 20, 8, 9
    q, k, v = (noise((heads, n, d), n) for n, d in ((30, 8), (20, 8), (20, 9)))
    bench = Workbench()
    halves = [halves_of(x).reshape(x.shape) for x in (q, k, v)]
    halves[0][0, 4, 3] = np.array(0x7FC0, np.uint16).view(BFLOAT16)
    operands = list(map(bench.put, halves))
    y = bench.output((heads, queries, columns))
    mask = bench.put(np.zeros((heads, queries, keys), np.float32))
    with isa(name):
        scratch = bench.scratch(pairs_scratch_bytes(keys, depth, columns))
        bench.run(PairAttentionStep(*operands, y, scratch, 0.3, mask=mask))
    got = bench.view(y)[0]
    assert np.isnan(got[4]).all()
    assert np.isfinite(np.delete(got, 4, axis=0)).all()
