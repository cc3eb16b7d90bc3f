"""Operators that only carry values: tuples, and layers that do nothing at inference."""

from __future__ import annotations

from .registry import reference


@reference("prim::TupleConstruct")
def construct(*items):
    """Bundle values into one."""
    return items


@reference("prim::TupleUnpack")
def unpack(bundle):
    """Take a bundle apart."""
    return bundle


@reference("nn.Dropout", "F.dropout")
def identity(input, **_):
    """Return the value unchanged."""
    return input
