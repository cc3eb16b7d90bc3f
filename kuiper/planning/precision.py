"""The precision of a model: the setting of the user, and what it means on this machine."""

from __future__ import annotations

import os

from kuiper._kernels.micro import dispatch
from kuiper.errors import InputError

__all__ = ["PRECISIONS", "chosen_precision"]

PRECISIONS = ("float32", "bfloat16", "auto")


def chosen_precision(precision: str | None) -> str:
    """Return ``"float32"`` or ``"bfloat16"`` for a setting.

    Parameters
    ----------
    precision : str or None
        One of `PRECISIONS`; None for the environment variable ``KUIPER_PRECISION``, else float32.

    Raises
    ------
    InputError
        If it is another one.
    """
    source = "precision"
    if precision is None:
        source = "KUIPER_PRECISION"
        precision = os.environ.get(source, "").strip() or "float32"
    if not isinstance(precision, str) or precision not in PRECISIONS:
        expected = ", ".join(map(repr, PRECISIONS))
        raise InputError(f"{source} is {precision!r}, expected one of {expected}")
    if precision == "auto":
        return "bfloat16" if dispatch.prefers_bfloat16() else "float32"
    return precision
