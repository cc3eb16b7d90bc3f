"""Evaluation of static values, against results recorded from PyTorch, and Python's numbers."""

import json
import math

import numpy as np
import pytest

from kuiper.errors import ExpressionError
from kuiper.expression import evaluate, parse

from ...support.paths import DATA

RECORDS = json.loads((DATA / "expression" / "torch_semantics.json").read_text())


def unwritten(dtype, value):
    """Decode the JSON form of an operand or result."""
    if dtype is None:
        return complex(*value) if isinstance(value, list) else value
    if not dtype.startswith("complex"):
        return np.array(value, dtype)
    return np.array(value, np.float64).view(np.complex128)[..., 0].astype(dtype)


def name_of(expression):
    return expression.split("(")[0]


def computed_although_pytorch_raises(name, operands):
    """Tell whether kuiper deliberately computes what PyTorch refuses."""
    # In JSON a complex number is a pair.
    kinds = {list: "complex"}
    dtypes = [dtype or kinds.get(type(value), type(value).__name__) for dtype, value in operands]
    return (
        (name == "logaddexp" and "complex64" not in dtypes)  # integers are cast to float32
        or (name == "sub" and len(set(dtypes)) == 2 and "bool" in dtypes)  # x - True
        or (name in ("max", "minimum", "pow") and "bool" in dtypes)
        or (name in ("div", "pow") and "float16" in dtypes and "complex" in "".join(dtypes))
    )


def comparable(name, operands, expected):
    """Mask the results that PyTorch computes consistently for tensors of any length."""
    x, *others = (unwritten(*operand) for operand in operands)
    mask = np.ones(expected.shape, bool)
    if expected.dtype.kind == "c":
        # Complex arithmetic with infinities or a zero divisor gives NaN in one part or in both.
        for value in (x, *others):
            mask &= np.isfinite(value) & ((value != 0) | (name != "div"))
    if name == "gelu":
        mask &= x != np.inf  # NaN from PyTorch's vector code, infinity from its scalar code
    if name == "pow" and operands[1][1] in (0.5, [0.5]):
        mask &= np.isfinite(x) & (x != 0)  # numpy computes a constant exponent 0.5 as sqrt
    if name == "floor_divide" and operands[0][0] == "float16":
        mask &= others[0] != 0.1  # PyTorch is inconsistent in rounding the number to float16
    return mask


TOLERANCE = {"float16": 2e-3, "float32": 3e-6, "complex64": 3e-6}


@pytest.mark.parametrize("name", sorted({name_of(r[0]) for r in RECORDS}))
def test_evaluates_as_pytorch(name):
    compared = 0
    for expression, operands, dtype, value in RECORDS:
        if name_of(expression) != name or (name == "logaddexp" and "complex64" in str(operands)):
            continue
        tree = parse(expression, extended=True)
        values = [unwritten(*operand) for operand in operands]
        if dtype is None:
            if not computed_although_pytorch_raises(name, operands):
                with pytest.raises(ExpressionError):
                    print(expression, operands, evaluate(tree, values))
            continue
        if dtype == "complex32":
            continue  # numpy lacks the dtype
        result = evaluate(tree, values)
        expected = unwritten(dtype, value)
        message = f"{expression} on {operands}"
        assert result.dtype == expected.dtype, message
        assert result.shape == expected.shape, message
        mask = comparable(name, operands, expected)
        tolerance = TOLERANCE.get(dtype, 1e-12)
        np.testing.assert_allclose(
            result[mask], expected[mask], tolerance, tolerance * 0.1, err_msg=message
        )
        if expected.dtype.kind == "f" and name in ("add", "sub", "mul", "neg", "remainder", "fmod"):
            zero = expected == 0
            assert np.array_equal(np.signbit(result[zero]), np.signbit(expected[zero])), message
        compared += mask.sum()
    assert compared >= 5


@pytest.mark.parametrize(
    ("text", "operands", "expected"),
    [
        ("add(@0,2)", [3], 5),
        ("div(@0,2)", [3], 1.5),
        ("div(4,2)", [], 2.0),
        ("floor_divide(@0,2)", [7], 3),
        ("floor_divide(-7,2)", [], -4),
        ("remainder(sub(4,remainder(@0,4)),4)", [30], 2),
        ("remainder(-7,3)", [], 2),
        ("fmod(-7,3)", [], -1),
        ("fmod(-7.5,3)", [], -1.5),
        ("pow(2,10)", [], 1024),
        ("pow(2,-1)", [], 0.5),
        ("round(2.5)", [], 2),
        ("floor(-0.5)", [], -1),
        ("ceil(div(@0,2))", [7], 4),
        ("int(-2.7)", [], -2),
        ("sign(-3)", [], -1),
        ("max(3,2.0)", [], 3),
        ("min(1,nan.0)", [], math.nan),
        ("and(6,3)", [], 2),
        ("lshift(1,40)", [], 1 << 40),
        ("torch.float(2)", [], 2.0),
        ("torch.bool(2)", [], True),
        ("torch.long(2.9)", [], 2),
        ("neg(add(1,mul(2,3)))", [], -7),
        ("mul(2,1.0e+00+2.0e+00j)", [], 2 + 4j),
        ("relu6(9)", [], 6.0),
        ("None", [], None),
        ("True", [], True),
        ("ij", [], "ij"),
        ("torch.float", [], "torch.float"),
        ("[]", [], []),
        ("[None,@0,[1,2]]", ["x"], [None, "x", [1, 2]]),
        ("[size(@0,0),8,floor_divide(size(@0,-2),2)]", [np.zeros((2, 6, 5))], [2, 8, 3]),
        ("size(@0)", [np.zeros((2, 6, 5))], [2, 6, 5]),
        ("size(@0,@1)", [np.zeros((2, 6)), np.array(1)], 6),
        ("sub(size(@0,1),1)", [np.zeros((2, 6))], 5),
    ],
)
def test_numbers_follow_python(text, operands, expected):
    result = evaluate(parse(text, extended=True), operands)
    assert type(result) is type(expected)
    assert result == expected or (result != result and expected != expected)


@pytest.mark.parametrize(
    ("text", "operands", "message", "position"),
    [
        ("add(1,@3)", [1], "@3 refers to none of the 1 operands", 6),
        ("add(1,floor_divide(2,@0))", [0], "division by zero in floor_divide(2,0)", 6),
        ("div(1.0,0)", [], "division by zero", 0),
        ("remainder(1,0)", [], "division by zero", 0),
        ("fmod(1.5,0)", [], "division by zero", 0),
        ("pow(9,pow(9,9))", [], "does not fit 64 bits", 0),
        ("lshift(1,100000000000)", [], "does not fit 64 bits", 0),
        ("mul(9223372036854775807,2)", [], "does not fit 64 bits", 0),
        ("neg(sqrt(-1))", [], "sqrt(-1) has no value", 4),
        ("exp(10000)", [], "exp(10000) has no value", 0),
        ("int(inf)", [], "int(inf) has no value", 0),
        ("lshift(1,-1)", [], "lshift(1,-1) has no value", 0),
        ("and(1.5,1)", [], "and(1.5,1) has no value", 0),
        ("add(@0,1)", [None], "add takes numbers and arrays, got None", 0),
        ("add(1,[1,2])", [], "got a list of 2", 0),
        ("add(1,@0)", ["w"], "got the word 'w'", 0),
        ("size(3,0)", [], "size takes a tensor, got int 3", 0),
        ("size(@0,2)", [np.zeros((1, 2))], "axis 2 is out of range for shape (1, 2)", 0),
        ("size(@0,1.0)", [np.zeros((1, 2))], "axis of size must be an integer", 0),
        ("add(@0,@1)", [np.zeros(3), np.zeros(4)], "shapes (3,) and (4,) do not broadcast", 0),
        ("floor_divide(@0,@1)", [np.arange(2), np.arange(2)], "integer division by zero", 0),
        ("and(@0,1)", [np.zeros(3)], "and takes integers or bools, got float64", 0),
        ("int(@0)", [np.zeros(3)], "int takes one element", 0),
        ("elu(@0,@1)", [np.zeros(3), np.zeros(3)], "the parameters of elu must be numbers", 0),
    ],
)
def test_errors_point_at_the_operator(text, operands, message, position):
    with pytest.raises(ExpressionError) as caught:
        evaluate(parse(text, extended=True), operands)
    assert message in str(caught.value)
    assert caught.value.text == text
    assert caught.value.position == position


def test_an_error_in_a_hand_made_tree_shows_its_text():
    from kuiper.expression import Call, Literal

    with pytest.raises(ExpressionError, match=r"floor_divide\(1,0\)"):
        evaluate(Call("floor_divide", [Literal(1), Literal(0)]), [])


def test_zero_dimensional_arrays_stay_arrays():
    result = evaluate(parse("mul(@0,0.1)"), [np.array(3.0, np.float32)])
    assert isinstance(result, np.ndarray)
    assert result.shape == ()
    assert result.dtype == np.float32
