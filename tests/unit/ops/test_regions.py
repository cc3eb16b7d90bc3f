"""Regions of a convolution's output that see the same taps, against a count of the taps."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from kuiper.ops.product.algorithms.regions import cut_regions

from ...support.workgraph import model_of


def taps_of(kernel, dilation, padding):
    return [
        (u * dilation[0] - padding[0], v * dilation[1] - padding[1])
        for u in range(kernel[0])
        for v in range(kernel[1])
    ]


def outputs_of(extents, kernel, stride, dilation, padding):
    return tuple(
        (e + 2 * p - d * (k - 1) - 1) // s + 1
        for e, k, s, d, p in zip(extents, kernel, stride, dilation, padding, strict=True)
    )


CASES = [
    (extents, kernel, (s, s), (d, d), (d * (kernel[0] // 2), d * (kernel[1] // 2)))
    for extents, kernel, s, d in itertools.product(
        [(20, 20), (20, 33), (11, 40), (5, 5), (65, 17), (1, 64)],
        [(3, 3), (5, 1), (2, 4)],
        [1, 2],
        [1, 6, 12, 24],
    )
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_regions_cover_the_output_and_have_the_taps_inside_the_image(case):
    extents, kernel, stride, dilation, padding = case
    size = outputs_of(*case)
    if min(size) < 1:
        return
    taps = taps_of(kernel, dilation, padding)
    covered = np.zeros(size, int)
    for down, across in cut_regions(taps, stride, extents, size):
        rows = slice(down.first, down.first + down.extent)
        columns = slice(across.first, across.first + across.extent)
        covered[rows, columns] += 1
        seen = set(
            itertools.product(
                range(down.seen.start, down.seen.stop), range(across.seen.start, across.seen.stop)
            )
        )
        for i, j in itertools.product(
            range(rows.start, rows.stop), range(columns.start, columns.stop)
        ):
            for u, v in np.ndindex(kernel):
                dy, dx = taps[u * kernel[1] + v]
                inside = (
                    0 <= i * stride[0] + dy < extents[0] and 0 <= j * stride[1] + dx < extents[1]
                )
                assert not inside or (u, v) in seen
    assert (covered == 1).all() or not covered.any()


def work(case):
    """Return the number of regions, and their products relative to those without regions."""
    extents, kernel, stride, dilation, padding = case
    size = outputs_of(*case)
    regions = cut_regions(taps_of(kernel, dilation, padding), stride, extents, size)
    total = sum(
        down.extent
        * across.extent
        * (down.seen.stop - down.seen.start)
        * (across.seen.stop - across.seen.start)
        for down, across in regions
    )
    return len(regions), total / (np.prod(size) * np.prod(kernel))


def test_number_of_regions():
    square, one = (3, 3), (1, 1)
    # Only the middle of the filter is ever inside.
    assert work(((20, 20), square, one, (24, 24), (24, 24))) == (1, pytest.approx(1 / 9))
    # Rows 0-7 see the middle and lower taps, 8-11 the middle, 12-19 the upper and middle ones.
    assert work(((20, 20), square, one, (12, 12), (12, 12))) == (9, pytest.approx((36 / 60) ** 2))
    # Neither a border of one pixel nor a region of a few pixels is worth a region.
    assert work(((56, 56), square, one, one, one)) == (0, 0)
    assert work(((5, 5), square, one, (2, 2), (2, 2)))[0] <= 1
    # No tap reaches the image: the output is the bias.
    assert work(((4, 4), (2, 2), one, (40, 40), (20, 20)))[1] == 0


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize(
    "case",
    [
        ((20, 20), (3, 3), (1, 1), (12, 12), (12, 12)),
        ((20, 20), (3, 3), (2, 1), (12, 24), (12, 24)),
        ((20, 31), (3, 3), (1, 1), (6, 18), (6, 18)),
        ((40, 9), (3, 1), (1, 1), (24, 1), (24, 0)),
        ((4, 4), (2, 2), (1, 1), (40, 40), (20, 20)),
    ],
    ids=str,
)
def test_every_region_has_its_weights(case, groups):
    extents, kernel, stride, dilation, padding = case
    random = np.random.default_rng(1)
    # Two batch sizes make two plans, which share the weights of all regions.
    pictures = [random.standard_normal((n, 34, *extents), np.float32) for n in (1, 3)]
    weight = random.standard_normal((38, 34 // groups, *kernel), np.float32)
    bias = random.standard_normal(38, np.float32)
    model = model_of(
        "nn.Conv2d",
        pictures[:1],
        {
            "in_channels": 34,
            "out_channels": 38,
            "kernel_size": kernel,
            "stride": stride,
            "padding": padding,
            "dilation": dilation,
            "groups": groups,
            "bias": True,
            "padding_mode": "zeros",
        },
        {"weight": weight, "bias": bias},
    )
    size = outputs_of(*case)
    assert cut_regions(taps_of(kernel, dilation, padding), stride, extents, size)
    for x in pictures:
        n = len(x)
        padded = np.pad(x, ((0, 0), (0, 0), *((p, p) for p in padding))).astype(float)
        expected = np.zeros((n, groups, 38 // groups, *size))
        for u, v in np.ndindex(kernel):
            at = (
                slice(s := u * dilation[0], s + stride[0] * (size[0] - 1) + 1, stride[0]),
                slice(s := v * dilation[1], s + stride[1] * (size[1] - 1) + 1, stride[1]),
            )
            seen = padded[:, :, at[0], at[1]].reshape(n, groups, 34 // groups, *size)
            of_groups = weight[:, :, u, v].reshape(groups, 38 // groups, 34 // groups)
            expected += np.einsum("ngchw,goc->ngohw", seen, of_groups)
        expected = expected.reshape(n, 38, *size) + bias.reshape(-1, 1, 1)
        got = model(x)
        assert got.shape == expected.shape
        assert np.abs(got - expected).max() <= 5e-6 * np.abs(expected).max()
