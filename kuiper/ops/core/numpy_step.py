"""Operators that run as one call of numpy between the compiled steps.

They are rare operators, and those whose dtypes have no kernels.  Such a record has two methods,
`result` for shapes and `compute` for values; its base does the rest.  If all tensors are known
while planning, so is the result, and no step is left.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from kuiper.errors import ShapeError
from kuiper.expression.promotion import is_number
from kuiper.ir.view import TensorSpec, TensorView
from kuiper.ops.core.binder import Binder
from kuiper.ops.core.record import Record, T
from kuiper.ops.core.schema import Argument, StaticValue, Tensors, ValuesNeeded, convert_positional

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = [
    "MAX_CONSTANT_BYTES",
    "DataDependent",
    "KernelRecord",
    "NumpyRecord",
    "Overloaded",
    "broadcast",
    "checked_index",
    "convert",
    "deviation",
    "mean",
    "variance",
]


# Limits a result that is known while planning, since it lives as long as the plan.
MAX_CONSTANT_BYTES = 1 << 31


class NumpyRecord(Record[T]):
    """Base of the records whose operators numpy computes.

    A subclass has two methods.  ``result()`` returns a spec, or a tuple of them, as `infer` does.
    ``compute()``, called with arrays for the tensors, returns an array, or a tuple of them, which
    are cast to the dtypes of `result`; it raises ShapeError for values such as an index that is
    out of range.
    """

    runs_in_numpy = True

    def result(self: NumpyRecord[TensorSpec]) -> Any:
        """Return the specs of the outputs; by default one output is like the input."""
        x: TensorSpec = vars(self)["input"]
        return TensorSpec(x.shape, x.dtype)

    def compute(self: NumpyRecord[np.ndarray]) -> Any:
        raise NotImplementedError

    def is_known(self: NumpyRecord[TensorSpec]) -> bool:
        """Whether the result can be computed while planning."""
        return all(tensor.is_constant for tensor in _tensors(self))

    def infer(self: NumpyRecord[TensorSpec]) -> Any:
        specs = self.result()
        if not self.is_known():
            return specs
        specs = specs if isinstance(specs, tuple) else (specs,)
        for spec in specs:
            if spec.n_bytes > MAX_CONSTANT_BYTES:
                raise ShapeError(f"its result would be a constant {spec} of more than 2 GiB")
        arrays = _run(_replaced(self, _known_array))
        return tuple(
            TensorSpec(spec.shape, spec.dtype, _stored(array, spec))
            for array, spec in zip(arrays, specs, strict=True)
        )

    def bind(self: NumpyRecord[TensorView], b: Binder) -> None:
        constants = [b.output_spec(index).constant for index in range(self.n_outputs)]
        if constants and constants[0] is not None:
            for index, constant in enumerate(constants):
                assert constant is not None  # all are known, or none
                b.alias(b.constant(constant), index)
            return
        label = b.operator.label

        def run(*arrays: Any) -> Any:
            waiting = iter(arrays)
            try:
                return _run(_replaced(self, lambda _: next(waiting)))[: self.n_outputs]
            except ShapeError as error:
                raise ShapeError(f"{label}: {error}") from None

        tensors = [tensor for tensor in _tensors(self) if isinstance(tensor, TensorView)]
        b.python(run, tensors, [b.output(index) for index in range(self.n_outputs)])


class KernelRecord(NumpyRecord[T]):
    """Base of the records whose operators have a kernel; numpy computes only constant results.

    A subclass has ``steps(b)``, which is `bind` for a result that is not known while planning.  It
    may call ``self.in_numpy(b)`` for arguments that the kernel does not support.
    """

    runs_in_numpy = False

    def steps(self: KernelRecord[TensorView], b: Binder) -> None:
        raise NotImplementedError

    def bind(self: KernelRecord[TensorView], b: Binder) -> None:
        if b.output_spec().constant is None:
            self.steps(b)
        else:
            super().bind(b)

    def in_numpy(self: KernelRecord[TensorView], b: Binder) -> None:
        """Bind to a step that calls numpy."""
        super().bind(b)


class DataDependent(NumpyRecord[T]):
    """Base of the records whose results have shapes that depend on values.

    A subclass has ``compute()``, which returns the results.
    """

    data_dependent = True

    def infer(self: DataDependent[TensorSpec]) -> Any:
        if not self.is_known():
            raise ValuesNeeded("the shape of its result depends on values of its input")
        arrays = _run(_replaced(self, _known_array))
        return tuple(TensorSpec(array.shape, array.dtype, array) for array in arrays)


class Schemas(Record[T]):
    """Base of the records of operators with several schemas and only positional arguments.

    `overloads` lists the arguments of each schema; the first one that fits the inputs applies.  The
    record that `read` returns has its arguments as attributes.
    """

    inputs: list[Any] = Tensors()
    overloads: ClassVar[tuple[tuple[Argument, ...], ...]] = ()

    def read(self) -> Self:
        """Return the operator with named arguments, or raise ShapeError or ValuesNeeded."""
        waiting = None
        for arguments in self.overloads:
            try:
                found = convert_positional(self.inputs, arguments)
            except ValuesNeeded as error:
                waiting = waiting or error
                continue
            except (ValueError, TypeError, OverflowError):
                continue
            return type(self)(**found, n_outputs=self.n_outputs)
        if waiting is not None:
            raise waiting
        forms = " or ".join(f"({', '.join(map(repr, form))})" for form in self.overloads)
        got = ", ".join(repr(i.value if isinstance(i, StaticValue) else i) for i in self.inputs)
        raise ShapeError(f"its inputs are ({got}), expected {forms}")


class Overloaded(Schemas[T], NumpyRecord[T]):
    """Base of the numpy records with several schemas."""

    def infer(self: Overloaded[TensorSpec]) -> Any:
        return super(Overloaded, self.read()).infer()

    def bind(self: Overloaded[TensorView], b: Binder) -> None:
        super(Overloaded, self.read()).bind(b)


def broadcast(*operands: Any) -> tuple[int, ...]:
    """Return the broadcast shape of tensors and numbers, or raise ShapeError."""
    shapes = [operand.shape for operand in operands if hasattr(operand, "shape")]
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        listed = " and ".join(map(str, shapes))
        raise ShapeError(f"the shapes {listed} do not broadcast") from None


def checked_index(index: np.ndarray, extent: int, negative: bool = False) -> np.ndarray:
    """Return an array of indices, or raise ShapeError if one exceeds the axis."""
    lowest = -extent if negative else 0
    if index.size and not (lowest <= index.min() and index.max() < extent):
        wrong = index[(index < lowest) | (index >= extent)].flat[0]
        raise ShapeError(f"index {wrong} is out of range for an axis of extent {extent}")
    return index


def convert(array: np.ndarray | complex, dtype: np.dtype) -> np.ndarray:
    """Return an array or number converted to another dtype as in PyTorch.

    Floats are truncated towards zero; a float that no integer of 32 or 64 bits holds becomes the
    least one.  Integers wrap.  Complex numbers lose their imaginary part.
    """
    if is_number(array) and dtype.kind in "iu" and isinstance(array, int):
        if not -(1 << 63) <= array < 1 << 63:
            raise ShapeError(f"{array} has more than 64 bits")
        array = np.asarray(array, np.int64)
    array = np.asarray(array)
    if array.dtype.kind == "c" and dtype.kind != "c":
        array = (array != 0) if dtype.kind == "b" else array.real
    if array.dtype.kind == "f" and dtype.kind in "iu" and dtype.itemsize < 8:
        array = _whole(array, np.int64 if dtype.itemsize < 4 or dtype.kind == "u" else np.int32)
    elif array.dtype.kind == "f" and dtype == np.int64:
        array = _whole(array, np.int64)
    return array.astype(dtype, copy=False)


def _whole(array: np.ndarray, dtype: type[np.signedinteger]) -> np.ndarray:
    """Return floats as integers; NaN and numbers out of range become the least integer."""
    least = np.iinfo(dtype).min
    # The least integer is a power of two, so floats hold it exactly.
    fits = (array >= least) & (array < -float(least))
    return np.where(fits, array, 0).astype(dtype) + np.where(fits, 0, least).astype(dtype)


def _run(operator: NumpyRecord[np.ndarray]) -> tuple[np.ndarray, ...]:
    try:
        with np.errstate(all="ignore"):
            results = operator.compute()
    except (ValueError, IndexError, OverflowError, ZeroDivisionError) as error:
        if isinstance(error, ShapeError):
            raise
        # numpy's own message about values that it does not accept
        raise ShapeError(str(error)) from error
    return results if isinstance(results, tuple) else (results,)


def _tensors(item: Any) -> Iterator[TensorSpec | TensorView]:
    """Yield the tensors among arguments, in a fixed order."""
    if isinstance(item, Record):
        item = tuple(vars(item).values())
    if isinstance(item, TensorSpec | TensorView):
        yield item
    elif isinstance(item, tuple | list):
        for part in item:
            yield from _tensors(part)


def _replaced(item: Any, function: Callable[..., Any]) -> Any:
    """Return arguments with `function` applied to the tensors, in the order of `_tensors`."""
    if isinstance(item, Record):
        return type(item)(**{k: _replaced(v, function) for k, v in vars(item).items()})
    if isinstance(item, TensorSpec | TensorView):
        return function(item)
    if isinstance(item, tuple | list):
        return tuple(_replaced(part, function) for part in item)
    return item


def _known_array(spec: TensorSpec) -> np.ndarray | TensorSpec:
    """Return the values of a tensor in the spec's dtype, which widens half precision."""
    return np.asarray(spec.constant, spec.dtype) if spec.is_constant else spec


def _stored(array: np.ndarray, spec: TensorSpec) -> np.ndarray:
    array = np.asarray(array)
    if array.shape != spec.shape:
        raise ShapeError(f"its values have shape {array.shape}, expected {spec.shape}")
    return np.require(convert(array, spec.dtype), requirements="C")


def mean(x: np.ndarray, axis: Any = None, keepdims: bool = False) -> np.ndarray:
    """Return the mean over axes; NaN over no elements, without numpy's warning."""
    if _n_reduced(x, axis) == 0:
        return np.full(np.sum(x, axis=axis, keepdims=keepdims).shape, np.nan, x.dtype)
    return np.mean(x, axis=axis, keepdims=keepdims)


def variance(
    x: np.ndarray, axis: Any = None, keepdims: bool = False, ddof: float = 0.0
) -> np.ndarray:
    """Return the variance over axes; over `ddof` elements or fewer it is NaN or infinite."""
    count = _n_reduced(x, axis)
    if count == 0:
        return mean(x, axis, keepdims)
    if count > ddof:
        return np.var(x, axis=axis, keepdims=keepdims, ddof=ddof)
    with np.errstate(all="ignore"):
        return np.var(x, axis=axis, keepdims=keepdims) / x.dtype.type(0)


def deviation(
    x: np.ndarray, axis: Any = None, keepdims: bool = False, ddof: float = 0.0
) -> np.ndarray:
    """Return the standard deviation over axes."""
    return np.sqrt(variance(x, axis, keepdims, ddof))


def _n_reduced(x: np.ndarray, axis: Any) -> int:
    """Return the number of elements that are reduced to one."""
    axes = range(x.ndim) if axis is None else axis if isinstance(axis, tuple) else (axis,)
    return math.prod(x.shape[n] for n in axes)
