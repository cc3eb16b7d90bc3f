"""The precision of a model: the setting of the user, and what it means on this machine."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from kuiper._kernels.micro import dispatch
from kuiper.errors import InputError

__all__ = ["PRECISIONS", "PRECISION_VARIABLE", "chosen_precision", "default_precision"]

PRECISION_VARIABLE = "KUIPER_PRECISION"
PRECISIONS = ("float32", "bfloat16", "auto")


_default: ContextVar[str | None] = ContextVar("default precision", default=None)


@contextmanager
def default_precision(precision: str) -> Iterator[None]:
    """Set the precision of models that are loaded without a setting inside a with block."""
    token = _default.set(precision)
    try:
        yield
    finally:
        _default.reset(token)


def chosen_precision(precision: str | None) -> str:
    """Return ``"float32"`` or ``"bfloat16"`` for a setting.

    Parameters
    ----------
    precision : str or None
        One of `PRECISIONS`; None for that of :func:`default_precision`, else of the environment
        variable ``KUIPER_PRECISION``, else float32.

    Raises
    ------
    InputError
        If it is another one.
    """
    source = "precision"
    if precision is None:
        precision = _default.get()
    if precision is None:
        source = PRECISION_VARIABLE
        precision = os.environ.get(source, "").strip() or "float32"
    if not isinstance(precision, str) or precision not in PRECISIONS:
        expected = ", ".join(map(repr, PRECISIONS))
        raise InputError(f"{source} is {precision!r}, expected one of {expected}")
    if precision == "auto":
        return "bfloat16" if dispatch.prefers_bfloat16() else "float32"
    return precision
