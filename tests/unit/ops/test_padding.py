"""Padding in every mode on every rank, against numpy.pad; corners, crops, and refused amounts."""

from __future__ import annotations

import numpy as np
import pytest

import kuiper
from kuiper.ops.tensor.padding import pad_spatial

from ...reference import REFERENCES
from ...support.workbench import Workbench, noise
from ...support.workgraph import run_channels_last, run_operator

reference = REFERENCES["F.pad"]
MODES = ["constant", "reflect", "replicate", "circular"]


@pytest.mark.parametrize("run", [run_operator, run_channels_last])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("shape", "pad"),
    [
        ((2, 3, 7), (2, 3)),
        ((2, 3, 7), (0, 6)),
        ((2, 3, 5, 6), (1, 2, 3, 0)),
        ((2, 33, 4, 5), (3, 3, 2, 2)),
        ((1, 3, 5, 6), (0, 0, 2, 1)),
        ((1, 2, 3, 4, 5), (1, 2, 0, 3, 2, 1)),
    ],
)
def test_margins(run, mode, shape, pad):
    x = noise(shape)
    value = 1.5 if mode == "constant" else None
    expected = reference(x, pad, mode, value)
    np.testing.assert_array_equal(run("F.pad", x, pad=pad, mode=mode, value=value), expected)


@pytest.mark.parametrize("run", [run_operator, run_channels_last])
@pytest.mark.parametrize("mode", MODES)
def test_negative_amounts_crop(run, mode):
    x = noise((2, 3, 7, 6))
    for pad in ((-1, -2, 0, -3), (-2, 1, 2, -1)):
        # A cropped element does not reappear in a margin.
        kept = x[:, :, : 7 + min(pad[3], 0), 2:] if pad[0] == -2 else x[:, :, :4, 1:4]
        grown = tuple(max(p, 0) for p in pad)
        expected = reference(kept, grown, mode)
        np.testing.assert_array_equal(run("F.pad", x, pad=pad, mode=mode, value=None), expected)


@pytest.mark.parametrize("dtype", [np.bool_, np.int64, np.float64, np.complex128])
def test_dtypes(dtype):
    x = noise((2, 3, 4), dtype=dtype)
    y = run_operator("F.pad", x, pad=(1, 2, 1, 0), mode="constant", value=1)
    assert y.dtype == dtype
    np.testing.assert_array_equal(y, reference(x, (1, 2, 1, 0), "constant", 1))
    y = run_operator("F.pad", x, pad=(1, 2), mode="reflect")
    np.testing.assert_array_equal(y, reference(x, (1, 2), "reflect"))


def test_modules():
    x = noise((1, 2, 4, 5))
    for name, arguments, mode in (
        ("nn.ZeroPad2d", {"padding": (1, 2, 3, 4)}, "constant"),
        ("nn.ZeroPad2d", {"padding": (2,)}, "constant"),
        ("nn.ConstantPad2d", {"padding": (1, 0, 2, 1), "value": -2.5}, "constant"),
        ("nn.ReflectionPad2d", {"padding": (1, 2, 3, 1)}, "reflect"),
        ("nn.ReplicationPad2d", {"padding": (5, 6, 7, 8)}, "replicate"),
    ):
        pad = arguments["padding"] * (4 // len(arguments["padding"]))
        expected = reference(x, pad, mode, arguments.get("value"))
        np.testing.assert_array_equal(run_operator(name, x, **arguments), expected)


def test_infinity_and_empty_tensors():
    x = noise((1, 2))
    y = run_operator("F.pad", x, pad=(1, 1), mode="constant", value="-inf")
    np.testing.assert_array_equal(y, reference(x, (1, 1), "constant", -np.inf))
    empty = np.empty((0, 3), np.float32)
    assert run_operator("F.pad", empty, pad=(1, 1), mode="constant").shape == (0, 5)
    y = run_operator("F.pad", empty, pad=(0, 0, 2, 0), mode="constant", value=4)
    np.testing.assert_array_equal(y, np.full((2, 3), 4, np.float32))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"pad": (1, 2, 3)}, "expected pairs of amounts for at most 4 axes"),
        ({"pad": (1,) * 10}, "expected pairs of amounts for at most 4 axes"),
        ({"pad": (-4, -3)}, "crops axis 3 of extent 6 away"),
        ({"pad": (6, 0), "mode": "reflect"}, "expected at most 5 on axis 3 of extent 6"),
        ({"pad": (0, 7), "mode": "circular"}, "expected at most 6 on axis 3 of extent 6"),
        ({"pad": (1,) * 8, "mode": "replicate"}, "at most 3 axes"),
    ],
)
def test_refuses(arguments, message):
    with pytest.raises(kuiper.ShapeError, match=message):
        run_operator("F.pad", noise((2, 3, 5, 6)), **arguments)


def test_refuses_to_repeat_an_empty_edge():
    with pytest.raises(kuiper.ShapeError, match="no edge to repeat"):
        run_operator("F.pad", np.empty((2, 0), np.float32), pad=(1, 1), mode="replicate")


class _Binder:
    """The part of a binder that :func:`pad_spatial` uses: memory and steps."""

    def __init__(self, bench):
        self.bench = bench
        self.steps = []

    def temporary(self, shape, dtype, layout):
        return self.bench.output(shape, layout, dtype=dtype)

    def copy(self, source, target):
        from kuiper._kernels.data.move import CopyStep

        self.steps.append(CopyStep(source, target))

    def step(self, step):
        self.steps.append(step)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
def test_pad_spatial(mode, layout):
    x = noise((2, 5, 6, 7))
    bench = Workbench()
    binder = _Binder(bench)
    value = bench.put(x) if layout == "contiguous" else bench.put_channels_last(x)
    padded = pad_spatial(binder, value, (1, 2, 3, 4), mode, 7.0)
    assert padded.is_channels_last == (layout == "channels_last")
    bench.run(*binder.steps, shards=2)
    expected = reference(x, (1, 2, 3, 4), mode, 7.0 if mode == "constant" else None)
    np.testing.assert_array_equal(bench.view(padded), expected)
    assert pad_spatial(binder, value, (0, -1, -1, 0), mode).shape == (2, 5, 5, 6)


SIZED = """7767517
6 5
pnnx.Input   in  0 1 x #x=(1,2,8,12)f32
F.pad        p   1 1 x a mode=constant pad={first} value=0.0 #x=(1,2,8,12)f32 #a=(1,2,9,13)f32
nn.MaxPool2d m   1 1 a b kernel_size=(3,3) stride=(2,2) padding=(0,0) dilation=(1,1) \
ceil_mode=False return_indices=False #a=(1,2,9,13)f32 #b=(1,2,4,6)f32
F.pad        q   1 1 b c mode=constant pad={second} value=None #b=(1,2,4,6)f32 #c=(1,2,7,9)f32
nn.AvgPool2d n   1 1 c y kernel_size=(5,5) stride=({stride},2) padding=(0,0) \
ceil_mode=False count_include_pad=True divisor_override=None #c=(1,2,7,9)f32 #y=(1,2,2,3)f32
pnnx.Output  out 1 0 y
"""


@pytest.mark.parametrize(
    ("first", "second", "stride", "size", "told"),
    [
        ("(0,1,0,1)", "(1,2,1,2)", 2, (8, 12), None),
        ("(0,1,0,1)", "(1,2,1,2)", 2, (16, 32), None),  # the same for the other size
        ("(0,1,0,1)", "(1,2,1,2)", 2, (11, 12), "'p' (F.pad) and 1 more: its margins (0, 1, 0, 1)"),
        ("(0,1,0,1)", "(1,2,1,2)", 2, (8, 14), "'q' (F.pad): its margins (1, 2, 1, 2) are those"),
        ("(0,1,0,1)", "(1,1,1,1)", 2, (9, 11), None),  # does not depend on the size
        ("(0,1,0,1)", "(1,2,2,2)", 1, (8, 14), "an image of 4 x 6 in the file, which this one of"),
        ("(1,1,1,1)", "(1,2,1,2)", 2, (9, 11), None),
    ],
)
def test_margins_that_may_depend_on_the_size_are_logged(caplog, first, second, stride, size, told):
    """PyTorch may pad another size differently, which the file does not record."""
    model = kuiper.load(SIZED.format(first=first, second=second, stride=stride).encode())
    for _ in range(2):
        assert model(noise((2, 2, *size))).shape[:2] == (2, 2)
    messages = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    assert len(messages) == (told is not None)
    assert told is None or told in messages[0]


def test_a_module_with_even_margins_is_independent_of_the_size(caplog):
    text = SIZED.replace("(1,2,8,12)", "(1,2,9,13)").replace("(1,2,4,6)", "(1,2,5,7)")
    model = kuiper.load(text.format(first="(1,1,1,1)", second="(2,2,2,2)", stride=1).encode())
    model(noise((1, 2, 12, 16)))
    assert not caplog.records
