"""Integer products on every variant, against exact sums of 64-bit integers."""

from __future__ import annotations

import numpy as np
import pytest

from kuiper._kernels.linear.quantized import QuantizedLinearStep, QuantizeRowsStep
from kuiper._kernels.micro import dispatch
from kuiper._kernels.micro.packed import QuantizedPanels

from ...support.workbench import EXTENDED_ISAS, Workbench, isa, noise

ZERO = 128
DOT_EXTENSIONS = {"avx_vnni", "avx512_vnni", "neon_dot"}


def bytes_of(shape, seed: int, low: int, high: int, dtype) -> np.ndarray:
    return np.random.default_rng(seed).integers(low, high, shape, endpoint=True).astype(dtype)


def product_step(bench: Workbench, x, factors, weight, scale, bias, y):
    """Return the step of a product of bytes; `x` has a gap between its rows."""
    matrix = QuantizedPanels(*weight.shape)
    padded = np.full((len(x), matrix.depth), 77, np.uint8)  # multiplied by weights of 0
    padded[:, : x.shape[1]] = x
    memory = np.empty(matrix.shape, np.int8)
    matrix.fill(memory, weight, scale, ZERO, bias)
    return QuantizedLinearStep(
        bench.put(padded, (matrix.depth + 4, 1)), bench.put(factors), bench.put(memory),
        matrix.panel_bytes, y, x.shape[1],
    )  # fmt: skip


def expected(x, factors, weight, scale, bias) -> np.ndarray:
    """The exact sums, then float32 operations in the order that the kernel promises."""
    sums = (x.astype(np.int64) - ZERO) @ weight.astype(np.int64).T
    assert np.abs(sums).max(initial=0) < 2**31
    return sums.astype(np.float32) * (scale * factors[:, np.newaxis]) + bias


def case(rows: int, depth: int, columns: int, extreme: bool = False):
    low, high = (-127, 127) if not extreme else (127, 127)
    x = bytes_of((rows, depth), 1, 255 if extreme else 1, 255, np.uint8)
    weight = bytes_of((columns, depth), 2, low, high, np.int8)
    return x, np.abs(noise((rows,), 3)), weight, np.abs(noise((columns,), 4)), noise((columns,), 5)


@pytest.mark.parametrize(("name", "extended"), EXTENDED_ISAS)
def test_every_height_and_width_of_the_tile(name, extended):
    with isa(name, extended):
        _, nr = dispatch.tile()
        lanes = dispatch.lanes()
        for columns in sorted({1, lanes - 1, lanes, lanes + 1, nr - 1, nr, nr + 1} - {0}):
            for rows in range(1, 30):
                given = case(rows, 1 + rows % 9, columns)
                bench = Workbench()
                y = bench.output((rows, columns))
                bench.run(product_step(bench, *given, y))
                np.testing.assert_array_equal(bench.view(y), expected(*given), f"{rows} rows")


@pytest.mark.parametrize(("name", "extended"), EXTENDED_ISAS)
@pytest.mark.parametrize("shape", [(5, 33, 130), (100, 1024, 200), (40, 260, 2100), (3, 9000, 70)])
def test_shards_give_the_same_bits(name, extended, shape):
    with isa(name, extended):
        given = case(*shape)
        bench = Workbench()
        y = bench.output((shape[0], shape[2]))
        step = product_step(bench, *given, y)
        np.testing.assert_array_equal(bench.run_all_shards(lambda: step, y), expected(*given))


@pytest.mark.parametrize(("name", "extended"), EXTENDED_ISAS)
def test_sums_do_not_saturate(name, extended):
    """Two products of 255 and 127 exceed 16 bits; the largest sums almost fill 32 bits."""
    with isa(name, extended):
        for depth in (2, 4, 133_000):
            given = case(3, depth, 20, extreme=True)
            bench = Workbench()
            y = bench.output((3, 20))
            bench.run(product_step(bench, *given, y))
            np.testing.assert_array_equal(bench.view(y), expected(*given))


def quantized_rows(x: np.ndarray, gap: int = 3):
    """Run the step; return the bytes, the factors, and the bytes after the end of each row."""
    rows, depth = x.shape
    quads = -(-depth // 4)
    bench = Workbench()
    y, factors = (
        bench.allocate((rows, 4 * quads), np.uint8, (4 * quads + gap, 1)),
        bench.output((rows,)),
    )
    bench.written.append(y)
    bench.run(QuantizeRowsStep(bench.put(x, (depth + gap, 1)), y, factors))
    got = bench.view(y)
    return got[:, :depth].copy(), bench.view(factors).copy(), got[:, depth:].copy()


@pytest.mark.parametrize(("name", "extended"), EXTENDED_ISAS)
@pytest.mark.parametrize("depth", [1, 2, 3, 4, 15, 16, 17, 31, 64, 100])
def test_rows_as_bytes(name, extended, depth):
    x = noise((7, depth), depth) * np.float32(10.0) ** np.arange(-3, 4, dtype=np.float32)[:, None]
    with isa(name, extended):
        got, factors, rest = quantized_rows(x)
    largest = np.abs(x).max(1, keepdims=True)
    inverse = (np.float32(127) / largest).astype(np.float32)
    np.testing.assert_array_equal(got, np.rint(x * inverse) + ZERO)
    np.testing.assert_array_equal(factors, largest[:, 0] / np.float32(127))
    assert {1, 255} & set(got[np.arange(7), np.abs(x).argmax(1)].tolist())
    assert (rest == ZERO).all()


@pytest.mark.parametrize(("name", "extended"), EXTENDED_ISAS)
@pytest.mark.parametrize("at", [0, 16, 18])
def test_rows_that_are_not_finite_or_zero(name, extended, at):
    x = noise((6, 19))
    x[0] = 0.0
    x[1, at], x[2, at], x[3, at] = np.nan, np.inf, -np.inf
    x[4] = 1e-38  # its reciprocal times 127 would overflow
    with isa(name, extended):
        got, factors, _ = quantized_rows(x)
    assert (got[:5] == ZERO).all()
    np.testing.assert_array_equal(factors[:5], [0.0, np.nan, np.nan, np.nan, 0.0])
    assert np.isfinite(factors[5])


def test_extensions_belong_to_a_variant():
    """Selecting a variant without its extensions leaves its name, tile and vectors as they are."""
    for name in dispatch.available():
        extensions = dispatch.extensions_of(name)
        with isa(name, extended=False):
            facts = dispatch.active_name(), dispatch.tile(), dispatch.lanes()
            assert not dispatch.has_byte_products()
        with isa(name):
            assert (dispatch.active_name(), dispatch.tile(), dispatch.lanes()) == facts
            assert dispatch.has_byte_products() == bool(DOT_EXTENSIONS & {*extensions})
            assert dispatch.has_bfloat16_products() == ("avx512_bf16" in extensions)
    assert dispatch.extensions_of("baseline") == ()
