"""Weights as signed bytes with a scale per output channel."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from kuiper.errors import InputError
from kuiper.ir import Attribute

__all__ = ["LIMIT", "QuantizedWeight", "quantize_weight"]

LIMIT = 127  # the range is symmetric: a zero point of 0
ROWS_BYTES = 1 << 24  # of a weight that are in memory at a time


class QuantizedWeight(NamedTuple):
    """A weight as ``values * scale[:, None]``.

    Attributes
    ----------
    values : Attribute, shape (columns, ...), int8
    scale : Attribute, shape (columns,), float32
    sqnr : float
        Signal-to-noise ratio, in dB: 10 log10 of the sum of squares of the weight over that of the
        errors.  Infinite without an error.
    """

    values: Attribute
    scale: Attribute
    sqnr: float


def quantize_weight(weight: Attribute, where: str) -> QuantizedWeight:
    """Round each output channel to multiples of 1/127 of its largest magnitude.

    Parameters
    ----------
    weight : Attribute, shape (columns, ...)
        Of a floating-point type.
    where : str
        The operator, for error messages.

    Returns
    -------
    QuantizedWeight
        A channel of zeros has the scale 1.

    Raises
    ------
    InputError
        If the weight contains an infinity or NaN.
    """
    columns = weight.shape[0]
    values = np.empty(weight.shape, np.int8)
    scales = np.empty(columns, np.float32)
    signal = noise = 0.0
    row_bytes = 4 * math.prod(weight.shape[1:])
    rows = max(ROWS_BYTES // max(row_bytes, 1), 1)
    for start in range(0, columns, rows):
        stop = min(start + rows, columns)
        part = np.asarray(weight.rows(start, stop), np.float32).reshape(stop - start, -1)
        largest = np.abs(part).max(1, initial=0.0)
        if not np.isfinite(largest).all():
            at = start + int(np.flatnonzero(~np.isfinite(largest))[0])
            raise InputError(
                f"{where}: row {at} of its weight has an infinity or NaN, which bytes cannot "
                "represent; name the operator in `keep`"
            )
        scale = largest / np.float32(LIMIT)
        # Smaller numbers have few bits, or none: treat them as zero.
        scale[scale < np.finfo(np.float32).tiny] = 1.0
        rounded = np.rint(part / scale[:, np.newaxis])
        values[start:stop] = rounded.astype(np.int8).reshape(stop - start, *weight.shape[1:])
        scales[start:stop] = scale
        error = part - rounded * scale[:, np.newaxis]
        signal += float(np.vdot(part, part))
        noise += float(np.vdot(error, error))
    sqnr = 10 * math.log10(signal / noise) if signal and noise else math.inf
    return QuantizedWeight(Attribute.from_array(values), Attribute.from_array(scales), sqnr)
