"""Parts of error messages that several readers share."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["listing", "plural", "recognise", "show"]


def show(text: str) -> str:
    """Quote a part of a file, shortened to 60 characters."""
    text = text.strip()
    return repr(text if len(text) <= 60 else f"{text[:57]}...")


def plural(number: int, noun: str, many: str | None = None) -> str:
    """Return ``"1 entry"`` or ``"2 entries"``."""
    return f"{number} {noun if number == 1 else many or noun + 's'}"


def listing(items: Sequence[str], limit: int = 20) -> str:
    """Join up to `limit` items and count the rest."""
    text = ", ".join(items[:limit])
    return text if len(items) <= limit else f"{text} and {len(items) - limit} more"


def recognise(head: bytes) -> str | None:
    """Describe a file that was mistaken for a model, image or array; None if unknown.

    Parameters
    ----------
    head : bytes
        The first bytes of the file; 256 are enough.
    """
    text = head[:256].lstrip().lower()
    if text.startswith(b"version https://git-lfs"):
        return "it is a git-lfs pointer; fetch the file itself with 'git lfs pull'"
    if text.startswith(b"<?xml") and b"<net" in text:
        return "it is an OpenVINO model; kuiper reads exports from PyTorch and ONNX"
    if text.startswith((b"<!doctype", b"<html", b"<head", b"<body", b"<?xml", b"<!--")):
        return "it is a web page (HTML); the download saved a page instead of the file"
    if head.startswith(b"\x1f\x8b"):
        return "it is gzip data; unpack it first"
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "it is UTF-16 text; save it as UTF-8"
    if head.startswith((7767517).to_bytes(4, "little")):
        return "it is a binary .param.bin file of ncnn; load the .pnnx.param file"
    return None
