"""A transformer encoder of any sequence length, as pnnx writes it for two example lengths."""

import io
import zipfile

import numpy as np

import kuiper

from .textgraph import files_of

__all__ = ["encoder", "tokens"]

# Token ids and a mask, 1 for tokens: embeddings, one layer of attention, three scores per token.
ENCODER = """
pnnx.Input pnnx_input_0 0 1 0 #0=(2,?)i64
pnnx.Input pnnx_input_1 0 1 1 #1=(2,?)i64
pnnx.Attribute ids 0 1 2 @data=(1,128)i64
nn.Embedding w 1 1 0 3 embedding_dim=8 num_embeddings=40 sparse=False @weight=(40,8)f32
pnnx.Expression pnnx_expr_64 1 1 0 4 expr=size(@0,1) $input=0
Tensor.slice Tensor.slice_26 2 1 2 4 5 dim=1 start=0 step=1 $input=2 $end=4
nn.Embedding p 1 1 5 6 embedding_dim=8 num_embeddings=128 sparse=False @weight=(128,8)f32
torch.zeros_like torch.zeros_like_12 1 1 0 7 dtype=None $input=0
nn.Embedding t 1 1 7 8 embedding_dim=8 num_embeddings=2 sparse=False @weight=(2,8)f32
pnnx.Expression pnnx_expr_55 3 1 3 6 8 9 expr=add(add(@0,@1),@2)
nn.LayerNorm n 1 1 9 10 elementwise_affine=True eps=1.000000e-5 normalized_shape=(8) @bias=(8)f32 @weight=(8)f32
Tensor.reshape torch.unsqueeze_24 1 1 1 11 shape=(2,1,1,-1) $input=1
Tensor.to Tensor.to_21 1 1 11 12 copy=False dtype=torch.float $input=11
nn.Linear l.0.a.q 1 1 10 13 bias=True in_features=8 out_features=8 @bias=(8)f32 @weight=(8,8)f32
Tensor.reshape Tensor.reshape_17 1 1 13 14 shape=(2,-1,2,4)
Tensor.permute Tensor.permute_13 1 1 14 15 dims=(0,2,1,3) $input=14
nn.Linear l.0.a.k 1 1 10 16 bias=True in_features=8 out_features=8 @bias=(8)f32 @weight=(8,8)f32
Tensor.reshape Tensor.reshape_18 1 1 16 17 shape=(2,-1,2,4)
nn.Linear l.0.a.v 1 1 10 18 bias=True in_features=8 out_features=8 @bias=(8)f32 @weight=(8,8)f32
Tensor.reshape Tensor.reshape_19 1 1 18 19 shape=(2,-1,2,4)
Tensor.permute Tensor.permute_15 1 1 19 20 dims=(0,2,1,3) $input=19
Tensor.permute torch.transpose_22 1 1 17 21 dims=(0,2,3,1) $input=17
torch.matmul torch.matmul_29 2 1 15 21 22 $input=15 $other=21
pnnx.Expression pnnx_expr_8 2 1 22 12 23 expr=add(div(@0,2.0),mul(sub(1.0,@1),-1.000000e9))
F.softmax F.softmax_31 1 1 23 24 dim=-1 $input=23
torch.matmul torch.matmul_30 2 1 24 20 25 $input=24 $other=20
Tensor.permute Tensor.permute_16 1 1 25 26 dims=(0,2,1,3) $input=25
Tensor.reshape Tensor.reshape_20 1 1 26 27 shape=(2,-1,8)
nn.Linear l.0.a.o 1 1 27 28 bias=True in_features=8 out_features=8 @bias=(8)f32 @weight=(8,8)f32
pnnx.Expression pnnx_expr_2 2 1 10 28 29 expr=add(@0,@1)
nn.LayerNorm l.0.n1 1 1 29 30 elementwise_affine=True eps=1.000000e-5 normalized_shape=(8) @bias=(8)f32 @weight=(8)f32
nn.Linear l.0.f1 1 1 30 31 bias=True in_features=8 out_features=12 @bias=(12)f32 @weight=(12,8)f32
nn.GELU l.0.g 1 1 31 32
nn.Linear l.0.f2 1 1 32 33 bias=True in_features=12 out_features=8 @bias=(8)f32 @weight=(8,12)f32
pnnx.Expression pnnx_expr_0 2 1 30 33 34 expr=add(@0,@1)
nn.LayerNorm l.0.n2 1 1 34 35 elementwise_affine=True eps=1.000000e-5 normalized_shape=(8) @bias=(8)f32 @weight=(8)f32
nn.Linear c 1 1 35 36 bias=True in_features=8 out_features=3 @bias=(3)f32 @weight=(3,8)f32
pnnx.Output pnnx_output_0 1 0 36
"""  # noqa: E501


def encoder(**options) -> kuiper.Model:
    """Return the model; `options` are those of kuiper.load."""
    param, weights = files_of(ENCODER)
    archive = io.BytesIO(weights)
    with zipfile.ZipFile(archive, "a") as file:  # of the weights, only floats are noise
        file.writestr("ids.data", np.arange(128).tobytes())
    return kuiper.load(param, archive.getvalue(), **options)


def tokens(length: int, seed: int = 0) -> np.ndarray:
    """Return ids of shape (2, length)."""
    return np.random.default_rng([seed, length]).integers(0, 40, (2, length))
