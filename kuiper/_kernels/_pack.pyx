"""Packing of weights into the panels that the GEMM tile reads."""

import numpy as np

from cython.parallel cimport prange

from kuiper._kernels._dispatch cimport active
from kuiper._kernels._step cimport ceil_div


def aligned_empty(shape):
    """Return an uninitialised float32 array that starts on a cache line.

    Panels are read one vector at a time; off the line, each read would touch two.
    """
    size = 1
    for extent in shape:
        size *= extent
    raw = np.empty(size * 4 + 64, np.uint8)
    start = -raw.__array_interface__["data"][0] % 64
    return raw[start:start + size * 4].view(np.float32).reshape(shape)


def panel_floats(Py_ssize_t depth):
    """Return the size of one panel for a sum over `depth` terms."""
    return (depth + 1) * active().nr


def n_panels(Py_ssize_t columns):
    """Return how many panels hold `columns` columns."""
    return (columns + active().nr - 1) // active().nr


def pack_panels(const float[:, :, :] weight, bias, int n_threads=1):
    """Pack a matrix, given as its transpose, into panels of `nr` columns.

    Parameters
    ----------
    weight : array, shape (columns, taps, channels), float32
        Any strides; the sum runs over taps, then channels.
    bias : array, shape (columns,), or None

    Returns
    -------
    numpy.ndarray, shape (panels, 1 + taps * channels, nr), float32
        Each panel starts with its biases; missing columns are zero.
    """
    cdef Py_ssize_t columns = weight.shape[0], taps = weight.shape[1], channels = weight.shape[2]
    cdef Py_ssize_t nr = active().nr, panels = (columns + nr - 1) // nr
    cdef Py_ssize_t p, t, k, j, first, count
    packed = aligned_empty((panels, 1 + taps * channels, nr))
    cdef float[:, :, ::1] out = packed
    cdef const float[::1] b = np.zeros(columns, np.float32) if bias is None else bias
    for p in prange(panels, nogil=True, num_threads=n_threads, schedule="static"):
        first = p * nr
        count = min(nr, columns - first)
        for j in range(nr):
            out[p, 0, j] = b[first + j] if j < count else 0.0
        for t in range(taps):
            for k in range(channels):
                for j in range(count):
                    out[p, 1 + t * channels + k, j] = weight[first + j, t, k]
                for j in range(count, nr):
                    out[p, 1 + t * channels + k, j] = 0.0
    return packed


def pack_depthwise(const float[:, :] weight, bias):
    """Pack depthwise weights into blocks of one vector of channels: bias, then the taps.

    Parameters
    ----------
    weight : array, shape (channels, taps), float32
    bias : array, shape (channels,), or None

    Returns
    -------
    numpy.ndarray, shape (blocks, 1 + taps, lanes), float32
    """
    cdef Py_ssize_t channels = weight.shape[0], taps = weight.shape[1], lanes = active().lanes
    blocks = ceil_div(channels, lanes)
    padded = np.zeros((blocks * lanes, 1 + taps), np.float32)
    padded[:channels, 1:] = weight
    if bias is not None:
        padded[:channels, 0] = bias
    packed = aligned_empty((blocks, 1 + taps, lanes))
    packed[:] = padded.reshape(blocks, lanes, 1 + taps).transpose(0, 2, 1)
    return packed
