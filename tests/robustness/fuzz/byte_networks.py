"""Quantized networks, from which the target ``model`` starts beside single operators.

Their conversions and their products stand in rows, so that the passes that keep tensors in bytes
have work: a damaged scale, zero point or type makes a pattern that almost fits.
"""

from __future__ import annotations

import io
from typing import Any, NamedTuple

import kuiper

from ...support.textgraph import conv, files_of, linear, model_of, text, values

__all__ = ["ByteNetwork", "byte_networks"]

IMAGE = (1, 4, 6, 6)
IMAGES = text(
    conv("a", "x", "p", 4, 8, kernel=3, padding=1), "nn.SiLU b 1 1 p q",
    conv("c", "q", "r", 8, 8), "pnnx.Expression d 2 1 r q s expr=add(@0,@1)",
    "nn.MaxPool2d e 1 1 s t kernel_size=(2,2) stride=(2,2)",
    "nn.UpsamplingNearest2d f 1 1 t u scale_factor=(2,2)", "torch.cat g 2 1 u s v dim=1",
    conv("h", "v", "w", 16, 8), "nn.PixelUnshuffle i 1 1 w z downscale_factor=2",
    "torch.tensor_split j 1 2 z m n dim=1 indices=(16)", conv("k", "m", "y", 16, 4),
    conv("l", "n", "o", 16, 4), outputs=("y", "o"),
)  # fmt: skip
ROW = (2, 3, 64)
ROWS = text(
    "nn.LayerNorm a 1 1 x p elementwise_affine=True eps=1e-5 normalized_shape=(64) "
    "@bias=(64)f32 @weight=(64)f32",
    "nn.MultiheadAttention b 1 1 p q embed_dim=64 num_heads=4 batch_first=True "
    "@in_proj_bias=(192)f32 @in_proj_weight=(192,64)f32 @out_proj.bias=(64)f32 "
    "@out_proj.weight=(64,64)f32",
    "pnnx.Expression c 2 1 q x r expr=add(@0,@1)", linear("d", "r", "s", 64, 64),
    "nn.GELU e 1 1 s t", linear("f", "t", "y", 64, 64),
)  # fmt: skip
# Passes turn all but the ends into expressions of bytes.
ARITHMETIC = text(
    "kuiper.QuantizeLinear a 1 1 x p scale=0.02 zero_point=100",
    "kuiper.DequantizeLinear b 1 1 p q scale=0.02 zero_point=100",
    "pnnx.Expression c 2 1 q x r expr=mul(tanh(@0),@1)",
    "kuiper.QuantizeLinear d 1 1 r s scale=0.05 zero_point=3",
    "kuiper.DequantizeLinear e 1 1 s t scale=0.05 zero_point=3",
    "kuiper.QuantizeLinear f 1 1 t u scale=0.1 zero_point=9",
    "kuiper.DequantizeLinear g 1 1 u y scale=0.1 zero_point=9",
)


class ByteNetwork(NamedTuple):
    """The files of a network, and the ranges of its inputs as the index of a case has them."""

    param: bytes
    bin: bytes
    index: dict[str, Any]


def byte_networks() -> tuple[ByteNetwork, ...]:
    """Return the networks."""
    networks = []
    for lines, shape in ((IMAGES, IMAGE), (ROWS, ROW)):
        model = model_of(_noted(lines, shape))
        model = kuiper.quantize(model, [values(*shape, seed=seed) for seed in range(2)])
        files = io.BytesIO(), io.BytesIO()
        kuiper.save(model, *files)
        networks.append(tuple(file.getvalue() for file in files))
    networks.append(files_of(_noted(ARITHMETIC, (2, 7))))
    index = {"inputs": [{"low": -3.0, "high": 3.0}]}
    return tuple(ByteNetwork(*files, index) for files in networks)


def _noted(lines: str, shape: tuple[int, ...]) -> str:
    """Note the shape of the input."""
    extents = ",".join(map(str, shape))
    return lines.replace("0 1 x", f"0 1 x #x=({extents})f32", 1)
