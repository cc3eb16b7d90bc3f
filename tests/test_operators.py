"""Every stored operator case through the engine, on every instruction set of this machine."""

from functools import cache

import numpy as np
import pytest

import kuiper

from .reference import REFERENCES, read_graph, run_graph
from .support import Case, assert_outputs, assert_same_bits, load_cases
from .support.engine import n_threads, run
from .workbench import ISAS, isa

CASES = load_cases("operators")

# Before any test registers operators of its own.
SUPPORTED = set(kuiper.supported_operators())


@cache
def reference_outputs(case: Case) -> list[np.ndarray]:
    return run_graph(read_graph(case.param, case.bin), case.inputs)


@pytest.mark.parametrize("variant", ISAS)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_operator(case, variant):
    with isa(variant):
        model = kuiper.load(case.param, case.bin)
        with n_threads(1):
            outputs = run(model, case.inputs)
        with n_threads(2):
            parallel = run(model, case.inputs)
    case.assert_matches(outputs)
    assert_outputs(outputs, reference_outputs(case), case.rtol, f"{case.id} against numpy")
    assert_same_bits(parallel, outputs, f"{case.id}: two threads against one")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_results_are_the_callers_own(case):
    """Inputs stay as they are, and a second run does not write into the first one's results."""
    model = kuiper.load(case.param, case.bin)
    inputs = [x.copy() for x in case.inputs]
    first = run(model, inputs)
    kept = [y.copy() for y in first]
    assert_same_bits(inputs, case.inputs, f"{case.id}: the inputs changed")
    for x in inputs:
        x[...] = 0
    run(model, inputs)
    assert_same_bits(first, kept, f"{case.id}: a second run wrote into the first one's results")


def test_every_operator_has_a_case():
    used = set().union(*(case.types for case in CASES))
    assert SUPPORTED - used == set()


def test_every_operator_has_a_reference():
    # They carry values into, out of and inside a graph; run_graph does that itself.
    plumbing = {"pnnx.Input", "pnnx.Output", "pnnx.Attribute"}
    assert SUPPORTED - REFERENCES.keys() - plumbing == set()


def test_every_case_can_run():
    """One list of what is missing, where the cases above each report one operator."""
    used = set().union(*(case.types for case in CASES))
    assert used - SUPPORTED == set()
