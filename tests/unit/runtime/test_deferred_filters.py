"""Large Winograd filters are transformed during the first runs, later once and for all.

Runs before and after give the same bits.
"""

from __future__ import annotations

import threading

import numpy as np
import pytest

import kuiper
from kuiper._runtime.weights import Finalizer
from kuiper.ops.product.algorithms.winograd import WinogradPanels, is_deferred
from kuiper.ops.product.filters import Filters

from ...support.algorithms import always_winograd
from ...support.workbench import ISAS, isa, noise
from ...support.workgraph import model_of

# Staged and blocked, with a stride of 2, and filters of three planes.
CASES = {
    "staged": ("nn.Conv2d", (1, 128, 9, 10), (264, 128, 3, 3), (1, 1)),
    "blocked": ("nn.Conv2d", (1, 256, 40, 41), (256, 256, 3, 3), (1, 1)),
    "strided": ("nn.Conv2d", (2, 128, 21, 18), (264, 128, 3, 3), (2, 2)),
    "volume": ("nn.Conv3d", (1, 64, 4, 9, 9), (168, 64, 3, 3, 3), (1, 1, 1)),
}
each_case = pytest.mark.parametrize("case", CASES)
each_isa = pytest.mark.parametrize("name", ISAS)


@pytest.fixture(autouse=True)
def variant(request):
    """Bind with the instruction set of the test's parameter."""
    with isa(request.getfixturevalue("name") if "name" in request.fixturenames else ISAS[-1]):
        yield


def model_and_input(case: str) -> tuple[kuiper.Model, np.ndarray]:
    type, shape, filters, stride = CASES[case]
    x = noise(shape)
    params = {
        "in_channels": filters[1], "out_channels": filters[0], "kernel_size": filters[2:],
        "stride": stride, "padding": (1,) * len(stride), "dilation": (1,) * len(stride),
        "groups": 1, "bias": True, "padding_mode": "zeros",
    }  # fmt: skip
    weights = {"weight": noise(filters, 1), "bias": noise(filters[:1], 2)}
    return model_of(type, [x], params, weights), x


@pytest.fixture(autouse=True)
def winograd_in_every_variant(monkeypatch):
    """Use Winograd in every variant, whatever the estimated cost."""
    always_winograd(monkeypatch, 4)


@pytest.fixture
def waits(monkeypatch):
    """Defer filters until the test finishes them."""
    real = Finalizer.finalize
    monkeypatch.setattr(Finalizer, "finalize", lambda *_, **__: None)
    return lambda: monkeypatch.setattr(Finalizer, "finalize", real)


@each_isa
@each_case
@pytest.mark.parametrize("threads", [1, 2])
def test_runs_give_the_same_bits_before_and_after(name, case, threads, waits):
    model, x = model_and_input(case)
    model.threads = threads
    first = model(x)
    assert len(model._plans.weights.finalizer._deferred) == 1
    np.testing.assert_array_equal(model(x), first)
    waits()
    model.plan(x.shape)
    assert not model._plans.weights.finalizer._deferred
    np.testing.assert_array_equal(model(x), first)
    settled, _ = model_and_input(case)
    settled.threads = 1
    settled.plan(x.shape)
    np.testing.assert_array_equal(settled(x), first)


@pytest.mark.skipif(len(ISAS) < 2, reason="has one instruction set")
def test_filters_are_transformed_for_the_instruction_set_of_their_plan():
    """Whatever instruction set is selected by then."""
    for planned, chosen in ((ISAS[0], ISAS[-1]), (ISAS[-1], ISAS[0])):
        model, x = model_and_input("staged")
        with isa(planned):
            expected = model(x)
        with isa(chosen):
            model._plans.weights.finalizer.finalize(2, wholly=True)
        with isa(planned):
            np.testing.assert_array_equal(model(x), expected)


@each_case
def test_a_model_finalizes_while_it_is_used(case):
    model, x = model_and_input(case)
    first = model(x)
    assert model._plans.weights.finalizer.is_pending
    calls = 0
    while model._plans.weights.finalizer.is_pending and calls < 1000:
        model._plans.weights.finalizer._due = 0.0  # as if enough time had passed
        np.testing.assert_array_equal(model(x), first)
        calls += 1
    assert calls < 1000
    assert not model._plans.weights.finalizer._deferred


def test_threads_run_while_filters_are_transformed():
    """A run uses one form of the filters from its beginning to its end."""
    for _ in range(10):
        model, x = model_and_input("staged")
        model.threads = 1
        expected = model(x)
        wrong = []

        def work(model=model, x=x, expected=expected, wrong=wrong):
            while model._plans.weights.finalizer._deferred:
                if not np.array_equal(model(x), expected):
                    wrong.append(1)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong


class Unreadable:
    """Filters whose reading a test can make fail."""

    def __init__(self, monkeypatch):
        self.error, self.reads = None, 0
        real = Filters.__getitem__

        def read(filters, rows):
            self.reads += 1
            if self.error is not None:
                raise self.error
            return real(filters, rows)

        monkeypatch.setattr(Filters, "__getitem__", read)


@pytest.mark.parametrize("case", ["staged", "blocked", "strided"])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError("gone"), MemoryError()], ids=repr)
def test_errors_while_filters_are_read(case, threads, error, waits, monkeypatch, capfd):
    """The run raises the error, also Ctrl-C; later runs are unaffected."""
    model, x = model_and_input(case)
    model.threads = threads
    source = Unreadable(monkeypatch)
    expected = model(x)
    assert source.reads > 1
    for _ in range(2):
        source.error = error
        with pytest.raises(type(error)):
            model(x)
        source.error = None
        np.testing.assert_array_equal(model(x), expected)
    assert "ignored" not in capfd.readouterr().err


def test_a_run_raises_its_own_error(waits, monkeypatch):
    """Neither another run's error, nor its own in a later run."""
    model, x = model_and_input("staged")
    model.threads = 1
    expected = model(x)
    source = Unreadable(monkeypatch)
    barrier = threading.Barrier(4, timeout=60)
    got = [None] * 4

    def work(number):
        barrier.wait()
        for _ in range(20):
            try:
                got[number] = model(x)
            except OSError as error:
                got[number] = error
            barrier.wait()
            assert isinstance(got[number], OSError) == (source.error is not None)
            if isinstance(got[number], np.ndarray):
                np.testing.assert_array_equal(got[number], expected)
            if barrier.wait() == 0:
                source.error = None if source.error else OSError("gone")
            barrier.wait()
        got[number] = "done"

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == ["done"] * 4


def test_filters_that_do_not_fit_into_memory(monkeypatch):
    """They stay untransformed and are not tried again."""
    model, x = model_and_input("staged")
    expected = model(x)

    class Full:
        def advance(self, n_threads):
            raise MemoryError

    model._plans.weights.finalizer._deferred[:] = [Full()]
    model.plan(x.shape)
    assert not model._plans.weights.finalizer._deferred
    np.testing.assert_array_equal(model(x), expected)


@pytest.mark.parametrize(
    ("channels", "tile", "blocks", "wait"),
    [(512, 4, 1, True), (512, 4, 9, False), (64, 4, 1, False), (256, 2, 2, True)],
)
def test_which_filters_are_deferred(channels, tile, blocks, wait):
    """Large ones that a run reads only once."""
    assert is_deferred(WinogradPanels(channels, channels, tile, 0), blocks) == wait


def test_groups_are_deferred_one_by_one(waits):
    x = noise((1, 512, 9, 10))
    params = {
        "in_channels": 512, "out_channels": 512, "kernel_size": (3, 3), "stride": (1, 1),
        "padding": (1, 1), "dilation": (1, 1), "groups": 2, "bias": True, "padding_mode": "zeros",
    }  # fmt: skip
    weights = {"weight": noise((512, 256, 3, 3), 1), "bias": noise((512,), 2)}
    model = model_of("nn.Conv2d", [x], params, weights)
    first = model(x)
    assert len(model._plans.weights.finalizer._deferred) == 2
    waits()
    model.plan(x.shape)
    np.testing.assert_array_equal(model(x), first)
