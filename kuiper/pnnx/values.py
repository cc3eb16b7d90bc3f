"""Parameter values of a ``.param`` file: text to Python and back.

A value carries no type tag; its spelling decides, by the rules of :func:`parse`.  The same rules
tell :func:`format` which strings would read back as something else and cannot be written.
"""

from __future__ import annotations

import math
from typing import Any

__all__ = ["format", "has_blank", "parse"]

# pnnx nests lists at most once; the limit bounds hostile input.
MAX_DEPTH = 32
# More than any double needs; int() takes quadratic time in the number of digits.
MAX_DIGITS = 1000

_CONSTANTS: dict[str, Any] = {
    "None": None,
    "()": None,
    "[]": None,
    "True": True,
    "False": False,
    "inf": math.inf,
    "-inf": -math.inf,
    "nan": math.nan,
    "-nan": math.nan,
    # The float writer of pnnx adds ".0" to any text without a point, including "nan".
    "nan.0": math.nan,
    "-nan.0": math.nan,
}
_CLOSING = {"(": ")", "[": "]"}
_DIGITS = frozenset("0123456789")
_BLANKS = " \t\n\r\v\f\0"  # these end a token, or a C string


def parse(text: str) -> Any:
    """Return the value that `text` spells.

    The first matching rule decides:

    1. text that contains ``%`` is a string (a capture of a pattern);
    2. ``None``, ``()``, ``[]`` are None, ``True`` and ``False`` bools, ``inf``, ``-inf`` and
       ``nan.0`` floats;
    3. text that starts with ``(`` or ``[`` is a list, read as a tuple, element by element;
    4. a decimal integer is an int, another decimal number a float;
    5. two numbers joined by a sign and ended by ``j`` are a complex number;
    6. everything else is a string.

    Parameters
    ----------
    text : str
        The text after ``=``; except for the key ``expr``, whose text is taken verbatim.

    Returns
    -------
    None, bool, int, float, complex, str, or a tuple of these

    Raises
    ------
    ValueError
        If a list is not closed, is closed by the wrong bracket, is followed by more text or
        is nested deeper than `MAX_DEPTH`.

    Examples
    --------
    >>> parse("(3,3)"), parse("1.000000e-5"), parse("zeros"), parse("1.0+-2.0j")
    ((3, 3), 1e-05, 'zeros', (1-2j))
    """
    if text[:1] in _CLOSING and text not in _CONSTANTS and "%" not in text:
        return _parse_list(text)
    return _parse_scalar(text)


def _parse_scalar(text: str) -> Any:
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if "%" in text:
        return text
    if text[-1:] == "j":
        number = _parse_complex(text)
    else:
        number = _parse_real(text)
    return text if number is None else number


def _parse_real(text: str) -> int | float | None:
    """Return the number `text` spells in plain decimal, or None."""
    lead = text[1:2] if text[:1] == "-" else text[:1]
    # int() and float() also take "1_000" and the digits of other scripts.
    if lead not in _DIGITS or "_" in text or not text.isascii() or len(text) > MAX_DIGITS:
        return None
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            continue
    return None


def _parse_complex(text: str) -> complex | None:
    """Return the complex number of ``<real>+<imaginary>j`` or ``<imaginary>j``, or None."""
    body = text[:-1]
    # Split at the last sign that is not part of an exponent; in "1.0+-2.0j" the sign before it
    # separates the parts.
    for split in range(len(body) - 1, 0, -1):
        if body[split] in "+-" and body[split - 1] not in "eE":
            break
    else:
        number = _parse_real(body)
        return None if number is None else complex(0.0, number)
    real: str
    imaginary: str
    if body[split] == "-" and body[split - 1] == "+":
        real, imaginary = body[: split - 1], body[split:]
    else:
        real, imaginary = body[:split], body[split:].removeprefix("+")
    parts = []
    for part in (real, imaginary):
        value = _CONSTANTS.get(part, _parse_real(part))
        if value is None or isinstance(value, bool):
            return None
        parts.append(value)
    return complex(*parts)


def _parse_list(text: str) -> tuple[Any, ...] | None:
    """Read a bracketed list with an explicit stack instead of recursion."""
    lists: list[list[Any]] = []
    closers: list[str] = []
    start = 0  # of the current element
    # The inner list that has just ended, boxed; it is the current element.
    closed: tuple[tuple[Any, ...] | None] | None = None
    for position, char in enumerate(text):
        if char in _CLOSING:
            if position != start or closed is not None:
                raise ValueError(f"'{char}' inside the element {text[start:position]!r}")
            if len(lists) == MAX_DEPTH:
                raise ValueError(f"lists nested deeper than {MAX_DEPTH}")
            lists.append([])
            closers.append(_CLOSING[char])
            start = position + 1
        elif char in "),]":
            if not lists:
                raise ValueError(f"{text[position:]!r} after the end of the list")
            items = lists[-1]
            if closed is not None:
                if position != start:
                    raise ValueError(f"{text[start:position]!r} after the end of the inner list")
                items.append(closed[0])
                closed = None
            elif char == "," or items or position > start:
                items.append(_parse_scalar(text[start:position]))
            start = position + 1
            if char == ",":
                continue
            if char != closers[-1]:
                raise ValueError(f"'{char}' closes a list that needs '{closers[-1]}'")
            closers.pop()
            ended = tuple(lists.pop())
            closed = (ended or None,)
        elif not lists:
            raise ValueError(f"{text[position:]!r} after the end of the list")
    if lists:
        raise ValueError(f"the list is not closed; '{closers[-1]}' is missing")
    assert closed is not None  # the text began with a bracket
    return closed[0]


def format(value: Any) -> str:
    """Return the text of `value`, such that ``parse(format(value)) == value``.

    Floats are written as by current pnnx: plain between 1e-4 and 1e6 (``2.0``), else with an
    exponent (``1.000000e-5``), with the shortest digits that read back as the same double.
    Complex numbers keep the older form (``1.000000e+00+-2.000000e+00j``).  NaN reads back as NaN,
    an empty list as None.

    Parameters
    ----------
    value : None, bool, int, float, complex, str, or a tuple or list of these
        numpy scalars are written as Python numbers.

    Raises
    ------
    ValueError
        If the format cannot express `value`: a string that contains a blank or reads back as
        another type (``"1"``, ``"None"``), or a string in a list with a comma or bracket.
    TypeError
        If `value` is of another type.

    Examples
    --------
    >>> format((1, 2.0)), format(1e-5), format(None)
    ('(1,2.0)', '1.000000e-5', 'None')
    """
    if isinstance(value, str):
        if has_blank(value):
            raise ValueError(f"the string {value!r} cannot be written: a blank ends a value")
        if parse(value) != value:
            kind = type(parse(value)).__name__
            raise ValueError(f"the string {value!r} cannot be written: it reads back as {kind}")
    return _format(value, 0)


def has_blank(text: str) -> bool:
    """Tell whether a reader would split `text`; Unicode spaces do not split."""
    return any(char in text for char in _BLANKS)


def _format(value: Any, depth: int) -> str:
    if value is None or isinstance(value, bool):
        return str(value)
    if isinstance(value, int):
        if value.bit_length() > 3 * MAX_DIGITS:
            raise ValueError(f"an integer of {value.bit_length()} bits cannot be written")
        return str(int(value))
    if isinstance(value, float):
        return _format_float(value)
    if isinstance(value, complex):
        return f"{_format_part(value.real)}+{_format_part(value.imag)}j"
    if isinstance(value, str):
        return value
    if isinstance(value, (tuple, list)):
        if depth == MAX_DEPTH:
            raise ValueError(f"lists nested deeper than {MAX_DEPTH} cannot be written")
        return f"({','.join(_format_element(item, depth + 1) for item in value)})"
    if hasattr(value, "item") and getattr(value, "ndim", None) == 0:
        return _format(value.item(), depth)
    raise TypeError(f"a parameter cannot be a {type(value).__name__}: {value!r}")


def _format_element(item: Any, depth: int) -> str:
    if isinstance(item, str):
        unsafe = set("(),[]%") & set(item)
        if unsafe or not item:
            found = f"'{min(unsafe)}'" if unsafe else "an empty string"
            raise ValueError(f"the list element {item!r} cannot be written: {found} inside a list")
        return format(item)
    return _format(item, depth)


def _format_part(value: float) -> str:
    """Format one part of a complex number, for which pnnx uses "%e" of C."""
    text = f"{value:.6e}"
    return text if float(text) == value or math.isnan(value) else f"{value:.16e}"


def _format_float(value: float) -> str:
    value = float(value)
    if math.isnan(value):
        return "nan.0"
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    sign = "-" if math.copysign(1.0, value) < 0 else ""
    mantissa, _, power = repr(abs(value)).partition("e")
    whole, _, fraction = mantissa.partition(".")
    digits = (whole + fraction).lstrip("0")
    # The value is 0.<digits> x 10**exponent.
    exponent = int(power or 0) + len(digits) - len(fraction)
    digits = digits.rstrip("0")
    if not digits:
        return f"{sign}0.0"
    if 1e-4 <= abs(value) < 1e6 and len(digits) - exponent <= 9:
        if exponent <= 0:
            return f"{sign}0.{'0' * -exponent}{digits}"
        whole = digits[:exponent].ljust(exponent, "0")
        return f"{sign}{whole}.{digits[exponent:] or '0'}"
    # pnnx tries 7 significant digits, then the 9 that any float32 needs.
    decimals = 6 if len(digits) <= 7 else 8
    return f"{sign}{digits[0]}.{digits[1:].ljust(decimals, '0')}e{exponent - 1}"
