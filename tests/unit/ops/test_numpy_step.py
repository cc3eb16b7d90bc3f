"""Operators that numpy computes: steps that are saved, random numbers, messages about values.

The stored cases compare their results with PyTorch's.
"""

from __future__ import annotations

import numpy as np
import pytest

import kuiper
from kuiper.errors import OperatorError, ShapeError
from kuiper.ir.dtypes import DTYPES, from_scalar_type
from kuiper.ir.view import TensorSpec
from kuiper.ops.core.numpy_step import convert
from kuiper.ops.core.schema import (
    Bool,
    DType,
    Int,
    Scalar,
    StaticValue,
    Tensor,
    TensorList,
    convert_positional,
    schema,
)
from kuiper.planning.plan import PythonStep

from ...support.textgraph import model_of, values


def named(field):
    """Let a field be declared with its name, which it otherwise gets from its record."""
    return lambda name, *values, **options: schema(**{name: field(*values, **options)})[0]


DType, Scalar, TensorList, Int = map(named, (DType, Scalar, TensorList, Int))


def steps_of(model: kuiper.Model, *shapes) -> list[str]:
    return [step.kind for step in model.plan(*shapes).steps]


# -- arguments ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argument", "value", "expected"),
    [
        (DType("a"), "torch.long", np.dtype(np.int64)),
        (DType("a"), "torch.float32", np.dtype(np.float32)),
        (DType("a"), 6, np.dtype(np.float32)),
        (DType("a", None), None, None),
        (Scalar("a"), 3, 3),
        (Scalar("a"), 3.5, 3.5),
        (Scalar("a"), 1 + 2j, 1 + 2j),
        (Scalar("a"), "-inf", float("-inf")),
        (Int("a", nullable=True), None, None),
        (TensorList("a", gaps=True), [None], (None,)),
    ],
)
def test_arguments(argument, value, expected):
    got = argument.convert(value)
    assert got == expected
    assert type(got) is type(expected)


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        (DType("a"), "torch.quint8"),
        (DType("a"), 99),
        (DType("a"), None),
        (Scalar("a"), None),
        (Scalar("a"), "word"),
        (TensorList("a"), [None]),
        (TensorList("a"), 3),
    ],
)
def test_arguments_refused(argument, value):
    with pytest.raises(ValueError, match=r"^$|could not convert"):
        argument.convert(value)


def test_scalar_types_follow_pytorch():
    assert [from_scalar_type(n).name for n in (0, 4, 6, 11)] == ["u8", "i64", "f32", "bool"]
    assert {from_scalar_type(n).name for n in (*range(12), 15)} == set(DTYPES)


def test_positional_values_become_arguments():
    known = TensorSpec((), np.int64, np.array(7))
    arguments = (*schema(x=Tensor()), Int("dim"), Int("k"), *schema(flag=Bool(False)))
    got = convert_positional([TensorSpec((2, 3)), StaticValue(1), known], arguments)
    assert got.pop("x").shape == (2, 3)
    assert got == {"dim": 1, "k": 7, "flag": False}
    for wrong in (
        [StaticValue(1)],
        [TensorSpec((2,)), StaticValue(1)],
        [TensorSpec((2,)), *[StaticValue(1)] * 4],
    ):
        with pytest.raises(ValueError, match=r"^$|could not convert"):
            convert_positional(wrong, arguments)


def test_conversion_truncates_and_wraps():
    floats = np.array([-1.9, 1.9, 300.0])
    assert convert(floats, np.dtype(np.int64)).tolist() == [-1, 1, 300]
    assert convert(floats, np.dtype(np.uint8)).tolist() == [255, 1, 44]
    assert convert(np.array([0, 1j]), np.dtype(np.bool_)).tolist() == [False, True]
    assert convert(np.array([2 + 1j]), np.dtype(np.float32)).tolist() == [2]
    assert convert(2**40 + 5, np.dtype(np.int32)).tolist() == 5


# -- steps -------------------------------------------------------------------------------------


def test_static_values_need_no_step():
    model = model_of(
        """
        pnnx.Input      in   0 1 x #x=(3,4)f32
        pnnx.Expression e    1 1 x n expr=size(@0,1)
        torch.arange    r    1 1 n i dtype=None start=0 step=1 $end=n
        torch.gt        gt   1 1 i b other=1 $input=i
        torch.where     w    1 1 b y input=1.5 other=-1 $condition=b
        pnnx.Expression mul  2 1 x y z expr=mul(@0,@1)
        pnnx.Output     out  1 0 z
        """
    )
    x = values(3, 4)
    np.testing.assert_array_equal(model(x), x * np.array([-1, -1, 1.5, 1.5], np.float32))
    assert steps_of(model, (3, 4)) == ["elementwise"]


def test_a_cast_to_the_same_type_is_a_view():
    model = model_of(
        """
        pnnx.Input  in   0 1 x #x=(3,4)f32
        nn.ReLU     relu 1 1 x y
        Tensor.to   to   1 1 y z copy=False dtype=torch.float $input=y
        nn.Sigmoid  s    1 1 z w
        pnnx.Output out  1 0 w
        """
    )
    assert not any(isinstance(step, PythonStep) for step in model.plan((3, 4)).steps)


def test_writing_into_a_slice_copies_only_the_slice():
    model = model_of(
        """
        pnnx.Input        in   0 1 x #x=(4,5)f32
        pnnx.Input        src  0 1 s #s=(2,5)f32
        nn.ReLU           relu 1 1 x y
        Tensor.slice_copy put  2 1 y s z dim=0 start=1 end=3 step=1 $self=y $src=s
        nn.Sigmoid        act  1 1 z w
        pnnx.Output       out  1 0 w
        """
    )
    assert steps_of(model, (4, 5), (2, 5)).count("copy") == 1
    x, s = values(4, 5), values(2, 5)
    y = np.maximum(x, 0)
    y[1:3] = s
    np.testing.assert_allclose(model(x, s), 1 / (1 + np.exp(-y)), rtol=1e-6)


def test_writing_into_a_slice_does_not_change_operands_that_are_read_later():
    model = model_of(
        """
        pnnx.Input           in   0 1 x #x=(4,5)f32
        pnnx.Input           src  0 1 s #s=(2,5)f32
        nn.ReLU              relu 1 1 x y
        Tensor.slice_copy    put  2 1 y s z dim=0 start=1 end=3 step=1 $self=y $src=s
        prim::TupleConstruct both 2 1 y z w
        pnnx.Output          out  1 0 w
        """
    )
    x, s = values(4, 5), values(2, 5)
    before, after = model(x, s)
    np.testing.assert_array_equal(before, np.maximum(x, 0))
    np.testing.assert_array_equal(after[1:3], s)
    np.testing.assert_array_equal(after[[0, 3]], before[[0, 3]])


# -- random numbers ----------------------------------------------------------------------------


def test_random_numbers_are_reproducible_and_have_the_right_distribution():
    text = """
        pnnx.Input      in  0 1 x #x=(?,1000)f32
        torch.randn_like a  1 1 x y dtype=None $input=x
        torch.randn_like b  1 1 x z dtype=None $input=x
        prim::TupleConstruct both 2 1 y z w
        pnnx.Output     out 1 0 w
        """
    first, second = model_of(text)(np.zeros((4, 1000), np.float32))
    for drawn in (first, second):
        assert abs(drawn.mean()) < 0.06
        assert abs(drawn.std() - 1) < 0.05
    assert abs(np.corrcoef(first.ravel(), second.ravel())[0, 1]) < 0.06
    again, _ = model_of(text)(np.zeros((2, 1000), np.float32))
    np.testing.assert_array_equal(again, first[:2])


# -- errors ------------------------------------------------------------------------------------


def _refused(error, operator: str, *inputs: np.ndarray) -> str:
    """Return the message after the label of the only operator of a graph."""
    names = {"float32": "f32", "int64": "i64", "bool": "bool"}
    lines = [
        f"pnnx.Input in{i} 0 1 {i} #{i}=({','.join(map(str, x.shape))}){names[x.dtype.name]}"
        for i, x in enumerate(inputs)
    ]
    slots = " ".join(str(i) for i in range(len(inputs)))
    kind, *params = operator.split()
    lines.append(f"{kind} op {len(inputs)} 1 {slots} y {' '.join(params)}")
    lines.append("pnnx.Output out 1 0 y")
    with pytest.raises(error) as caught:
        model_of("\n".join(lines))(*inputs)
    text = str(caught.value)
    assert f"operator 'op' ({kind}): " in text
    return text.partition(f"({kind}): ")[2]


X = values(3, 4)
I64 = np.int64


@pytest.mark.parametrize(
    ("operator", "inputs", "message"),
    [
        (
            "torch.eq $input=0 $other=1",
            (X, values(3, 5)),
            "the shapes (3, 4) and (3, 5) do not broadcast",
        ),
        (
            "torch.bitwise_and $input=0 $other=1",
            (X, X),
            "its operands are float32, expected integers",
        ),
        (
            "torch.gather dim=1 $input=0 $index=1",
            (X, np.array([[4]], I64)),
            "index 4 is out of range for an axis of extent 4",
        ),
        (
            "torch.gather dim=1 $input=0 $index=1",
            (X, np.array([[-1]], I64)),
            "index -1 is out of range for an axis of extent 4",
        ),
        (
            "torch.gather dim=1 $input=0 $index=1",
            (X, np.zeros((4, 1), I64)),
            "'index' is int64 (4, 1), expected integers of a shape within that of 'input', "
            "(3, 4), apart from axis 1",
        ),
        (
            "torch.index_select dim=0 $input=0 $index=1",
            (X, np.array([0, 3], I64)),
            "index 3 is out of range for an axis of extent 3",
        ),
        (
            "Tensor.index expr=[[0,5]]",
            (X,),
            "index 5 is out of range for an axis of extent 3",
        ),
        (
            "Tensor.index expr=[[0],[0],[0]]",
            (X,),
            "there are more indices than axes of an input of shape (3, 4)",
        ),
        (
            "Tensor.index expr=[[True,False]]",
            (X,),
            "index 0 is a mask of shape (2,), expected (3,)",
        ),
        (
            "Tensor.index expr=[[0,1],[0,1,2]]",
            (X,),
            "indices of shapes (2,) and (3,) do not broadcast",
        ),
        (
            "nn.Embedding num_embeddings=3 embedding_dim=2 @weight=(3,2)f32",
            (np.array([3], I64),),
            "index 3 is out of range for an axis of extent 3",
        ),
        (
            "Tensor.slice_copy dim=1 start=0 end=2 step=1 $self=0 $src=1",
            (X, values(3, 3)),
            "'src' has shape (3, 3), which does not fit into (3, 2)",
        ),
        (
            "torch.full_like fill_value=1 dtype=torch.quint8 $input=0",
            (X,),
            "argument 'dtype' is 'torch.quint8', expected a dtype such as torch.float",
        ),
        (
            "torch.arange start=0 end=3 step=0 dtype=None",
            (),
            "cannot count from 0 to 3 in steps of 0",
        ),
    ],
)
def test_errors(operator, inputs, message):
    assert _refused(OperatorError, operator, *inputs) == message


def test_a_failed_run_leaves_the_model_usable():
    model = model_of(
        """
        pnnx.Input   in 0 1 x #x=(3,4)f32
        pnnx.Input   at 0 1 i #i=(3,1)i64
        torch.gather g  2 1 x i y dim=1 $input=x $index=i
        pnnx.Output  out 1 0 y
        """
    )
    with pytest.raises(ShapeError):
        model(X, np.full((3, 1), 9))
    good = np.array([[0], [1], [2]])
    np.testing.assert_array_equal(model(X, good), np.take_along_axis(X, good, 1))
