"""Non-maximum suppression."""

import numpy as np

from cpython.exc cimport PyErr_CheckSignals

cdef enum:
    PAIRS_PER_CHECK = 20_000_000     # of signals: about 100 ms

ctypedef fused real:
    float
    double


def suppress(const real[:, ::1] boxes, double threshold, Py_ssize_t limit=-1):
    """Return which boxes to keep.

    Parameters
    ----------
    boxes : array of float32 or float64, shape (n, 4), C order
        Corners x1, y1, x2, y2; best box first.
    threshold : float
        A box is dropped if its intersection over union with a better, kept box exceeds this.
    limit : int
        Keep only so many of the best boxes; -1 for all.

    Returns
    -------
    numpy.ndarray of bool, shape (n,)
    """
    cdef Py_ssize_t count = boxes.shape[0], i, j, pairs = 0
    kept = np.full(count, True)
    cdef unsigned char[::1] keep = kept.view(np.uint8)
    areas = np.empty(count, np.asarray(boxes).dtype)
    cdef real[::1] area = areas
    cdef real width, height, shared
    with nogil:
        for i in range(count):
            area[i] = (boxes[i, 2] - boxes[i, 0]) * (boxes[i, 3] - boxes[i, 1])
        for i in range(count):
            if not keep[i]:
                continue
            if limit == 0:
                keep[i] = False
                continue
            limit -= 1
            pairs += count - i
            if pairs > PAIRS_PER_CHECK:
                pairs = 0
                with gil:
                    PyErr_CheckSignals()
            for j in range(i + 1, count):
                if not keep[j]:
                    continue
                width = min(boxes[i, 2], boxes[j, 2]) - max(boxes[i, 0], boxes[j, 0])
                height = min(boxes[i, 3], boxes[j, 3]) - max(boxes[i, 1], boxes[j, 1])
                if width <= 0 or height <= 0:
                    shared = 0
                else:
                    shared = width * height
                if shared / (area[i] + area[j] - shared) > threshold:
                    keep[j] = False
    return kept
