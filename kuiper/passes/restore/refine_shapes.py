"""Refine the targets of reshapes after a data-dependent operator.

pnnx writes the target of a reshape as traced extents, even if they count the elements that a mask
selected or the boxes that were kept::

    torch.masked_select m 2 1 x mask p              #p=(20)f32
    Tensor.reshape      r 1 1 p y shape=(1,1,20)    ->   shape=(1,1,13), where p has 13 elements

An axis that the reshape keeps, with as many elements before and after it, gets its actual extent;
so does the axis that it is merged into::

    Tensor.reshape      r 1 1 b y shape=(60,4)      ->   shape=(39,4), where b, once (20,3,4), has
                                                         13 rows

A split into one part gets the whole extent.

What proves each change: the operator cannot take its input as it stands in the file.

- A reshape whose target has another number of elements than its input fails in PyTorch.  If one
  axis of the target holds the changed axis (equal extents before and after it, up to a whole
  factor) and no second one does, the target was computed from it.  If none or several do, the
  target stays, and the reshape is refused for its number of elements.
- If several extents change, and the number of elements does not, the target may be a constant: the
  reshape is refused, unless both readings agree.
- An expanded axis of the traced extent, and the single part of a split, were computed from their
  input: as constants, they fail in PyTorch for other counts.  One element expands to any extent,
  but a constant would still fail for all counts except 1 and the traced one.
- A target with -1 is not changed: pnnx keeps -1 as the module gives it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from kuiper.errors import OperatorError
from kuiper.ir import Operand, Operator
from kuiper.ir.view import TensorSpec

__all__ = ["refine_shapes"]

RESHAPES = ("Tensor.reshape", "Tensor.view", "torch.reshape")


def refine_shapes(operator: Operator, specs: Mapping[Operand, Any]) -> None:
    """Replace the traced extents of a reshape, expand or split by those of this run.

    Parameters
    ----------
    operator : Operator
        Changed in place; it belongs to the graph of this run.
    specs : mapping of Operand to (TensorSpec or StaticValue)
        Of its inputs.

    Raises
    ------
    OperatorError
        If the target of a reshape may be computed or a constant.
    """
    if operator.type == "torch.split":
        _refine_split(operator, specs)
        return
    key = "shape" if operator.type in RESHAPES else "sizes"
    if operator.type not in (*RESHAPES, "Tensor.expand") or not operator.inputs:
        return
    target, traced = operator.params.get(key), operator.inputs[0].shape
    actual = specs.get(operator.inputs[0])
    if not isinstance(target, tuple) or traced is None or not isinstance(actual, TensorSpec):
        return
    if None in traced or len(traced) != actual.rank or -1 in target:
        return
    refined = list(target)
    changed: set[int] = set()
    for axis, (before, now) in enumerate(zip(traced, actual.shape, strict=True)):
        if before == now:
            continue
        if key == "sizes":
            found = len(target) - len(traced) + axis
            candidates = [(found, 1)] if found >= 0 and target[found] == before else []
        else:
            candidates = _target_axes(target, operator.inputs[0].required_shape, axis)
        if len(candidates) != 1:
            return
        found, factor = candidates[0]
        if found in changed:
            return
        changed.add(found)
        refined[found] = now * factor
    may_be_constant = key == "shape" and math.prod(target) == actual.size > 0
    if len(changed) > 1 and may_be_constant and refined != list(target):
        raise OperatorError(
            f"{operator.label}: its input of shape {actual.shape} fits '{key}' = {target} of the "
            f"file, but also {tuple(refined)}, since the input had the shape {traced} when the "
            "model was traced; write one extent as -1 in the model"
        )
    operator.params = {**operator.params, key: tuple(refined)}


def _refine_split(operator: Operator, specs: Mapping[Operand, Any]) -> None:
    """Give the single part of a split the extent of this run."""
    sections = operator.params.get("split_size_or_sections")
    axis, traced = operator.params.get("dim"), operator.inputs[0].shape
    actual = specs.get(operator.inputs[0])
    if not isinstance(sections, tuple) or len(sections) != 1 or not isinstance(axis, int):
        return
    if traced is None or not isinstance(actual, TensorSpec) or len(traced) != actual.rank:
        return
    if -actual.rank <= axis < actual.rank and traced[axis] == sections[0]:
        extent = actual.shape[axis]
        operator.params = {**operator.params, "split_size_or_sections": (extent,)}


def _target_axes(
    target: tuple[int, ...], traced: tuple[int, ...], axis: int
) -> list[tuple[int, int]]:
    """Return (target axis, factor of its extent) for each that may hold an axis of the input."""
    before, after = math.prod(traced[:axis]), math.prod(traced[axis + 1 :])
    found = []
    for number, extent in enumerate(target):
        outer, inner = math.prod(target[:number]), math.prod(target[number + 1 :])
        if not outer or not inner or before % outer or after % inner:
            continue
        factor = (before // outer) * (after // inner)
        if extent == traced[axis] * factor:
            found.append((number, factor))
    return found
