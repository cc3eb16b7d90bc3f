"""Detector heads."""

from __future__ import annotations

import numpy as np

from .registry import reference


@reference("models.yolo.Detect")
def detect(*maps, **attributes):
    """Boxes (x, y, w, h) and scores of YOLOv5's head for each anchor of each cell."""
    constants = [a for name, a in attributes.items() if not name.startswith("m.")]
    strides = next(a for a in constants if a.ndim == 1)
    # A grid begins with 0 or -0.5, so the positive constants are the anchors.
    anchors = [a[0, :, 0, 0] for a in constants if a.ndim == 5 and a.min() > 0]
    sizes = [a.shape[2] * a.shape[3] for a in constants if a.ndim == 5 and a.min() > 0]
    coarsest_first = [anchors[i] for i in np.argsort(sizes)]
    found = []
    for level, x in enumerate(maps):
        weight, bias = attributes[f"m.{level}.weight"], attributes[f"m.{level}.bias"]
        of_level = coarsest_first[(strides > strides[level]).sum()]
        for n_anchor, (width, height) in enumerate(of_level):
            part = slice(
                len(weight) // len(of_level) * n_anchor,
                len(weight) // len(of_level) * (n_anchor + 1),
            )
            y = np.einsum("oc,nchw->nhwo", weight[part, :, 0, 0], x) + bias[part]
            y = 1 / (1 + np.exp(-y))
            rows, columns = np.indices(x.shape[2:])
            y[..., 0] = (2 * y[..., 0] - 0.5 + columns) * strides[level]
            y[..., 1] = (2 * y[..., 1] - 0.5 + rows) * strides[level]
            y[..., 2] = (2 * y[..., 2]) ** 2 * width
            y[..., 3] = (2 * y[..., 3]) ** 2 * height
            found.append(y.reshape(len(x), -1, y.shape[-1]))
    return np.concatenate(found, axis=1)
