"""Matrix products, reductions and what sorts: MatMul, Gemm, softmax, sums, maxima, TopK."""

from __future__ import annotations

from typing import Any

import numpy as np

from kuiper.ir import Attribute
from kuiper.onnx import computed
from kuiper.onnx.builder import Builder, torch_name
from kuiper.onnx.registry import op
from kuiper.onnx.shapes import axes_of
from kuiper.onnx.values import Known, Ref, product

__all__ = ["linear", "transposed"]


class _Transposed:
    """The rows of a transposed matrix that is in a file.

    Its bytes are read for the first slice and kept up to the last one: packing reads all slices in
    order.
    """

    def __init__(self, attribute: Attribute) -> None:
        self._attribute = attribute
        self._matrix: np.ndarray | None = None

    def __call__(self, start: int, stop: int) -> np.ndarray:
        matrix, a = self._matrix, self._attribute
        if matrix is None:
            elements = np.frombuffer(a.raw, f"V{a.raw.size // a.size}").reshape(a.shape)
            matrix = np.ascontiguousarray(elements.T)
        self._matrix = matrix if stop < matrix.shape[0] else None
        return matrix[start:stop].reshape(-1).view(np.uint8)


def transposed(b: Builder, matrix: Known) -> Known:
    """Return a known matrix with its axes swapped; one in a file is read when it is packed."""
    attribute = b.attribute(matrix)
    if isinstance(attribute._source, np.ndarray) or not matrix.size:
        return Known(np.ascontiguousarray(matrix.array.T))
    return Known(Attribute(attribute.shape[::-1], attribute.dtype, _Transposed(attribute)))


def linear(b: Builder, x: Any, weight: Known, bias: Known | None) -> Any:
    """Return ``x @ weight.T + bias``."""
    outputs, inputs = weight.shape
    params = {"in_features": inputs, "out_features": outputs, "bias": bias is not None}
    attributes = {"weight": b.attribute(weight)}
    if bias is not None:
        attributes["bias"] = b.attribute(bias)
    return b.module("nn.Linear", [x], params, attributes)


def is_matrix(value: Any) -> bool:
    """Tell whether a value is a known float32 matrix."""
    return (
        isinstance(value, Known)
        and value.rank == 2
        and value.dtype == np.float32
        and value.size > 0
        and not value.is_open
    )


@op("MatMul")
def matmul(b: Builder, x: Any, y: Any) -> Any:
    if is_matrix(y) and isinstance(x, Ref) and x.shape is not None and x.rank > 1:
        return linear(b, x, transposed(b, y), None)
    return b.emit("torch.matmul", x, y)


@op("Gemm")
def gemm(
    b: Builder, x: Any, y: Any, c: Any = None, *, alpha: float = 1.0, beta: float = 1.0,
    transA: int = 0, transB: int = 0, broadcast: int = 0,
) -> Any:  # fmt: skip
    x = b.emit("torch.t", x) if transA else x
    if is_matrix(y) and alpha == 1.0 and isinstance(x, Ref):
        weight = y if transB else transposed(b, y)
        bias = _bias(c, weight.shape[0], beta)
        if bias is not None or c is None:
            return linear(b, x, weight, bias)
        result = linear(b, x, weight, None)
    else:
        result = b.emit("torch.matmul", x, b.emit("torch.t", y) if transB else y)
    if alpha != 1.0:
        result = b.call("mul", result, alpha)
    if c is None or beta == 0.0:
        return result
    return b.call("add", result, c if beta == 1.0 else b.call("mul", b.ref(c), beta))


def _bias(c: Any, outputs: int, beta: float) -> Known | None:
    """Return the summand of a product as a vector, if it is known and one."""
    if not isinstance(c, Known) or c.is_open or c.size not in (1, outputs):
        return None
    if c.rank > 1 and c.shape[-1] != c.size:
        return None
    if beta == 1.0 and c.shape == (outputs,):
        return c
    vector = np.broadcast_to(c.array.reshape(-1) * np.float32(beta), (outputs,))
    return Known(np.ascontiguousarray(vector, np.float32))


@op("Einsum")
def einsum(b: Builder, *values: Any, equation: str) -> Any:
    return b.emit("torch.einsum", *values, equation=equation.replace(" ", ""))


@op("Det")
def det(b: Builder, x: Any) -> Any:
    return b.emit("kuiper.Determinant", x)


# -- along an axis ------------------------------------------------------------------------------


def _softmax(type_: str, name: str) -> None:
    @op(type_)
    def old(b: Builder, x: Any, *, axis: int = 1) -> Any:
        rank = x.rank
        axis = b.axis(axis, rank)
        if axis == rank - 1:
            return b.emit(name, x, dim=-1)
        # The axes from `axis` on count as one.
        flat = b.emit("torch.flatten", x, start_dim=axis, end_dim=-1)
        return b.emit("Tensor.reshape", b.emit(name, flat, dim=-1), shape=b.extents(x))

    @op(type_, since=13)
    def new(b: Builder, x: Any, *, axis: int = -1) -> Any:
        return b.emit(name, x, dim=axis)


_softmax("Softmax", "F.softmax")
_softmax("LogSoftmax", "F.log_softmax")


@op("Hardmax")
def hardmax_old(b: Builder, x: Any, *, axis: int = 1) -> Any:
    rank = x.rank
    axis = b.axis(axis, rank)
    if axis == rank - 1:
        return hardmax(b, x, axis=-1)
    flat = b.emit("torch.flatten", x, start_dim=axis, end_dim=-1)
    return b.emit("Tensor.reshape", hardmax(b, flat, axis=-1), shape=b.extents(x))


@op("Hardmax", since=13)
def hardmax(b: Builder, x: Any, *, axis: int = -1) -> Any:
    axis = b.axis(axis, x.rank)
    best = b.emit("torch.argmax", x, dim=axis, keepdim=True)
    shape = [1] * x.rank
    shape[axis] = -1
    positions = b.emit("torch.arange", start=0, end=b.extents(x)[axis], step=1, dtype="torch.long")
    return b.cast(
        b.emit("torch.eq", best, b.emit("Tensor.reshape", positions, shape=shape)), x.dtype
    )


def _reduction(type_: str, name: str, before: str = "", after: str = "") -> None:
    @op(type_)
    def reduction(
        b: Builder, x: Any, axes: Any = None, *, keepdims: int = 1,
        noop_with_empty_axes: int = 0,
    ) -> Any:  # fmt: skip
        value = b.ref(x)
        found = [] if axes is None else _axes(b, axes, x)
        if before:
            value = b.call(before, value)
        if found or not noop_with_empty_axes:
            value = _reduced(b, value, name, found, keepdims)
        if after:
            value = b.call(after, value)
        return value if value.dtype == x.dtype else b.cast(value, x.dtype)


def _axes(b: Builder, axes: Any, x: Any) -> list[Any]:
    """Return the axes of a reduction: ints, or Sizes that a run computes."""
    if isinstance(axes, Ref) and axes.shape == (0,):
        return []
    return computed.axes_of(b, axes) if isinstance(axes, Ref) else axes_of(b, axes, x.rank)


def _reduced(b: Builder, x: Any, name: str, axes: list[int], keepdims: int) -> Any:
    dims: Any = axes or list(range(x.rank))
    if not dims:
        return x
    dtype = x.dtype
    if dtype == np.bool_ and name in ("torch.amax", "torch.amin"):
        x = b.cast(x, np.uint8)
    if name == "torch.mean" and dtype.kind in "iu":
        total = b.emit("torch.sum", x, dim=tuple(dims), keepdim=bool(keepdims))
        count = product(b.extents(x)[d] for d in dims)
        return b.formula("floor_divide(sub(@0,fmod(@0,@1)),@1)", total, count)
    if name == "torch.prod" and len(dims) > 1:
        if not keepdims and not all(isinstance(d, int) for d in dims):
            raise b.error("axes is computed by the model, expected a constant")
        for dim in dims if keepdims else sorted(dims, reverse=True):
            x = b.emit(name, x, dim=dim, keepdim=bool(keepdims))
        return x
    found = dims[0] if name == "torch.prod" else tuple(dims)
    if any(n == 0 for n in x.shape or ()) and name in ("torch.amax", "torch.amin"):
        return _reduced_nothing(b, x, name, dims, keepdims)
    return b.emit(name, x, dim=found, keepdim=bool(keepdims))


_reduction("ReduceSum", "torch.sum")
_reduction("ReduceMean", "torch.mean")
_reduction("ReduceProd", "torch.prod")
_reduction("ReduceMax", "torch.amax")
_reduction("ReduceMin", "torch.amin")
_reduction("ReduceLogSumExp", "torch.logsumexp")
_reduction("ReduceL1", "torch.sum", before="abs")
_reduction("ReduceL2", "torch.sum", before="square", after="sqrt")
_reduction("ReduceSumSquare", "torch.sum", before="square")
_reduction("ReduceLogSum", "torch.sum", after="log")


def _reduced_nothing(b: Builder, x: Any, name: str, dims: Any, keepdims: int) -> Any:
    """Return the extremum of no element: the largest or smallest number of the type."""
    low = name == "torch.amax"
    if x.dtype.kind == "f":
        value: Any = -np.inf if low else np.inf
    else:
        value = int(np.iinfo(x.dtype).min if low else np.iinfo(x.dtype).max)
    if all(isinstance(d, int) for d in dims):
        along = [b.axis(d, x.rank) for d in dims]
        shape = [1 if i in along else n for i, n in enumerate(x.shape)]
        if not keepdims:
            shape = [n for i, n in enumerate(x.shape) if i not in along]
        return Known(np.full(shape, value, x.dtype))
    shape = computed.reduced_extents(b.extents(x), dims)
    result = b.emit("torch.full", size=shape, fill_value=value, dtype=torch_name(x.dtype))
    result = b.declared(result, x.dtype, (None,) * len(shape))
    return result if keepdims else computed.squeezed(b, result, dims)


def _best(type_: str, name: str) -> None:
    @op(type_)
    def best(
        b: Builder, x: Any, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0
    ) -> Any:
        axis = b.axis(axis, x.rank)
        if not select_last_index:
            return b.emit(name, x, dim=axis, keepdim=bool(keepdims))
        flipped = b.emit("torch.flip", x, dims=(axis,))
        found = b.emit(name, flipped, dim=axis, keepdim=bool(keepdims))
        return b.formula("sub(@1,@0)", found, b.extents(x)[axis] - 1)


_best("ArgMax", "torch.argmax")
_best("ArgMin", "torch.argmin")


@op("TopK")
def top_k_old(b: Builder, x: Any, k_: Any = None, *, k: int = 0, axis: int = -1) -> Any:
    return top_k(b, x, [k] if k_ is None else k_, axis=axis)


@op("TopK", since=11)
def top_k(b: Builder, x: Any, k: Any, *, axis: int = -1, largest: int = 1, sorted: int = 1) -> Any:
    count = b.numbers(k, "k")[0]
    return b.emit(
        "torch.topk", x, n=2, k=count, dim=axis, largest=bool(largest), sorted=bool(sorted)
    )


@op("CumSum")
def cumsum(b: Builder, x: Any, axis: Any, *, exclusive: int = 0, reverse: int = 0) -> Any:
    along = b.numbers(axis, "axis")[0]
    value = b.emit("torch.flip", x, dims=[along]) if reverse else b.ref(x)
    total = b.emit("torch.cumsum", value, dim=along)
    total = b.cast(total, x.dtype)
    if exclusive:
        total = b.call("sub", total, value)
    return b.emit("torch.flip", total, dims=[along]) if reverse else total


@op("LpNormalization")
def lp_normalization(b: Builder, x: Any, *, axis: int = -1, p: int = 2) -> Any:
    if p == 1:
        norm = b.emit("torch.sum", b.call("abs", b.ref(x)), dim=(axis,), keepdim=True)
    else:
        total = b.emit("torch.sum", b.call("square", b.ref(x)), dim=(axis,), keepdim=True)
        norm = b.call("sqrt", total)
    zero = b.emit("torch.eq", norm, b.ref(Known(np.zeros((), x.dtype))))
    one = b.ref(Known(np.ones((), x.dtype)))
    return b.call("div", b.ref(x), b.emit("torch.where", zero, one, norm))
