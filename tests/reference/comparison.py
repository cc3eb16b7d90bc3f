"""Comparisons, logic and bits."""

from __future__ import annotations

import numpy as np

from .registry import reference


@reference("torch.eq")
def eq(input, other):
    """Equal."""
    return input == other


@reference("torch.ne")
def ne(input, other):
    """Not equal."""
    return input != other


@reference("torch.lt")
def lt(input, other):
    """Less."""
    return input < other


@reference("torch.le")
def le(input, other):
    """Less or equal."""
    return input <= other


@reference("torch.gt")
def gt(input, other):
    """Greater."""
    return input > other


@reference("torch.ge")
def ge(input, other):
    """Greater or equal."""
    return input >= other


@reference("torch.logical_and")
def logical_and(input, other):
    """Both are not zero."""
    return (input != 0) & (other != 0)


@reference("torch.logical_or")
def logical_or(input, other):
    """One is not zero."""
    return (input != 0) | (other != 0)


@reference("torch.logical_xor")
def logical_xor(input, other):
    """Just one is not zero."""
    return (input != 0) != (other != 0)


@reference("torch.logical_not")
def logical_not(input):
    """Zero."""
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
    """Bits set in just one."""
    return input ^ other


@reference("torch.bitwise_not")
def bitwise_not(input):
    """Bits not set; of bools: not."""
    return np.bitwise_not(input)


@reference("torch.bitwise_left_shift")
def bitwise_left_shift(input, other):
    """Times 2 ** other."""
    return input * 2**other


@reference("torch.bitwise_right_shift")
def bitwise_right_shift(input, other):
    """Divided by 2 ** other, rounded down."""
    return input // 2**other
