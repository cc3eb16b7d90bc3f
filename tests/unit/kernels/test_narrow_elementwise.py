"""Elementwise programs and fills of bfloat16 on every variant, against numpy on rounded inputs."""

from __future__ import annotations

import numpy as np
import pytest

from kuiper._kernels.data.move import FillStep
from kuiper._kernels.elementwise.elementwise import ElementwiseStep
from kuiper.expression import fold, parse
from kuiper.ir.dtypes import BFLOAT16
from kuiper.ir.view import TensorSpec

from ...support.halves import halves_of, rounded, values_of
from ...support.workbench import PAIR_ISAS, Workbench, isa, noise

EACH = pytest.mark.parametrize("name", PAIR_ISAS)
FLOAT32 = np.dtype(np.float32)
TEXT = "add(mul(@0,@1),@2)"
DTYPES = [(a, b, y) for a in (BFLOAT16, FLOAT32) for b in (BFLOAT16, FLOAT32) for y in (a, b)]


def put(bench, x, dtype, axes):
    """Return a view of x, stored in the order of some axes, and the values that it stands for."""
    dense = np.ascontiguousarray(x.transpose(axes))
    stored = halves_of(dense).reshape(dense.shape) if dtype == BFLOAT16 else dense
    value = bench.put(stored).permute(np.argsort(axes).tolist())
    return value, rounded(x) if dtype == BFLOAT16 else x


def check(shapes, dtypes, orders=None):
    bench = Workbench()
    arrays = [noise(shape, seed) for seed, shape in enumerate(shapes)]
    orders = orders or [tuple(range(len(shapes[0])))] * 4
    shape = np.broadcast_shapes(*shapes)
    found = [put(bench, *each) for each in zip(arrays, dtypes[:3], orders[:3], strict=True)]
    program = fold(parse(TEXT, 3), [TensorSpec(x.shape) for x in arrays])
    output = bench.output([shape[d] for d in orders[3]], dtype=dtypes[3])
    y = output.permute(np.argsort(orders[3]).tolist())
    inputs = [found[source][0].expand(shape) for source in program.sources]
    got = bench.run_all_shards(lambda: ElementwiseStep(program, inputs, y), output)
    got = got.transpose(np.argsort(orders[3]))
    a, b, c = (values for _, values in found)
    expected = np.broadcast_to(a * b + c, shape)
    if dtypes[3] == BFLOAT16:
        assert np.array_equal(values_of(got), rounded(expected))
    else:
        assert np.array_equal(got, expected)


@EACH
@pytest.mark.parametrize(("a", "b", "y"), DTYPES)
def test_broadcasting(name, a, b, y):
    with isa(name):
        check([(2, 3, 1000), (2, 3, 1000), (2, 3, 1000)], (a, b, b, y))
        check([(300, 40), (1, 40), (300, 1)], (a, b, a, y))
        check([(300, 7), (1, 7), (300, 1)], (a, b, a, y))
        check([(2, 5, 67), (1, 5, 1), (1, 1, 1)], (a, b, b, y))
        check([(1, 1), (1, 1), (1, 1)], (a, b, b, y))


@EACH
@pytest.mark.parametrize(("a", "b", "y"), DTYPES)
def test_layouts(name, a, b, y):
    image, last = (0, 1, 2, 3), (0, 2, 3, 1)
    shapes = [(2, 33, 5, 6), (2, 33, 1, 1), (2, 33, 5, 6)]
    with isa(name):
        check(shapes, (a, b, b, y), [last, image, last, last])
        check(shapes, (a, b, b, y), [image, image, last, last])
        check(shapes, (a, b, b, y), [last, last, last, image])


@EACH
def test_fill_is_rounded(name):
    with isa(name):
        for number in (0.0, -np.inf, 1 / 3, 1e300):
            bench = Workbench()
            y = bench.output((3, 50), dtype=BFLOAT16)
            got = values_of(bench.run_all_shards(lambda y=y, n=number: FillStep(y, n), y))
            with np.errstate(over="ignore"):
                number = np.float32(number)
            expected = rounded(np.array([number])) if np.isfinite(number) else number
            assert (got == expected).all()
