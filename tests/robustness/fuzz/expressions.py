"""Targets ``expression`` and ``ncnn``: the two expression languages, read, translated and computed.

An input is a line of JSON (the seed of the operands) and the text.  Valid text must survive writing
and reading, and its value must equal that of a short independent evaluator.  That evaluator repeats
the computation with perturbed roundings to find values that depend on the last bits; those are not
compared.
"""

from __future__ import annotations

import json
import math
import re
from random import Random

import numpy as np

from kuiper.errors import ExpressionError
from kuiper.expression import compile, evaluate, infix, ncnn, outline, parse, to_dot, to_svg
from kuiper.expression.ncnn import Source, from_ncnn, to_ncnn

from ...reference.expression import BINARY, UNARY
from .chance import INTEGERS, edit_bytes, edit_words, often, pick

__all__ = ["VOCABULARY", "check", "check_ncnn", "make", "make_ncnn", "mutate", "mutate_ncnn"]

_NUMBERS = (
    "0",
    "1",
    "2",
    "3",
    "-1",
    "7",
    "0.5",
    "-2.5",
    "1.0e-05",
    "2.0",
    "6.283185",
    "1e3",
    "-0.0",
)

_ODD = (
    "inf", "-inf", "nan", "nan.0", "1e999", "1e-45", "None", "True", "False", "1+2j",
    "1.0e+00+2.0e+00j", "@00", "@", "@99999", "@999999999999", "word", "torch.float",
    "torch.bool", "torch.int8", "é", "\u00a0", "relu", "gelu", "9" * 400, "1e-999", "-", "+", ".",
    "e5", "0x1F", "1_000", "\n", " ",
)  # fmt: skip

_PUNCTUATION = ("(", ")", "[", "]", ",")

_CALLS = (*BINARY, *UNARY)

VOCABULARY = (
    *_CALLS, *_NUMBERS, *_ODD, *_PUNCTUATION, "@0", "@1", "@2", "@3", *map(str, INTEGERS),
)  # fmt: skip


def pack(seed: int, text: str) -> bytes:
    """Return a seed and a text as one input."""
    return json.dumps(seed).encode() + b"\n" + text.encode(errors="surrogatepass")


def unpack(data: bytes) -> tuple[int, str]:
    """Return the seed and the text of an input."""
    line, _, text = data.partition(b"\n")
    try:
        seed = int(json.loads(line))
    except (TypeError, ValueError, RecursionError, OverflowError):
        seed = 0
    return seed, text.decode(errors="replace")


# -- pnnx.Expression ----------------------------------------------------------------------------


def make(random: Random) -> bytes:
    """Return an expression, well-formed or damaged."""
    text = _tree(random, 1 + random.randrange(5))
    if often(random, 0.1):
        count = 1 + random.randrange(4)
        text = f"[{','.join(_tree(random, 2) for _ in range(count))}]"
    data = pack(random.randrange(1 << 30), text)
    return mutate(data, random) if often(random, 0.6) else data


def _tree(random: Random, depth: int) -> str:
    if depth == 0 or often(random, 0.15):
        if often(random, 0.6):
            return f"@{random.randrange(3)}"
        return pick(random, _NUMBERS)
    name = pick(random, _CALLS)
    if name == "size":
        return f"size(@{random.randrange(3)},{random.randrange(-2, 3)})"
    if name in UNARY:
        return f"{name}({_tree(random, depth - 1)})"
    return f"{name}({_tree(random, depth - 1)},{_tree(random, depth - 1)})"


def mutate(data: bytes, random: Random) -> bytes:
    """Edit words or bytes."""
    seed, text = unpack(data)
    if often(random, 0.15):
        changed = edit_bytes(random, text.encode()).decode(errors="replace")
    else:
        changed = "".join(edit_words(random, _words(text), VOCABULARY))
    if often(random, 0.02):
        times = pick(random, (10, 300, 990, 1010, 5000))
        changed = "neg(" * times + changed + ")" * times
    return pack(seed, changed)


def _words(text: str) -> list[str]:
    return re.findall(r"[^(),\[\]]+|[(),\[\]]", text)


def check(data: bytes) -> str:
    """Read, write, draw, compute and compile an expression."""
    seed, text = unpack(data)
    try:
        tree = parse(text)
    except ExpressionError:
        _check_other_readers(text)
        return "refused"
    again = parse(str(tree))
    assert again == tree, "written and read again it is another tree"
    assert str(again) == str(tree), "written twice it is another text"
    n_nodes = sum(1 for _ in tree.preorder())
    if n_nodes < 100 and seed % 8 == 0:
        for draw in (infix, outline, to_dot, to_svg):
            draw(tree)
    operands = _operands(seed)
    value = _outcome(lambda: evaluate(tree, operands))
    function = compile(tree)
    fast = _outcome(lambda: function(*operands))
    if isinstance(value, ExpressionError) or isinstance(fast, ExpressionError):
        if type(value) is not type(fast):
            raise AssertionError(f"only one of evaluate and compile works: {value!r}, {fast!r}")
        return "has no value"
    if not _is_plain(operands) or isinstance(value, list):
        return "computed"
    expected, scale = _reference(text, operands)
    if expected is None:
        return "computed, no reference"
    _compare(value, expected, scale, "evaluate")
    _compare(fast, expected, scale, "compile")
    return "computed as the reference"


def _check_other_readers(text: str) -> None:
    """Text that one reader refuses must not crash the others."""
    for read in (lambda: parse(text, 0), lambda: compile(text)):
        _outcome(read)


def _outcome(function):
    try:
        return function()
    except ExpressionError as error:
        return error


def _operands(seed: int) -> list:
    """Return three operands, mostly float32 arrays, which have a fast path."""
    random = np.random.default_rng(seed)
    shapes = [(3, 4), (4,), (3, 1), (), (1,), (0,), (2, 3, 4)]
    kind = seed % 8
    operands: list = []
    for _ in range(3):
        shape = shapes[int(random.integers(0, 3 if kind < 5 else len(shapes)))]
        x = random.uniform(-3, 3, shape).astype(np.float32)
        if kind == 5:
            types = (np.float32, np.float64, np.float16, np.int64, np.uint8, bool, np.complex64)
            x = x.astype(types[int(random.integers(0, len(types)))])
        elif kind == 6:
            x = (3, -2, 0.5, True, 10**6)[int(random.integers(0, 5))]
        elif kind == 7:
            x = (x, 2, -1.5, None, "word", [1, 2], 1j, 10**30)[int(random.integers(0, 8))]
        operands.append(x)
    return operands


def _is_plain(operands: list) -> bool:
    return all(isinstance(x, np.ndarray) and x.dtype == np.float32 for x in operands)


def _reference(text: str, operands: list) -> tuple:
    """Return the value and its uncertainty, or None if the evaluator cannot tell.

    The value is computed in float64, and again with every intermediate result perturbed by a few
    roundings of float32.
    """
    if "torch." in text or re.search(r"size\((?![^()]*,)", text):
        return None, 0.0
    wide = [x.astype(np.float64) for x in operands]
    try:
        with np.errstate(all="ignore"):
            value = np.asarray(_compute(text, wide, None))
            if value.dtype.kind not in "biuf":
                return None, 0.0
            spread = np.zeros(value.shape)
            for seed in range(4):
                noisy = np.asarray(_compute(text, wide, np.random.default_rng(seed)))
                spread = np.maximum(spread, np.abs(noisy - value.astype(np.float64)))
    except (_Unsure, ValueError, TypeError, IndexError, KeyError, OverflowError, ZeroDivisionError):
        return None, 0.0
    if not np.isfinite(spread).all() or (spread > 1e-2 * np.abs(value) + 1e-6).any():
        return None, 0.0
    return value, spread


class _Unsure(Exception):
    """The value depends on something that float32 or PyTorch may treat differently."""


def _compute(text: str, operands: list, random):
    """Evaluate prefix notation from right to left."""
    stack: list = []
    for word in reversed(_words(text.replace(" ", ""))):
        if word in "(),":
            continue
        if word in "[]":
            raise _Unsure
        if word.startswith("@"):
            stack.append(operands[int(word[1:])])
            continue
        if word in BINARY:
            result = BINARY[word](stack.pop(), stack.pop())
        elif word in UNARY:
            result = UNARY[word](stack.pop())
        else:
            stack.append(_number(word))
            continue
        result = np.asarray(result)
        large = np.abs(result[np.isfinite(result)].astype(np.float64)) if result.size else result
        if result.dtype.kind == "c" or (large.size and float(large.max()) > 1e15):
            raise _Unsure
        if not np.isfinite(result).all() or (large.size and 0 < float(large.min()) < 1e-30):
            raise _Unsure
        if random is not None and result.dtype.kind == "f":
            result = result * (1 + 2.0**-21 * random.uniform(-1, 1, result.shape))
        stack.append(result if result.shape else result[()])
    if len(stack) != 1:
        raise _Unsure
    return stack[0]


def _number(word: str) -> int | float:
    if re.fullmatch(r"[+-]?\d{1,15}", word):
        return int(word)
    if re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", word):
        return float(word)
    raise _Unsure


def _compare(value, expected: np.ndarray, spread: np.ndarray, what: str) -> None:
    found = np.asarray(value)
    assert found.shape == expected.shape, f"{what}: shape {found.shape}, expected {expected.shape}"
    error = np.abs(found.astype(np.float64) - expected.astype(np.float64))
    allowed = 32 * spread + 1e-4 * np.abs(expected.astype(np.float64)) + 1e-6
    if not (error <= allowed).all():
        raise AssertionError(f"{what}: {found!r}, expected {expected!r}")


# -- ncnn ---------------------------------------------------------------------------------------

_NCNN_LEAVES = ("0w", "0h", "0d", "0c", "0n", "1w", "1h", "1c", "2w", "9n")

_NCNN_VOCABULARY = (
    *ncnn.OPERATORS, *_NCNN_LEAVES, *_NUMBERS, *_ODD, "(", ")", ",", "10w", "0W", *map(str,
    INTEGERS),
)  # fmt: skip

_EXACT = frozenset(["+", "*", "max", "min", "-", "neg", "abs", "sign", "square"])


def make_ncnn(random: Random) -> bytes:
    """Return a list of items, well-formed or damaged."""
    text = ",".join(_item(random, random.randrange(4)) for _ in range(1 + random.randrange(4)))
    data = pack(random.randrange(1 << 30), text)
    return mutate_ncnn(data, random) if often(random, 0.6) else data


def _item(random: Random, depth: int) -> str:
    if depth == 0 or often(random, 0.15):
        return pick(random, _NCNN_LEAVES[:8] if often(random, 0.6) else _NUMBERS)
    name = pick(random, tuple(ncnn.OPERATORS))
    arguments = [_item(random, depth - 1) for _ in range(ncnn.OPERATORS[name])]
    return f"{name}({','.join(arguments)})"


def mutate_ncnn(data: bytes, random: Random) -> bytes:
    """Edit words or bytes."""
    seed, text = unpack(data)
    if often(random, 0.15):
        changed = edit_bytes(random, text.encode()).decode(errors="replace")
    else:
        changed = "".join(edit_words(random, _words(text), _NCNN_VOCABULARY))
    if often(random, 0.02):
        times = pick(random, (10, 250, 260, 5000))
        changed = "neg(" * times + changed + ")" * times
    return pack(seed, changed)


def check_ncnn(data: bytes) -> str:
    """Read, write, compute, and translate both ways."""
    seed, text = unpack(data)
    assert 0 <= ncnn.count_blobs(text) <= 10
    try:
        tree = ncnn.parse(text)
    except ExpressionError:
        return "refused"
    assert ncnn.parse(ncnn.to_text(tree)) == tree, "written and read again it is another tree"
    random = Random(seed)
    shapes = [
        tuple(random.randrange(1, 9) for _ in range(random.randrange(1, 5))) for _ in range(2)
    ]
    values = _outcome(lambda: ncnn.eval_list(tree, shapes))
    sources = [Source(f"x{i}", len(shape)) for i, shape in enumerate(shapes)]
    translated = _outcome(lambda: from_ncnn(tree, sources, reverse=False))
    if isinstance(values, ExpressionError):
        return "has no value"
    assert all(type(value) is int and -(2**31) <= value < 2**31 for value in values)
    _compare_ncnn(text, shapes, values)
    if isinstance(translated, ExpressionError):
        return "computed, not translated"
    back = _outcome(lambda: to_ncnn(translated, sources, "x0", reverse=False))
    theirs = _outcome(
        lambda: evaluate(translated, [np.zeros(shape, np.float32) for shape in shapes])
    )
    names = set(re.findall(r"[^(),\d\s.]+", text)) & ncnn.OPERATORS.keys()
    if names <= _EXACT and "." not in text and "e" not in re.sub("[a-z]{2,}", "", text):
        assert theirs == values, f"translated to PNNX: {theirs!r}, expected {values!r}"
        if not isinstance(back, ExpressionError):
            found = ncnn.eval_list(back.text, shapes)
            assert found == values, f"translated there and back: {found}, expected {values}"
    return "computed"


def _compare_ncnn(text: str, shapes: list, values: list[int]) -> None:
    """Compare with a float64 evaluator, perturbed like that of the other language."""
    runs = []
    for noise in (None, _Upwards(), _Downwards(), Random(1), Random(2)):
        try:
            runs.append(_compute_ncnn(text, shapes, noise))
        except (_Unsure, ValueError, OverflowError, ZeroDivisionError, IndexError):
            return
    assert len(runs[0]) == len(values), f"{len(values)} items, expected {len(runs[0])}"
    for number, value in enumerate(values):
        items = {math.trunc(run[number]) for run in runs}
        if len(items) == 1:
            assert items == {value}, f"item {number} is {value}, expected {items}"


class _Upwards(Random):
    """Rounds every positive number up, so that almost-integers become integers."""

    def uniform(self, a: float, b: float) -> float:
        return b


class _Downwards(Random):
    def uniform(self, a: float, b: float) -> float:
        return a


def _compute_ncnn(text: str, shapes: list, noise: Random | None) -> list:
    stack: list = []
    for word in reversed(re.findall(r"[^(),]+", text)):
        word = word.strip()
        if not word:
            continue
        if word in ncnn.OPERATORS:
            arguments = [stack.pop() for _ in range(ncnn.OPERATORS[word])]
            result = _NCNN[word](*arguments)
        else:
            result = _ncnn_leaf(word, shapes)
        if isinstance(result, float):
            if not math.isfinite(result) or abs(result) > 1e30:
                raise _Unsure
            # Literals are rounded too, which changes a remainder by them.
            if noise is not None:
                result *= 1 + 2.0**-21 * noise.uniform(-1, 1)
        stack.append(result)
    return stack[::-1]


def _ncnn_leaf(word: str, shapes: list) -> int | float:
    if re.fullmatch(r"\d[whdcn]", word):
        axes = ("", "w", "hw", "chw", "cdhw")[len(shapes[int(word[0])])]
        axis = axes.find(word[1])
        return 1 if axis < 0 else shapes[int(word[0])][axis]
    number = _number(word)
    # 2.0 is an integer, 1e1 is not.
    if isinstance(number, float) and number.is_integer() and "e" not in word:
        return int(number)
    return number


def _both(integers, floats=None):
    """Make an operator that maps integers to integers."""

    def apply(*arguments):
        if all(isinstance(a, int) for a in arguments):
            return integers(*arguments)
        return float((floats or integers)(*map(float, arguments)))

    return apply


def _only_floats(function):
    return lambda *arguments: float(function(*map(float, arguments)))


def _rounding(function):
    return lambda a: a if isinstance(a, int) else int(function(a))


def _bits(function):
    def apply(a, b):
        if not (isinstance(a, int) and isinstance(b, int)):
            raise _Unsure
        return function(a, b)

    return apply


def _shift(a, b):
    if not 0 <= b < 32:
        raise _Unsure
    return a << b


def _fmod_like_divisor(a, b):
    rest = math.fmod(a, b)
    return rest + b if a * b < 0 else rest


_NCNN = {
    "+": _both(lambda a, b: a + b),
    "-": _both(lambda a, b: a - b),
    "*": _both(lambda a, b: a * b),
    "//": _both(lambda a, b: math.trunc(a / b), lambda a, b: math.floor(a / b)),
    "/": _only_floats(lambda a, b: a / b),
    "max": _both(max),
    "min": _both(min),
    "pow": _only_floats(math.pow),
    "fmod": _only_floats(math.fmod),
    "remainder": _only_floats(_fmod_like_divisor),
    "atan2": _only_floats(math.atan2),
    "logaddexp": _only_floats(lambda a, b: max(a, b) + math.log1p(math.exp(-abs(a - b)))),
    "and": _bits(lambda a, b: a & b),
    "or": _bits(lambda a, b: a | b),
    "xor": _bits(lambda a, b: a ^ b),
    "lshift": _bits(_shift),
    "rshift": _bits(lambda a, b: a >> b),
    "trunc": _rounding(math.trunc),
    "ceil": _rounding(math.ceil),
    "floor": _rounding(math.floor),
    "round": _rounding(lambda a: math.copysign(math.floor(abs(a) + 0.5), a)),
    "abs": _both(abs),
    "neg": _both(lambda a: -a),
    "sign": _both(lambda a: (a > 0) - (a < 0)),
    "square": _both(lambda a: a * a),
    "sqrt": _only_floats(math.sqrt),
    "rsqrt": _only_floats(lambda a: 1 / math.sqrt(a)),
    "reciprocal": _only_floats(lambda a: 1 / a),
    "exp": _only_floats(math.exp),
    "log": _only_floats(math.log),
    "log10": _only_floats(math.log10),
    "erf": _only_floats(math.erf),
    "sin": _only_floats(math.sin),
    "cos": _only_floats(math.cos),
    "tan": _only_floats(math.tan),
    "asin": _only_floats(math.asin),
    "acos": _only_floats(math.acos),
    "atan": _only_floats(math.atan),
    "sinh": _only_floats(math.sinh),
    "cosh": _only_floats(math.cosh),
    "tanh": _only_floats(math.tanh),
    "asinh": _only_floats(math.asinh),
    "acosh": _only_floats(math.acosh),
    "atanh": _only_floats(math.atanh),
}
