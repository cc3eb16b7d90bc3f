"""Constant indices, which are text in a file."""

from __future__ import annotations

import ast
from typing import Any

__all__ = ["literal_indices"]


def literal_indices(found: Any, bools: bool = False) -> list[list[int] | None] | None:
    """Return indices as lists of integers, with None for a whole axis; None for other indices.

    With `bools`, lists may hold bools too.
    """
    if isinstance(found, str):
        try:
            found = ast.literal_eval(found)
        except (SyntaxError, ValueError):
            return None
    if not isinstance(found, list | tuple):
        return None
    items: list[Any] = [list(one) if isinstance(one, list | tuple) else one for one in found]
    lists = [one for one in items if isinstance(one, list)]
    known = all(one is None or isinstance(one, list) for one in items)
    whole = all(
        isinstance(n, int) and (bools or not isinstance(n, bool)) for one in lists for n in one
    )
    return items if known and whole and lists and all(lists) else None
