"""Every stored operator case whose operators take bfloat16, with its inputs stored in bfloat16.

Only dense products start bfloat16 by themselves, so the planner is changed here: inputs are
converted, and all operands of records with kernels for bfloat16 are stored in it.  The reference is
the model in float32 on inputs that are rounded to bfloat16 before.
"""

from __future__ import annotations

import numpy as np
import pytest

import kuiper
from kuiper.ir.dtypes import BFLOAT16
from kuiper.ir.view import Layout, TensorSpec, TensorView
from kuiper.ops import find_record
from kuiper.ops.core.record import STARTS
from kuiper.ops.product.linear import Matmul
from kuiper.planning import planner as planning

from ..support import load_cases
from ..support.engine import run
from ..support.workbench import ISAS, isa

SUPPORTED = set(kuiper.supported_operators())
GRAPH = {"pnnx.Input", "pnnx.Output", "pnnx.Attribute", "prim::TupleConstruct"}
FLOAT32 = np.dtype(np.float32)


def takes_bfloat16(type: str) -> bool:
    record = find_record(type)
    return record.bfloat16 != "" or record.layout == Layout.VIEW


def is_taken(case) -> bool:
    """Tell whether a case has float32 inputs, and an operator with kernels for bfloat16.

    Boxes that are rounded on their way give other results.
    """
    types = case.types - GRAPH
    return (
        case.types <= SUPPORTED
        and not any(word in type for type in types for word in ("RoIAlign", "roi_", "nms"))
        and any(find_record(type).bfloat16 for type in types)
        and any(x.dtype == np.float32 and x.size for x in case.inputs)
    )


CASES = [case for case in load_cases("operators") if is_taken(case)]


def rounded(x: np.ndarray) -> np.ndarray:
    """Return floats rounded to bfloat16; finite numbers stay finite."""
    if x.dtype != np.float32:
        return x
    bits = x.view(np.uint32).astype(np.uint64)
    nearest = (bits + 0x7FFF + (bits >> 16 & 1) & 0xFFFF0000).astype(np.uint32).view(np.float32)
    cut = (x.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
    return np.where(np.isfinite(nearest), nearest, np.where(np.isnan(x), x, cut))


@pytest.fixture(params=[False, True], ids=["float32", "bfloat16"])
def planner(request, monkeypatch):
    """Store inputs in bfloat16, and the results in float32 or bfloat16."""
    narrow_results = request.param
    bind, target_outputs = planning.Planner.bind, planning.Planner.target_outputs
    finish_outputs = planning.Planner.finish_outputs
    arguments = {}

    def stored(order, specs, results):
        return {
            operand
            for operator in order
            if operator.type not in GRAPH and takes_bfloat16(operator.type)
            for operand in operator.outputs
            if (narrow_results or operand not in results)
            and isinstance(specs.get(operand), TensorSpec)
            and specs[operand].dtype == np.float32
            and not specs[operand].is_constant
        }

    def with_narrow_inputs(self, operator):
        bind(self, operator)
        if operator.type == "pnnx.Input" and self.bfloat16 is not None:
            (operand,) = operator.outputs
            value = self.values[operand]
            if isinstance(value, TensorView) and value.dtype == np.float32 and value.size:
                arguments[operand] = value
                self.values[operand] = self.converted(value, BFLOAT16, operator.name)

    def finish_with_arguments(self):
        outputs = finish_outputs(self)
        self.values.update(arguments)
        return outputs

    def without_narrow_targets(self, operands):
        views = []
        for operand in operands:
            if operand in (self.bfloat16 or ()):
                views.append((operand, None))
            else:
                target_outputs(self, [operand])
                views += self.output_views
        self.output_views = views

    monkeypatch.setattr(planning, "bfloat16_operands", stored)
    monkeypatch.setattr(planning.Planner, "bind", with_narrow_inputs)
    monkeypatch.setattr(planning.Planner, "target_outputs", without_narrow_targets)
    monkeypatch.setattr(planning.Planner, "finish_outputs", finish_with_arguments)
    return narrow_results


def check(case, planner):
    inputs = [rounded(x) for x in case.inputs]
    expected = run(kuiper.load(case.param, case.bin, precision="float32"), inputs)
    found = run(kuiper.load(case.param, case.bin, precision="bfloat16"), inputs)
    types = case.types - GRAPH
    # Dense products round both operands, also those that the file holds in float32.
    is_exact = len(types) == 1 and not any(
        find_record(type).bfloat16 == STARTS or issubclass(find_record(type), Matmul)
        for type in types
    )
    for y, z in zip(expected, found, strict=True):
        assert (y.shape, y.dtype) == (z.shape, z.dtype)
        if y.dtype != np.float32:
            if is_exact:
                assert np.array_equal(y, z)
            continue
        assert np.array_equal(np.isnan(y), np.isnan(z))
        finite = np.isfinite(y) & np.isfinite(z)
        if not finite.any():
            continue
        y, z = y[finite].astype(np.float64), z[finite].astype(np.float64)
        largest = np.abs(y).max()
        if not is_exact:
            assert np.abs(y - z).max() <= 0.03 * largest + 1e-30
        elif planner:
            assert (np.abs(y - z) <= 2.0**-8 * np.abs(y) + 1e-5 * largest + 1e-38).all()
        else:
            assert np.abs(y - z).max() <= 1e-5 * largest + 1e-38


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_operator_in_bfloat16(case, planner):
    check(case, planner)


# Kernels of bfloat16 besides products, whose tests run on every variant elsewhere.
ROWS = ("Pool", "pool", "LayerNorm", "layer_norm", "RMSNorm", "rms_norm", "oftmax", "oftmin")
ROW_CASES = [c for c in CASES if any(word in t for t in c.types - GRAPH for word in ROWS)][::3]


@pytest.mark.parametrize("name", ISAS)
@pytest.mark.parametrize("case", ROW_CASES, ids=lambda case: case.id)
def test_pooling_and_rows_on_each_variant(case, name, planner):
    with isa(name):
        check(case, planner)
