"""The page at ``/``: drop a photo, see labels, boxes or a mask."""

from __future__ import annotations

from functools import cache
from importlib import resources

__all__ = ["page"]


@cache
def page() -> bytes:
    """Return the HTML."""
    return resources.files(__package__).joinpath("page.html").read_bytes()
