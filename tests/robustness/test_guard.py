"""Guard bytes around operands detect writes outside a step's own memory, and nothing else."""

from __future__ import annotations

import numpy as np
import pytest

from kuiper.ir.view import Buffer, BufferKind
from kuiper.planning import guard as guard_module
from kuiper.planning.arena import GUARD_BYTES, arrange, guard_bytes
from kuiper.planning.guard import FILLING, Guard

from ..support.engine import n_threads
from ..support.textgraph import model_of, user_operator, values

# Three operators that no pass fuses; the convolution uses scratch memory.
GRAPH = """\
pnnx.Input in 0 1 x
torch.flip first 1 1 x p dims=(0)
user.spoil middle 1 1 p q
torch.roll last 1 1 q y shifts=(1) dims=(0)
pnnx.Output out 1 0 y
"""


@pytest.fixture(autouse=True)
def _guarded(monkeypatch):
    monkeypatch.setenv("KUIPER_GUARD", "1")
    # The deliberate overruns of these tests would end a process with AddressSanitizer.
    monkeypatch.setattr(guard_module, "_POISON", None)


def arena_around(view: np.ndarray) -> tuple[np.ndarray, int]:
    """Return the arena that an operand lies in, and the operand's offset in bytes."""
    memory = view
    while getattr(memory, "base", None) is not None:  # as_strided inserts an object
        memory = memory.base
    return memory, view.ctypes.data - memory.ctypes.data


def run_with(function, threads: int = 1) -> list[np.ndarray]:
    """Run the graph with a function that receives the operand in the middle."""
    with user_operator("user.spoil", function), n_threads(threads):
        return model_of(GRAPH)(values(3, 5))


def test_guards_are_off_by_default(monkeypatch):
    monkeypatch.delenv("KUIPER_GUARD")
    assert guard_bytes() == 0
    plans = {}
    for switch in ("0", "1"):
        monkeypatch.setenv("KUIPER_GUARD", switch)
        with user_operator("user.spoil", np.copy):
            plans[switch] = model_of(GRAPH).plan((3, 5))
    assert plans["1"].arena_bytes >= plans["0"].arena_bytes + 3 * GUARD_BYTES


def test_guards_do_not_change_a_correct_result(monkeypatch):
    results = run_with(np.negative)
    monkeypatch.delenv("KUIPER_GUARD")
    np.testing.assert_array_equal(run_with(np.negative), results)


@pytest.mark.parametrize("distance", [-GUARD_BYTES, -1, 60, 60 + GUARD_BYTES - 1])
def test_a_step_that_writes_outside_its_operand_is_named(distance):
    def spoil(x):
        memory, start = arena_around(x)
        if memory.dtype == np.uint8:  # not the array that is passed while planning
            memory[start + distance] ^= 1
        return x.copy()

    with pytest.raises(AssertionError) as caught:
        run_with(spoil)
    assert str(caught.value) == (
        f"step 1, python of operator 'middle', wrote to byte {distance} of a buffer of 60 bytes "
        "(arena) that operator 'first' was the first to use"
    )


class NamedStep:
    """The attributes of a step that a guard uses."""

    kind = "fake"

    def __init__(self, name: str, *slots: int):
        self.name, self.slots = name, list(slots)


def buffer_of(slot: int, n_bytes: int, first: int, last: int, threads: int = 0) -> Buffer:
    buffer = Buffer(slot, n_bytes, BufferKind.SCRATCH if threads else BufferKind.ARENA)
    if threads:
        buffer.bytes_per_thread = n_bytes // threads
    buffer.first, buffer.last = first, last
    return buffer


def guarded(*buffers: Buffer) -> tuple[Guard, np.ndarray]:
    """Return the guard of three steps over buffers, and their zeroed arena."""
    steps = [
        NamedStep(f"step{n}", *(b.slot for b in buffers if n in (b.first, b.last)))
        for n in range(3)
    ]
    return Guard(steps, buffers), np.zeros(arrange(buffers, GUARD_BYTES), np.uint8)


def test_a_buffer_is_filled_before_its_first_step_only():
    early, late = buffer_of(0, 40, 0, 1), buffer_of(1, 24, 1, 2)
    guard, memory = guarded(early, late)
    guard.before(memory, 0)
    piece = memory[early.offset : early.offset + 40]
    assert (piece == FILLING).all()
    assert not memory[late.offset : late.offset + 24].all()
    piece[:] = 7
    guard.after(memory, 0)
    guard.before(memory, 1)
    assert (piece == 7).all()
    assert (memory[late.offset : late.offset + 24] == FILLING).all()
    guard.after(memory, 1)


def test_each_thread_has_guards_around_its_scratch():
    share = 64 + GUARD_BYTES
    scratch = buffer_of(0, 3 * share, 1, 1, threads=3)
    guard, memory = guarded(scratch)
    for thread in range(3):
        start = scratch.offset + thread * share
        guard.before(memory, 1)
        memory[start : start + 64] = 1
        guard.after(memory, 1)
        for index in (start - 1, start + 64, start + share - 1):
            guard.before(memory, 1)
            memory[index] = 1
            with pytest.raises(AssertionError, match=f"byte {index - scratch.offset} of a buffer"):
                guard.after(memory, 1)


def test_guards_do_not_overlap_live_buffers():
    """The guards of a buffer belong to its allocation for as long as it lives."""
    generator = np.random.default_rng(5)
    for _ in range(50):
        buffers = []
        for slot in range(12):
            first = int(generator.integers(0, 3))
            last = int(generator.integers(first, 3))
            buffers.append(buffer_of(slot, int(generator.choice([0, 1, 64, 500])), first, last))
        guard, memory = guarded(*buffers)
        for number in range(3):
            guard.before(memory, number)
            for buffer in guard.live[number]:
                memory[buffer.offset : buffer.offset + buffer.n_bytes] = 1
            guard.after(memory, number)
