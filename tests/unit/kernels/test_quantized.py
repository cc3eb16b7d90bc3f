"""Tensors of bytes: conversion, against numpy; every variant has the same bits."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from kuiper._kernels.elementwise.quantized import DequantizeStep, QuantizeStep
from kuiper._kernels.micro import dispatch
from kuiper.ir.view import channels_last_strides

from ...support.workbench import ISAS, Workbench, isa, noise

SCALES = [(0.02, 128), (0.37, 0), (1.5e-3, 255), (1.0, 3)]


def as_bytes(x, scale, zero) -> np.ndarray:
    """clamp(round(x / scale) + zero), by the product with the inverse scale in float32."""
    inverse = np.float32(1) / np.float32(scale)
    with np.errstate(over="ignore"):
        steps = np.rint((x * inverse).astype(np.float64)) + zero
    return np.where(np.isnan(x), zero, np.clip(steps, 0, 255)).astype(np.uint8)


def as_floats(x, scale, zero) -> np.ndarray:
    return (x.astype(np.int64) - zero).astype(np.float32) * np.float32(scale)


def all_bytes(shape, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, shape).astype(np.uint8)


def converted(step, x, scale, zero, x_strides=None, y_strides=None, view=lambda v: v):
    bench = Workbench()
    source = view(bench.put(x, x_strides))
    dtype = np.uint8 if step is QuantizeStep else np.float32
    y = bench.allocate(source.shape, dtype, y_strides)
    bench.written.append(y)
    given = bench.view(source).copy()
    got = bench.run_all_shards(lambda: step(source, y, scale, zero), y)
    expected = (as_bytes if step is QuantizeStep else as_floats)(given, scale, zero)
    np.testing.assert_array_equal(got, expected)
    return got


@pytest.mark.parametrize("name", ISAS)
@pytest.mark.parametrize(("scale", "zero"), SCALES)
def test_special_values_and_halves(name, scale, zero):
    """Halves round to even; NaN is the zero point; what is out of range is clamped."""
    halves = (np.arange(-600, 600) / 2).astype(np.float32) * np.float32(scale)
    special = np.float32([np.nan, np.inf, -np.inf, 3e38, -3e38, 1e-45, -0.0, 0.0, -np.nan])
    with isa(name):
        for count in range(4):  # all positions in a vector
            x = np.concatenate([np.zeros(count, np.float32), special, halves])
            got = converted(QuantizeStep, x, scale, zero)
            assert got[count] == zero
        q = np.arange(256).astype(np.uint8)
        x = converted(DequantizeStep, q, scale, zero)
        np.testing.assert_array_equal(converted(QuantizeStep, x, scale, zero), q)


@pytest.mark.parametrize("name", ISAS)
@pytest.mark.parametrize("step", [QuantizeStep, DequantizeStep])
def test_layouts(name, step):
    """Planes and channels-last, with and without gaps between pixels, both ways."""
    with isa(name):
        lanes = dispatch.lanes()
        for channels, pixels in itertools.product(
            {1, 3, 4, lanes - 1, lanes + 1, 70} - {0}, (1, 5, lanes + 3, 131)
        ):
            shape = (2, channels, pixels, 2)
            x = 3 * noise(shape, channels) if step is QuantizeStep else all_bytes(shape, channels)
            layouts = (
                None, channels_last_strides(shape), channels_last_strides(shape, channels + 3)
            )  # fmt: skip
            for x_strides, y_strides in itertools.product(layouts, repeat=2):
                converted(step, x, 0.02, 120, x_strides, y_strides)


@pytest.mark.parametrize("name", ISAS)
@pytest.mark.parametrize("step", [QuantizeStep, DequantizeStep])
def test_views(name, step):
    shape = (4, 6, 40, 33)
    x = noise(shape) if step is QuantizeStep else all_bytes(shape)
    with isa(name):
        for view in (
            lambda v: v.narrow(2, 1, 20, 2),
            lambda v: v.narrow(3, 32, 33, -1),
            lambda v: v.permute((3, 1, 0, 2)),
            lambda v: v.select(1, 2),
            lambda v: v.narrow(0, 0, 0),
            lambda v: v.select(3, 4).reshape((4, 6, 40, 1)).expand((4, 6, 40, 9)),
            lambda v: v.select(0, 0).select(0, 1).select(0, 2).select(0, 3),
        ):
            converted(step, x, 0.03, 100, view=view)


@pytest.mark.parametrize("name", ISAS)
def test_large_images(name):
    with isa(name):
        x = noise((1, 3, 111, 97))
        converted(QuantizeStep, x, 0.02, 114, y_strides=channels_last_strides(x.shape))
        converted(DequantizeStep, all_bytes((129, 517)), 0.1, 3, view=lambda v: v.permute((1, 0)))
