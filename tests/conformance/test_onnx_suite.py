"""ONNX's backend tests: as shipped, and with all inputs but the first as constants of the file.

``failures.txt`` lists the tests that fail, with the reason; a listed test that passes fails here,
so that the list only shrinks.  ``python -m tests.conformance.test_onnx_suite`` writes it again.
"""

from __future__ import annotations

import collections
import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest

import kuiper

from ..support.onnxfile import frozen
from .suite import Case, cases

FAILURES = Path(__file__).with_name("failures.txt")
KINDS = ("shipped", "frozen")
# Float32 results that are sums of products in another order; half precision has 11 bits.
ATOL = {"float16": 1e-3}


@cache
def expected_failures() -> dict[tuple[str, str], str]:
    """Return the reasons by kind and name."""
    found = {}
    for line in FAILURES.read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            kind, name, reason = line.split(" ", 2)
            found[kind, name] = reason
    return found


def run(case: Case, kind: str) -> None:
    """Run a test; raise AssertionError for a wrong result, KuiperError for a refusal."""
    model = case.model
    if kind == "frozen":
        inputs = case.data[0][0]
        model = frozen(model, dict(list(zip(case.names, inputs, strict=False))[1:]))
    loaded = kuiper.load(model)
    for inputs, outputs in case.data:
        results = loaded(*inputs[: 1 if kind == "frozen" else None])
        results = results if isinstance(results, tuple) else (results,)
        assert len(results) == len(outputs)
        for got, expected in zip(results, outputs, strict=True):
            assert (got.shape, got.dtype) == (expected.shape, expected.dtype)
            if expected.dtype.kind in "fc":
                atol = max(case.atol, ATOL.get(expected.dtype.name, 1e-5))
                np.testing.assert_allclose(got, expected, rtol=max(case.rtol, 1e-3), atol=atol)
            else:
                np.testing.assert_array_equal(got, expected)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", cases(), ids=lambda case: case.name)
def test_the_suite_of_onnx(case, kind):
    reason = expected_failures().get((kind, case.name))
    if reason is None:
        run(case, kind)
        return
    error = AssertionError if reason.startswith("AssertionError") else kuiper.KuiperError
    with pytest.raises(error):
        run(case, kind)


def test_the_list_of_failures_names_tests():
    missing = {name for _, name in expected_failures()} - {case.name for case in cases()}
    if missing:
        pytest.importorskip("onnx")  # the large tests are not in the archive
    assert not missing


def main() -> None:
    """Write the list of failures and print the figures."""
    passed: collections.Counter[str] = collections.Counter()
    lines = ["# kind, test, reason; written by python -m tests.conformance.test_onnx_suite"]
    known = {case.name for case in cases()}
    old = expected_failures() if FAILURES.exists() else {}
    lines += [f"{kind} {n} {reason}" for (kind, n), reason in old.items() if n not in known]
    for case in cases():
        for kind in KINDS:
            try:
                with np.errstate(all="ignore"):
                    run(case, kind)
                passed[kind] += 1
            except (AssertionError, kuiper.KuiperError) as error:
                reason = " ".join(f"{type(error).__name__}: {error}".split())
                lines.append(f"{kind} {case.name} {reason[:160]}")
    FAILURES.write_text("\n".join(sorted(lines)) + "\n", encoding="utf-8")
    print(dict(passed), "of", len(cases()))


if __name__ == "__main__":
    sys.exit(main())
