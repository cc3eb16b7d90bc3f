"""Elementwise functions under their TorchScript names."""

from __future__ import annotations

import math

import numpy as np

from .registry import reference


def _sinc(x):
    with np.errstate(invalid="ignore"):  # of infinity
        return np.where(x == 0, 1, np.sin(np.pi * x) / np.where(x == 0, 1, np.pi * x))


_FUNCTIONS = {
    "log2": lambda x: np.log(x) / math.log(2),
    "exp2": lambda x: np.power(2.0, x),
    "sinc": _sinc,
    "deg2rad": lambda x: x * np.pi / 180,
    "rad2deg": lambda x: x * 180 / np.pi,
    "sgn": lambda x: np.sign(x),
    "frac": lambda x: x - np.trunc(x),
    "isnan": lambda x: x != x,
    "isinf": lambda x: np.abs(x) == np.inf,
    "isfinite": lambda x: np.abs(x) < np.inf,
    "isposinf": lambda x: x == np.inf,
    "isneginf": lambda x: x == -np.inf,
    "signbit": lambda x: np.copysign(1, x) < 0,
    "isreal": lambda x: np.imag(x) == 0,
    "erfc": lambda x: 1 - np.vectorize(math.erf)(x),
    "isin": lambda x, y, assume_unique, invert: (x[..., None] == y).any(-1) ^ invert,
    "frexp": lambda x: (np.frexp(x)[0], np.frexp(x)[1].astype(np.int32)),
    "hypot": lambda x, y: np.sqrt(x * x + y * y),
    "copysign": lambda x, y: np.where(np.signbit(y), -np.abs(x), np.abs(x)) * 1.0,
    "logaddexp2": lambda x, y: np.log2(2.0**x + 2.0**y),
    "xlogy": lambda x, y: np.where(x == 0, 0, x * np.log(np.where(x == 0, 1, y))),
    "nextafter": lambda x, y: np.nextafter(x.astype(np.float32), y.astype(np.float32)),
    "ldexp": lambda x, y: x * 2.0**y,
    "heaviside": lambda x, y: np.where(x < 0, 0, np.where(x > 0, 1, y)),
    "fmax": np.fmax,
    "fmin": np.fmin,
    "gcd": np.gcd,
    "lcm": np.lcm,
    "addcmul": lambda x, y, z, value: x + value * y * z,
    "addcdiv": lambda x, y, z, value: x + value * y / z,
    "lerp": lambda x, y, weight: x + weight * (y - x),
    "isclose": lambda x, y, rtol, atol, equal_nan: np.isclose(x, y, rtol, atol, equal_nan),
}

for _name, _function in _FUNCTIONS.items():
    reference(f"aten::{_name}")(_function)


@reference("aten::float_power")
def float_power(input, exponent):
    """Return input ** exponent in float64."""
    with np.errstate(invalid="ignore"):
        return np.asarray(input, np.float64) ** exponent


@reference("aten::nan_to_num")
def nan_to_num(input, nan, posinf, neginf):
    """NaN and both infinities replaced by numbers."""
    largest = float(np.finfo(np.float32).max)
    y = np.where(np.isnan(input), 0 if nan is None else nan, input)
    y = np.where(y == np.inf, largest if posinf is None else posinf, y)
    return np.where(y == -np.inf, -largest if neginf is None else neginf, y)


@reference("aten::logit")
def logit(input, eps=None):
    """The inverse of the sigmoid function."""
    x = input if eps is None else np.clip(input, eps, 1 - eps)
    return np.log(x) - np.log1p(-x)
