"""Pieces of error messages that the readers of both files share."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["listing", "plural", "recognise", "show"]


def show(text: str) -> str:
    """Quote a piece of a file, cut to a length that fits a message."""
    text = text.strip()
    return repr(text if len(text) <= 60 else f"{text[:57]}...")


def plural(number: int, noun: str, many: str | None = None) -> str:
    """Return ``"1 entry"`` or ``"2 entries"``."""
    return f"{number} {noun if number == 1 else many or noun + 's'}"


def listing(items: Sequence[str], limit: int = 20) -> str:
    """Join items; a long tail is cut off and counted."""
    text = ", ".join(items[:limit])
    return text if len(items) <= limit else f"{text} and {len(items) - limit} more"


def recognise(head: bytes) -> str | None:
    """Say what a file is that was taken for one of a PNNX model, or None.

    Parameters
    ----------
    head : bytes
        The first bytes of the file; 256 are enough.
    """
    text = head[:256].lstrip().lower()
    if text.startswith(b"version https://git-lfs"):
        return "it is a git-lfs pointer; fetch the file itself with 'git lfs pull'"
    if text.startswith((b"<!doctype", b"<html", b"<head", b"<body", b"<?xml", b"<!--")):
        return "it is a web page (HTML); the download saved a page instead of the file"
    if head.startswith(b"\x1f\x8b"):
        return "it is gzip data; unpack it first"
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "it is UTF-16 text; save it as UTF-8"
    if head.startswith((7767517).to_bytes(4, "little")):
        return "it is a binary .param.bin file of ncnn; load the .pnnx.param file"
    return None
