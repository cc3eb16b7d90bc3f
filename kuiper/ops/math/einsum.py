"""Einstein summation by matrix products, and operators defined by an equation."""

from __future__ import annotations

import math
import re
import string
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from kuiper.errors import ShapeError
from kuiper.expression import Call, Ref
from kuiper.ir.view import TensorSpec, TensorView
from kuiper.ops.core.axes import axes_of, reshaped
from kuiper.ops.core.binder import Binder
from kuiper.ops.core.record import NoBatchRule, Record, T, record
from kuiper.ops.core.rows import bind_reduction
from kuiper.ops.core.schema import Ints, Known, Str, Tensor, TensorList, Tensors
from kuiper.ops.math.elementwise import computed, write_tree
from kuiper.ops.product.linear import product

if TYPE_CHECKING:
    from kuiper.ops.core.batch import BatchAxis, TracedCall

__all__ = ["Bilinear", "Dot", "Einsum", "Inner", "MultiDot", "Outer", "TensorDot"]

_TERM = re.compile(r"([A-Za-z]*)(?:(\.\.\.)([A-Za-z]*))?")

# A letter, or an axis of the ellipsis counted from its last, which is 0.
Label = str | int

_MULTIPLY = Call("mul", [Ref(0), Ref(1)])


def _terms(equation: str) -> tuple[list[tuple[Any, ...]], tuple[Any, ...] | None]:
    """Return the terms of the operands and of the result: (letters, has an ellipsis, letters)."""
    left, arrow, right = equation.replace(" ", "").partition("->")
    parts = []
    for text in [*left.split(","), *([right] if arrow else [])]:
        found = _TERM.fullmatch(text)
        if found is None:
            raise ShapeError(
                f"'equation' is {equation!r}, expected letters and '...' for each operand, between "
                "commas, such as 'bij,bjk->bik'"
            )
        parts.append((found[1], found[2] is not None, found[3] or ""))
    return (parts[:-1], parts[-1]) if arrow else (parts, None)


def _labelled(a: Einsum[Any]) -> tuple[list[list[Label]], list[Label], dict[Label, int]]:
    """Return the labels of the operands' axes and of the result's axes, and the labels' extents."""
    terms, result = _terms(a.equation)
    if len(terms) != len(a.operands):
        raise ShapeError(
            f"'equation' {a.equation!r} is for {len(terms)} operands, but there are "
            f"{len(a.operands)}"
        )
    has_ellipsis = any(term[1] for term in [*terms, *([result] if result else [])])
    # pnnx drops the ellipses of an equation of several operands when it renames the letters, which
    # leaves more axes than letters.  The position of the ellipsis is lost; assume the usual: first.
    lost = not has_ellipsis and any(
        operand.rank > len(term[0]) for operand, term in zip(a.operands, terms, strict=True)
    )
    operands: list[list[Label]] = []
    extents: dict[Label, int] = {}
    broad = 0
    for number, (operand, (before, dots, after)) in enumerate(zip(a.operands, terms, strict=True)):
        if lost:
            before, dots, after = "", True, before
        rest = operand.rank - len(before) - len(after)
        if rest < 0 or (rest > 0 and not dots):
            raise ShapeError(
                f"operand {number} has shape {operand.shape}, but 'equation' {a.equation!r} gives "
                f"it {len(before) + len(after)} letters"
            )
        broad = max(broad, rest)
        labels = [*before, *range(rest - 1, -1, -1), *after]
        _add_extents(labels, operand.shape, extents, number)
        operands.append(labels)
    used = "".join(before + after for before, _, after in terms)
    ellipsis = list(range(broad - 1, -1, -1))
    if result is None:
        letters = [x for x in string.ascii_uppercase + string.ascii_lowercase if used.count(x) == 1]
        return operands, [*ellipsis, *letters], extents
    before, dots, after = result
    if lost:
        before, dots, after = "", True, before
    for letter in before + after:
        if letter not in used or (before + after).count(letter) > 1:
            how = "twice" if letter in used else "but no operand has it"
            raise ShapeError(f"'equation' {a.equation!r} has {letter!r} in its result {how}")
    return operands, [*before, *(ellipsis if dots else ()), *after], extents


def _add_extents(labels: Any, shape: Any, extents: dict[Label, int], number: int) -> None:
    """Add the extents of one operand, or raise ShapeError if they contradict the known ones."""
    own: dict[Label, int] = {}
    for label, extent in zip(labels, shape, strict=True):
        if own.setdefault(label, extent) != extent:
            raise ShapeError(
                f"operand {number} has extents {own[label]} and {extent} for one letter {label!r}"
            )
    for label, extent in own.items():
        known = extents.get(label, 1)
        if known != extent and 1 not in (known, extent):
            where = f"letter {label!r}" if isinstance(label, str) else "an axis of the ellipsis"
            raise ShapeError(f"operand {number} has extent {extent} for {where}, expected {known}")
        extents[label] = known if extent == 1 else extent


@record("torch.einsum")
class Einsum(Record[T]):
    """Products of operands summed over the letters that the result lacks: ``bik,bkj->bij``.

    Repeated letters mean a diagonal, an ellipsis any further axes; extents of 1 broadcast.
    Operands are multiplied from left to right, each time by one batched matrix product.
    Source: torch.einsum.
    """

    operands: list[T] = Tensors()
    equation: str = Str()

    def infer(self: Einsum[TensorSpec]) -> TensorSpec:
        dtypes = {operand.dtype for operand in self.operands}
        if len(dtypes) != 1:
            listed = ", ".join(map(str, sorted(dtypes, key=str))) or "none"
            raise ShapeError(f"the dtypes of its operands are {listed}, expected one")
        _, result, extents = _labelled(self)
        return TensorSpec([extents[label] for label in result], dtypes.pop())

    def bind(self: Einsum[TensorView], b: Binder) -> None:
        if len(self.operands) == 1 and _is_compiled(self):
            labels, result, _ = _labelled(self)
            x, names = _reduced(b, _diagonal(self.operands[0], labels[0]), set(result))
            b.alias(_ordered(x, names, result))
        else:
            _compute(self, b, b.output())

    @staticmethod
    def batch(c: TracedCall) -> BatchAxis:
        text, _, result = c.a.equation.replace(" ", "").partition("->")
        specs, terms = c.tensors, text.split(",")
        c.require("." not in c.a.equation and bool(result) and len(terms) == len(specs))
        letters: set[str] = set()
        found: list[BatchAxis] = []
        for term, spec in zip(terms, specs, strict=True):
            c.require(len(term) == spec.rank)
            batch = c.batch_of(spec)
            if batch is not None:
                letters.add(term[batch.axis])
                found.append(batch)
                c.require(term.count(term[batch.axis]) == 1)
        c.require(len(letters) == 1 and len({(b.outer, b.inner) for b in found}) == 1)
        letter = letters.pop()
        c.require(letter in result)
        for term, spec in zip(terms, specs, strict=True):
            if c.batch_of(spec) is None and letter in term and spec.shape[term.index(letter)] != 1:
                c.spread(spec, found[0]._replace(axis=term.index(letter)))
        return found[0]._replace(axis=result.index(letter))


def _is_compiled(a: Einsum[Any]) -> bool:
    return a.operands[0].dtype == np.float32 and 0 not in _labelled(a)[2].values()


def _compute(a: Einsum[Any], b: Binder, y: TensorView) -> None:
    """Add the steps that write the result into `y`."""
    labels, result, _ = _labelled(a)
    if not _is_compiled(a):
        _bind_numpy(a, b, labels, result, y)
        return
    first, *rest = [_diagonal(x, names) for x, names in zip(a.operands, labels, strict=True)]
    while rest:
        second, *rest = rest
        wanted = set(result).union(*(names for _, names in rest))
        first = _joined(b, first, second, wanted, None if rest else (y, result))


def _bind_numpy(a: Einsum[Any], b: Binder, labels: Any, result: Any, y: TensorView) -> None:
    """Add the step for other dtypes than float32, and for sums over no terms."""
    numbers: dict[Label, int] = {}
    subscripts = [[numbers.setdefault(n, len(numbers)) for n in names] for names in labels]
    kept = [numbers[n] for n in result]

    def run(*arrays: Any) -> Any:
        arguments = [x for pair in zip(arrays, subscripts, strict=True) for x in pair]
        return np.einsum(*arguments, kept, optimize=True)

    b.python(run, a.operands, [y])


def _diagonal(x: TensorView, labels: Sequence[Label]) -> tuple[TensorView, list[Label]]:
    """Return a view of an operand with one axis per label, without extents of 1, and the labels."""
    names = [n for n in dict.fromkeys(labels) if x.shape[labels.index(n)] != 1]
    strides = [
        sum(s for s, label in zip(x.strides, labels, strict=True) if label == n) for n in names
    ]
    return x.with_layout([x.shape[labels.index(n)] for n in names], strides), names


def _ordered(x: TensorView, names: Sequence[Label], order: Sequence[Label]) -> TensorView:
    """Return a view with the axes in an order; those that `x` lacks have extent 1."""
    axes = dict(zip(names, zip(x.shape, x.strides, strict=True), strict=True))
    layout = [axes.get(n, (1, 0)) for n in order]
    return x.with_layout([extent for extent, _ in layout], [stride for _, stride in layout])


def _reduced(b: Binder, part: Any, wanted: set[Any]) -> tuple[TensorView, list[Label]]:
    """Sum an operand over the labels that are not `wanted`."""
    x, names = part
    axes = [axis for axis, name in enumerate(names) if name not in wanted]
    if axes:
        x = bind_reduction(b, x, axes, False, "sum", is_output=False)
        names = [name for name in names if name in wanted]
    return x, names


def _joined(
    b: Binder, left: Any, right: Any, wanted: set[Any], end: tuple[TensorView, list[Label]] | None
) -> Any:
    """Add the steps that multiply two operands, and return the product with its labels.

    Parameters
    ----------
    b : Binder
    left, right : tuple of (TensorView, list of labels)
    wanted : set of labels
        Those that later operands or the result need.
    end : tuple of (TensorView, list of labels) or None
        The output and its labels, for the last product.
    """
    target, result = (None, None) if end is None else end
    left = _reduced(b, left, wanted.union(right[1]))
    right = _reduced(b, right, wanted.union(left[1]))
    if result is not None:
        # The columns of a product come from the right operand and are adjacent in memory, so the
        # operand with the last axis of the result must be the right one.
        own = [n for n in result if (n in left[1]) != (n in right[1])]
        if own and own[-1] in left[1]:
            left, right = right, left
    (x, x_names), (y, y_names) = left, right
    extents = dict(zip(x_names, x.shape, strict=True)) | dict(zip(y_names, y.shape, strict=True))
    terms = [n for n in x_names if n in y_names and n not in wanted]
    order = [n for n in ([*x_names, *y_names] if result is None else result) if n in extents]
    order = [n for n in dict.fromkeys(order) if n in wanted]
    rows = [n for n in order if n not in y_names]
    columns = [n for n in order if n not in x_names]
    batch = [n for n in order if n in x_names and n in y_names]
    if terms and (rows or columns):
        order = [*batch, *rows, *columns]
    shape = [extents[n] for n in order]
    if target is None or result is None:
        out = b.temporary(shape)
    else:
        out = _ordered(target, result, order)
    if not terms:
        factors = [_ordered(x, x_names, order), _ordered(y, y_names, order)]
        write_tree(b, _MULTIPLY, factors, out)
        return out, order
    if not rows and not columns:
        every = [*order, *terms]
        factors = [_ordered(x, x_names, every), _ordered(y, y_names, every)]
        products = computed(b, _MULTIPLY, factors)
        axes = range(len(order), len(every))
        b.copy(bind_reduction(b, products, axes, False, "sum", is_output=False), out)
        return out, order
    # The sum over several labels becomes a sum over one axis, which both operands must have.
    terms.sort(key=lambda n: -x.strides[x_names.index(n)])
    depth = math.prod(extents[n] for n in terms)
    x = _ordered(x, x_names, [*batch, *rows, *terms])
    y = _ordered(y, y_names, [*batch, *terms, *columns])
    x = reshaped(b, x, [*x.shape[: len(batch) + len(rows)], depth])
    y = reshaped(b, y, [*y.shape[: len(batch)], depth, *(extents[n] for n in columns)])
    z = out if not columns or out.strides[-1] == 1 else b.temporary(shape)
    _multiply_matrices(b, x, y, z, len(batch), len(rows))
    if z is not out:
        b.copy(z, out)
    return out, order


def _multiply_matrices(
    b: Binder, x: TensorView, y: TensorView, z: TensorView, n_batch: int, n_rows: int
) -> None:
    """Add the step for (batch, rows, depth) times (batch, depth, columns).

    Batch, rows and columns may be several axes each.  Of rows or columns that cannot be viewed as
    one axis, all but the last join the batch.
    """
    if x.shape[-1] != 1 and x.strides[-1] != 1:
        x = b.contiguous(x)
    batch, depth = z.shape[:n_batch], x.shape[-1]
    inner = n_batch + n_rows
    n_columns = math.prod(z.shape[inner:])
    flat_y = y.reshape((*batch, depth, n_columns))
    flat_z = z.reshape((*z.shape[:inner], n_columns))
    if flat_y is None or flat_z is None or (n_columns > 1 and flat_z.strides[-1] != 1):
        extra = range(inner, z.rank - 1)
        z = z.permute([*range(n_batch), *extra, *range(n_batch, inner), z.rank - 1])
        y = y.permute([*range(n_batch), *range(n_batch + 1, y.rank - 1), n_batch, y.rank - 1])
        x = _repeated(x, n_batch, z.shape[n_batch : n_batch + len(extra)])
        n_batch += len(extra)
    else:
        y, z = flat_y, flat_z
    batch, n_columns = z.shape[:n_batch], z.shape[-1]
    n_flat = math.prod(z.shape[n_batch:-1])
    flat_x = x.reshape((*batch, n_flat, depth))
    flat_z = z.reshape((*batch, n_flat, n_columns))
    if flat_x is None or flat_z is None or (depth > 1 and flat_x.strides[-1] != 1):
        y = _repeated(y, n_batch, z.shape[n_batch:-2])
    else:
        x, z = flat_x, flat_z
    product(b, x, y, z)


def _repeated(x: TensorView, axis: int, extents: Sequence[int]) -> TensorView:
    """Return a view repeated along further axes in front of `axis`."""
    return x.with_layout(
        (*x.shape[:axis], *extents, *x.shape[axis:]),
        (*x.strides[:axis], *(0 for _ in extents), *x.strides[axis:]),
    )


class _AsEinsum(Record[T]):
    """Base of the operators that are an einsum of `operands()` by `equation()`."""

    batch = NoBatchRule("which axes it contracts depends on the ranks")
    input: T
    other: T

    def equation(self: _AsEinsum[Any]) -> str:
        raise NotImplementedError

    def _read(self: _AsEinsum[Any]) -> Einsum[Any]:
        return Einsum(operands=self.operands(), equation=self.equation())

    def operands(self: _AsEinsum[Any]) -> list[Any]:
        return [self.input, self.other]

    def infer(self: _AsEinsum[TensorSpec]) -> Any:
        return self._read().infer()

    def bind(self: _AsEinsum[TensorView], b: Binder) -> None:
        self._read().bind(b)


@record("aten::dot", "aten::vdot")
class Dot(_AsEinsum[T]):
    """The sum of the products of two vectors of real numbers.

    Source: torch.dot, torch.vdot.
    """

    input: T = Tensor(rank=1)
    other: T = Tensor(rank=1)

    def equation(self: Dot[Known]) -> str:
        if self.input.dtype.kind == "c":
            raise ShapeError(f"the input is {self.input.dtype}, expected real numbers")
        return "i,i->"


@record("aten::outer", "aten::ger")
class Outer(_AsEinsum[T]):
    """Each element of one vector times each of another.

    Source: torch.outer.
    """

    input: T = Tensor(rank=1)
    other: T = Tensor(rank=1)

    def equation(self: Outer[Known]) -> str:
        return "i,j->ij"


@record("aten::inner")
class Inner(_AsEinsum[T]):
    """Sums of products over the last axes of two tensors.

    Source: torch.inner.
    """

    input: T = Tensor()
    other: T = Tensor()

    def equation(self: Inner[Known]) -> str:
        if self.input.rank == 0 or self.other.rank == 0:
            return "...,...->..."
        left = string.ascii_lowercase[: self.input.rank - 1]
        right = string.ascii_uppercase[: self.other.rank - 1]
        return f"{left}z,{right}z->{left}{right}"


@record("aten::tensordot")
class TensorDot(_AsEinsum[T]):
    """Sums of products over some axes of two tensors.

    Source: torch.tensordot.
    """

    input: T = Tensor()
    other: T = Tensor()
    dims_self: tuple[int, ...] = Ints()
    dims_other: tuple[int, ...] = Ints()

    def equation(self: TensorDot[Known]) -> str:
        if len(self.dims_self) != len(self.dims_other):
            raise ShapeError(
                f"'dims' are {self.dims_self} and {self.dims_other}, expected equal lengths"
            )
        if max(self.input.rank, self.other.rank) > len(string.ascii_lowercase):
            raise ShapeError(f"the inputs are {self.input!r}, {self.other!r}, expected fewer axes")
        left = list(string.ascii_lowercase[: self.input.rank])
        right = list(string.ascii_uppercase[: self.other.rank])
        mine = axes_of(self.dims_self, self.input.shape)
        for d, e in zip(mine, axes_of(self.dims_other, self.other.shape), strict=True):
            right[e] = left[d]
        kept = [n for n in left if n not in right] + [n for n in right if n not in left]
        return f"{''.join(left)},{''.join(right)}->{''.join(kept)}"


@record("aten::linalg_multi_dot", "aten::chain_matmul")
class MultiDot(_AsEinsum[T]):
    """The product of several matrices; the first and the last may be vectors.

    Source: torch.linalg.multi_dot.
    """

    tensors: tuple[T, ...] = TensorList()

    def operands(self: MultiDot[Known]) -> list[Any]:
        return list(self.tensors)

    def equation(self: MultiDot[Known]) -> str:
        letters = string.ascii_letters
        if not 2 <= len(self.tensors) < len(letters):
            raise ShapeError(f"it has {len(self.tensors)} operands, expected two or more")
        ends = (0, len(self.tensors) - 1)
        terms = []
        for number, tensor in enumerate(self.tensors):
            if tensor.rank != 2 and not (tensor.rank == 1 and number in ends):
                raise ShapeError(f"operand {number} has shape {tensor.shape}, expected a matrix")
            own = letters[number : number + 2]
            terms.append(own if tensor.rank == 2 else own[1:] if number == 0 else own[:1])
        result = letters[0] * (self.tensors[0].rank == 2) + (
            letters[len(terms)] * (self.tensors[-1].rank == 2)
        )
        return f"{','.join(terms)}->{result}"


@record("aten::bilinear")
class Bilinear(_AsEinsum[T]):
    """``y[o] = sum(x1[i] * weight[o, i, j] * x2[j]) + bias[o]`` over the last axes.

    Source: torch.nn.functional.bilinear.
    """

    input1: T = Tensor()
    input2: T = Tensor()
    weight: T = Tensor(rank=3)
    bias: T | None = Tensor(optional=True)

    def operands(self: Bilinear[Known]) -> list[Any]:
        return [self.input1, self.weight, self.input2]

    def equation(self: Bilinear[Known]) -> str:
        return "...i,oij,...j->...o"

    def infer(self: Bilinear[TensorSpec]) -> Any:
        spec = super().infer()
        if self.input1.shape[:-1] != self.input2.shape[:-1] or spec.dtype != np.float32:
            raise ShapeError(
                f"the inputs are {self.input1!r} and {self.input2!r}, expected float32 of equal "
                "shapes apart from the last axis"
            )
        if self.bias is not None and (
            self.bias.shape != self.weight.shape[:1] or self.bias.dtype != np.float32
        ):
            raise ShapeError(f"'bias' is {self.bias!r}, expected float32 {self.weight.shape[:1]}")
        return spec

    def bind(self: Bilinear[TensorView], b: Binder) -> None:
        y = b.output()
        _compute(self._read(), b, y)
        if self.bias is not None and y.size:
            write_tree(b, Call("add", [Ref(0), Ref(1)]), [y, self.bias], y)
