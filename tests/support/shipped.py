"""The models in ``examples/models`` and the input on which their goldens were computed."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .paths import DATA, ROOT

__all__ = ["GOLDENS", "MODELS", "SAMPLE_OF_SHIPPED", "SHIPPED", "Shipped", "picture_input"]

MODELS = ROOT / "examples" / "models"

GOLDENS = DATA / "shipped.npz"

# Number of stored values of an output larger than that.
SAMPLE_OF_SHIPPED = 6000


class Shipped(NamedTuple):
    """Preprocessing of a model: (pixel / 255 - mean) / std of `extent` x `extent` pixels.

    `rtol` is the tolerance of an engine; PyTorch itself is off by 4e-5 in float32 on the two
    segmentation models and by less than 1e-6 on the others.
    """

    extent: int
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    bgr: bool = False
    rtol: float = 2e-5


_IMAGENET = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}

SHIPPED = {
    "mobilenet_v2": Shipped(224, **_IMAGENET),
    "squeezenet_v1.1": Shipped(227, (0.408, 0.459, 0.482), (1 / 255,) * 3, bgr=True),
    "nanodet_m": Shipped(320, (0.406, 0.456, 0.485), (0.225, 0.224, 0.229), bgr=True),
    "u2netp": Shipped(320, **_IMAGENET, rtol=1e-4),
    "selfie_segmentation": Shipped(256, (0.0, 0.0, 0.0), (1.0, 1.0, 1.0), rtol=1e-4),
}


def picture_input(model: Shipped, picture: np.ndarray) -> np.ndarray:
    """Return the (1, 3, extent, extent) float32 input for an RGB picture.

    Resizes by taking the pixel above and to the left, so that no library affects the numbers.
    """
    rows = np.arange(model.extent) * picture.shape[0] // model.extent
    columns = np.arange(model.extent) * picture.shape[1] // model.extent
    pixels = picture[rows][:, columns].astype(np.float32)
    pixels = pixels[..., ::-1] if model.bgr else pixels
    mean, std = np.float32(model.mean), np.float32(model.std)
    values = (pixels / np.float32(255) - mean) / std
    return np.ascontiguousarray(values.transpose(2, 0, 1)[None])
