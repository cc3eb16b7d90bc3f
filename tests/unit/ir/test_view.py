"""Tensor views, against numpy's views: the same elements at the same addresses."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from kuiper.ir.view import (
    Buffer,
    BufferKind,
    TensorSpec,
    TensorView,
    channels_last_strides,
    contiguous_strides,
)

SHAPES = [
    (),
    (1,),
    (6,),
    (4, 6),
    (1, 6),
    (2, 3, 4),
    (3, 1, 5),
    (2, 3, 4, 5),
    (1, 8, 2, 3),
    (2, 6, 1, 1),
    (2, 1, 3, 1, 4),
]


def addresses_of(value: TensorView) -> np.ndarray:
    """Return the offset of every element in the buffer, computed from the definition."""
    addresses = np.full(value.shape, value.offset, np.int64)
    for axis, stride in enumerate(value.strides):
        along = np.arange(value.shape[axis]) * stride
        addresses += along.reshape((-1,) + (1,) * (value.rank - axis - 1))
    return addresses


def pair(shape, order=None, row_stride=0):
    """Return a view and the numpy array of its addresses, stored with the axes in `order`.

    The array is a view of ``arange``, so its element at an index *is* the address.
    """
    order = tuple(range(len(shape))) if order is None else order
    stored = [shape[axis] for axis in order]
    if row_stride:
        stored[-1] += row_stride
    memory = np.arange(math.prod(stored) if stored else 1).reshape(stored)
    if row_stride:
        memory = memory[..., : stored[-1] - row_stride]
    array = memory.transpose(np.argsort(order)) if shape else memory
    strides = [stride // memory.itemsize for stride in array.strides]
    value = TensorView(Buffer(0, memory.size * 4, BufferKind.ARENA), array.shape, strides)
    return value, array


def layouts(shape):
    """Yield pairs in C order, with padded rows, and with the axes stored in other orders."""
    yield pair(shape)
    if shape:
        yield pair(shape, row_stride=3)
    if len(shape) == 4:
        yield pair(shape, (0, 2, 3, 1))
        yield pair(shape, (0, 2, 3, 1), row_stride=5)
    for order in itertools.islice(itertools.permutations(range(len(shape))), 1, 6):
        yield pair(shape, order)


def assert_same(value: TensorView, array: np.ndarray) -> None:
    assert value.shape == array.shape
    assert value.rank == array.ndim
    assert value.size == array.size
    np.testing.assert_array_equal(addresses_of(value), array)
    if array.size > 1:
        # The stride of an extent of one has no meaning.
        strides = zip(value.shape, value.strides, array.strides, strict=True)
        size = array.itemsize
        assert all(mine * size == theirs for extent, mine, theirs in strides if extent > 1)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_pairs_are_consistent(shape):
    for value, array in layouts(shape):
        assert_same(value, array)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_permute(shape):
    for value, array in layouts(shape):
        for dims in itertools.islice(itertools.permutations(range(len(shape))), 24):
            assert_same(value.permute(dims), array.transpose(dims))


@pytest.mark.parametrize("shape", [s for s in SHAPES if s], ids=str)
def test_narrow_and_select(shape):
    for value, array in layouts(shape):
        for axis, extent in enumerate(shape):
            before = (slice(None),) * axis
            for start, stop, step in ((0, extent, 1), (extent // 2, extent, 1), (0, extent, 2)):
                expected = array[(*before, slice(start, stop, step))]
                view = value.narrow(axis, start, expected.shape[axis], step)
                assert_same(view, expected)
            assert_same(value.narrow(axis, extent - 1, extent, -1), np.flip(array, axis))
            for index in (0, extent - 1):
                assert_same(value.select(axis, index), array[(*before, index)])


@pytest.mark.parametrize(
    ("shape", "target"),
    [
        ((), (3,)),
        ((1,), (4,)),
        ((3,), (2, 3)),
        ((3, 1), (3, 5)),
        ((1, 1), (1, 1)),
        ((2, 1, 4), (5, 2, 3, 4)),
        ((1, 6, 1, 1), (2, 6, 3, 4)),
        ((1, 3), (0, 3)),
    ],
    ids=str,
)
def test_expand(shape, target):
    for value, array in layouts(shape):
        view = value.expand(target)
        expected = np.broadcast_to(array, target)
        assert view.shape == target
        np.testing.assert_array_equal(addresses_of(view), expected)


def targets_of(size: int, generator) -> list[tuple[int, ...]]:
    """Return some shapes of `size` elements, with extents of one inserted."""
    found = []
    for _ in range(12):
        rest, extents = size, []
        while rest > 1:
            divisors = [d for d in range(2, rest + 1) if rest % d == 0]
            extents.append(int(generator.choice(divisors)))
            rest //= extents[-1]
        for _ in range(generator.integers(0, 3)):
            extents.insert(int(generator.integers(0, len(extents) + 1)), 1)
        found.append(tuple(extents))
    return found


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_reshape_is_a_view_wherever_numpy_makes_one(shape):
    generator = np.random.default_rng(len(shape))
    views = copies = 0
    for value, array in layouts(shape):
        for target in targets_of(array.size, generator):
            expected = array.reshape(target)
            view = value.reshape(target)
            if np.shares_memory(expected, array):
                views += 1
                assert view is not None, f"{value} as {target}"
                assert_same(view, expected)
            else:
                copies += 1
                assert view is None, f"{value} as {target}"
    assert views > 0
    assert copies > 0 or sum(n > 1 for n in shape) < 2


def test_reshape_of_expanded_axes():
    value = (
        TensorView(Buffer(0, 24, BufferKind.ARENA), (2, 3), (3, 1))
        .reshape((2, 1, 1, 3))
        .expand((2, 4, 5, 3))
    )
    view = value.reshape((2, 20, 3))
    assert view.strides == (3, 0, 1)
    assert value.reshape((2, 10, 2, 3)).strides == (3, 0, 0, 1)
    assert value.reshape((40, 3)) is None


@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 2, 5), (2, 3, 0, 4), (2, 3, 4, 0)], ids=str)
def test_without_elements(shape):
    value = TensorView(Buffer(0, 0, BufferKind.ARENA), shape, contiguous_strides(shape))
    assert value.size == 0
    assert value.is_contiguous
    assert value.reshape((7, 0)).shape == (7, 0)
    assert value.permute(range(len(shape) - 1, -1, -1)).shape == shape[::-1]
    if len(shape) == 4:
        # Without elements any strides are valid.
        for dims in itertools.permutations(range(4)):
            view = value.permute(dims)
            assert view.is_contiguous
            assert view.is_channels_last
            assert view.row_stride == view.shape[1]


def chains():
    """Yield views made by random chains of operations, with numpy's."""
    generator = np.random.default_rng(5)
    for number in range(400):
        shape = tuple(int(n) for n in generator.integers(1, 6, generator.integers(1, 5)))
        order = tuple(int(d) for d in generator.permutation(len(shape)))
        value, array = pair(shape, order, row_stride=int(generator.integers(0, 3)))
        for _ in range(6):
            kind = generator.integers(0, 5)
            if array.ndim == 0 or array.size == 0:
                break
            axis = int(generator.integers(0, array.ndim))
            extent = array.shape[axis]
            before = (slice(None),) * axis
            if kind == 0:
                dims = [int(d) for d in generator.permutation(array.ndim)]
                value, array = value.permute(dims), array.transpose(dims)
            elif kind == 1:
                start = int(generator.integers(0, extent))
                step = int(generator.integers(1, 3))
                part = array[(*before, slice(start, extent, step))]
                value, array = value.narrow(axis, start, part.shape[axis], step), part
            elif kind == 2 and array.ndim > 1:
                index = int(generator.integers(0, extent))
                value, array = value.select(axis, index), array[(*before, index)]
            elif kind == 3 and array.ndim < 5:
                target = (int(generator.integers(1, 3)), *array.shape)
                value, array = value.expand(target), np.broadcast_to(array, target)
            else:
                target = targets_of(array.size, generator)[0]
                view = array.reshape(target)
                if np.shares_memory(view, array):
                    value, array = value.reshape(target), view
        yield number, value, array


def test_chains_of_views():
    ranks = set()
    for _, value, array in chains():
        np.testing.assert_array_equal(addresses_of(value), array)
        ranks.add(value.rank)
    assert len(ranks) >= 4


def channels_last_row_stride(array: np.ndarray) -> int | None:
    """Return the row stride of addresses (n, c, h, w) in channels-last layout, else None."""
    c = array.shape[1]
    pixels = array.transpose(0, 2, 3, 1).reshape(-1, c)
    first = pixels[:, 0]
    row_stride = int(first[1] - first[0]) if len(first) > 1 else c
    lies = (pixels == first[:, None] + np.arange(c)).all()
    return row_stride if lies and (np.diff(first) == row_stride).all() else None


@pytest.mark.parametrize("shape", list(itertools.product((1, 2), (1, 3), (1, 2), (1, 4))), ids=str)
def test_channels_last(shape):
    seen = set()
    for value, array in layouts(shape):
        for dims in itertools.permutations(range(4)):
            view, addresses = value.permute(dims), array.transpose(dims)
            row_stride = channels_last_row_stride(addresses)
            assert view.is_channels_last == (row_stride is not None), view
            if row_stride is not None:
                assert view.row_stride == row_stride
            flat = addresses.reshape(-1)
            assert view.is_contiguous == bool((np.diff(flat) == 1).all())
            seen.add((view.is_channels_last, view.is_contiguous))
    assert (True, True) in seen or min(shape[1:]) > 1 or len(seen) > 1


def test_a_slice_of_channels_keeps_the_row_stride():
    whole = TensorView(
        Buffer(0, 0, BufferKind.ARENA), (2, 10, 3, 4), channels_last_strides((2, 10, 3, 4))
    )
    part = whole.narrow(1, 4, 5)
    assert part.is_channels_last
    assert not part.is_contiguous
    assert (part.row_stride, part.offset) == (10, 4)


def test_rows_of_images_are_not_channels_last():
    """A gap between rows cannot be expressed by a stride between pixels."""
    whole = TensorView(
        Buffer(0, 0, BufferKind.ARENA), (1, 8, 6, 6), channels_last_strides((1, 8, 6, 6))
    )
    assert whole.narrow(2, 1, 3).is_channels_last
    assert not whole.narrow(3, 1, 3).is_channels_last
    assert not whole.narrow(1, 0, 8, 1).permute((0, 1, 3, 2)).is_channels_last


def test_strides():
    assert contiguous_strides(()) == ()
    assert contiguous_strides((2, 3, 4)) == (12, 4, 1)
    assert channels_last_strides((2, 3, 4, 5)) == (60, 1, 15, 3)
    assert channels_last_strides((2, 3, 4, 5), 8) == (160, 1, 40, 8)
    for shape in [(2, 3, 4, 5), (1, 1, 7, 2), (3, 5, 1, 1)]:
        array = np.empty(shape).transpose(0, 2, 3, 1).copy().transpose(0, 3, 1, 2)
        mine = TensorView(Buffer(0, 0, BufferKind.ARENA), shape, channels_last_strides(shape))
        theirs = TensorView(Buffer(0, 0, BufferKind.ARENA), shape, [s // 8 for s in array.strides])
        assert mine.same_layout(theirs)


def test_same_layout_ignores_extents_of_one():
    buffer = Buffer(0, 0, BufferKind.ARENA)
    a = TensorView(buffer, (1, 3, 1), (77, 1, 5))
    assert a.same_layout(TensorView(buffer, (1, 3, 1), (3, 1, 1)))
    assert not a.same_layout(TensorView(buffer, (1, 3, 1), (3, 2, 1)))
    assert not a.same_layout(TensorView(buffer, (3, 1), (1, 1)))


def test_bytes_follow_the_dtype():
    value = TensorView(Buffer(0, 0, BufferKind.ARENA), (4, 3), (3, 1), 5, np.float64)
    assert (value.offset_bytes, value.n_bytes, value.slot) == (40, 96, 0)
    assert value.spec == TensorSpec((4, 3), np.float64)
    assert value.spec != TensorSpec((4, 3), np.float32)
    assert value.narrow(0, 1, 2).dtype == np.float64
