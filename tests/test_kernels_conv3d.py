"""The convolution of volumes by itself, against the numpy reference."""

from __future__ import annotations

import numpy as np
import pytest

from kuiper._kernels.conv3d import conv3d
from kuiper.errors import InputError

from .reference.convolution import conv3d as expected
from .support import assert_close
from .workbench import ISAS, isa, noise


@pytest.mark.parametrize("variant", ISAS)
@pytest.mark.parametrize("n_threads", [1, 2, 3])
def test_volumes(variant, n_threads):
    x, weight, bias = noise((2, 4, 5, 6, 7)), noise((33, 7, 3, 2, 3), 1), noise((33,), 2)
    options = {"stride": (1, 2, 1), "padding": (1, 0, 2)}
    with isa(variant):
        y = conv3d(x, weight, bias, **options, n_threads=n_threads)
    reference = expected(
        x.transpose(0, 4, 1, 2, 3).astype(np.float64),
        weight.astype(np.float64),
        bias,
        **options,
        dilation=(1, 1, 1),
        groups=1,
    )
    assert_close(y.transpose(0, 4, 1, 2, 3), reference, 1e-5, "conv3d")


@pytest.mark.parametrize(
    ("x", "weight", "options"),
    [
        ((1, 4, 4, 4, 3), (5, 2, 3, 3, 3), {}),
        ((1, 4, 4, 4, 3), (5, 3, 5, 1, 1), {}),
        ((1, 4, 4, 4, 3), (5, 3, 1, 1, 1), {"stride": (1, 0, 1)}),
        ((1, 4, 4, 4, 3), (5, 3, 1, 1, 1), {"bias": np.zeros(4, np.float32)}),
    ],
)
def test_what_does_not_fit_is_refused(x, weight, options):
    with pytest.raises(InputError):
        conv3d(noise(x), noise(weight), **options)
