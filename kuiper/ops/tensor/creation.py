"""Tensors that depend on sizes and numbers only: constants of the plan.

Random numbers are drawn when the plan is made.  They differ from PyTorch's, but are the same in
every run, for any number of threads, and for the first images of any batch.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

from kuiper.errors import ShapeError
from kuiper.expression.promotion import result_type
from kuiper.ir.view import TensorSpec
from kuiper.ops.core.binder import Binder
from kuiper.ops.core.numpy_step import NumpyRecord, Overloaded, convert
from kuiper.ops.core.record import NoBatchRule, Record, record
from kuiper.ops.core.schema import AnyArgument, Argument, DType, Int, Ints, Scalar, Str, Tensor

__all__ = ["Arange", "Eye", "Full", "Linspace", "Random"]

FLOAT32 = np.dtype(np.float32)

# The last positional arguments of functions that create tensors.
_PLACE = (
    DType("dtype", None),
    AnyArgument("layout", None),
    AnyArgument("device", None),
    AnyArgument("pin", None),
)


class Created(NumpyRecord):
    """Base of the records whose result depends on shapes and numbers only."""

    batch: str = NoBatchRule("a number of each member would be an argument")
    runs_in_numpy = False  # but ahead, once
    is_folded = True

    @staticmethod
    def is_known(a: SimpleNamespace) -> bool:
        return True


def _size(a: SimpleNamespace) -> tuple[int, ...]:
    if min(a.size, default=0) < 0:
        raise ShapeError(f"'size' is {a.size}, expected extents >= 0")
    return a.size


def _filled(name: str, types: tuple[str, ...], value: int, summary: str) -> None:
    """Register the three records of a constant tensor: of a size, like an input, and new."""

    def define(
        suffix: str,
        type: str,
        arguments: tuple[Argument, ...],
        shape: Callable[[Any], tuple[int, ...]],
        dtype: Callable[[Any], np.dtype],
        batch: str = Created.batch,
    ) -> None:
        class Filled(Created):
            pass

        Filled.__name__ = Filled.__qualname__ = f"{name}{suffix}"
        Filled.__doc__ = f"{summary}\n\nSource: {type.replace('Tensor.', 'torch.Tensor.')}."
        Filled.arguments, Filled.batch = arguments, batch
        Filled.result = staticmethod(lambda a: TensorSpec(shape(a), a.dtype or dtype(a)))
        Filled.compute = staticmethod(lambda a: np.full(shape(a), value, a.dtype or dtype(a)))
        record(type)(Filled)

    size, like = Ints("size"), Tensor("input")
    options = (DType("dtype", None), Str("memory_format", default=None))
    define("", types[0], (size, options[0]), _size, lambda a: FLOAT32)

    def input_dtype(a: SimpleNamespace) -> np.dtype:
        return a.input.dtype

    define("Like", types[1], (like, *options), lambda a: a.input.shape, input_dtype, "like_input")
    define("New", types[2], (like, size, options[0]), _size, input_dtype, "shared")


_filled(
    "Zeros",
    ("torch.zeros", "torch.zeros_like", "Tensor.new_zeros"),
    0,
    "A tensor of zeros.",
)
_filled("Ones", ("torch.ones", "torch.ones_like", "Tensor.new_ones"), 1, "A tensor of ones.")
_filled(
    "Empty",
    ("torch.empty", "torch.empty_like", "Tensor.new_empty"),
    0,
    "A tensor whose values PyTorch leaves open; here zeros.",
)


@record("torch.full")
class Full(Created):
    """A tensor filled with one number.

    Source: torch.full.

    Raises
    ------
    ShapeError
        If an extent is negative.
    """

    arguments = (Ints("size"), Scalar("fill_value"), DType("dtype", None))

    @staticmethod
    def result(a: SimpleNamespace) -> TensorSpec:
        return TensorSpec(_size(a), a.dtype or result_type([a.fill_value]))

    @staticmethod
    def compute(a: SimpleNamespace) -> Any:
        return np.full(a.size, convert(a.fill_value, Full.result(a).dtype))


@record("torch.full_like")
class FullLike(Created):
    """A tensor of the input's shape filled with one number.

    Source: torch.full_like.
    """

    batch = "like_input"
    arguments = (
        Tensor("input"),
        Scalar("fill_value"),
        DType("dtype", None),
        Str("memory_format", default=None),
    )

    @staticmethod
    def result(a: SimpleNamespace) -> TensorSpec:
        return TensorSpec(a.input.shape, a.dtype or a.input.dtype)

    @staticmethod
    def compute(a: SimpleNamespace) -> Any:
        return np.full(a.input.shape, convert(a.fill_value, a.dtype or a.input.dtype))


@record("aten::zero")
class Zero(Created):
    """Zeros in the shape of the input.

    Source: torch.zero_.
    """

    batch = "like_input"
    arguments = (Tensor("input"),)

    @staticmethod
    def result(a: SimpleNamespace) -> TensorSpec:
        return TensorSpec(a.input.shape, a.input.dtype)

    @staticmethod
    def compute(a: SimpleNamespace) -> Any:
        return np.zeros(a.input.shape, a.input.dtype)


@record("aten::new_full")
class NewFull(Created):
    """A tensor of the input's dtype filled with one number.

    Source: torch.Tensor.new_full.

    Raises
    ------
    ShapeError
        If an extent is negative.
    """

    batch = "shared"
    arguments = (Tensor("input"), Ints("size"), Scalar("fill_value"), *_PLACE)

    @staticmethod
    def result(a: SimpleNamespace) -> TensorSpec:
        return TensorSpec(_size(a), a.dtype or a.input.dtype)

    @staticmethod
    def compute(a: SimpleNamespace) -> Any:
        return np.full(a.size, convert(a.fill_value, a.dtype or a.input.dtype))


@record("aten::scalar_tensor")
class ScalarTensor(Created):
    """A number as a 0-d tensor.

    Source: torch.scalar_tensor.
    """

    arguments = (Scalar("s"), *_PLACE)

    @staticmethod
    def result(a: SimpleNamespace) -> TensorSpec:
        return TensorSpec((), a.dtype or FLOAT32)

    @staticmethod
    def compute(a: SimpleNamespace) -> Any:
        return convert(a.s, a.dtype or FLOAT32)


@record("torch.arange")
class Arange(Created):
    """``y[i] = start + i * step`` for all values below `end`.

    Source: torch.arange.

    Raises
    ------
    ShapeError
        If `step` is 0 or leads away from `end`, or there are too many elements.
    """

    arguments = (Scalar("start", 0), Scalar("end"), Scalar("step", 1), DType("dtype", None))

    @staticmethod
    def result(a: SimpleNamespace) -> TensorSpec:
        if a.step == 0 or not all(map(math.isfinite, (a.start, a.end, a.step))):
            raise ShapeError(f"cannot count from {a.start} to {a.end} in steps of {a.step}")
        steps = (a.end - a.start) / a.step
        if not math.isfinite(steps):
            raise ShapeError(f"from {a.start} to {a.end} there are too many steps of {a.step}")
        length = math.ceil(steps)
        if length < 0:
            raise ShapeError(f"{a.step} does not lead from {a.start} to {a.end}")
        return TensorSpec((length,), a.dtype or result_type([a.start, a.end, a.step]))

    @staticmethod
    def compute(a: SimpleNamespace) -> Any:
        (length,) = Arange.result(a).shape
        return a.start + np.arange(length) * a.step


@record("aten::linspace")
class Linspace(Created):
    """`steps` evenly spaced numbers from `start` to `end`, both included.

    Source: torch.linspace.
    """

    arguments = (Scalar("start"), Scalar("end"), Int("steps", minimum=0), *_PLACE)

    @staticmethod
    def result(a: SimpleNamespace) -> TensorSpec:
        return TensorSpec((a.steps,), a.dtype or FLOAT32)

    @staticmethod
    def compute(a: SimpleNamespace) -> Any:
        return np.linspace(a.start, a.end, a.steps)


@record("aten::logspace")
class Logspace(Created):
    """``base ** x`` for `steps` evenly spaced numbers x from `start` to `end`.

    Source: torch.logspace.
    """

    arguments = (
        Scalar("start"),
        Scalar("end"),
        Int("steps", minimum=0),
        Scalar("base", 10.0),
        *_PLACE,
    )
    result = Linspace.result

    @staticmethod
    def compute(a: SimpleNamespace) -> Any:
        return np.logspace(a.start, a.end, a.steps, base=a.base)


@record("aten::eye")
class Eye(Overloaded, Created):
    """Ones on the diagonal, zeros elsewhere.

    Source: torch.eye.
    """

    overloads = (
        (Int("n", minimum=0), Int("m", minimum=0), *_PLACE),
        (Int("n", minimum=0), *_PLACE),
    )

    @staticmethod
    def result(a: SimpleNamespace) -> TensorSpec:
        return TensorSpec((a.n, getattr(a, "m", a.n)), a.dtype or FLOAT32)

    @staticmethod
    def compute(a: SimpleNamespace) -> Any:
        return np.eye(a.n, getattr(a, "m", a.n))


# -- random numbers ----------------------------------------------------------------------------


class Random(Record):
    """Base of the records that draw random numbers, with `draw`, for the shape of `spec`."""

    batch = NoBatchRule("the numbers drawn depend on the shape")
    is_pure = False

    @classmethod
    def infer(cls, a: SimpleNamespace) -> Any:
        return cls.spec(a)

    @classmethod
    def bind(cls, a: SimpleNamespace, b: Binder) -> None:
        spec = cls.spec(a)
        # A seed per operator, so that no two operators draw the same numbers.
        generator = np.random.Generator(np.random.PCG64(zlib.crc32(b.operator.name.encode())))
        drawn = cls.draw(generator, spec.shape, a)
        b.alias(b.constant(np.require(convert(drawn, spec.dtype), requirements="C")))

    @staticmethod
    def draw(generator: Any, shape: Any, a: SimpleNamespace) -> np.ndarray:
        return generator.standard_normal(shape)

    spec: Callable[..., Any]


@record("torch.randn")
class Randn(Random):
    """Normally distributed random numbers: not PyTorch's, but the same in every run.

    Source: torch.randn.
    """

    arguments = (Ints("size"), DType("dtype", None))

    @staticmethod
    def spec(a: SimpleNamespace) -> TensorSpec:
        return TensorSpec(_size(a), a.dtype or FLOAT32)


@record("torch.randn_like")
class RandnLike(Random):
    """Normally distributed random numbers in the shape of the input; see torch.randn.

    Source: torch.randn_like.
    """

    arguments = (Tensor("input"), DType("dtype", None), Str("memory_format", default=None))

    @staticmethod
    def spec(a: SimpleNamespace) -> TensorSpec:
        return TensorSpec(a.input.shape, a.dtype or a.input.dtype)


@record("torch.normal")
class NormalLike(Random):
    """Normally distributed random numbers in the shape of the input; see torch.randn.

    Source: torch.Tensor.normal_.
    """

    arguments = (
        Tensor("input"),
        Scalar("mean", 0.0),
        Scalar("std", 1.0),
        AnyArgument("generator", None),
    )

    @staticmethod
    def spec(a: SimpleNamespace) -> TensorSpec:
        return TensorSpec(a.input.shape, a.input.dtype)

    @staticmethod
    def draw(generator: Any, shape: Any, a: SimpleNamespace) -> Any:
        return a.mean + a.std * generator.standard_normal(shape)


@record("aten::rand")
class Rand(Random):
    """Uniform random numbers from 0 to 1; see torch.randn.

    Source: torch.rand.
    """

    arguments = (Ints("size"), *_PLACE)
    spec = Randn.spec

    @staticmethod
    def draw(generator: Any, shape: Any, a: SimpleNamespace) -> Any:
        return generator.random(shape)


@record("aten::rand_like")
class RandLike(Random):
    """Uniform random numbers from 0 to 1 in the shape of the input; see torch.randn.

    Source: torch.rand_like.
    """

    arguments = (Tensor("input"), *_PLACE, AnyArgument("memory_format", None))
    spec = RandnLike.spec
    draw = Rand.draw
