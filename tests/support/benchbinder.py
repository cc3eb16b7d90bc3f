"""A binder over a workbench: binds one record to tensor views that the test has laid out.

It hands out guarded memory and takes steps like the planner's binder, but makes no decisions:
outputs are the given views, so that a test chooses their row stride, and constants are written at
once.
"""

from __future__ import annotations

import numpy as np

from kuiper._kernels.micro.packed import panel_offsets, split_memory
from kuiper.ir import PostOp
from kuiper.ir.view import TensorSpec, TensorView, channels_last_strides
from kuiper.ops import Record, record_or_none
from kuiper.ops.core.schema import Argument

from . import workbench
from .workbench import PATTERN, Workbench

__all__ = ["BenchBinder", "arguments", "bits", "post_ops", "reference_epilogue", "run_record"]


class BenchBinder:
    """Binds a record.

    Parameters
    ----------
    bench : Workbench
    output : TensorView
        View of the output; a record that requires another layout fails.
    post : sequence of PostOp
        An ``add`` reads `summand` whatever its slot is.
    summand : TensorView, optional
    """

    n_threads = max(workbench.SHARD_COUNTS)
    in_bfloat16 = False
    tolerates_errors = False

    def __init__(
        self, bench: Workbench, output: TensorView, post=(), summand: TensorView | None = None
    ):
        self.bench, self.target, self.summand = bench, output, summand
        self.post_ops = tuple(post)
        self.result = output
        self.steps: list = []
        self.waiting: list = []

    def output_spec(self, index: int = 0) -> TensorSpec:
        return TensorSpec(self.target.shape, self.target.dtype)

    def output_dtype(self, index: int = 0) -> np.dtype:
        return self.target.dtype

    def stored(self, value: TensorView, dtype: np.dtype) -> TensorView:
        assert value.dtype == dtype
        return value

    def operand_view(self, slot: int) -> TensorView:
        return self.summand

    def feeds_only(self, *types: str) -> bool:
        return False

    def output(self, index: int = 0, layout="contiguous", reuse=None) -> TensorView:
        assert {
            "contiguous": self.target.is_contiguous, "channels_last": self.target.is_channels_last
        }[layout]  # fmt: skip
        return self.target

    def contiguous(self, value: TensorView) -> TensorView:
        return value if value.is_contiguous else self.constant(self.bench.view(value))

    def channels_last(self, value: TensorView) -> TensorView:
        if value.is_channels_last:
            return value
        return self.bench.put_channels_last(self.bench.view(value))

    def padded_rows(self, value: TensorView) -> TensorView:
        return self.bench.put(self.bench.view(value), (value.shape[1] + 16, 1))

    def constant(self, array: np.ndarray) -> TensorView:
        return self.bench.put(np.ascontiguousarray(array))

    def packed(self, matrices, fill) -> TensorView:
        memory = np.full(panel_offsets(matrices)[-1], np.nan, np.float32)
        fill(*split_memory(memory, matrices))
        array = memory if len(matrices) > 1 else memory.reshape(matrices[0].shape)
        view = self.constant(array)
        return TensorView(view.buffer, view.shape, view.strides, view.offset, view.dtype, array)

    def transformed(self, matrix, make, later):
        """Defer the transform of filters of any size; `run_record` finishes it."""
        self.waiting.append(make(True, None))
        return self.waiting[-1]

    def context_state(self, n_bytes: int) -> TensorView:
        return self.bench.put(np.zeros(n_bytes, np.uint8))

    def scratch(self, n_bytes: int) -> TensorView:
        return self.bench.scratch(n_bytes)

    def temporary(self, shape, dtype=np.float32, layout="contiguous") -> TensorView:
        strides = channels_last_strides(shape) if layout == "channels_last" else None
        value = self.bench.allocate(shape, dtype, strides)
        self.bench.written.append(value)
        return value

    def alias(self, value: TensorView, index: int = 0) -> None:
        self.result = value

    def step(self, step) -> None:
        self.steps.append(step)


def arguments(type: str, input: TensorView, **given) -> Record:
    """Return an operator's arguments: arrays become constants, missing ones get their defaults."""
    found = {"input": input}
    for argument in record_or_none(type).arguments:
        if argument.name in found:
            continue
        value = given.pop(argument.name, argument.default)
        if isinstance(value, np.ndarray):
            strides = [s // value.itemsize for s in np.empty(value.shape, value.dtype).strides]
            value = TensorView(None, value.shape, strides, 0, value.dtype, value)
        elif isinstance(argument, Argument) and value is not argument.default:
            value = value if isinstance(value, TensorView) else argument.convert(value)
        found[argument.name] = value
    assert not given, f"{type} takes no {list(given)}"
    return record_or_none(type)(**found)


def bits(array: np.ndarray) -> np.ndarray:
    return array.view(np.uint32)


def run_record(binder: BenchBinder, type: str, a, shards=None) -> np.ndarray:
    """Bind and run a record in several numbers of shards, whose results must agree to the bit.

    They must agree before deferred filters are transformed, and afterwards.

    Returns
    -------
    numpy.ndarray
        A copy of the output.
    """
    record_or_none(type).bind(a, binder)
    counts = workbench.SHARD_COUNTS if shards is None else shards
    expected = _run(binder, counts[0])
    for count in counts[1:]:
        assert _run(binder, count).tobytes() == expected.tobytes(), f"{count} shards, other bits"
    for filters in binder.waiting:
        while filters.advance(max(counts)):
            assert filters.is_deferred
        assert not filters.is_deferred
    for count in counts if binder.waiting else ():
        assert _run(binder, count).tobytes() == expected.tobytes(), f"{count} shards, transformed"
    return expected


def _run(binder: BenchBinder, count: int) -> np.ndarray:
    bench = binder.bench
    for value in bench.written:
        bench.memory[value.slot][...] = PATTERN
    bench.run(*binder.steps, shards=count)
    return bench.view(binder.result).copy()


# The post-ops of the tests, in float64.
FUNCTIONS = {
    "nn.ReLU": lambda y: np.maximum(y, 0),
    "nn.ReLU6": lambda y: np.clip(y, 0, 6),
    "nn.Hardtanh": lambda y: np.clip(y, -0.5, 0.25),
    "nn.LeakyReLU": lambda y: np.where(y < 0, 0.2 * y, y),
    "nn.SiLU": lambda y: y / (1 + np.exp(-y)),
    "nn.Sigmoid": lambda y: 1 / (1 + np.exp(-y)),
    "nn.Hardswish": lambda y: y * np.clip(y + 3, 0, 6) / 6,
    "nn.Softplus": lambda y: np.where(2 * y > 3, y, np.log1p(np.exp(np.minimum(2 * y, 3))) / 2),
}
PARAMETERS = {
    "nn.Hardtanh": {"min_val": -0.5, "max_val": 0.25},
    "nn.LeakyReLU": {"negative_slope": 0.2},
    "nn.Softplus": {"beta": 2.0, "threshold": 3.0},
}


def post_ops(*words: str) -> tuple[PostOp, ...]:
    """Return post-ops from names of activations and ``add``."""
    return tuple(
        PostOp("add", {}, 1) if word == "add" else PostOp(word, PARAMETERS.get(word, {}))
        for word in words
    )


def reference_epilogue(y: np.ndarray, words, summand: np.ndarray | None = None) -> np.ndarray:
    """Apply post-ops to a float64 array."""
    for word in words:
        y = y + summand if word == "add" else FUNCTIONS[word](y)
    return y
