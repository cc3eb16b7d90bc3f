"""Records of views, joins, splits and permutations, against numpy; and what they refuse."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import kuiper

from ...support.workbench import noise
from ...support.workgraph import model_of, run_operator

X = noise((2, 6, 4, 5))
INT_MAX = 2**31 - 1


def check(expected, type, *inputs, **arguments):
    result = run_operator(type, *inputs, **arguments)
    assert result.dtype == expected.dtype
    np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("dtype", [np.float32, np.int64, np.bool_, np.float16, np.complex64])
def test_every_dtype_moves(dtype):
    x = noise((3, 4, 5), dtype=dtype)
    check(x.transpose(2, 0, 1), "Tensor.permute", x, dims=(2, 0, 1))
    check(np.concatenate([x, x[:1]]), "torch.cat", x, x[:1].copy(), dim=0)


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((2, -1), (2, 120)),
        ((0, 0, 20), (2, 6, 20)),
        ((-1,), (240,)),
        ((240, 1, 1), (240, 1, 1)),
        ((0, -1, 0), (2, 30, 4)),
    ],
)
def test_reshape(shape, expected):
    check(X.reshape(expected), "Tensor.reshape", X, shape=shape)


def test_reshape_of_an_empty_tensor_takes_0_literally():
    check(
        np.empty((0, 7), np.float32), "Tensor.reshape", np.empty((2, 0), np.float32), shape=(0, 7)
    )


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((2, -1, -1), r"'shape' is \(2, -1, -1\), expected extents >= 0 and at most one -1"),
        ((7, -1), r"cannot give 240 elements of shape \(2, 6, 4, 5\) the shape \(7, -1\)"),
        ((2, 3), r"inputshape2"),
        ((2, 6, 4, 5, 0), r"axis 4 of the input has no extent"),
        ((-2, 120), r"at most one -1"),
    ],
)
def test_reshape_refuses(shape, message):
    with pytest.raises(kuiper.ShapeError, match=message):
        run_operator("Tensor.reshape", X, shape=shape)


def test_reshape_after_permute_copies():
    model = kuiper.load(
        b"7767517\n4 3\npnnx.Input in 0 1 0 #0=(2,6,4,5)f32\n"
        b"Tensor.permute p 1 1 0 1 dims=(0,2,3,1)\n"
        b"Tensor.reshape r 1 1 1 2 shape=(2,-1)\npnnx.Output out 1 0 2\n"
    )
    np.testing.assert_array_equal(model(X), X.transpose(0, 2, 3, 1).reshape(2, -1))


def test_reshape_as():
    y = noise((12, 20))
    check(X.reshape(12, 20), "Tensor.reshape_as", X, y)
    with pytest.raises(kuiper.ShapeError, match="cannot give an input of shape"):
        run_operator("Tensor.reshape_as", X, y[:1].copy())


def test_flatten():
    check(X.reshape(2, -1), "torch.flatten", X, start_dim=1, end_dim=-1)
    check(X.reshape(2, 24, 5), "nn.Flatten", X, start_dim=-3, end_dim=2)
    check(X.reshape(2, -1), "nn.Flatten", X)
    with pytest.raises(kuiper.ShapeError, match="'start_dim' is axis 3 and 'end_dim' axis 1"):
        run_operator("torch.flatten", X, start_dim=3, end_dim=1)


def test_unflatten():
    check(X.reshape(2, 3, 2, 4, 5), "Tensor.unflatten", X, dim=1, sizes=(3, -1))
    check(X.reshape(2, 6, 2, 2, 5), "nn.Unflatten", X, dim=-2, unflattened_size=(2, 2))
    with pytest.raises(kuiper.ShapeError, match=r"cannot cut axis 1 of extent 6 into \(4, -1\)"):
        run_operator("Tensor.unflatten", X, dim=1, sizes=(4, -1))


@pytest.mark.parametrize("dims", list(itertools.permutations(range(4))))
def test_permute(dims):
    check(X.transpose(dims), "torch.permute", X, dims=dims)


def test_permute_refuses():
    for dims, message in (
        ((0, 1, 2), "expected 4 axes"),
        ((0, 1, 2, 2), "names an axis twice"),
        ((0, 1, 2, 4), "'dims' is 4, expected -4 to 3"),
    ):
        with pytest.raises(kuiper.ShapeError, match=message):
            run_operator("Tensor.permute", X, dims=dims)


def test_transpose():
    check(X.swapaxes(1, 3), "torch.transpose", X, dim0=-1, dim1=1)
    check(X[0, 0].T, "torch.t", X[0, 0].copy())
    check(X[0, 0, 0], "torch.t", X[0, 0, 0].copy())


def test_squeeze_and_unsqueeze():
    x = noise((1, 3, 1, 4))
    check(x[0, :, 0], "torch.squeeze", x)
    check(x[0], "torch.squeeze", x, dim=0)
    check(x, "torch.squeeze", x, dim=1)
    check(x[0, :, 0], "torch.squeeze", x, dim=(0, -2))
    check(x[..., None], "torch.unsqueeze", x, dim=-1)
    check(x[:, None], "torch.unsqueeze", x, dim=1)
    check(x[:, None, :, None], "torch.unsqueeze", x, dim=(1, 3))


def test_expand():
    x = noise((2, 1, 3))
    check(np.broadcast_to(x, (2, 4, 3)), "Tensor.expand", x, sizes=(-1, 4, -1))
    check(np.broadcast_to(x, (5, 2, 4, 3)), "Tensor.expand", x, shape=(5, 2, 4, 3))
    check(np.broadcast_to(x, (2, 4, 3)), "Tensor.expand_as", x, noise((2, 4, 3)))
    for sizes in ((2, 1), (3, 4, 3), (-1, 2, 4, 3)):
        with pytest.raises(kuiper.ShapeError, match=r"cannot expand shape \(2, 1, 3\)"):
            run_operator("Tensor.expand", x, sizes=sizes)
    with pytest.raises(kuiper.ShapeError, match="'sizes' is missing"):
        run_operator("Tensor.expand", x)


def test_repeat():
    x = noise((2, 3))
    check(np.tile(x, (2, 1, 3)), "Tensor.repeat", x, sizes=(2, 1, 3))
    check(np.tile(x, (1, 4)), "torch.tile", x, dims=(4,))
    check(np.tile(x, (0, 2)), "Tensor.repeat", x, sizes=(0, 2))
    check(np.repeat(x, 3, 1), "torch.repeat_interleave", x, repeats=3, dim=1)
    check(np.repeat(x, 2), "torch.repeat_interleave", x, repeats=2, dim=None)
    with pytest.raises(kuiper.ShapeError, match="at least 2 integers"):
        run_operator("Tensor.repeat", x, sizes=(2,))


@pytest.mark.parametrize("dim", [0, 1, 2, 3, -1])
def test_cat(dim):
    parts = [np.ascontiguousarray(np.take(X, range(n), dim)) for n in (1, 2, 2)]
    check(np.concatenate(parts, dim), "torch.cat", *parts, dim=dim)


def test_cat_of_different_dtypes():
    x, i = noise((2, 3)), noise((2, 3), dtype=np.int64)
    check(np.concatenate([x, i.astype(np.float32)]), "torch.cat", x, i, dim=0)


def test_cat_ignores_empty_vectors():
    check(X, "torch.cat", np.empty((0,), np.float32), X, dim=1)


def test_cat_refuses():
    for other, message in (
        (X[:, :, :3].copy(), r"input 1 has shape \(2, 6, 3, 5\), which does not fit"),
        (X[0].copy(), r"input 1 has shape \(6, 4, 5\)"),
    ):
        with pytest.raises(kuiper.ShapeError, match=message):
            run_operator("torch.cat", X, other, dim=1)


def test_cat_of_chunks_is_the_chunked_tensor():
    model = kuiper.load(
        b"7767517\n4 4\npnnx.Input in 0 1 0 #0=(2,6,4,5)f32\n"
        b"torch.chunk c 1 2 0 1 2 chunks=2 dim=1\ntorch.cat j 2 1 1 2 3 dim=1\n"
        b"pnnx.Output out 1 0 3\n"
    )
    np.testing.assert_array_equal(model(X), X)


@pytest.mark.parametrize("dim", [0, 1, 2, -1])
def test_stack(dim):
    parts = [noise((2, 3), seed) for seed in range(3)]
    check(np.stack(parts, dim), "torch.stack", *parts, dim=dim)
    with pytest.raises(kuiper.ShapeError, match=r"input 1 has shape \(3, 2\), expected \(2, 3\)"):
        run_operator("torch.stack", parts[0], parts[0].T.copy(), dim=dim)


def check_pieces(expected, type, **arguments):
    results = run_operator(type, X, n_outputs=len(expected), **arguments)
    for result, piece in zip(results, expected, strict=True):
        np.testing.assert_array_equal(result, piece)


def test_splits():
    check_pieces([X[:, :2], X[:, 2:4], X[:, 4:]], "torch.chunk", chunks=3, dim=1)
    check_pieces([X[..., :2], X[..., 2:4], X[..., 4:]], "torch.chunk", chunks=4, dim=-1)
    check_pieces([X[:, :4], X[:, 4:]], "torch.split", split_size_or_sections=4, dim=1)
    sizes = (1, 3, 2)
    check_pieces(np.split(X, [1, 4], 1), "torch.split", split_size_or_sections=sizes, dim=1)
    check_pieces(np.array_split(X, 3, 3), "torch.tensor_split", sections=3, dim=3)
    check_pieces(np.split(X, [1, 1, 5], 1), "torch.tensor_split", indices=(1, 1, 5), dim=1)
    check_pieces([X[:, :, i] for i in range(4)], "torch.unbind", dim=2)


def test_pieces_as_one_list():
    model = kuiper.load(
        b"7767517\n5 5\npnnx.Input in 0 1 0 #0=(2,6,4,5)f32\n"
        b"torch.split c 1 1 0 1 split_size_or_sections=4 dim=1\n"
        b"prim::ListUnpack u 1 2 1 2 3\ntorch.cat j 2 1 3 2 4 dim=1\npnnx.Output out 1 0 4\n"
    )
    np.testing.assert_array_equal(model(X), np.concatenate([X[:, 4:], X[:, :4]], 1))


def test_splits_refuse():
    for type, arguments, message in (
        ("torch.chunk", {"chunks": 2, "dim": 1}, "gives 2 ranges, expected 3"),
        ("torch.split", {"split_size_or_sections": (1, 2, 1), "dim": 1}, "add up to 6"),
        ("torch.tensor_split", {"dim": 1}, "neither 'sections' nor 'indices'"),
        ("torch.unbind", {"dim": 1}, "does not give 3 outputs"),
    ):
        with pytest.raises(kuiper.ShapeError, match=message):
            run_operator(type, X, n_outputs=3, **arguments)


@pytest.mark.parametrize(
    ("start", "end", "step"),
    [
        (1, 4, 1),
        (0, INT_MAX, 2),
        (-3, -1, 1),
        (-100, 100, 3),
        (4, 2, 1),
        (None, None, None),
        (1, 6, 4),
    ],
)
def test_slice(start, end, step):
    stop = None if end in (None, INT_MAX) else end
    check(X[:, start:stop:step], "Tensor.slice", X, dim=1, start=start, end=end, step=step)


def test_slice_of_several_axes():
    check(
        X[1:, 4, :, ::2],
        "Tensor.slice",
        X,
        dims=(0, 1, 3),
        starts=(1, 0, 0),
        ends=(INT_MAX, 0, INT_MAX),
        steps=(1, 0, 2),
        selects=(INT_MAX, 4, INT_MAX),
    )
    check(X[:, -1], "Tensor.slice", X, dim=1, select=-1, step=0)


def test_slice_bounds_as_operands():
    model = kuiper.load(
        b"7767517\n7 6\npnnx.Input in 0 1 0 #0=(2,6,4,5)f32\n"
        b"pnnx.Expression a 1 1 0 1 expr=sub(size(@0,1),2)\n"
        b"pnnx.SliceIndexes s 1 1 1 2 indexes=(1,@0)\n"
        b"pnnx.SliceIndexes e 1 1 1 3 indexes=(2,2147483647)\n"
        b"Tensor.slice c 3 1 0 2 3 4 dims=(0,1) steps=(1,1) selects=(2147483647,2147483647) "
        b"$input=0 $starts=2 $ends=3\n"
        b"Tensor.slice d 2 1 4 1 5 dim=2 step=1 start=0 $input=4 $end=1\npnnx.Output out 1 0 5\n"
    )
    np.testing.assert_array_equal(model(X), X[1:2, 4:, :4])


def test_slice_refuses():
    for arguments, message in (
        ({"dim": 1, "start": 0, "end": 3, "step": 0}, "'step' is 0, expected an integer >= 1"),
        ({"dim": 4, "start": 0, "end": 3, "step": 1}, "'dim' is 4, expected -4 to 3"),
        ({"dim": 1, "select": 6}, "index 6 is out of range for axis 1 of extent 6"),
        ({"dims": (0, 1), "starts": (0,), "ends": (1, 1)}, "'starts' is .0,., expected 2 integers"),
        ({"dims": (1, -3), "starts": (0, 0), "ends": (1, 1)}, "names an axis twice"),
    ):
        with pytest.raises(kuiper.ShapeError, match=message):
            run_operator("Tensor.slice", X, **arguments)


def test_select_and_narrow():
    check(X[:, :, -2], "Tensor.select", X, dim=2, index=-2)
    check(X[:, 2:5], "torch.narrow", X, dim=1, start=2, length=3)
    check(X[:, -3:-1], "torch.narrow", X, dim=1, start=-3, length=2)
    with pytest.raises(kuiper.ShapeError, match="3 elements from 4 on exceed axis 1"):
        run_operator("torch.narrow", X, dim=1, start=4, length=3)
    with pytest.raises(kuiper.ShapeError, match="out of range"):
        run_operator("Tensor.select", X, dim=2, index=4)
    with pytest.raises(kuiper.ShapeError, match="0-d tensor"):
        run_operator("Tensor.select", np.float32(3).reshape(()), dim=0, index=0)


@pytest.mark.parametrize("groups", [1, 2, 3, 6])
def test_channel_shuffle(groups):
    expected = X.reshape(2, groups, 6 // groups, 4, 5).swapaxes(1, 2).reshape(X.shape)
    check(expected, "nn.ChannelShuffle", X, groups=groups)


def test_channel_shuffle_refuses():
    with pytest.raises(kuiper.ShapeError, match="divisible by 4 groups"):
        run_operator("nn.ChannelShuffle", X, groups=4)


@pytest.mark.parametrize("lead", [(), (2,), (2, 3)])
@pytest.mark.parametrize("r", [1, 2, 3])
def test_pixel_shuffle(lead, r):
    x = noise((*lead, 5 * r * r, 4, 7))
    d = len(lead)
    order = [*range(d), d, d + 3, d + 1, d + 4, d + 2]
    expected = x.reshape(*lead, 5, r, r, 4, 7).transpose(order).reshape(*lead, 5, 4 * r, 7 * r)
    check(expected, "nn.PixelShuffle", x, upscale_factor=r)
    check(x, "nn.PixelUnshuffle", np.ascontiguousarray(expected), downscale_factor=r)


def test_pixel_shuffle_refuses():
    with pytest.raises(kuiper.ShapeError, match=r"divisible by 2 \* 2"):
        run_operator("nn.PixelShuffle", X, upscale_factor=2)
    with pytest.raises(kuiper.ShapeError, match="width divisible by 2"):
        run_operator("nn.PixelUnshuffle", X, downscale_factor=2)


def test_flip_and_roll():
    check(X[:, ::-1, :, ::-1], "torch.flip", X, dims=(1, -1))
    check(np.roll(X, (2, -1), (1, 3)), "torch.roll", X, shifts=(2, -1), dims=(1, 3))
    check(np.roll(X, (1, 1), (2, 2)), "torch.roll", X, shifts=(1, 1), dims=(2, -2))
    check(np.roll(X, 7), "torch.roll", X, shifts=(7,), dims=None)
    check(np.roll(X, 60, 2), "torch.roll", X, shifts=(60,), dims=(2,))
    with pytest.raises(kuiper.ShapeError, match="expected as many as 'dims'"):
        run_operator("torch.roll", X, shifts=(1, 2), dims=(1,))


@pytest.mark.parametrize("type", ["nn.Dropout", "F.dropout", "torch.clone", "nn.Identity"])
def test_identity(type):
    check(X, type, X)


def test_views_need_no_step():
    model = model_of("Tensor.permute", [X], {"dims": (0, 2, 3, 1)})
    # The only step copies into the caller's array.
    assert [row["kind"] for row in model.profile(X, runs=1).rows] == ["copy"]
