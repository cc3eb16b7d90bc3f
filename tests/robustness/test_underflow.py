"""Kernels whose results are normal numbers produce no denormals on the way.

Arithmetic on denormals is a hundred times slower on some processors, so the time of a network would
depend on its values: masked attention, a saturated activation.  The reference is the processor's
underflow flag.
"""

import ctypes
import platform

import numpy as np
import pytest

import kuiper
from kuiper._kernels.rows.softmax import SoftmaxStep, scratch_bytes

from ..support.textgraph import model_of
from ..support.workbench import ISAS, Workbench, function, isa

UNDERFLOW = {"x86_64": 0x10, "aarch64": 0x08}.get(platform.machine(), 0)

pytestmark = pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc" or not UNDERFLOW, reason="asks glibc for underflows"
)


def underflows(call):
    """Return the result of `call()`, and whether anything underflowed in this thread."""
    libm = ctypes.CDLL("libm.so.6")
    libm.feclearexcept(UNDERFLOW)
    result = call()
    return result, libm.fetestexcept(UNDERFLOW) != 0


def test_an_underflow_is_detected():
    tiny = np.full(1, 1e-30, np.float32)
    assert underflows(lambda: function("square", tiny))[1]
    assert not underflows(lambda: function("square", np.sqrt(tiny)))[1]


FAR = np.array([20, 50, 80, 95, 100, 110, 200, 1e4, np.inf], np.float32)


@pytest.mark.parametrize("name", ISAS)
@pytest.mark.parametrize(
    "f", ["sigmoid", "silu", "gelu", "gelu_tanh", "erf", "tanh", "sinh", "cosh", "expm1", "selu"]
)
def test_saturated_activations_do_not_underflow(f, name):
    """All but sigmoid(-88), which is itself denormal."""
    with isa(name):
        for x in np.repeat(np.concatenate([FAR, -FAR]), 64).reshape(-1, 64):
            y, found = underflows(lambda x=x: function(f, x))
            assert not found, x[0]
            assert (np.isnan(y) | (y == 0) | (np.abs(y) > 1.2e-38)).all()


# Scores whose exponentials, relative to a score of 0, are denormal or zero.
MASKED = np.array([-87.5, -90, -100, -104, -1e3, -1e9, -np.inf], np.float32)


@pytest.mark.parametrize("name", ISAS)
@pytest.mark.parametrize("inner", [1, 3, 40])
@pytest.mark.parametrize("is_log", [False, True])
def test_masked_terms_of_a_softmax_are_zero(name, inner, is_log):
    x = np.zeros((2, 16, inner), np.float32)
    x[:, 3:10] = MASKED[:, np.newaxis]
    x[:, 10] = -80  # its exponential is a normal number
    bench = Workbench()
    with isa(name):
        value, y = bench.put(x), bench.output(x.shape)
        step = SoftmaxStep(value, y, bench.scratch(scratch_bytes(value)), is_log)
        _, found = underflows(lambda: bench.run(step))
    assert not found
    y = bench.view(y)
    if is_log:
        expected = x - np.log(np.float32(8))
    else:
        expected = np.where(x == 0, np.float32(1 / 8), 0)
        assert (y[:, 3:10] == 0).all()
        assert (y[:, 10] > 0).all()
    np.testing.assert_allclose(y, expected, 1e-6, 1e-7)


@pytest.mark.parametrize("name", ISAS)
@pytest.mark.parametrize("score", MASKED)
def test_masked_attention_does_not_underflow(name, score):
    text = (
        "pnnx.Input q 0 1 q\npnnx.Input k 0 1 k\npnnx.Input v 0 1 v\npnnx.Input m 0 1 m\n"
        "F.scaled_dot_product_attention op 4 1 q k v m y dropout_p=0.0 is_causal=False "
        "$query=q $key=k $value=v $attn_mask=m\n"
        "pnnx.Output out 1 0 y"
    )
    q = np.full((1, 2, 30, 16), 0.01, np.float32)
    v = np.broadcast_to(np.arange(1, 31, dtype=np.float32)[:, np.newaxis], q.shape)
    mask = np.triu(np.full((30, 30), score, np.float32), 1)
    before = kuiper.get_num_threads()
    kuiper.set_num_threads(1)
    try:
        with isa(name):
            model = model_of(text)
            arrays = [q, q, np.ascontiguousarray(v), mask]
            model(*arrays)
            y, found = underflows(lambda: model(*arrays))
    finally:
        kuiper.set_num_threads(before)
    assert not found
    means = np.arange(2, 32) / np.float32(2)
    np.testing.assert_allclose(y[0, 0, :, 0], means, 1e-6)
