"""The element types in which operands are stored.

Shapes and dtypes are inferred for float32.  With the precision ``"bfloat16"`` some of the float32
operands are stored in bfloat16: half the memory, and dense products of pairs.  A record says what
it can do by its `bfloat16`:

- ``"starts"``: a dense product, which is worth a conversion of its input;
- ``"follows"``: everything else with such kernels; worth it where an input has the type already;
- ``""``: float32 only; the binder converts what it reads.

What follows the last dense product on every way, such as the decoding of boxes, the softmax or the
resizing of a segmentation, stays in float32: pixel coordinates need more than 8 bits.  So does the
residual stream of a transformer: each layer adds to it, and normalisations, which read it, round
what they write.  Its errors do not add up, and no product reads more.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from kuiper.ir import Operand, Operator, Use
from kuiper.ir.dtypes import BFLOAT16
from kuiper.ir.view import Layout, TensorSpec, TensorView
from kuiper.ops import record_or_none
from kuiper.ops.core.record import FOLLOWS, STARTS, Record

__all__ = ["bfloat16_operands", "float32_reasons", "takes_bfloat16"]


def bfloat16_operands(
    order: Sequence[Operator], specs: dict[Operand, Any], results: Collection[Operand]
) -> set[Operand]:
    """Return the operands to store in bfloat16.

    Parameters
    ----------
    order : sequence of Operator
        Topological.
    specs : dict of Operand to (TensorSpec or StaticValue)
    results : collection of Operand
        The results of the model, which stay in float32.
    """
    stored: set[Operand] = set()
    kinds: dict[str, str] = {}
    for operator in order:
        kind = kinds.get(operator.type)
        if kind is None:
            kind = kinds[operator.type] = _kind(operator.type)
        if kind == STARTS or (kind and not stored.isdisjoint(operator.inputs)):
            stored.update(
                operand
                for operand in operator.outputs
                if operand not in results and _is_stored(specs.get(operand))
            )
    before_products = _before_products(order, kinds)
    stored = {operand for operand in stored if operand in before_products}
    stored -= _residual_streams(order, stored)
    # An operand that no such operator reads would only be converted back.
    for operator in reversed(order):
        for operand in operator.outputs:
            if operand in stored and not any(
                _reads(kinds[use.operator.type], use.operator, stored) for use in operand.uses
            ):
                stored.discard(operand)
    return stored


def _before_products(order: Sequence[Operator], kinds: Mapping[str, str]) -> set[Operand]:
    """Return the operands that a dense product reads, directly or after other operators."""
    found: set[Operand] = set()
    for operator in reversed(order):
        if kinds[operator.type] == STARTS or not found.isdisjoint(operator.outputs):
            found.update(operator.inputs)
    return found


def _residual_streams(order: Sequence[Operator], stored: set[Operand]) -> set[Operand]:
    """Return the sums that only normalisations of rows and the next sums read."""
    streams: set[Operand] = set()
    for operator in order:
        for operand in operator.outputs:
            if operand not in stored or not operand.uses:
                continue
            readers = [_is_summand(use) or _is_normalized(use) for use in operand.uses]
            is_sum = any(map(_is_summand, operand.uses)) or not streams.isdisjoint(operator.inputs)
            if all(readers) and is_sum and any(map(_is_normalized, operand.uses)):
                streams.add(operand)
    return streams


def _is_summand(use: Use) -> bool:
    operator = use.operator
    if operator.type == "pnnx.Expression":
        return str(operator.params["expr"]).startswith("add(")
    return any(post.type == "add" and post.slot == use.slot for post in operator.post_ops)


def _is_normalized(use: Use) -> bool:
    record = record_or_none(use.operator.type)
    return record is not None and record.normalizes_rows and use.slot == 0


def float32_reasons(
    order: Sequence[Operator], values: Mapping[Operand, Any], steps: Sequence[Any]
) -> dict[str, str]:
    """Return the operators of a plan in bfloat16 that compute in float32, by name, and why.

    Parameters
    ----------
    order : sequence of Operator
    values : mapping of Operand to (TensorView or StaticValue)
        Of the operators that are bound.
    steps : sequence of Step
        Of the plan.
    """
    products = {step.name for step in steps if step.kind.endswith("_bfloat16")}
    reasons = {}
    for operator in order:
        record = record_or_none(operator.type)
        if record is None or not any(map(_is_float, map(values.get, operator.outputs))):
            continue
        if not takes_bfloat16(record):
            reasons[operator.name] = "no kernel for bfloat16"
        elif operator.name not in products and not any(
            isinstance(value, TensorView) and value.dtype == BFLOAT16
            for value in map(values.get, [*operator.inputs, *operator.outputs])
        ):
            reasons[operator.name] = "neither inputs nor results are stored in bfloat16"
    return reasons


def _is_float(value: Any) -> bool:
    return isinstance(value, TensorView) and value.dtype in (np.float32, BFLOAT16)


def takes_bfloat16(record: type[Record[Any]]) -> bool:
    """Tell whether a record takes views in bfloat16; a view of any element type costs nothing."""
    return record.bfloat16 != "" or record.layout == Layout.VIEW


def _kind(type: str) -> str:
    record = record_or_none(type)
    if record is None:
        return ""
    return record.bfloat16 or (FOLLOWS if record.layout == Layout.VIEW else "")


def _reads(kind: str, reader: Operator, stored: set[Operand]) -> bool:
    """Tell whether an operator reads bfloat16; a view does so if its result is stored in it."""
    record = record_or_none(reader.type)
    if record is not None and record.layout == Layout.VIEW:
        return any(operand in stored for operand in reader.outputs)
    return kind != ""


def _is_stored(spec: Any) -> bool:
    return isinstance(spec, TensorSpec) and spec.dtype == np.float32 and not spec.is_constant
