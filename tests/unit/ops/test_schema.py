"""Schemas: arguments are found in all forms of PNNX, converted, and refused in one message."""

from __future__ import annotations

import math
import types

import numpy as np
import pytest

import kuiper
from kuiper.errors import OperatorError
from kuiper.ir import Attribute, Graph, PostOp
from kuiper.ir.view import TensorSpec
from kuiper.ops.core.record import Record
from kuiper.ops.core.resolve import resolve
from kuiper.ops.core.schema import (
    AnyArgument,
    Bool,
    DType,
    Float,
    Int,
    Ints,
    Numbers,
    StaticValue,
    Str,
    Tensor,
    TensorList,
    Tensors,
    ValuesNeeded,
    attribute_spec,
    schema,
)

from ...support.textgraph import files_of


def named(field):
    """Let a field be declared with its name, which it otherwise gets from its record."""
    return lambda name, *values, **options: schema(**{name: field(*values, **options)})[0]


AnyArgument, Bool, DType, Float = map(named, (AnyArgument, Bool, DType, Float))
Int, Ints, Numbers, Str = map(named, (Int, Ints, Numbers, Str))
Tensor, TensorList, Tensors = map(named, (Tensor, TensorList, Tensors))

X = TensorSpec((2, 3))
W = TensorSpec((4, 3))


def collect(arguments, type="torch.op", given=(), keyed=None, attributes=None, post=(), **params):
    """Resolve an operator; `given` and `keyed` are its inputs without and with keywords."""
    graph = Graph()
    known = [*given, *(keyed or {}).values()]
    keys = [None] * len(given) + list(keyed or {})
    names = [f"i{k}" for k in range(len(known))]
    for name in names:
        graph.add_operator("pnnx.Input", f"input_{name}", [], [name])
    attributes = attributes or {}
    operator = graph.add_operator(
        type, "op", names, ["out"], params=params, input_keys=keys, location="m.param:7",
        attributes={k: Attribute.from_array(v) for k, v in attributes.items()},
    )  # fmt: skip
    operator.post_ops = post
    values = {
        operand: value
        for operand, value in zip(operator.inputs, known, strict=True)
        if value is not None
    }
    specs = {k: attribute_spec(a) for k, a in operator.attributes.items()}
    record = types.new_class(
        "Op", (Record,), {}, lambda members: members.update(arguments=tuple(arguments))
    )
    return resolve(operator, record, values, specs)


def message_of(arguments, **how) -> str:
    """Return the message after the label of the operator."""
    with pytest.raises(OperatorError) as caught:
        collect(arguments, **how)
    text = str(caught.value)
    label = f"m.param:7: operator 'op' ({how.get('type', 'torch.op')}): "
    assert text.startswith(label)
    return text[len(label) :]


# -- literals ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argument", "literal", "value"),
    [
        (Int("a"), 3, 3),
        (Int("a"), 3.0, 3),
        (Int("a"), np.int64(3), 3),
        (Int("a", minimum=0), 0, 0),
        (Ints("a"), (1, 2, 3), (1, 2, 3)),
        (Ints("a"), 4, (4,)),
        (Ints("a"), None, ()),
        (Ints("a"), (), ()),
        (Ints("a", 2), 5, (5, 5)),
        (Ints("a", 2), (5,), (5, 5)),
        (Ints("a", 2), (5.0, 6), (5, 6)),
        (Ints("a", 2, nullable=True), None, None),
        (Ints("a", words=("same",)), "same", "same"),
        (Float("a"), 1, 1.0),
        (Float("a"), "inf", math.inf),
        (Float("a"), "-inf", -math.inf),
        (Float("a", nullable=True), None, None),
        (Numbers("a"), (1, 2.5), (1.0, 2.5)),
        (Numbers("a", 2), 3, (3.0, 3.0)),
        (Numbers("a", nullable=True), None, None),
        (Bool("a"), True, True),
        (Bool("a"), 0, False),
        (Str("a"), "anything", "anything"),
        (Str("a", ("x", "y")), "y", "y"),
        (Str("a", ("x",), None), None, None),
        (AnyArgument("a"), (1, "b"), (1, "b")),
        (Tensor("a", number=True), 2.5, 2.5),
        (Tensor("a", optional=True), None, None),
    ],
)
def test_literals(argument, literal, value):
    got = collect([argument], a=literal).a
    assert got == value
    assert type(got) is type(value)


def test_the_word_nan():
    assert math.isnan(collect([Float("a")], a="nan").a)


@pytest.mark.parametrize(
    ("argument", "literal", "message"),
    [
        (Int("a"), 2.5, "argument 'a' is 2.5, expected an integer"),
        (Int("a"), True, "argument 'a' is True, expected an integer"),
        (Int("a"), "2", "argument 'a' is '2', expected an integer"),
        (Int("a"), math.inf, "argument 'a' is inf, expected an integer"),
        (Int("a"), None, "argument 'a' is None, expected an integer"),
        (Int("a"), (1,), "argument 'a' is (1,), expected an integer"),
        (Int("a", minimum=1), 0, "argument 'a' is 0, expected an integer >= 1"),
        (Ints("a", 2), (1, 2, 3), "argument 'a' is (1, 2, 3), expected 2 integers"),
        (Ints("a", 2), (), "argument 'a' is (), expected 2 integers"),
        (Ints("a", 2), None, "argument 'a' is None, expected 2 integers"),
        (Ints("a", minimum=0), (1, -1), "argument 'a' is (1, -1), expected integers >= 0"),
        (Ints("a"), (1, 2.5), "argument 'a' is (1, 2.5), expected integers"),
        (Ints("a"), (1, True), "argument 'a' is (1, True), expected integers"),
        (
            Ints("a", 2, words=("same", "valid")),
            "full",
            "argument 'a' is 'full', expected 2 integers or one of same, valid",
        ),
        (Float("a"), "half", "argument 'a' is 'half', expected a number"),
        (Float("a"), False, "argument 'a' is False, expected a number"),
        (Float("a"), None, "argument 'a' is None, expected a number"),
        (Float("a"), 1j, "argument 'a' is 1j, expected a number"),
        (Numbers("a", 2), (1, 2, 3), "argument 'a' is (1, 2, 3), expected 2 numbers"),
        (Bool("a"), 2, "argument 'a' is 2, expected True or False"),
        (Bool("a"), "True", "argument 'a' is 'True', expected True or False"),
        (Bool("a"), None, "argument 'a' is None, expected True or False"),
        (Str("a", ("x", "y")), "z", "argument 'a' is 'z', expected one of x, y"),
        (Str("a"), 1, "argument 'a' is 1, expected a word"),
        (Str("a"), None, "argument 'a' is None, expected a word"),
        (Tensor("a"), 1.5, "argument 'a' is 1.5, expected a tensor"),
        (Tensor("a"), None, "argument 'a' is None, expected a tensor"),
    ],
)
def test_refused_literals(argument, literal, message):
    assert message_of([argument], a=literal) == message


def test_defaults():
    arguments = [Int("a", 7), Ints("b", default=None), Tensor("c", optional=True), Bool("d", True)]
    got = vars(collect(arguments))
    assert got == {"a": 7, "b": None, "c": None, "d": True}


def test_zero_and_false_are_not_absent():
    got = collect([Int("a", 7), Float("b", 0.5), Bool("c", True)], a=0, b=0.0, c=False)
    assert (got.a, got.b, got.c) == (0, 0.0, False)


# -- forms of arguments ------------------------------------------------------------------------


def test_inputs_with_and_without_keywords():
    arguments = [Tensor("input"), Tensor("weight"), Tensor("bias", optional=True), Int("n", 1)]
    bias = TensorSpec((4,))
    got = collect(arguments, given=[X, W, bias])
    assert (got.input, got.weight, got.bias, got.n) == (X, W, bias, 1)
    got = collect(arguments, given=[X], keyed={"bias": bias, "weight": W})
    assert (got.input, got.weight, got.bias) == (X, W, bias)
    got = collect(arguments, keyed={"weight": W, "input": X, "n": StaticValue(5)})
    assert (got.input, got.weight, got.bias, got.n) == (X, W, None, 5)


def test_numeric_inputs_follow_the_tensors_in_order():
    arguments = [Int("dim"), Tensor("input"), Int("start", 0), Int("end", 9)]
    got = collect(arguments, given=[X, StaticValue(1), StaticValue(2)], end=5)
    assert (got.input, got.dim, got.start, got.end) == (X, 1, 2, 5)


def test_a_constant_of_one_element_is_a_number():
    for shape in ((), (1,), (1, 1)):
        constant = TensorSpec(shape, np.int64, np.full(shape, 3))
        assert collect([Tensor("x"), Int("n")], given=[X, constant]).n == 3
    half = np.full((1,), 0.5, np.float16)
    assert collect([Float("f")], attributes={"f": half}).f == 0.5


def test_a_number_that_is_computed_later():
    later = TensorSpec((), np.int64)
    for argument, value in (
        (Int("n"), later),
        (Ints("n"), StaticValue((3, later))),
        (Float("n"), TensorSpec((1, 1), np.float32)),
    ):
        with pytest.raises(
            ValuesNeeded, match="a number is computed while the model runs"
        ) as error:
            collect([Tensor("x"), argument], given=[X], keyed={"n": value})
        assert error.value.specs == (
            later if value is not later and isinstance(value, StaticValue) else value,
        )
    known = TensorSpec((), np.int64, np.array(4))
    assert collect([Ints("n")], keyed={"n": StaticValue((3, known))}).n == (3, 4)


def test_a_tensor_is_not_a_number():
    for argument in (DType("n"), Str("n"), TensorList("n")):
        assert "argument 'n' is the tensor int64 ()" in message_of(
            [argument], keyed={"n": TensorSpec((), np.int64)}
        )
    two = TensorSpec((2,), np.int64, np.array([1, 2]))
    assert "argument 'n' is the tensor int64 (2,)" in message_of([Int("n")], keyed={"n": two})


def test_attributes():
    weight = np.arange(12, dtype=np.float32).reshape(4, 3)
    got = collect([Tensor("x"), Tensor("weight")], given=[X], attributes={"weight": weight})
    assert got.weight.shape == (4, 3)
    np.testing.assert_array_equal(got.weight.constant, weight)


def test_other_spellings_of_a_keyword():
    arguments = [Tensor("input"), Tensor("other", aliases=("mat2", "vec"))]
    assert collect(arguments, given=[X], keyed={"vec": W}).other == W
    assert collect(arguments, keyed={"mat2": W, "input": X}).other == W
    assert message_of(arguments, given=[X], keyed={"mat2": W, "vec": X}) == (
        "argument 'other' is given twice"
    )


def test_variadic_inputs():
    got = collect([Tensors("tensors"), Int("dim", 0)], given=[X, W, X], dim=1)
    assert got.tensors == [X, W, X]
    assert got.dim == 1
    assert collect([Tensors("tensors"), Int("dim", 0)], given=[]).tensors == []
    got = collect([Tensors("tensors"), Int("dim", 0)], given=[X], keyed={"dim": StaticValue(1)})
    assert (got.tensors, got.dim) == ([X], 1)


def test_unknown_values_are_left_unset():
    got = collect([Tensor("x"), Int("n"), Int("m", 2)], given=[None, None])
    assert vars(got) == {"m": 2}
    got = collect([Tensor("x"), Int("n")], given=[None], keyed={"n": None})
    assert vars(got) == {}


def test_a_module_with_a_flag_for_its_bias():
    arguments = [Tensor("x"), Tensor("weight"), Tensor("bias", optional=True)]
    weight, bias = np.ones((4, 3), np.float32), np.ones(4, np.float32)
    both = {"weight": weight, "bias": bias}
    got = collect(arguments, "nn.Op", [X], attributes=both, bias=True)
    assert got.bias.shape == (4,)
    assert collect(arguments, "nn.Op", [X], attributes={"weight": weight}, bias=False).bias is None
    assert message_of(
        arguments, type="nn.Op", given=[X], attributes={"weight": weight}, bias=True
    ) == ("argument 'bias' is True, but the tensor 'bias' is missing")
    assert message_of(arguments, type="nn.Op", given=[X], attributes=both, bias=False) == (
        "argument 'bias' is False, but the tensor 'bias' is there"
    )


@pytest.mark.parametrize("has_bias", [True, False])
def test_a_shared_weight_is_an_extra_first_input_of_a_module(has_bias):
    arguments = [Tensor("x"), Tensor("weight"), Tensor("bias", optional=True)]
    attributes = {"weight": np.ones((4, 3), np.float32)}
    if has_bias:
        attributes["bias"] = np.ones(4, np.float32)
    got = collect(arguments, "nn.Op", [W, X], attributes=attributes, bias=has_bias)
    assert got.x == X
    assert got.weight.shape == (4, 3)
    assert (got.bias is None) != has_bias
    # A function has no attributes and no extra input: the first one is the data.
    got = collect(arguments, "F.op", [X, W])
    assert (got.x, got.weight, got.bias) == (X, W, None)


def test_a_module_may_take_several_tensors():
    arguments = [Tensor("input1"), Tensor("input2"), Tensor("weight")]
    weight = {"weight": np.ones((4, 3), np.float32)}
    got = collect(arguments, "nn.Op", [X, W], attributes=weight)
    assert (got.input1, got.input2) == (X, W)


def test_the_summand_of_a_fused_sum_is_not_an_argument():
    arguments = [Tensor("x"), Tensor("weight"), Tensor("bias", optional=True)]
    attributes = {"weight": np.ones((4, 3), np.float32)}
    other = TensorSpec((9, 9))
    post = (PostOp("nn.ReLU", {}), PostOp("add", {}, 1))
    got = collect(arguments, "nn.Op", [X, other], attributes=attributes, post=post)
    assert (got.x, got.bias) == (X, None)
    post = (PostOp("add", {}, 2),)
    got = collect(arguments, "nn.Op", [W, X, other], attributes=attributes, bias=False, post=post)
    assert (got.x, got.bias) == (X, None)


# -- messages ----------------------------------------------------------------------------------


def test_all_errors_are_in_one_message():
    message = message_of(
        [Tensor("x", rank=4), Int("stride", minimum=1), Str("mode", ("a", "b")), Bool("flag")],
        given=[X, W],
        stride=0,
        mode="c",
        colour="red",
    )
    assert message.split("; ") == [
        "has no argument 'colour' (known: x, stride, mode, flag)",
        "'x' has shape (2, 3), expected rank 4",
        "argument 'stride' is 0, expected an integer >= 1",
        "argument 'mode' is 'c', expected one of a, b",
        "argument 'flag' is the tensor float32 (4, 3), expected True or False",
    ]


def test_missing_arguments():
    assert message_of([Tensor("x"), Ints("size", 2), Tensor("y", optional=True)], given=[]) == (
        "argument 'x' is missing, expected a tensor; "
        "argument 'size' is missing, expected 2 integers"
    )


def test_too_many_inputs():
    assert message_of([Tensor("x")], given=[X, W, X]) == (
        "takes no further input, but has 'i1'; takes no further input, but has 'i2'"
    )
    assert message_of([], given=[X]) == "takes no further input, but has 'i0'"


def test_arguments_given_twice():
    weight = np.ones(3, np.float32)
    assert message_of([Tensor("w")], keyed={"w": W}, attributes={"w": weight}) == (
        "argument 'w' is given twice"
    )


@pytest.mark.parametrize(
    ("rank", "text"), [(1, "expected rank 1"), ((0, 1, 4), "expected rank 0 or 1 or 4")]
)
def test_ranks(rank, text):
    assert message_of([Tensor("x", rank=rank)], given=[X]) == f"'x' has shape (2, 3), {text}"
    assert collect([Tensor("x", rank=(1, 2))], given=[X]).x == X


def test_an_operator_without_a_schema():
    assert message_of([], dim=1) == "has no argument 'dim' (known: none)"


def test_wrong_literals_are_found_on_loading():
    param, _ = files_of(
        """pnnx.Input in 0 1 x
        nn.LeakyReLU act 1 1 x y negative_slope=steep slope=3
        pnnx.Output out 1 0 y"""
    )
    with pytest.raises(OperatorError) as caught:
        kuiper.load(param)
    assert str(caught.value) == (
        "<param>:4: operator 'act' (nn.LeakyReLU): "
        "has no argument 'slope' (known: input, negative_slope); "
        "argument 'negative_slope' is 'steep', expected a number"
    )


# -- weights -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("f32", np.float32), ("f16", np.float32), ("bf16", np.float32), ("f64", np.float64),
     ("i64", np.int64), ("bool", np.bool_)],
)  # fmt: skip
def test_the_spec_of_a_weight(name, dtype):
    attribute = Attribute.from_array(np.array([[0.0, 1.0, 1.0]]), name)
    spec = attribute_spec(attribute)
    assert (spec.shape, spec.dtype) == ((1, 3), dtype)
    np.testing.assert_array_equal(spec.constant, [[0, 1, 1]])
    if name != "bf16":
        assert np.shares_memory(spec.constant, attribute.raw)


# -- templates ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        lambda op: op.params.update(a=True),
        lambda op: op.params.update(a=1.0),
        lambda op: op.params.update(b=2),
        lambda op: op.params.pop("a"),
        lambda op: setattr(op, "params", {"b": 1}),
    ],
)
def test_a_changed_operator_is_read_again(change):
    """Also if the new value equals the old one, as True equals 1."""
    graph = Graph()
    operator = graph.add_operator("torch.op", "op", [], ["y"], params={"a": 1})
    arguments = (AnyArgument("a", 7), AnyArgument("b", 8))
    record = types.new_class("Op", (Record,), {}, lambda m: m.update(arguments=arguments))
    assert vars(resolve(operator, record, {}, {})) == {"a": 1, "b": 8}
    change(operator)
    found = vars(resolve(operator, record, {}, {}))
    expected = {"a": 7, "b": 8, **operator.params}
    assert repr(sorted(found.items())) == repr(sorted(expected.items()))


def test_inputs_are_read_by_slot_after_a_change():
    graph = Graph()
    for name in "xy":
        graph.add_operator("pnnx.Input", f"in_{name}", [], [name])
    operator = graph.add_operator("torch.op", "op", ["x", "x"], ["z"])
    record = types.new_class(
        "Op", (Record,), {}, lambda m: m.update(arguments=(Tensor("a"), Tensor("b")))
    )
    x, y = graph.inputs
    specs = {x: X, y: W}
    assert vars(resolve(operator, record, specs, {})) == {"a": X, "b": X}
    graph.set_inputs(operator, [x, y])
    assert vars(resolve(operator, record, specs, {})) == {"a": X, "b": W}
    twin = graph.copy()
    again = dict(zip(twin.inputs, (W, X), strict=True))
    assert vars(resolve(twin.operator("op"), record, again, {})) == {"a": W, "b": X}
