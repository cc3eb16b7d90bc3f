"""Records of reductions, softmax and normalisation, against numpy: axes, layouts, dtypes."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

import kuiper

from ...reference import REFERENCES
from ...support.compare import assert_close
from ...support.workbench import noise
from ...support.workgraph import model_of, run_channels_last, run_operator

X = noise((2, 6, 4, 5))
RUNS = [run_operator, run_channels_last]


def check(y, expected, rtol=2e-6):
    assert_close(y, np.asarray(expected).astype(y.dtype), rtol)


def every_dims(rank):
    for count in range(1, rank + 1):
        yield from itertools.combinations(range(rank), count)


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("keepdim", [False, True])
@pytest.mark.parametrize("dims", list(every_dims(4)))
def test_every_combination_of_axes(run, dims, keepdim):
    arguments = {"dim": dims, "keepdim": keepdim}
    for name in ("torch.mean", "torch.amax", "torch.logsumexp"):
        check(run(name, X, **arguments), REFERENCES[name](X.astype(np.float64), **arguments))
    expected = REFERENCES["torch.var"](X.astype(np.float64), unbiased=False, **arguments)
    check(run("torch.var", X, unbiased=False, **arguments), expected, 1e-5)
    expected = REFERENCES["torch.norm"](X.astype(np.float64), p=2, **arguments)
    check(run("torch.norm", X, p=2, **arguments), expected)


def test_negative_axes_and_all_axes():
    check(run_operator("torch.sum", X, dim=(-1, 1)), X.sum((3, 1)), 1e-5)
    for name, expected in (("sum", X.sum()), ("prod", X.prod()), ("max", X.max())):
        y = run_operator(f"torch.{name}", X)
        assert y.shape == ()
        check(y, expected, 1e-5)
    assert run_operator("torch.mean", X, dim=(), keepdim=True).shape == (1, 1, 1, 1)
    scalar = np.array(3, np.float32)
    assert run_operator("torch.sum", scalar, dim=(0,)) == 3


@pytest.mark.parametrize("dtype", [np.bool_, np.int8, np.int64])
def test_sums_of_integers_are_int64(dtype):
    x = noise((3, 40), dtype=dtype)
    for name, expected in (("torch.sum", x.sum(1, np.int64)), ("torch.prod", x.prod(1, np.int64))):
        y = run_operator(name, x, dim=(1,))
        assert y.dtype == np.int64
        np.testing.assert_array_equal(y, expected)
    y = run_operator("torch.cumsum", x, dim=1)
    assert y.dtype == np.int64
    np.testing.assert_array_equal(y, x.cumsum(1, np.int64))
    np.testing.assert_array_equal(run_operator("torch.amax", x, dim=(0,)), x.max(0))


def test_variance():
    check(run_operator("torch.var", X, dim=(1, 2)), X.var((1, 2), ddof=1), 1e-5)
    check(run_operator("torch.std", X, dim=(1, 2), correction=3), X.std((1, 2), ddof=3), 1e-5)
    check(run_operator("torch.std", X, dim=(3,), unbiased=False), X.std(3), 1e-5)
    y = run_operator("torch.var", X[:, :1].copy(), dim=(1,))
    assert np.isnan(y).all()


@pytest.mark.parametrize("p", [0, 1, 2, 3, 0.5, "fro", math.inf, "inf", "-inf"])
def test_norms(p):
    size = np.abs(X.astype(np.float64))
    expected = {
        0: lambda: np.count_nonzero(size, axis=1),
        "fro": lambda: np.sqrt((size**2).sum(1)),
        math.inf: lambda: size.max(1),
        "inf": lambda: size.max(1),
        "-inf": lambda: size.min(1),
    }.get(p, lambda: (size**p).sum(1) ** (1 / p))()
    check(run_operator("torch.norm", X, p=p, dim=(1,)), expected)


def test_indices_of_extremes():
    x = np.round(noise((3, 8, 5)))
    for name in ("max", "min"):
        values, indices = run_operator(f"torch.{name}", x, n_outputs=2, dim=1, keepdim=True)
        np.testing.assert_array_equal(values, getattr(x, name)(1, keepdims=True))
        np.testing.assert_array_equal(indices, getattr(x, f"arg{name}")(1, keepdims=True))
        y = run_operator(f"torch.{name}", x, dim=-1, keepdim=False)
        np.testing.assert_array_equal(y, getattr(x, name)(2))
        y = run_operator(f"torch.arg{name}", x, dim=None, keepdim=False)
        assert y.shape == ()
        assert y.dtype == np.int64
        assert y == getattr(x, f"arg{name}")()


def test_topk():
    x = noise((3, 9))
    x[1, 4] = np.nan
    values, indices = run_operator("torch.topk", x, n_outputs=2, k=3, dim=1, largest=True)
    assert np.isnan(values[1, 0])  # NaN is the greatest
    np.testing.assert_array_equal(np.take_along_axis(x, indices, 1), values)
    np.testing.assert_array_equal(values[0], np.sort(x[0])[::-1][:3])
    values, _ = run_operator("torch.topk", x, n_outputs=2, k=4, dim=-1, largest=False)
    np.testing.assert_array_equal(values[2], np.sort(x[2])[:4])
    i = np.array([-128, 127, 5], np.int8)
    values, _ = run_operator("torch.topk", i, n_outputs=2, k=2, dim=0, largest=True)
    np.testing.assert_array_equal(values, [127, 5])
    with pytest.raises(kuiper.ShapeError, match="'k' is 10, expected at most 9"):
        run_operator("torch.topk", x, n_outputs=2, k=10, dim=1)


def test_scans():
    check(run_operator("torch.cumsum", X, dim=2), X.astype(np.float64).cumsum(2))
    check(run_operator("torch.cumprod", X, dim=-1), X.astype(np.float64).cumprod(3))


@pytest.mark.parametrize(
    ("type", "x", "arguments", "message"),
    [
        ("torch.mean", X, {"dim": (4,)}, "'dim' is 4, expected -4 to 3"),
        ("torch.mean", X, {"dim": (1, -3)}, "names an axis twice"),
        ("torch.mean", np.ones((2, 2), np.int64), {"dim": (0,)}, "the input is int64, expected"),
        ("torch.amax", np.ones((2, 0), np.float32), {"dim": (1,)}, "nothing to reduce along .1,."),
        ("torch.norm", X, {"p": "nuc"}, "'p' is 'nuc', expected a number, fro or inf"),
        ("F.softmax", X, {"dim": 4}, "'dim' is 4, expected -4 to 3"),
        (
            "F.softmax",
            np.ones((2, 2), np.int64),
            {"dim": 0},
            "the input is int64, expected float32",
        ),
        ("F.glu", X, {"dim": 3}, "expected axis 3 to be even"),
        ("nn.Softmax2d", X[0, 0].copy(), {}, "expected rank 3 or 4"),
        ("nn.LayerNorm", X, {"normalized_shape": (4,)}, "expected its last axes to be .4,."),
        ("nn.GroupNorm", X, {"num_groups": 4}, "divisible by 4 groups"),
        ("nn.GroupNorm", X, {"num_groups": 3, "num_channels": 9}, "expected 9 channels"),
        ("nn.InstanceNorm2d", X, {"num_features": 3, "affine": True}, "expected 3 channels"),
        ("F.instance_norm", X[0, 0].copy(), {}, "expected .n, c, ...."),
        ("nn.LocalResponseNorm", X[0, 0].copy(), {"size": 3}, "expected .n, c, ...."),
    ],
)
def test_refuses(type, x, arguments, message):
    with pytest.raises((kuiper.ShapeError, kuiper.OperatorError), match=message):
        run_operator(type, x, **arguments)


def test_refuses_factors_of_another_shape():
    weight = noise((5,))
    for type, arguments in (
        ("nn.LayerNorm", {"normalized_shape": (4, 5)}),
        ("nn.GroupNorm", {"num_groups": 2}),
        ("nn.InstanceNorm2d", {}),
    ):
        with pytest.raises(kuiper.ShapeError, match=r"'weight' has shape \(5,\), expected"):
            run_operator(type, X, attributes={"weight": weight}, **arguments)


# -- softmax -----------------------------------------------------------------------------------


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("dim", [0, 1, 2, 3, -1, -3])
def test_softmax_over_every_axis(run, dim):
    for name in ("F.softmax", "F.log_softmax", "nn.Softmin"):
        check(run(name, X, dim=dim), REFERENCES[name](X.astype(np.float64), dim=dim))


def test_softmax_without_an_axis():
    # As torch.nn.functional._get_softmax_dim: 0 for rank 0, 1 and 3, else 1.
    for x, dim in ((X, 1), (X[0], 0), (X[0, 0], 1), (X[0, 0, 0], 0)):
        x = x.copy()
        check(run_operator("nn.Softmax", x, dim=None), REFERENCES["F.softmax"](x, dim=dim))
    assert run_operator("nn.Softmax", np.array(2, np.float32), dim=0) == 1


def test_softmax2d_and_glu():
    for run in RUNS:
        check(run("nn.Softmax2d", X), REFERENCES["F.softmax"](X, dim=1))
        check(run("nn.GLU", X, dim=1), REFERENCES["nn.GLU"](X, dim=1))
    x = X[0].astype(np.float64)
    check(run_operator("F.softmax", x, dim=1), REFERENCES["F.softmax"](x, dim=1), 1e-14)
    check(run_operator("F.glu", x, dim=0), REFERENCES["F.glu"](x, dim=0), 1e-14)


# -- normalisation -----------------------------------------------------------------------------


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_layer_norm(run, count):
    arguments = {"normalized_shape": X.shape[4 - count :], "eps": 1e-5}
    expected = REFERENCES["F.layer_norm"](X.astype(np.float64), **arguments)
    check(run("nn.LayerNorm", X, elementwise_affine=False, **arguments), expected, 1e-5)
    expected = REFERENCES["F.rms_norm"](X.astype(np.float64), **arguments)
    check(run("nn.RMSNorm", X, elementwise_affine=False, **arguments), expected)


def test_layer_norm_with_factors():
    weight, bias = noise((4, 5), 1), noise((4, 5), 2)
    expected = REFERENCES["F.layer_norm"](
        X.astype(np.float64), weight, bias, normalized_shape=(4, 5), eps=1e-3
    )
    arguments = {"normalized_shape": (4, 5), "eps": 1e-3}
    y = run_operator("nn.LayerNorm", X, attributes={"weight": weight, "bias": bias}, **arguments)
    check(y, expected, 1e-5)
    keys = ("input", "weight", "bias")
    check(run_operator("F.layer_norm", X, weight, bias, keys=keys, **arguments), expected, 1e-5)


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("shape", [(3, 6, 1), (2, 6, 5), (2, 6, 4, 5), (1, 6, 3, 4, 5)])
def test_group_and_instance_norm(run, shape):
    x = noise(shape)
    for groups in (1, 2):
        expected = REFERENCES["nn.GroupNorm"](x.astype(np.float64), num_groups=groups, eps=1e-5)
        check(run("nn.GroupNorm", x, num_groups=groups, eps=1e-5, affine=False), expected, 1e-5)
    expected = REFERENCES["nn.InstanceNorm2d"](x.astype(np.float64), eps=1e-5)
    check(run("nn.InstanceNorm2d", x, eps=1e-5), expected, 1e-5)
    # Without weights PyTorch accepts any number of channels.
    check(run("nn.InstanceNorm2d", x, num_features=3, eps=1e-5, affine=False), expected, 1e-5)


def test_group_norm_without_spatial_axes():
    x = noise((3, 6))
    expected = REFERENCES["nn.GroupNorm"](x.astype(np.float64), num_groups=2, eps=1e-5)
    check(run_operator("nn.GroupNorm", x, num_groups=2, eps=1e-5), expected, 1e-5)


def test_instance_norm_with_stored_statistics():
    names = ("running_mean", "running_var", "weight", "bias")
    attributes = {name: np.abs(noise((6,), i)) + 0.5 for i, name in enumerate(names)}
    expected = REFERENCES["nn.BatchNorm2d"](X.astype(np.float64), **attributes, eps=1e-5)
    y = run_operator(
        "nn.InstanceNorm2d",
        X,
        attributes=attributes,
        eps=1e-5,
        affine=True,
        track_running_stats=True,
    )
    check(y, expected)


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("shape", [(2, 7, 5), (2, 7, 4, 5), (1, 7, 3, 4, 5), (1, 7, 2, 3, 2, 3)])
def test_local_response_norm(run, shape):
    x = 3 * noise(shape)
    arguments = {"size": 5, "alpha": 0.2, "beta": 0.75, "k": 1.5}
    expected = REFERENCES["nn.LocalResponseNorm"](x.astype(np.float64), **arguments)
    check(run("nn.LocalResponseNorm", x, **arguments), expected)


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("p", [1, 2, 3.5, math.inf])
def test_normalize(run, p):
    for dim in range(4):
        size = np.abs(X.astype(np.float64))
        norm = size.max(dim, keepdims=True)
        if p != math.inf:
            norm = (size**p).sum(dim, keepdims=True) ** (1 / p)
        check(run("F.normalize", X, p=p, dim=dim, eps=0.5), X / np.maximum(norm, 0.5))


def test_empty_tensors():
    empty = np.empty((0, 6, 2, 2), np.float32)
    assert run_operator("F.softmax", empty, dim=1).shape == empty.shape
    assert run_operator("nn.GroupNorm", empty, num_groups=2).shape == empty.shape
    assert run_operator("nn.LayerNorm", empty, normalized_shape=(2,)).shape == empty.shape
    assert run_operator("F.normalize", empty, dim=1, eps=1e-12).shape == empty.shape
    assert run_operator("nn.LocalResponseNorm", empty, size=3).shape == empty.shape
    assert run_operator("torch.mean", empty, dim=(1,)).shape == (0, 2, 2)
    assert (run_operator("torch.sum", empty, dim=(0,)) == 0).all()


def kinds_of(model, x):
    return [row["kind"] for row in model.profile(x, runs=1).rows]


@pytest.mark.parametrize(
    ("type", "params", "kind"),
    [
        ("torch.mean", {"dim": (2, 3), "keepdim": True}, "reduce_mean"),
        ("torch.mean", {"dim": (1,), "keepdim": False}, "reduce_mean"),
        ("F.softmax", {"dim": 1}, "softmax"),
        ("F.softmax", {"dim": -1}, "softmax"),
        ("nn.GroupNorm", {"num_groups": 3}, "group_norm"),
        ("nn.LayerNorm", {"normalized_shape": (5,)}, "layer_norm"),
    ],
)
def test_one_step_and_no_copy(type, params, kind):
    assert kinds_of(model_of(type, [X], params), X) == [kind]


def test_channels_last_images_are_reduced_in_place():
    text = (
        b"7767517\n5 4\npnnx.Input in 0 1 0 #0=(2,4,5,6)f32\n"
        b"Tensor.permute p 1 1 0 1 dims=(0,3,1,2)\n"
        b"torch.mean m 1 1 1 2 dim=(%s) keepdim=False\n"
        b"F.softmax s 1 1 2 3 dim=-1\npnnx.Output out 1 0 3\n"
    )
    last = np.ascontiguousarray(np.moveaxis(X, 1, -1))
    for dims in (b"2,3", b"1"):
        assert kinds_of(kuiper.load(text % dims), last) == ["reduce_mean", "softmax"]
