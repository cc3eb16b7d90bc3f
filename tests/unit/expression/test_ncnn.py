"""The ncnn dialect, against values and translations recorded from ncnn and pnnx."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kuiper.errors import ExpressionError
from kuiper.expression import Call, List, Literal, Ref, evaluate, parse
from kuiper.expression.ncnn import (
    OPERATORS,
    BlobExtent,
    Extents,
    Source,
    count_blobs,
    eval_list,
    from_ncnn,
    to_ncnn,
    to_text,
)
from kuiper.expression.ncnn import parse as parse_ncnn

from ...support.paths import DATA

RECORDED = DATA / "expression"
VALUES = json.loads(RECORDED.joinpath("ncnn_values.json").read_text())
TRANSLATIONS = json.loads(RECORDED.joinpath("ncnn_translations.json").read_text())


class Tensor:
    """An operand with a shape."""

    def __init__(self, shape):
        self.shape = tuple(shape)


# Evaluation ------------------------------------------------------------------------------------


def test_values_equal_those_of_ncnn():
    assert len(VALUES) >= 500
    text = " ".join(record[0] for record in VALUES)
    assert all(f"{name}(" in text for name in OPERATORS)
    for expression, shapes, expected in VALUES:
        assert eval_list(expression, shapes) == expected, expression


@pytest.mark.parametrize(
    ("text", "shapes", "expected"),
    [
        ("-1,*(0h,2),+(1c,2)", [(3, 8, 9), (5, 4, 4)], [-1, 16, 7]),
        ("0w,0h,0d,0c,0n", [(2, 3, 4, 5)], [5, 4, 3, 2, 1]),
        ("0w,0h,0d,0c", [(7,)], [7, 1, 1, 1]),
        ("0w,0h,0c", [(6, 7)], [7, 6, 1]),
        ("0n,1n", [Extents(w=3, n=4), Extents(w=2, n=9)], [4, 9]),
        ("//(7,2),//(-7,2),/(-7,2)", [], [3, -3, -3]),
        ("//(-7.5,2)", [], [-4]),
        ("round(2.5),round(-2.5),round(0.4)", [], [3, -3, 0]),
        ("trunc(-2.7),floor(-2.7),ceil(-2.7)", [], [-2, -3, -2]),
        ("-2.7", [], [-2]),
        ("2.0,1e1,.5,5., 12", [], [2, 10, 0, 5, 12]),
        ("remainder(-7,3),fmod(-7,3),remainder(7,3)", [], [2, -1, 1]),
        ("sign(-2.5),sign(0),abs(-3),neg(4),square(5)", [], [-1, 0, 3, -4, 25]),
        ("and(12,10),or(12,10),xor(12,10),lshift(3,4),rshift(-9,1)", [], [8, 14, 6, 48, -5]),
        ("max(2,3.5),min(2,3.5)", [], [3, 2]),
        ("*(/(1,3),3)", [], [1]),
        ("16777217,+(16777217,0.0)", [], [16777217, 16777217]),
    ],
)
def test_values(text, shapes, expected):
    assert eval_list(text, shapes) == expected


def test_floats_are_float32():
    # 2^24 + 1 is not representable
    assert eval_list("+(16777217,0.5)", []) == [16777216]


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("", 0),
        ("3,4", 0),
        ("0w", 1),
        ("-1,*(0h,2),+(1c,2)", 2),
        ("9n", 10),
        ("10w,0W", 0),
        ("+(", 0),
    ],
)
def test_count_blobs_reads_words_only(text, count):
    assert count_blobs(text) == count


@pytest.mark.parametrize(
    ("text", "message", "position"),
    [
        ("", "the expression is empty", 0),
        ("  ", "the expression is empty", 1),
        ("0w,", "an item is missing at the end", 2),
        (",0w", "an item is missing before ','", 0),
        ("+(0w,)", "an item is missing before ')'", 5),
        ("+(2)", "+ takes 2 arguments, got 1", 0),
        ("neg(1,2)", "neg takes 1 argument, got 2", 0),
        ("-1,+,0h,2", "the brackets of + are missing", 3),
        ("+(1,2", "a bracket is never closed", 0),
        ("1)", "')' closes nothing", 1),
        ("(1)", "'(' without an operator before it", 0),
        ("0w(1)", "'(' without an operator before it", 2),
        ("+(1,2)3", "a comma is missing before '3'", 6),
        ("10w", "'10w' is no reference: the ids of inputs are 0 to 9", 0),
        ("0W", "'0W' is no operator, number or extent", 0),
        ("1, 12abc", "'12abc' is no operator", 3),
        ("add(0w,1)", "'add' is no operator", 0),
        ("size(@0,1)", "'size' is no operator", 0),
        ("[0w]", "'[0w]' is no operator", 0),
        ("0x10", "'0x10' is no operator", 0),
        ("inf", "'inf' is no operator", 0),
        ("3000000000", "does not fit 32 bits", 0),
        ("9" * 100, "does not fit 32 bits", 0),
        ("neg(" * 1000 + "1" + ")" * 1000, "nested more than 255 deep", 1020),
    ],
)
def test_malformed_text(text, message, position):
    with pytest.raises(ExpressionError) as caught:
        parse_ncnn(text)
    assert message in caught.value.message
    assert caught.value.position == position
    assert caught.value.text == text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0w,1h", "1h refers to none of the 1 inputs"),
        ("//(1,-(2,2))", "division by zero"),
        ("/(1,0)", "/ gives inf, which is no 32-bit integer"),
        ("floor(/(-1,0))", "floor gives -inf"),
        ("/(0,0)", "/(0,0) has no value"),
        ("sqrt(-1)", "sqrt(-1) has no value"),
        ("exp(50)", "which is no 32-bit integer"),
        ("*(65536,65536)", "* gives 4294967296, which is no 32-bit integer"),
        ("remainder(-4,2)", "ncnn gives 2 for remainder(-4,2)"),
        ("and(1.5,1)", "and takes integers"),
        ("lshift(1,40)", "lshift by 40 bits is not defined"),
        ("rshift(1,-1)", "rshift by -1 bits is not defined"),
    ],
)
def test_what_ncnn_computes_as_garbage_is_an_error(text, message):
    with pytest.raises(ExpressionError) as caught:
        eval_list(text, [(3, 4)])
    assert message in caught.value.message
    assert caught.value.position is not None


def test_blobs_have_at_most_four_axes():
    with pytest.raises(ExpressionError, match="up to 4 axes"):
        eval_list("0w", [(1, 2, 3, 4, 5)])


def test_trees_print_as_they_were_written():
    text = "0w,//(+(0w,3),4),-1.5"
    tree = parse_ncnn(text)
    assert to_text(tree) == text
    assert tree.children[0] == BlobExtent(0, "w")
    assert eval_list(tree, [(8,)]) == [8, 2, -1]


# Translation -----------------------------------------------------------------------------------


def test_translations_equal_those_of_pnnx():
    assert len(TRANSLATIONS) >= 10
    for record in TRANSLATIONS:
        sources = [Source(*source) for source in record["sources"]]
        result = to_ncnn(
            parse(record["expression"]), sources, record["data"], batch_item=record["batch_item"]
        )
        assert result.text == record["text"], record["expression"]
        assert result.keeps_batch == record["keeps_batch"]
        assert result.inputs[0] == record["data"]
        assert set(result.inputs) == {record["data"], *(name for name, _, _ in sources)}


@pytest.mark.parametrize(
    ("text", "ranks", "options", "expected"),
    [
        ("[add(size(@1,0),2),mul(size(@0,1),2),-1]", (3, 3), {}, "-1,*(0h,2),+(1c,2)"),
        ("[size(@0,-1),size(@0,0)]", (4,), {}, "0c,0w"),
        ("sub(size(@0,1),1)", (2,), {"reverse": False}, "-(0w,1)"),
        ("[0,floor_divide(size(@0,1),2)]", (3,), {"reverse": False}, "0,//(0h,2)"),
        ("[maximum(size(@0,0),4),int(div(size(@0,1),2))]", (2,), {}, "trunc(/(0w,2)),max(0h,4)"),
        ("[sqrt(size(@0,0)),round(2.5)]", (1,), {}, "round(2.5),sqrt(0w)"),
    ],
)
def test_to_ncnn(text, ranks, options, expected):
    sources = [Source(k, rank) for k, rank in enumerate(ranks)]
    assert to_ncnn(parse(text), sources, 0, **options).text == expected


def test_inputs_are_numbered_by_first_appearance():
    sources = [Source("a", 3), Source("b", 3), Source("a", 3), Source("x", 3)]
    result = to_ncnn(parse("[size(@1,0),add(size(@2,1),size(@0,2)),size(@3,0)]"), sources, "x")
    assert result.inputs == ("x", "b", "a")
    assert result.text == "0c,+(2h,2w),1c"


@pytest.mark.parametrize(
    ("text", "message", "position"),
    [
        ("[size(@0)]", "no word for a whole shape", 1),
        ("[size(@0,size(@0,0))]", "the axis must be an integer that is written out", 9),
        ("[size(@0,7)]", "axis 7 is out of range for 3 axes", 9),
        ("[size(@1,0)]", "the rank of @1 is not known", 1),
        ("[size(@2,0)]", "@2 has 5 axes, more than ncnn's 4", 1),
        ("[size(@9,0)]", "@9 refers to none of the 3 operands", 0),
        ("[add(@0,1)]", "a tensor is no extent", 5),
        ("[@0]", "a tensor is no extent", 1),
        ("@0", "a tensor is no extent", 0),
        ("[None]", "ncnn has no word for None", 1),
        ("[True]", "ncnn has no word for True", 1),
        ("[log1p(2)]", "ncnn has no operator log1p", 1),
        ("[torch.float(2)]", "ncnn has no operator torch.float", 1),
        ("[1,[2]]", "ncnn has no lists inside lists", 3),
        ("[size(3,0)]", "size of something that is no tensor", 1),
    ],
)
def test_untranslatable_expressions(text, message, position):
    sources = [Source("a", 3), Source("b", None), Source("c", 5)]
    with pytest.raises(ExpressionError) as caught:
        to_ncnn(parse(text), sources, "a")
    assert message in caught.value.message
    assert caught.value.position == position


def test_ncnn_has_at_most_ten_inputs():
    tree = List([Call("size", [Ref(k), Literal(0)]) for k in range(11)])
    with pytest.raises(ExpressionError, match="10 inputs, the expression needs 12"):
        to_ncnn(tree, [Source(k, 1) for k in range(11)], "data")


@pytest.mark.parametrize(
    ("text", "sources", "expected"),
    [
        ("-1,*(0h,2),+(1c,2)", [(0, 3), (1, 3)], "[add(size(@1,0),2),mul(size(@0,1),2),-1]"),
        (
            "0w,//(0h,2),8,0n",
            [(0, 4, 0)],
            "[size(@0,0),8,floor_divide(size(@0,2),2),size(@0,3)]",
        ),
        ("0n,0c,0w", [(0, 2)], "[size(@0,1),1,1]"),
        ("/(0w,2),floor(/(0w,2))", [(0, 1)], "[floor(div(size(@0,0),2)),int(div(size(@0,0),2))]"),
        ("0h,0n", [(0, 3, 1)], "[size(@0,1),size(@0,0)]"),
        ("0w,0c", [(0, 3, 1)], "[1,size(@0,2)]"),
    ],
)
def test_from_ncnn(text, sources, expected):
    assert str(from_ncnn(text, [Source(*source) for source in sources])) == expected


def test_from_ncnn_requires_the_inputs():
    with pytest.raises(ExpressionError, match="1w refers to none of the 1 inputs"):
        from_ncnn("0w,1w", [Source(0, 3)])
    with pytest.raises(ExpressionError, match="the rank of input 0 is not known"):
        from_ncnn("0w", [Source(0, None)])


ranks_and_batches = st.one_of(
    st.tuples(st.integers(1, 4), st.none()),
    st.integers(2, 5).flatmap(lambda rank: st.tuples(st.just(rank), st.integers(0, rank - 1))),
)


@st.composite
def shape_problems(draw):
    """Draw operands with shapes, and a list of quantities computed from their extents."""
    sources, shapes = [], []
    for k in range(draw(st.integers(1, 3))):
        rank, batch_axis = draw(ranks_and_batches)
        sources.append(Source(k, rank, batch_axis))
        shapes.append(draw(st.lists(st.integers(1, 40), min_size=rank, max_size=rank)))

    def extent(k):
        axes = st.integers(-sources[k].rank, sources[k].rank - 1)
        return axes.map(lambda axis: Call("size", [Ref(k), Literal(axis)]))

    leaves = st.one_of(
        st.integers(0, len(sources) - 1).flatmap(extent), st.integers(0, 9).map(Literal)
    )
    positive = st.integers(1, 9).map(Literal)
    items = st.recursive(
        leaves,
        lambda inner: st.one_of(
            st.builds(Call, st.sampled_from(["add", "max", "minimum"]), st.tuples(inner, inner)),
            st.builds(Call, st.just("mul"), st.tuples(inner, positive)),
            st.builds(
                Call, st.sampled_from(["floor_divide", "remainder"]), st.tuples(inner, positive)
            ),
            st.builds(Call, st.sampled_from(["trunc", "square"]), st.tuples(leaves)),
        ),
        max_leaves=6,
    )
    return List(draw(st.lists(items, min_size=1, max_size=4))), sources, shapes


def extents(source, shape):
    """Return the extents of a tensor as ncnn numbers them."""
    if source.batch_axis is None:
        return Extents.of(shape)
    rest = [n for axis, n in enumerate(shape) if axis != source.batch_axis]
    return Extents.of(rest, batch=shape[source.batch_axis])


@settings(derandomize=True, database=None, deadline=None)
@given(shape_problems())
def test_both_dialects_compute_the_same(problem):
    tree, sources, shapes = problem
    expected = evaluate(tree, [Tensor(shape) for shape in shapes])
    there = to_ncnn(tree, sources, sources[0].name)
    blobs = [extents(sources[name], shapes[name]) for name in there.inputs]
    assert eval_list(there.text, blobs) == expected[::-1]
    back = from_ncnn(there.text, [sources[name] for name in there.inputs])
    tensors = [Tensor(shapes[name]) for name in there.inputs]
    assert evaluate(back, tensors) == expected
    renamed = [sources[name]._replace(name=blob) for blob, name in enumerate(there.inputs)]
    again = to_ncnn(back, renamed, 0)
    blobs = [extents(sources[there.inputs[k]], shapes[there.inputs[k]]) for k in again.inputs]
    assert eval_list(again.text, blobs) == expected[::-1]


@settings(derandomize=True, database=None, deadline=None)
@given(st.text("0123456789whdcn+-*/(),.maxinegsqrt ", max_size=30))
def test_any_text_parses_or_is_an_error_with_a_position(text):
    try:
        tree = parse_ncnn(text)
    except ExpressionError as caught:
        error = caught
    else:
        assert parse_ncnn(to_text(tree)) == tree
        return
    assert error.text == text
    assert 0 <= error.position <= len(text)
