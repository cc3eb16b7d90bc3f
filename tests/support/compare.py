"""Comparison of results: error relative to the largest expected value.

``numpy.testing.assert_allclose`` compares element by element, so a value that cancels to nearly
zero needs an absolute tolerance, which hides errors in small tensors.  These functions require
max |a - b| <= rtol * max |b|, as PyTorch's own tests do.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

__all__ = ["assert_close", "assert_outputs", "assert_same_bits"]


def assert_close(actual, expected, rtol: float = 1e-5, what: str = "result") -> None:
    """Fail unless ``max |actual - expected| <= rtol * max |expected|``.

    Parameters
    ----------
    actual, expected : array_like
        Must agree in shape and in the kind of their dtype (float, int, bool, complex); integers
        and booleans must be equal.  NaN and infinities must be at the same indices.  Complex
        numbers are compared as pairs.
    rtol : float
        Tolerance for floats, relative to the largest finite expected value.
    what : str
        Name of the result in the message.
    """
    __tracebackhide__ = True
    actual, expected = np.asarray(actual), np.asarray(expected)
    if actual.shape != expected.shape:
        raise AssertionError(f"{what}: shape {actual.shape}, expected {expected.shape}")
    if actual.dtype.kind != expected.dtype.kind:
        raise AssertionError(f"{what}: dtype {actual.dtype}, expected {expected.dtype}")
    if expected.size == 0:
        return
    if expected.dtype.kind == "c":
        actual, expected = (np.stack([x.real, x.imag], -1) for x in (actual, expected))
    if expected.dtype.kind != "f":
        wrong = actual != expected
        if wrong.any():
            raise AssertionError(f"{what}: {_first(wrong, actual, expected)}")
        return
    finite = np.isfinite(expected)
    odd = np.where(finite, ~np.isfinite(actual), False)
    odd |= ~finite & ~((actual == expected) | (np.isnan(actual) & np.isnan(expected)))
    if odd.any():
        raise AssertionError(f"{what}: {_first(odd, actual, expected)}")
    if not finite.any():
        return
    error = np.zeros(expected.shape)
    error[finite] = np.abs(actual[finite].astype(np.float64) - expected[finite])
    limit = rtol * float(np.abs(expected[finite]).max())
    if error.max() > limit:
        worst = np.unravel_index(error.argmax(), error.shape)
        at = tuple(int(i) for i in worst)
        raise AssertionError(
            f"{what}: off by {error.max():.3g} at {at} (got {actual[worst]:.9g}, expected "
            f"{expected[worst]:.9g}); allowed are {limit:.3g}, {rtol:g} of the largest value; "
            f"{int((error > limit).sum())} of {expected.size} elements are off"
        )


def _first(wrong: np.ndarray, actual: np.ndarray, expected: np.ndarray) -> str:
    """Describe the first wrong element."""
    at = tuple(int(i) for i in np.unravel_index(wrong.argmax(), wrong.shape))
    return (
        f"got {actual[at]} at {at}, expected {expected[at]}; "
        f"{int(wrong.sum())} of {expected.size} elements are wrong"
    )


def assert_outputs(
    actual: Sequence[np.ndarray],
    expected: Sequence[np.ndarray],
    rtol: float = 1e-5,
    what: str = "result",
) -> None:
    """Compare the outputs of a model one by one; their number must agree."""
    __tracebackhide__ = True
    if len(actual) != len(expected):
        raise AssertionError(f"{what}: {len(actual)} outputs, expected {len(expected)}")
    for number, (a, b) in enumerate(zip(actual, expected, strict=True)):
        assert_close(a, b, rtol, f"{what}: output {number}")


def assert_same_bits(
    actual: np.ndarray | Sequence[np.ndarray],
    expected: np.ndarray | Sequence[np.ndarray],
    what: str,
) -> None:
    """Fail unless two results, each of one or several outputs, are identical to the last bit."""
    __tracebackhide__ = True
    if isinstance(actual, np.ndarray):
        actual, expected = [actual], [np.asarray(expected)]
    for number, (a, b) in enumerate(zip(actual, expected, strict=True)):
        if a.shape != b.shape or a.dtype != b.dtype or a.tobytes() != b.tobytes():
            count = int((a != b).sum()) if a.shape == b.shape else "all"
            raise AssertionError(f"{what}: output {number}: {count} of {a.size} elements differ")
