"""The setting of the precision, and conversions between float32 and bfloat16."""

import pickle

import numpy as np
import pytest

import kuiper
from kuiper._kernels.elementwise.typed import TypedStep
from kuiper._runtime.step import run_step
from kuiper.ir.dtypes import BFLOAT16
from kuiper.ir.view import Buffer, TensorView, contiguous_strides
from kuiper.model import Model
from kuiper.planning.precision import default_precision

from ...support.halves import relative_error
from ...support.textgraph import graph_of, linear, text, values
from ...support.workbench import ISAS, isa

FLOAT32 = np.dtype(np.float32)

PARAM = b"""7767517
3 2
pnnx.Input  in   0 1 0
nn.ReLU     act  1 1 0 1
pnnx.Output out  1 0 1
"""


def test_float32_is_the_default(monkeypatch):
    monkeypatch.delenv("KUIPER_PRECISION", raising=False)
    assert kuiper.load(PARAM).precision == "float32"
    assert kuiper.load(PARAM, precision="float32").precision == "float32"
    assert kuiper.load(PARAM, precision="bfloat16").precision == "bfloat16"
    assert kuiper.load(PARAM, precision="auto").precision in ("float32", "bfloat16")


def test_the_environment_chooses_for_models_without_a_setting(monkeypatch):
    monkeypatch.setenv("KUIPER_PRECISION", "bfloat16")
    assert kuiper.load(PARAM).precision == "bfloat16"
    assert kuiper.load(PARAM, precision="float32").precision == "float32"
    monkeypatch.setenv("KUIPER_PRECISION", "")
    assert kuiper.load(PARAM).precision == "float32"


@pytest.mark.parametrize("precision", ["half", "", 16, ["bfloat16"]])
def test_an_unknown_precision_is_refused(precision):
    with pytest.raises(kuiper.InputError, match=r"precision is .*, expected one of 'float32'"):
        kuiper.load(PARAM, precision=precision)


def test_an_unknown_precision_of_the_environment_is_refused(monkeypatch):
    monkeypatch.setenv("KUIPER_PRECISION", "f16")
    with pytest.raises(kuiper.InputError, match="KUIPER_PRECISION is 'f16', expected one of"):
        kuiper.load(PARAM)


def test_copies_of_a_model_keep_the_precision():
    model = kuiper.load(PARAM, precision="bfloat16")
    assert pickle.loads(pickle.dumps(model)).precision == "bfloat16"
    assert model.with_threads(1).precision == "bfloat16"
    assert model.with_graph(model.graph).precision == "bfloat16"


@pytest.fixture(params=ISAS)
def variant(request):
    with isa(request.param):
        yield


def converted(x, target_dtype, view=lambda array: array):
    """Convert x, seen through `view`, by one step."""
    seen = view(x)
    y = np.zeros(seen.shape, np.uint16 if target_dtype == BFLOAT16 else np.float32)
    strides = tuple(s // x.itemsize for s in seen.strides)
    dtype = BFLOAT16 if x.dtype == np.uint16 else x.dtype
    offset = (seen.ctypes.data - x.ctypes.data) // x.itemsize
    source = TensorView(Buffer(0, x.nbytes, "input"), seen.shape, strides, offset, dtype)
    buffer = Buffer(1, y.nbytes, "output")
    target = TensorView(buffer, y.shape, contiguous_strides(y.shape), 0, target_dtype)
    run_step(TypedStep([(source, target_dtype)], [], target), [x, y], 2)
    return y


def nearest_upper_half(x):
    """Return the upper halves of floats, rounded to nearest even with Python's integers."""
    result = []
    for word in x.view(np.uint32).ravel().tolist():
        rest, half = word & 0xFFFF, word >> 16
        result.append(half + (rest > 0x8000 or (rest == 0x8000 and half & 1)))
    return np.array(result, np.uint16).reshape(x.shape)


def test_rounding_to_bfloat16(variant):
    random = np.random.default_rng(0)
    words = random.integers(0, 0x7F7F8000, 4000, np.uint32)  # finite, and finite when rounded
    words[:8] = [0, 1, 0x8000, 0x18000, 0x3F808000, 0x3F818000, 0x7F7F7FFF, 0x00800000]
    x = np.concatenate([words, words | 0x80000000]).view(np.float32)
    assert np.array_equal(converted(x, BFLOAT16), nearest_upper_half(x))
    special = np.array([np.inf, -np.inf, 3.4e38, -3.4e38], np.float32)
    assert converted(special, BFLOAT16).tolist() == [0x7F80, 0xFF80, 0x7F80, 0xFF80]
    nans = np.array([0x7F800001, 0x7FFFFFFF, 0xFFC00000], np.uint32).view(np.float32)
    assert np.isnan(converted(converted(nans, BFLOAT16), FLOAT32)).all()


def test_widening_is_exact_in_any_layout(variant):
    x = np.arange(2**16, dtype=np.uint16).reshape(64, 32, 32)
    expected = (x.astype(np.uint32) << 16).view(np.float32)
    for view in (lambda a: a, lambda a: a.transpose(2, 0, 1), lambda a: a[3:60:2, :, 5:]):
        given = converted(x, FLOAT32, view)
        assert np.array_equal(given.view(np.uint32), view(expected).view(np.uint32))
        back = converted(given, BFLOAT16)
        numbers = ~np.isnan(given)
        assert np.array_equal(back[numbers], view(x)[numbers])


def test_the_default_of_a_block_precedes_the_environment(monkeypatch):
    monkeypatch.setenv("KUIPER_PRECISION", "float32")
    with default_precision("bfloat16"):
        assert kuiper.load(PARAM).precision == "bfloat16"
        assert kuiper.load(PARAM, precision="float32").precision == "float32"
    assert kuiper.load(PARAM).precision == "float32"


def test_a_converted_input_is_not_taken_for_the_result_that_overwrites_it():
    lines = [
        linear("f", "x", "a", 6, 8),
        "F.softmax s 1 1 a b dim=1",
        "F.softmax t 1 1 b c dim=1",
        "pnnx.Expression e 2 1 b c d expr=sub(@0,@1)",
        linear("g", "d", "y", 8, 3),
    ]
    graph = graph_of(text(*lines))
    x = values(2, 5, 6)
    found = Model(graph, precision="bfloat16")(x)
    assert relative_error(found, Model(graph)(x)) < 2e-2
