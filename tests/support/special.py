"""Special values: salted inputs, PyTorch's stored results, and the comparison.

``tests/data/special.zip`` holds, for a selection of the stored operator cases (see ``cases.py``),
PyTorch's results when NaN, infinities, zeros of both signs, denormals and huge numbers are
scattered over the inputs.  Inputs are not stored: they are those of the case, salted by
:func:`salt`.  An output is stored as the *class* of every element (see `CLASSES`) and some values,
rounded to 16 bits; integers and booleans are stored unchanged.
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
    "kept_indices",
    "pack_values",
    "salt",
    "special_cases",
]

PATH = DATA / "special.zip"

HUGE = 1e18
DENORMAL = 1.1e-39

# Scattered values, by run.  Sparse runs show the effect of one special value on its surroundings;
# in "mixed", every pair of special values meets in operators with two inputs.
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

# The class of an element is stored as one letter of this string.
CLASSES = "n+-0z.d"
NAN, PLUS_INF, MINUS_INF, ZERO, MINUS_ZERO, FINITE, TINY = range(len(CLASSES))
NAMES = ("NaN", "infinity", "-infinity", "0", "-0", "a finite number", "a denormal number")

# Half the distance of 16-bit values among the denormals, plus a few float32 denormals.
QUANTUM = 5e-41

KEPT = 6  # stored values of a floating-point output
KEPT_WHOLE = 256  # stored values of an integer or boolean output


def salt(x: np.ndarray, run: str, key: str) -> np.ndarray:
    """Return an input with special values; integers and booleans are returned unchanged.

    Parameters
    ----------
    x : numpy.ndarray
    run : str
        One of `RUNS`.
    key : str
        Seeds the indices of the special values, together with the run.
    """
    if x.dtype.kind == "c":
        parts = np.stack([x.real, x.imag], -1)
        salted = salt(parts, run, key)
        return np.ascontiguousarray(salted).view(x.dtype)[..., 0]
    if x.dtype.kind != "f" or x.size == 0:
        return x.copy()
    if run == "denormal":
        # A power of two, so that every bit below the smallest denormal is zero.
        scale = {2: 2.0**-18, 4: 2.0**-130, 8: 2.0**-1026}[x.dtype.itemsize]
        return np.asarray(x * x.dtype.type(scale), x.dtype)
    salted = x.copy()
    flat = salted.reshape(-1)
    if run in SPARSE:
        values = np.array(SPARSE[run])
        indices = integers(f"{key}/{run}", (1 + x.size // 64,), 0, x.size)
    else:
        values = np.array(DENSE[run])
        indices = np.flatnonzero(integers(f"{key}/{run}", (x.size,), 0, 2))
    chosen = values[integers(f"{key}/{run}/values", (len(indices),), 0, len(values))]
    with np.errstate(over="ignore"):
        flat[indices] = chosen.astype(x.dtype)
    return salted


def classes(array: np.ndarray) -> np.ndarray:
    """Return the class of every float of an array, flattened, as indices into `CLASSES`."""
    flat = _floats(array)
    sign = np.signbit(flat)
    found = np.full(flat.shape, FINITE, np.uint8)
    found[(flat != 0) & (np.abs(flat) < np.finfo(flat.dtype).tiny)] = TINY
    found[flat == 0] = np.where(sign[flat == 0], MINUS_ZERO, ZERO)
    found[np.isinf(flat)] = np.where(sign[np.isinf(flat)], MINUS_INF, PLUS_INF)
    found[np.isnan(flat)] = NAN
    return found


def _floats(array: np.ndarray) -> np.ndarray:
    """Return an array flattened, complex numbers as pairs."""
    if array.dtype.kind == "c":
        array = np.stack([array.real, array.imag], -1)
    return np.ascontiguousarray(array).reshape(-1)


def kept_indices(found: np.ndarray) -> np.ndarray:
    """Return the indices of the finite values of an output that are stored."""
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
    """Return the floats that :func:`pack_values` packed."""
    return (data.astype(np.uint32) << 16).view(np.float32)


class Kept:
    """The stored part of one output of one run."""

    def __init__(self, shape: Sequence[int], dtype: str, found, values):
        self.shape, self.dtype = tuple(shape), np.dtype(dtype)
        self.classes, self.values = found, values

    def difference(
        self, y: np.ndarray, rtol: float, allowed: Collection[str] = (), signed_zeros: bool = True
    ) -> str | None:
        """Describe how an output differs from PyTorch's; return None if it does not.

        Parameters
        ----------
        y : numpy.ndarray
        rtol : float
            For finite values, relative to the largest of them.
        allowed : collection of str
            Pairs of letters of `CLASSES` that may differ: that of `y` and PyTorch's.
        signed_zeros : bool
            Whether zeros must have PyTorch's sign.
        """
        if y.shape != self.shape or y.dtype != self.dtype:
            return f"is {y.dtype} {y.shape}, expected {self.dtype} {self.shape}"
        if y.dtype.kind not in "fc":
            flat = np.ascontiguousarray(y).reshape(-1)
            indices = _whole_indices(flat.size)
            wrong = flat[indices] != self.values
            if "whole" in allowed or not wrong.any():
                return None
            k = int(wrong.argmax())
            return f"has {flat[indices[k]]} at {indices[k]}, expected {self.values[k]}"
        if "whole" in allowed:
            return None
        found, flat, expected = classes(y), _floats(y), self.classes
        finite = np.abs(flat[np.isfinite(flat)]).astype(np.float64)
        limit = rtol * finite.max(initial=0.0)
        wrong = found != expected
        wrong &= ~(_are(found, FINITE, TINY) & _are(expected, FINITE, TINY))
        if not signed_zeros:
            wrong &= ~(_are(found, ZERO, MINUS_ZERO) & _are(expected, ZERO, MINUS_ZERO))
        # A sum that rounds to zero may round to a tiny number in another order.
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
        indices = kept_indices(expected)
        actual = flat[indices].astype(np.float64)
        kept = self.values.astype(np.float64)
        # The largest floats were rounded to infinity, and float64's largest cannot be stored.
        compared = np.isfinite(kept) & np.isfinite(actual)
        with np.errstate(invalid="ignore"):
            error = np.where(compared, np.abs(actual - kept), 0)
        bound = np.maximum(np.abs(kept) * 2.0**-8, max(limit, QUANTUM))
        if (error > bound).any():
            k = int((error > bound).argmax())
            return f"has {actual[k]} at {indices[k]}, expected about {kept[k]}"
        return None


def _are(found: np.ndarray, *wanted: int) -> np.ndarray:
    return np.isin(found, wanted)


def _whole_indices(size: int) -> np.ndarray:
    return np.arange(size) if size <= KEPT_WHOLE else sample_positions(size, KEPT_WHOLE)


def stored(array: np.ndarray) -> tuple[dict, bytes]:
    """Return the stored form of an output: an index entry and bytes."""
    entry = {"shape": array.shape, "dtype": array.dtype.str}
    if array.dtype.kind not in "fc":
        flat = np.ascontiguousarray(array).reshape(-1)
        return entry, flat[_whole_indices(flat.size)].tobytes()
    found = classes(array)
    return entry, found.tobytes() + pack_values(_floats(array)[kept_indices(found)])


@cache
def _archive() -> zipfile.ZipFile:
    return zipfile.ZipFile(io.BytesIO(PATH.read_bytes()))


@cache
def _family(name: str) -> tuple[Mapping, bytes]:
    archive = _archive()
    return json.loads(archive.read(f"{name}.json")), archive.read(f"{name}.bin")


def special_cases() -> Iterator[tuple[Case, dict[str, list[Kept]]]]:
    """Yield every case with runs on special values, and PyTorch's results by run."""
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
            count = len(_whole_indices(size))
            found, values = None, np.frombuffer(data, dtype, count, start)
        else:
            size *= 2 if dtype.kind == "c" else 1
            found = np.frombuffer(data, np.uint8, size, start)
            count = len(kept_indices(found))
            values = unpack_values(np.frombuffer(data, "<u2", count, start + size))
        kept.append(Kept(entry["shape"], entry["dtype"], found, values))
    return kept
