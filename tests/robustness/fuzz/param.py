"""Target ``param``: the text of a model without its weights."""

from __future__ import annotations

from functools import cache
from random import Random

from kuiper.errors import GraphError, ModelFormatError
from kuiper.ir import Attribute
from kuiper.pnnx import param as reader

from ...support import load_cases
from .chance import INTEGERS, WORDS, edit_bytes, edit_words, often, pick, value_text

__all__ = ["SPLIT", "check", "make", "mutate"]

SPLIT = b"\n"  # separator at which inputs are shrunk

_VOCABULARY = (
    "pnnx.Input", "pnnx.Output", "nn.ReLU", "a", "b", "0", "1", "2", "3", "-1", "=", "@", "#",
    "$", "a=", "@w=(2,3)f32", "@w=()f32", "@w=(0)i64", "@w=(?)f32", "#0=(1,?,3)f32", "#0=()null",
    "$x=0", "$=", "#=", "k=(1,(2,3))", "k=[[1],[2]]", "expr=add(@0,1)",
    "@w=(9223372036854775807,2)f16", "\u3000", "\x0b",
)  # fmt: skip


@cache
def _texts() -> tuple[bytes, ...]:
    # Short texts: more of them per second, and an edit is likelier to hit a relevant word.
    return tuple(case.param for case in load_cases("operators") if len(case.param) < 1500)


def make(random: Random) -> bytes:
    """Return a damaged text."""
    return mutate(pick(random, _texts()), random)


def mutate(data: bytes, random: Random) -> bytes:
    """Edit bytes, words or lines of a text."""
    kind = random.randrange(4)
    if kind == 0 or b"\n" not in data:
        return edit_bytes(random, data)
    lines = data.decode(errors="surrogateescape").split("\n")
    if kind == 1:
        lines = edit_words(random, lines, lines)
    else:
        for _ in range(1 + random.randrange(3)):
            number = random.randrange(len(lines))
            words = lines[number].split(" ")
            if often(random, 0.5):
                words = edit_words(random, words, _VOCABULARY)
            else:
                at = random.randrange(len(words))
                key, equals, value = words[at].partition("=")
                if equals:
                    words[at] = f"{key}={value_text(random, value)}"
                else:
                    words[at] = str(pick(random, (*INTEGERS, *WORDS)))
            lines[number] = " ".join(words)
    return "\n".join(lines).encode(errors="surrogateescape")


def check(data: bytes) -> str:
    """Parse a text; a valid graph must survive writing and reading."""
    try:
        parsed = reader.parse(data)
        specs = parsed.attributes()
    except ModelFormatError as error:
        if not str(error).startswith("<bytes>"):
            raise AssertionError("the message does not name the file") from error
        return "refused"
    attributes = {}
    for member, (_, spec) in specs.items():
        if spec.nbytes > 1 << 20:
            return "parsed, too large to fill"
        raw = reader_zeros(spec.nbytes)
        attributes[member] = Attribute(spec.shape, spec.dtype, raw)
    graph = reader.build(parsed, attributes)
    graph.verify()
    try:
        text = reader.format(graph)
    except GraphError:
        return "parsed, cannot be written"
    again = reader.parse(text.encode())
    second = reader.build(again, attributes)
    assert reader.format(second) == text, "writing what was read back gives another text"
    assert [op.type for op in second] == [op.type for op in graph.topological_order()]
    return "parsed"


def reader_zeros(count: int):
    """Return the bytes of a weight."""
    import numpy as np

    return np.zeros(count, np.uint8)
