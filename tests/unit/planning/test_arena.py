"""The arena: buffers with overlapping lifetimes share no bytes, and little memory is wasted."""

from __future__ import annotations

import time

import numpy as np
import pytest

from kuiper.ir.view import Buffer, BufferKind
from kuiper.planning import arena as arena_module
from kuiper.planning.arena import ALIGNMENT, arrange


def buffers_of(*lifetimes) -> list[Buffer]:
    """Return one buffer per (bytes, first step, last step)."""
    buffers = []
    for slot, (n_bytes, first, last) in enumerate(lifetimes):
        buffer = Buffer(slot, n_bytes, BufferKind.ARENA)
        buffer.first, buffer.last = first, last
        buffers.append(buffer)
    return buffers


def aligned(n_bytes: int) -> int:
    return -(-max(n_bytes, 1) // ALIGNMENT) * ALIGNMENT


def lower_bound(buffers) -> int:
    """Return the maximum number of bytes in use at one step, which no arena can undercut."""
    last = max((b.last for b in buffers), default=-1)
    return max(
        (
            sum(aligned(b.n_bytes) for b in buffers if b.first <= s <= b.last)
            for s in range(last + 1)
        ),
        default=0,
    )


def assert_sound(buffers, total: int) -> None:
    """Paint every buffer into the arena at each of its steps; no byte may be painted twice."""
    for buffer in buffers:
        assert buffer.offset % ALIGNMENT == 0
        assert 0 <= buffer.offset <= total
    for step in range(max((b.last for b in buffers), default=-1) + 1):
        owner = np.full(total, -1)
        for buffer in buffers:
            if buffer.first <= step <= buffer.last:
                owners = owner[buffer.offset : buffer.offset + buffer.n_bytes]
                assert len(owners) == buffer.n_bytes, "beyond the end of the arena"
                assert (owners == -1).all(), f"step {step}: {buffer.slot} lies on {owners.max()}"
                owners[:] = buffer.slot


def test_the_check_detects_an_overlap():
    a, b = buffers_of((100, 0, 2), (100, 2, 3))
    a.offset, b.offset = 0, 64
    with pytest.raises(AssertionError, match="step 2: 1 lies on 0"):
        assert_sound([a, b], 192)
    with pytest.raises(AssertionError, match="beyond the end"):
        assert_sound([a], 64)


def random_buffers(generator) -> list[Buffer]:
    lifetimes = []
    for _ in range(int(generator.integers(1, 40))):
        first = int(generator.integers(0, 30))
        length = int(generator.geometric(0.3)) if generator.random() < 0.9 else 30
        n_bytes = int(generator.choice([0, 4, 63, 64, 65, 400, 1000, 4096]))
        lifetimes.append((n_bytes, first, first + length - 1))
    return buffers_of(*lifetimes)


@pytest.mark.parametrize(("paired", "mean", "worst"), [(2000, 1.02, 1.35), (0, 1.2, 2.1)])
def test_random_lifetimes(monkeypatch, paired, mean, worst):
    monkeypatch.setattr(arena_module, "MAX_PAIRED", paired)
    generator = np.random.default_rng(1)
    ratios = []
    for _ in range(300):
        buffers = random_buffers(generator)
        total = arrange(buffers)
        assert_sound(buffers, total)
        bound = lower_bound(buffers)
        assert total >= bound
        ratios.append(total / bound)
    assert np.mean(ratios) < mean
    assert max(ratios) < worst


@pytest.mark.parametrize("guard", [0, 128])
def test_adjacent_free_ranges_are_merged(monkeypatch, guard):
    monkeypatch.setattr(arena_module, "MAX_PAIRED", 0)
    size = 64 + 2 * guard
    buffers = buffers_of(*((64, 0, last) for last in (1, 0, 0, 1)), (size + 64, 1, 1))
    assert arrange(buffers, guard) == 4 * size  # the last one takes the bytes of two others
    assert buffers[4].offset == size + guard
    # A free range at the end of the arena is extended.
    assert arrange(buffers_of((64, 0, 1), (64, 0, 0), (size + 64, 1, 1)), guard) == 3 * size


def test_a_chain_needs_two_buffers():
    """Each operator of a chain reads one tensor and writes the next."""
    for length in (50, 5000):
        buffers = buffers_of(*((1000, step, step + 1) for step in range(length)))
        assert arrange(buffers) == 2 * aligned(1000)


def test_thousands_of_buffers_take_linear_time():
    """Half of them are live at the same time; their sizes vary."""
    generator = np.random.default_rng(5)

    def seconds(count: int) -> float:
        firsts = generator.integers(0, count, count)
        lifetimes = [(first * 7 % 999, first, first + count) for first in firsts.tolist()]
        buffers = buffers_of(*lifetimes)
        start = time.process_time()
        arrange(buffers)
        return time.process_time() - start

    small, large = seconds(3_000), seconds(30_000)
    assert large < 40 * max(small, 0.02)


def test_small_buffers_fill_the_gap_of_a_dead_large_one():
    large, long, *small = buffers_of(
        (64 * 10, 0, 1), (64, 0, 9), (64 * 4, 2, 3), (64 * 6, 2, 3), (64 * 10, 4, 5)
    )
    assert arrange([large, long, *small]) == 64 * 11
    assert sorted(b.offset for b in small[:2]) in ([0, 64 * 4], [0, 64 * 6])


def test_the_tightest_gap_is_taken():
    # At step 2 only x and y are live, with four free cache lines below x and three between them.
    p, x, q, y, small = buffers_of(
        (64 * 4, 0, 1), (64 * 3, 0, 2), (64 * 3, 1, 1), (64 * 2, 1, 2), (64, 2, 2)
    )
    buffers = [p, x, q, y, small]
    assert arrange(buffers) == 64 * 12
    assert [b.offset // 64 for b in buffers] == [0, 4, 7, 10, 7]
    assert_sound(buffers, 64 * 12)


def test_the_result_is_deterministic_and_independent_of_the_order_of_buffers():
    generator = np.random.default_rng(3)
    for _ in range(20):
        buffers = random_buffers(generator)
        total = arrange(buffers)
        offsets = [b.offset for b in buffers]
        shuffled = [buffers[i] for i in generator.permutation(len(buffers))]
        assert arrange(shuffled) == total
        assert [b.offset for b in buffers] == offsets


def test_an_empty_arena():
    assert arrange([]) == 0


def test_a_buffer_that_no_step_uses_takes_no_memory():
    unused, used = buffers_of((10**9, -1, -1), (100, 0, 1))
    assert arrange([unused, used]) == aligned(100)


def test_empty_buffers_have_an_offset():
    buffers = buffers_of((0, 0, 1), (0, 0, 1), (64, 0, 1))
    total = arrange(buffers)
    assert_sound(buffers, total)
    assert total <= 64 * 3
