"""Operators whose output length depends on values, as loops over elements."""

from __future__ import annotations

import numpy as np

from .registry import reference


@reference("aten::nonzero", "aten::argwhere")
def nonzero(input):
    """Indices of the nonzero elements, one row each."""
    found = [i for i in np.ndindex(input.shape) if input[i] != 0]
    return np.array(found, np.int64).reshape(len(found), input.ndim)


@reference("aten::nonzero_numpy", "aten::where")
def nonzero_tuple(condition):
    """Indices of the nonzero elements, one array per axis."""
    return tuple(nonzero(condition).T)


@reference("torch.masked_select")
def masked_select(input, *, mask):
    """The elements where the mask is true."""
    input, mask = np.broadcast_arrays(input, mask)
    return np.array([input[i] for i in np.ndindex(mask.shape) if mask[i]], input.dtype)


@reference("aten::repeat_interleave")
def repeated_numbers(*inputs):
    """Each index repeated by its count, or the slices of an axis repeated so."""
    if len(inputs) == 4:
        values, repeats, axis, _ = inputs
        counts = np.broadcast_to(repeats, (values.shape[axis],))
        return np.take(values, [i for i, n in enumerate(counts) for _ in range(n)], axis)
    repeats, _ = inputs
    return np.array([i for i, count in enumerate(repeats) for _ in range(count)], np.int64)


@reference("aten::_unique2")
def unique(input, sorted, return_inverse, return_counts):
    """The distinct values, the index of each element's value, and the counts."""
    values = np.array(sorted_set(input.reshape(-1).tolist()), input.dtype)
    inverse = np.array([values.tolist().index(v) for v in input.reshape(-1)], np.int64)
    counts = np.array([np.sum(input == v) for v in values], np.int64)
    return values, inverse.reshape(input.shape), counts


def sorted_set(items):
    """Return the distinct items in order."""
    return sorted(set(items))


@reference("aten::unique_dim")
def unique_dim(input, dim, sorted, return_inverse, return_counts):
    """The distinct slices, the index of each slice, and the counts."""
    slices = [tuple(np.take(input, i, dim).reshape(-1).tolist()) for i in range(input.shape[dim])]
    found = sorted_set(slices)
    values = np.stack([np.take(input, slices.index(item), dim) for item in found], dim)
    inverse = np.array([found.index(item) for item in slices], np.int64)
    return values, inverse, np.array([slices.count(item) for item in found], np.int64)


@reference("aten::unique_consecutive")
def unique_consecutive(input, return_inverse, return_counts, dim):
    """Runs of equal slices: one of each, the index of the run of each slice, the lengths."""
    rows = input.reshape(-1) if dim is None else np.moveaxis(input, dim, 0)
    values, inverse, counts = [], [], []
    for row in rows:
        if values and np.array_equal(values[-1], row):
            counts[-1] += 1
        else:
            values.append(row)
            counts.append(1)
        inverse.append(len(values) - 1)
    inverse = np.array(inverse, np.int64)
    if dim is None:
        return np.stack(values), inverse.reshape(input.shape), np.array(counts)
    return np.moveaxis(np.stack(values), 0, dim), inverse, np.array(counts)


@reference("aten::bincount")
def bincount(input, weights, minlength):
    """Number of occurrences of each integer, or the sum of their weights."""
    sums = np.zeros(max(minlength, max(input, default=-1) + 1), np.int64)
    if weights is not None:
        sums = sums.astype(weights.dtype)
    for i, number in enumerate(input):
        sums[number] += 1 if weights is None else weights[i]
    return sums


@reference("torchvision::nms", "torchvision.ops.nms")
def nms(dets, scores, iou_threshold):
    """Keep the best box, drop the boxes that overlap it, and repeat."""
    waiting = sorted(range(len(scores)), key=lambda i: -scores[i])
    kept = []
    while waiting:
        best = waiting.pop(0)
        kept.append(best)
        waiting = [i for i in waiting if _overlap(dets[best], dets[i]) <= iou_threshold]
    return np.array(kept, np.int64)


@reference("pnnx.custom_op.torchvision.nms")
def nms_as_custom_operator(*, arg_0, arg_1, arg_2):
    """As nms, with the numbered arguments that pnnx writes for unknown operators."""
    return nms(arg_0, arg_1, arg_2)


@reference("kuiper.NonMaxSuppression")
def non_max_suppression(
    boxes, scores, limit=0, iou_threshold=0.0, score_threshold=None, centered=False
):
    """Rows (image, class, box) of what nms keeps of each class of each image."""
    if centered:
        boxes = np.concatenate(
            [boxes[..., :2] - boxes[..., 2:] / 2, boxes[..., :2] + boxes[..., 2:] / 2], -1
        )
    else:
        pairs = np.sort(boxes.reshape(*boxes.shape[:-1], 2, 2), axis=-2)
        boxes = pairs.reshape(boxes.shape)
    rows = []
    for image, class_ in np.ndindex(scores.shape[:2]):
        of_class = scores[image, class_]
        found = np.arange(len(of_class))
        if score_threshold is not None:
            found = found[of_class > score_threshold]
        kept = nms(boxes[image][found], of_class[found], iou_threshold)
        rows += [(image, class_, found[i]) for i in kept[: max(limit, 0)]]
    return np.array(rows, np.int64).reshape(-1, 3)


def _overlap(a, b):
    width = max(min(a[2], b[2]) - max(a[0], b[0]), 0)
    height = max(min(a[3], b[3]) - max(a[1], b[1]), 0)
    if width * height == 0:
        return 0
    areas = (a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1])
    return width * height / (areas - width * height)


@reference("aten::item")
def item(input):
    """The only element."""
    return input.reshape(())


@reference("aten::Float")
def float_(input):
    """The only element, as a float."""
    return input.reshape(()).astype(np.float64)
