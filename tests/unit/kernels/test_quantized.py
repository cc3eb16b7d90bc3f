"""Tensors of bytes: conversion, tables, programs and maxima, against numpy, on every variant."""

from __future__ import annotations

import itertools
from functools import partial

import numpy as np
import pytest

from kuiper._kernels.elementwise.elementwise import ElementwiseStep
from kuiper._kernels.elementwise.quantized import DequantizeStep, LookupStep, QuantizeStep
from kuiper._kernels.micro import dispatch
from kuiper._kernels.spatial import pool_windows
from kuiper._kernels.spatial.pool import PoolStep
from kuiper.expression import ElementwiseProgram
from kuiper.expression.lowering import Instruction, ProgramValue
from kuiper.ir.view import channels_last_strides

from ...support.workbench import ISAS, Workbench, image_windows, isa, noise

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
    got = bench.run_all_shards(partial(step, source, y, scale, zero), y)
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


# -- tables, and programs of bytes ---------------------------------------------------------------


@pytest.mark.parametrize("name", ISAS)
def test_tables(name):
    table = all_bytes(256, 9)
    with isa(name):
        for count in (1, 15, 63, 64, 65, 9000):
            x = all_bytes(count, count)
            bench = Workbench()
            y = bench.output(x.shape, dtype=np.uint8)
            source = bench.put(x)
            got = bench.run_all_shards(partial(LookupStep, source, y, table), y)
            np.testing.assert_array_equal(got, table[x])
        x = all_bytes((2, 37, 9, 5))
        bench = Workbench()
        y = bench.output(x.shape, "channels_last", 40, dtype=np.uint8)
        source = bench.put(x)
        got = bench.run_all_shards(partial(LookupStep, source, y, table), y)
        np.testing.assert_array_equal(got, table[x])


SHAPES = [
    ((2, 5, 6, 7), (2, 5, 6, 7)),
    ((2, 70, 9, 11), (1, 70, 1, 1)),
    ((1, 3, 40, 40), (40, 40)),
    ((3, 130), (3, 1)),
    ((4, 33), ()),
    ((7, 20_000), (20_000,)),
    ((6, 500), (1,)),
]
FORMATS = [
    ((0.02, 128), (0.3, 7), (0.05, 99)),
    (None, (0.3, 7), (0.05, 99)),
    ((0.02, 128), None, None),
]


@pytest.mark.parametrize("name", ISAS)
@pytest.mark.parametrize("formats", FORMATS)
def test_programs_of_bytes_have_the_bits_of_separate_steps(name, formats):
    """relu(a * b) + a of bytes and floats, in several layouts, is exact in float32 order."""
    argument = [ProgramValue("input", i) for i in range(2)]
    instructions = (
        Instruction("mul", tuple(argument)),
        Instruction("relu", (ProgramValue("register", 0),)),
        Instruction("add", (ProgramValue("register", 1), argument[0])),
    )
    with isa(name):
        for (shape, other), gap in itertools.product(SHAPES, (0, 3)):
            given = [
                noise(s, 7) if f is None else all_bytes(s, 7)
                for s, f in zip((shape, other), formats, strict=False)
            ]
            floats = [
                x if f is None else as_floats(x, *f) for x, f in zip(given, formats, strict=False)
            ]
            expected = np.maximum(floats[0] * floats[1], np.float32(0)) + floats[0]
            if formats[2] is not None:
                expected = as_bytes(expected, *formats[2])
            bench = Workbench()
            strides = None
            if gap and len(shape) == 4:
                strides = channels_last_strides(shape, shape[1] + gap)
            a = bench.put(given[0], strides)
            b = bench.put(given[1]).expand(shape)
            y = bench.allocate(shape, expected.dtype, strides)
            bench.written.append(y)
            program = ElementwiseProgram((0, 1), instructions, shape, {})
            got = bench.run_all_shards(partial(ElementwiseStep, program, [a, b], y, formats), y)
            np.testing.assert_array_equal(got, expected, f"{shape} {other}")


@pytest.mark.parametrize("name", ISAS)
def test_a_program_of_small_bytes_fills_a_larger_result(name):
    """A result that varies along one axis alone is narrowed once, then repeated."""
    copy = (Instruction("copy", (ProgramValue("input", 0),)),)
    scales = [(0.02, 128), (0.05, 3)]
    with isa(name):
        for small in ((1, 6, 1, 1), (1, 6, 1, 50), (2, 1, 9, 1), (1, 1, 1, 1)):
            shape = (2, 6, 9, 50)
            x = all_bytes(small)
            expected = np.broadcast_to(as_bytes(as_floats(x, 0.02, 128), 0.05, 3), shape)
            for layout in ("contiguous", "channels_last"):
                bench = Workbench()
                y = bench.output(shape, layout, dtype=np.uint8)
                source = bench.put(x).expand(shape)
                program = ElementwiseProgram((0,), copy, shape, {})
                got = bench.run_all_shards(
                    partial(ElementwiseStep, program, [source], y, scales), y
                )
                np.testing.assert_array_equal(got, expected)


# -- maxima --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ISAS)
@pytest.mark.parametrize(
    ("kernel", "stride", "padding"), [(2, 2, 0), (3, 2, 1), (3, 1, 1), (5, 1, 2), (1, 1, 0)]
)
def test_maxima_of_bytes(name, kernel, stride, padding):
    with isa(name):
        for channels in (1, 3, 15, 16, 17, 63, 64, 65, 100, 600):
            x = all_bytes((2, channels, 7, 9), channels)
            margins = ((0, 0), (0, 0), (padding, padding), (padding, padding))
            windows = np.lib.stride_tricks.sliding_window_view(
                np.pad(x, margins), (kernel, kernel), (2, 3)
            )
            expected = windows[:, :, ::stride, ::stride].max((-2, -1))
            axes = image_windows(x, kernel, stride, padding)
            bench = Workbench()
            source = bench.put_channels_last(x, channels + 5)
            y = bench.output(expected.shape, "channels_last", channels + 2, dtype=np.uint8)
            scratch = bench.scratch(pool_windows.scratch_bytes(axes))
            got = bench.run_all_shards(partial(PoolStep, source, y, axes, "max", scratch), y)
            np.testing.assert_array_equal(got, expected)
