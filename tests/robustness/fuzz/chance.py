"""Random edits of numbers, words and bytes.

Every function takes a :class:`random.Random`, which hypothesis or atheris may drive.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import TypeVar

__all__ = ["FLOATS", "INTEGERS", "WORDS", "edit_bytes", "edit_words", "often", "pick", "value_text"]

Item = TypeVar("Item")

# Limits of number types and of their halves, and neighbours of these.
INTEGERS = (
    0, 1, -1, 2, -2, 3, 4, 5, 7, 8, 15, 16, 17, 31, 32, 33, 64, 127, 128, 255, 256, 1000, 65535,
    65536, 2**31 - 1, 2**31, -(2**31), 2**32 - 1, 2**32, 2**40, 2**53 + 1, 2**62, 2**63 - 1,
    2**63, -(2**63), 2**64 - 1, 2**64, 10**30, -(10**30),
)  # fmt: skip

FLOATS = (
    "0.0", "-0.0", "0.5", "1.0", "-1.0", "1e-5", "1e-45", "1e-320", "3.4e38", "1e39", "1e308",
    "-1e308", "1e999", "inf", "-inf", "nan.0", "nan", "2.5", "0.1",
)  # fmt: skip

WORDS = (
    "None", "True", "False", "same", "valid", "zeros", "reflect", "replicate", "circular",
    "constant", "nearest", "bilinear", "bicubic", "linear", "area", "sum", "mean", "none", "tanh",
    "torch.float", "torch.long", "torch.bool", "torch.half", "torch.complex64", "torch.uint8",
    "f32", "()", "[]", "(())", "((1,2),(3))", "1+2j", "*", "@0", "é", "x" * 300, "9" * 4000,
    "(" * 40, "ij,jk->ik", "ii->i", "...i,i...->...", "1_0", "0x10",
)  # fmt: skip

_BYTES = (
    b"", b"\0", b"\n", b" ", b"=", b"(", b")", b",", b"-", b"@", b"#", b"$", b"?", b"\xff",
    b"\xff" * 4, b"\xff" * 8, b"\x80", b"9", b"99999999999999999999", b"PK\1\2", b"PK\3\4",
    b"PK\5\6", b"PK\6\6", b"PK\6\7", b"\1\0", b"\0\0\0\x80", b"7767517", b"\r\n", b"\xef\xbb\xbf",
    b"\xc3\xa9",
)  # fmt: skip


def often(random: Random, share: float) -> bool:
    """Return True with probability `share`."""
    return random.random() < share


def pick(random: Random, items: Sequence[Item]) -> Item:
    """Return one of `items`."""
    return items[random.randrange(len(items))]


def value_text(random: Random, old: str = "") -> str:
    """Return the text of a parameter: close to `old`, of its form, or unrelated."""
    kind = random.randrange(10)
    if kind < 3 and old.startswith("("):
        return _list_text(random, old)
    if kind < 5:
        try:
            return str(int(old) + pick(random, (-2, -1, 1, 2)))
        except ValueError:
            kind = 9
    if kind < 7:
        return str(pick(random, INTEGERS))
    if kind == 7:
        return pick(random, FLOATS)
    if kind == 8:
        count = random.randrange(5)
        return f"({','.join(str(pick(random, INTEGERS)) for _ in range(count))})"
    if old == "True":
        return "False"
    if old == "False":
        return "True"
    return pick(random, WORDS)


def _list_text(random: Random, old: str) -> str:
    """Change one element of a list, or its length."""
    items = old[1:-1].split(",")
    at = random.randrange(len(items))
    kind = random.randrange(6)
    if kind == 0:
        del items[at]
    elif kind == 1:
        items.insert(at, items[at])
    elif kind == 2:
        items[at] = pick(random, FLOATS)
    elif kind == 3:
        random.shuffle(items)
    else:
        near = items[at].lstrip("-").isdigit() and often(random, 0.5)
        number = int(items[at]) + pick(random, (-1, 1)) if near else pick(random, INTEGERS)
        items[at] = str(number)
    return f"({','.join(items)})"


def edit_bytes(random: Random, data: bytes) -> bytes:
    """Edit a few bytes: cut, copy, overwrite, insert, flip."""
    for _ in range(1 + random.randrange(4)):
        at = random.randrange(len(data) + 1)
        kind = random.randrange(7)
        if kind == 0:
            data = data[:at]
        elif kind == 1:
            stop = min(len(data), at + 1 + random.randrange(64))
            data = data[:at] + data[stop:]
        elif kind == 2:
            start = random.randrange(len(data) + 1)
            data = data[:at] + data[start : start + 1 + random.randrange(64)] + data[at:]
        elif kind == 3 and at < len(data):
            flipped = data[at] ^ 1 << random.randrange(8)
            data = data[:at] + bytes([flipped]) + data[at + 1 :]
        elif kind == 4:
            number = (pick(random, INTEGERS) % 2**64).to_bytes(8, "little")
            size = pick(random, (2, 4, 8))
            data = data[:at] + number[:size] + data[at + size :]
        else:
            new = pick(random, _BYTES)
            data = data[:at] + new + data[at + pick(random, (0, len(new))) :]
    return data


def edit_words(random: Random, words: list[str], vocabulary: Sequence[str]) -> list[str]:
    """Edit a few words of a list: drop, duplicate, swap, replace, insert."""
    words = list(words)
    for _ in range(1 + random.randrange(3)):
        at = random.randrange(len(words) + 1)
        kind = random.randrange(5)
        if kind == 0 or at == len(words):
            words.insert(at, pick(random, vocabulary))
        elif kind == 1:
            del words[at]
        elif kind == 2:
            words.insert(at, words[at])
        elif kind == 3:
            other = random.randrange(len(words))
            words[at], words[other] = words[other], words[at]
        else:
            words[at] = pick(random, vocabulary)
    return words
