"""The targets by name."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import NamedTuple

from . import archive, expressions, models, onnx_models, param

__all__ = ["TARGETS", "Target"]

Join = Callable[[list], bytes]


class Target(NamedTuple):
    """A kind of input to fuzz.

    Attributes
    ----------
    name : str
    make : callable
        Makes an input from a random number generator.
    mutate : callable
        Edits an input.
    check : callable
        Checks an input and returns a word for the counts; raises for a finding.
    split : callable
        Splits an input into pieces for shrinking, coarsely (level 0) or finely (1).
    """

    name: str
    make: Callable[[Random], bytes]
    mutate: Callable[[bytes, Random], bytes]
    check: Callable[..., str]
    split: Callable[[bytes, int], tuple[list, Join]]


def _split_bytes(data: bytes, level: int) -> tuple[list, Join]:
    return [data[i : i + 1] for i in range(len(data))], b"".join


def _split_text(data: bytes, level: int) -> tuple[list, Join]:
    """Split a ``.param`` text into lines, then words."""
    if level == 0:
        return data.split(b"\n"), b"\n".join
    words = [line.split(b" ") for line in data.split(b"\n")]
    pieces = [(number, word) for number, line in enumerate(words) for word in line]

    def join(kept: list) -> bytes:
        lines: list[list[bytes]] = [[] for _ in words]
        for number, word in kept:
            lines[number].append(word)
        return b"\n".join(map(b" ".join, lines))

    return pieces, join


def _split_model(data: bytes, level: int) -> tuple[list, Join]:
    """Split a model into operators, then fields; the header stays correct."""
    head, text, archive_bytes = models.unpack(data)
    try:
        lines = models.read_lines(text)
        members = models.read_members(archive_bytes)
    except Exception:  # too damaged to have lines and entries
        return [data], b"".join
    if level == 0:
        pieces = list(enumerate(lines))
    else:
        pieces = [(i, field) for i, line in enumerate(lines) for field in line.fields]

    def join(kept: list) -> bytes:
        if level == 0:
            chosen = [line for _, line in kept]
        else:
            chosen = [
                models.Line(
                    line.type, line.name, line.inputs, line.outputs, [f for n, f in kept if n == i]
                )
                for i, line in enumerate(lines)
            ]
        wanted = {f"{x.name}.{key[1:]}" for x in chosen for key, _ in x.fields if key[:1] == "@"}
        # Drop entries whose attribute is gone; keep those that never had one.
        ours = {f"{x.name}.{key[1:]}" for x in lines for key, _ in x.fields if key[:1] == "@"}
        left = {name: raw for name, raw in members.items() if name in wanted or name not in ours}
        return models.pack(head, models.write_lines(chosen), models.archive_bytes(left))

    return pieces, join


TARGETS = {
    target.name: target
    for target in (
        Target("param", param.make, param.mutate, param.check, _split_text),
        Target("bin", archive.make, archive.mutate, archive.check, _split_bytes),
        Target("expression", expressions.make, expressions.mutate, expressions.check, _split_bytes),
        Target(
            "ncnn",
            expressions.make_ncnn,
            expressions.mutate_ncnn,
            expressions.check_ncnn,
            _split_bytes,
        ),
        Target("onnx", onnx_models.make, onnx_models.mutate, onnx_models.check, _split_bytes),
        Target("model", models.make, models.mutate, models.check, _split_model),
    )
}
