"""Guard bytes around every operand, for tests.

Kernels check nothing, so a step that writes beyond its output corrupts the result of another
operator, and the error appears elsewhere or not at all.  With ``KUIPER_GUARD=1`` a plan runs its
steps one by one:

* Guard bytes surround every buffer of the arena and each thread's scratch memory; they must be
  unchanged after every step.
* Every buffer and every result of the model is filled with one bits (NaN in every float type)
  before its first step, so that a read before the first write shows in the result.
* Under AddressSanitizer all of the arena is poisoned except the buffers of the current step, so
  that a read beyond a buffer, or of a dead one, ends the process with a report.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from kuiper.ir.view import Buffer, BufferKind
from kuiper.planning.arena import GUARD_BYTES

__all__ = ["Guard", "GuardedStep"]

CANARY = 0xA5
FILLING = 0xFF


class Guard:
    """The guard bytes of one plan's buffers, and what to do before and after each step.

    Parameters
    ----------
    steps : sequence of (Step or PythonStep)
    buffers : sequence of Buffer
        All buffers of the plan, arranged with guard bytes.
    """

    def __init__(self, steps: Sequence[Any], buffers: Sequence[Buffer]) -> None:
        self.steps = steps
        self.named = [
            [b for b in dict.fromkeys(buffers[slot] for slot in step.slots) if _in_arena(b)]
            for step in steps
        ]
        self.live: list[list[Buffer]] = [[] for _ in steps]
        for buffer in buffers:
            if _in_arena(buffer) and buffer.first >= 0:
                for number in range(buffer.first, buffer.last + 1):
                    self.live[number].append(buffer)

    def wrap(self, programs: Iterable[Any]) -> list[GuardedStep]:
        """Return guarded steps for programs of one step each."""
        return [GuardedStep(program, self, n) for n, program in enumerate(programs)]

    @staticmethod
    def fill(array: np.ndarray) -> None:
        """Fill an array that a step will write with one bits."""
        array.reshape(-1).view(np.uint8).fill(FILLING)

    def before(self, memory: np.ndarray, number: int) -> None:
        """Prepare the arena for a step.

        Parameters
        ----------
        memory : numpy.ndarray of uint8
            The arena, from its first cache line on.
        number : int
            Index of the step.
        """
        for buffer in self.live[number]:
            if buffer.first == number:
                for start, stop in _own_ranges(buffer):
                    memory[start:stop] = FILLING
                for start, stop in _guard_ranges(buffer):
                    memory[start:stop] = CANARY
        _poison(memory)
        for buffer in self.named[number]:
            for start, stop in _own_ranges(buffer):
                _unpoison(memory[start:stop])

    def after(self, memory: np.ndarray, number: int) -> None:
        """Raise AssertionError if a step has changed guard bytes."""
        for buffer in self.live[number]:
            for start, stop in _guard_ranges(buffer):
                touched = np.flatnonzero(memory[start:stop] != CANARY)
                if len(touched):
                    step, maker = self.steps[number], self.steps[buffer.first]
                    position = start + int(touched[0]) - buffer.offset
                    raise AssertionError(
                        f"step {number}, {step.kind} of operator '{step.name}', wrote to byte "
                        f"{position} of a buffer of {buffer.n_bytes} bytes ({buffer.kind.value}) "
                        f"that operator '{maker.name}' was the first to use"
                    )


class GuardedStep:
    """Runs one step and checks the guard bytes.

    Parameters
    ----------
    program : Program or PythonStep
        Holds this step alone.
    guard : Guard
    number : int
        Index of the step.
    """

    def __init__(self, program: Any, guard: Guard, number: int) -> None:
        self.program, self.guard, self.number = program, guard, number

    def run(self, context: Any, n_threads: int) -> None:
        """Run the step."""
        memory = context.arena.memory
        self.guard.before(memory, self.number)
        try:
            self.program.run(context, n_threads)
        finally:
            _unpoison(memory)
        self.guard.after(memory, self.number)


def _in_arena(buffer: Buffer) -> bool:
    return buffer.kind in (BufferKind.ARENA, BufferKind.SCRATCH)


def _own_ranges(buffer: Buffer) -> list[tuple[int, int]]:
    """Return (start, stop) of a buffer's bytes: one range, or one per thread."""
    if not buffer.bytes_per_thread:
        return [(buffer.offset, buffer.offset + buffer.n_bytes)]
    starts = range(buffer.offset, buffer.offset + buffer.n_bytes, buffer.bytes_per_thread)
    return [(start, start + buffer.bytes_per_thread - GUARD_BYTES) for start in starts]


def _guard_ranges(buffer: Buffer) -> list[tuple[int, int]]:
    """Return (start, stop) of the guard bytes before, between and after these ranges."""
    owned = _own_ranges(buffer)
    starts = [owned[0][0] - GUARD_BYTES, *(stop for _, stop in owned)]
    stops = [*(start for start, _ in owned), buffer.offset + buffer.n_bytes + GUARD_BYTES]
    return list(zip(starts, stops, strict=True))


def _sanitizer(name: str) -> Callable[[int, int], None] | None:
    """Return a function of AddressSanitizer's runtime, or None if it is not loaded."""
    function = getattr(ctypes.CDLL(None), name, None) if os.name == "posix" else None
    if function is not None:
        function.argtypes, function.restype = [ctypes.c_void_p, ctypes.c_size_t], None
    return function


_POISON = _sanitizer("__asan_poison_memory_region")
_UNPOISON = _sanitizer("__asan_unpoison_memory_region")


def _poison(memory: np.ndarray) -> None:
    if _POISON is not None:
        _POISON(memory.ctypes.data, memory.nbytes)


def _unpoison(memory: np.ndarray) -> None:
    if _UNPOISON is not None:
        _UNPOISON(memory.ctypes.data, memory.nbytes)
