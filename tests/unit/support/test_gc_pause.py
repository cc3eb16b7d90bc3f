"""Garbage collection is disabled while a graph or plan is built, and only then."""

from __future__ import annotations

import gc
import os
import threading

import numpy as np
import pytest

import kuiper
from kuiper._support.gc_pause import no_collection

from ...support.textgraph import user_operator

PARAM = b"""7767517
3 2
pnnx.Input  in  0 1 x #x=(2)f32
test.look   op  1 1 x y
pnnx.Output out 1 0 y
"""


@pytest.fixture(autouse=True)
def as_before():
    yield
    assert gc.isenabled()


def test_it_is_disabled_in_the_context_and_enabled_after_it():
    with no_collection():
        assert not gc.isenabled()
        with no_collection():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()
    with pytest.raises(ZeroDivisionError), no_collection():
        _ = 1 / 0


def test_it_stays_disabled_if_it_was_disabled_before():
    gc.disable()
    try:
        with no_collection():
            assert not gc.isenabled()
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_the_last_of_several_threads_enables_it():
    inside, leave = threading.Event(), threading.Event()

    def work():
        with no_collection():
            inside.set()
            leave.wait(60)

    thread = threading.Thread(target=work)
    with no_collection():
        thread.start()
        assert inside.wait(60)
    assert not gc.isenabled()
    leave.set()
    thread.join()
    assert gc.isenabled()


def test_models_are_planned_without_it_and_run_with_it():
    seen = []

    def look(x):
        seen.append(gc.isenabled())
        return x

    with user_operator("test.look", look):
        model = kuiper.load(PARAM)
        model(np.ones(2, np.float32))
    assert seen == [False, True]
    with pytest.raises(kuiper.ModelFormatError):
        kuiper.load(b"something else")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_child_process_collects_garbage():
    with no_collection():
        pid = os.fork()
        if pid == 0:
            is_right = gc.isenabled()
            with no_collection():
                is_right = is_right and not gc.isenabled()
            os._exit(0 if is_right and gc.isenabled() else 1)
        assert os.waitpid(pid, 0)[1] == 0
        assert not gc.isenabled()
