"""The networks of the zoo that no package has: U-Nets, YOLOv5, text and audio.

They are written as in common repositories, so that the exporter meets the same operators. Sizes are
small because weights are seeded. Needs torch. The module is long: it has one class per network.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from common import images
from networks.vision import ConvSiLU, DoubleConv, UNet, YOLOv5s

Inputs = tuple[np.ndarray, ...]


@dataclass(frozen=True)
class Network:
    """How to build a network and draw its inputs.

    Attributes
    ----------
    build : callable
        Returns the module.
    draw : callable
        ``draw(batch, seed)`` returns its inputs.
    options : tuple of str
        More arguments for pnnx.
    second : callable, optional
        Inputs of other sizes; pnnx then frees the extents that differ.
    others : dict of str to callable
        More inputs to run the same file with, by label; by default a batch of three.
    """

    build: Callable[[], nn.Module]
    draw: Callable[[int, int], Inputs]
    options: tuple[str, ...] = ()
    second: Callable[[int, int], Inputs] | None = None
    others: tuple[tuple[str, Callable[[int, int], Inputs]], ...] = ()


def pictures(*shape: int) -> Callable[[int, int], Inputs]:
    """Return a function that draws images of this shape, (channels, height, width)."""
    return lambda batch, seed: (images((batch, *shape), seed),)


def tokens(length: int, vocabulary: int = 200) -> Callable[[int, int], Inputs]:
    """Return a function that draws sequences of token ids."""
    return lambda batch, seed: (
        np.random.default_rng(seed).integers(1, vocabulary, (batch, length)),
    )


def token_pairs(first: int, second: int) -> Callable[[int, int], Inputs]:
    """Return a function that draws two sequences of token ids, for an encoder and a decoder."""
    return lambda batch, seed: (*tokens(first)(batch, seed), *tokens(second)(batch, seed + 50))


def padded_tokens(length: int) -> Callable[[int, int], Inputs]:
    """Return a function that draws sequences of token ids and their mask, 0 after the end."""

    def draw(batch: int, seed: int) -> Inputs:
        (ids,) = tokens(length)(batch, seed)
        ends = np.random.default_rng(seed + 9).integers(length // 2, length, (batch, 1))
        return ids, (np.arange(length) < ends).astype(np.int64)

    return draw


def sound(*shape: int) -> Callable[[int, int], Inputs]:
    """Return a function that draws mono sound of this shape: a few fading tones and noise."""

    def draw(batch: int, seed: int) -> Inputs:
        generator = np.random.default_rng(seed)
        time = np.arange(shape[-1]) / 8000.0
        waves = generator.standard_normal((batch, *shape)) * 0.1
        for _ in range(4):
            pitch, phase = generator.uniform(80, 3000), generator.uniform(0, 6)
            swell = np.sin(generator.uniform(2, 9) * time + phase)
            weight = generator.standard_normal((batch, *[1] * len(shape)))
            waves += weight * swell * np.sin(2 * np.pi * pitch * time)
        return (waves.astype(np.float32),)

    return draw


# -- segmentation ------------------------------------------------------------------------------


class BilinearUNet(nn.Module):
    """U-Net that resizes on the way up and pads if pooling has rounded an odd size down."""

    def __init__(self, channels: int = 3, classes: int = 2, base: int = 16):
        super().__init__()
        self.stem = DoubleConv(channels, base)
        widths = [base, base * 2, base * 4, base * 8, base * 8]
        self.down = nn.ModuleList(
            nn.Sequential(nn.MaxPool2d(2), DoubleConv(a, b)) for a, b in pairwise(widths)
        )
        self.up = nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True)
        self.merge = nn.ModuleList(
            DoubleConv(a * 2, b)
            for a, b in ((base * 8, base * 4), (base * 4, base * 2), (base * 2, base), (base, base))
        )
        self.head = nn.Conv2d(base, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        levels = [self.stem(x)]
        for block in self.down:
            levels.append(block(levels[-1]))
        y = levels.pop()
        for merge in self.merge:
            y, skip = self.up(y), levels.pop()
            rows, columns = skip.shape[2] - y.shape[2], skip.shape[3] - y.shape[3]
            y = F.pad(y, [columns // 2, columns - columns // 2, rows // 2, rows - rows // 2])
            y = merge(torch.cat([skip, y], dim=1))
        return self.head(y)


class PaddedUNet(UNet):
    """U-Net with transposed convolutions that takes odd sizes."""

    def forward(self, x: Tensor) -> Tensor:
        levels = [self.stem(x)]
        for block in self.down:
            levels.append(block(levels[-1]))
        y = levels.pop()
        for up, merge in zip(self.up, self.merge, strict=True):
            y, skip = up(y), levels.pop()
            rows, columns = skip.shape[2] - y.shape[2], skip.shape[3] - y.shape[3]
            y = F.pad(y, [columns // 2, columns - columns // 2, rows // 2, rows - rows // 2])
            y = merge(torch.cat([skip, y], dim=1))
        return self.head(y)


class AttentionUNet(nn.Module):
    """U-Net of three levels whose skips pass a gate, with interpolation to a given size."""

    def __init__(self, base: int = 16):
        super().__init__()
        self.enc = nn.ModuleList(
            DoubleConv(a, b) for a, b in ((3, base), (base, base * 2), (base * 2, base * 4))
        )
        self.gate_skip = nn.ModuleList(nn.Conv2d(c, base, 1) for c in (base * 2, base))
        self.gate_up = nn.ModuleList(nn.Conv2d(c, base, 1) for c in (base * 4, base * 2))
        self.psi = nn.ModuleList(nn.Conv2d(base, 1, 1) for _ in range(2))
        self.dec = nn.ModuleList((DoubleConv(base * 6, base * 2), DoubleConv(base * 3, base)))
        self.head = nn.Conv2d(base, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        a = self.enc[0](x)
        b = self.enc[1](F.max_pool2d(a, 2))
        y = self.enc[2](F.max_pool2d(b, 2))
        for index, skip in enumerate((b, a)):
            y = F.interpolate(y, size=skip.shape[2:], mode="bilinear", align_corners=False)
            gate = torch.relu(self.gate_skip[index](skip) + self.gate_up[index](y))
            skip = skip * torch.sigmoid(self.psi[index](gate))
            y = self.dec[index](torch.cat((skip, y), 1))
        return torch.sigmoid(self.head(y))


# -- detection ---------------------------------------------------------------------------------

ANCHORS = (
    ((10, 13), (16, 30), (33, 23)),
    ((30, 61), (62, 45), (59, 119)),
    ((116, 90), (156, 198), (373, 326)),
)


class Detect(nn.Module):
    """The head of YOLOv5: a 1x1 convolution per scale, and boxes instead of offsets."""

    def __init__(self, widths: tuple[int, ...], classes: int = 80):
        super().__init__()
        self.outputs = classes + 5
        self.m = nn.ModuleList(nn.Conv2d(width, self.outputs * 3, 1) for width in widths)
        # No buffers, which would get seeded weights.
        self.strides = torch.tensor([8.0, 16.0, 32.0])
        self.anchors = torch.tensor(ANCHORS, dtype=torch.float32)
        self.constants: dict[tuple, tuple[Tensor, Tensor]] = {}

    def forward(self, maps: list[Tensor]) -> Tensor:
        found = []
        for level, (conv, x) in enumerate(zip(self.m, maps, strict=True)):
            x = conv(x)
            n, _, rows, columns = x.shape
            x = x.view(n, 3, self.outputs, rows, columns).permute(0, 1, 3, 4, 2).contiguous()
            grid, anchors = self.grid(level, int(rows), int(columns))
            xy, wh, scores = x.sigmoid().split((2, 2, self.outputs - 4), 4)
            xy = (xy * 2 + grid) * self.strides[level]
            wh = (wh * 2) ** 2 * anchors
            found.append(torch.cat((xy, wh, scores), 4).view(n, -1, self.outputs))
        return torch.cat(found, 1)

    def grid(self, level: int, rows: int, columns: int) -> tuple[Tensor, Tensor]:
        """Return column and row of each cell, and its anchors; a trace has them as constants."""
        key = level, rows, columns
        if key not in self.constants:
            shape = (1, 3, rows, columns, 2)
            y, x = torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij")
            grid = torch.stack((x, y), 2).expand(shape) - 0.5
            anchors = self.anchors[level].view(1, 3, 1, 1, 2).expand(shape)
            self.constants[key] = grid, anchors
        return self.constants[key]


# pnnx keeps a class as one operator under the name that it has in the YOLOv5 repository.
Detect.__module__ = "models.yolo"


class YOLOv5(YOLOv5s):
    """YOLOv5 n or s with its head: (n, 3, 640, 640) -> (n, 25200, 85)."""

    def __init__(self, base: int):
        super().__init__(1, base)
        del self.heads
        self.detect = Detect((base * 4, base * 8, base * 16))

    def forward(self, x: Tensor) -> Tensor:
        x = self.stage2(self.down2(self.stem(x)))
        x3 = self.stage3(self.down3(x))
        x4 = self.stage4(self.down4(x3))
        x5 = self.lateral5(self.sppf(self.stage5(self.down5(x4))))
        y4 = self.lateral4(self.merge4(torch.cat((self.up(x5), x4), 1)))
        y3 = self.merge3(torch.cat((self.up(y4), x3), 1))
        z4 = self.out4(torch.cat((self.reduce3(y3), y4), 1))
        z5 = self.out5(torch.cat((self.reduce4(z4), x5), 1))
        return self.detect([y3, z4, z5])


# -- text --------------------------------------------------------------------------------------


class Bert(nn.Module):
    """Token and position embeddings, nn.TransformerEncoder, a pooled and a per-token result."""

    def __init__(self, vocabulary=200, width=128, heads=4, depth=3, longest=64, masked=False):
        super().__init__()
        self.words = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(longest, width)
        self.norm = nn.LayerNorm(width, eps=1e-12)
        layer = nn.TransformerEncoderLayer(
            width, heads, width * 4, dropout=0.1, activation="gelu", batch_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.pooler = nn.Linear(width, width)
        self.classify = nn.Linear(width, 3)
        self.masked = masked

    def forward(self, ids: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        positions = torch.arange(ids.shape[1], device=ids.device).unsqueeze(0)
        x = self.norm(self.words(ids) + self.positions(positions))
        x = self.encoder(x, src_key_padding_mask=(mask == 0) if self.masked else None)
        return self.classify(torch.tanh(self.pooler(x[:, 0]))), x


class HandBertLayer(nn.Module):
    """A layer as written in many repositories: three projections, matmul, softmax."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.output = nn.Linear(width, width)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, width * 4), nn.Linear(width * 4, width)

    def split(self, x: Tensor) -> Tensor:
        n, length, width = x.shape
        return x.view(n, length, self.heads, width // self.heads).permute(0, 2, 1, 3)

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        q, k, v = self.split(self.query(x)), self.split(self.key(x)), self.split(self.value(x))
        scores = torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(q.shape[-1])
        context = torch.matmul(torch.softmax(scores + bias, dim=-1), v)
        context = context.permute(0, 2, 1, 3).contiguous().view(x.shape)
        x = self.norm1(x + self.output(context))
        return self.norm2(x + self.down(F.gelu(self.up(x))))


class HandBert(nn.Module):
    """Hand-written BERT with token types and an additive mask made from the input's."""

    def __init__(self, vocabulary=200, width=128, heads=4, depth=2, longest=64):
        super().__init__()
        self.words = nn.Embedding(vocabulary, width, padding_idx=0)
        self.positions = nn.Embedding(longest, width)
        self.types = nn.Embedding(2, width)
        self.norm = nn.LayerNorm(width)
        self.register_buffer("ids", torch.arange(longest).expand(1, -1))
        self.layers = nn.ModuleList(HandBertLayer(width, heads) for _ in range(depth))

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        length = ids.size(1)
        x = self.words(ids) + self.types(torch.zeros_like(ids))
        x = self.norm(x + self.positions(self.ids[:, :length]))
        bias = (1.0 - mask[:, None, None, :].to(torch.float32)) * -10000.0
        for layer in self.layers:
            x = layer(x, bias)
        return x


class GPT2(nn.Module):
    """Decoder of nn.TransformerEncoderLayer with a causal mask; the output reuses the embedding."""

    def __init__(self, vocabulary=200, width=128, heads=4, depth=3, longest=64, tied=True):
        super().__init__()
        self.words = nn.Embedding(vocabulary, width)
        self.positions = nn.Parameter(torch.zeros(1, longest, width))
        layer = nn.TransformerEncoderLayer(
            width, heads, width * 4, activation=F.gelu, batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(
            layer, depth, nn.LayerNorm(width), enable_nested_tensor=False
        )
        self.head = nn.Linear(width, vocabulary, bias=False)
        if tied:
            self.head.weight = self.words.weight

    def forward(self, ids: Tensor) -> Tensor:
        length = ids.shape[1]
        x = self.words(ids) + self.positions[:, :length]
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        return self.head(self.blocks(x, mask=mask, is_causal=True))


class HandGPT2Block(nn.Module):
    """A block with one projection for query, key and value, and a stored triangular mask."""

    def __init__(self, width: int, heads: int, longest: int, gelu: bool):
        super().__init__()
        self.heads, self.gelu = heads, gelu
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attend, self.project = nn.Linear(width, width * 3), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, width * 4), nn.Linear(width * 4, width)
        triangle = torch.tril(torch.ones(longest, longest)).view(1, 1, longest, longest)
        self.register_buffer("triangle", triangle)

    def forward(self, x: Tensor) -> Tensor:
        n, length, width = x.size()
        q, k, v = self.attend(self.norm1(x)).split(width, dim=2)
        q, k, v = (
            t.view(n, length, self.heads, width // self.heads).transpose(1, 2) for t in (q, k, v)
        )
        scores = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        scores = scores.masked_fill(self.triangle[:, :, :length, :length] == 0, float("-inf"))
        y = F.softmax(scores, dim=-1) @ v
        x = x + self.project(y.transpose(1, 2).contiguous().view(n, length, width))
        h = self.up(self.norm2(x))
        if self.gelu:
            h = F.gelu(h, approximate="tanh")
        else:
            h = 0.5 * h * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (h + 0.044715 * h**3)))
        return x + self.down(h)


class HandGPT2(nn.Module):
    """Hand-written GPT-2; returns only the scores of the next token."""

    def __init__(self, vocabulary=200, width=128, heads=4, depth=2, longest=64, gelu=False):
        super().__init__()
        self.words, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(longest, width)
        self.blocks = nn.ModuleList(
            HandGPT2Block(width, heads, longest, gelu) for _ in range(depth)
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids) + self.positions(torch.arange(0, ids.size(1), dtype=torch.long))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)[:, [-1], :])


class Translator(nn.Module):
    """nn.Transformer: encoder, and decoder with a causal mask and cross attention."""

    def __init__(self, vocabulary=200, width=128, heads=4, longest=64):
        super().__init__()
        self.source, self.target = (nn.Embedding(vocabulary, width) for _ in range(2))
        time, pair = torch.arange(longest)[:, None], torch.arange(0, width, 2)
        angle = time * torch.exp(pair * (-math.log(10000.0) / width))
        table = torch.zeros(longest, width)
        table[:, 0::2], table[:, 1::2] = angle.sin(), angle.cos()
        self.register_buffer("table", table)
        self.transformer = nn.Transformer(
            width, heads, 2, 2, width * 2, batch_first=True, dropout=0.0
        )
        self.head = nn.Linear(width, vocabulary)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        width = self.table.shape[1]
        a = self.source(source) * math.sqrt(width) + self.table[: source.shape[1]]
        b = self.target(target) * math.sqrt(width) + self.table[: target.shape[1]]
        mask = torch.triu(torch.full((target.shape[1], target.shape[1]), float("-inf")), diagonal=1)
        return F.log_softmax(self.head(self.transformer(a, b, tgt_mask=mask)), dim=-1)


class HandRMSNorm(nn.Module):
    """Root-mean-square norm as in Llama's first code."""

    def __init__(self, width: int, eps: float = 1e-5):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        scaled = x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + self.eps)
        return scaled.type_as(x) * self.weight


def rotate_half(x: Tensor) -> Tensor:
    """Move the second half of the last axis to the front, negated."""
    half = x.shape[-1] // 2
    return torch.cat((-x[..., half:], x[..., :half]), dim=-1)


class LlamaBlock(nn.Module):
    """Rotary embedding, fewer heads for keys and values than for queries, gated MLP."""

    def __init__(self, width: int, heads: int, groups: int, form: str):
        super().__init__()
        self.heads, self.groups, self.size, self.form = heads, groups, width // heads, form
        norm = nn.RMSNorm if form == "gqa" else HandRMSNorm
        self.norm1, self.norm2 = norm(width), norm(width)
        self.q = nn.Linear(width, width, bias=False)
        self.k, self.v = (nn.Linear(width, groups * self.size, bias=False) for _ in range(2))
        self.o = nn.Linear(width, width, bias=False)
        self.gate, self.up = (nn.Linear(width, width * 2, bias=False) for _ in range(2))
        self.down = nn.Linear(width * 2, width, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor | None) -> Tensor:
        n, length, width = x.shape
        h = self.norm1(x)
        q = self.q(h).view(n, length, self.heads, self.size).transpose(1, 2)
        k = self.k(h).view(n, length, self.groups, self.size).transpose(1, 2)
        v = self.v(h).view(n, length, self.groups, self.size).transpose(1, 2)
        q = q * cos + rotate_half(q) * sin
        k = k * cos + rotate_half(k) * sin
        if self.form == "gqa":
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        else:
            repeats = self.heads // self.groups
            k, v = (
                t[:, :, None, :, :]
                .expand(n, self.groups, repeats, length, self.size)
                .reshape(n, self.heads, length, self.size)
                for t in (k, v)
            )
            scores = torch.matmul(q, k.transpose(2, 3)) / math.sqrt(self.size) + mask
            y = torch.matmul(F.softmax(scores, dim=-1, dtype=torch.float32), v)
        x = x + self.o(y.transpose(1, 2).reshape(n, length, width))
        h = self.norm2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Llama(nn.Module):
    """A small Llama; `form` is "gqa" for PyTorch's own operators, "hand" for written-out ones."""

    def __init__(self, form: str, vocabulary=200, width=128, heads=8, groups=2, depth=2):
        super().__init__()
        self.form = form
        self.words = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(LlamaBlock(width, heads, groups, form) for _ in range(depth))
        self.norm = nn.RMSNorm(width, eps=1e-6) if form == "gqa" else HandRMSNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        size = width // heads
        self.register_buffer("rates", 1.0 / 10000.0 ** (torch.arange(0, size, 2).float() / size))

    def forward(self, ids: Tensor) -> Tensor:
        length = ids.shape[1]
        x = self.words(ids)
        angles = torch.outer(torch.arange(length).float(), self.rates)
        angles = torch.cat((angles, angles), dim=-1)
        mask = None
        if self.form == "hand":
            mask = torch.full((1, 1, length, length), float("-inf"))
            mask = torch.triu(mask, diagonal=1)
        for block in self.blocks:
            x = block(x, angles.cos(), angles.sin(), mask)
        return self.head(self.norm(x))


class Tagger(nn.Module):
    """Two-layer bidirectional LSTM over embeddings, one label per token."""

    def __init__(self, kind=nn.LSTM, vocabulary=200, width=48):
        super().__init__()
        self.words = nn.Embedding(vocabulary, width)
        self.rnn = kind(width, 40, num_layers=2, batch_first=True, bidirectional=True)
        self.head = nn.Linear(80, 9)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.rnn(self.words(ids))[0])


class TextCNN(nn.Module):
    """Convolutions of three widths over embeddings, maximum over time."""

    def __init__(self, vocabulary=200, width=48):
        super().__init__()
        self.words = nn.Embedding(vocabulary, width)
        self.convs = nn.ModuleList(nn.Conv1d(width, 32, size) for size in (3, 4, 5))
        self.head = nn.Linear(96, 4)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids).transpose(1, 2)
        found = [F.relu(conv(x)).max(dim=2)[0] for conv in self.convs]
        return self.head(torch.cat(found, 1))


# -- audio -------------------------------------------------------------------------------------


class VoiceActivity(nn.Module):
    """Short-time spectrum by convolution, convolutions, LSTM: voice per frame, and its state."""

    def __init__(self, window: int = 256, hop: int = 128):
        super().__init__()
        time = torch.arange(window)
        angle = 2 * math.pi * torch.arange(window // 2 + 1)[:, None] * time / window
        basis = torch.cat((angle.cos(), angle.sin())) * torch.hann_window(window)
        self.register_buffer("basis", basis[:, None, :])
        self.hop, self.bins = hop, window // 2 + 1
        self.encoder = nn.Sequential(
            nn.Conv1d(self.bins, 64, 3, padding=1),
            nn.ReLU(),
            nn.Conv1d(64, 32, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv1d(32, 64, 3, stride=2, padding=1),
            nn.ReLU(),
        )
        self.rnn = nn.LSTM(64, 64, batch_first=True)
        self.head = nn.Sequential(nn.ReLU(), nn.Conv1d(64, 1, 1), nn.Sigmoid())

    def forward(self, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x = F.pad(x.unsqueeze(1), (0, 64), mode="reflect")
        spectrum = F.conv1d(x, self.basis, stride=self.hop)
        real, imaginary = spectrum[:, : self.bins], spectrum[:, self.bins :]
        x = self.encoder(torch.log1p(torch.sqrt(real**2 + imaginary**2 + 1e-9)))
        y, (h, c) = self.rnn(x.transpose(1, 2), (h, c))
        return self.head(y.transpose(1, 2)).squeeze(1), h, c


def speech_and_state(length: int) -> Callable[[int, int], Inputs]:
    """Return a function that draws sound and the two states of an LSTM."""

    def draw(batch: int, seed: int) -> Inputs:
        generator = np.random.default_rng(seed + 7)
        states = generator.standard_normal((2, 1, batch, 64)).astype(np.float32) * 0.1
        return (*sound(length)(batch, seed), states[0], states[1])

    return draw


class TemporalBlock(nn.Module):
    """Bottleneck, dilated depthwise convolution; a residual and a skip result."""

    def __init__(self, width: int, hidden: int, dilation: int):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv1d(width, hidden, 1),
            nn.PReLU(),
            nn.GroupNorm(1, hidden, eps=1e-8),
            nn.Conv1d(hidden, hidden, 3, padding=dilation, dilation=dilation, groups=hidden),
            nn.PReLU(),
            nn.GroupNorm(1, hidden, eps=1e-8),
        )
        self.residual, self.skip = nn.Conv1d(hidden, width, 1), nn.Conv1d(hidden, width, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.body(x)
        return x + self.residual(y), self.skip(y)


class ConvTasNet(nn.Module):
    """Separates sound into two speakers: (n, 1, t) -> (n, 2, t)."""

    def __init__(self, filters: int = 64, width: int = 32, hidden: int = 64, speakers: int = 2):
        super().__init__()
        self.speakers, self.filters = speakers, filters
        self.encoder = nn.Conv1d(1, filters, 16, stride=8, bias=False)
        self.norm = nn.GroupNorm(1, filters, eps=1e-8)
        self.bottleneck = nn.Conv1d(filters, width, 1)
        self.blocks = nn.ModuleList(
            TemporalBlock(width, hidden, 2**level) for _ in range(2) for level in range(5)
        )
        self.output = nn.Sequential(nn.PReLU(), nn.Conv1d(width, speakers * filters, 1))
        self.decoder = nn.ConvTranspose1d(filters, 1, 16, stride=8, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        mixture = F.relu(self.encoder(x))
        y, total = self.bottleneck(self.norm(mixture)), 0
        for block in self.blocks:
            y, skip = block(y)
            total = total + skip
        n, _, frames = mixture.shape
        masks = torch.sigmoid(self.output(total)).view(n, self.speakers, self.filters, frames)
        separate = (mixture.unsqueeze(1) * masks).view(n * self.speakers, self.filters, frames)
        return self.decoder(separate).view(n, self.speakers, -1)


class SpectrogramCRNN(nn.Module):
    """torch.stft, two-dimensional convolutions, a GRU in both directions, one class per frame."""

    def __init__(self, window: int = 128, hop: int = 64):
        super().__init__()
        self.window, self.hop = window, hop
        self.register_buffer("hann", torch.hann_window(window))
        self.register_buffer("mel", torch.rand(24, window // 2 + 1))
        self.convs = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.MaxPool2d((2, 1)),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.BatchNorm2d(32),
            nn.ReLU(),
            nn.MaxPool2d((2, 1)),
        )
        self.rnn = nn.GRU(32 * 6, 48, batch_first=True, bidirectional=True)
        self.head = nn.Linear(96, 30)

    def forward(self, x: Tensor) -> Tensor:
        spectrum = torch.stft(x, self.window, self.hop, window=self.hann, return_complex=True)
        power = spectrum.abs() ** 2
        features = torch.log(torch.matmul(self.mel, power) + 1e-6).unsqueeze(1)
        y = self.convs(features)
        y = y.permute(0, 3, 1, 2).flatten(2)
        return F.log_softmax(self.head(self.rnn(y)[0]), dim=2)


class WaveEncoder(nn.Module):
    """Like wav2vec: strided convolutions over sound, positions by convolution, a Transformer."""

    def __init__(self, width: int = 64):
        super().__init__()
        self.features = nn.ModuleList(
            nn.Conv1d(a, width, size, stride=step, bias=False)
            for a, size, step in ((1, 10, 5), (width, 3, 2), (width, 3, 2), (width, 2, 2))
        )
        self.norm0 = nn.GroupNorm(width, width)
        self.norm = nn.LayerNorm(width)
        self.positions = nn.utils.parametrizations.weight_norm(
            nn.Conv1d(width, width, 16, padding=8, groups=4), dim=2
        )
        layer = nn.TransformerEncoderLayer(width, 4, 128, activation="gelu", batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, x: Tensor) -> Tensor:
        x = x.unsqueeze(1)
        for index, conv in enumerate(self.features):
            x = conv(x)
            x = F.gelu(self.norm0(x) if index == 0 else x)
        x = self.norm(x.transpose(1, 2))
        positions = F.gelu(self.positions(x.transpose(1, 2))[:, :, :-1])
        return self.encoder(x + positions.transpose(1, 2))


class ConvCaptcha(nn.Module):
    """Text recognition: convolutions to a height of 1, then LSTMs along the width."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            ConvSiLU(1, 16, 3),
            nn.MaxPool2d(2, 2),
            ConvSiLU(16, 32, 3),
            nn.MaxPool2d(2, 2),
            ConvSiLU(32, 48, 3),
            nn.MaxPool2d((2, 2), (2, 1), (0, 1)),
            nn.Conv2d(48, 64, (4, 1)),
            nn.ReLU(),
        )
        self.rnn1 = nn.LSTM(64, 32, bidirectional=True)
        self.rnn2 = nn.LSTM(64, 32, bidirectional=True)
        self.head = nn.Linear(64, 20)

    def forward(self, x: Tensor) -> Tensor:
        x = self.body(x).squeeze(2).permute(2, 0, 1)
        x = self.rnn2(self.rnn1(x)[0])[0]
        steps, n, width = x.size()
        return self.head(x.view(steps * n, width)).view(steps, n, -1)


KEEP_DETECT = ("moduleop=models.yolo.Detect",)

UNETS = {
    "unet_transposed": Network(lambda: UNet(base=16), pictures(3, 96, 128)),
    "unet_transposed_odd": Network(lambda: PaddedUNet(base=16), pictures(3, 101, 75)),
    "unet_bilinear": Network(BilinearUNet, pictures(3, 96, 128)),
    "unet_bilinear_odd": Network(BilinearUNet, pictures(3, 101, 75)),
    "unet_attention": Network(AttentionUNet, pictures(3, 90, 126)),
}

YOLOS = {
    "yolov5n": Network(lambda: YOLOv5(16), pictures(3, 640, 640)),
    "yolov5s": Network(lambda: YOLOv5(32), pictures(3, 640, 640)),
    "yolov5n-kept-detect": Network(lambda: YOLOv5(16), pictures(3, 640, 640), KEEP_DETECT),
    "yolov5s-kept-detect": Network(lambda: YOLOv5(32), pictures(3, 640, 640), KEEP_DETECT),
}

TEXT = {
    "bert": Network(Bert, tokens(24)),
    "bert_masked": Network(lambda: Bert(masked=True), padded_tokens(24)),
    "bert_by_hand": Network(HandBert, padded_tokens(24)),
    "gpt2": Network(lambda: GPT2(tied=False), tokens(24)),
    "gpt2_tied": Network(GPT2, tokens(24)),
    "gpt2_by_hand": Network(HandGPT2, tokens(24)),
    "gpt2_with_gelu": Network(lambda: HandGPT2(gelu=True), tokens(24)),
    "translator": Network(Translator, token_pairs(20, 13)),
    "llama": Network(lambda: Llama("gqa"), tokens(24)),
    "llama_by_hand": Network(lambda: Llama("hand"), tokens(24)),
    "lstm_tagger": Network(Tagger, tokens(24)),
    "gru_tagger": Network(lambda: Tagger(nn.GRU), tokens(24)),
    "text_cnn": Network(TextCNN, tokens(24)),
}

AUDIO = {
    "voice_activity": Network(VoiceActivity, speech_and_state(4096)),
    "conv_tasnet": Network(ConvTasNet, sound(1, 4000)),
    "spectrogram_crnn": Network(SpectrogramCRNN, sound(4096)),
    "wave_encoder": Network(WaveEncoder, sound(4000)),
    "text_in_images": Network(ConvCaptcha, pictures(1, 32, 100)),
}

__all__ = ["AUDIO", "TEXT", "UNETS", "YOLOS", "Network", "pictures", "tokens"]
