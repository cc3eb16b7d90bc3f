"""A plan: steps, where their operands lie, and what a run of them needs.

:func:`kuiper.planning.planner.make_plan` makes it.  A plan is immutable.  What changes during a
run lives in a context, one per concurrent call, and in an arena, which all plans of a model share.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from time import perf_counter
from typing import Any

import numpy as np

from kuiper._kernels.micro import dispatch
from kuiper._runtime.executor import ArenaPool, Context, Program
from kuiper.errors import KuiperError, OperatorError, ShapeError, unforeseen
from kuiper.ir.view import Buffer, BufferKind, TensorView
from kuiper.planning.arena import guard_bytes

__all__ = ["Plan", "PythonStep"]


class PythonStep:
    """A step that runs in Python: for operators without a kernel and for the user's own.

    Parameters
    ----------
    function : callable
        Takes one array per input; returns one array per output, or a tuple of them.
    inputs, outputs : sequence of TensorView
    name : str
        The operator's name.
    quiet : bool, default=True
        Whether numpy's warnings about overflow and NaN are kept back; a kernel gives none.
    """

    kind = "python"
    algorithm: Any = None

    def __init__(
        self,
        function: Callable[..., Any],
        inputs: Sequence[TensorView],
        outputs: Sequence[TensorView],
        name: str,
        quiet: bool = True,
    ) -> None:
        self.function = function
        self.quiet = quiet
        self.inputs = tuple(inputs)
        self.outputs = tuple(outputs)
        self.name = name
        self.slots = [value.slot for value in (*self.inputs, *self.outputs)]
        self.flops = 0.0
        self.bytes = float(sum(value.n_bytes for value in (*self.inputs, *self.outputs)))

    def run(self, context: Context, n_threads: int) -> None:
        """Call the function on views of the context's memory and store what it returns."""
        views = [context.view(value) for value in self.inputs]
        for view in views:
            view.flags.writeable = False  # others may read this memory, the caller's perhaps
        with np.errstate(all="ignore") if self.quiet else contextlib.nullcontext():
            self._store(context, views)

    def _store(self, context: Context, views: Sequence[np.ndarray]) -> None:
        try:
            results = self.function(*views)
        except (KuiperError, MemoryError):
            raise
        except Exception as error:
            raise unforeseen(f"operator '{self.name}'", error) from error
        if not isinstance(results, tuple):
            results = (results,)
        if len(results) != len(self.outputs):
            raise OperatorError(
                f"operator '{self.name}': its function returned {len(results)} arrays, "
                f"expected {len(self.outputs)}"
            )
        for value, result in zip(self.outputs, results, strict=True):
            result = np.asarray(result)
            if result.shape != value.shape:
                raise ShapeError(
                    f"operator '{self.name}': its function returned shape {result.shape}, "
                    f"expected {value.shape}"
                )
            context.view(value)[...] = result


class Plan:
    """A compiled graph for one set of input shapes; see :func:`kuiper.planning.planner.make_plan`.

    Attributes
    ----------
    steps : tuple of (Step or PythonStep)
    inputs : tuple of TensorSpec
    outputs : tuple
        A TensorSpec per output, or the value itself where it is known while planning.
    output_counts : tuple of int
        How many of them each operand stands for that the graph returns: one for a tensor, more for
        a list of tensors.
    arena_bytes : int
    """

    def __init__(
        self,
        steps: Sequence[Any],
        buffers: Sequence[Buffer],
        arena_bytes: int,
        inputs: Sequence[TensorView],
        outputs: Sequence[Any],
        output_counts: Sequence[int],
        n_threads: int,
        arenas: ArenaPool,
    ) -> None:
        self.steps = tuple(steps)
        self.arena_bytes = arena_bytes
        self.n_threads = n_threads
        self.buffers = tuple(buffers)
        self.inputs = tuple(value.spec for value in inputs)
        self.outputs = tuple(
            value.spec if isinstance(value, TensorView) else value for value in outputs
        )
        self.output_counts = tuple(output_counts)
        self._input_slots = tuple(value.slot for value in inputs)
        self._output_slots = tuple(
            value.slot if isinstance(value, TensorView) else None for value in outputs
        )
        self._slots = [_home(buffer) for buffer in self.buffers]
        self._segments = _segments(self.steps)
        self._guard = None
        if guard_bytes():
            from kuiper.planning.guard import Guard

            self._guard = Guard(self.steps, self.buffers)
            self._segments = self._guard.wrap(_segments([step])[0] for step in self.steps)
        self._arenas = arenas
        # Those that no run uses.  Taken and given back in one operation each, so without a lock.
        self._contexts: list[Context] = []

    def run(
        self, inputs: Sequence[np.ndarray], outs: Sequence[np.ndarray | None] | None = None
    ) -> list[np.ndarray]:
        """Run on arrays that match `inputs` and return the outputs as a list."""
        context = self._acquire()
        outputs = self._attach(context, inputs, outs)
        for segment in self._segments:
            segment.run(context, self.n_threads)
        self._release(context)
        return outputs

    def run_grouped(self, inputs: Sequence[np.ndarray]) -> list[list[np.ndarray]]:
        """Run on arrays and return for each output of the graph the arrays that it stands for."""
        results = iter(self.run(inputs))
        return [list(islice(results, count)) for count in self.output_counts]

    def profile(self, inputs: Sequence[np.ndarray]) -> tuple[Sequence[Any], np.ndarray]:
        """Run once and return the steps and the seconds of each."""
        return self.steps, self.run_timed(inputs)[1]

    def run_timed(self, inputs: Sequence[np.ndarray]) -> tuple[list[np.ndarray], np.ndarray]:
        """Run once and return the outputs and the seconds of each step."""
        context = self._acquire()
        outputs = self._attach(context, inputs, None)
        seconds = []
        for segment in self._segments:
            if isinstance(segment, Program):
                seconds.extend(segment.run_timed(context, self.n_threads))
            else:
                start = perf_counter()
                segment.run(context, self.n_threads)
                seconds.append(perf_counter() - start)
        self._release(context)
        return outputs, np.array(seconds)

    def _attach(
        self,
        context: Context,
        inputs: Sequence[np.ndarray],
        outs: Sequence[np.ndarray | None] | None,
    ) -> list[np.ndarray]:
        for input_slot, given in zip(self._input_slots, inputs, strict=True):
            context.attach(input_slot, given)
        outputs = []
        for number, (slot, spec) in enumerate(zip(self._output_slots, self.outputs, strict=True)):
            array = None if outs is None else outs[number]
            if slot is None:
                array = np.array(spec) if array is None else array
                array[...] = spec
            else:
                if array is None:
                    array = np.empty(spec.shape, spec.dtype)
                    if self._guard is not None:
                        self._guard.fill(array)
                context.attach(slot, array)
            outputs.append(array)
        return outputs

    def _acquire(self) -> Context:
        try:
            context = self._contexts.pop()
        except IndexError:
            context = Context(self._slots, self.n_threads)
        context.use(self._arenas.take(self.arena_bytes))
        return context

    def _release(self, context: Context) -> None:
        # The caller owns its arrays again, and other plans may have the arena.
        for slot in (*self._input_slots, *self._output_slots):
            if slot is not None:
                context.detach(slot)
        self._arenas.give(context.arena)
        context.use(None)
        self._contexts.append(context)


def _home(buffer: Buffer) -> Any:
    """Return what a context's slot table holds for a buffer before a run.

    Weights are packed copies of the file's bytes; the originals lie as in the file, and a step that
    reads one as it is gets it aligned.
    """
    if buffer.kind == BufferKind.ARENA:
        return buffer.offset
    if buffer.kind == BufferKind.SCRATCH:
        return buffer.offset, buffer.bytes_per_thread
    if buffer.kind == BufferKind.CONTEXT:
        return partial(np.zeros, buffer.n_bytes, np.uint8)
    if buffer.kind == BufferKind.CONSTANT and buffer.first >= 0:
        array = buffer.constant
        assert array is not None
        return np.require(array, np.float32 if array.dtype == np.float16 else None, ["C", "A"])
    return None


def _segments(steps: Sequence[Any]) -> list[Any]:
    """Group the compiled steps between Python steps into programs."""
    segments: list[Any] = []
    run: list[Any] = []
    lanes = dispatch.lanes()
    for step in steps:
        if isinstance(step, PythonStep):
            if run:
                segments.append(Program(run, lanes))
                run = []
            segments.append(step)
        else:
            run.append(step)
    if run:
        segments.append(Program(run, lanes))
    return segments
