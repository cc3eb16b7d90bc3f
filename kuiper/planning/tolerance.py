"""How much of the rounding errors of each operator reaches the results.

The relative error of a layer passes through the layers after it, so in a chain all errors add up,
as variances.  Three operators leave less of it:

- a mean of n values, whose errors are nearly independent, leaves 1 / n of the variance, such as the
  mean over the pixels before the last layer of a classifier;
- a sum of two values of one size leaves half of the variance of each, such as a residual sum;
- a concatenation leaves the share that an operand has of its elements.

Operators with little influence may use an algorithm with larger errors.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from kuiper.ir import Operand, Operator, Use
from kuiper.ir.view import TensorSpec
from kuiper.ops import record_or_none

__all__ = ["influences", "tolerant_operators"]

# The influence up to which an operator is tolerant.
MAX_INFLUENCE = 0.3


def tolerant_operators(
    order: Sequence[Operator], specs: Mapping[Operand, Any], results: Collection[Operand]
) -> set[Operator]:
    """Return the operators of which at most `MAX_INFLUENCE` reaches the results.

    Parameters
    ----------
    order : sequence of Operator
        Topological.
    specs : mapping of Operand to (TensorSpec or StaticValue)
    results : collection of Operand
        The results of the model.
    """
    found = influences(order, specs, results)
    return {operator for operator, influence in found.items() if influence <= MAX_INFLUENCE}


def influences(
    order: Sequence[Operator], specs: Mapping[Operand, Any], results: Collection[Operand]
) -> dict[Operator, float]:
    """Return the part of the variance of each operator's relative error that reaches the results.

    The parameters are those of :func:`tolerant_operators`.  The result of an operator with a fused
    residual sum is what it adds.
    """
    of_outputs: dict[Operator, float] = {}
    for operator in reversed(order):
        if any(operand in results for operand in operator.outputs):
            of_outputs[operator] = 1.0
            continue
        of_outputs[operator] = sum(
            _share(use, specs) * of_outputs[use.operator]
            for operand in operator.outputs
            for use in operand.uses
            if use.operator in of_outputs
        )
    return {
        operator: influence / 2 if _adds(operator) else influence
        for operator, influence in of_outputs.items()
    }


def _share(use: Use, specs: Mapping[Operand, Any]) -> float:
    """Return the part of an operand's variance that an operator which reads it leaves."""
    operator = use.operator
    record = record_or_none(operator.type)
    if record is None:
        return 1.0
    if _adds(operator) or str(operator.params.get("expr", "")).startswith("add(@0,@1)"):
        return 0.5
    before, after = specs.get(operator.inputs[use.slot]), specs.get(operator.outputs[0])
    if not (isinstance(before, TensorSpec) and isinstance(after, TensorSpec) and before.size):
        return 1.0
    if record.takes_means or record.joined_axis is not None:
        ratio = after.size / before.size
        return ratio if record.takes_means else 1 / ratio if ratio else 1.0
    return 1.0


def _adds(operator: Operator) -> bool:
    """Tell whether an operator adds its result to another operand."""
    return any(post.type == "add" for post in operator.post_ops)
