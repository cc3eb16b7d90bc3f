"""Elementwise functions of all types, against numpy."""

from __future__ import annotations

import numpy as np
import pytest

from kuiper._kernels.elementwise.typed import FUNCTIONS, TESTS, TYPES, TypedStep
from kuiper.ir.view import channels_last_strides
from kuiper.ops.core.numpy_step import convert

from ...support.workbench import ISAS, Workbench, isa, noise

DTYPES = [np.dtype(name) for name in TYPES]
WHOLE = [dtype for dtype in DTYPES if dtype.kind in "iu"]
FLOATS = [dtype for dtype in DTYPES if dtype.kind == "f"]
NUMBERS = WHOLE + FLOATS

# Around a block of 512 elements, and remainders of a vector.
SIZES = (1, 15, 16, 17, 511, 512, 513, 1300)


def computed(inputs, instructions, shape, dtype, y_strides=None):
    """Run a program on arrays, or pairs of array and dtype, each broadcast to a shape."""
    bench = Workbench()
    pairs = [(x, x.dtype) if isinstance(x, np.ndarray) else x for x in inputs]
    values = [(bench.put(x).expand(shape), np.dtype(wanted)) for x, wanted in pairs]
    y = bench.allocate(shape, dtype, y_strides)
    bench.written.append(y)
    return bench.run_all_shards(lambda: TypedStep(values, instructions, y), y)


def spread(shape, dtype, seed=0):
    """Return values over the whole range of a dtype, with small and equal ones."""
    dtype = np.dtype(dtype)
    random = np.random.default_rng(seed)
    if dtype.kind == "b":
        return random.integers(0, 2, shape).astype(dtype)
    if dtype.kind == "f":
        x = random.integers(-9, 9, shape) * 0.5 * 10.0 ** random.integers(0, 25, shape)
        odd = np.array([np.nan, np.inf, -np.inf, -0.0, 0.0, 5e-324, 2.0**31, -(2.0**31), 2.0**63])
        return np.where(random.random(shape) < 0.3, random.choice(odd, shape), x).astype(dtype)
    limits = np.iinfo(dtype)
    x = random.integers(limits.min, limits.max, shape, dtype, endpoint=True)
    small = random.integers(-3 if limits.min else 0, 4, shape)
    return np.where(random.random(shape) < 0.5, small, x).astype(dtype)


# -- casts -------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", ISAS)
@pytest.mark.parametrize("source", DTYPES, ids=str)
def test_casts(source, name):
    for target in DTYPES:
        for size in SIZES:
            x = spread((size,), source, size)
            with isa(name):
                got = computed([(x, target)], [], x.shape, target)
            np.testing.assert_array_equal(got, convert(x, target), f"{source} to {target}")


@pytest.mark.parametrize("target", WHOLE, ids=str)
def test_floats_out_of_range_of_the_integer(target):
    """They become the minimum of int32 or int64, then its low bits, whatever their neighbours."""
    wide = np.int32 if target == np.int32 else np.int64
    least = np.array(np.iinfo(wide).min, wide).astype(target)
    for source in FLOATS:
        for odd in (np.nan, np.inf, -np.inf, 1e30, -1e30):
            x = np.full(40, 3.75, source)
            x[17] = odd
            expected = np.full(40, 3, target)
            expected[17] = least
            np.testing.assert_array_equal(computed([(x, target)], [], x.shape, target), expected)


def test_casts_of_views():
    x = spread((2, 9, 7, 6), np.float32)
    x = np.where(np.abs(x) < 100, x, 1)
    bench = Workbench()
    image = bench.put_channels_last(x, 16)
    for strides in (None, channels_last_strides(x.shape), channels_last_strides(x.shape, 12)):
        y = bench.allocate(x.shape, np.int16, strides)
        bench.written.append(y)
        step = lambda y=y: TypedStep([(image, y.dtype)], [], y)  # noqa: E731
        np.testing.assert_array_equal(bench.run_all_shards(step, y), x.astype(np.int16))
    turned = image.permute((3, 1, 0, 2)).narrow(1, 8, 5, -2)
    y = bench.output(turned.shape, dtype=np.float64)
    got = bench.run_all_shards(lambda: TypedStep([(turned, y.dtype)], [], y), y)
    np.testing.assert_array_equal(got, x.transpose(3, 1, 0, 2)[:, ::-2])


# -- functions ---------------------------------------------------------------------------------

UFUNCS = {
    "equal": np.equal,
    "unequal": np.not_equal,
    "less": np.less,
    "less_equal": np.less_equal,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "shift_left": np.left_shift,
    "shift_right": np.right_shift,
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "divide": np.divide,
    "floor_divide": np.floor_divide,
    "remainder": np.remainder,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "is_infinite": lambda a, _: np.isinf(a),
    "is_finite": lambda a, _: np.isfinite(a),
    "absolute": lambda a, _: np.abs(a),
}


def types_of(function):
    """Return the types that a function accepts."""
    if function in ("and", "or", "xor"):
        return [np.dtype(bool), *WHOLE]
    if function in ("shift_left", "shift_right", "floor_divide", "remainder"):
        return WHOLE
    if function == "divide":
        return FLOATS
    return DTYPES if function in TESTS else NUMBERS


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", ISAS)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_functions(function, name):
    for dtype in types_of(function):
        for size in SIZES:
            a, b = spread((size,), dtype, size), spread((size,), dtype, size + 7)
            if function in ("floor_divide", "remainder"):
                b[b == 0] = 5
            if "shift" in function and size > 100:
                b[50:60] = np.arange(3, 13)
            expected = UFUNCS[function](a, b)
            with isa(name):
                got = computed([a, b], [(function, dtype, (0, 1))], a.shape, expected.dtype)
            np.testing.assert_array_equal(got, expected, f"{function} of {dtype}")


def test_every_function_is_tested():
    assert set(UFUNCS) == set(FUNCTIONS)


def test_the_minimum_integer_by_minus_one():
    for dtype in (np.int8, np.int16, np.int32, np.int64):
        a, b = np.full(20, np.iinfo(dtype).min, dtype), np.full(20, -1, dtype)
        for function, expected in (("floor_divide", a), ("remainder", 0 * a)):
            got = computed([a, b], [(function, np.dtype(dtype), (0, 1))], a.shape, dtype)
            np.testing.assert_array_equal(got, expected)


# -- shapes ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "shapes",
    [
        ((), ()),
        ((5,), ()),
        ((700,), (1,)),
        ((600, 1), (1, 700)),
        ((4, 1, 9), (3, 1)),
        ((300, 4), (4,)),
        ((300, 4), (300, 1)),
        ((2, 3, 5, 7, 3), (3, 1, 7, 1)),
        ((3, 130, 2), (130, 1)),
        ((0, 4), (4,)),
    ],
)
@pytest.mark.parametrize("dtypes", [(np.int64, np.int64), (np.uint8, np.float32)])
def test_broadcasting(shapes, dtypes):
    a, b = (noise(s, i, d) for i, (s, d) in enumerate(zip(shapes, dtypes, strict=True)))
    dtype = np.dtype(np.int64 if dtypes[1] == np.int64 else np.float32)
    expected = np.less(a, b)
    instructions = [("less", dtype, (0, 1))]
    got = computed([(a, dtype), (b, dtype)], instructions, expected.shape, np.bool_)
    np.testing.assert_array_equal(got, expected)


def test_results_with_gaps():
    a, b = noise((40, 12), 1, np.int32), noise((12,), 2, np.int32)
    instructions = [("add", a.dtype, (0, 1))]
    got = computed([a, b], instructions, a.shape, np.int32, (64, 2))
    np.testing.assert_array_equal(got, a + b)
    got = computed([a, b], instructions, a.shape, np.int32, (1, 40))
    np.testing.assert_array_equal(got, a + b)


# -- programs ----------------------------------------------------------------------------------


def test_programs():
    """Several types in one pass, reused registers, functions of float32."""
    a, b = noise((70, 90), 1, np.int64), np.abs(noise((90,), 2, np.float32))
    f, i = np.dtype(np.float32), np.dtype(np.int64)
    instructions = [
        ("multiply", i, (0, 0)),  # 2
        ("convert", f, (2,)),  # 3
        ("add", f, (3, 1)),  # 4
        ("sqrt", f, (4,)),  # 5
        ("less", f, (1, 5)),  # 6
        ("convert", i, (6,)),  # 7
        ("subtract", i, (7, 2)),  # 8
    ]
    got = computed([a, b], instructions, a.shape, np.int64)
    root = np.sqrt((a * a).astype(np.float32) + b)
    np.testing.assert_array_equal(got, (b < root).astype(np.int64) - a * a)


def test_long_programs_reuse_registers():
    a = noise((1000,), 1, np.int32)
    instructions = [("add", a.dtype, (k, 0)) for k in range(40)]
    got = computed([a], instructions, a.shape, np.int32)
    np.testing.assert_array_equal(got, 41 * a)


def test_too_many_values_at_once_are_refused():
    a = noise((9,), 1, np.int32)
    results = [("add", a.dtype, (0, 0)) for _ in range(20)]
    sums = [("add", a.dtype, (1 + k, 2 + k)) for k in range(19)]
    with pytest.raises(ValueError, match="more than 12 values"):
        computed([a], [*results, *sums], a.shape, np.int32)
