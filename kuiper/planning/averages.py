"""The operators whose rounding errors a mean averages away.

Errors of an algorithm at different pixels are nearly independent, and a mean over many pixels, such
as the one before the last layer of a classifier, leaves little of them.  Operators before such a
mean may use an algorithm with larger errors.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from kuiper.ir import Operand, Operator
from kuiper.ir.view import TensorSpec
from kuiper.ops import record_or_none

__all__ = ["averaged_operators"]

# The values that a mean has to take: it divides independent errors by the square root of it.
MIN_AVERAGED = 16


def averaged_operators(
    order: Sequence[Operator], specs: Mapping[Operand, Any], results: Collection[Operand]
) -> set[Operator]:
    """Return the operators from which every path to a result of the model takes a mean.

    Parameters
    ----------
    order : sequence of Operator
        Topological.
    specs : mapping of Operand to (TensorSpec or StaticValue)
    results : collection of Operand
        The results of the model.
    """
    averaged: set[Operator] = set()
    means = {type: _takes_means(type) for type in {operator.type for operator in order}}
    for operator in reversed(order):
        if operator.outputs and all(
            operand not in results
            and all(
                use.operator in averaged
                or (means[use.operator.type] and _n_averaged(use.operator, specs) >= MIN_AVERAGED)
                for use in operand.uses
            )
            for operand in operator.outputs
        ):
            averaged.add(operator)
    return averaged


def _takes_means(type: str) -> bool:
    record = record_or_none(type)
    return record is not None and record.takes_means


def _n_averaged(operator: Operator, specs: Mapping[Operand, Any]) -> float:
    """Return the number of values per mean; 0 if it is not known."""
    before, after = specs.get(operator.inputs[0]), specs.get(operator.outputs[0])
    if not (isinstance(before, TensorSpec) and isinstance(after, TensorSpec)) or not after.size:
        return 0.0
    return before.size / after.size
