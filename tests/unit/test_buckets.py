"""Sequences of any length, padded to a few lengths."""

import numpy as np
import pytest

import kuiper
from kuiper.buckets import stack
from kuiper.errors import InputError

from ..support.encoder import encoder, tokens
from ..support.textgraph import model_of

INPUTS = ("pnnx_input_0", "pnnx_input_1")
MASK = INPUTS[1]
# Extents that follow the length in other ways: none, twice, and half of it.
SIZES = """
pnnx.Input in 0 1 x #x=(2,?)f32
torch.cat twice 2 1 x x y dim=1
torch.sum total 1 1 x z dim=(1) keepdim=False
pnnx.Output a 1 0 y
pnnx.Output b 1 0 z
"""


@pytest.mark.parametrize("length", [1, 3, 8, 9, 16])
def test_results_are_those_of_the_sequence_alone(length):
    model = encoder()
    encode = kuiper.Buckets(model, [8, 16], mask=MASK)
    ids = tokens(length)
    mask = np.ones_like(ids)
    mask[1, 1:] = 0
    for given in (mask, np.ones_like(ids)):
        got = encode(ids, given)
        assert got.shape == (2, length, 3)
        np.testing.assert_allclose(got, model(ids, given), rtol=1e-4, atol=1e-5)


def test_all_lengths_share_a_few_plans():
    model = encoder(plans=3)
    encode = kuiper.Buckets(model, [16, 4, 8], mask=MASK)
    encode.plan((2, 1), (2, 1))
    plans = {length: model.plan((2, length), (2, length)) for length in (4, 8, 16)}
    for length in range(1, 17):
        encode(tokens(length))
    assert plans == {length: model.plan((2, length), (2, length)) for length in (4, 8, 16)}
    assert encode.lengths == (4, 8, 16)


def test_a_missing_mask_counts_every_token():
    model = encoder()
    encode = kuiper.Buckets(model, [8], mask=MASK)
    ids = tokens(5)
    expected = encode(ids, np.ones_like(ids))
    for given in ((ids,), ({INPUTS[0]: ids},), ({INPUTS[0]: ids, MASK: np.ones_like(ids)},)):
        np.testing.assert_array_equal(encode(*given), expected)
    np.testing.assert_allclose(expected, model(ids, np.ones_like(ids)), rtol=1e-4, atol=1e-5)


def test_padding_without_a_mask_would_change_the_results():
    """The mask matters in this model, so the tests above would fail without it."""
    model = encoder()
    ids = tokens(5)
    padded = np.pad(ids, ((0, 0), (0, 3)))
    unmasked = model(padded, np.ones_like(padded))[:, :5]
    assert np.abs(unmasked - model(ids, np.ones_like(ids))).max() > 1e-3


def test_a_mask_of_another_sense_and_rank():
    lines = """
    pnnx.Input a 0 1 x #x=(2,2,?,?)f32
    pnnx.Input b 0 1 m #m=(2,1,?,?)f32
    pnnx.Expression e 2 1 x m s expr=add(@0,@1)
    F.softmax f 1 1 s y dim=-1
    pnnx.Output out 1 0 y
    """
    model = model_of(lines)
    run = kuiper.Buckets(
        model, [6], mask="m", axes={"x": (2, 3), "m": (2, 3)}, mask_values=(0, -1e9)
    )
    x = np.random.default_rng().normal(size=(2, 2, 4, 4)).astype(np.float32)
    mask = np.zeros((2, 1, 4, 4), np.float32)
    np.testing.assert_allclose(run(x, mask), model(x, mask), rtol=1e-6)
    with pytest.raises(InputError, match=r"only a mask of shape \(batch, length\) is made"):
        run(x)


def test_what_to_cut_is_proven_or_asked():
    model = model_of(SIZES)
    x = np.ones((2, 3), np.float32)
    with pytest.raises(InputError, match=r"output 'y' has shape \(2, 8\).*cut="):
        kuiper.Buckets(model, [4], mask=None)(x)
    y, total = kuiper.Buckets(model, [4], mask=None, cut=[None, None])(x)
    np.testing.assert_array_equal(y, [[1, 1, 1, 0, 1, 1, 1, 0]] * 2)
    np.testing.assert_array_equal(total, [3, 3])
    y, _ = kuiper.Buckets(model, [4], mask=None, cut=[1, None], pad=7)(x)
    np.testing.assert_array_equal(y, np.ones((2, 3)))
    _, total = kuiper.Buckets(model, [4], mask=None, cut=[1, None], pad={"x": 2})(x)
    np.testing.assert_array_equal(total, [5, 5])


def test_an_extent_that_equals_a_length_by_chance_is_kept():
    model = encoder()
    encode = kuiper.Buckets(model, [3, 8], mask=MASK)
    assert encode(tokens(2)).shape == (2, 2, 3)  # the last axis has 3 scores
    assert kuiper.Buckets(model, [3], mask=MASK)(tokens(2)).shape == (2, 2, 3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lengths": []}, r"lengths are \[\], expected integers of at least 1"),
        ({"lengths": [0, 8]}, "expected integers of at least 1"),
        ({"mask": "attention"}, "mask names the input 'attention', expected one of '0', '1'"),
        ({"axes": 2}, "input '0' of rank 2 has no axis 2"),
        ({"axes": -1}, "has no axis -1"),
        ({"axes": {}}, "axes names no input to pad"),
        ({"axes": {"ids": 1}}, "axes names the input 'ids'"),
        ({"pad": {"ids": 1}}, "pad names the input 'ids'"),
        ({"cut": [1, 1]}, "cut has 2 items, expected 1"),
    ],
)
def test_options_that_do_not_fit(options, message):
    with pytest.raises(InputError, match=message):
        kuiper.Buckets(encoder(), **{"lengths": [8], "mask": MASK, **options})


def test_inputs_that_do_not_fit():
    encode = kuiper.Buckets(encoder(), [8], mask=MASK)
    with pytest.raises(InputError, match="have length 9, expected up to 8; shorten"):
        encode(tokens(9))
    with pytest.raises(InputError, match="length 0"):
        encode(tokens(0))
    with pytest.raises(InputError, match=r"differ: 5 \(axis 1 of '0'\), 4 \(axis 1 of '1'\)"):
        encode(tokens(5), np.ones((2, 4), np.int64))
    with pytest.raises(InputError, match="expected 2"):
        encode()
    with pytest.raises(InputError, match="missing"):
        encode({MASK: tokens(5)})


def test_stacked_sequences_give_the_results_of_each():
    model = encoder()
    encode = kuiper.Buckets(model, [8], mask=MASK)
    first, second = tokens(6)[0], tokens(3)[0]
    ids, mask = stack([first, second])
    np.testing.assert_array_equal(mask.sum(1), [6, 3])
    got = encode(ids, mask)
    pair = np.stack([second, second])
    alone = model(pair, np.ones_like(pair))[0]
    np.testing.assert_allclose(got[1, :3], alone, rtol=1e-4, atol=1e-5)
    assert stack([np.array([1], np.int32)], pad=9)[0].dtype == np.int32
    assert stack([[1], [2, 3]], pad=9)[0].tolist() == [[1, 9], [2, 3]]


@pytest.mark.parametrize(("given", "message"), [([], "no sequence"), ([[[1]]], r"\(1, 1\)")])
def test_stack_refuses(given, message):
    with pytest.raises(InputError, match=message):
        stack(given)
