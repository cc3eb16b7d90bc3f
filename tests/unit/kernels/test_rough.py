"""Functions for results that are rounded to bfloat16, through the epilogue of a product by 1."""

from __future__ import annotations

import math

import numpy as np
import pytest

from kuiper._kernels.micro import dispatch
from kuiper.ir.dtypes import BFLOAT16

from ...support.halves import values_of
from ...support.workbench import PAIR_ISAS, Workbench, isa
from .test_pairs import epilogue_of, product

ERF = np.vectorize(math.erf)
FUNCTIONS = {
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "silu": lambda x: x / (1 + np.exp(-x)),
    "gelu": lambda x: x * 0.5 * (1 + ERF(x * math.sqrt(0.5))),
}
# Rounding to nearest, and the errors that rough.pxi states.
ROUNDING = 2.0**-8
RELATIVE = {"sigmoid": 2e-4, "silu": 2e-4, "gelu": 4e-4}
ABSOLUTE = {"sigmoid": 1e-30, "silu": 1e-30, "gelu": 1.4e-4}


def through_epilogue(name: str, x: np.ndarray) -> np.ndarray:
    """Return f(x) in bfloat16 as floats; the numbers of x are biases, so they are not rounded."""
    bench = Workbench()
    step, y = product(
        bench, np.zeros((1, 1, 1, 1), np.float32), np.zeros((x.size, 1, 1, 1), np.float32), x,
        BFLOAT16, epilogue=epilogue_of(name, None, None, None),
    )  # fmt: skip
    bench.run(step)
    return values_of(bench.view(y)).ravel()


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("variant", PAIR_ISAS)
def test_errors_are_small_beside_the_rounding(variant, name):
    x = np.concatenate([np.linspace(-14, 14, 4001), np.linspace(-70, 70, 400)]).astype(np.float32)
    with isa(variant):
        got = through_epilogue(name, x)
    exact = FUNCTIONS[name](np.float64(x))
    bound = (ROUNDING + RELATIVE[name]) * np.abs(exact) + ABSOLUTE[name]
    assert (np.abs(got - exact) <= bound).all()


@pytest.mark.parametrize("variant", PAIR_ISAS)
def test_special_values(variant):
    x = np.array([np.nan, np.inf, -1e4, -3e38, 3e38, 0.0, -0.0], np.float32)
    expected = {
        "sigmoid": [np.nan, 1, 0, 0, 1, 0.5, 0.5],
        "silu": [np.nan, np.inf, 0, 0, 3e38, 0, 0],
        "gelu": [np.nan, np.inf, 0, 0, 3e38, 0, 0],
    }
    with isa(variant):
        for name, values in expected.items():
            got = through_epilogue(name, x)
            np.testing.assert_allclose(got, values, rtol=5e-3, atol=2e-4, err_msg=name)


def test_which_results_may_be_rough():
    """Not those that are stored in float32."""
    x = np.linspace(-6, 6, 500).astype(np.float32)
    for name in dispatch.tried():
        with isa(name):
            bench = Workbench()
            step, y = product(
                bench, np.zeros((1, 1, 1, 1), np.float32), np.zeros((500, 1, 1, 1), np.float32),
                x, np.dtype(np.float32), epilogue=epilogue_of("silu", None, None, None),
            )  # fmt: skip
            bench.run(step)
            exact = FUNCTIONS["silu"](np.float64(x))
            np.testing.assert_allclose(bench.view(y).ravel(), exact, rtol=2e-6)
