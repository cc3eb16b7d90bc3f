"""Gathering, scattering, selection, triangles and sorting, against numpy."""

from __future__ import annotations

import numpy as np
import pytest

from kuiper._kernels.data.indexing import (
    AxisIndex,
    EmbeddingBagStep,
    GatherStep,
    ScatterStep,
    SelectStep,
    TriangleStep,
)
from kuiper._kernels.data.order import ExtremeStep, QuantileStep, SortStep, sort_bytes
from kuiper.errors import ShapeError

from ...support.workbench import SHARD_COUNTS, Workbench, noise

DTYPES = (np.bool_, np.int16, np.float32, np.int64, np.complex128)
ORDERED = (np.bool_, np.uint8, np.int8, np.int16, np.int32, np.int64, np.float32, np.float64)


def error_slot_of(bench):
    """Return an error slot, where a step records an index that is out of range."""
    error = bench.put(np.zeros(2, np.int64))
    bench.written.append(error)
    return error


def numbers(shape, count, seed=0, dtype=np.int64, low=0):
    return np.random.default_rng(seed).integers(low, count, shape).astype(dtype)


# -- gather ------------------------------------------------------------------------------------


def gathered(x, index, axis, index_strides=None, negative=False, view=lambda value: value):
    """Gather along one axis with one index per element."""
    bench = Workbench()
    source = view(bench.put(x))
    target = bench.output(index.shape, dtype=x.dtype)
    strides = [0 if d == axis else s for d, s in enumerate(source.strides)]
    indices = bench.put(index, index_strides)
    axes = [AxisIndex(indices, source.shape[axis], source.strides[axis], negative)]
    error = error_slot_of(bench)
    return bench.run_all_shards(
        lambda: GatherStep(source, target, strides, axes, error, "{} is wrong"), target
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("index_dtype", [np.int32, np.int64])
@pytest.mark.parametrize(
    ("shape", "axis"), [((7,), 0), ((5, 9), 0), ((5, 9), 1), ((3, 4, 5), 1), ((2, 1300, 3), 1)]
)
def test_gather(shape, axis, index_dtype, dtype):
    x = noise(shape, dtype=dtype)
    taken = [n if d == axis else max(n - 1, 1) for d, n in enumerate(shape)]
    taken[axis] += 3
    index = numbers(taken, shape[axis], dtype=index_dtype)
    assert np.unique(index).size > 1
    part = x[tuple(slice(None) if d == axis else slice(n) for d, n in enumerate(taken))]
    expected = np.take_along_axis(part, index.astype(np.int64), axis)
    np.testing.assert_array_equal(gathered(x, index, axis), expected)


def test_gather_of_views():
    x, index = noise((6, 40)), numbers((40, 5), 6, 3)
    got = gathered(x, index, 1, view=lambda value: value.permute((1, 0)))
    np.testing.assert_array_equal(got, np.take_along_axis(x.T, index, 1))
    got = gathered(x, index, 1, view=lambda v: v.permute((1, 0)).narrow(1, 5, 6, -1))
    np.testing.assert_array_equal(got, np.take_along_axis(x.T[:, ::-1], index, 1))


def test_gather_with_negative_indices():
    x, index = noise((4, 7)), numbers((4, 600), 7, low=-7)
    assert index.min() == -7
    np.testing.assert_array_equal(
        gathered(x, index, 1, negative=True), np.take_along_axis(x, index, 1)
    )
    with pytest.raises(ShapeError, match="-"):
        gathered(x, index, 1)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [1, 3, 64, 1500])
def test_rows_of_a_table(width, dtype):
    table, index = noise((11, width), dtype=dtype), numbers((3, 5), 11)
    bench = Workbench()
    source, indices = bench.put(table), bench.put(index)
    target = bench.output((3, 5, width), dtype=dtype)
    spread = indices.with_layout((3, 5, width), (5, 1, 0))
    error = error_slot_of(bench)
    got = bench.run_all_shards(
        lambda: GatherStep(
            source, target, (0, 0, 1), [AxisIndex(spread, 11, width)], error, "{} is wrong"
        ),
        target,
    )
    np.testing.assert_array_equal(got, table[index])


def test_several_indices():
    x = noise((5, 6, 7, 8))
    i, j = numbers((3, 1), 5, low=-5), numbers((1, 4), 7, 2, np.int32)
    bench = Workbench()
    source, target = bench.put(x), bench.output((3, 4, 6, 8))
    first = bench.put(i).with_layout((3, 4, 6, 8), (1, 0, 0, 0))
    second = bench.put(j).with_layout((3, 4, 6, 8), (0, 1, 0, 0))
    indices = [
        AxisIndex(first, 5, source.strides[0], True), AxisIndex(second, 7, source.strides[2], True)
    ]  # fmt: skip
    strides = (0, 0, source.strides[1], source.strides[3])
    error = error_slot_of(bench)
    got = bench.run_all_shards(
        lambda: GatherStep(source, target, strides, indices, error, "{}"), target
    )
    np.testing.assert_array_equal(got, x[i, :, j])


@pytest.mark.parametrize("wrong", [-1, 7, 2**40, -(2**62)])
@pytest.mark.parametrize("shards", SHARD_COUNTS)
def test_an_index_out_of_range_is_reported_and_not_followed(wrong, shards):
    bench = Workbench()
    index = numbers((3, 900), 7)
    index[1, 777] = wrong
    source, indices = bench.put(noise((3, 7))), bench.put(index)
    target, error = bench.output((3, 900)), error_slot_of(bench)
    step = GatherStep(
        source, target, (7, 0), [AxisIndex(indices, 7, 1)], error, "index {} is wrong"
    )
    with pytest.raises(ShapeError, match=rf"^index {wrong} is wrong$"):
        bench.run(step, shards=shards)
    # Reading the record clears it: the next run starts without error.
    index[1, 777] = 0
    bench.view(indices)[...] = index
    bench.run(step, shards=shards)


# -- scatter -----------------------------------------------------------------------------------


def scattered(x, index, source, axis, kind, spread=False):
    """Scatter along an axis; with `spread` the index lists whole slices."""
    results = []
    for shards in SHARD_COUNTS:
        bench = Workbench()
        target = bench.put(x)
        bench.written.append(target)
        indices = bench.put(index)
        if spread:
            steps = [1 if d == axis else 0 for d in range(x.ndim)]
            indices = indices.with_layout(source.shape, steps)
        strides = [0 if d == axis else s for d, s in enumerate(target.strides)]
        lanes = [d != axis for d in range(x.ndim)]
        step = ScatterStep(
            bench.put(source), target, strides,
            [AxisIndex(indices, x.shape[axis], target.strides[axis])], lanes, kind,
            error_slot_of(bench), "{} is wrong",
        )  # fmt: skip
        bench.run(step, shards=shards)
        results.append(bench.view(target).copy())
    for other in results[1:]:
        np.testing.assert_array_equal(other, results[0])
    return results[0]


JOINS = {
    "add": np.add.at,
    "multiply": np.multiply.at,
    "maximum": np.maximum.at,
    "minimum": np.minimum.at,
}


def put_at(y, where, source):
    y[where] = source


@pytest.mark.parametrize("kind", [*JOINS, "put"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32, np.int64])
@pytest.mark.parametrize(
    ("shape", "axis"), [((5,), 0), ((5, 9), 0), ((5, 9), 1), ((3, 4, 700), 1), ((40, 3, 50), 2)]
)
def test_scatter(shape, axis, dtype, kind):
    x = noise(shape, 1, dtype)
    count = list(shape)
    count[axis] += 6  # so that some indices are equal
    index = numbers(count, shape[axis], 2)
    source = noise(count, 3, dtype)
    grid = list(np.ogrid[tuple(slice(n) for n in count)])
    grid[axis] = index
    expected = x.copy()
    JOINS.get(kind, put_at)(expected, tuple(grid), source)
    np.testing.assert_array_equal(scattered(x, index, source, axis, kind), expected)


@pytest.mark.parametrize("kind", ["add", "put"])
@pytest.mark.parametrize("width", [1, 5, 64, 1300])
def test_scatter_of_slices(width, kind):
    x, source = noise((6, width), 1), noise((50, width), 2)
    index = numbers((50,), 6)
    expected = x.copy()
    JOINS.get(kind, put_at)(expected, index, source)
    np.testing.assert_array_equal(scattered(x, index, source, 0, kind, spread=True), expected)


@pytest.mark.parametrize("dtype", DTYPES)
def test_put_moves_any_dtype(dtype):
    x, source = noise((4, 30), 1, dtype), noise((4, 8), 2, dtype)
    index = np.stack([np.random.default_rng(n).permutation(30)[:8] for n in range(4)])
    expected = x.copy()
    np.put_along_axis(expected, index, source, 1)
    np.testing.assert_array_equal(scattered(x, index, source, 1, "put"), expected)


@pytest.mark.parametrize("shards", SHARD_COUNTS)
def test_a_scatter_does_not_write_at_an_index_out_of_range(shards):
    bench = Workbench()
    target = bench.put(noise((3, 40)))
    bench.written.append(target)
    index = numbers((5, 40), 3)
    index[4, 39] = 3
    step = ScatterStep(
        bench.put(noise((5, 40))), target, (0, 1), [AxisIndex(bench.put(index), 3, 40)],
        (False, True), "add", error_slot_of(bench), "{} is wrong",
    )  # fmt: skip
    with pytest.raises(ShapeError, match=r"^3 is wrong$"):
        bench.run(step, shards=shards)


def test_nan_wins_a_maximum():
    x = np.float32([1, np.nan, 3, 4])
    source = np.float32([np.nan, 2, 5, 1])
    for kind in ("maximum", "minimum"):
        got = scattered(x, np.arange(4), source, 0, kind)
        np.testing.assert_array_equal(got, getattr(np, kind)(x, source))


def test_too_many_indices_are_refused():
    bench = Workbench()
    x, y = bench.put(noise((2,) * 8)), bench.output((3,))
    index = AxisIndex(bench.put(np.zeros(3, np.int64)), 2, 1)
    with pytest.raises(ValueError, match="7 indices"):
        GatherStep(x, y, (0,), [index] * 7, error_slot_of(bench), "")


# -- selection and triangles -------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("mask", "a", "b"),
    [
        ((5, 7), (5, 7), (5, 7)),
        ((5, 7), (), (5, 7)),
        ((5, 7), (5, 7), ()),
        ((1, 7), (5, 1), (5, 7)),
        ((5, 1), (5, 7), (5, 7)),
        ((3, 1, 1500), (1, 4, 1500), (3, 4, 1)),
        ((), (3, 4), (4,)),
    ],
)
def test_select(mask, a, b, dtype):
    choice = noise(mask, 5, np.bool_)
    left, right = np.asarray(noise(a, 1, dtype)), np.asarray(noise(b, 2, dtype))
    expected = np.where(choice, left, right)
    bench = Workbench()
    values = [bench.put(array).expand(expected.shape) for array in (choice, left, right)]
    target = bench.output(expected.shape, dtype=dtype)
    got = bench.run_all_shards(lambda: SelectStep(*values, target), target)
    np.testing.assert_array_equal(got, expected)


def test_select_treats_any_nonzero_byte_as_true():
    bench = Workbench()
    mask = bench.put(np.array([0, 1, 2, 128, 255], np.uint8))
    target = bench.output((5,))
    ones, twos = (bench.put(np.full(5, n, np.float32)) for n in (1, 2))
    bench.run(SelectStep(mask, ones, twos, target))
    assert bench.view(target).tolist() == [2, 1, 1, 1, 1]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("diagonal", [-100, -2, -1, 0, 1, 3, 100, 2**62, -(2**62)])
@pytest.mark.parametrize("shape", [(1, 1), (5, 5), (3, 4, 7), (2, 3, 7, 4)])
def test_triangles(shape, diagonal, dtype):
    x = noise(shape, dtype=dtype)
    small = max(min(diagonal, 50), -50)  # numpy would allocate that many columns
    for upper, function in ((True, np.triu), (False, np.tril)):
        bench = Workbench()
        source, target = bench.put(x), bench.output(shape, dtype=dtype)
        got = bench.run_all_shards(
            lambda upper=upper, s=source, t=target: TriangleStep(s, t, diagonal, upper), target
        )
        np.testing.assert_array_equal(got, function(x, small))
        bench.written.append(source)
        bench.run(TriangleStep(source, source, diagonal, upper))  # in place
        np.testing.assert_array_equal(bench.view(source), function(x, small))


# -- sorting -----------------------------------------------------------------------------------


def with_ties(shape, dtype, seed=0):
    """Return values with ties and, for floats, NaN, zeros and infinities."""
    dtype = np.dtype(dtype)
    x = noise(shape, seed, dtype)
    flat = x.reshape(-1)
    if flat.size > 12:
        flat[::5] = flat[3]
        if dtype.kind == "f":
            flat[1::11], flat[2::7], flat[4::13] = np.nan, -0.0, 0.0
            flat[7], flat[8] = np.inf, -np.inf
    if dtype.kind == "i":
        flat[: flat.size // 2] *= -1
    return x


def in_order(x, descending):
    """Return the indices of a stable sort of the middle axis, with NaN the greatest."""
    keys = x.astype(np.uint8) if x.dtype == bool else x
    if not descending:
        return np.argsort(keys, axis=1, kind="stable")
    order = np.argsort(keys[:, ::-1], axis=1, kind="stable")
    return x.shape[1] - 1 - order[:, ::-1]


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("dtype", ORDERED)
@pytest.mark.parametrize("shape", [(1, 1, 1), (2, 7, 3), (3, 24, 1), (2, 25, 5), (2, 3000, 1)])
def test_sort(shape, dtype, descending):
    x = with_ties(shape, dtype)
    expected = in_order(x, descending)
    outer, n, inner = shape
    for k in sorted({1, n // 5, n // 2, n} - {0}):
        bench = Workbench()
        source = bench.put(x)
        values = bench.output((outer, k, inner), dtype=dtype)
        indices = bench.output((outer, k, inner), dtype=np.int64)
        scratch = bench.scratch(sort_bytes(n, x.dtype))
        got = bench.run_all_shards(
            lambda k=k, a=(source, values, indices), s=scratch: SortStep(*a, k, descending, s),
            indices,
        )
        np.testing.assert_array_equal(got, expected[:, :k])
        chosen = np.take_along_axis(x, expected[:, :k], 1)
        assert bench.view(values).tobytes() == chosen.tobytes()


@pytest.mark.parametrize("is_min", [False, True])
@pytest.mark.parametrize("dtype", [np.bool_, np.uint8, np.int32, np.int64, np.float32, np.float64])
@pytest.mark.parametrize(
    "shape", [(1, 1, 1), (3, 7, 1), (2, 64, 1), (3, 1000, 1), (2, 9, 5), (2, 3, 700)]
)
def test_extremes(shape, dtype, is_min):
    function, of_values = (np.argmin, np.min) if is_min else (np.argmax, np.max)
    for seed in range(4):
        x = with_ties(shape, dtype, seed) if seed else noise(shape, 9, dtype)
        bench = Workbench()
        source = bench.put(x)
        values = bench.output((shape[0], shape[2]), dtype=dtype)
        indices = bench.output((shape[0], shape[2]), dtype=np.int64)
        got = bench.run_all_shards(
            lambda a=(source, values, indices): ExtremeStep(*a, is_min), indices
        )
        np.testing.assert_array_equal(got, function(x, axis=1))
        np.testing.assert_array_equal(bench.view(values), of_values(x, axis=1))


@pytest.mark.parametrize("skips_nan", [False, True])
@pytest.mark.parametrize("interpolation", ["linear", "lower", "higher", "midpoint", "nearest"])
@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 7, 1), (2, 100, 3), (1, 9, 5)])
def test_quantiles(shape, interpolation, skips_nan):
    x = noise(shape, 5)
    if x.size > 1:
        x[0, 1, 0] = np.nan
    levels = np.array([0, 0.25, 0.5, 0.8125, 1], np.float32)  # whose products are exact
    bench = Workbench()
    source, fractions = bench.put(x), bench.put(levels)
    target = bench.output((5, shape[0], shape[2]))
    scratch = bench.scratch(sort_bytes(shape[1], x.dtype))
    got = bench.run_all_shards(
        lambda: QuantileStep(source, fractions, target, interpolation, skips_nan, scratch), target
    )
    function = np.nanquantile if skips_nan else np.quantile
    expected = function(x.astype(np.float64), levels, axis=1, method=interpolation)
    np.testing.assert_allclose(got, expected, 1e-6)


@pytest.mark.parametrize("extent", [1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 63, 65, 512, 513])
@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.float32, np.int64, np.complex128])
def test_short_runs(extent, dtype):
    x = noise((5, extent), 3, dtype)
    index = numbers((4, 3), 5)
    got = gathered(x, index.reshape(-1, 1).repeat(extent, 1), 0, index_strides=(1, 0))
    np.testing.assert_array_equal(got, x[index.reshape(-1)])


@pytest.mark.parametrize("mode", [0, 1, 2])
@pytest.mark.parametrize("width", [1, 3, 4, 15, 16, 33, 100])
@pytest.mark.parametrize("is_weighted", [False, True])
def test_bags(width, mode, is_weighted):
    table, index = noise((9, width), 1), numbers((40,), 9)
    # Bags of every size up to 9 rows, with an empty one first and last.
    sizes = [0, 1, 2, 3, 4, 5, 6, 7, 8, 4, 0]
    offsets = np.cumsum([0, *sizes])[:-1]
    weights = noise((40,), 2)
    expected = np.zeros((len(sizes), width))
    for bag, (start, size) in enumerate(zip(offsets, sizes, strict=True)):
        indices = [i for i in range(start, start + size) if index[i] != 6]
        rows = table[index[indices]].astype(np.float64)
        if is_weighted and mode != 2:
            rows *= weights[indices, np.newaxis]
        if len(indices):
            expected[bag] = rows.max(0) if mode == 2 else rows.sum(0)
            expected[bag] /= len(indices) if mode == 1 else 1
    bench = Workbench()
    values = [bench.put(array) for array in (table, index, offsets)]
    factors = bench.put(weights) if is_weighted else None
    target, error = bench.output(expected.shape), bench.put(np.zeros(2, np.int64))
    got = bench.run_all_shards(
        lambda: EmbeddingBagStep(*values, factors, target, mode, 6, error, "{}"), target
    )
    np.testing.assert_allclose(got, expected, 1e-5, 1e-6)
