"""Batch rules: every record has one or a reason why not, and they hold for the stored cases."""

from __future__ import annotations

import numpy as np
import pytest

import kuiper
from kuiper.ir.dtypes import DTYPES
from kuiper.ir.view import TensorSpec
from kuiper.model import Model
from kuiper.ops import find_record
from kuiper.ops.core.batch import RULES, BatchAxis, batch_rule
from kuiper.ops.core.record import NoBatchRule
from kuiper.passes.batch.search import BatchSearch
from kuiper.planning.infer import infer_known

from ..support import assert_outputs, load_cases
from ..support.engine import run

# Before any test registers operators.
SUPPORTED = set(kuiper.supported_operators())
RECORDS = sorted(
    {find_record(type) for type in SUPPORTED - {"pnnx.Input", "pnnx.Output"}},
    key=lambda record: (record.__module__, record.__name__),
)
CASES = [case for case in load_cases("operators") if case.types <= SUPPORTED]


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.types[0])
def test_every_record_has_a_batch_rule_or_a_reason(record):
    batch = record.batch
    if isinstance(batch, NoBatchRule):
        assert len(batch.split()) > 3, "say why"
    elif isinstance(batch, str):
        assert batch == "reshape" or batch in RULES
    else:
        assert callable(batch)
        assert batch_rule(record) == batch


def followed(model, axis):
    """Return the batch axes of a model's outputs, if its inputs have the batch at `axis`.

    None if the file does not state the shapes, or not all outputs have the batch along an axis.
    """
    graph = model._plans._graph.copy()
    inputs = graph.inputs
    shapes = [operand.shape for operand in inputs]
    if not inputs or any(s is None or None in s or len(s) <= axis for s in shapes):
        return None
    traced = {shape[axis] for shape in shapes}
    if len(traced) != 1 or 0 in traced:
        return None
    specs, _ = infer_known(
        graph, {o: TensorSpec(o.shape, DTYPES[o.dtype or "f32"].value) for o in inputs}
    )
    search = BatchSearch(graph, specs, {o: BatchAxis(axis) for o in inputs}, traced.pop())
    search.run()
    found = [search.axes[o] for op in graph.find(type="pnnx.Output") for o in op.inputs]
    return found if all(isinstance(batch, BatchAxis) for batch in found) else None


def joined(first, second, batch):
    """Concatenate two tensors along the axis `batch`."""
    parts = []
    for x in (first, second):
        before, after = x.shape[: batch.axis], x.shape[batch.axis + 1 :]
        parts.append(x.reshape(*before, batch.outer, -1, batch.inner, *after))
    shape = list(first.shape)
    shape[batch.axis] *= 2
    return np.concatenate(parts, batch.axis + 1).reshape(shape)


def check(case, axis):
    """Compare two batches at once with one after the other, if the rules allow it."""
    model = Model(kuiper.load(case.param, case.bin).graph)
    axes = followed(model, axis)
    if axes is None or [x.shape for x in case.inputs] != [o.shape for o in model.graph.inputs]:
        return
    others = [np.roll(x, 1).copy() for x in case.inputs]
    both = [joined(x, y, BatchAxis(axis)) for x, y in zip(case.inputs, others, strict=True)]
    first, second = run(model, case.inputs), run(model, others)
    expected = [joined(*pair) for pair in zip(first, second, axes, strict=True)]
    assert_outputs(run(model, both), expected, case.rtol, f"{case.id}: the batch at axis {axis}")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_a_batch_equals_its_members(case):
    for axis in (0, 1):
        check(case, axis)
