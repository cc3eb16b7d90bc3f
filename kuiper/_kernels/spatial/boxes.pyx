"""Non-maximum suppression: which boxes of a sorted list no better one overlaps."""

import numpy as np

from cpython.exc cimport PyErr_CheckSignals

cdef enum:
    PAIRS_PER_LOOK = 20_000_000      # at signals: some 100 ms

ctypedef fused real:
    float
    double


def suppress(const real[:, ::1] boxes, double threshold):
    """Say of boxes, best first, which are kept.

    Parameters
    ----------
    boxes : array of float32 or float64, shape (n, 4), C order
        Corners x1, y1, x2, y2.
    threshold : float
        A box is dropped if a better one that is kept overlaps it by more: by the area of the
        intersection over that of the union.

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
            pairs += count - i
            if pairs > PAIRS_PER_LOOK:
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
