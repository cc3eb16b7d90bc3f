"""The numpy references against PyTorch's stored results."""

import ast
from pathlib import Path

import numpy as np
import pytest

from .. import reference
from ..reference import REFERENCES
from ..support import load_cases
from .test_operators import OF_ONNX

CASES = load_cases("operators")


def test_there_are_cases():
    assert len(CASES) > 500


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_reference_agrees_with_pytorch(case):
    outputs = [y.astype(np.float32) if y.dtype == np.float64 else y for y in case.reference]
    case.assert_matches(outputs)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_the_outputs_of_a_case_vary(case):
    for x in case.inputs:
        assert x.size == 1 or x[np.isfinite(x)].std() > 0
    for golden in case.goldens:
        if golden.values.size == 0:
            # An empty selection or piece: other pieces or the first case have elements.
            others = [c for c in CASES if c.id in (case.id, case.id.rpartition(".")[0])]
            assert any(other.values.size for c in others for other in c.goldens)
            continue
        finite = golden.values[np.isfinite(golden.values)]
        assert finite.any(), "an engine that returns zeros would pass"
        assert finite.size == 1 or finite.std() > 0


def test_every_reference_has_a_case():
    used = set().union(*(case.types for case in CASES))
    # tests/unit/onnx compares those of ONNX alone, for which pnnx writes no case.
    assert REFERENCES.keys() - used == OF_ONNX


def test_references_do_not_import_kuiper():
    for path in Path(reference.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not any(name.split(".")[0] == "kuiper" for name in names), path


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("add(add(add(@0,@1),@1),add(@0,add(@1,@1)))", 2 * 3.0 + 4 * 5.0),
        ("sub(@0,@1)", -2.0),
        ("log1p,@0", np.log1p(3.0)),
        ("sub(add(log1p,@0),1),mul(@1,2)", np.log1p(3.0) + 1 - 10),
        ("mul(reciprocal(@0),2)", 2 / 3),
        ("add(@0,,mul(@1,2))", 13.0),
    ],
)
def test_expression_by_hand(text, expected):
    assert reference.expression.evaluate(3.0, 5.0, expr=text) == pytest.approx(expected)


def test_expression_lists():
    x = np.zeros((2, 8, 5, 7))
    text = "[size(@0,0),8,floor_divide(size(@0,2),2),size(@0,-1)]"
    assert reference.expression.evaluate(x, expr=text) == (2, 8, 2, 7)


def test_convolution_by_hand():
    x = np.arange(9.0).reshape(1, 1, 3, 3)
    w = np.array([[[[1.0, 0.0], [0.0, -1.0]]]])
    settings = {"stride": (1, 1), "padding": (0, 0), "dilation": (1, 1), "groups": 1}
    y = reference.convolution.conv2d(x, w, np.array([10.0]), **settings)
    assert y.tolist() == [[[[6.0, 6.0], [6.0, 6.0]]]]
