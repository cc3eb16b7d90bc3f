"""Special values: salted inputs, what PyTorch made of them, and the comparison.

``tests/data/special.zip`` holds, for a choice of the stored operator cases (see ``cases.py``), what
PyTorch computes when NaN, infinities, zeros of both signs, denormals and huge numbers are strewn
over the inputs.  Nothing of the inputs is stored: they are those of the case, salted by
:func:`salt`.  Of the outputs the *class* of every element is stored (see `CLASSES`), and some
values, cut to 16 bits; integers and booleans are stored as they are.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cache

import numpy as np

from .cases import Case, load_cases, sample_positions
from .noise import integers
from .paths import DATA

__all__ = [
    "PATH",
    "RUNS",
    "Kept",
    "classes",
    "kept_places",
    "pack_values",
    "salt",
    "special_cases",
]

PATH = DATA / "special.zip"

HUGE = 1e18
DENORMAL = 1.1e-39

# What is strewn, by run. Where it is sparse, what one special value does to its surroundings can be
# told apart; in "mixed" every pair of special values meets in operators of two inputs.
SPARSE: dict[str, tuple[float, ...]] = {
    "nan": (np.nan,),
    "inf": (np.inf,),
    "minus_inf": (-np.inf,),
    "huge": (HUGE, -HUGE),
}
DENSE: dict[str, tuple[float, ...]] = {
    "zeros": (0.0, -0.0),
    "mixed": (
        *(np.nan, np.inf, -np.inf, 0.0, -0.0, HUGE, -HUGE, DENORMAL, -DENORMAL, 1e-45),
        *(1.0, -1.0, 2.0, -3.0, 0.5, 1.1754944e-38),
    ),
}
RUNS = (*SPARSE, *DENSE, "denormal")

# What is stored of an element: a letter of this string.
CLASSES = "n+-0z.d"
NAN, PLUS_INF, MINUS_INF, ZERO, MINUS_ZERO, FINITE, TINY = range(len(CLASSES))
NAMES = ("NaN", "infinity", "-infinity", "0", "-0", "a finite number", "a denormal number")

# Half a step between 16-bit values among the denormals, and some of a float's own.
QUANTUM = 5e-41

KEPT = 6  # values of one output that are stored, where they are floats
KEPT_WHOLE = 256  # where they are integers or booleans


def salt(x: np.ndarray, run: str, key: str) -> np.ndarray:
    """Return an input with special values; integers and booleans stay as they are.

    Parameters
    ----------
    x : numpy.ndarray
    run : str
        Of `RUNS`.
    key : str
        Says where the values go, together with the run.
    """
    if x.dtype.kind == "c":
        parts = np.stack([x.real, x.imag], -1)
        salted = salt(parts, run, key)
        return np.ascontiguousarray(salted).view(x.dtype)[..., 0]
    if x.dtype.kind != "f" or x.size == 0:
        return x.copy()
    if run == "denormal":
        # A power of two, so that every bit below the least of a float is gone.
        scale = {2: 2.0**-18, 4: 2.0**-130, 8: 2.0**-1026}[x.dtype.itemsize]
        return np.asarray(x * x.dtype.type(scale), x.dtype)
    salted = x.copy()
    flat = salted.reshape(-1)
    if run in SPARSE:
        values = np.array(SPARSE[run])
        places = integers(f"{key}/{run}", (1 + x.size // 64,), 0, x.size)
    else:
        values = np.array(DENSE[run])
        places = np.flatnonzero(integers(f"{key}/{run}", (x.size,), 0, 2))
    chosen = values[integers(f"{key}/{run}/values", (len(places),), 0, len(values))]
    with np.errstate(over="ignore"):
        flat[places] = chosen.astype(x.dtype)
    return salted


def classes(array: np.ndarray) -> np.ndarray:
    """Return the class of every float of an array, flat, as indices into `CLASSES`."""
    flat = _floats(array)
    sign = np.signbit(flat)
    found = np.full(flat.shape, FINITE, np.uint8)
    found[(flat != 0) & (np.abs(flat) < np.finfo(flat.dtype).tiny)] = TINY
    found[flat == 0] = np.where(sign[flat == 0], MINUS_ZERO, ZERO)
    found[np.isinf(flat)] = np.where(sign[np.isinf(flat)], MINUS_INF, PLUS_INF)
    found[np.isnan(flat)] = NAN
    return found


def _floats(array: np.ndarray) -> np.ndarray:
    """Return an array flat, complex numbers as pairs."""
    if array.dtype.kind == "c":
        array = np.stack([array.real, array.imag], -1)
    return np.ascontiguousarray(array).reshape(-1)


def kept_places(found: np.ndarray) -> np.ndarray:
    """Return which of the finite values of an output are stored."""
    finite = np.flatnonzero(_are(found, FINITE, TINY))
    if finite.size > KEPT:
        finite = finite[np.unique(np.linspace(0, finite.size - 1, KEPT).astype(int))]
    return finite


def pack_values(values: np.ndarray) -> bytes:
    """Return floats as the upper halves of float32, rounded."""
    with np.errstate(over="ignore"):
        bits = values.astype(np.float32).view(np.uint32)
    return ((bits + np.uint32(0x7FFF)) >> 16).astype("<u2").tobytes()


def unpack_values(data: np.ndarray) -> np.ndarray:
    """Return what `pack_values` packed."""
    return (data.astype(np.uint32) << 16).view(np.float32)


class Kept:
    """What is stored of one output of one run."""

    def __init__(self, shape: Sequence[int], dtype: str, found, values):
        self.shape, self.dtype = tuple(shape), np.dtype(dtype)
        self.classes, self.values = found, values

    def fault(
        self, y: np.ndarray, rtol: float, allowed: Collection[str] = (), signed_zeros: bool = True
    ) -> str | None:
        """Return what is wrong with an output, or None.

        Parameters
        ----------
        y : numpy.ndarray
        rtol : float
            For finite values, relative to the largest of them.
        allowed : collection of str
            Pairs of letters of `CLASSES` that may differ: what `y` has, and what PyTorch has.
        signed_zeros : bool
            Whether zeros have PyTorch's sign.
        """
        if y.shape != self.shape or y.dtype != self.dtype:
            return f"is {y.dtype} {y.shape}, expected {self.dtype} {self.shape}"
        if y.dtype.kind not in "fc":
            flat = np.ascontiguousarray(y).reshape(-1)
            places = _whole_places(flat.size)
            wrong = flat[places] != self.values
            if "whole" in allowed or not wrong.any():
                return None
            k = int(wrong.argmax())
            return f"has {flat[places[k]]} at {places[k]}, expected {self.values[k]}"
        if "whole" in allowed:
            return None
        found, flat, expected = classes(y), _floats(y), self.classes
        finite = np.abs(flat[np.isfinite(flat)]).astype(np.float64)
        limit = rtol * finite.max(initial=0.0)
        wrong = found != expected
        wrong &= ~(_are(found, FINITE, TINY) & _are(expected, FINITE, TINY))
        if not signed_zeros:
            wrong &= ~(_are(found, ZERO, MINUS_ZERO) & _are(expected, ZERO, MINUS_ZERO))
        # Where one sum rounds to zero, another order of it may leave almost nothing.
        one_zero = _are(found, ZERO, MINUS_ZERO) ^ _are(expected, ZERO, MINUS_ZERO)
        with np.errstate(invalid="ignore"):
            wrong &= ~(one_zero & (np.abs(flat) <= limit) & (expected >= ZERO))
        for pair in allowed:
            ours, theirs = (CLASSES.index(letter) for letter in pair)
            wrong &= ~((found == ours) & (expected == theirs))
        if wrong.any():
            k = int(wrong.argmax())
            pairs = {
                CLASSES[a] + CLASSES[b] for a, b in zip(found[wrong], expected[wrong], strict=True)
            }
            return (
                f"has {flat[k]} at {k}, expected {NAMES[expected[k]]}; {int(wrong.sum())} of "
                f"{wrong.size} differ, {' '.join(sorted(pairs))}"
            )
        places = kept_places(expected)
        actual = flat[places].astype(np.float64)
        kept = self.values.astype(np.float64)
        # The largest floats were rounded to infinity, and those of float64 cannot be stored.
        compared = np.isfinite(kept) & np.isfinite(actual)
        with np.errstate(invalid="ignore"):
            error = np.where(compared, np.abs(actual - kept), 0)
        bound = np.maximum(np.abs(kept) * 2.0**-8, max(limit, QUANTUM))
        if (error > bound).any():
            k = int((error > bound).argmax())
            return f"has {actual[k]} at {places[k]}, expected about {kept[k]}"
        return None


def _are(found: np.ndarray, *wanted: int) -> np.ndarray:
    return np.isin(found, wanted)


def _whole_places(size: int) -> np.ndarray:
    return np.arange(size) if size <= KEPT_WHOLE else sample_positions(size, KEPT_WHOLE)


def stored(array: np.ndarray) -> tuple[dict, bytes]:
    """Return what is kept of an output: an index entry and bytes."""
    entry = {"shape": array.shape, "dtype": array.dtype.str}
    if array.dtype.kind not in "fc":
        flat = np.ascontiguousarray(array).reshape(-1)
        return entry, flat[_whole_places(flat.size)].tobytes()
    found = classes(array)
    return entry, found.tobytes() + pack_values(_floats(array)[kept_places(found)])


@cache
def _archive() -> zipfile.ZipFile:
    return zipfile.ZipFile(io.BytesIO(PATH.read_bytes()))


@cache
def _family(name: str) -> tuple[Mapping, bytes]:
    archive = _archive()
    return json.loads(archive.read(f"{name}.json")), archive.read(f"{name}.bin")


def special_cases() -> Iterator[tuple[Case, dict[str, list[Kept]]]]:
    """Yield every case that has runs on special values, with what PyTorch gave by run."""
    names = {name[:-5] for name in _archive().namelist() if name.endswith(".json")}
    for case in load_cases("operators"):
        if case.family in names:
            index, data = _family(case.family)
            if case.name in index:
                yield case, {run: _read(e, data) for run, e in index[case.name].items()}


def _read(entries: Sequence[Mapping], data: bytes) -> list[Kept]:
    kept = []
    for entry in entries:
        start, dtype = entry["start"], np.dtype(entry["dtype"])
        size = int(np.prod(entry["shape"]))
        if dtype.kind not in "fc":
            count = len(_whole_places(size))
            found, values = None, np.frombuffer(data, dtype, count, start)
        else:
            size *= 2 if dtype.kind == "c" else 1
            found = np.frombuffer(data, np.uint8, size, start)
            count = len(kept_places(found))
            values = unpack_values(np.frombuffer(data, "<u2", count, start + size))
        kept.append(Kept(entry["shape"], entry["dtype"], found, values))
    return kept
