"""The elementwise engine, against float64 and numpy.

Covers the accuracy of every function, special values, layouts, chunks and shards.
"""

import json
import math
import re
import warnings

import numpy as np
import pytest

from kuiper._kernels.elementwise import elementwise
from kuiper._kernels.elementwise.chains import find_passes
from kuiper._kernels.micro import dispatch
from kuiper.errors import KuiperError
from kuiper.expression import Call, ElementwiseProgram, Literal, Ref, evaluate, fold, parse
from kuiper.expression.functions import FUNCTIONS
from kuiper.expression.lowering import Instruction, ProgramValue

from ...support.paths import DATA, ROOT
from ...support.workbench import ISAS, SHARD_COUNTS, Workbench, function, isa, noise

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


class Spec:
    """A tensor of which only shape and dtype are known."""

    dtype = np.dtype(np.float32)

    def __init__(self, shape):
        self.shape = tuple(shape)


def program_of(text, *arrays) -> ElementwiseProgram:
    program = fold(parse(text, extended=True), [Spec(a.shape) for a in arrays])
    assert isinstance(program, ElementwiseProgram)
    return program


def run(text, *arrays, out=None, n_shards=1):
    return elementwise.compute(program_of(text, *arrays), arrays, out, n_shards)


# Accuracy --------------------------------------------------------------------------------------

TINY = 1.1754944e-38


def each(f):
    return lambda x: np.array([f(v) for v in x])


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def tanhshrink(x):
    series = x**3 / 3 - 2 * x**5 / 15 + 17 * x**7 / 315 - 62 * x**9 / 2835
    return np.where(np.abs(x) < 0.05, series, x - np.tanh(x))


erfc = each(math.erfc)

# name: (reference in float64, domain, bound in ulp)
UNARY = {
    "copy": (lambda x: x, (-1e38, 1e38), 0),
    "abs": (np.abs, (-1e38, 1e38), 0),
    "neg": (np.negative, (-1e38, 1e38), 0),
    "sign": (np.sign, (-1e38, 1e38), 0),
    "square": (np.square, (-1e18, 1e18), 0.5),
    "sqrt": (np.sqrt, (0, 3e38), 0.5),
    "rsqrt": (lambda x: 1 / np.sqrt(x), (1e-37, 3e38), 2),
    "reciprocal": (lambda x: 1 / x, (-8e37, 8e37), 0.5),
    "floor": (np.floor, (-1e7, 1e7), 0),
    "ceil": (np.ceil, (-1e7, 1e7), 0),
    "trunc": (np.trunc, (-1e7, 1e7), 0),
    "round": (np.rint, (-1e7, 1e7), 0),
    "exp": (np.exp, (-87.3, 88.7), 1.5),
    "expm1": (np.expm1, (-30, 88.7), 2),
    "log": (np.log, (1e-45, 3e38), 1),
    "log10": (np.log10, (1e-45, 3e38), 2),
    "log2": (np.log2, (1e-45, 3e38), 2),
    "exp2": (np.exp2, (-125.9, 127.9), 2),
    "log1p": (np.log1p, (-0.9999, 1e6), 2),
    "erf": (each(math.erf), (-5, 5), 2),
    "sin": (np.sin, (-12800, 12800), 2.5),
    "cos": (np.cos, (-12800, 12800), 2.5),
    "tan": (np.tan, (-12800, 12800), 3),
    "asin": (np.arcsin, (-1, 1), 2.5),
    "acos": (np.arccos, (-1, 1), 2),
    "atan": (np.arctan, (-1e6, 1e6), 2),
    "sinh": (np.sinh, (-89, 89), 2),
    "cosh": (np.cosh, (-89, 89), 2),
    "tanh": (np.tanh, (-20, 20), 2),
    "asinh": (np.arcsinh, (-1e20, 1e20), 3),
    "acosh": (np.arccosh, (1, 1e20), 3),
    "atanh": (np.arctanh, (-1, 1), 3),
    "relu": (lambda x: np.maximum(x, 0), (-1e38, 1e38), 0),
    "sigmoid": (sigmoid, (-8, 90), 4),
    "logsigmoid": (lambda x: -np.logaddexp(0, -x), (-87, 87), 3),
    "hardsigmoid": (lambda x: np.clip(x + 3, 0, 6) / 6, (-2.9, 9), 10),
    "silu": (lambda x: x * sigmoid(x), (-8, 90), 4),
    "hardswish": (lambda x: x * np.clip(x + 3, 0, 6) / 6, (-2.9, 9), 10),
    "mish": (lambda x: x * np.tanh(np.logaddexp(0, x)), (-80, 60), 5),
    "gelu": (lambda x: x * erfc(-x / math.sqrt(2)) / 2, (-0.5, 20), 10),
    "gelu_tanh": (
        lambda x: x * sigmoid(2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)), (-5, 20), 40
    ),
    "selu": (
        lambda x: 1.0507009873554805
        * np.where(x > 0, x, 1.6732632423543772 * np.expm1(np.minimum(x, 0))),
        (-20, 20), 3,
    ),
    "softsign": (lambda x: x / (1 + np.abs(x)), (-1e6, 1e6), 2),
    "tanhshrink": (tanhshrink, (-20, 20), 30),
}  # fmt: skip

# (name, parameters): as above
PARAMETRIC = {
    ("leaky_relu", (0.1,)): (lambda x: np.where(x > 0, x, x * np.float32(0.1)), (-9, 9), 0.5),
    ("clamp", (-1.5, 2.5)): (lambda x: np.clip(x, -1.5, 2.5), (-9, 9), 0),
    ("elu", (0.75,)): (
        lambda x: np.where(x > 0, x, 0.75 * np.expm1(np.minimum(x, 0))), (-20, 9), 3
    ),
    ("celu", (1.25,)): (
        lambda x: np.where(x > 0, x, 1.25 * np.expm1(np.minimum(x, 0) / 1.25)), (-20, 9), 4
    ),
    ("softplus", (2.0, 20.0)): (
        lambda x: np.where(2 * x > 20, x, np.logaddexp(0, 2 * x) / 2), (-40, 40), 4
    ),
    ("hardshrink", (0.5,)): (lambda x: np.where(np.abs(x) > 0.5, x, 0), (-3, 3), 0),
    ("softshrink", (0.5,)): (
        lambda x: np.sign(x) * np.maximum(np.abs(x) - 0.5, 0), (-3, 3), 0.5
    ),
    ("threshold", (0.25, -2.0)): (lambda x: np.where(x > 0.25, x, -2.0), (-3, 3), 0),
    ("nan_to", (2.0,)): (lambda x: x, (-3, 3), 0),
    ("inf_to", (2.0, -1.0)): (lambda x: x, (-3, 3), 0),
}  # fmt: skip


def samples(low, high, count=20_000):
    """Return floats of a range: evenly spaced, and of every magnitude down to the denormals."""
    rng = np.random.default_rng(1)
    even = rng.uniform(low, high, count)
    sizes = 10.0 ** rng.uniform(-40, 38, count) * rng.choice([-1.0, 1.0], count)
    near_one = 1 + rng.uniform(-1e-3, 1e-3, count // 4)
    with np.errstate(under="ignore"):
        x = np.concatenate([even, sizes, near_one, -near_one]).astype(np.float32)
    return x[(x >= low) & (x <= high)]


def assert_ulp(result, exact, bound):
    """Compare with a float64 reference; the ulp of denormal results is that of the smallest."""
    assert result.dtype == np.float32
    is_huge = np.abs(exact) > np.finfo(np.float32).max
    assert np.isinf(result[is_huge]).all()
    result, exact = result[~is_huge], exact[~is_huge]
    ulp = np.spacing(np.maximum(np.abs(exact), TINY).astype(np.float32)).astype(np.float64)
    error = np.abs(result.astype(np.float64) - exact) / ulp
    worst = np.argmax(error)
    assert error[worst] <= bound + 1e-6, (
        f"{error[worst]:.2f} ulp, got {result[worst]!r} for {exact[worst]!r}"
    )


@pytest.mark.parametrize("name", ISAS)
@pytest.mark.parametrize("f", UNARY)
def test_functions_of_one_tensor_keep_their_bounds(f, name):
    reference, domain, bound = UNARY[f]
    x = samples(*domain)
    with isa(name):
        result = function(f, x)
    assert_ulp(result, reference(x.astype(np.float64)), bound)
    assert len(np.unique(result)) > 1


@pytest.mark.parametrize("name", ISAS)
def test_gelu_keeps_its_absolute_bound(name):
    x = samples(-20, 1, 200_000)
    exact = UNARY["gelu"][0](x.astype(np.float64))
    with isa(name):
        result = function("gelu", x)
    assert np.abs(result - exact).max() < 3e-7


@pytest.mark.parametrize("name", ISAS)
@pytest.mark.parametrize("f", ["sigmoid", "silu"])
def test_the_tails_of_sigmoids_keep_20_bits(f, name):
    x = samples(-86, -8, 200_000)
    with isa(name):
        result = function(f, x)
    assert_ulp(result, UNARY[f][0](x.astype(np.float64)), 30)


@pytest.mark.parametrize("name", ISAS)
@pytest.mark.parametrize("f", PARAMETRIC, ids=lambda f: f[0])
def test_functions_with_parameters_keep_their_bounds(f, name):
    reference, domain, bound = PARAMETRIC[f]
    x = samples(*domain)
    with isa(name):
        result = function(f[0], x, parameters=f[1])
    assert_ulp(result, reference(x.astype(np.float64)), bound)
    assert len(np.unique(result)) > 1


def test_every_function_is_tested():
    names = {*UNARY, *(name for name, _ in PARAMETRIC)}
    assert elementwise.UNARY.keys() == names
    assert elementwise.BINARY.keys() == BINARY.keys()


def test_the_generated_kernels_match_the_tables():
    """Numbers count up from 0 and fit the micro-kernel table (MAX_UNARY, MAX_BINARY)."""
    rows = [row for row in FUNCTIONS.values() if row.vector]
    costs, swapped = elementwise.COSTS, elementwise.SWAPPED
    assert costs == {row.name: row.cost for row in rows}
    assert swapped == {row.name: row.swapped for row in rows if row.is_link}
    for numbers, room in ((elementwise.UNARY, 64), (elementwise.BINARY, 24)):
        is_binary = numbers is elementwise.BINARY
        names = [row.name for row in rows if (row.operands == 2) == is_binary]
        assert numbers == {name: i for i, name in enumerate(names)}
        assert len(names) <= room


@pytest.mark.parametrize("name", ISAS)
@pytest.mark.parametrize("f", ["sin", "cos", "tan"])
def test_large_angles_go_through_libm_lane_by_lane(f, name):
    x = np.array([1.0, 1e6, -3e7, 0.5, 1e38, 12800.5, -2.0], np.float32)
    with isa(name):
        result = function(f, x)
        alone = np.array([function(f, x[i : i + 1])[0] for i in range(len(x))])
    assert_ulp(result, getattr(np, f)(x.astype(np.float64)), 3)
    np.testing.assert_array_equal(result, alone)


def fmod(a, b):
    return np.fmod(a, b)


def remainder(a, b):
    rest = np.fmod(a, b)
    return np.where((rest != 0) & ((rest < 0) != (b < 0)), rest + b, rest)


def exact_floor_divide(a, b):
    rest = np.fmod(a, b)
    quotient = (a - rest) / b - ((rest != 0) & ((rest < 0) != (b < 0)))
    return np.rint(quotient)


# name: (reference in float64, range of a, range of b, bound in ulp)
BINARY = {
    "add": (np.add, (-1e30, 1e30), (-1e30, 1e30), 0.5),
    "sub": (np.subtract, (-1e30, 1e30), (-1e30, 1e30), 0.5),
    "mul": (np.multiply, (-1e15, 1e15), (-1e15, 1e15), 0.5),
    "div": (np.divide, (-1e15, 1e15), (1e-10, 1e15), 0.5),
    "max": (np.maximum, (-1e30, 1e30), (-1e30, 1e30), 0),
    "min": (np.minimum, (-1e30, 1e30), (-1e30, 1e30), 0),
    "prelu": (lambda x, w: np.where(x > 0, x, x * w), (-9, 9), (-2, 2), 0.5),
    "pow": (np.power, (1e-6, 1e3), (-10, 10), 1),
    "atan2": (np.arctan2, (-1e6, 1e6), (-1e6, 1e6), 3),
    "logaddexp": (np.logaddexp, (1, 80), (1, 80), 3),
    "fmod": (fmod, (-1e12, 1e12), (-1e3, 1e3), 0),
    "remainder": (remainder, (-1e12, 1e12), (-1e3, 1e3), 0.5),
    "floor_divide": (exact_floor_divide, (-1e9, 1e9), (1, 1e3), 0.5),
    "fmax": (np.fmax, (-1e30, 1e30), (-1e30, 1e30), 0),
    "fmin": (np.fmin, (-1e30, 1e30), (-1e30, 1e30), 0),
    "hypot": (np.hypot, (-1e37, 1e37), (-1e37, 1e37), 2),
    "copysign": (np.copysign, (-1e30, 1e30), (-9, 9), 0),
    "xlogy": (lambda x, y: x * np.log(y), (-1e6, 1e6), (1e-6, 1e6), 2),
    "heaviside": (np.heaviside, (-9, 9), (-9, 9), 0),
    "nextafter": (
        lambda x, y: np.nextafter(x.astype(np.float32), y.astype(np.float32)),
        (-1e6, 1e6),
        (-1e6, 1e6),
        0,
    ),
}


@pytest.mark.parametrize("name", ISAS)
@pytest.mark.parametrize("f", BINARY)
def test_functions_of_two_tensors_keep_their_bounds(f, name):
    reference, domain_a, domain_b, bound = BINARY[f]
    a, b = samples(*domain_a), samples(*domain_b)
    n = min(len(a), len(b))
    rng = np.random.default_rng(2)
    a, b = rng.permutation(a)[:n], rng.permutation(b)[:n]
    b = np.where(b == 0, np.float32(1), b)
    with isa(name):
        result = function(f, a, b)
    assert_ulp(result, reference(a.astype(np.float64), b.astype(np.float64)), bound)
    assert len(np.unique(result)) > 1


@pytest.mark.parametrize("name", ISAS)
def test_pow_is_accurate_at_the_ends_of_the_range(name):
    rng = np.random.default_rng(3)
    y = rng.uniform(-150, 128, 20_000).astype(np.float32)
    x = rng.uniform(1.5, 2.5, 20_000).astype(np.float32)
    exact = x.astype(np.float64) ** y
    keep = exact < 3.4e38
    with isa(name):
        assert_ulp(function("pow", x, y)[keep], exact[keep], 1)
        near_one = (1 + rng.uniform(-1e-6, 1e-6, 1000)).astype(np.float32)
        large = rng.uniform(-5e7, 5e7, 1000).astype(np.float32)
        assert_ulp(function("pow", near_one, large), near_one.astype(np.float64) ** large, 1)


# Special values --------------------------------------------------------------------------------

SIZES = np.array([0.0, 1e-45, 1e-39, 0.5, 1, 1.5, 2, 2.5, 3, 1e38, np.inf], np.float32)
SPECIAL = np.concatenate([SIZES, -SIZES, np.array([np.nan], np.float32)])


def assert_same_kind(result, expected, message=""):
    """Compare values, NaNs, infinities and the signs of zeros."""
    np.testing.assert_allclose(result, expected, rtol=2e-6, atol=1e-44, err_msg=message)
    zero = (expected == 0) & (result == 0)
    np.testing.assert_array_equal(
        np.signbit(result[zero]), np.signbit(expected[zero]), err_msg=message
    )


# Functions of C's libm, which defines their special values.
LIBM = "exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan"
HYPERBOLIC = "sinh cosh tanh asinh acosh atanh"


@pytest.mark.parametrize("name", ISAS)
@pytest.mark.parametrize("f", f"{LIBM} {HYPERBOLIC} sqrt floor ceil trunc abs neg".split(" "))
def test_special_values_of_one_operand(f, name):
    other = {"asin": "arcsin", "acos": "arccos", "atan": "arctan", "neg": "negative"}
    other |= {"asinh": "arcsinh", "acosh": "arccosh", "atanh": "arctanh"}
    expected = getattr(np, other.get(f, f))(SPECIAL.astype(np.float64))
    with np.errstate(all="ignore"):
        expected = expected.astype(np.float32)
    with isa(name):
        assert_same_kind(function(f, SPECIAL), expected, f)


@pytest.mark.parametrize("name", ISAS)
@pytest.mark.parametrize(
    "f",
    [
        "add",
        "sub",
        "mul",
        "div",
        "pow",
        "atan2",
        "fmod",
        "max",
        "min",
        "fmax",
        "fmin",
        "hypot",
        "copysign",
    ],
)
def test_special_values_of_two_operands(f, name):
    a, b = (x.ravel().copy() for x in np.meshgrid(SPECIAL, SPECIAL))
    other = {"sub": "subtract", "mul": "multiply", "div": "divide", "pow": "power"}
    other |= {"atan2": "arctan2", "max": "maximum", "min": "minimum"}
    expected = getattr(np, other.get(f, f))(a.astype(np.float64), b.astype(np.float64))
    expected = expected.astype(np.float32)
    if f in ("max", "min", "fmax", "fmin"):
        keep = (a != 0) | (b != 0)  # the sign of max(0, -0) is unspecified
        a, b, expected = a[keep], b[keep], expected[keep]
    with isa(name):
        result = function(f, a, b)
    for i in range(len(a)):
        assert_same_kind(result[i : i + 1], expected[i : i + 1], f"{f}({a[i]}, {b[i]})")


# PyTorch's definitions where numpy's differ or are missing.
PYTORCH_ONLY = {
    "heaviside": lambda a, b: np.where(a == 0, b, np.where(a > 0, 1, 0)),
    "xlogy": lambda a, b: np.where(np.isnan(b), b, np.where(a == 0, 0, a * np.log(b))),
    "nextafter": np.nextafter,
}


@pytest.mark.parametrize("name", ISAS)
@pytest.mark.parametrize("f", PYTORCH_ONLY)
def test_special_values_of_rare_functions(f, name):
    a, b = (x.ravel().copy() for x in np.meshgrid(SPECIAL, SPECIAL))
    with np.errstate(all="ignore"):
        expected = PYTORCH_ONLY[f](a, b).astype(np.float32)
    with isa(name):
        result = function(f, a, b)
    for i in range(len(a)):
        assert_same_kind(result[i : i + 1], expected[i : i + 1], f"{f}({a[i]}, {b[i]})")
    if f == "nextafter":
        np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("name", ISAS)
@pytest.mark.parametrize(
    "text",
    [
        "sub(@0,trunc(@0))",
        "nan_to(inf_to(@0,3.5,-2.5),0.25)",
        "mul(round(div(@0,@1)),@1)",
        "add(floor(mul(@0,0.5)),ceil(@1))",
    ],
)
def test_roundings_and_replacements_are_links_of_chains(text, name):
    x = np.resize(np.concatenate([samples(-100, 100), SPECIAL]), 1013)
    y = np.resize(samples(0.5, 2), 1013)
    with np.errstate(all="ignore"):
        expected = evaluate(parse(text, extended=True), [x, y])
    with isa(name):
        np.testing.assert_array_equal(run(text, x, y), expected)


RECORDS = json.loads((DATA / "expression" / "torch_semantics.json").read_text())
FLOAT32_RECORDS = [
    record
    for record in RECORDS
    if record[2] == "float32" and all(dtype == "float32" for dtype, _ in record[1])
]


@pytest.mark.parametrize("name", ISAS)
def test_special_values_are_those_of_pytorch(name):
    assert len(FLOAT32_RECORDS) > 80
    for text, operands, _, expected in FLOAT32_RECORDS:
        arrays = [np.array(value, np.float32) for _, value in operands]
        expected = np.array(expected, np.float32)
        with isa(name):
            result = run(text, *arrays)
        keep = np.ones(expected.shape, bool)
        if text == "gelu(@0)":
            keep = arrays[0] != np.inf  # NaN in PyTorch's vector code, inf in its scalar code
        np.testing.assert_allclose(
            result[keep], expected[keep], rtol=3e-6, atol=3e-7, err_msg=f"{text} of {operands}"
        )


@pytest.mark.parametrize("name", ISAS)
def test_logaddexp_of_infinities(name):
    a = np.array([np.inf, -np.inf, np.inf, -np.inf, np.nan, 1.0], np.float32)
    b = np.array([np.inf, -np.inf, -np.inf, 2.0, 1.0, -np.inf], np.float32)
    with isa(name):
        result = function("logaddexp", a, b)
    np.testing.assert_array_equal(result, np.array([np.inf, -np.inf, np.inf, 2, np.nan, 1]))


@pytest.mark.parametrize("name", ISAS)
def test_activations_far_out(name):
    x = np.array([-1e30, -200, -89, 89, 200, 1e30], np.float32)
    with isa(name):
        for f in ("relu", "silu", "gelu", "gelu_tanh", "mish", "hardswish"):
            np.testing.assert_allclose(
                function(f, x), np.maximum(x, 0), rtol=1e-6, atol=1e-30, err_msg=f
            )
        np.testing.assert_allclose(function("sigmoid", x), x > 0, atol=1e-30)
        np.testing.assert_allclose(function("erf", x), np.sign(x))
        soft = function("softplus", x, parameters=(1, 20))
        np.testing.assert_allclose(soft, np.maximum(x, 0), atol=1e-30)


# Sizes, layouts, shards ------------------------------------------------------------------------


@pytest.mark.parametrize("name", ISAS)
@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 255, 257, 2049, 9999])
def test_sizes_around_a_vector_and_a_chunk(name, n):
    bench = Workbench()
    a, b = noise((n,), 1), noise((n,), 2)
    x, y, z = bench.put(a), bench.put(b), bench.output((n,))
    program = program_of("sub(mul(@0,@1),div(@1,3))", a, b)
    with isa(name):
        result = bench.run_all_shards(lambda: elementwise.ElementwiseStep(program, [x, y], z), z)
    np.testing.assert_array_equal(result, a * b - b / np.float32(3))


@pytest.mark.parametrize("name", ISAS)
@pytest.mark.parametrize("f", ["exp", "sin", "gelu", "pow"])
def test_a_result_does_not_depend_on_its_index(f, name):
    """The tail of a tensor is computed with the same arithmetic as its middle."""
    x = noise((77,), 3)
    with isa(name):
        together = function(f, x, x) if f == "pow" else function(f, x)
        for i in range(77):
            one = x[i : i + 1]
            alone = function(f, one, one) if f == "pow" else function(f, one)
            assert alone.tobytes() == together[i : i + 1].tobytes()


def laid_out(rng, array):
    """Return the same values with other strides: permuted, with gaps, reversed or broadcast."""
    order = rng.permutation(array.ndim)
    steps = rng.integers(1, 3, array.ndim)
    memory = np.zeros([array.shape[i] * steps[i] for i in order], np.float32)
    view = memory[(..., *(slice(None, None, steps[i]) for i in order))]
    view = view.transpose(np.argsort(order))
    view[...] = array
    if array.ndim and rng.random() < 0.3:
        axis = rng.integers(array.ndim)
        return np.flip(np.flip(view, axis).copy(), axis)
    return view


@pytest.mark.parametrize("name", ISAS)
@pytest.mark.parametrize("seed", range(60))
def test_broadcasting_and_strides(name, seed):
    rng = np.random.default_rng(seed)
    rank = rng.integers(0, 7)
    shape = tuple(rng.choice([1, 2, 3, 5, 8, 33], rank)) if rank else ()
    arrays = []
    for k in range(4):
        part = tuple(1 if rng.random() < 0.3 else n for n in shape)
        part = part[rng.integers(0, rank + 1) :] if rank and rng.random() < 0.4 else part
        arrays.append(laid_out(rng, np.asarray(noise(part, 10 * seed + k))))
    shape = np.broadcast_shapes(*(a.shape for a in arrays))
    out = laid_out(rng, np.zeros(shape, np.float32)) if seed % 2 else None
    if out is not None and any(stride < 0 for stride in out.strides):
        out = None
    a, b, c, d = arrays
    with isa(name):
        result = run("add(mul(@0,square(@1)),sub(neg(@2),max(@3,square(@1))))", *arrays, out=out)
    expected = a * np.square(b) + (-c - np.maximum(d, np.square(b)))
    assert result.shape == expected.shape
    np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("name", ISAS)
@pytest.mark.parametrize(
    ("shapes", "layout"),
    [
        (((2, 40, 9, 7), (2, 40, 1, 1)), "channels_last"),
        (((2, 40, 9, 7), (1, 40, 1, 1)), "contiguous"),
        (((2, 40, 9, 7), (2, 1, 9, 7)), "channels_last"),
        (((2, 40, 9, 7), (2, 1, 9, 7)), "contiguous"),
        (((2, 3, 30, 31), (3, 1, 1)), "channels_last"),
        (((1, 3, 64, 64), (1, 3, 64, 1)), "channels_last"),
        (((2, 5, 40), (40,)), "contiguous"),
        (((3000, 3), (3,)), "contiguous"),
        (((3000, 3), (3000, 1)), "contiguous"),
        (((1,), (70, 80)), "contiguous"),
        (((1, 80), (70, 1)), "contiguous"),
        (((), ()), "contiguous"),
        (((1, 1, 1), (1,)), "contiguous"),
        (((0, 3), (3,)), "contiguous"),
        (((4, 0, 2), (1, 0, 1)), "contiguous"),
    ],
)
def test_gates_and_biases(shapes, layout, name):
    """A function of a small operand is computed once where the operand is broadcast."""
    a, b = (np.asarray(noise(shape, i)) for i, shape in enumerate(shapes))
    expected = np.asarray(a * np.tanh(b.astype(np.float64)).astype(np.float32) + b)
    bench = Workbench()
    last = layout == "channels_last"
    x = bench.put_channels_last(a) if last else bench.put(a)
    y = bench.put(b)
    z = bench.output(expected.shape, layout)
    program = program_of("add(mul(@0,tanh(@1)),@1)", a, b)
    with isa(name):
        result = bench.run_all_shards(lambda: elementwise.ElementwiseStep(program, [x, y], z), z)
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ISAS)
@pytest.mark.parametrize("columns", [8, 100, 700, 5000])
@pytest.mark.parametrize(
    "text",
    [
        "atan2(exp(tanh(@0)),exp(tanh(@1)))",
        "atan2(exp(tanh(@1)),exp(tanh(@0)))",
        "add(mul(tanh(@0),@1),mul(tanh(@1),sub(@1,tanh(@0))))",
        "mul(tanh(tanh(@1)),sub(tanh(tanh(@0)),atan2(@0,tanh(@1))))",
    ],
)
def test_values_kept_across_chunks_are_not_overwritten(text, columns, name):
    x, gate = noise((40, columns), 1), noise((columns,), 2)
    tree = parse(text)
    expected = evaluate(tree, [x.astype(np.float64), gate.astype(np.float64)])
    with isa(name):
        for n_shards in (1, 3):
            result = run(text, x, gate, n_shards=n_shards)
            np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)
            result = run(text, x.reshape(2, 20, columns), gate.reshape(1, 1, -1), n_shards=n_shards)
            np.testing.assert_allclose(result.reshape(x.shape), expected, rtol=1e-5, atol=1e-6)
        two = np.stack([gate, -gate])[:, None]
        result = run(text, x.reshape(2, 20, columns), two)
        other = evaluate(tree, [x.reshape(2, 20, columns).astype(np.float64), two])
        np.testing.assert_allclose(result, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ISAS)
def test_mixed_layouts_into_a_wider_tensor(name):
    """Contiguous and channels-last operands; the result is a part of a concatenation."""
    shape = (2, 24, 13, 11)
    a, b = noise(shape, 1), noise(shape, 2)
    bench = Workbench()
    x, y = bench.put(a), bench.put_channels_last(b, row_stride=40)
    z = bench.output(shape, "channels_last", row_stride=64)
    program = program_of("relu(add(@0,@1))", a, b)
    with isa(name):
        result = bench.run_all_shards(lambda: elementwise.ElementwiseStep(program, [x, y], z), z)
    np.testing.assert_array_equal(result, np.maximum(a + b, 0))


@pytest.mark.parametrize("name", ISAS)
@pytest.mark.parametrize("text", ["@0", "neg(@0)", "mul(@0,2)"])
def test_a_result_that_only_broadcasts_its_operand(name, text):
    a = noise((5, 1, 40), 1)
    program = program_of(text, a)
    program.shape = (5, 70, 40)
    scale = {"@0": 1, "neg(@0)": -1, "mul(@0,2)": 2}[text]
    with isa(name):
        result = elementwise.compute(program, [a])
        np.testing.assert_array_equal(result, np.broadcast_to(scale * a, result.shape))
        program.shape = (5, 3, 40)
        column = elementwise.compute(program, [a[:, :, :1]])
    np.testing.assert_array_equal(column, np.broadcast_to(scale * a[:, :, :1], (5, 3, 40)))


@pytest.mark.parametrize("name", ISAS)
@pytest.mark.parametrize("shape", [(40_000,), (7, 100, 60), (3, 5)])
def test_in_place(name, shape):
    a, b = noise(shape, 1), noise(shape, 2)
    expected = (a + b) * a - b
    with isa(name):
        result = run("sub(mul(add(@0,@1),@0),@1)", a, b, out=a, n_shards=2)
    assert result is a
    np.testing.assert_array_equal(a, expected)


@pytest.mark.parametrize("name", ISAS)
@pytest.mark.parametrize("shape", [(100_003,), (2, 33, 57, 5), (300, 2, 3)])
def test_shards_give_the_same_bits(name, shape):
    a = noise(shape, 1)
    b = noise(shape[-1:], 2)
    with isa(name):
        results = [
            run("gelu(add(@0,mul(sin(@0),exp(@1))))", a, b, n_shards=n) for n in (1, 2, 3, 8)
        ]
    for result in results[1:]:
        assert result.tobytes() == results[0].tobytes()


@pytest.mark.parametrize("name", ISAS)
def test_the_six_operand_expression(name):
    text = "add(add(mul(@0,@1),mul(@2,add(add(add(@0,@2),@3),@4))),@5)"
    a, b, c, d, e, f = arrays = [noise((1, 16, 56, 56), k) for k in range(6)]
    with isa(name):
        result = run(text, *arrays, n_shards=SHARD_COUNTS[1])
    np.testing.assert_array_equal(result, a * b + c * (a + c + d + e) + f)


def test_constants_as_operands():
    table = noise((5, 1), 1)
    x = noise((2, 5, 70), 2)
    program = fold(parse("add(@0,mul(@1,2))"), [Spec(x.shape), table])
    result = elementwise.compute(program, [x, table])
    np.testing.assert_array_equal(result, x + table * 2)


# Chains ----------------------------------------------------------------------------------------


def passes_of(text, n_inputs, longest=48):
    """Describe the passes of a program by the names of their instructions."""
    program = fold(parse(text, extended=True), [Spec((8,))] * n_inputs)
    passes = find_passes(
        program.instructions, [1] * len(program.instructions), elementwise.SWAPPED, longest
    )
    return [
        " ".join(link.name for link in one.links) or program.instructions[one.number].name
        for one in passes
    ]


@pytest.mark.parametrize(
    ("text", "passes"),
    [
        ("add(@0,@1)", ["add"]),
        ("relu(add(@0,@1))", ["load add relu"]),
        ("sub(@0,mul(@0,@1))", ["load mul sub_from"]),
        ("div(@0,square(@1))", ["load square div_into"]),
        ("prelu(@0,neg(@1))", ["load neg store load prelu"]),
        ("mul(add(@0,@1),sub(@0,@1))", ["load sub store load add mul"]),
        ("exp(add(@0,@1))", ["add", "exp"]),
        ("add(exp(neg(@0)),1)", ["neg", "exp", "add"]),
        ("relu(add(exp(@0),1))", ["exp", "load add relu"]),
        ("mul(neg(@0),add(neg(@0),1))", ["load neg store load add mul"]),
        (
            "add(add(mul(@0,@1),mul(@2,add(add(add(@0,@2),@3),@4))),@5)",
            ["load add add add mul add_product add"],
        ),
        ("add(mul(@0,@1),mul(@2,@3))", ["load mul add_product"]),
        ("sub(mul(@0,@1),mul(@2,@3))", ["load mul store load mul sub"]),
        ("add(add(@0,1),mul(mul(@1,@2),@3))", ["load add store load mul mul add"]),
    ],
)
def test_which_instructions_are_chained(text, passes):
    assert passes_of(text, 6) == passes


@pytest.mark.parametrize("name", ISAS)
@pytest.mark.parametrize("link", sorted(elementwise.SWAPPED))
def test_a_chained_instruction_equals_its_function(link, name):
    """Bit for bit, on full groups of vectors, single vectors and a tail, with broadcasting."""
    a, b = (np.abs(noise((3, 501), k)) + np.float32(0.5) for k in range(2))
    shapes = [(3, 501), (501,), (3, 1), ()]
    parameters = {"leaky_relu": (0.1,), "clamp": (-0.5, 1.0)}.get(link, ())
    is_binary = link in ("add", "sub", "mul", "div", "max", "min", "prelu")
    with isa(name):
        start = function("sub", a, b)
        for k, shape in enumerate(shapes):
            other = np.asarray(noise(shape, 5 + k)) + np.float32(3)
            first = Instruction("sub", (ProgramValue("input", 0), ProgramValue("input", 1)))
            for order in (1, -1) if is_binary else (1,):
                arguments = [ProgramValue("register", 0), ProgramValue("input", 2)][::order]
                step = Instruction(
                    link, tuple(arguments if is_binary else arguments[:1]), parameters
                )
                program = ElementwiseProgram((0, 1, 2), (first, step), (3, 501), {})
                result = elementwise.compute(program, [a, b, other])
                if is_binary:
                    expected = function(link, *[start, np.broadcast_to(other, (3, 501))][::order])
                else:
                    expected = function(link, start, parameters=parameters)
                assert result.tobytes() == expected.tobytes()


@pytest.mark.parametrize("name", ISAS)
@pytest.mark.parametrize("shapes", [((3, 501), (3, 1)), ((501,), ()), ((3, 501), (3, 501))])
def test_a_product_is_rounded_before_it_is_added(name, shapes):
    first, second = (np.asarray(noise(shape, 7 + k)) for k, shape in enumerate(shapes))
    a, b = noise((3, 501), 1), noise((3, 501), 2)
    for x, z in ((first, second), (second, first)):
        with isa(name):
            result = run("add(sub(@0,@1),mul(@2,@3))", a, b, x, z)
        np.testing.assert_array_equal(result, (a - b) + x * z)


def test_long_programs_are_split_into_passes():
    text = "@0"
    for k in range(100):
        text = f"add(mul({text},@1),@{2 + k % 2})"
    arrays = [noise((700,), k) * np.float32(0.9) for k in range(4)]
    expected = arrays[0]
    for k in range(100):
        expected = expected * arrays[1] + arrays[2 + k % 2]
    np.testing.assert_array_equal(run(text, *arrays), expected)
    assert len(passes_of(text, 4)) > 4


# Programs --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ISAS)
@pytest.mark.parametrize("seed", range(40))
def test_random_programs_equal_the_evaluated_tree(name, seed):
    rng = np.random.default_rng(seed)
    shapes = [(4, 1, 37), (3, 1), (4, 3, 37), ()]
    arrays = [rng.uniform(0.5, 2, shape).astype(np.float32) for shape in shapes]

    def tree(depth):
        if depth == 0 or rng.random() < 0.1:
            return Ref(int(rng.integers(len(arrays))))
        if rng.random() < 0.4:
            f = rng.choice(["exp", "tanh", "abs", "sigmoid", "neg", "square", "relu", "cos"])
            return Call("tanh", [Call(str(f), [tree(depth - 1)])])
        f = rng.choice(["add", "sub", "mul", "max", "min"])
        return Call(str(f), [tree(depth - 1), tree(depth - 1)])

    expression = tree(6)
    program = fold(expression, [Spec(a.shape) for a in arrays])
    with isa(name):
        result = elementwise.compute(program, arrays)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = evaluate(expression, [a.astype(np.float64) for a in arrays])
    # Errors of float32 add up in sums of rounded values and differences of large ones.
    np.testing.assert_allclose(result, expected, rtol=2e-3, atol=2e-4 * np.abs(expected).max())


@pytest.mark.parametrize("is_left", [True, False])
def test_a_deep_program_needs_few_temporaries(is_left):
    x, y = noise((100,), 1), np.full(100, 0.5, np.float32)
    tree, expected = Ref(0), x
    for k in range(500):
        side, depth = Call("exp", [Call("mul", [Ref(0), Literal(-1 - k)])]), Call("neg", [tree])
        tree = Call("add", [depth, side] if is_left else [side, depth])
        tree = Call("mul", [tree, Ref(1)])
        expected = (np.exp(x * np.float32(-1 - k)) - expected) * y
    program = fold(tree, [Spec(x.shape), Spec(y.shape)])
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(elementwise.compute(program, [x, y]), expected, rtol=1e-4)


def test_too_many_temporaries_are_an_error():
    """200 values are all live until the last one."""
    x = noise((100,), 1)
    values = [Call("exp", [Call("mul", [Ref(0), Literal(k)])]) for k in range(2, 202)]
    total = values[0]
    for value in values[1:]:
        total = Call("atan2", [total, value])
    for value in values:
        total = Call("atan2", [total, value])
    with pytest.raises(KuiperError, match="temporaries at once, at most 128 can be"):
        elementwise.compute(fold(total, [Spec(x.shape)]), [x])


def test_invalid_programs():
    x = noise((3,))
    many = parse("[" + ",".join(f"@{k}" for k in range(70)) + "]").children
    total = many[0]
    for ref in many[1:]:
        total = Call("add", [total, ref])
    with pytest.raises(KuiperError, match="reads 70 tensors, at most 64"):
        elementwise.compute(fold(total, [Spec((3,))] * 70), [x] * 70)
    with pytest.raises(KuiperError, match="operand 0 is float64, expected aligned float32"):
        elementwise.compute(program_of("neg(@0)", x), [x.astype(np.float64)])


def test_names_of_functions():
    assert elementwise.unary_number("silu") == elementwise.UNARY["silu"]
    with pytest.raises(KeyError):
        elementwise.unary_number("add")
    assert dispatch.lanes() in (1, 4, 8, 16)


def test_steps_describe_themselves():
    bench = Workbench()
    x, z = bench.put(noise((4, 5))), bench.output((4, 5))
    step = elementwise.ElementwiseStep(program_of("neg(exp(@0))", noise((4, 5))), [x], z)
    assert step.kind == "elementwise"
    assert step.flops == 40
    assert step.bytes == 160
    assert sorted(step.slots) == sorted([x.slot, z.slot])
    assert step.max_shards == 1


def test_the_documented_errors():
    """The table of docs/numerics.md has the tested bounds."""
    page = ROOT / "docs" / "numerics.md"
    documented = dict(re.findall(r"^\| `(\w+)` \| .* \| ([\d.]+) \|$", page.read_text(), re.M))
    bounds = {name: bound for name, (*_, bound) in (UNARY | BINARY).items()}
    bounds |= {name: bound for (name, _), (*_, bound) in PARAMETRIC.items()}
    # The page describes these in prose.
    for name in ("rsqrt", "hardsigmoid", "hardswish", "gelu"):
        del bounds[name]
    assert {name: float(bound) for name, bound in documented.items()} == {
        name: bound for name, bound in bounds.items() if bound >= 1
    }
