"""CopyStep and FillStep, against numpy's indexing."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from kuiper._kernels.data.loops import copy_loops, strided_loops
from kuiper._kernels.data.move import CopyStep, FillStep
from kuiper._kernels.micro import dispatch
from kuiper.ir.view import channels_last_strides, contiguous_strides

from ...support.workbench import ISAS, Workbench, isa, noise

DTYPES = (np.bool_, np.int16, np.float32, np.int64, np.complex128)


def copied(source_array, source_strides=None, target_strides=None, view=lambda value: value):
    bench = Workbench()
    source = view(bench.put(source_array, source_strides))
    target = bench.allocate(source.shape, source.dtype, target_strides)
    bench.written.append(target)
    expected = bench.view(source).copy()
    result = bench.run_all_shards(lambda: CopyStep(source, target), target)
    np.testing.assert_array_equal(result, expected)
    return result


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (1,), (7,), (3, 5), (2, 3, 4), (2, 1, 3, 1, 5), (40, 33, 9)])
def test_contiguous(shape, dtype):
    array = noise(shape, dtype=dtype)
    if array.size > 3:
        assert np.unique(array).size > 1
    np.testing.assert_array_equal(copied(array), array)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dims", list(itertools.permutations(range(4))))
def test_permutations(dims, dtype):
    array = noise((2, 5, 3, 19), dtype=dtype)
    np.testing.assert_array_equal(
        copied(array, view=lambda value: value.permute(dims)), array.transpose(dims)
    )


def sizes_around(name):
    """Return extents around the widths of a vector and of a block."""
    with isa(name):
        lanes = dispatch.lanes()
    return sorted({1, 2, 3, 4, 5, lanes - 1, lanes, lanes + 1, 2 * lanes, 67, 130} - {0})


@pytest.mark.parametrize("name", ISAS)
def test_layout_changes(name):
    with isa(name):
        for channels, pixels in itertools.product(sizes_around(name), repeat=2):
            array = noise((2, channels, pixels, 3), channels * 1000 + pixels)
            last = channels_last_strides(array.shape)
            copied(array, None, last)
            copied(array, last, None)
            row_stride = channels_last_strides(array.shape, channels + 3)
            copied(array, None, row_stride)
            copied(array, row_stride, None)


@pytest.mark.parametrize("name", ISAS)
def test_large_transposition(name):
    with isa(name):
        copied(noise((1031, 517)), view=lambda value: value.permute((1, 0)))


@pytest.mark.parametrize("name", ISAS)
@pytest.mark.parametrize("groups", [2, 3, 4, 7])
def test_channel_shuffle(name, groups):
    with isa(name):
        array = noise((2, 50, groups, 29))
        copied(array, view=lambda value: value.permute((0, 1, 3, 2)))


@pytest.mark.parametrize("dtype", DTYPES)
def test_views(dtype):
    array = noise((6, 10, 12), dtype=dtype)
    for view, expected in (
        (lambda v: v.narrow(1, 2, 5), array[:, 2:7]),
        (lambda v: v.narrow(2, 1, 4, 3), array[:, :, 1:12:3]),
        (lambda v: v.select(0, 4), array[4]),
        (lambda v: v.select(2, 0), array[:, :, 0]),
        (lambda v: v.narrow(0, 5, 6, -1), array[::-1]),
        (lambda v: v.narrow(2, 11, 12, -1), array[:, :, ::-1]),
        (lambda v: v.narrow(0, 0, 0), array[:0]),
        (lambda v: v.select(1, 3).reshape((6, 1, 12)).expand((2, 6, 9, 12)),
         np.broadcast_to(array[:, 3:4], (2, 6, 9, 12))),
        (lambda v: v.select(2, 3).reshape((6, 10, 1)).expand((6, 10, 700)),
         np.broadcast_to(array[:, :, 3:4], (6, 10, 700))),
    ):  # fmt: skip
        np.testing.assert_array_equal(copied(array, view=view), expected)


def test_into_a_part_of_a_larger_tensor():
    bench = Workbench()
    whole = bench.output((2, 40, 5, 6), "channels_last")
    bench.view(whole)[...] = 0
    parts = [noise((2, 40 // 2, 5, 6), seed) for seed in (1, 2)]
    steps = [
        CopyStep(bench.put(part), whole.narrow(1, 20 * number, 20))
        for number, part in enumerate(parts)
    ]
    bench.run(*steps, shards=2)
    np.testing.assert_array_equal(bench.view(whole), np.concatenate(parts, 1))


def test_rank_8():
    array = noise((2, 3, 2, 3, 2, 3, 2, 3))
    copied(array, view=lambda value: value.permute((7, 5, 3, 1, 6, 4, 2, 0)))


def test_too_many_loops_are_refused():
    bench = Workbench()
    source = bench.put(np.zeros((2,) * 18, np.float32))
    target = bench.output((2,) * 18)
    with pytest.raises(ValueError, match="16 loops"):
        CopyStep(source.permute(range(17, -1, -1)), target)


def test_merged_loops():
    shape = (2, 3, 1, 4)
    strides = contiguous_strides(shape)
    assert strided_loops(shape, (strides, strides)) == [(24, (1, 1))]
    last = channels_last_strides(shape)
    assert strided_loops(shape, (strides, last), order=last) == [
        (2, (12, 12)),
        (4, (1, 3)),
        (3, (4, 1)),
    ]
    assert strided_loops((2, 3, 4), ((12, 4, 1),), groups=(0, 1, 1)) == [(2, (12,)), (12, (1,))]
    assert strided_loops((1, 1), ((5, 3), (1, 1))) == [(1, (0, 0))]


@pytest.mark.parametrize("dtype", [np.bool_, np.int16, np.float32, np.float64, np.int64])
def test_fill(dtype):
    bench = Workbench()
    whole = bench.output((3, 70, 90), dtype=dtype)
    inner = whole.narrow(1, 5, 60).narrow(2, 1, 88)
    expected = np.zeros(whole.shape, dtype)
    for parts, number in itertools.product((1, 2, 3), (1, 0)):
        bench.view(whole)[...] = expected[...] = 7
        expected[:, 5:65, 1:89] = number
        bench.run(FillStep(inner, number), shards=parts)
        np.testing.assert_array_equal(bench.view(whole), expected)


def test_fill_with_infinity():
    bench = Workbench()
    target = bench.output((5,))
    bench.run(FillStep(target, -np.inf))
    assert (bench.view(target) == -np.inf).all()


def test_block_kinds():
    shape = (2, 64, 30, 40)
    planes, last = contiguous_strides(shape), channels_last_strides(shape)
    assert copy_loops(shape, planes, planes, 4).kind == "runs"
    assert copy_loops(shape, planes, last, 4).kind == "transposed"
    assert copy_loops(shape, last, planes, 4).kind == "transposed"
    wide = channels_last_strides(shape, 100)
    assert copy_loops(shape, wide, last, 4).kind == "runs"
    assert copy_loops((100,), (2,), (1,), 4).kind == "items"
    assert copy_loops((100,), (0,), (1,), 4).kind == "items"


@pytest.mark.parametrize(
    "shape", [(1, 3, 500, 700), (1, 2048, 7, 7), (4, 64, 56, 56), (5, 1, 1, 9)]
)
def test_blocks_cover_the_tensor_and_stay_small(shape):
    for strides in (contiguous_strides(shape), channels_last_strides(shape)):
        loops = copy_loops(shape, contiguous_strides(shape), strides, 4)
        assert 4 * loops.step_a * loops.step_b <= 2 * 16384
        blocks = np.prod([loop.extent for loop in loops.around])
        outer = np.prod([loop.extent for loop in loops.around[:-2]])
        assert outer * loops.a.extent * loops.b.extent == np.prod(shape)
        assert blocks * loops.step_a * loops.step_b >= np.prod(shape)
