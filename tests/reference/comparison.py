"""Comparisons, logical and bitwise functions."""

from __future__ import annotations

import numpy as np

from .registry import reference


@reference("torch.eq")
def eq(input, other):
    """Return input == other."""
    return input == other


@reference("torch.ne")
def ne(input, other):
    """Return input != other."""
    return input != other


@reference("torch.lt")
def lt(input, other):
    """Return input < other."""
    return input < other


@reference("torch.le")
def le(input, other):
    """Return input <= other."""
    return input <= other


@reference("torch.gt")
def gt(input, other):
    """Return input > other."""
    return input > other


@reference("torch.ge")
def ge(input, other):
    """Return input >= other."""
    return input >= other


@reference("torch.logical_and")
def logical_and(input, other):
    """Both are nonzero."""
    return (input != 0) & (other != 0)


@reference("torch.logical_or")
def logical_or(input, other):
    """At least one is nonzero."""
    return (input != 0) | (other != 0)


@reference("torch.logical_xor")
def logical_xor(input, other):
    """Exactly one is nonzero."""
    return (input != 0) != (other != 0)


@reference("torch.logical_not")
def logical_not(input):
    """The input is zero."""
    return input == 0


@reference("torch.bitwise_and")
def bitwise_and(input, other):
    """Bits set in both."""
    return input & other


@reference("torch.bitwise_or")
def bitwise_or(input, other):
    """Bits set in either."""
    return input | other


@reference("torch.bitwise_xor")
def bitwise_xor(input, other):
    """Bits set in exactly one."""
    return input ^ other


@reference("torch.bitwise_not")
def bitwise_not(input):
    """Bits inverted; logical not of booleans."""
    return np.bitwise_not(input)


@reference("torch.bitwise_left_shift")
def bitwise_left_shift(input, other):
    """Return input * 2 ** other."""
    return input * 2**other


@reference("torch.bitwise_right_shift")
def bitwise_right_shift(input, other):
    """floor(input / 2 ** other)."""
    return input // 2**other
