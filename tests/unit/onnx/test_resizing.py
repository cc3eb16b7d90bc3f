"""Resizing by ONNX's rules, on images, volumes and other tensors, with known and open extents."""

import itertools

import numpy as np
import pytest

import kuiper
from kuiper.ops.nn.resize_rules import COORDINATES, ROUNDINGS

from ...reference import REFERENCES
from ...support.onnxfile import graph, model, node, single, tensor, value
from ...support.textgraph import model_of

resize = REFERENCES["kuiper.Resize"]
X = np.random.default_rng(1).normal(size=(2, 5, 7, 6)).astype(np.float32)


def run(x, **arguments):
    """Return the result of the record."""
    words = []
    for key, item in arguments.items():
        text = f"({','.join(map(repr, item))})" if isinstance(item, tuple) else item
        words.append(f"{key}={text}")
    return model_of(
        f"""pnnx.Input in 0 1 x
        kuiper.Resize r 1 1 x y {" ".join(words)}
        pnnx.Output out 1 0 y"""
    )(x)


@pytest.mark.parametrize("coordinates", COORDINATES)
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_coordinates(mode, coordinates):
    more = {"roi": (0.1, 0.2, 0.8, 1.2)} if coordinates == "tf_crop_and_resize" else {}
    for sizes in ({"size": (11, 4)}, {"scales": (0.6, 1.7)}, {"scales": (2.0, 3.0)}):
        arguments = {"axes": (2, 3), "mode": mode, "coordinates": coordinates} | sizes | more
        expected = resize(X, **arguments)
        np.testing.assert_allclose(run(X, **arguments), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_roundings(rounding):
    for scale in (0.5, 1.5, 2.0):
        arguments = {"axes": (2, 3), "scales": (scale, scale), "rounding": rounding}
        np.testing.assert_array_equal(run(X, **arguments), resize(X, **arguments))


@pytest.mark.parametrize(("excludes", "antialias"), [*itertools.product([True, False], repeat=2)])
@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_borders_and_filters(mode, excludes, antialias):
    arguments = {
        "axes": (3, 2), "size": (4, 3), "mode": mode, "cubic": -0.5, "excludes": excludes,
        "antialias": antialias,
    }  # fmt: skip
    np.testing.assert_allclose(run(X, **arguments), resize(X, **arguments), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shape", [(4,), (3, 4), (2, 3, 4), (2, 3, 4, 5, 4), (1, 2, 3, 2, 3, 2)])
def test_any_rank_and_axis(shape):
    x = np.random.default_rng(2).normal(size=shape).astype(np.float32)
    for axis, mode in itertools.product(range(x.ndim), ["nearest", "linear"]):
        arguments = {"axes": (axis,), "size": (2 * shape[axis] + 1,), "mode": mode}
        np.testing.assert_allclose(
            run(x, **arguments), resize(x, **arguments), rtol=1e-5, atol=1e-6
        )


def test_whole_numbers_and_policies():
    x = np.arange(2 * 3 * 4 * 6, dtype=np.int32).reshape(2, 3, 4, 6)
    for policy in ("not_larger", "not_smaller"):
        arguments = {"axes": (2, 3), "size": (7, 8), "policy": policy}
        result = run(x, **arguments)
        assert result.dtype == np.int32
        np.testing.assert_array_equal(result, resize(x, **arguments))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"axes": (4,), "size": (3,)}, "'axes' is"),
        ({"axes": (2,)}, "expected one of them"),
        ({"axes": (2,), "size": (3,), "scales": (1.0,)}, "expected one of them"),
        ({"axes": (2, 2), "size": (3, 3)}, "expected one of them"),
        ({"axes": (2,), "size": (3, 4)}, "2 extents or scales"),
        ({"axes": (2,), "scales": (-1.0,)}, "expected numbers above 0"),
        ({"axes": (2,), "scales": (0.01,)}, "nothing is left"),
        ({"axes": (2,), "size": (3,), "coordinates": "tf_crop_and_resize"}, "'roi' is"),
    ],
)
def test_messages(arguments, message):
    with pytest.raises(kuiper.KuiperError, match=message):
        run(X, **arguments)


def test_open_extents_stay_open():
    scales = np.array([1, 1, 1.5, 0.5], np.float32)
    one = node("Resize", "x - s", "y", coordinate_transformation_mode="asymmetric", mode="linear")
    inputs = [value("x", np.float32, (None, 3, None, None))]
    loaded = kuiper.load(model(graph([one], inputs, [value("y")], [tensor("s", scales)])))
    for shape in ((1, 3, 4, 6), (2, 3, 8, 8)):
        x = np.random.default_rng(3).normal(size=shape).astype(np.float32)
        expected = resize(
            x, axes=(2, 3), scales=(1.5, 0.5), mode="linear", coordinates="asymmetric"
        )
        np.testing.assert_allclose(loaded(x), expected, rtol=1e-5, atol=1e-6)


def test_pytorch_has_its_own_operator():
    known = {"r": np.zeros(0, np.float32), "s": np.array([1, 1, 2, 2], np.float32)}
    for mode, type_ in (("nearest", "F.interpolate"), ("linear", "F.interpolate")):
        loaded = kuiper.load(single("Resize", {"x": X}, known=known, mode=mode))
        assert [op.type for op in loaded.graph][1:-1] == [type_]
        got = loaded(X)
        expected = resize(X, axes=(2, 3), scales=(2.0, 2.0), mode=mode)
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_means_of_bytes_are_rounded_towards_zero(dtype):
    x = (np.arange(8).reshape(1, 1, 2, 4) * 5 - (18 if dtype == np.int8 else 0)).astype(dtype)
    known = {"roi": np.empty(0, np.float32), "s": np.float32([1, 1, 2, 2])}
    exact = kuiper.load(single("Resize", {"x": x.astype(np.float32)}, known=known, mode="linear"))
    got = kuiper.load(single("Resize", {"x": x}, known=known, mode="linear"))(x)
    assert got.dtype == dtype
    np.testing.assert_array_equal(got, np.trunc(exact(x.astype(np.float32))))
