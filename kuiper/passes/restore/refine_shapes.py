"""Reshapes behind a cut get the extents that really came out.

pnnx writes the target of a reshape as the numbers of the trace, also where they count what a mask
selected or how many boxes were kept::

    torch.masked_select m 2 1 x mask p              #p=(20)f32
    Tensor.reshape      r 1 1 p y shape=(1,1,20)    ->   shape=(1,1,13), where p has 13 elements

An axis that the reshape carries over unchanged, with as many elements in front of it and behind it
as before, gets the extent that it has in this run; so does one that it is merged into::

    Tensor.reshape      r 1 1 b y shape=(60,4)      ->   shape=(39,4), where b, once (20,3,4), has
                                                         13 rows

A split into one part takes all that is there.  What cannot be told stays as it is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from kuiper.ir import Operand, Operator
from kuiper.ir.view import TensorSpec

__all__ = ["refine_shapes"]

RESHAPES = ("Tensor.reshape", "Tensor.view", "torch.reshape")


def refine_shapes(operator: Operator, specs: Mapping[Operand, Any]) -> None:
    """Write the extents of this run into a reshape or expand whose file has those of the trace.

    Parameters
    ----------
    operator : Operator
        Changed in place; of a graph of this run alone.
    specs : mapping of Operand to (TensorSpec or Host)
        Those of its inputs.
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
            place = len(target) - len(traced) + axis
            places = [(place, 1)] if place >= 0 and target[place] == before else []
        else:
            places = _places(target, operator.inputs[0].known_shape, axis)
        if len(places) != 1:
            return
        place, times = places[0]
        if place in changed:
            return
        changed.add(place)
        refined[place] = now * times
    operator.params = {**operator.params, key: tuple(refined)}


def _refine_split(operator: Operator, specs: Mapping[Operand, Any]) -> None:
    """Let the only part of a split have the extent of this run."""
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


def _places(target: tuple[int, ...], traced: tuple[int, ...], axis: int) -> list[tuple[int, int]]:
    """Return which axes of a reshape's target an axis of its input may be in, how many times."""
    before, behind = math.prod(traced[:axis]), math.prod(traced[axis + 1 :])
    found = []
    for place, extent in enumerate(target):
        outer, inner = math.prod(target[:place]), math.prod(target[place + 1 :])
        if not outer or not inner or before % outer or behind % inner:
            continue
        times = (before // outer) * (behind // inner)
        if extent == traced[axis] * times:
            found.append((place, times))
    return found
