"""Folding and lowering: the numbers and programs they make, against the naive evaluator."""

from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kuiper.errors import ExpressionError
from kuiper.expression import (
    Call,
    Deferred,
    ElementwiseProgram,
    Literal,
    Ref,
    evaluate,
    fold,
    parse,
)
from kuiper.expression.folding import broadcast
from kuiper.expression.functions import EXTENDED


class Spec(NamedTuple):
    """A tensor of which only shape and dtype are known."""

    shape: tuple
    dtype: np.dtype = np.dtype(np.float32)


def specs(*arrays):
    return [Spec(a.shape, a.dtype) for a in arrays]


def interpret(program, operands):
    """Run a program naively: evaluate each instruction on whole arrays."""
    inputs = [operands[s] if isinstance(s, int) else s for s in program.sources]
    registers = []
    for step in program.instructions:
        values = []
        for kind, value in step.arguments:
            if kind == "constant":
                values.append(value)
            else:
                values.append((inputs if kind == "input" else registers)[value])
        values += step.parameters
        if step.name == "copy":
            result = np.float32(values[0])
        else:
            tree = Call(step.name, [Ref(i) for i in range(len(values))])
            result = evaluate(tree, values)
        registers.append(result)
    return np.broadcast_to(result, program.shape)


def test_shapes_become_numbers():
    operands = [Spec((1, 6, 5, 4)), 7]
    assert fold(parse("[size(@0,0),8,floor_divide(size(@0,-2),2),@1]"), operands) == [1, 8, 2, 7]
    assert fold(parse("size(@0)"), operands) == [1, 6, 5, 4]
    assert fold(parse("None"), []) is None


def test_constant_arrays_are_evaluated():
    result = fold(parse("mul(add(@0,1),2)"), [np.arange(3)])
    assert result.tolist() == [2, 4, 6]


def test_a_program_reads_registers_and_constants():
    text = "add(add(mul(@0,@1),mul(@2,add(add(add(@0,@2),@3),@4))),@5)"
    program = fold(parse(text), [Spec((1, 2, 3))] * 6)
    assert isinstance(program, ElementwiseProgram)
    assert program.sources == (0, 1, 2, 3, 4, 5)
    assert program.shape == (1, 2, 3)
    assert sorted(step.name for step in program.instructions) == ["add"] * 5 + ["mul"] * 2
    assert str(program).splitlines()[-1] == "r6 = add(in5, r5)"


def test_sizes_act_as_weak_numbers():
    program = fold(parse("mul(@0,size(@0,1))"), [Spec((2, 3))])
    assert program.instructions[0].arguments[-1] in (("constant", 3.0), ("input", 0))
    assert program.shape == (2, 3)


def test_common_subexpressions_are_computed_once():
    program = fold(parse("mul(add(@0,@1),add(@1,@0))"), [Spec((2,)), Spec((2,))])
    assert [step.name for step in program.instructions] == ["add", "mul"]


def test_zeros_of_either_sign_are_distinct():
    program = fold(parse("sub(atan2(@0,0.0),atan2(@0,-0.0))"), [Spec((2,))])
    assert [step.name for step in program.instructions] == ["atan2", "atan2", "sub"]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("pow(@0,2)", ["square"]),
        ("pow(@0,2.0)", ["square"]),
        ("pow(@0,0.5)", ["sqrt"]),
        ("pow(@0,-0.5)", ["rsqrt"]),
        ("pow(@0,-1)", ["reciprocal"]),
        ("pow(@0,3)", ["square", "mul"]),
        ("pow(@0,2.5)", ["pow"]),
        ("pow(2,@0)", ["pow"]),
        ("div(@0,4)", ["mul"]),
        ("div(@0,3)", ["div"]),
        ("div(@0,0)", ["div"]),
        ("div(@0,inf)", ["div"]),
        ("maximum(@0,minimum(@0,1))", ["min", "max"]),
        ("torch.float(neg(@0))", ["neg"]),
        ("relu6(@0)", ["clamp"]),
        ("clamp(@0,-1,1)", ["clamp"]),
        ("clamp(@0,@0,1)", ["max", "min"]),
        ("@0", ["copy"]),
        ("mul(@0,1)", ["copy"]),
        ("sub(div(pow(@0,1),1.0),0)", ["copy"]),
        ("add(@0,-0.0)", ["copy"]),
        ("add(@0,0)", ["add"]),
        ("sub(@0,-0.0)", ["sub"]),
        ("exp(mul(@0,1))", ["exp"]),
    ],
)
def test_chosen_instructions(text, names):
    program = fold(parse(text, extended=True), [Spec((2,))])
    assert [step.name for step in program.instructions] == names


def test_parameters_have_pytorch_defaults():
    program = fold(parse("softplus(elu(@0),3)", extended=True), [Spec((2,))])
    assert [step.parameters for step in program.instructions] == [(1.0,), (3.0, 20.0)]
    with pytest.raises(ExpressionError, match="parameters of elu must be numbers"):
        fold(parse("elu(@0,@0)", extended=True), [Spec((2,))])


def test_lists_of_programs_and_numbers():
    result = fold(
        parse("[add(@0,1),size(@0,0),mul(@0,@1),[@0]]"), [Spec((2,)), Spec((2,), np.int64)]
    )
    assert isinstance(result[0], ElementwiseProgram)
    assert result[1] == 2
    assert isinstance(result[2], Deferred)
    assert isinstance(result[3][0], ElementwiseProgram)


@pytest.mark.parametrize(
    ("text", "dtype", "shape"),
    [
        ("add(@0,@1)", np.float32, (2, 3)),
        ("add(@1,1)", np.int64, (3,)),
        ("div(@1,2)", np.float32, (3,)),
        ("and(@2,@2)", np.bool_, (3,)),
        ("torch.long(@0)", np.int64, (2, 3)),
        ("torch.float(torch.long(@0))", np.float32, (2, 3)),
        ("mul(@0,1.0e+00+2.0e+00j)", np.complex64, (2, 3)),
        ("abs(mul(@0,1.0e+00+2.0e+00j))", np.float32, (2, 3)),
        ("mul(@0,@3)", np.float32, (2, 3)),
        ("int(size(@0,1))", None, None),
    ],
)
def test_other_dtypes_are_deferred(text, dtype, shape):
    rng = np.random.default_rng(0)
    arrays = [
        rng.standard_normal((2, 3), np.float32) * 3,
        np.arange(3),
        np.array([True, False, True]),
        np.array(0.1, np.float64),
    ]
    result = fold(parse(text), specs(*arrays))
    if dtype is None:
        assert result == 3
        return
    assert isinstance(result, Deferred)
    assert (result.dtype, result.shape) == (dtype, shape)
    expected = evaluate(parse(text), arrays)
    assert expected.dtype == dtype
    np.testing.assert_array_equal(result.run(arrays), expected)


def test_constant_arrays_become_sources_of_programs():
    table = np.arange(3, dtype=np.float32)
    program = fold(parse("add(@0,mul(@1,2))"), [Spec((2, 3)), table])
    assert program.sources[0] == 0
    np.testing.assert_array_equal(program.sources[1], table * 2)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("add(@0,@1)", "shapes (2, 3) and (4,) do not broadcast"),
        ("add(@0,@9)", "@9 refers to none of the 2 operands"),
        ("size(@0,5)", "axis 5 is out of range for shape (2, 3)"),
        ("add(@0,None)", "add takes numbers and tensors, got None"),
        ("xor(@0,1)", "xor takes integers or bools"),
        ("int(@0)", "int takes one element"),
        ("add(@0,size(@0))", "got a list of 2"),
        ("add(@0,floor_divide(1,0))", "division by zero"),
    ],
)
def test_errors_are_found_while_lowering(text, message):
    with pytest.raises(ExpressionError) as caught:
        fold(parse(text), [Spec((2, 3)), Spec((4,))])
    assert message in str(caught.value)


def test_broadcast():
    assert broadcast([(2, 1, 4), (3, 1), ()]) == (2, 3, 4)
    assert broadcast([(0, 1), (1, 5)]) == (0, 5)
    assert broadcast([]) == ()
    with pytest.raises(ExpressionError):
        broadcast([(0,), (2,)])


leaves = st.one_of(
    st.integers(0, 2).map(Ref),
    st.one_of(st.integers(-3, 3), st.floats(-3, 3, width=32)).map(Literal),
)


@st.composite
def calls(draw, arguments):
    names = sorted(name for name, row in EXTENDED.items() if row.vector or row.same_as)
    name = draw(st.sampled_from(names))
    function = EXTENDED[name]
    first = draw(arguments)
    others = st.floats(0.5, 3, width=32).map(Literal) if name in PARAMETERS else arguments
    count = draw(st.integers(function.min_arity, function.max_arity))
    return Call(name, [first, *(draw(others) for _ in range(count - 1))])


PARAMETERS = {
    "leaky_relu", "elu", "celu", "softplus", "hardshrink", "softshrink", "threshold"
}  # fmt: skip


@settings(max_examples=300, derandomize=True, database=None, deadline=None)
@given(st.recursive(leaves, calls, max_leaves=10), st.integers(0, 2**32 - 1))
def test_programs_equal_the_evaluated_tree(tree, seed):
    rng = np.random.default_rng(seed)
    shapes = [(2, 3), (3,), ()]
    operands = [rng.uniform(0.5, 3, shape).astype(np.float32) for shape in shapes]
    try:
        program = fold(tree, specs(*operands))
    except ExpressionError:  # a subtree of numbers without a value
        return
    if not isinstance(program, ElementwiseProgram):
        return
    expected = evaluate(tree, operands)
    with np.errstate(all="ignore"):
        result = interpret(program, operands)
    assert result.shape == expected.shape
    assert expected.dtype == np.float32
    np.testing.assert_allclose(result, expected, rtol=1e-3, atol=1e-4)
