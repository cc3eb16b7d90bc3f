"""The examples in the documentation of expressions."""

import doctest

import pytest

import kuiper.expression
from kuiper.expression import (
    compiled,
    custom,
    drawing,
    evaluation,
    lowering,
    ncnn,
    syntax,
    text,
    tree,
)

from ..support.paths import ROOT

DOCS = ROOT / "docs" / "expressions.md"


@pytest.mark.parametrize(
    "module",
    [
        compiled,
        custom,
        drawing,
        evaluation,
        lowering,
        ncnn.language,
        ncnn.translation,
        syntax,
        text,
        tree,
        kuiper.expression,
    ],
    ids=lambda module: module.__name__.rpartition(".")[2],
)
def test_examples_in_docstrings(module):
    assert doctest.testmod(module).failed == 0


def test_examples_exist():
    finder = doctest.DocTestFinder()
    modules = (compiled, drawing, ncnn.language, syntax, text, tree)
    for module in modules:
        assert any(test.examples for test in finder.find(module)), module


def test_examples_on_the_page():
    text = DOCS.read_text(encoding="utf-8").replace("```", "   ")
    test = doctest.DocTestParser().get_doctest(text, {}, "expressions.md", str(DOCS), 0)
    assert len(test.examples) > 20
    runner = doctest.DocTestRunner(optionflags=doctest.IGNORE_EXCEPTION_DETAIL)
    runner.run(test)
    assert runner.failures == 0


def test_the_page_names_every_operator():
    page = DOCS.read_text(encoding="utf-8")
    from kuiper.expression.functions import PNNX

    words = set(page.replace("`", " ").replace(",", " ").split())
    assert not PNNX.keys() - words
