"""The examples in the documentation of expressions."""

import doctest

import pytest

import kuiper.expression
from kuiper.expression import (
    _syntax,
    compiled,
    drawing,
    evaluation,
    lowering,
    ncnn,
    ncnn_translation,
    tree,
    views,
)

from ..support.paths import ROOT

DOCS = ROOT / "docs" / "expressions.md"


@pytest.mark.parametrize(
    "module",
    [
        _syntax,
        compiled,
        drawing,
        evaluation,
        lowering,
        ncnn,
        ncnn_translation,
        tree,
        views,
        kuiper.expression,
    ],
    ids=lambda module: module.__name__.rpartition(".")[2],
)
def test_examples_in_docstrings(module):
    assert doctest.testmod(module).failed == 0


def test_examples_exist():
    finder = doctest.DocTestFinder()
    modules = (_syntax, compiled, drawing, ncnn, tree, views)
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
    from kuiper.expression.vocabulary import CASTS, PNNX

    words = set(page.replace("`", " ").replace(",", " ").split())
    assert not {name for name in PNNX if name not in CASTS} - words
