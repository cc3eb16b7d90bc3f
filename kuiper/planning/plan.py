"""A plan: steps, the memory layout of their operands, and how to run them.

:func:`kuiper.planning.planner.make_plan` makes it.  A plan is immutable.  The state of a run is in
a context, one per concurrent call, and in an arena from the pool that all plans of a model share.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from functools import partial
from itertools import groupby, islice
from time import perf_counter
from typing import Any, Literal

import numpy as np

from kuiper._kernels.micro import dispatch
from kuiper._runtime.executor import ArenaPool, Context, Program
from kuiper.errors import KuiperError, OperatorError, ShapeError, unforeseen
from kuiper.ir.view import Buffer, BufferKind, TensorView
from kuiper.planning.arena import guard_bytes

__all__ = ["Plan", "PythonStep"]


class PythonStep:
    """A step that runs in Python: for operators without a kernel and for custom operators.

    Parameters
    ----------
    function : callable
        Takes one array per input; returns one array per output, or a tuple of them.
    inputs, outputs : sequence of TensorView
    name : str
        The operator's name.
    quiet : bool, default=True
        Whether to suppress numpy's warnings about overflow and NaN; kernels do not warn either.
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
        self.flops = self.saved_flops = 0.0
        self.bytes = float(sum(value.n_bytes for value in (*self.inputs, *self.outputs)))

    def run(self, context: Context, n_threads: int) -> None:
        """Call the function on views of the context's memory and store what it returns."""
        views = [context.view(value) for value in self.inputs]
        for view in views:
            view.flags.writeable = False  # the caller or a later step may read this memory
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
    """A graph compiled for one set of input shapes; see :func:`kuiper.planning.planner.make_plan`.

    Attributes
    ----------
    steps : tuple of (Step or PythonStep)
    inputs : tuple of TensorSpec
    outputs : tuple
        A TensorSpec per output, or its value if that is known while planning.
    output_counts : tuple of int
        Number of `outputs` of each operand that the graph returns: 1 for a tensor, more for a list.
    arena_bytes : int
    float32_reasons : dict of str to str, or None
        Of a plan in bfloat16: the operators that compute in float32, by name, and why; see
        :func:`kuiper.planning.storage.float32_reasons`.
    is_segmented : bool
        Tells a plan from a :class:`~kuiper.planning.segments.SegmentedPlan`.
    """

    is_segmented: Literal[False] = False

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
        self.float32_reasons: dict[str, str] | None = None
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
        self._programs = _programs(self.steps)
        self._guard = None
        if guard_bytes():
            from kuiper.planning.guard import Guard

            self._guard = Guard(self.steps, self.buffers)
            self._programs = self._guard.wrap(_programs([step])[0] for step in self.steps)
        self._arenas = arenas
        # Idle contexts; pop and append are atomic, so they need no lock.
        self._contexts: list[Context] = []

    def __repr__(self) -> str:
        def text(specs: Sequence[Any]) -> str:
            return ", ".join(str(getattr(spec, "shape", spec)) for spec in specs)

        return (
            f"<kuiper plan: {text(self.inputs)} -> {text(self.outputs)}, {len(self.steps)} steps, "
            f"{self.n_threads} threads, arena {self.arena_bytes / 2**20:.1f} MiB>"
        )

    @property
    def first_plan(self) -> Plan:
        """The plan itself, as of a segmented plan the plan of its first segment."""
        return self

    def run(
        self, inputs: Sequence[np.ndarray], outs: Sequence[np.ndarray | None] | None = None
    ) -> list[np.ndarray]:
        """Run on arrays that match `inputs` and return the outputs as a list."""
        context = self._acquire()
        outputs = self._attach(context, inputs, outs)
        for program in self._programs:
            program.run(context, self.n_threads)
        self._release(context)
        return outputs

    def run_grouped(self, inputs: Sequence[np.ndarray]) -> list[list[np.ndarray]]:
        """Run on arrays and return the arrays of each output of the graph: several for a list."""
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
        for program in self._programs:
            if isinstance(program, Program):
                seconds.extend(program.run_timed(context, self.n_threads))
            else:
                start = perf_counter()
                program.run(context, self.n_threads)
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
        # Keep no reference to the caller's arrays; other plans may take the arena.
        for slot in (*self._input_slots, *self._output_slots):
            if slot is not None:
                context.detach(slot)
        self._arenas.give(context.arena)
        context.use(None)
        self._contexts.append(context)


def _home(buffer: Buffer) -> Any:
    """Return the initial entry of a buffer in a context's slot table.

    A weight that a step reads unpacked may be unaligned or float16 in the file: it is converted.
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
        is_widened = array.dtype == np.float16 and buffer.n_bytes > array.nbytes
        return np.require(array, np.float32 if is_widened else None, ["C", "A"])
    return None


def _programs(steps: Sequence[Any]) -> list[Any]:
    """Group each run of compiled steps into a program; Python steps stay as they are."""
    lanes = dispatch.lanes()
    programs: list[Any] = []
    for is_python, group in groupby(steps, lambda step: isinstance(step, PythonStep)):
        run = list(group)
        programs += run if is_python else [Program(run, lanes)]
    return programs
