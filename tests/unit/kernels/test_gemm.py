"""Linear, matrix products and packing on every variant, against float64 products."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from kuiper._kernels.conv import winograd
from kuiper._kernels.linear.linear import LinearStep, MatmulStep, linear, max_batch_axes
from kuiper._kernels.micro import dispatch, packing
from kuiper._kernels.micro.packed import PackedMatrix
from kuiper._runtime.pages import aligned_empty
from kuiper._runtime.weights import WeightCache
from kuiper.errors import InputError, KuiperError
from kuiper.ir.view import TensorView, contiguous_strides

from ...support import assert_close
from ...support.benchbinder import BenchBinder, arguments, post_ops, reference_epilogue, run_record
from ...support.workbench import ISAS, PATTERN, Workbench, isa, noise

DEPTHS = (1, 2, 3, 17, 64)
WINOGRAD = [(2, 1), (4, 1), (4, 2)]  # tile and stride

pytestmark = pytest.mark.parametrize("name", ISAS)


@pytest.fixture(autouse=True)
def variant(name):
    """Bind with one instruction set in each test."""
    with isa(name):
        yield


def columns_around_tiles() -> list[int]:
    _, nr = dispatch.tile()
    lanes = dispatch.lanes()
    near = {1, lanes - 1, lanes, lanes + 1, nr - 1, nr, nr + 1, 2 * nr + 3}
    return sorted(near - {0})


def rows_value(bench: Workbench, array: np.ndarray, gap: int = 0) -> TensorView:
    """Return a matrix whose row stride exceeds its row length by `gap` elements."""
    return bench.put(array, (array.shape[1] + gap, 1))


def product(x: np.ndarray, weight: np.ndarray, bias: np.ndarray) -> np.ndarray:
    return x.astype(np.float64) @ weight.T.astype(np.float64) + bias


# -- rows times packed weights -----------------------------------------------------------------


@pytest.mark.parametrize("depth", DEPTHS)
def test_every_height_and_width_of_the_tile(depth):
    """All heights from one row to more than a tile; all widths around vectors and panels."""
    mr, _ = dispatch.tile()
    for columns in columns_around_tiles():
        weight, bias = noise((columns, depth), 1), noise((columns,), 2)
        packed = packing.pack_panels(weight[:, None], bias)
        for rows in range(1, 2 * mr + 2):
            x = noise((rows, depth), rows)
            bench = Workbench()
            y = bench.allocate((rows, columns), strides=(columns + 3, 1))
            bench.written.append(y)
            step = LinearStep(rows_value(bench, x, 5), bench.put(packed), y)
            bench.run(step)
            got = bench.view(y)
            assert_close(got, product(x, weight, bias).astype(np.float32), 2e-6, f"{rows} rows")


@pytest.mark.parametrize(
    ("rows", "depth", "columns"),
    [(rows, *shape) for rows in (1, 5, 29, 100) for shape in ((33, 130), (1024, 200))]
    + [(700, 400, 350), (3100, 512, 512)],
)
def test_shards_of_rows_and_panels(rows, depth, columns):
    """Large weights are multiplied panel by panel for many rows, small ones tile by tile.

    The shards do not affect the result.
    """
    x, weight, bias = noise((rows, depth)), noise((columns, depth), 1), noise((columns,), 2)
    bench = Workbench()
    y = bench.output((rows, columns))
    binder = BenchBinder(bench, y)
    a = arguments("nn.Linear", bench.put(x), weight=weight, bias=bias)
    got = run_record(binder, "nn.Linear", a)
    assert got.std() > 0
    assert_close(got, product(x, weight, bias).astype(np.float32), 5e-6)


def test_a_row_is_the_same_in_any_batch():
    x, weight, bias = noise((50, 70)), noise((90, 70), 1), noise((90,), 2)
    whole = linear(x, weight, bias)
    for count in range(1, 20):
        part = linear(x[:count].copy(), weight, bias)
        np.testing.assert_array_equal(part.view(np.uint32), whole[:count].view(np.uint32))


POSTS = [
    ("nn.ReLU",), ("nn.Hardtanh",), ("nn.SiLU",), ("nn.Softplus",), ("add",), ("add", "nn.ReLU6"),
    ("add", "nn.Sigmoid"), ("nn.ReLU", "add"), ("nn.LeakyReLU", "add"),
    ("nn.ReLU6", "add", "nn.ReLU"), ("nn.SiLU", "add", "nn.Hardtanh"),
    ("nn.ReLU", "add", "nn.Hardswish"),
    ("nn.LeakyReLU", "add", "nn.Softplus"),
]  # fmt: skip


@pytest.mark.parametrize("words", POSTS, ids="-".join)
def test_post_ops(words):
    _, nr = dispatch.tile()
    for rows, columns in itertools.product((1, 7, 30), (3, nr, nr + 5)):
        x, weight, bias = noise((rows, 20)), noise((columns, 20), 1), noise((columns,), 2)
        summand = noise((rows, columns), 3)
        bench = Workbench()
        y = bench.output((rows, columns))
        value = rows_value(bench, summand, 7)
        binder = BenchBinder(bench, y, post_ops(*words), value)
        a = arguments("nn.Linear", rows_value(bench, x, 3), weight=weight, bias=bias)
        got = run_record(binder, "nn.Linear", a, (1, 3))
        expected = reference_epilogue(product(x, weight, bias), words, summand)
        assert_close(got, expected.astype(np.float32), 1e-5, f"{rows} x {columns}")


@pytest.mark.parametrize("has_bias", [True, False])
def test_a_weight_that_is_packed_at_run_time(has_bias):
    """Packing in a step gives the same panels, to the bit, as packing while planning."""
    for columns, depth in itertools.product(columns_around_tiles(), (1, 17)):
        x, weight = noise((9, depth)), noise((columns, depth), 1)
        bias = noise((columns,), 2) if has_bias else None
        results = []
        for constant in (True, False):
            bench = Workbench()
            binder = BenchBinder(bench, bench.output((9, columns)), post_ops("nn.ReLU"))
            given = {"weight": weight, "bias": bias}
            if not constant:
                transposed = bench.put(weight.T.copy()).permute((1, 0))
                given["weight"] = transposed
                given["bias"] = None if bias is None else bench.put(bias)
            a = arguments("F.linear", bench.put(x), **given)
            results.append(run_record(binder, "F.linear", a, (1, 2)))
        np.testing.assert_array_equal(*results)
        expected = np.maximum(product(x, weight, 0 if bias is None else bias), 0)
        assert_close(results[0], expected.astype(np.float32), 2e-6)


def test_nan_infinity_and_minus_zero():
    """Sums and clamps treat NaN and infinities as PyTorch does, and keep -0.0."""
    x = np.zeros((6, 1), np.float32)
    x[:, 0] = np.nan, np.inf, -np.inf, 0, -1, 7
    weight, bias = np.ones((35, 1), np.float32), np.full(35, -0.0, np.float32)
    for words, expected in (
        ((), [np.nan, np.inf, -np.inf, 0, -1, 7]),
        (("nn.ReLU",), [np.nan, np.inf, 0, 0, 0, 7]),
        (("nn.ReLU6",), [np.nan, 6, 0, 0, 0, 6]),
        (("nn.LeakyReLU",), [np.nan, np.inf, -np.inf, 0, np.float32(-0.2), 7]),
    ):
        bench = Workbench()
        binder = BenchBinder(bench, bench.output((6, 35)), post_ops(*words))
        a = arguments("nn.Linear", bench.put(x), weight=weight, bias=bias)
        got = run_record(binder, "nn.Linear", a, (1,))
        np.testing.assert_array_equal(got, np.tile(np.float32(expected)[:, None], 35))
    # 0 * -1 - 0.0 is -0.0, and PyTorch's relu keeps it.
    for words in ((), ("nn.ReLU",), ("nn.ReLU6",)):
        bench = Workbench()
        binder = BenchBinder(bench, bench.output((2, 35)), post_ops(*words))
        a = arguments("nn.Linear", bench.put(x[3:4].repeat(2, 0)), weight=-weight, bias=bias)
        assert np.signbit(run_record(binder, "nn.Linear", a, (1,))).all()


@pytest.mark.parametrize(("rows", "depth", "columns"), [(0, 3, 4), (2, 0, 40), (2, 3, 0)])
def test_products_without_terms_rows_or_columns(rows, depth, columns):
    bias = noise((columns,), 2)
    got = linear(noise((rows, depth)), noise((columns, depth)), bias)
    assert got.shape == (rows, columns)
    if depth == 0:
        np.testing.assert_array_equal(got, np.tile(bias, (rows, 1)))


# -- the memoryview interface ------------------------------------------------------------------


@pytest.mark.parametrize("n_threads", [1, 2, 7])
def test_linear(n_threads):
    x, weight, bias = noise((37, 50)), noise((70, 50), 1), noise((70,), 2)
    for array in (x, weight, bias):
        array.flags.writeable = False
    got = linear(x, weight, bias, n_threads=n_threads)
    assert_close(got, product(x, weight, bias).astype(np.float32), 2e-6)
    np.testing.assert_array_equal(got, linear(x, weight, bias))
    got = linear(x, weight, n_threads=n_threads)
    assert_close(got, product(x, weight, np.zeros(70)).astype(np.float32), 2e-6)


def test_linear_checks_its_arguments():
    x, weight = noise((3, 4)), noise((5, 4))
    with pytest.raises(InputError, match=r"x has shape \(3, 4\) and weight \(5, 3\)"):
        linear(x, noise((5, 3)))
    with pytest.raises(InputError, match="n_threads must be >= 1"):
        linear(x, weight, n_threads=0)
    with pytest.raises(InputError, match=r"bias has shape \(4,\), expected \(5,\)"):
        linear(x, weight, noise((4,)))
    for wrong in (x.astype(np.float64), x[0], x.T):
        with pytest.raises(ValueError, match=r"mismatch|dimensions|contig"):
            linear(wrong, weight)


# -- matrix times matrix -----------------------------------------------------------------------


def multiplied(
    bench: Workbench, a: TensorView, b: TensorView, gap: int = 0, shards=(1, 2, 3)
) -> np.ndarray:
    """Run MatmulStep in several numbers of shards."""
    batch = a.shape[:-2]
    rows, columns = a.shape[-2], b.shape[-1]
    strides = contiguous_strides((*batch, rows, columns + gap))
    y = bench.allocate((*batch, rows, columns), strides=strides)
    bench.written.append(y)
    scratch = bench.scratch(PackedMatrix(1, a.shape[-1]).panel_bytes)
    results = []
    for count in shards:
        bench.memory[y.slot][...] = PATTERN
        bench.run(MatmulStep(a, b, y, scratch), shards=count)
        results.append(bench.view(y).copy())
        np.testing.assert_array_equal(results[-1], results[0])
    return results[0]


def check_product(bench: Workbench, a: TensorView, b: TensorView, **how) -> None:
    x, y = (bench.view(v).astype(np.float64) for v in (a, b))
    assert_close(multiplied(bench, a, b, **how), (x @ y).astype(np.float32), 5e-6)


@pytest.mark.parametrize("depth", DEPTHS)
def test_matrix_products_around_the_tile(depth):
    mr, _ = dispatch.tile()
    for rows, columns in itertools.product((1, mr - 1, mr, mr + 1, 3 * mr), columns_around_tiles()):
        bench = Workbench()
        a, b = bench.put(noise((rows, depth))), bench.put(noise((depth, columns), 1))
        check_product(bench, a, b, gap=3, shards=(1,))


@pytest.mark.parametrize("rows", [1, 40, 500])
def test_matrix_products_of_any_strides(rows):
    """With few panels, several shards share a panel and divide its rows."""
    bench = Workbench()
    a = rows_value(bench, noise((rows, 21)), 4)
    for b in (
        bench.put(noise((21, 50))),
        bench.put(noise((50, 21))).permute((1, 0)),
        bench.put(noise((21, 100))).narrow(1, 1, 50, 2),
        bench.put(noise((21, 1))).expand((21, 50)),
        bench.put(noise((1, 50))).expand((21, 50)),
    ):
        check_product(bench, a, b, gap=1)


@pytest.mark.parametrize("axes", range(1, max_batch_axes + 1))
def test_batches_that_are_broadcast_from_either_side(axes):
    bench = Workbench()
    batch = (2,) * axes
    left = tuple(2 if k % 2 else 1 for k in range(axes))
    right = tuple(1 if k % 2 else 2 for k in range(axes))
    a = bench.put(noise((*left, 5, 7))).expand((*batch, 5, 7))
    b = bench.put(noise((*right, 7, 9), 1)).expand((*batch, 7, 9))
    check_product(bench, a, b)


def test_nan_and_infinity_in_matrix_products():
    a = np.eye(3, dtype=np.float32)
    b = np.array([[np.nan, 1], [2, np.inf], [3, 4]], np.float32)
    bench = Workbench()
    got = multiplied(bench, bench.put(a), bench.put(b))
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(got, np.matmul(a, b))


# -- packing -----------------------------------------------------------------------------------


@pytest.mark.parametrize("n_threads", [1, 3])
def test_panels(n_threads):
    _, nr = dispatch.tile()
    for columns, taps, channels in itertools.product((1, nr, 2 * nr + 1), (1, 4), (1, 6)):
        weight = noise((columns, channels, taps)).transpose(0, 2, 1)
        bias = noise((columns,), 1)
        packed = packing.pack_panels(weight, bias, n_threads)
        panels = -(-columns // nr)
        assert packed.shape == (panels, 1 + taps * channels, nr)
        assert packed.ctypes.data % 64 == 0
        expected = np.zeros((panels * nr, 1 + taps * channels), np.float32)
        expected[:columns, 0] = bias
        expected[:columns, 1:] = weight.reshape(columns, -1)
        expected = expected.reshape(panels, nr, -1).transpose(0, 2, 1)
        np.testing.assert_array_equal(packed, expected)
        np.testing.assert_array_equal(packing.pack_panels(weight, None)[:, 1:], expected[:, 1:])
        assert not packing.pack_panels(weight, None)[:, 0].any()


@pytest.mark.parametrize("byte", [1, 2, 3])
@pytest.mark.parametrize("order", ["channels", "columns", "neither"])
def test_weights_may_start_at_any_byte(byte, order):
    """As they do in a file; a sanitizer detects loads that assume alignment."""

    def anywhere(array: np.ndarray) -> np.ndarray:
        moved = np.zeros(array.nbytes + byte, np.uint8)[byte:].view(np.float32)
        moved = moved.reshape(array.shape)
        moved[...] = array
        assert moved.ctypes.data % 4 == byte
        return moved

    _, nr = dispatch.tile()
    for columns, channels in itertools.product((1, 2, 3, nr - 1, nr, nr + 1), (1, 2, 3, 4, 7, 65)):
        taps = 2 if order == "neither" else 1
        shape = (channels, taps, columns) if order == "columns" else (columns, channels, taps)
        weight, bias = noise(shape), noise((columns,), 1)
        axes = (2, 1, 0) if order == "columns" else (0, 2, 1)
        expected = packing.pack_panels(weight.transpose(axes), bias)
        packed = packing.pack_panels(anywhere(weight).transpose(axes), anywhere(bias))
        np.testing.assert_array_equal(packed, expected)
    filters = noise((nr + 1, 17, 3, 3))
    for how, later in itertools.product(WINOGRAD, (False, True)):
        expected = transformed(filters, *how, later=later)
        np.testing.assert_array_equal(transformed(anywhere(filters), *how, later=later), expected)


class RecordingWeight:
    """A weight that records the slices that are read."""

    def __init__(self, weight: np.ndarray):
        self.weight, self.shape, self.slices = weight, weight.shape, []

    def __getitem__(self, rows: slice) -> np.ndarray:
        self.slices.append(rows)
        return self.weight[rows].copy()


@pytest.mark.parametrize("n_threads", [1, 2, 3])
def test_large_weights_are_packed_in_parts(n_threads):
    _, nr = dispatch.tile()
    columns, channels = 10 * nr + min(3, nr), max(9000, 72000 // nr)
    weight, bias = noise((columns, 1, channels)), noise((columns,), 1)
    recorded = RecordingWeight(weight)
    packed = packing.pack_panels(recorded, bias, n_threads)
    assert len(recorded.slices) > 1
    assert [rows.start for rows in recorded.slices[1:]] == [
        rows.stop for rows in recorded.slices[:-1]
    ]
    assert (recorded.slices[0].start, recorded.slices[-1].stop) == (0, columns)
    whole = np.zeros((11 * nr, 1 + channels), np.float32)
    whole[:columns, 0], whole[:columns, 1:] = bias, weight[:, 0]
    np.testing.assert_array_equal(packed, whole.reshape(11, nr, -1).transpose(0, 2, 1))
    filters = noise((4 * nr + 5, max(1100, 8800 // nr), 3, 3))
    for how in WINOGRAD:
        recorded = RecordingWeight(filters)
        packed = transformed(recorded, *how, n_threads)
        assert len(recorded.slices) > 1
        for panel in range(5):
            part = transformed(filters[panel * nr : (panel + 1) * nr], *how)
            np.testing.assert_array_equal(packed[:, panel : panel + 1], part)


def transformed(weight, tile, stride, n_threads=1, later=False) -> np.ndarray:
    """Return transformed filters, transformed at once or deferred."""
    filters = winograd.WinogradFilters(weight, tile, stride, n_threads, later)
    assert filters.is_deferred == later
    assert (filters.scratch_bytes > 0) == later
    while filters.advance(n_threads):
        assert filters.is_deferred
    assert not filters.is_deferred
    assert filters.scratch_bytes == 0
    assert filters.weights.ctypes.data % 64 == 0
    return filters.weights


def values_at(taps: np.ndarray, points: list[float]) -> np.ndarray:
    """Evaluate polynomials at points, divided by Lagrange's products of differences.

    `taps` are coefficients along the first axis.  The last row is the point at infinity: the
    coefficient of the highest power.
    """
    rows = []
    for p in points:
        divisor = np.prod([p - other for other in points if other != p])
        rows.append(sum(tap * p**k for k, tap in enumerate(taps)) / divisor)
    return np.stack([*rows, taps[-1]])


@pytest.mark.parametrize(("tile", "stride"), WINOGRAD)
@pytest.mark.parametrize("n_threads", [1, 2])
def test_winograd_filters(tile, stride, n_threads):
    """The transformed filters equal the interpolation that defines them, in float64."""
    _, nr = dispatch.tile()
    points = {2: [0, 1, -1], 4: [0, 5 / 8, -5 / 8, 3 / 2, -3 / 2]}[tile]

    def along(taps):
        if stride == 1:
            values = values_at(taps, points)
            values[0] *= -1 if tile == 2 else 1  # the input's transform has the opposite sign
            return values
        even, odd = taps[[0, 2]], taps[1:2]
        return np.concatenate([values_at(even, [3 / 8, -3 / 8, 3 / 2, -3 / 2]), odd])

    for columns, channels in itertools.product((1, nr - 1, nr, 2 * nr + 1), (1, 2, 19)):
        weight = noise((columns, channels, 3, 3))
        wanted = along(weight.astype(np.float64).transpose(2, 3, 0, 1))
        wanted = along(wanted.swapaxes(0, 1)).swapaxes(0, 1)
        wanted = wanted.reshape((tile + 2) ** 2, columns, channels)
        got = transformed(weight, tile, stride, n_threads)
        panels = -(-columns // nr)
        assert got.shape == ((tile + 2) ** 2, panels, 1 + channels, nr)
        assert not got[:, :, 0].any()
        flat = got[:, :, 1:].swapaxes(2, 3).reshape(-1, panels * nr, channels)
        assert not flat[:, columns:].any()
        # A transform multiplies a tap by at most 1.2 per axis.
        assert np.abs(flat[:, :columns] - wanted).max() <= 5e-7 * np.abs(weight).max()
        late = transformed(weight, tile, stride, n_threads, later=True)
        np.testing.assert_array_equal(late, got)


def test_packed_weights_share_memory():
    store = WeightCache(1 << 20)
    sizes = (1, 16, 17, 100_000, 5, 300_000, 2)
    arrays = [store.get(n, lambda n=n, p=store.pages: aligned_empty((n,), p)) for n in sizes]
    assert len(store) == len(sizes)
    for number, array in enumerate(arrays):
        assert array.ctypes.data % 64 == 0
        array[...] = number
    for number, array in enumerate(arrays):
        assert (array == number).all()
    near = arrays[1].ctypes.data - arrays[0].ctypes.data
    assert near == 64  # adjacent
    assert aligned_empty((4,)).base is not arrays[0].base
    with pytest.raises(ZeroDivisionError):
        store.get("nothing", lambda: 1 / 0)
    assert len(store) == len(sizes)
    del store, arrays[1:]
    assert arrays[0] == 0


# -- the choice of a variant -------------------------------------------------------------------


def test_the_active_variant(name):
    assert dispatch.active_name() == name
    mr, nr = dispatch.tile()
    assert nr == 2 * dispatch.lanes()
    tiles = {"baseline": (6, 8), "avx2": (6, 16), "avx512": (14, 32), "neon": (12, 8)}
    if dispatch.lanes() == 1:  # built without vectors
        tiles = {"baseline": (6, 2)}
    assert (mr, nr) == tiles[name]


def test_an_unknown_variant(name):
    with pytest.raises(KuiperError) as caught:
        dispatch.select("avx1024")
    assert str(caught.value) == (
        f"instruction set 'avx1024' is not available here; choose one of {', '.join(ISAS)}"
    )
    assert dispatch.active_name() == name
