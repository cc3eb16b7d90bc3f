"""Blocks and values that are written into larger tensors; unique values; cropping and padding."""

import itertools

import numpy as np
import pytest

import kuiper

from ...support.onnxfile import single

R = np.random.default_rng(7)


def floats(*shape):
    return R.normal(size=shape).astype(np.float32)


def run(type_, *inputs, opset=20, known=False, outputs="y", **attributes):
    """Return the result of an operator, whose inputs but the first may be constants of the file."""
    arrays = {f"i{k}": np.asarray(x) for k, x in enumerate(inputs)}
    rest = {key: arrays.pop(key) for key in list(arrays)[1:]} if known else {}
    model = kuiper.load(single(type_, arrays, outputs, known=rest, opset=opset, **attributes))
    return model(*arrays.values())


# -- blocks -------------------------------------------------------------------------------------


def block_sums(x, image, block, strides, dilations, pads):
    """Return blocks summed into an image, element by element."""
    rank = len(image)
    channels = x.shape[1] // np.prod(block)
    counts = [
        (n + pads[i] + pads[i + rank] - d * (k - 1) - 1) // s + 1
        for i, (n, k, s, d) in enumerate(zip(image, block, strides, dilations, strict=True))
    ]
    y, x = np.zeros((len(x), channels, *image)), x.reshape(len(x), channels, *block, *counts)
    for tap, at in itertools.product(np.ndindex(*block), np.ndindex(*counts)):
        pixel = np.array(at) * strides + np.array(tap) * dilations - pads[:rank]
        if (pixel >= 0).all() and (pixel < image).all():
            y[(..., *pixel)] += x[(slice(None), slice(None), *tap, *at)]
    return y


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize(
    ("image", "block", "strides", "dilations", "pads", "blocks"),
    [
        ((9, 8), (3, 2), [2, 1], [1, 2], [1, 0, 1, 0], 30),
        ((9, 8), (3, 2), [2, 1], [1, 2], [1, 0, 2, 1], 35),
        ((9,), (3,), [2], [1], [1, 2], 5),
        ((5, 6, 7), (2, 3, 2), [2, 1, 1], [1, 2, 1], [1, 0, 1, 0, 1, 1], 72),
        ((3, 3, 4, 4), (2, 3, 2, 1), [1, 1, 1, 2], [1, 1, 1, 1], [0] * 8, 12),
    ],
)
def test_blocks(image, block, strides, dilations, pads, blocks, known):
    x = floats(2, 3 * int(np.prod(block)), blocks)
    got = run(
        "Col2Im", x, np.array(image), np.array(block), known=known, strides=strides,
        dilations=dilations, pads=pads,
    )  # fmt: skip
    expected = block_sums(x, image, block, strides, dilations, pads)
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)


def test_blocks_of_another_rank():
    with pytest.raises(kuiper.OperatorError, match="the image has 2 axes, expected as many blocks"):
        run("Col2Im", floats(1, 4, 9), np.array([4, 4]), np.array([4]), known=True)


# -- unpooling ----------------------------------------------------------------------------------


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize(
    ("shape", "kernel", "strides", "pads", "size"),
    [
        ((2, 3, 4, 5), [2, 2], [2, 2], [0, 0, 0, 0], None),
        ((2, 3, 4, 5), [3, 2], [2, 1], [1, 0, 1, 0], None),
        ((2, 3, 4, 5), [2, 2], [2, 2], [0, 0, 0, 0], (2, 3, 9, 11)),
        ((2, 3, 4), [2], [2], [0, 0], None),
        ((1, 2, 3, 2, 2), [2, 2, 2], [2, 2, 2], [0] * 6, None),
    ],
)
def test_unpooling(shape, kernel, strides, pads, size, known):
    """Indices count in the result, as in onnxruntime and PyTorch."""
    rank = len(kernel)
    extents = [
        (n - 1) * s + k - pads[i] - pads[i + rank]
        for i, (n, s, k) in enumerate(zip(shape[2:], strides, kernel, strict=True))
    ]
    y = np.zeros(size or (*shape[:2], *extents), np.float32)
    x, indices = floats(*shape), R.permutation(y.size)[: np.prod(shape)].reshape(shape)
    y.flat[indices.ravel()] = x.ravel()
    more = [] if size is None else [np.array(size)]
    window = {"kernel_shape": kernel, "strides": strides, "pads": pads}
    got = run("MaxUnpool", x, indices, *more, known=known, **window)
    np.testing.assert_array_equal(got, y)


def test_unpooling_undoes_pooling():
    x = floats(2, 3, 7, 5)
    values, indices = run("MaxPool", x, outputs="y i", kernel_shape=[3, 2], strides=[3, 2])
    got = run("MaxUnpool", values, indices, np.array(x.shape), kernel_shape=[3, 2], strides=[3, 2])
    assert ((got == x) | (got == 0)).all()
    assert np.count_nonzero(got) == values.size


def test_an_index_outside_of_the_result():
    indices = np.array([0, 1, 2, 16]).reshape(1, 1, 2, 2)
    with pytest.raises(kuiper.KuiperError, match="index 16 is out of range"):
        run("MaxUnpool", floats(1, 1, 2, 2), indices, kernel_shape=[2, 2], strides=[2, 2])


# -- unique values ------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float32, np.int64, np.int8])
@pytest.mark.parametrize("ordered", [0, 1])
@pytest.mark.parametrize("axis", [None, 0, -1])
def test_unique(axis, ordered, dtype):
    x = R.integers(0, 2, (6, 2, 3)).astype(dtype)
    values, first, inverse, counts = np.unique(x, True, True, True, axis=axis)
    inverse = inverse.reshape(-1)
    if not ordered:
        order = np.argsort(first)
        values = values[order] if axis is None else values.take(order, axis)
        first, counts, inverse = first[order], counts[order], np.argsort(order)[inverse]
    attributes = {"sorted": ordered} | ({} if axis is None else {"axis": axis})
    results = run("Unique", x, outputs="y f i c", **attributes)
    for got, expected in zip(results, (values, first, inverse, counts), strict=True):
        assert got.dtype == expected.dtype
        np.testing.assert_array_equal(got, expected)
    np.testing.assert_array_equal(run("Unique", x, **attributes), values)


# -- cropping and padding -----------------------------------------------------------------------


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("shape", [(10, 7, 3), (3, 9, 11), (20, 1, 4)])
def test_centres(shape, known):
    def centred(x, target, axis):
        gap = target - x.shape[axis]
        if gap < 0:
            return x.take(range(-gap // 2, -gap // 2 + target), axis)
        pads = [(0, 0)] * x.ndim
        pads[axis] = (gap // 2, gap - gap // 2)
        return np.pad(x, pads)

    x = floats(7, 8, 5)
    expected = x
    for axis, n in enumerate(shape):
        expected = centred(expected, n, axis)
    got = run("CenterCropPad", x, np.array(shape), known=known)
    np.testing.assert_array_equal(got, expected)
    whole = R.integers(0, 9, (7, 8, 5))
    got = run("CenterCropPad", whole, np.array(shape[:2]), known=known, axes=[-1, 0])
    np.testing.assert_array_equal(got, centred(centred(whole, shape[0], 2), shape[1], 0))


def test_centres_of_another_number_of_axes():
    with pytest.raises(kuiper.OperatorError, match="shape has 2 numbers for 3 axes"):
        run("CenterCropPad", floats(4, 5, 6), np.array([3, 3]), known=True)
