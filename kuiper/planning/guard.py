"""Guard bytes around every operand, for tests.

Kernels check nothing, so a step that writes beyond its output spoils what another operator made,
and the error shows somewhere else or not at all.  With ``KUIPER_GUARD=1`` a plan runs its steps one
by one and watches them:

* every buffer of the arena lies between guard bytes, each thread's piece of scratch memory too;
  after every step they must be what they were;
* a buffer, and a result of the model, holds nothing but ones before its first step (NaN in every
  float type), so that what is read before it is written shows in the result;
* under AddressSanitizer everything in the arena is out of bounds but what the step at work has
  named, so that reading too far, or what has had its time, ends the process with a report.
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
    """What watches the steps of one plan.

    Parameters
    ----------
    steps : sequence of (Step or PythonStep)
    buffers : sequence of Buffer
        All of the plan's, arranged with guard bytes.
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

    def wrap(self, segments: Iterable[Any]) -> list[GuardedStep]:
        """Return guarded steps for segments of one step each."""
        return [GuardedStep(segment, self, n) for n, segment in enumerate(segments)]

    @staticmethod
    def fill(array: np.ndarray) -> None:
        """Let an array that a step will write hold nothing but ones."""
        array.reshape(-1).view(np.uint8).fill(FILLING)

    def before(self, memory: np.ndarray, number: int) -> None:
        """Prepare the arena for a step.

        Parameters
        ----------
        memory : numpy.ndarray of uint8
            The arena, from its first cache line on.
        number : int
            Of the step.
        """
        for buffer in self.live[number]:
            if buffer.first == number:
                for start, stop in _pieces(buffer):
                    memory[start:stop] = FILLING
                for start, stop in _guards(buffer):
                    memory[start:stop] = CANARY
        _poison(memory)
        for buffer in self.named[number]:
            for start, stop in _pieces(buffer):
                _unpoison(memory[start:stop])

    def after(self, memory: np.ndarray, number: int) -> None:
        """Raise AssertionError if a step has written where nothing is."""
        for buffer in self.live[number]:
            for start, stop in _guards(buffer):
                touched = np.flatnonzero(memory[start:stop] != CANARY)
                if len(touched):
                    step, maker = self.steps[number], self.steps[buffer.first]
                    place = start + int(touched[0]) - buffer.offset
                    raise AssertionError(
                        f"step {number}, {step.kind} of operator '{step.name}', wrote to byte "
                        f"{place} of a buffer of {buffer.n_bytes} bytes ({buffer.kind.value}) that "
                        f"operator '{maker.name}' was the first to use"
                    )


class GuardedStep:
    """Runs one step between two looks at the guard bytes.

    Parameters
    ----------
    segment : Program or PythonStep
        Holds this step alone.
    guard : Guard
    number : int
        Of the step.
    """

    def __init__(self, segment: Any, guard: Guard, number: int) -> None:
        self.segment, self.guard, self.number = segment, guard, number

    def run(self, context: Any, n_threads: int) -> None:
        """Run the step."""
        memory = context.arena.memory
        self.guard.before(memory, self.number)
        try:
            self.segment.run(context, n_threads)
        finally:
            _unpoison(memory)
        self.guard.after(memory, self.number)


def _in_arena(buffer: Buffer) -> bool:
    return buffer.kind in (BufferKind.ARENA, BufferKind.SCRATCH)


def _pieces(buffer: Buffer) -> list[tuple[int, int]]:
    """Return where a buffer's own bytes start and end: in one piece, or in one for each thread."""
    if not buffer.bytes_per_thread:
        return [(buffer.offset, buffer.offset + buffer.n_bytes)]
    starts = range(buffer.offset, buffer.offset + buffer.n_bytes, buffer.bytes_per_thread)
    return [(start, start + buffer.bytes_per_thread - GUARD_BYTES) for start in starts]


def _guards(buffer: Buffer) -> list[tuple[int, int]]:
    """Return where the guard bytes before, between and behind a buffer's pieces start and end."""
    pieces = _pieces(buffer)
    starts = [pieces[0][0] - GUARD_BYTES, *(stop for _, stop in pieces)]
    stops = [*(start for start, _ in pieces), buffer.offset + buffer.n_bytes + GUARD_BYTES]
    return list(zip(starts, stops, strict=True))


def _sanitizer(name: str) -> Callable[[int, int], None] | None:
    """Return a function of AddressSanitizer's runtime, or None where the process has none."""
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
