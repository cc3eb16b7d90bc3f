"""Descriptors of packed weights: sizes, keys, and views of their memory."""

from __future__ import annotations

import numpy as np
import pytest

from kuiper._kernels.micro import dispatch
from kuiper._kernels.micro.packed import (
    DepthwiseBlocks,
    FewColumns,
    GroupedBlocks,
    Layout,
    PackedMatrix,
    QuantizedDepthwiseBlocks,
    QuantizedDepthwiseQuads,
    QuantizedPanels,
    RunPanels,
    panel_offsets,
    terms_by_tap,
)

from ...support.workbench import ISAS, isa, noise


def bytes_of(shape) -> np.ndarray:
    return np.random.default_rng(5).integers(-127, 128, shape).astype(np.int8)


class Pairs(PackedMatrix):
    """bfloat16 as an instruction that sums pairs reads it."""

    dtype = np.dtype(np.uint16)
    layout = Layout.PAIRS
    __slots__ = ()


class Quads(PackedMatrix):
    """int8 with a scale per column, as an instruction that sums quads reads it."""

    dtype = np.dtype(np.int8)
    layout = Layout.QUADS
    head_rows = 2
    __slots__ = ()


@pytest.mark.parametrize("name", ISAS)
def test_panels_fit_the_variant(name):
    with isa(name):
        _, nr = dispatch.tile()
        matrix = PackedMatrix(2 * nr + 1, 9, groups=4)
        assert (matrix.panels, matrix.nr, matrix.depth) == (12, nr, 9)
        assert matrix.shape == (12, 10, nr)
        assert matrix.n_bytes == 12 * matrix.panel_bytes == 4 * 12 * 10 * nr
        assert DepthwiseBlocks(2 * dispatch.lanes() + 1, 25).shape == (3, 26, dispatch.lanes())


@pytest.mark.parametrize("depth", [1, 4, 6, 7])
def test_every_term_and_scale_has_an_address(depth):
    for kind, heads, together in ((PackedMatrix, 1, 1), (Pairs, 1, 2), (Quads, 2, 4)):
        matrix = kind(33, depth, nr=16)
        rows = -(-depth // together)
        assert matrix.panel_bytes == heads * 4 * 16 + rows * 16 * together * matrix.dtype.itemsize
        memory = np.zeros(matrix.shape, matrix.dtype)
        assert memory.nbytes == matrix.n_bytes
        terms, head = matrix.terms(memory), matrix.heads(memory)
        assert terms.shape == (3, rows, 16, together)
        assert head.shape == (3, heads, 16)
        assert head.dtype == np.float32
        # Both are views of the memory; together they cover it.
        terms[...] = 1
        head[...] = np.float32(1.5)
        assert memory.all() == (matrix.dtype == np.float32)
        assert np.count_nonzero(memory) == terms.size + np.count_nonzero(
            head.reshape(-1).view(matrix.dtype)
        )


def test_keys_distinguish_types_extents_and_parts():
    keys = [
        PackedMatrix(8, 9).key, PackedMatrix(8, 9, part="b").key, PackedMatrix(8, 10).key,
        PackedMatrix(8, 9, groups=2).key, PackedMatrix(8, 9, nr=4).key, RunPanels(8, 9).key,
        Pairs(8, 9).key,
    ]  # fmt: skip
    assert len(set(keys)) == len(keys)
    assert PackedMatrix(8, 9).key == PackedMatrix(8, 9).key


def test_matrices_are_adjacent():
    matrices = [PackedMatrix(20, depth, nr=16) for depth in (3, 0, 5)]
    assert panel_offsets(matrices) == [0, 128, 160, 352]


def test_depthwise_and_grouped_blocks():
    lanes = dispatch.lanes()
    for kind in (DepthwiseBlocks, GroupedBlocks):
        for channels in (1, lanes, lanes + 1):
            weight, bias = noise((channels, 9)), noise((channels,), 1)
            matrix = kind(channels, 9)
            memory = np.full(matrix.shape, np.nan, np.float32)
            matrix.fill(memory, weight, bias)
            flat = memory.transpose(0, 2, 1).reshape(-1, 10)
            np.testing.assert_array_equal(flat[:channels], np.column_stack([bias, weight]))
            assert not flat[channels:].any()
            matrix.fill(memory, weight, None)
            assert not memory[:, 0].any()


def test_few_columns():
    lanes = dispatch.lanes()
    for columns, channels in ((1, 1), (3, lanes), (2, lanes + 1)):
        weight, bias = noise((columns, channels, 2, 3)), noise((columns,), 1)
        matrix = FewColumns(columns, 6, channels)
        memory = np.full(matrix.shape, np.nan, np.float32)
        matrix.fill(memory, weight, bias)
        np.testing.assert_array_equal(memory[0, 0, :columns], bias[:lanes])
        assert not memory[0, 0, columns:].any()
        vectors = -(-channels // lanes)
        terms = memory[0, 1:].reshape(6, vectors, columns, lanes).swapaxes(1, 2)
        terms = terms.reshape(2, 3, columns, -1)
        np.testing.assert_array_equal(terms[..., :channels], weight.transpose(2, 3, 0, 1))
        assert not terms[..., channels:].any()
        matrix.fill(memory, weight, None)
        assert not memory[0, 0].any()


@pytest.mark.parametrize("depth", [1, 4, 7])
def test_quantized_panels(depth):
    weight = noise((37, depth), dtype=np.int8) - np.int8(50)
    scale, bias = np.abs(noise((37,), 1)), noise((37,), 2)
    matrix = QuantizedPanels(37, depth)
    memory = np.full(matrix.shape, -1, np.int8)
    matrix.fill(memory, weight, scale, 128, bias)
    heads = matrix.heads(memory).transpose(1, 0, 2).reshape(3, -1)
    np.testing.assert_array_equal(heads[:, :37], [bias, scale, heads[2, :37]])
    starts = np.ascontiguousarray(heads[2]).view(np.int32)
    np.testing.assert_array_equal(starts[:37], -128 * weight.sum(1, dtype=np.int64))
    assert not heads[:, 37:].any()
    terms = matrix.terms(memory).transpose(0, 2, 1, 3).reshape(-1, matrix.depth)
    np.testing.assert_array_equal(terms[:37, :depth], weight)
    assert not terms[37:].any()
    assert not terms[:, depth:].any()
    matrix.fill(memory, weight, scale, 128, None)
    assert not matrix.heads(memory)[:, 0].any()


def test_groups_of_quantized_panels():
    """Each group starts a panel; its terms are tap by tap, in whole quads."""
    weight = noise((74, 5, 1, 2), dtype=np.int8) - np.int8(50)
    scale, bias = np.abs(noise((74,), 1)), noise((74,), 2)
    by_tap = terms_by_tap(weight)
    assert by_tap.shape == (74, 16)
    for tap in range(2):
        np.testing.assert_array_equal(by_tap[:, 8 * tap : 8 * tap + 5], weight[:, :, 0, tap])
        assert not by_tap[:, 8 * tap + 5 : 8 * tap + 8].any()
    matrix = QuantizedPanels(37, 16, groups=2)
    memory = np.full(matrix.shape, -1, np.int8)
    matrix.fill(memory, by_tap, scale, 3, bias, groups=2)
    half = matrix.panels // 2
    for group in range(2):
        alone = QuantizedPanels(37, 16)
        expected = np.full(alone.shape, -1, np.int8)
        one = slice(37 * group, 37 * group + 37)
        alone.fill(expected, by_tap[one], scale[one], 3, bias[one])
        np.testing.assert_array_equal(memory[half * group : half * (group + 1)], expected)


def test_quantized_depthwise_quads():
    weight = bytes_of((70, 3))
    scale, bias = np.abs(noise((70,), 1)), noise((70,), 2)
    blocks = QuantizedDepthwiseQuads(70, [0, 2, 2, 2, 1, 1, 1, 1])
    memory = np.full(blocks.shape, 99, np.int8)
    blocks.fill(memory, weight, scale, 7, bias)
    heads = blocks.heads(memory).swapaxes(0, 1).reshape(3, -1)
    np.testing.assert_array_equal(heads[:2, :70], [bias, scale])
    np.testing.assert_array_equal(heads.view(np.int32)[2, :70], -7 * weight.sum(1, np.int32))
    assert not heads[:, 70:].any()
    terms = blocks.terms(memory).reshape(2, 2, 4, 4, 4, 4)
    for channel in range(128):
        block, part = divmod(channel, 64)
        lanes = terms[block, :, part % 16 // 4, part // 16, part % 4]
        expected = [0] * 3 if channel >= 70 else weight[channel]
        a, b, c = expected
        np.testing.assert_array_equal(lanes, [[a, c, 0, 0], [b, 0, 0, 0]])
    blocks.fill(memory, weight, scale, 7, None)
    assert not blocks.heads(memory)[:, 0].any()


def test_quantized_depthwise_blocks():
    weight = noise((21, 9), dtype=np.int8) - np.int8(50)
    scale, bias = np.abs(noise((21,), 1)), noise((21,), 2)
    blocks = QuantizedDepthwiseBlocks(21, 9)
    memory = np.full(blocks.shape, np.nan, np.float32)
    blocks.fill(memory, weight, scale, 7, bias)
    rows = memory.swapaxes(0, 1).reshape(12, -1)
    np.testing.assert_array_equal(rows[:2, :21], [bias, scale])
    np.testing.assert_array_equal(rows[2, :21], -7 * weight.sum(1, np.int32))
    np.testing.assert_array_equal(rows[3:, :21], weight.T)
    assert not rows[:, 21:].any()
    blocks.fill(memory, weight, scale, 7, None)
    assert not memory[:, 0].any()
