"""Products of two matrices of bfloat16 on every variant, against float64."""

from __future__ import annotations

import numpy as np
import pytest

from kuiper._kernels.linear.linear import PairMatmulStep
from kuiper._kernels.micro import dispatch
from kuiper.ir.dtypes import BFLOAT16

from ...support.halves import halves_of, rounded, values_of
from ...support.workbench import PAIR_ISAS, Workbench, isa, noise

EACH = pytest.mark.parametrize("name", PAIR_ISAS)
FLOAT32 = np.dtype(np.float32)

# (matrices, rows, depth, columns)
SHAPES = [
    (1, 1, 1, 1),
    (3, 17, 9, 5),
    (2, 49, 32, 49),
    (1, 130, 63, 70),
    (5, 3, 200, 33),
    (2, 6, 0, 4),
]


def put(bench, values, by_column=False):
    """Return a view of matrices, whose columns are contiguous if `by_column`."""
    halves = halves_of(values).reshape(values.shape)
    if not by_column:
        return bench.put(halves)
    rows, columns = values.shape[1:]
    return bench.put(halves, (rows * columns, 1, rows))


def check(shape, y_dtype=FLOAT32, by_column=False, shared=False):
    count, rows, depth, columns = shape
    a, b = rounded(noise((count, rows, depth), 1)), rounded(noise((count, depth, columns), 2))
    bench = Workbench()
    y = bench.output((count, rows, columns), dtype=y_dtype)
    right = put(bench, b, by_column)
    if shared:
        b = b[:1]
        right = right.narrow(0, 0, 1).expand((count, depth, columns))
    left = put(bench, a)
    scratch = bench.scratch(4 * (depth + 1) * dispatch.tile()[1])
    got = bench.run_all_shards(lambda: PairMatmulStep(left, right, y, scratch), y)
    expected = np.float64(a) @ np.float64(b)
    if y_dtype == BFLOAT16:
        got = values_of(got)
    bound = 1e-6 * (1 + depth) + (2**-8 * np.abs(expected) if y_dtype == BFLOAT16 else 0)
    assert (np.abs(got - expected) <= bound).all()


@EACH
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("y_dtype", [FLOAT32, BFLOAT16], ids=str)
def test_rows_of_columns(name, shape, y_dtype):
    with isa(name):
        check(shape, y_dtype)


@EACH
@pytest.mark.parametrize("shape", [(3, 17, 10, 5), (2, 49, 32, 49), (1, 130, 64, 70)])
def test_contiguous_columns(name, shape):
    with isa(name):
        check(shape, by_column=True)


@EACH
def test_one_matrix_for_all(name):
    with isa(name):
        check((4, 20, 12, 40), shared=True)
