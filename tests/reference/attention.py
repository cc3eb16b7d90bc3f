"""Attention: the function and the multi-head module."""

from __future__ import annotations

import numpy as np

from .activation import erf
from .registry import reference


@reference("F.scaled_dot_product_attention")
def scaled_dot_product_attention(
    query, key, value, attn_mask=None, is_causal=False, scale=None, enable_gqa=False, **_
):
    """Return softmax(scale Q K^T + mask) V; a row whose keys are all masked is zero."""
    if enable_gqa:
        repeats = query.shape[-3] // key.shape[-3]
        key, value = (np.repeat(x, repeats, axis=-3) for x in (key, value))
    if scale is None:
        scale = query.shape[-1] ** -0.5
    scores = np.matmul(query, np.swapaxes(key, -1, -2)) * scale
    if is_causal:
        scores = np.where(np.tri(*scores.shape[-2:], dtype=bool), scores, -np.inf)
    if attn_mask is not None and attn_mask.dtype == bool:
        scores = np.where(attn_mask, scores, -np.inf)
    elif attn_mask is not None:
        scores = scores + attn_mask
    return np.matmul(_softmax(scores), value)


def _softmax(scores):
    peak = scores.max(axis=-1, keepdims=True)
    powers = np.exp(scores - np.where(np.isinf(peak), 0, peak))
    total = powers.sum(axis=-1, keepdims=True)
    return powers / np.where(total == 0, 1, total)


@reference("nn.MultiheadAttention")
def multihead_attention(
    query=None,
    key=None,
    value=None,
    *,
    input=None,
    num_heads,
    embed_dim,
    attn_mask=None,
    batch_first=False,
    in_proj_bias=None,
    bias_k=None,
    bias_v=None,
    add_zero_attn=False,
    multiply=lambda x, weight: np.matmul(x, weight.T),
    **weights,
):
    """Return the attended values and the softmax averaged over heads.

    In a file, a constant mask is the first input although the last one is called the mask.
    `multiply` is the product of the linear layers.
    """
    query = input if query is None else query
    if attn_mask is not None and (query.dtype == bool or query.shape[-1] != embed_dim):
        inputs = [x for x in (query, key, value, attn_mask) if x is not None]
        attn_mask, query, key, value = [*inputs, None, None][:4]
    key = query if key is None else key
    value = key if value is None else value
    if query.ndim == 2:
        inputs = [x[None] for x in (query, key, value)]
    elif batch_first:
        inputs = [query, key, value]
    else:
        inputs = [x.swapaxes(0, 1) for x in (query, key, value)]
    if "in_proj_weight" in weights:
        projections = np.split(weights["in_proj_weight"], 3)
    else:
        projections = [weights[f"{letter}_proj_weight"] for letter in "qkv"]
    biases = np.zeros((3, embed_dim)) if in_proj_bias is None else in_proj_bias.reshape(3, -1)
    q, k, v = (
        multiply(x, w) + bias for x, w, bias in zip(inputs, projections, biases, strict=True)
    )
    if bias_k is not None:
        k, v = _append(k, bias_k), _append(v, bias_v)
    if add_zero_attn:
        k, v = _append(k, 0.0), _append(v, 0.0)
    # (n, length, e) -> (n, heads, length, e / heads)
    q, k, v = (x.reshape(*x.shape[:2], num_heads, -1).swapaxes(1, 2) for x in (q, k, v))
    scores = np.matmul(q, k.swapaxes(2, 3)) / np.sqrt(embed_dim // num_heads)
    if attn_mask is not None:
        if attn_mask.dtype == bool:
            attn_mask = np.where(attn_mask, -np.inf, 0.0)
        n, _, queries, keys = scores.shape
        if attn_mask.ndim == 2 and attn_mask.shape == (n, keys) and n != queries:
            attn_mask = attn_mask[:, None, None]  # a key padding mask under the other name
        if attn_mask.ndim == 3:
            attn_mask = attn_mask.reshape(-1, num_heads, *attn_mask.shape[1:])
        scores[..., : attn_mask.shape[-1]] += attn_mask
    softmax = _softmax(scores)
    y = np.matmul(softmax, v).swapaxes(1, 2).reshape(*inputs[0].shape[:2], embed_dim)
    y = multiply(y, weights["out_proj.weight"]) + weights.get("out_proj.bias", 0.0)
    average = softmax.mean(axis=1)
    if query.ndim == 2:
        return y[0], average[0]
    return (y if batch_first else y.swapaxes(0, 1)), average


def _append(x, row):
    return np.concatenate([x, np.broadcast_to(row, (x.shape[0], 1, x.shape[2]))], axis=1)


@reference("aten::_transformer_encoder_layer_fwd")
def encoder_layer(x, width, heads, *rest):
    """Self-attention, then two linear layers, each with a residual and a normalisation."""
    qkv, proj, (use_gelu, norm_first, eps) = rest[:2], rest[2:4], rest[4:7]
    norms, up, down = (rest[7:9], rest[9:11]), rest[11:13], rest[13:15]
    mask, mask_type = (*rest[15:], None, None)[:2]

    def norm(x, weight, bias):
        centred = x - x.mean(-1, keepdims=True)
        return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + eps) * weight + bias

    def attend(x):
        hidden = None
        if mask is not None:
            n, length, _ = x.shape
            shape = (n, 1, 1, length) if mask_type == 1 else (1, 1, *mask.shape)[-4:]
            hidden = np.broadcast_to((mask != 0).reshape(shape), (n, heads, length, length))
            hidden = hidden.reshape(-1, length, length)
        weights = {"in_proj_weight": qkv[0], "out_proj.weight": proj[0], "out_proj.bias": proj[1]}
        options = {"num_heads": heads, "embed_dim": width, "in_proj_bias": qkv[1]}
        return multihead_attention(x, attn_mask=hidden, batch_first=True, **options, **weights)[0]

    def feed(x):
        y = x @ up[0].T + up[1]
        y = y * (1 + erf(y / np.sqrt(2))) / 2 if use_gelu else np.maximum(y, 0)
        return y @ down[0].T + down[1]

    if norm_first:
        x = x + attend(norm(x, *norms[0]))
        return x + feed(norm(x, *norms[1]))
    x = norm(x + attend(x), *norms[0])
    return norm(x + feed(x), *norms[1])
