"""Expressions as functions, against numpy, and as drawings."""

import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest

from kuiper.errors import ExpressionError
from kuiper.expression import compile, parse, to_dot, to_svg

SIX = "add(add(mul(@0,@1),mul(@2,add(add(add(@0,@2),@3),@4))),@5)"


def test_a_compiled_expression_is_a_function():
    rng = np.random.default_rng(0)
    a, b, c, d, e, f = arrays = [rng.standard_normal((3, 70), np.float32) for _ in range(6)]
    function = compile(SIX)
    assert function.n_operands == 6
    np.testing.assert_array_equal(function(*arrays), a * b + c * (a + c + d + e) + f)
    assert repr(function) == f"compile({SIX!r})"


def test_shapes_may_change_from_call_to_call():
    function = compile("mul(@0,sigmoid(@1))")
    rng = np.random.default_rng(0)
    for shape, gate in [((2, 3), (3,)), ((5,), ()), ((2, 3), (2, 1)), ((2, 3), (3,))]:
        x = rng.standard_normal(shape, np.float32)
        g = np.asarray(rng.standard_normal(gate, np.float32))
        np.testing.assert_allclose(function(x, g), x / (1 + np.exp(-g)), rtol=1e-6)


def test_numbers_are_weakly_typed_and_kept_apart():
    function = compile("pow(@0,@1)")
    x = np.array([1.0, 2.0, 3.0], np.float32)
    for exponent in (2, 3.0, 0.5, 2):
        result = function(x, exponent)
        assert result.dtype == np.float32
        np.testing.assert_allclose(result, x**exponent, rtol=1e-6)


def test_other_dtypes_follow_pytorch():
    result = compile("div(@0,2)")(np.arange(3))
    assert result.dtype == np.float32
    assert compile("add(@0,@1)")(np.arange(3), np.ones(3)).dtype == np.float64
    mixed = compile("mul(@0,@1)")(np.ones(3, np.float32), np.arange(3))
    assert mixed.dtype == np.float32


def test_results_that_are_lists_or_numbers():
    x = np.ones((2, 3), np.float32)
    result = compile("[add(@0,1),size(@0,1),[mul(size(@0,0),2)]]")(x)
    np.testing.assert_array_equal(result[0], x + 1)
    assert result[1:] == [3, [4]]
    assert compile("add(@0,2)")(3) == 5


def test_results_in_a_given_array():
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((2, 40, 30), np.float32)
    function = compile("add(mul(@0,@1),@0)")
    expected = x * y + x
    out = np.empty_like(x)
    assert function(x, y, out=out) is out
    np.testing.assert_array_equal(out, expected)
    wide = np.zeros((40, 60))
    function(x, y, out=wide[:, ::2])
    np.testing.assert_array_equal(wide[:, ::2], expected)
    again = x.copy()
    function(again, y, out=again)  # in place
    np.testing.assert_array_equal(again, expected)
    square = rng.standard_normal((30, 30), np.float32)
    expected = square * square.T + square
    function(square, square.T, out=square)  # needs a copy of the operand that it overwrites
    np.testing.assert_array_equal(square, expected)
    numbers = np.arange(3)
    compile("mul(@0,2)")(numbers, out=numbers)
    assert numbers.tolist() == [0, 2, 4]
    with pytest.raises(ExpressionError, match=r"shape \(40, 30\), which out of shape \(3,\)"):
        function(x, y, out=np.empty(3, np.float32))
    with pytest.raises(ExpressionError, match="the result is 40"):
        compile("size(@0,0)")(x, out=out)


def test_trees_can_be_compiled():
    tree = parse("add(@0,1)")
    assert compile(tree)(2) == 3


def test_too_few_operands():
    with pytest.raises(ExpressionError, match="1 operands given, the expression refers to 2"):
        compile("add(@0,@1)")(np.ones(3, np.float32))


def test_dot_names_every_node():
    lines = to_dot(
        parse('add(@0,mul(@1,"x"))'.replace('"x"', "2")), ["left", 'ri"ght']
    ).splitlines()
    assert lines[0] == "digraph expression {"
    assert lines[-1] == "}"
    assert sum("label=" in line for line in lines) == 5
    assert sum("->" in line for line in lines) == 4
    assert '  n1 [label="left", shape=ellipse, fillcolor="#d9f0d3"];' in lines
    assert any('label="ri\\"ght"' in line for line in lines)
    assert "  n0 -> n2;" in lines


@pytest.mark.parametrize(
    "text",
    [
        "@0",
        SIX,
        "[floor_divide(size(@0,2),remainder(neg(1.5),3)),logaddexp(@0,@1),[],[1,2,3,4,5,6]]",
        "neg(" * 60 + "@0" + ")" * 60,
        "[" + ",".join(["maximum(@0,1.000000e-5)"] * 30) + "]",
        "logaddexp(1,floor_divide(neg(logaddexp(floor_divide(1,2),3)),4))",
    ],
)
def test_svg_shows_every_node_without_overlap(text):
    tree = parse(text)
    root = ElementTree.fromstring(to_svg(tree))
    space = "{http://www.w3.org/2000/svg}"
    boxes = [
        tuple(float(rect.get(key)) for key in ("x", "y", "width", "height"))
        for rect in root.iter(f"{space}rect")
    ]
    labels = [text.text for text in root.iter(f"{space}text")]
    assert labels == [node.text for node in tree.preorder()]
    assert len(boxes) == tree.size
    assert sum(1 for _ in root.iter(f"{space}line")) == tree.size - 1
    width, height = float(root.get("width")), float(root.get("height"))
    for i, (x, y, w, h) in enumerate(boxes):
        assert x >= 0
        assert x + w <= width
        assert y + h <= height
        for other_x, other_y, other_w, _ in boxes[:i]:
            assert other_y != y or other_x + other_w <= x or x + w <= other_x


def test_svg_escapes_names():
    svg = to_svg(parse("neg(@0)"), ["<a&b>"])
    assert "&lt;a&amp;b&gt;" in svg
    ElementTree.fromstring(svg)
