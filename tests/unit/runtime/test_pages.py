"""Memory of packed weights: its alignment, and that moving it to large pages changes no result."""

from __future__ import annotations

import mmap
import os
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from kuiper._runtime import pages as page_module
from kuiper._runtime import weights as _weights
from kuiper._runtime.pages import LARGE_PAGE_BYTES, LINE_BYTES, PagePool, Pages, aligned_empty
from kuiper._runtime.weights import Finalizer, WeightCache

from ...support.workgraph import model_of

linux = pytest.mark.skipif(
    not hasattr(mmap, "MADV_HUGEPAGE"), reason="large pages are asked for on Linux alone"
)


@pytest.fixture
def policy(tmp_path, monkeypatch):
    """Pretend that the system allows large pages, or not."""

    def choose(text):
        path = tmp_path / "enabled"
        path.write_text(text)
        monkeypatch.setattr(page_module, "_POLICY", str(path))

    choose("always [madvise] never\n")
    return choose


def address(array):
    return array.__array_interface__["data"][0]


@pytest.mark.parametrize("n_bytes", [1, 64, 1000, 2 * LARGE_PAGE_BYTES - 1])
def test_small_memory_is_aligned_to_a_cache_line(n_bytes):
    pages = Pages(n_bytes)
    assert pages.array.nbytes == n_bytes
    assert address(pages.array) % LINE_BYTES == 0
    assert not pages.enlarge(n_bytes)


@linux
def test_large_memory_is_aligned_to_a_page_and_keeps_its_contents(policy):
    n_bytes = 3 * LARGE_PAGE_BYTES + 12345
    pages = Pages(n_bytes)
    assert address(pages.array) % LARGE_PAGE_BYTES == 0
    content = np.random.default_rng(0).integers(0, 256, n_bytes, np.uint8)
    pages.array[:] = content
    moved = [pages.enlarge(n_bytes) for _ in range(5)]
    assert moved == [True, True, True, False, False]
    assert np.array_equal(pages.array, content)


@linux
def test_nothing_beyond_the_end_is_touched(policy):
    pages = Pages(4 * LARGE_PAGE_BYTES)
    pages.array[:LARGE_PAGE_BYTES] = 1
    assert not pages.enlarge(LARGE_PAGE_BYTES - 1)
    assert pages.enlarge(2 * LARGE_PAGE_BYTES - 1)
    assert not pages.enlarge(2 * LARGE_PAGE_BYTES - 1)
    assert pages.enlarge(2 * LARGE_PAGE_BYTES)


@linux
def test_the_policy_of_the_system_is_respected(policy):
    policy("always madvise [never]\n")
    assert not Pages(4 * LARGE_PAGE_BYTES).enlarge(4 * LARGE_PAGE_BYTES)
    policy("[always] madvise never\n")
    assert Pages(4 * LARGE_PAGE_BYTES).enlarge(4 * LARGE_PAGE_BYTES)
    os.remove(page_module._POLICY)
    assert not Pages(4 * LARGE_PAGE_BYTES).enlarge(4 * LARGE_PAGE_BYTES)


@linux
def test_a_forked_process_leaves_shared_pages_alone(policy, monkeypatch):
    pages = Pages(2 * LARGE_PAGE_BYTES)
    parent = os.getpid()
    monkeypatch.setattr(page_module.os, "getpid", lambda: parent + 1)
    assert not pages.enlarge(2 * LARGE_PAGE_BYTES)
    monkeypatch.undo()


def test_too_large_a_size_is_a_memory_error():
    with pytest.raises(MemoryError):
        Pages(1 << 62)


def test_packed_weights_are_adjacent():
    weights = WeightCache(3 * LARGE_PAGE_BYTES)
    first = weights.get("a", lambda: aligned_empty((5, 7), weights.pages))
    second = weights.get("b", lambda: aligned_empty((LARGE_PAGE_BYTES // 4,), weights.pages))
    assert address(second) - address(first) == 192  # 140 bytes rounded up to a cache line
    # Weights that do not fit begin another block.
    third = weights.get("c", lambda: aligned_empty((LARGE_PAGE_BYTES // 2,), weights.pages))
    assert not 0 < address(third) - address(second) <= 3 * LARGE_PAGE_BYTES
    for number, array in enumerate((first, second, third)):
        array[:] = number
    assert all((array == number).all() for number, array in enumerate((first, second, third)))


@linux
@pytest.mark.parametrize("by_plan", [True, False])
def test_a_finalized_model_gives_the_same_bits(policy, by_plan):
    random = np.random.default_rng(3)
    x = random.standard_normal((1, 1024), np.float32)
    weight = random.standard_normal((1100, 1024), np.float32)  # 4.5 MB: two large pages
    model = model_of(
        "nn.Linear",
        [x],
        {"bias": False, "in_features": 1024, "out_features": 1100},
        {"weight": weight},
    )
    first = model(x)
    assert model._plans.weights.finalizer.is_pending
    calls = 0
    if by_plan:
        model.plan(x.shape)
    while model._plans.weights.finalizer.is_pending and calls < 10_000:
        model._plans.weights.finalizer._due = 0.0  # as if enough time had passed
        assert np.array_equal(model(x), first)
        calls += 1
    assert calls <= (0 if by_plan else 3)  # two pages, and one call that finds none left
    assert np.array_equal(model(x), first)
    np.testing.assert_allclose(first, x @ weight.T, rtol=1e-4, atol=1e-4)


@linux
def test_a_run_does_not_wait_while_another_thread_plans(policy):
    """Planning holds the lock; a model with work for the finalizer runs nevertheless."""
    x = np.ones((1, 1024), np.float32)
    weight = np.ones((1100, 1024), np.float32)
    model = model_of(
        "nn.Linear",
        [x],
        {"bias": False, "in_features": 1024, "out_features": 1100},
        {"weight": weight},
    )
    model(x)
    assert model._plans.weights.finalizer.is_pending
    held, done = threading.Event(), threading.Event()

    def hold():
        with model._plans._lock:
            held.set()
            done.wait(30)

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait(30)
    with ThreadPoolExecutor(1) as pool:
        try:
            y = pool.submit(model, x).result(timeout=20)
        finally:
            done.set()
    holder.join()
    assert (y == 1024).all()
    assert model._plans.weights.finalizer.is_pending


class Clock:
    """A clock that a test advances."""

    def __init__(self, monkeypatch):
        self.now = 100.0
        monkeypatch.setattr(_weights.time, "perf_counter", lambda: self.now)

    def passes(self, seconds):
        self.now += seconds
        return True


def moving(monkeypatch, seconds):
    """Let each move to a large page take `seconds`; return the clock and a log of the moves."""
    clock, moved = Clock(monkeypatch), []

    def enlarge(self, end):
        moved.append(end)
        return clock.passes(seconds)

    monkeypatch.setattr(Pages, "enlarge", enlarge)
    return clock, moved


@linux
def test_finalizing_takes_a_tenth_of_the_time(policy, monkeypatch):
    weights = WeightCache(4 * LARGE_PAGE_BYTES)
    weights.get("a", lambda: aligned_empty((LARGE_PAGE_BYTES,), weights.pages))
    clock, moved = moving(monkeypatch, 0.5)
    for now, count in ((100.0, 1), (104.8, 1), (105.0, 2), (109.8, 2), (200.0, 3), (201.0, 3)):
        clock.now = now
        weights.finalizer.finalize()
        assert len(moved) == count, now
    assert moved[0] == 4 * LARGE_PAGE_BYTES


@linux
def test_short_slices_follow_each_other(policy, monkeypatch):
    """As many as the time since the last ones allows; an idle model saves up a limited time."""
    weights = WeightCache(4 * LARGE_PAGE_BYTES)
    weights.get("a", lambda: aligned_empty((LARGE_PAGE_BYTES,), weights.pages))
    clock, moved = moving(monkeypatch, 0.001)
    for passing, most in ((0.0, 13), (0.0, 1), (0.05, 7), (1000.0, 13)):
        clock.passes(passing)
        moved.clear()
        weights.finalizer.finalize()
        assert most - 3 < len(moved) <= most


class Filters:
    """Deferred filters."""

    def __init__(self, clock, pieces, log, fails=False):
        self.clock, self.pieces, self.log, self.fails = clock, pieces, log, fails

    def advance(self, n_threads):
        if self.fails:
            raise MemoryError
        self.pieces -= 1
        self.log.append((self, n_threads))
        self.clock.passes(0.5)
        return self.pieces > 0


def test_filters_are_transformed_before_pages_are_moved(monkeypatch):
    clock, log = Clock(monkeypatch), []
    finalizer = Finalizer(PagePool(1 << 20))
    assert not finalizer.is_pending
    first, hopeless, last = (Filters(clock, 2, log, fails) for fails in (False, True, False))
    for filters in (first, hopeless, last):
        assert finalizer.defer(filters) is filters
    assert finalizer.is_pending
    counts = []
    for _ in range(14):  # every half second; a slice takes as long, a third of the elapsed time
        finalizer.finalize(3)
        counts.append(len(log))
        clock.passes(0.5)
    assert log == [(first, 3), (first, 3), (last, 3), (last, 3)]
    assert [counts.count(n) for n in (1, 2, 3)] == [2, 2, 2]
    assert not finalizer.is_pending


def test_finalize_all_at_once(monkeypatch):
    clock, log = Clock(monkeypatch), []
    finalizer = Finalizer(PagePool(1 << 20))
    filters = [finalizer.defer(Filters(clock, 2, log)) for _ in range(3)]
    finalizer.finalize(2, wholly=True)
    assert log == [(one, 2) for one in filters for _ in range(2)]
    assert not finalizer.is_pending
