"""The comparison that all other tests use, on results that it must accept or refuse."""

import numpy as np
import pytest

from ..support import Golden, assert_close, assert_outputs, assert_same_bits, integers, uniform
from ..support.cases import sample_positions

EXPECTED = uniform("what is compared", (2, 3, 4, 5), -2, 2)


def test_accepts_equal_and_nearly_equal():
    assert_close(EXPECTED, EXPECTED)
    assert_close(EXPECTED + np.float32(1e-6), EXPECTED)


def test_the_tolerance_is_relative_to_the_largest_value():
    expected = np.array([1000.0, 1e-3], np.float32)
    assert_close(expected + np.float32(5e-3), expected, rtol=1e-5)
    with pytest.raises(AssertionError, match=r"off by 0\.02 at \(1,\)"):
        assert_close(expected + np.array([0, 0.02], np.float32), expected, rtol=1e-5)


def _with(index, value):
    changed = EXPECTED.copy()
    changed[index] = value
    return changed


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param(_with((1, 2, 3, 4), np.nan), id="nan"),
        pytest.param(_with((0, 0, 0, 0), np.inf), id="inf"),
        pytest.param(_with((0, 1, 0, 0), 0), id="one value"),
        pytest.param(EXPECTED + np.float32(1), id="off by one"),
        pytest.param(EXPECTED[:, [1, 0, 2]], id="swapped channels"),
        pytest.param(np.roll(EXPECTED, 1, axis=-1), id="shifted by one"),
        pytest.param(EXPECTED * np.float32(1.0001), id="scaled"),
        pytest.param(np.zeros_like(EXPECTED), id="zeros"),
        pytest.param(EXPECTED[:1], id="a batch is missing"),
        pytest.param(EXPECTED.reshape(2, 3, 20), id="another shape"),
        pytest.param(EXPECTED[0, 0, 0, 0], id="would broadcast"),
        pytest.param(EXPECTED.astype(np.int64), id="another dtype"),
    ],
)
def test_refuses(wrong):
    with pytest.raises(AssertionError):
        assert_close(wrong, EXPECTED)


def test_nan_and_infinity_must_be_at_the_same_indices():
    expected = np.array([np.nan, np.inf, -np.inf, 1.0], np.float32)
    assert_close(expected.copy(), expected)
    for wrong in (
        [0, np.inf, -np.inf, 1],
        [np.nan, -np.inf, -np.inf, 1],
        [np.nan, 3e38, -np.inf, 1],
    ):
        with pytest.raises(AssertionError):
            assert_close(np.array(wrong, np.float32), expected)
    with pytest.raises(AssertionError):
        assert_close(np.array([np.nan, np.inf, -np.inf, 1.1], np.float32), expected)


def test_integers_must_be_equal():
    expected = integers("indices", (3, 4), 0, 1000)
    assert_close(expected.copy(), expected)
    with pytest.raises(AssertionError, match="1 of 12 elements are wrong"):
        assert_close(
            expected + np.eye(3, 4, dtype=np.int64) * (expected == expected[0, 0]), expected
        )


def test_a_missing_output_is_an_error():
    with pytest.raises(AssertionError, match="1 outputs, expected 2"):
        assert_outputs([EXPECTED], [EXPECTED, EXPECTED])


def test_a_sampled_golden_detects_a_swapped_channel():
    expected = uniform("large", (1, 64, 14, 14))
    positions = sample_positions(expected.size)
    golden = Golden(expected.shape, positions, expected.reshape(-1)[positions])
    golden.assert_matches(expected, 1e-6, "same")
    swapped = expected.copy()
    swapped[:, [16, 17]] = expected[:, [17, 16]]
    with pytest.raises(AssertionError):
        golden.assert_matches(swapped, 1e-2, "swapped")
    with pytest.raises(AssertionError, match="shape"):
        golden.assert_matches(expected.reshape(64, 14, 14), 1e-2, "reshaped")


def test_noise_is_reproducible_and_varies():
    noise = uniform("key", (1000,), -1, 1)
    assert noise.dtype == np.float32
    assert noise[:3].tolist() == [0.8783080577850342, 0.7487162351608276, 0.5091215372085571]
    assert 0.5 < noise.std() < 0.65
    assert np.abs(noise.mean()) < 0.1
    assert not np.array_equal(noise, uniform("other key", (1000,), -1, 1))
    counts = np.bincount(integers("key", (1000,), 0, 4), minlength=4)
    assert counts.size == 4
    assert counts.min() > 200


def test_same_bits_detects_the_last_bit_and_the_sign_of_zero():
    nan = np.array([np.nan, 0.0], np.float32)
    assert_same_bits([nan], [nan.copy()], "equal")
    for wrong in (nan[:1], nan.astype(np.float64), np.array([np.nan, -0.0], np.float32)):
        with pytest.raises(AssertionError):
            assert_same_bits([wrong], [nan], "different")
    nearly = np.nextafter(EXPECTED, np.float32(10))
    with pytest.raises(AssertionError, match="differ"):
        assert_same_bits([nearly], [EXPECTED], "nearly")
