"""Axes, steps and amounts that are inputs of the model."""

import numpy as np
import pytest

import kuiper

from ...support.onnxfile import single

X = np.random.default_rng(1).normal(size=(3, 4, 5)).astype(np.float32)


def run(type_, x=X, opset=20, **inputs):
    """Return the result of an operator whose inputs are all inputs of the model."""
    attributes = {key: inputs.pop(key) for key in list(inputs) if not hasattr(inputs[key], "dtype")}
    arrays = {"x": x} | inputs
    return kuiper.load(single(type_, arrays, opset=opset, **attributes))(*arrays.values())


@pytest.mark.parametrize("step", [1, 2, -1, -3])
@pytest.mark.parametrize(("start", "end"), [(0, 99), (1, 3), (-1, -99), (99, -99), (-2, 2), (3, 0)])
def test_slices(start, end, step):
    numbers = {"s": np.array([start, 1]), "e": np.array([end, 2]), "a": np.array([-1, 0])}
    got = run("Slice", **numbers, t=np.array([step, 1]))
    last = None if step < 0 and end < -5 else end
    np.testing.assert_array_equal(got, X[1:2, :, start:last:step])


def test_axes_that_come_and_go():
    for axes in ([0], [-1], [2, 0], [4, 1], [1, 2]):
        got = run("Unsqueeze", a=np.array(axes))
        np.testing.assert_array_equal(got, np.expand_dims(X, tuple(axes)))
        np.testing.assert_array_equal(run("Squeeze", got, a=np.array(axes)), X)


@pytest.mark.parametrize("reverse", [0, 1])
@pytest.mark.parametrize("exclusive", [0, 1])
def test_sums(reverse, exclusive):
    got = run("CumSum", a=np.array(1), reverse=reverse, exclusive=exclusive)
    x = X[:, ::-1] if reverse else X
    expected = np.cumsum(x, 1) - (x if exclusive else 0)
    np.testing.assert_allclose(got, expected[:, ::-1] if reverse else expected, atol=1e-5)


def test_margins():
    pads, axes = np.array([1, 0, 2, 3]), np.array([2, 0])
    got = run("Pad", p=pads, f=np.float32(7), a=axes)
    np.testing.assert_array_equal(got, np.pad(X, ((0, 3), (0, 0), (1, 2)), constant_values=7))
    got = run("Pad", p=np.array([1, 1, 0, 2, 0, 3]), opset=11, mode="reflect")
    np.testing.assert_array_equal(got, np.pad(X, ((1, 2), (1, 0), (0, 3)), mode="reflect"))


@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize("dtype", [np.float32, np.int32, np.bool_])
def test_extrema_of_no_element(dtype, keepdims):
    """They are the least and the largest number; another axis leaves no element."""
    x = np.zeros((2, 0, 4), dtype)
    for type_, least in (("ReduceMax", True), ("ReduceMin", False)):
        for axis, shape in ((1, (2, 1, 4)), (-2, (2, 1, 4)), (0, (1, 0, 4))):
            got = run(type_, x, a=np.array([axis]), keepdims=keepdims)
            axes = [] if keepdims else [axis]
            assert got.dtype == dtype
            assert got.shape == np.zeros(shape).squeeze(tuple(axes)).shape
            if dtype == np.int32:
                least_one, largest = np.iinfo(np.int32).min, np.iinfo(np.int32).max
            else:
                least_one, largest = (-np.inf, np.inf) if dtype == np.float32 else (False, True)
            assert (got == (least_one if least else largest)).all()
