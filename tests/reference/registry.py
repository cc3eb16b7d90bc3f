"""The table from operator names to reference functions."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["REFERENCES", "reference"]

REFERENCES: dict[str, Callable] = {}


def reference(*types: str) -> Callable[[Callable], Callable]:
    """Register a function as the reference of the operator types `types`."""

    def register(function: Callable) -> Callable:
        for name in types:
            if name in REFERENCES:
                raise ValueError(f"{name} has two references")
            REFERENCES[name] = function
        return function

    return register
