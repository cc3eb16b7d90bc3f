"""Folding an expression again, for tensors of other shapes."""

import numpy as np
import pytest

from kuiper.errors import ExpressionError
from kuiper.expression import _parse, parse
from kuiper.expression.folding import fold
from kuiper.ir.view import TensorSpec

EXPRESSIONS = [
    "add(@0,@1)",
    "mul(add(@0,2),div(@1,4.0))",
    "add(@0,size(@1,0))",
    "[add(@0,1),size(@0,0)]",
    "max(@0,@1)",
    "torch.float(@0)",
    "pow(@0,2)",
]
OPERANDS = [
    [TensorSpec(shape, dtype), TensorSpec(other, second)]
    for shape, other in [((2, 3), (2, 3)), ((4, 1), (5,)), ((4, 3), ()), ((), ()), ((7,), (7,))]
    for dtype, second in [(np.float32, np.float32), (np.int64, np.float32), (np.float32, np.int64)]
]


def outcome(tree, operands) -> str:
    try:
        return repr(fold(tree, operands))
    except ExpressionError as error:  # a 0-d tensor has no size(0)
        return str(error)


@pytest.mark.parametrize("text", EXPRESSIONS)
def test_a_tree_that_was_folded_before_gives_the_same(text):
    used = _parse(text, 2, False)
    for _ in range(2):
        for operands in OPERANDS:
            fresh = _parse(text, 2, False)
            assert outcome(used, operands) == outcome(fresh, operands)


def test_shapes_that_do_not_broadcast_are_found_every_time():
    tree = parse("mul(add(@0,@1),2)")
    good = TensorSpec((2, 3), np.float32)
    fold(tree, [good, good])
    for _ in range(2):
        with pytest.raises(ExpressionError, match="do not broadcast") as caught:
            fold(tree, [good, TensorSpec((2, 4), np.float32)])
        assert "^" in str(caught.value)
