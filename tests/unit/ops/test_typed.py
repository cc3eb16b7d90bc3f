"""Compiled expressions over tensors of other types than float32, against numpy."""

from __future__ import annotations

import numpy as np
import pytest

import kuiper
from kuiper.expression import evaluate, parse
from kuiper.ir.dtypes import DTYPES as DTYPES_OF

EXPRESSIONS = (
    "add(mul(@0,2),1)",
    "sub(@0,@1)",
    "mul(add(@0,@1),sub(@0,3))",
    "floor_divide(@0,4)",
    "remainder(@0,-3)",
    "max(min(@0,@1),2)",
    "neg(abs(square(@0)))",
    "floor(@0)",
    "and(or(@0,1),xor(@1,6))",
    "rshift(lshift(@0,2),1)",
    "div(@0,2)",
    "mul(sqrt(abs(add(@0,0.5))),@1)",
    "torch.long(mul(torch.float(@0),0.5))",
    "torch.bool(@0)",
    "torch.double(add(@0,@1))",
)


SHAPES = (7, 300), (300,)
DTYPES = (("i64", "i64"), ("i32", "u8"), ("i64", "f32"), ("i16", "i8"))


def model_of(expression, dtypes):
    """Return a model of one expression of two tensors."""
    shapes = [str(shape).replace(" ", "").replace(",)", ")") for shape in SHAPES]
    text = f"""7767517
4 3
pnnx.Input a 0 1 x #x={shapes[0]}{dtypes[0]}
pnnx.Input b 0 1 y #y={shapes[1]}{dtypes[1]}
pnnx.Expression e 2 1 x y z expr={expression}
pnnx.Output out 1 0 z
"""
    return kuiper.Model(kuiper.load_graph(text.encode()))


def numbers(shape, dtype, seed):
    return np.random.default_rng(seed).integers(0, 9, shape).astype(dtype)


@pytest.mark.parametrize("dtypes", DTYPES, ids=" ".join)
@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_expressions(expression, dtypes):
    words = [DTYPES_OF[name].value for name in dtypes]
    x, y = (numbers(s, d, i) for i, (s, d) in enumerate(zip(SHAPES, words, strict=True)))
    try:
        expected = evaluate(parse(expression, 2), [x, y])
    except kuiper.KuiperError:
        with pytest.raises(kuiper.KuiperError):  # bitwise functions of floats
            model_of(expression, dtypes)(x, y)
        return
    model = model_of(expression, dtypes)
    got = model(x, y)
    assert got.dtype == expected.dtype
    np.testing.assert_allclose(got, expected, 1e-6, 1e-7)
    assert [step.kind for step in model.plan(*SHAPES).steps] == ["typed"]


def test_integer_division_by_0_is_computed_by_numpy():
    model = model_of("floor_divide(@0,@1)", ("i64", "i64"))
    x, y = numbers((7, 300), np.int64, 1), numbers((300,), np.int64, 2) + 1
    np.testing.assert_array_equal(model(x, y), x // y)
    with pytest.raises(kuiper.KuiperError, match="division by zero"):
        model(x, 0 * y)
