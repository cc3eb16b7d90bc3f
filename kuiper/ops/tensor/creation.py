"""Tensors that depend only on sizes and numbers: constants of the plan.

Random numbers are drawn while planning.  They differ from PyTorch's, but are the same in every run,
for any number of threads, and for the first images of any batch.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np

from kuiper.errors import ShapeError
from kuiper.expression.promotion import result_type
from kuiper.ir.view import TensorSpec, TensorView
from kuiper.ops.core.binder import Binder
from kuiper.ops.core.numpy_step import NumpyRecord, Overloaded, convert
from kuiper.ops.core.record import NoBatchRule, Record, T, record
from kuiper.ops.core.schema import (
    AnyArgument,
    Argument,
    DType,
    Int,
    Ints,
    Known,
    Scalar,
    Str,
    Tensor,
    schema,
)

__all__ = ["Arange", "Eye", "Full", "Linspace", "Random"]

FLOAT32 = np.dtype(np.float32)


class Created(NumpyRecord[T]):
    """Base of the records whose result depends only on shapes and numbers."""

    batch: str = NoBatchRule("its arguments are the same for all members")
    runs_in_numpy = False  # not between steps, but once while planning
    is_folded = True

    def is_known(self: Created[Known]) -> bool:
        return True


class _Positional(Created[T]):
    """Base of TorchScript functions that create tensors: their last positional arguments."""

    dtype: np.dtype | None = DType(None)
    layout_: Any = AnyArgument(None)
    device: Any = AnyArgument(None)
    pin: Any = AnyArgument(None)


def _size(a: Any) -> tuple[int, ...]:
    if min(a.size, default=0) < 0:
        raise ShapeError(f"'size' is {a.size}, expected extents >= 0")
    return a.size


def _filled(name: str, types: tuple[str, ...], value: int, summary: str) -> None:
    """Register three records of a constant tensor: of a size, `_like` and `new_`."""

    def define(
        suffix: str,
        type: str,
        arguments: tuple[Argument, ...],
        shape: Callable[[Any], tuple[int, ...]],
        dtype: Callable[[Any], np.dtype],
        batch: str = Created.batch,
    ) -> None:
        class Filled(Created[T]):
            dtype: np.dtype | None

            def result(self: Filled[TensorSpec]) -> TensorSpec:
                return TensorSpec(shape(self), self.dtype or dtype(self))

            def compute(self: Filled[np.ndarray]) -> Any:
                return np.full(shape(self), value, self.dtype or dtype(self))

        Filled.__name__ = Filled.__qualname__ = f"{name}{suffix}"
        Filled.__doc__ = f"{summary}\n\nSource: {type.replace('Tensor.', 'torch.Tensor.')}."
        Filled.arguments, Filled.batch = arguments, batch
        record(type)(Filled)

    size, like, dtype, memory_format = schema(
        size=Ints(), input=Tensor(), dtype=DType(None), memory_format=Str(default=None)
    )
    define("", types[0], (size, dtype), _size, lambda a: FLOAT32)

    def input_dtype(a: Any) -> np.dtype:
        return a.input.dtype

    arguments = like, dtype, memory_format
    define("Like", types[1], arguments, lambda a: a.input.shape, input_dtype, "like_input")
    define("New", types[2], (like, size, dtype), _size, input_dtype, "shared")


_filled("Zeros", ("torch.zeros", "torch.zeros_like", "Tensor.new_zeros"), 0, "A tensor of zeros.")
_filled("Ones", ("torch.ones", "torch.ones_like", "Tensor.new_ones"), 1, "A tensor of ones.")
_filled(
    "Empty",
    ("torch.empty", "torch.empty_like", "Tensor.new_empty"),
    0,
    "A tensor whose values PyTorch leaves open; here zeros.",
)


@record("torch.full")
class Full(Created[T]):
    """A tensor filled with one number.

    Source: torch.full.

    Raises
    ------
    ShapeError
        If an extent is negative.
    """

    size: tuple[int, ...] = Ints()
    fill_value: float = Scalar()
    dtype: np.dtype | None = DType(None)

    def result(self: Full[Any]) -> TensorSpec:
        return TensorSpec(_size(self), self.dtype or result_type([self.fill_value]))

    def compute(self: Full[np.ndarray]) -> Any:
        return np.full(self.size, convert(self.fill_value, self.result().dtype))


@record("torch.full_like")
class FullLike(Created[T]):
    """A tensor of the input's shape filled with one number.

    Source: torch.full_like.
    """

    batch = "like_input"
    input: T = Tensor()
    fill_value: float = Scalar()
    dtype: np.dtype | None = DType(None)
    memory_format: str | None = Str(default=None)

    def result(self: FullLike[TensorSpec]) -> TensorSpec:
        return TensorSpec(self.input.shape, self.dtype or self.input.dtype)

    def compute(self: FullLike[np.ndarray]) -> Any:
        return np.full(self.input.shape, convert(self.fill_value, self.dtype or self.input.dtype))


@record("aten::zero")
class Zero(Created[T]):
    """Zeros in the shape of the input.

    Source: torch.zero_.
    """

    batch = "like_input"
    input: T = Tensor()

    def compute(self: Zero[np.ndarray]) -> Any:
        return np.zeros(self.input.shape, self.input.dtype)


@record("aten::new_full")
class NewFull(_Positional[T], ahead=True):
    """A tensor of the input's dtype filled with one number.

    Source: torch.Tensor.new_full.

    Raises
    ------
    ShapeError
        If an extent is negative.
    """

    batch = "shared"
    input: T = Tensor()
    size: tuple[int, ...] = Ints()
    fill_value: float = Scalar()

    def result(self: NewFull[TensorSpec]) -> TensorSpec:
        return TensorSpec(_size(self), self.dtype or self.input.dtype)

    def compute(self: NewFull[np.ndarray]) -> Any:
        return np.full(self.size, convert(self.fill_value, self.dtype or self.input.dtype))


@record("aten::scalar_tensor")
class ScalarTensor(_Positional[T], ahead=True):
    """A number as a 0-d tensor.

    Source: torch.scalar_tensor.
    """

    s: float = Scalar()

    def result(self: ScalarTensor[TensorSpec]) -> TensorSpec:
        return TensorSpec((), self.dtype or FLOAT32)

    def compute(self: ScalarTensor[np.ndarray]) -> Any:
        return convert(self.s, self.dtype or FLOAT32)


@record("torch.arange")
class Arange(Created[T]):
    """``y[i] = start + i * step`` for all values below `end`.

    Source: torch.arange.

    Raises
    ------
    ShapeError
        If `step` is 0 or has the wrong sign, or there are too many elements.
    """

    start: float = Scalar(0)
    end: float = Scalar()
    step: float = Scalar(1)
    dtype: np.dtype | None = DType(None)

    def result(self: Arange[Any]) -> TensorSpec:
        if self.step == 0 or not all(map(math.isfinite, (self.start, self.end, self.step))):
            raise ShapeError(
                f"cannot count from {self.start} to {self.end} in steps of {self.step}"
            )
        steps = (self.end - self.start) / self.step
        if not math.isfinite(steps):
            raise ShapeError(
                f"from {self.start} to {self.end} there are too many steps of {self.step}"
            )
        length = math.ceil(steps)
        if length < 0:
            raise ShapeError(f"{self.step} does not lead from {self.start} to {self.end}")
        return TensorSpec((length,), self.dtype or result_type([self.start, self.end, self.step]))

    def compute(self: Arange[np.ndarray]) -> Any:
        (length,) = self.result().shape
        return self.start + np.arange(length) * self.step


@record("aten::linspace")
class Linspace(_Positional[T], ahead=True):
    """`steps` evenly spaced numbers from `start` to `end`, both included.

    Source: torch.linspace.
    """

    start: float = Scalar()
    end: float = Scalar()
    steps: int = Int(minimum=0)

    def result(self: Linspace[TensorSpec]) -> TensorSpec:
        return TensorSpec((self.steps,), self.dtype or FLOAT32)

    def compute(self: Linspace[np.ndarray]) -> Any:
        return np.linspace(self.start, self.end, self.steps)


@record("aten::logspace")
class Logspace(_Positional[T], ahead=True):
    """``base ** x`` for `steps` evenly spaced numbers x from `start` to `end`.

    Source: torch.logspace.
    """

    start: float = Scalar()
    end: float = Scalar()
    steps: int = Int(minimum=0)
    base: float = Scalar(10.0)
    result = Linspace.result

    def compute(self: Logspace[np.ndarray]) -> Any:
        return np.logspace(self.start, self.end, self.steps, base=self.base)


@record("aten::eye")
class Eye(Overloaded[T], Created[T]):
    """Ones on the diagonal, zeros elsewhere.

    Source: torch.eye.
    """

    overloads = (
        schema(n=Int(minimum=0), m=Int(minimum=0)) + _Positional.arguments,
        schema(n=Int(minimum=0)) + _Positional.arguments,
    )
    n: int
    dtype: np.dtype | None

    def result(self: Eye[TensorSpec]) -> TensorSpec:
        return TensorSpec((self.n, getattr(self, "m", self.n)), self.dtype or FLOAT32)

    def compute(self: Eye[np.ndarray]) -> Any:
        return np.eye(self.n, getattr(self, "m", self.n))


# -- random numbers ----------------------------------------------------------------------------


class Random(Record[T]):
    """Base of the random tensors; a subclass has `spec`, and `draw` unless it is normal."""

    batch = NoBatchRule("the numbers drawn depend on the shape")
    is_pure = False

    def infer(self: Random[TensorSpec]) -> Any:
        return self.spec()

    def bind(self: Random[TensorView], b: Binder) -> None:
        spec = self.spec()
        # Each operator has its own seed, so that no two draw the same numbers.
        generator = np.random.Generator(np.random.PCG64(zlib.crc32(b.operator.name.encode())))
        drawn = self.draw(generator, spec.shape)
        b.alias(b.constant(np.require(convert(drawn, spec.dtype), requirements="C")))

    def draw(self, generator: np.random.Generator, shape: tuple[int, ...]) -> Any:
        return generator.standard_normal(shape)

    def spec(self: Random[Known]) -> TensorSpec:
        raise NotImplementedError


@record("torch.randn")
class Randn(Random[T]):
    """Normally distributed random numbers: not PyTorch's, but the same in every run.

    Source: torch.randn.
    """

    size: tuple[int, ...] = Ints()
    dtype: np.dtype | None = DType(None)

    def spec(self: Randn[Known]) -> TensorSpec:
        return TensorSpec(_size(self), self.dtype or FLOAT32)


@record("torch.randn_like")
class RandnLike(Random[T]):
    """Normally distributed random numbers in the shape of the input; see torch.randn.

    Source: torch.randn_like.
    """

    input: T = Tensor()
    dtype: np.dtype | None = DType(None)
    memory_format: str | None = Str(default=None)

    def spec(self: RandnLike[Known]) -> TensorSpec:
        return TensorSpec(self.input.shape, self.dtype or self.input.dtype)


@record("torch.normal")
class NormalLike(Random[T]):
    """Normally distributed random numbers in the shape of the input; see torch.randn.

    Source: torch.Tensor.normal_.
    """

    input: T = Tensor()
    mean: float = Scalar(0.0)
    std: float = Scalar(1.0)
    generator: Any = AnyArgument(None)

    def spec(self: NormalLike[Known]) -> TensorSpec:
        return TensorSpec(self.input.shape, self.input.dtype)

    def draw(self, generator: np.random.Generator, shape: tuple[int, ...]) -> Any:
        return self.mean + self.std * generator.standard_normal(shape)


@record("aten::rand")
class Rand(Randn[T]):
    """Uniform random numbers from 0 to 1; see torch.randn.

    Source: torch.rand.
    """

    layout_: Any = AnyArgument(None)
    device: Any = AnyArgument(None)
    pin: Any = AnyArgument(None)

    def draw(self, generator: np.random.Generator, shape: tuple[int, ...]) -> Any:
        return generator.random(shape)


@record("aten::rand_like")
class RandLike(RandnLike[T], ahead=True):
    """Uniform random numbers from 0 to 1 in the shape of the input; see torch.randn.

    Source: torch.rand_like.
    """

    input: T = Tensor()
    dtype: np.dtype | None = DType(None)
    layout_: Any = AnyArgument(None)
    device: Any = AnyArgument(None)
    pin: Any = AnyArgument(None)

    def draw(self, generator: np.random.Generator, shape: tuple[int, ...]) -> Any:
        return generator.random(shape)
