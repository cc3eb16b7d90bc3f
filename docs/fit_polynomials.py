"""Fit the polynomials of the micro-kernels (math.pxi and others) and print their coefficients.

Each function f is written as ``f(x) = head(x) + factor(x) * P(u(x))`` on a small interval, so that
the head is exact and P only a correction.  P minimises the largest weighted error.  Lawson's method
finds it: repeated least squares, with weights multiplied by the previous errors.  Coefficients are
rounded to float32 from the lowest degree up, and the others are fitted again after each rounding.

Run: ``python docs/fit_polynomials.py``; it needs only numpy.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

N_POINTS = 3000


class Fit(NamedTuple):
    """One polynomial: ``f(x) = head(x) + factor(x) * P(u(x))`` for lo <= x <= hi."""

    name: str
    f: Callable
    head: Callable
    factor: Callable
    u: Callable
    lo: float
    hi: float
    degree: int
    weight: Callable  # of an error at x; 1 / f makes it relative


def chebyshev_points(lo: float, hi: float) -> np.ndarray:
    angles = np.linspace(0, np.pi, N_POINTS)
    return (lo + hi) / 2 - (hi - lo) / 2 * np.cos(angles)


def lawson(basis: np.ndarray, target: np.ndarray, rounds: int = 120) -> np.ndarray:
    """Return the coefficients c that minimise max |basis @ c - target|."""
    importance = np.full(len(target), 1.0 / len(target))
    best, best_error = None, np.inf
    for _ in range(rounds):
        root = np.sqrt(importance)[:, None]
        c, *_ = np.linalg.lstsq(basis * root, target * root[:, 0], rcond=None)
        error = np.abs(basis @ c - target)
        if error.max() < best_error:
            best, best_error = c, error.max()
        importance *= error + 1e-3 * error.max()
        importance /= importance.sum()
    return best


def fit(spec: Fit) -> tuple[list[float], float]:
    """Return float32 coefficients, lowest degree first, and the largest weighted error."""
    x = chebyshev_points(spec.lo, spec.hi)
    weight = spec.weight(x)
    scale = spec.factor(x) * weight
    target = (spec.f(x) - spec.head(x)) * weight
    powers = spec.u(x)[:, None] ** np.arange(spec.degree + 1) * scale[:, None]
    done: list[float] = []
    while len(done) <= spec.degree:
        rest = target - powers[:, : len(done)] @ np.array(done)
        c = lawson(powers[:, len(done) :], rest)
        done.append(float(np.float32(c[0])))
    return done, float(np.abs(powers @ np.array(done) - target).max())


def each(function: Callable) -> Callable:
    return lambda x: np.array([function(value) for value in x])


def square(x):
    return x * x


def odd(name: str, f: Callable, hi: float, degree: int) -> Fit:
    """An odd function as ``x + x^3 P(x^2)``, by relative error."""
    return Fit(name, f, lambda x: x, lambda x: x**3, square, 1e-3, hi, degree, lambda x: 1 / f(x))


LN2 = math.log(2)
ERF_SPLIT = 0.92

FITS = [
    Fit(
        "exp: 1 + r + r^2 P(r)", np.exp, lambda r: 1 + r, square, lambda r: r,
        -0.502 * LN2, 0.502 * LN2, 4, lambda r: 1 / np.maximum(np.abs(np.expm1(r)), 1e-2),
    ),
    Fit(
        "exp2: 1 + f P(f)", np.exp2, lambda f: 1 + 0 * f, lambda f: f, lambda f: f,
        -0.5, 0.5, 4, lambda f: np.exp2(-f),
    ),
    Fit(
        "log: f - f^2 / 2 + f^3 P(f)", np.log1p, lambda f: f - f * f / 2, lambda f: f**3,
        lambda f: f, math.sqrt(0.5) - 1, math.sqrt(2) - 1, 8,
        lambda f: 1 / np.maximum(np.abs(np.log1p(f)), 1e-3),
    ),
    odd("sin", np.sin, 1.005 * math.pi / 4, 2),
    Fit(
        "cos: 1 - z / 2 + z^2 P(z), z = r^2", np.cos, lambda r: 1 - r * r / 2, lambda r: r**4,
        square, 0.0, 1.005 * math.pi / 4, 2, lambda r: 1 / np.cos(r),
    ),
    odd("tan", np.tan, 1.005 * math.pi / 4, 5),
    odd("asin", np.arcsin, 0.5, 4),
    odd("atan", np.arctan, math.tan(math.pi / 8), 3),
    odd("sinh", np.sinh, 1.0, 3),
    odd("tanh", np.tanh, 0.625, 4),
    Fit(
        "erf: x + x P(x^2)", each(math.erf), lambda x: x, lambda x: x, square, 0.0, ERF_SPLIT, 6,
        lambda x: 1 / np.maximum(each(math.erf)(x), 1e-9),
    ),
    Fit(
        # erfc(t) = exp(-t - t P(t)).  Beyond t = 4 erf is 1 in float32; the fit only affects the
        # tail of GELU there.
        "erfc: log erfc(t) = -t + t P(t)", lambda t: np.log(each(math.erfc)(t)), lambda t: -t,
        lambda t: t, lambda t: t, ERF_SPLIT, 10.0, 8,
        lambda t: np.minimum(1.0, np.exp(-4.0 * (t - 3.2))) + 1e-6,
    ),
    Fit(
        # What ReLU leaves out of GELU, over x; by the absolute error of GELU.
        "gelu: max(x, 0) - a P(t), a = abs(x), t = 2 a / 5.6 - 1",
        lambda a: each(math.erfc)(a * math.sqrt(0.5)) / 2, lambda a: 0 * a, lambda a: 1 + 0 * a,
        lambda a: a * (2 / 5.6) - 1, 0.0, 5.6, 16, lambda a: np.maximum(a, 1.0),
    ),
    # Those of rough.pxi, for results in bfloat16.
    Fit(
        "rough exp2: 1 + f P(f)", np.exp2, lambda f: 1 + 0 * f, lambda f: f, lambda f: f,
        -0.5, 0.5, 2, lambda f: np.exp2(-f),
    ),
    Fit(
        # x times the normal distribution less 1/2, which is 1/2 at the end; rough.pxi has the
        # product of the second term multiplied out.
        "rough gelu: z / 8 + z (1 - z / 16) P(z), z = x^2",
        lambda x: x / 2 * each(math.erf)(x * math.sqrt(0.5)), lambda x: x * x / 8,
        lambda x: x * x * (1 - x * x / 16), square, 0.0, 4.0, 6, lambda x: 1 + 0 * x,
    ),
]  # fmt: skip


def main():
    for spec in FITS:
        coefficients, error = fit(spec)
        print(f"{spec.name}  on [{spec.lo:.4g}, {spec.hi:.4g}], error {error:.2g}")
        for c in coefficients:
            print(f"    {np.float32(c)!s}")


if __name__ == "__main__":
    main()
