"""The ``.param`` text: values, lines, and the message for every kind of damage."""

from __future__ import annotations

import contextlib
import math
import re
import time

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from kuiper.errors import GraphError, ModelFormatError
from kuiper.ir import Graph
from kuiper.pnnx import load_graph, param, values

from ...support.textgraph import contents_of

# -- values: parsing -------------------------------------------------------------------------

INF = math.inf
VALUES = [
    ("None", None),
    ("()", None),
    ("[]", None),
    ("True", True),
    ("False", False),
    ("0", 0),
    ("2", 2),
    ("-1", -1),
    ("2147483647", 2147483647),
    ("-2147483648", -2147483648),
    ("9223372036854775807", 2**63 - 1),
    ("0.1", 0.1),
    ("2.0", 2.0),
    ("-0.0", -0.0),
    ("0.7", 0.7),
    ("1.000000e-5", 1e-5),
    ("1.000000e-05", 1e-5),
    ("2.000000e+00", 2.0),
    ("1.23456792e8", 123456792.0),
    ("-3.40282347e38", -3.40282347e38),
    ("1e5", 1e5),
    ("inf", INF),
    ("-inf", -INF),
    ("1.000000e+00+2.000000e+00j", 1 + 2j),
    ("1.0e+00+-2.0e+00j", 1 - 2j),
    ("1.200000e+00-9.000000e-01j", 1.2 - 0.9j),
    ("-1.5+2.5j", -1.5 + 2.5j),
    ("-1e-3-2e-4j", -1e-3 - 2e-4j),
    ("inf+-infj", complex(INF, -INF)),
    ("2.0j", 2j),
    ("zeros", "zeros"),
    ("torch.float", "torch.float"),
    ("torch.contiguous_format", "torch.contiguous_format"),
    ("ik,jk->ij", "ik,jk->ij"),
    ("ij", "ij"),
    ("window", "window"),
    ("nanmean", "nanmean"),
    ("", ""),
    ("-", "-"),
    ("-x", "-x"),
    ("@0", "@0"),
    ("a=b", "a=b"),
    ("2d", "2d"),
    ("1_000", "1_000"),
    ("1_0.5", "1_0.5"),
    ("0x10", "0x10"),
    ("1.5+xj", "1.5+xj"),
    ("None+2j", "None+2j"),
    ("\u0663", "\u0663"),  # a digit, but not an ASCII one
    ("\xb2", "\xb2"),
    ("%kernel_size", "%kernel_size"),
    ("(%a,%b)", "(%a,%b)"),
    ("1%", "1%"),
    ("(3,3)", (3, 3)),
    ("(-1)", (-1,)),
    ("(7)", (7,)),
    ("(2147483647,2)", (2147483647, 2)),
    ("(2.0,2.0)", (2.0, 2.0)),
    ("(2.000000e+00,2.000000e+00)", (2.0, 2.0)),
    ("[1,2]", (1, 2)),
    ("(@0,@1)", ("@0", "@1")),
    ("(0,@0)", (0, "@0")),
    ("(1,2.5,True,None,x,inf)", (1, 2.5, True, None, "x", INF)),
    ("(1.0+-2.0j,3)", (1 - 2j, 3)),
    ("(a,,b)", ("a", "", "b")),
    ("[[2,1],[0,1]]", ((2, 1), (0, 1))),
    ("[None,None,[1,0]]", (None, None, (1, 0))),
    ("((1,2),[3])", ((1, 2), (3,))),
    ("((),1)", (None, 1)),
    ("(())", (None,)),
]


def same(a, b) -> bool:
    """Compare, but distinguish 1 from 1.0 and True, and 0.0 from -0.0."""
    if type(a) is not type(b):
        return False
    if isinstance(a, tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, complex):
        return same(a.real, b.real) and same(a.imag, b.imag)
    if isinstance(a, float):
        return a == b and math.copysign(1, a) == math.copysign(1, b)
    return a == b


def test_same_distinguishes_types_and_signs():
    assert same((1, 2.0), (1, 2.0))
    assert not same(1, True)
    assert not same((1,), (1.0,))
    assert not same(0.0, -0.0)
    assert not same((1, 2), (1,))


@pytest.mark.parametrize(("text", "value"), VALUES, ids=[text for text, _ in VALUES])
def test_value_parses(text, value):
    assert same(values.parse(text), value)


@pytest.mark.parametrize("text", ["nan.0", "-nan.0", "nan", "-nan"])
def test_nan_parses(text):
    assert math.isnan(values.parse(text))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("(1,2", r"the list is not closed; '\)' is missing"),
        ("[1,(2,3)", r"the list is not closed; '\]' is missing"),
        ("(", "is not closed"),
        ("(1,2]", r"'\]' closes a list that needs '\)'"),
        ("[1)", r"'\)' closes a list that needs '\]'"),
        ("(1)x", "'x' after the end of the list"),
        ("(1),2", "',2' after the end of the list"),
        ("(1)(2)", "after the end of the list|inside the element"),
        ("((1)2)", "'2' after the end of the inner list"),
        ("(1(2))", "inside the element '1'"),
        ("(" * 40 + ")" * 40, "nested deeper than 32"),
        ("[" * 100_000, "nested deeper than 32"),
    ],
    ids=lambda text: text[:12],
)
def test_bad_list(text, message):
    with pytest.raises(ValueError, match=message):
        values.parse(text)


def test_long_digit_strings_are_not_numbers():
    # int() takes quadratic time, and raises ValueError beyond 4300 digits.
    assert values.parse("9" * 5000) == "9" * 5000
    assert values.parse("9" * 900) == int("9" * 900)


# -- values: writing -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "None"),
        (True, "True"),
        (2, "2"),
        (-1, "-1"),
        (2.0, "2.0"),
        (0.0, "0.0"),
        (-0.0, "-0.0"),
        (0.1, "0.1"),
        (0.0001, "0.0001"),
        (0.00012345, "0.00012345"),
        (9.9999e-5, "9.999900e-5"),
        (1e-5, "1.000000e-5"),
        (1.401298e-45, "1.401298e-45"),
        (1.17549435e-38, "1.17549435e-38"),
        (123456.781, "123456.781"),
        (999999.0, "999999.0"),
        (1e6, "1.000000e6"),
        (1234567.0, "1.234567e6"),
        (123456792.0, "1.23456792e8"),
        (3.40282347e38, "3.40282347e38"),
        (4.4937325e6, "4.49373250e6"),
        (3.3333333e-4, "3.33333330e-4"),
        (0.333333343, "0.333333343"),
        (0.00333333341, "3.33333341e-3"),
        (12345.6777, "12345.6777"),
        (65504.0, "65504.0"),
        (1 / 3, "3.333333333333333e-1"),
        (INF, "inf"),
        (-INF, "-inf"),
        (math.nan, "nan.0"),
        (1 - 2j, "1.000000e+00+-2.000000e+00j"),
        (1.5 - 0.25j, "1.500000e+00+-2.500000e-01j"),
        (complex(1 / 3, INF), "3.3333333333333331e-01+infj"),
        ("zeros", "zeros"),
        ((3, 3), "(3,3)"),
        ((-1,), "(-1)"),
        ([1, 2.0], "(1,2.0)"),
        (((2, 1), (0, 1)), "((2,1),(0,1))"),
        ((None, True, "x"), "(None,True,x)"),
        (np.float32(0.5), "0.5"),
        (np.float64(2.0), "2.0"),
        (np.int64(7), "7"),
        (np.bool_(True), "True"),
        (np.array(3), "3"),
    ],
    ids=repr,
)
def test_value_formats(value, text):
    assert values.format(value) == text


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("a b", "'a b' cannot be written: a blank ends a value"),
        ("a\n", "a blank ends a value"),
        ("a\0", "a blank ends a value"),
        ("None", "it reads back as NoneType"),
        ("True", "it reads back as bool"),
        ("12", "it reads back as int"),
        ("1.5", "it reads back as float"),
        ("inf", "it reads back as float"),
        ("2j", "it reads back as complex"),
        ("(1)", "it reads back as tuple"),
        ("(1", "is not closed"),
        (("a,b",), "the list element 'a,b' cannot be written: ',' inside a list"),
        (("a)",), r"'\)' inside a list"),
        (("%a",), "'%' inside a list"),
        (("",), "an empty string inside a list"),
        (("1",), "it reads back as int"),
        ((("a b",),), "a blank ends a value"),
        (10**2000, "bits cannot be written"),
    ],
    ids=repr,
)
def test_values_without_a_text(value, message):
    with pytest.raises(ValueError, match=message):
        values.format(value)


def test_a_value_of_an_unknown_type():
    with pytest.raises(TypeError, match="a parameter cannot be a dict"):
        values.format({})
    with pytest.raises(TypeError, match="a parameter cannot be a ndarray"):
        values.format(np.zeros(2))
    nested = ()
    for _ in range(40):
        nested = (nested,)
    with pytest.raises(ValueError, match="nested deeper than 32"):
        values.format(nested)


SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    st.complex_numbers(allow_nan=False),
    st.from_regex(r"[a-z@_][a-z0-9_.@>-]{0,12}", fullmatch=True).filter(
        lambda s: values.parse(s) == s
    ),
)
NESTED = st.recursive(SCALARS, lambda x: st.lists(x, min_size=1, max_size=4).map(tuple))


@settings(max_examples=150, derandomize=True, database=None, deadline=None)
@given(NESTED)
def test_value_round_trip(value):
    assert same(values.parse(values.format(value)), value)


@settings(max_examples=300, derandomize=True, database=None, deadline=None)
@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_float_text_has_the_precision_of_pnnx(value):
    """The text of a float32 in 9 digits has neither more than 9 digits nor 9 decimals."""
    value = float(f"{value:.9g}")
    text = values.format(value)
    assert values.parse(text) == value
    plain = re.fullmatch(r"-?\d{1,6}\.\d{1,9}", text)
    exponent = re.fullmatch(r"-?\d\.(\d{6}|\d{8})e-?\d{1,2}", text)
    assert plain or exponent
    if plain:
        assert value == 0 or 1e-4 <= abs(value) < 1e6


@settings(max_examples=500, derandomize=True, database=None, deadline=None)
@given(st.text("(),[]01.e-+jx%NoneTruinfa@", max_size=16))
def test_any_text_parses_or_is_refused_with_a_value_error(text):
    try:
        value = values.parse(text)
    except ValueError:
        assume(False)
    try:
        again = values.format(value)
    except ValueError:
        # The text of an unusual string in a list, such as "(a,)" with its empty element.
        assume(False)
    assert same(values.parse(again), value) or "nan" in again


# -- whole files -----------------------------------------------------------------------------

SMALL = """7767517
5 4
pnnx.Input               in0                      0 1 0 #0=(1,?,4)f32
pnnx.Attribute           table                    0 1 w @data=(2,3)f32 #w=(2,3)f32
torch.ge                 ge                       2 1 0 0 m $input=0 $other=0 #0=(1,?,4)f32
my.Block                 blk                      3 1 0 m w y alpha=2 expr=add(@0,1) mode=same \
@a.b=()f64 @k=(0,3)i8 $x=m #y=(2)bool
pnnx.Output              out                      1 0 y
"""


A = "pnnx.Input a 0 1 0"


def lines(*operators: str, counts: str | None = None) -> str:
    """Return a file of operator lines, with a correct header unless `counts` is given."""
    if counts is None:
        counts = f"{len(operators)} {sum(int(line.split()[3]) for line in operators)}"
    return "\n".join(["7767517", counts, *operators]) + "\n"


def parse(text: str) -> param.ParsedParam:
    return param.parse(text, "m.param")


def test_every_field_of_a_line():
    parsed = parse(SMALL)
    assert [o.name for o in parsed.operators] == ["in0", "table", "ge", "blk", "out"]
    block = parsed.operators[3]
    assert (block.line, block.type) == (6, "my.Block")
    assert (block.inputs, block.outputs) == (["0", "m", "w"], ["y"])
    assert block.params == {"alpha": 2, "expr": "add(@0,1)", "mode": "same"}
    assert block.input_keys == [None, "x", None]
    assert block.attributes == {
        "a.b": param.AttributeSpec("blk.a.b", (), "f64", 8),
        "k": param.AttributeSpec("blk.k", (0, 3), "i8", 0),
    }
    assert parsed.annotations == {
        "0": ((1, None, 4), "f32"),
        "w": ((2, 3), "f32"),
        "y": ((2,), "bool"),
    }
    assert list(parsed.attributes()) == ["table.data", "blk.a.b", "blk.k"]


def test_keys_go_to_the_next_slot_without_one():
    """One operand in several inputs: a table from operand to key would lose a key."""
    assert parse(SMALL).operators[2].input_keys == ["input", "other"]
    text = lines(A, "pnnx.Input b 0 1 1", "t.f f 4 1 0 1 0 0 z $a=0 $b=1 $c=0")
    assert parse(text).operators[2].input_keys == ["a", "b", "c", None]


def test_the_text_of_an_expression_is_not_a_value():
    texts = ["2", "None", "[[True,False],[1,0]]", "(1"]
    parsed = parse(lines(*(f"pnnx.Expression e{i} 0 1 {i} expr={t}" for i, t in enumerate(texts))))
    assert [o.params["expr"] for o in parsed.operators] == texts


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace("\n", "\r\n"),
        lambda text: text.rstrip("\n"),
        lambda text: text + "\n \n\n",
        lambda text: text.replace("\nmy.Block", "\n\nmy.Block"),
        lambda text: text.replace(" ", "\t"),
        lambda text: "\ufeff" + text,
    ],
    ids=["crlf", "no last newline", "blank tail", "blank line", "tabs", "utf-8 mark"],
)
def test_blanks_and_line_ends_do_not_matter(change):
    assert change(SMALL) != SMALL
    expected, found = parse(SMALL).operators, parse(change(SMALL)).operators
    for operator in (*expected, *found):
        operator.line = 0
    assert found == expected


def test_only_ascii_blanks_separate():
    name = "b\xa0l\u3000k\x1c\x85"
    parsed = parse(SMALL.replace("blk", name))
    assert parsed.operators[3].name == name


def test_inconsistent_annotations_only_log():
    text = lines(
        "pnnx.Input a 0 1 0 #0=(1,2)f32",
        "F.relu r 1 1 0 1 #0=(9,9)f64 #nowhere=(1)f32 #1=(-1,3)null",
        "pnnx.Output o 1 0 1 #0=(5)i8 #1=(4)f32",
    )
    parsed = parse(text)
    assert parsed.annotations == {"0": ((1, 2), "f32"), "1": ((None, 3), None)}


def test_operands_that_only_the_header_counts():
    # pnnx counts some that its passes have removed.
    found = param.parse(lines(A, counts="1 3"), "m.param")
    assert [op.name for op in found.operators] == ["a"]


def test_graph_of_a_text():
    graph = load_graph(
        SMALL.replace(" @a.b=()f64 @k=(0,3)i8", "").replace("@data=(2,3)f32 ", "").encode()
    )
    assert [o.name for o in graph.operands] == ["0", "w", "m", "y"]
    assert graph.operand("0").shape == (1, None, 4)
    assert graph.operand("m").shape is None
    assert graph.operator("blk").location == "<param>:6"
    assert graph.operator("blk").label == "<param>:6: operator 'blk' (my.Block)"
    graph.verify()


# -- damage ----------------------------------------------------------------------------------


# id: (text, a part of the message)
DAMAGED_FILES = {
    "empty": ("", "m.param: the file is empty, expected a PNNX .param file"),
    "blank": (" \n\n", "m.param: the file is empty"),
    "html": ("<!DOCTYPE html><html>", "not a PNNX .param file: it is a web page (HTML)"),
    "html 2": ("\n <HTML lang=en>", "it is a web page (HTML); the download saved a page"),
    "git-lfs": (
        "version https://git-lfs.github.com/spec/v1\noid sha256:1\n",
        "it is a git-lfs pointer; fetch the file itself with 'git lfs pull'",
    ),
    "openvino": ('<?xml version="1.0"?>\n<net name="x" version="11">', "it is an OpenVINO model"),
    "zip": ("PK\3\4", "it is a ZIP archive; is it the .bin file, or a PyTorch file?"),
    "gzip": (b"\x1f\x8b\x08", "it is gzip data"),
    "utf-16": ("7767517\n".encode("utf-16"), "it is UTF-16 text; save it as UTF-8"),
    "ncnn binary": (
        (7767517).to_bytes(4, "little") + b"\2",
        "it is a binary .param.bin file of ncnn",
    ),
    "binary": (
        b"\x08\x07\x12\xff",
        "expected text that starts with 7767517, found the bytes b'\\x08\\x07\\x12\\xff'",
    ),
    "other text": (
        "hello\n1 1\n",
        "m.param:1:1: not a PNNX file: expected the number 7767517 alone, found 'hello'",
    ),
    "other magic": ("7767518\n", "expected the number 7767517 alone, found '7767518'"),
    "more than magic": ("7767517 2\n", "expected the number 7767517 alone, found '7767517 2'"),
    "only magic": ("7767517", "m.param:2: expected the counts of operators and operands, found"),
    "blank header": ("7767517\n\n", "m.param:2: expected the counts of operators and operands"),
    "one count": ("7767517\n3\n", "m.param:2:1: expected two counts (operators, operands), found"),
    "three counts": ("7767517\n3 2 1\n", "expected two counts (operators, operands), found '3 2"),
    "count no number": ("7767517\nx 1\n", ":2:1: expected the number of operators, found 'x'"),
    "count negative": ("7767517\n1 -1\n", ":2:3: expected the number of operands, found '-1'"),
    "count absurd": ("7767517\n1 " + "9" * 30, ":2:3: expected the number of operands, found '9"),
    "count underscore": ("7767517\n1_0 1\n", "expected the number of operators, found '1_0'"),
    "count other digits": ("7767517\n\u0661 1\n", "expected the number of operators, found"),
    "count huge": (
        lines(A, counts="999999999999 1"),
        "m.param:3: the file ends after 1 operator, the header promises 999999999999; "
        "the file is truncated, copy or export it again",
    ),
    "no operator": (
        "7767517\n2 1\n",
        "m.param:2: the file ends after 0 operators, the header promises 2; the file is truncated",
    ),
    "operators too many": (
        lines(A, "pnnx.Input b 0 1 1", "pnnx.Input c 0 1 2", counts="1 3"),
        "m.param:2: the header promises 1 operator, but there are 3; correct the first number",
    ),
    "operands disagree": (
        lines(A, counts="1 0"),
        "m.param:2: the header promises 0 operands, but the operators produce 1; "
        "correct the second number",
    ),
    "ncnn": (
        lines("Input data 0 1 data 0=224 1=224", "Convolution c 1 1 data y 0=64"),
        "m.param:3:1: this is an ncnn file (first layer 'Input'), not a PNNX one; "
        "pnnx writes both, load the one that ends in .pnnx.param",
    ),
    "ncnn without input": (
        lines("MemoryData w 0 1 w 0=64 -23301=1,2"),
        "m.param:3:1: this is an ncnn file (first layer 'MemoryData'), not a PNNX one",
    ),
    "bad utf-8": (
        b"7767517\n1 1\npnnx.Input \xc3\xa9\xff 0 1 0\n",
        "m.param:3:13: byte 0xff is not UTF-8; the file is damaged or binary",
    ),
    "zero byte": (b"7767517\n1 1\npnnx.Input a\0 0 1 0\n", "m.param:3: zero byte in the text"),
    "operand too early": (
        lines("F.relu r 1 1 0 1", A),
        "m.param:3:14: operator 'r' (F.relu): operand '0' is used here but produced only in "
        "line 4; producers must come first",
    ),
    "truncated in a value": (
        lines(A, "F.relu r 1 1 0 1 pad=(1,2").rstrip("\n"),
        "')' is missing; the file does not end with a newline and may be truncated",
    ),
    "truncated in the operands": (
        lines(A, "F.relu r 1 1 0 1").rstrip("\n 1"),
        "1 input and 1 output are announced, but the line ends after 1 of these names; "
        "the file does not end with a newline and may be truncated",
    ),
}


@pytest.mark.parametrize(("text", "message"), DAMAGED_FILES.values(), ids=DAMAGED_FILES)
def test_damaged_file(text, message):
    with pytest.raises(ModelFormatError) as caught:
        param.parse(text, "m.param")
    assert message in str(caught.value)
    assert str(caught.value).startswith("m.param:")


SHAPE = "expected a shape and an element type such as '(1,3)f32'"
TYPES = "the element type 'f8' is unknown; expected f32, f64, f16, bf16, i8, i16, i32, i64, u8, "
FIT = "do the counts 1 1 fit the line?"
BEYOND = "more bytes than any memory holds"
# (line 4 of a file, column, the whole message); line 3 produces operand 0.
DAMAGED_LINES = [
    ("F.relu r", 9, "expected 'type name inputs outputs ...', found 'F.relu r'"),
    ("F.relu a 1 1 0 1", 8, "operator name 'a' is already taken in line 3"),
    ("F.relu r one 1 0 1", 10, "expected the number of inputs, found 'one'"),
    ("F.relu r 1 -1 0 1", 12, "expected the number of outputs, found '-1'"),
    (
        "F.relu r 4000000000 4000000000 0 1",
        35,
        "4000000000 inputs and 4000000000 outputs are announced, but the line ends after 2 of "
        "these names",
    ),
    ("F.relu r 1 1 0 0", 16, "operand '0' is already produced in line 3"),
    ("F.relu r 0 2 x x", 16, "operand 'x' is already produced in line 4"),
    (
        "F.relu r 1 1 x x",
        14,
        "operand 'x' is used here but produced only in line 4, this one; producers must come first",
    ),
    ("F.relu r 1 1 x 1", 14, "no operator produces operand 'x'"),
    (
        "F.relu r 1 2 0 1 a=1",
        18,
        "expected the name of an operand, found the field 'a=1'; do the counts 1 2 fit the line?",
    ),
    ("F.relu r 1 1 0 1 2", 18, f"expected a field 'key=value', found '2'; {FIT}"),
    ("F.relu r 1 1 0 1 =2", 18, f"expected a field 'key=value', found '=2'; {FIT}"),
    ("F.relu r 1 1 0 1 @=(1)f32", 18, f"expected a field 'key=value', found '@=(1)f32'; {FIT}"),
    ("F.relu r 1 1 0 1 $=0", 18, f"expected a field 'key=value', found '$=0'; {FIT}"),
    ("F.relu r 1 1 0 1 a=1 a=1", 22, "parameter 'a' is given twice"),
    (
        "F.relu r 1 1 0 1 pad=(1,2",
        22,
        "parameter 'pad' is '(1,2': the list is not closed; ')' is missing",
    ),
    (
        "F.relu r 1 1 0 1 $x=9",
        21,
        "key 'x' is for operand '9', which is not among the inputs (0)",
    ),
    (
        "F.relu r 1 1 0 1 $x=1",
        21,
        "key 'x' is for operand '1', which is not among the inputs (0)",
    ),
    (
        "F.relu r 0 1 1 $x=0",
        19,
        "key 'x' is for operand '0', which is not among the inputs (none)",
    ),
    (
        "F.relu r 1 1 0 1 $x=0 $y=0",
        23,
        "key 'y' is one too many: each input '0' has a key already",
    ),
    ("F.relu r 0 1 1 @w=(1)f32 @w=(1)f32", 26, "attribute 'w' is given twice"),
    ("F.relu r 0 1 1 @w=(1)f8", 19, f"attribute 'w' is '(1)f8': {TYPES}bool, c64, c128, c32"),
    (
        "F.relu r 0 1 1 @w=(2,-1)f32",
        19,
        "attribute 'w' is '(2,-1)f32': an extent is negative or '?'; the shape of a stored "
        "tensor is known",
    ),
    (
        "F.relu r 0 1 1 @w=(?)f32",
        19,
        "attribute 'w' is '(?)f32': an extent is negative or '?'; the shape of a stored tensor "
        "is known",
    ),
    (
        "F.relu r 0 1 1 @w=(2147483648,2147483648,2)f32",
        19,
        f"attribute 'w' is '(2147483648,2147483648,2)f32': {BEYOND}",
    ),
    (
        "F.relu r 0 1 1 @w=(0,1099511627776,1099511627776)f32",
        19,
        f"attribute 'w' is '(0,1099511627776,1099511627776)f32': {BEYOND}",
    ),
    (
        "F.relu r 0 1 1 @w=(9223372036854775808)f32",
        19,
        "attribute 'w' is '(9223372036854775808)f32': the extent '9223372036854775808' is not "
        "a number below 2**63",
    ),
    (
        f"F.relu r 0 1 1 @w=({','.join('1' * 33)})u8",
        19,
        f"attribute 'w' is '({'1,' * 28}...': 33 axes; at most 32 are possible",
    ),
    ("F.relu r 0 1 1 @w=f32", 19, f"attribute 'w' is 'f32', {SHAPE}"),
    ("F.relu r 0 1 1 @w=(1)", 19, f"attribute 'w' is '(1)', {SHAPE}"),
    ("F.relu r 0 1 1 @w=(1", 19, f"attribute 'w' is '(1', {SHAPE}"),
    (
        "F.relu r 0 1 1 @w=(1,)f32",
        19,
        "attribute 'w' is '(1,)f32': the extent '' is not a number below 2**63",
    ),
    (
        "F.relu r 1 1 0 1 #1=(1,x)f32",
        21,
        "annotation of '1' is '(1,x)f32': the extent 'x' is not a number below 2**63",
    ),
    ("F.relu r 1 1 0 1 #1=(1)f8", 21, f"annotation of '1' is '(1)f8': {TYPES}bool, c64, c128, c32"),
    ("F.relu r 1 1 0 1 #1=1", 21, f"annotation of '1' is '1', {SHAPE}"),
]


@pytest.mark.parametrize(
    ("line", "column", "message"), DAMAGED_LINES, ids=[line for line, *_ in DAMAGED_LINES]
)
def test_damaged_line(line, column, message):
    with pytest.raises(ModelFormatError) as caught:
        param.parse(lines(A, counts="2 2") + line + "\n", "m.param")
    if not message.startswith(("expected 'type", "operator name")):
        message = f"operator 'r' (F.relu): {message}"
    assert str(caught.value) == f"m.param:4:{column}: {message}"


def test_columns_count_characters():
    text = lines(A, "my.é  ü 1 1 0 1  x=(ä")
    with pytest.raises(ModelFormatError, match=r"m\.param:4:20: operator 'ü' \(my\.é\)"):
        param.parse(text, "m.param")


def test_attributes_that_share_an_archive_entry():
    text = lines("x a 0 1 0 @b.c=(1)f32", "x a.b 0 1 1 @c=(1)f32")
    with pytest.raises(ModelFormatError) as caught:
        parse(text).attributes()
    assert str(caught.value) == (
        "m.param:4: operator 'a.b' (x): the archive entry 'a.b.c' already belongs to operator "
        "'a' of line 3; rename one of them"
    )


@pytest.mark.parametrize("length", range(12, len(SMALL) - 1, 7))
def test_every_truncation_is_detected_or_harmless(length):
    """A truncated file is a ModelFormatError; only blanks at the end may be missing."""
    with pytest.raises(ModelFormatError):
        parse(SMALL[:length])


@settings(max_examples=400, derandomize=True, database=None, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.integers(0, len(SMALL) - 1),
            st.sampled_from([b"", b"\n", b" ", b"=", b"(", b"-", b"@", b"\xff", b"9", b"99999"]),
            st.integers(0, 3),
        ),
        min_size=1,
        max_size=4,
    )
)
def test_mutated_bytes_give_one_kind_of_error(edits):
    data = SMALL.encode()
    for position, new, removed in edits:
        data = data[:position] + new + data[position + removed :]
    with contextlib.suppress(ModelFormatError):
        parsed = param.parse(data)
        parsed.attributes()
        assert len(parsed.operators) == 5


def test_a_hundred_thousand_operators_take_linear_time():
    def chain(count: int) -> bytes:
        body = "".join(
            f"nn.ReLU r{i} 1 1 {i} {i + 1} a=(1,1) $x={i} #{i}=(1,2)f32\n" for i in range(count)
        )
        return f"7767517\n{count + 1} {count + 1}\npnnx.Input in 0 1 0\n{body}".encode()

    def seconds(count: int) -> float:
        text = chain(count)
        start = time.process_time()
        assert len(param.parse(text).operators) == count + 1
        return time.process_time() - start

    small, large = seconds(10_000), seconds(100_000)
    # Ten times the work; quadratic time would show as a factor of 100.
    assert large < 40 * max(small, 0.02)
    assert large < 20


def test_one_long_line_takes_linear_time():
    count = 100_000
    inputs = " ".join("0" * count)
    keys = " ".join(f"$k{i}=0" for i in range(count))
    start = time.process_time()
    parsed = parse(lines(A, counts="2 1") + f"t.f f {count} 0 {inputs} {keys}\n")
    assert parsed.operators[1].input_keys[-1] == f"k{count - 1}"
    assert time.process_time() - start < 10


# -- writing ---------------------------------------------------------------------------------


def test_format_pads_sorts_and_annotates():
    graph = Graph()
    graph.add_operand("0", (1, None), "f32")
    graph.add_operator("pnnx.Input", "in", outputs=["0"])
    graph.add_operator(
        "torch.ge", "g", ["0", "0"], ["1"], params={"b": 1, "a": (1, 2.0)}, input_keys=["x", None]
    )
    graph.add_operator("pnnx.Output", "out", ["1"])
    assert param.format(graph) == (
        "7767517\n"
        "3 2\n"
        "pnnx.Input               in                       0 1 0 #0=(1,?)f32\n"
        "torch.ge                 g                        2 1 0 0 1 a=(1,2.0) b=1 $x=0"
        " #0=(1,?)f32 #0=(1,?)f32\n"
        "pnnx.Output              out                      1 0 1\n"
    )


def test_format_puts_producers_first():
    graph = Graph()
    graph.add_operator("pnnx.Output", "out", ["1"])
    graph.add_operator("F.relu", "r", ["0"], ["1"])
    graph.add_operator("pnnx.Input", "in", outputs=["0"])
    parsed = param.parse(param.format(graph))
    assert [o.name for o in parsed.operators] == ["in", "r", "out"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": "a b"}, "the name 'a b' cannot be written; it must be a string without blanks"),
        ({"name": ""}, "the name '' cannot be written"),
        ({"type": "a\nb"}, r"the type 'a\\nb' cannot be written"),
        ({"params": {"a=b": 1}}, "the parameter name 'a=b' cannot be written; it must not have"),
        ({"params": {"@a": 1}}, "the parameter name '@a' cannot be written"),
        ({"params": {"a": "True"}}, "parameter 'a': the string 'True' cannot be written"),
        ({"params": {"a": object}}, "parameter 'a': a parameter cannot be a type"),
        ({"params": {"expr": 2}}, "the expression 2 cannot be written; it must be a string"),
        ({"outputs": ["a=1"]}, "the operand name 'a=1' cannot be written; it must not have any"),
        ({"input_keys": ["a="]}, "the input key 'a=' cannot be written"),
    ],
)
def test_format_refuses_text_that_would_read_back_differently(change, message):
    graph = Graph()
    graph.add_operator("pnnx.Input", "in", outputs=["0"])
    arguments = {"type": "F.relu", "name": "r", "inputs": ["0"], "outputs": ["1"]} | change
    operator = graph.add_operator(**arguments)
    with pytest.raises(GraphError, match=re.escape(operator.label) + ": " + message):
        param.format(graph)


def test_format_refuses_keys_that_would_change_inputs():
    graph = Graph()
    graph.add_operator("pnnx.Input", "in", outputs=["0"])
    graph.add_operator("t.f", "f", ["0", "0"], input_keys=[None, "k"])
    with pytest.raises(GraphError, match="'k' cannot be written; a reader would give it to the"):
        param.format(graph)


def test_format_refuses_fused_steps():
    from kuiper.ir import PostOp

    graph = Graph()
    graph.add_operator("pnnx.Input", "in", outputs=["0"])
    graph.operator("in").post_ops = (PostOp("nn.ReLU", {}),)
    with pytest.raises(GraphError, match="fused steps cannot be written; save the graph as it was"):
        param.format(graph)


NAMES = st.from_regex(r"[A-Za-z_é][A-Za-z0-9_.:\u3000é-]{0,8}", fullmatch=True)


@st.composite
def graphs(draw) -> Graph:
    """Draw a graph with any names, values, keys and annotations of the format."""
    graph = Graph()
    names = draw(st.lists(NAMES, min_size=2, max_size=8, unique=True))
    for number, name in enumerate(names):
        known = [operand.name for operand in graph.operands]
        inputs = draw(st.lists(st.sampled_from(known), max_size=4)) if known else []
        # An operand in several inputs has keys in all of them or in none.
        has_key = {operand: draw(st.booleans()) for operand in dict.fromkeys(inputs)}
        keys = [draw(NAMES) if has_key[operand] else None for operand in inputs]
        params = draw(st.dictionaries(NAMES.filter(lambda key: key != "expr"), NESTED, max_size=3))
        if draw(st.booleans()):
            params["expr"] = draw(st.from_regex(r"[a-z(),@0-9\[\]]{1,9}", fullmatch=True))
        outputs = [f"{number}.{slot}" for slot in range(draw(st.integers(0 if number else 1, 2)))]
        for output in outputs:
            shape = draw(st.none() | st.lists(st.none() | st.integers(0, 9), max_size=4).map(tuple))
            dtype = None if shape is None else draw(st.sampled_from(["f32", "bool", None]))
            graph.add_operand(output, shape, dtype)
        graph.add_operator(
            draw(NAMES), name, inputs, outputs, params=params, input_keys=keys, location="x"
        )
    return graph


@settings(max_examples=60, derandomize=True, database=None, deadline=None)
@given(graphs())
def test_graph_round_trip(graph):
    text = param.format(graph)
    again = param.build(param.parse(text), {})
    assert contents_of(again) == contents_of(graph)
    assert param.format(again) == text
