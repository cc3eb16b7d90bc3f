"""A workbench for kernels: tensor views of guarded memory, and single steps run on them.

Every buffer of a :class:`Workbench` ends in guard bytes and is pre-filled with NaN, which catches a
kernel that writes outside its output, leaves part of it unwritten, or computes with bytes outside
its inputs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import numpy as np

from kuiper._kernels.elementwise import elementwise
from kuiper._kernels.micro import dispatch
from kuiper._kernels.spatial import pool_windows
from kuiper._runtime.executor import Context, Program
from kuiper.expression import ElementwiseProgram
from kuiper.expression.lowering import Instruction, ProgramValue
from kuiper.ir.view import Buffer, BufferKind, TensorView, channels_last_strides, contiguous_strides

__all__ = [
    "EXTENDED_ISAS",
    "ISAS",
    "PAIR_ISAS",
    "SHARD_COUNTS",
    "Workbench",
    "function",
    "image_windows",
    "isa",
    "noise",
]

ISAS = dispatch.available()
# Also with the further instructions that a variant uses if the processor has them.
EXTENDED_ISAS = [(name, False) for name in ISAS] + [
    (name, True) for name in ISAS if dispatch.extensions_of(name)
]
# With those for products of bfloat16, which a processor may hide.
PAIR_ISAS = [*ISAS, *dispatch.tried()]
SHARD_COUNTS = (1, 2, 3, 7)
# Threads that run the shards.  More threads than cores would mostly wait for each other; other
# tests run models on pools of every size.
N_THREADS = 2

MANY_FLOPS = 1e9  # enough that the executor gives each thread several shards

GUARD_BYTES = 64
PATTERN = 0xFF  # NaN in every float type, so that a read beyond the input shows in the result


@contextlib.contextmanager
def isa(name: str, extended: bool = True) -> Iterator[None]:
    """Bind with the instruction-set variant `name` inside a with block."""
    previous = dispatch.select(name, extended)
    try:
        yield
    finally:
        dispatch.select(previous)


def noise(shape, seed: int = 0, dtype=np.float32) -> np.ndarray:
    """Return random values of a dtype: normal floats, small integers or booleans."""
    generator = np.random.default_rng(seed)
    dtype = np.dtype(dtype)
    if dtype.kind == "f":
        return generator.standard_normal(shape).astype(dtype)
    if dtype.kind == "c":
        return (generator.standard_normal(shape) + 1j * generator.standard_normal(shape)).astype(
            dtype
        )
    return generator.integers(0, 2 if dtype.kind == "b" else 100, shape).astype(dtype)


class Workbench:
    """Memory for the operands of a few steps."""

    def __init__(self) -> None:
        self.memory: list[np.ndarray] = []
        self.written: list[TensorView] = []
        self.per_thread: dict[int, int] = {}

    def scratch(self, n_bytes: int) -> TensorView:
        """Return scratch memory with `n_bytes` for each thread.

        Kernels keep pointers in it, so each thread's part is aligned to 8 bytes.
        """
        n_bytes = -(-n_bytes // 8) * 8
        value = self.allocate((N_THREADS * n_bytes,), np.uint8)
        self.per_thread[value.slot] = n_bytes
        self.written.append(value)
        return value

    def allocate(self, shape, dtype=np.float32, strides=None, offset: int = 0) -> TensorView:
        """Return a view of fresh, guarded memory; `strides` and `offset` in elements."""
        dtype = np.dtype(dtype)
        if strides is None:
            strides = contiguous_strides(shape)
        reach = offset + 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True) if n)
        n_bytes = reach * dtype.itemsize if 0 not in shape else 0
        memory = np.full(n_bytes + GUARD_BYTES, PATTERN, np.uint8)
        self.memory.append(memory)
        buffer = Buffer(len(self.memory) - 1, n_bytes, BufferKind.CONSTANT, memory)
        return TensorView(buffer, shape, strides, offset, dtype)

    def put(self, array: np.ndarray, strides=None, offset: int = 0) -> TensorView:
        """Return a view that holds `array`."""
        value = self.allocate(array.shape, array.dtype, strides, offset)
        self.view(value)[...] = array
        return value

    def put_channels_last(self, array: np.ndarray, row_stride: int | None = None) -> TensorView:
        """Return a view that holds (n, c, h, w) with channels innermost."""
        return self.put(array, channels_last_strides(array.shape, row_stride))

    def output(
        self, shape, layout: str = "contiguous", row_stride=None, dtype=np.float32
    ) -> TensorView:
        """Return a view for a step to write; :meth:`run` allows writes to it."""
        strides = channels_last_strides(shape, row_stride) if layout == "channels_last" else None
        value = self.allocate(shape, dtype, strides)
        self.written.append(value)
        return value

    def view(self, value: TensorView) -> np.ndarray:
        """Return a tensor view as a numpy array over its memory."""
        memory = self.memory[value.slot]
        if 0 in value.shape:
            return np.empty(value.shape, value.dtype)
        strides = [stride * value.dtype.itemsize for stride in value.strides]
        return np.ndarray(value.shape, value.dtype, memory, value.offset_bytes, strides)

    def run(self, *steps, shards: int = 1) -> None:
        """Run steps in `shards` shards each, and check that only the outputs were written."""
        for step in steps:
            step.max_shards = shards
            step.flops = MANY_FLOPS
        before = [memory.copy() for memory in self.memory]
        slots = [
            (memory, self.per_thread[slot]) if slot in self.per_thread else memory
            for slot, memory in enumerate(self.memory)
        ]
        n_threads = min(shards, N_THREADS)
        context = Context(slots, n_threads)
        Program(steps, dispatch.lanes()).run(context, n_threads)
        for slot, (old, new) in enumerate(zip(before, self.memory, strict=True)):
            changed = old != new
            for value in self.written:
                if value.slot == slot:
                    mask = np.zeros(old.shape, bool)
                    strides = [s * value.dtype.itemsize for s in value.strides]
                    if 0 not in value.shape:
                        np.ndarray(
                            (*value.shape, value.dtype.itemsize), bool, mask,
                            value.offset_bytes, (*strides, 1),
                        )[...] = True  # fmt: skip
                    changed &= ~mask
            assert not changed.any(), f"slot {slot}: byte {changed.argmax()} was written"

    def run_all_shards(self, make, output: TensorView) -> np.ndarray:
        """Run the step that `make()` returns in each of SHARD_COUNTS shards; the bits must agree.

        Returns
        -------
        numpy.ndarray
            A copy of `output`.
        """
        results = []
        for shards in SHARD_COUNTS:
            self.memory[output.slot][...] = PATTERN
            self.run(make(), shards=shards)
            results.append(self.view(output).copy())
        for shards, result in zip(SHARD_COUNTS[1:], results[1:], strict=True):
            assert result.tobytes() == results[0].tobytes(), f"{shards} shards give other bits"
        return results[0]


def function(name, *arrays, parameters=()):
    """Run a single elementwise instruction on arrays."""
    arguments = tuple(ProgramValue("input", i) for i in range(len(arrays)))
    step = Instruction(name, arguments, parameters)
    shape = np.broadcast_shapes(*(a.shape for a in arrays))
    program = ElementwiseProgram(tuple(range(len(arrays))), (step,), shape, {})
    return elementwise.compute(program, arrays)


def image_windows(x, kernel, stride, padding, **options):
    """Return the pooling windows of a batch of images: a trivial axis, then the spatial axes."""
    one = [pool_windows.adaptive_windows(1, 1)]
    return one + [
        pool_windows.fixed_windows(extent, kernel, stride, padding, **options)
        for extent in x.shape[2:]
    ]
