"""More small networks: image generation and restoration, tables, points, sequences, text in images.

Written as in common repositories, with seeded weights. Needs torch.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from zoo.modern import numbers
from zoo.nets import Inputs, Network, pictures, tokens


def normed(
    inputs: int, outputs: int, norm: type, activation: nn.Module, **options
) -> nn.Sequential:
    """Return a convolution, a norm and an activation."""
    return nn.Sequential(nn.Conv2d(inputs, outputs, **options), norm(outputs), activation)


class DCGAN(nn.Module):
    """Generator of transposed convolutions, from a vector."""

    def __init__(self, width: int = 16):
        super().__init__()
        layers, channels = [], 24
        for number, count in enumerate((4 * width, 2 * width, width)):
            step = (1, 0) if number == 0 else (2, 1)
            layers += [
                nn.ConvTranspose2d(channels, count, 4, *step, bias=False),
                nn.BatchNorm2d(count),
                nn.ReLU(True),
            ]
            channels = count
        self.main = nn.Sequential(*layers, nn.ConvTranspose2d(width, 3, 4, 2, 1), nn.Tanh())

    def forward(self, z: Tensor) -> Tensor:
        return self.main(z[:, :, None, None])


class CycleGAN(nn.Module):
    """Generator with reflected borders, instance norms and residual blocks."""

    def __init__(self, width: int = 16):
        super().__init__()

        def block() -> nn.Sequential:
            return nn.Sequential(
                nn.ReflectionPad2d(1),
                normed(2 * width, 2 * width, nn.InstanceNorm2d, nn.ReLU(True), kernel_size=3),
                nn.ReflectionPad2d(1),
                normed(2 * width, 2 * width, nn.InstanceNorm2d, nn.Identity(), kernel_size=3),
            )

        self.head = nn.Sequential(
            nn.ReflectionPad2d(3),
            normed(3, width, nn.InstanceNorm2d, nn.ReLU(True), kernel_size=7),
            normed(
                width,
                2 * width,
                nn.InstanceNorm2d,
                nn.ReLU(True),
                kernel_size=3,
                stride=2,
                padding=1,
            ),
        )
        self.blocks = nn.ModuleList(block() for _ in range(2))
        self.tail = nn.Sequential(
            nn.ConvTranspose2d(2 * width, width, 3, 2, 1, output_padding=1),
            nn.InstanceNorm2d(width),
            nn.ReLU(True),
            nn.ReflectionPad2d(3),
            nn.Conv2d(width, 3, 7),
            nn.Tanh(),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.head(x)
        for block in self.blocks:
            x = x + block(x)
        return self.tail(x)


class StyleGAN2(nn.Module):
    """A mapping network, convolutions of a group for each image, filtered upsampling, noise."""

    def __init__(self, width: int = 16):
        super().__init__()
        self.mapping = nn.Sequential(
            *(m for _ in range(2) for m in (nn.Linear(16, 16), nn.LeakyReLU(0.2)))
        )
        self.start = nn.Parameter(torch.randn(1, width, 4, 4))
        self.styles = nn.ModuleList(nn.Linear(16, width) for _ in range(3))
        self.weights = nn.ParameterList(
            nn.Parameter(torch.randn(1, width, width, 3, 3)) for _ in range(3)
        )
        self.strength = nn.Parameter(torch.zeros(3))
        self.register_buffer("noise", torch.randn(1, 1, 16, 16))
        taps = torch.tensor([1.0, 3.0, 3.0, 1.0])
        self.register_buffer("filter", torch.outer(taps, taps)[None, None] / 64 * 4)
        self.image = nn.Conv2d(width, 3, 1)

    def convolve(self, x: Tensor, style: Tensor, weight: Tensor) -> Tensor:
        n, c, h, w = x.shape
        weight = weight * style.view(n, 1, c, 1, 1)
        weight = weight * torch.rsqrt(weight.pow(2).sum([2, 3, 4], keepdim=True) + 1e-8)
        x = F.conv2d(x.reshape(1, n * c, h, w), weight.view(n * c, c, 3, 3), padding=1, groups=n)
        return x.view(n, c, h, w)

    def double(self, x: Tensor) -> Tensor:
        n, c, h, w = x.shape
        x = x.view(n, c, h, 1, w, 1)
        x = F.pad(x, [0, 1, 0, 0, 0, 1]).view(n, c, 2 * h, 2 * w)
        x = F.pad(x, [2, 1, 2, 1])
        return F.conv2d(x.view(n * c, 1, 2 * h + 3, 2 * w + 3), self.filter).view(
            n, c, 2 * h, 2 * w
        )

    def forward(self, z: Tensor) -> Tensor:
        z = z * torch.rsqrt(z.square().mean(1, keepdim=True) + 1e-8)
        style = self.mapping(z)
        x = self.start.repeat(z.shape[0], 1, 1, 1)
        for number, (layer, weight) in enumerate(zip(self.styles, self.weights, strict=True)):
            if number:
                x = self.double(x)
            x = self.convolve(x, layer(style) + 1, weight)
            noise = self.noise[:, :, : x.shape[2], : x.shape[3]]
            x = F.leaky_relu(x + self.strength[number] * noise, 0.2) * math.sqrt(2)
        return self.image(x)


class NAFNet(nn.Module):
    """Restores images: layer norms over channels, gates of two halves, pixel shuffle."""

    class Norm(nn.Module):
        def __init__(self, width: int):
            super().__init__()
            self.weight, self.bias = (
                nn.Parameter(torch.ones(width)),
                nn.Parameter(torch.zeros(width)),
            )

        def forward(self, x: Tensor) -> Tensor:
            mean = x.mean(1, keepdim=True)
            variance = (x - mean).pow(2).mean(1, keepdim=True)
            y = (x - mean) / (variance + 1e-6).sqrt()
            return self.weight.view(1, -1, 1, 1) * y + self.bias.view(1, -1, 1, 1)

    class Block(nn.Module):
        def __init__(self, width: int):
            super().__init__()
            self.first, self.second = NAFNet.Norm(width), NAFNet.Norm(width)
            self.widen = nn.Conv2d(width, 2 * width, 1)
            self.depthwise = nn.Conv2d(2 * width, 2 * width, 3, padding=1, groups=2 * width)
            self.attend = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(width, width, 1))
            self.narrow = nn.Conv2d(width, width, 1)
            self.beta = nn.Parameter(torch.zeros(1, width, 1, 1))

        def forward(self, x: Tensor) -> Tensor:
            a, b = self.depthwise(self.widen(self.first(x))).chunk(2, dim=1)
            y = a * b
            y = x + self.narrow(y * self.attend(y)) * self.beta
            return y + self.second(y)

    def __init__(self, width: int = 16):
        super().__init__()
        self.intro, self.outro = (
            nn.Conv2d(3, width, 3, padding=1),
            nn.Conv2d(width, 3, 3, padding=1),
        )
        self.outer, self.inner = NAFNet.Block(width), NAFNet.Block(2 * width)
        self.down = nn.Conv2d(width, 2 * width, 2, 2)
        self.up = nn.Sequential(nn.Conv2d(2 * width, 4 * width, 1, bias=False), nn.PixelShuffle(2))

    def forward(self, x: Tensor) -> Tensor:
        h, w = x.shape[2:]
        padded = F.pad(x, (0, (4 - w % 4) % 4, 0, (4 - h % 4) % 4))
        y = self.outer(self.intro(padded))
        y = self.up(self.inner(self.down(y))) + y
        return (self.outro(y) + padded)[:, :, :h, :w]


class Restormer(nn.Module):
    """Attention between channels, its queries and keys normalised."""

    def __init__(self, width: int = 16, heads: int = 2):
        super().__init__()
        self.heads = heads
        self.temperature = nn.Parameter(torch.ones(heads, 1, 1))
        self.intro = nn.Conv2d(3, width, 3, padding=1, bias=False)
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Conv2d(width, 3 * width, 1, bias=False)
        self.local = nn.Conv2d(3 * width, 3 * width, 3, padding=1, groups=3 * width, bias=False)
        self.project = nn.Conv2d(width, width, 1, bias=False)
        self.widen = nn.Conv2d(width, 4 * width, 1)
        self.outro = nn.Conv2d(2 * width, 3, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.intro(x)
        n, c, h, w = x.shape
        y = self.norm(x.flatten(2).transpose(1, 2)).transpose(1, 2).reshape(n, c, h, w)
        q, k, v = (
            part.reshape(n, self.heads, c // self.heads, h * w)
            for part in self.local(self.qkv(y)).chunk(3, dim=1)
        )
        q, k = F.normalize(q, dim=-1), F.normalize(k, dim=-1)
        weights = ((q @ k.transpose(-2, -1)) * self.temperature).softmax(dim=-1)
        x = x + self.project((weights @ v).reshape(n, c, h, w))
        a, b = self.widen(x).chunk(2, dim=1)
        return self.outro(F.gelu(a) * b)


class CRNN(nn.Module):
    """Text recognition: convolutions, an LSTM in both directions along the width, CTC scores."""

    def __init__(self, classes: int = 37, width: int = 16):
        super().__init__()
        self.body = nn.Sequential(
            normed(1, width, nn.BatchNorm2d, nn.ReLU(True), kernel_size=3, padding=1),
            nn.MaxPool2d(2, 2),
            normed(width, 2 * width, nn.BatchNorm2d, nn.ReLU(True), kernel_size=3, padding=1),
            nn.MaxPool2d((2, 2), (2, 1), (0, 1)),
            normed(2 * width, 2 * width, nn.BatchNorm2d, nn.Hardswish(), kernel_size=3, padding=1),
            nn.AdaptiveAvgPool2d((1, None)),
        )
        self.lstm = nn.LSTM(2 * width, 24, 2, bidirectional=True)
        self.head = nn.Linear(48, classes)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.body(x).squeeze(2).permute(2, 0, 1)
        scores = F.log_softmax(self.head(self.lstm(x)[0]), dim=2)
        return scores, scores.argmax(2).transpose(0, 1)


class DGCNN(nn.Module):
    """Points: the nearest neighbours by features, convolutions over the differences to them."""

    def __init__(self, near: int = 5, width: int = 16):
        super().__init__()
        self.near = near
        self.first = normed(6, width, nn.BatchNorm2d, nn.LeakyReLU(0.2), kernel_size=1)
        self.second = normed(2 * width, width, nn.BatchNorm2d, nn.LeakyReLU(0.2), kernel_size=1)
        self.head = nn.Linear(4 * width, 10)

    def edges(self, x: Tensor) -> Tensor:
        n, c, points = x.shape
        inner = -2 * torch.matmul(x.transpose(2, 1), x)
        squares = torch.sum(x**2, dim=1, keepdim=True)
        nearest = (-squares - inner - squares.transpose(2, 1)).topk(self.near, dim=-1)[1]
        start = torch.arange(0, n).view(-1, 1, 1) * points
        flat = x.transpose(2, 1).contiguous().view(n * points, c)
        found = flat[(nearest + start).view(-1)].view(n, points, self.near, c)
        centre = x.transpose(2, 1).view(n, points, 1, c).repeat(1, 1, self.near, 1)
        return torch.cat((found - centre, centre), dim=3).permute(0, 3, 1, 2)

    def forward(self, x: Tensor) -> Tensor:
        first = self.first(self.edges(x)).max(dim=-1)[0]
        second = self.second(self.edges(first)).max(dim=-1)[0]
        both = torch.cat((first, second), dim=1)
        return self.head(torch.cat((both.max(dim=2)[0], both.mean(dim=2)), dim=1))


class PointNet2(nn.Module):
    """Points: distant centres, the points within a radius of each, maxima over these."""

    def __init__(self, centres: int = 8, near: int = 6, radius: float = 1.0):
        super().__init__()
        self.centres, self.near, self.radius = centres, near, radius
        self.layers = nn.Sequential(nn.Conv2d(3, 16, 1), nn.BatchNorm2d(16), nn.ReLU())
        self.head = nn.Linear(16, 10)

    def farthest(self, x: Tensor) -> Tensor:
        n, points, _ = x.shape
        chosen = torch.zeros(n, self.centres, dtype=torch.long)
        distance = torch.full((n, points), 1e10)
        farthest = torch.zeros(n, dtype=torch.long)
        members = torch.arange(n, dtype=torch.long)
        for number in range(self.centres):
            chosen[:, number] = farthest
            centre = x[members, farthest, :].view(n, 1, 3)
            distance = torch.min(distance, torch.sum((x - centre) ** 2, -1))
            farthest = torch.max(distance, -1)[1]
        return chosen

    def forward(self, x: Tensor) -> Tensor:
        points = x.transpose(1, 2)
        index = self.farthest(points)
        centres = torch.gather(points, 1, index[..., None].expand(-1, -1, 3))
        distance = torch.cdist(centres, points)
        members = torch.arange(points.shape[1]).repeat(points.shape[0], self.centres, 1)
        members = members.masked_fill(distance > self.radius, points.shape[1])
        members = members.sort(dim=-1)[0][:, :, : self.near]
        first = members[:, :, :1].expand(-1, -1, self.near)
        members = torch.where(members == points.shape[1], first, members)
        flat = members.reshape(members.shape[0], -1, 1).expand(-1, -1, 3)
        groups = torch.gather(points, 1, flat).view(*members.shape, 3) - centres[:, :, None]
        y = self.layers(groups.permute(0, 3, 2, 1)).max(2)[0]
        return self.head(y.max(2)[0])


class KAN(nn.Module):
    """Two layers whose edges are splines, computed recursively."""

    class Layer(nn.Module):
        def __init__(self, inputs: int, outputs: int, cells: int = 5, order: int = 3):
            super().__init__()
            self.order = order
            step = 2 / cells
            grid = torch.arange(-order, cells + order + 1) * step - 1
            self.register_buffer("grid", grid.expand(inputs, -1).contiguous())
            self.base_weight = nn.Parameter(torch.randn(outputs, inputs))
            self.spline_weight = nn.Parameter(torch.randn(outputs, inputs, cells + order))

        def forward(self, x: Tensor) -> Tensor:
            grid, y = self.grid, x.unsqueeze(-1)
            bases = ((y >= grid[:, :-1]) & (y < grid[:, 1:])).to(x.dtype)
            for k in range(1, self.order + 1):
                left = (y - grid[:, : -(k + 1)]) / (grid[:, k:-1] - grid[:, : -(k + 1)])
                right = (grid[:, k + 1 :] - y) / (grid[:, k + 1 :] - grid[:, 1:-k])
                bases = left * bases[:, :, :-1] + right * bases[:, :, 1:]
            spline = F.linear(bases.view(x.size(0), -1), self.spline_weight.flatten(1))
            return F.linear(F.silu(x), self.base_weight) + spline

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(KAN.Layer(6, 12), KAN.Layer(12, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x.tanh())


class TabNet(nn.Module):
    """Tables: at each step a sparse choice of columns, by projection onto a simplex."""

    def __init__(self, columns: int = 12, width: int = 8, steps: int = 3):
        super().__init__()
        self.norm = nn.BatchNorm1d(columns)
        self.width = width
        self.shared = nn.Linear(columns, 4 * width)
        self.features = nn.ModuleList(nn.Linear(2 * width, 4 * width) for _ in range(steps + 1))
        self.choices = nn.ModuleList(nn.Linear(width, columns) for _ in range(steps))
        self.head = nn.Linear(width, 4)

    @staticmethod
    def sparse(x: Tensor) -> Tensor:
        ordered = torch.sort(x, dim=-1, descending=True)[0]
        sums = ordered.cumsum(-1) - 1
        count = torch.arange(1, x.shape[-1] + 1, dtype=x.dtype)
        support = count * ordered > sums
        size = support.sum(dim=-1, keepdim=True)
        tau = sums.gather(-1, size - 1) / size.to(x.dtype)
        return torch.clamp(x - tau, min=0)

    def transform(self, x: Tensor, layer: nn.Module) -> Tensor:
        y = F.glu(self.shared(x))
        return (y + F.glu(layer(y))) * math.sqrt(0.5)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.norm(x)
        prior = torch.ones(x.shape)
        choice = self.transform(x, self.features[0])[:, self.width :]
        total, importance = 0, 0
        for feature, chooser in zip(self.features[1:], self.choices, strict=True):
            mask = self.sparse(chooser(choice) * prior)
            prior = torch.mul(1.3 - mask, prior)
            y = self.transform(mask * x, feature)
            decision = F.relu(y[:, : self.width])
            total = total + decision
            importance = importance + mask * decision.sum(1, keepdim=True)
            choice = y[:, self.width :]
        return self.head(total), importance


class FTTransformer(nn.Module):
    """Tables: each number and each category becomes a token of a Transformer."""

    def __init__(self, numeric: int = 5, categories: tuple[int, ...] = (4, 7, 3), width: int = 16):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(numeric + 1, width))
        self.bias = nn.Parameter(torch.randn(numeric, width))
        offsets = torch.tensor([0, *categories[:-1]]).cumsum(0)
        self.register_buffer("offsets", offsets)
        self.table = nn.Embedding(sum(categories), width)
        layer = nn.TransformerEncoderLayer(width, 4, 32, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, 1)

    def forward(self, x: Tensor, kinds: Tensor) -> Tensor:
        ones = torch.ones(x.shape[0], 1)
        tokens = self.weight[None] * torch.cat((ones, x), dim=1)[:, :, None]
        tokens = torch.cat((tokens, self.table(kinds + self.offsets[None])), dim=1)
        bias = torch.cat((torch.zeros(1, self.bias.shape[1]), self.bias))
        tokens[:, : bias.shape[0]] += bias[None]
        return self.head(F.relu(self.body(tokens)[:, 0]))


def numbers_and_kinds(batch: int, seed: int) -> Inputs:
    """Draw rows of a table: five numbers and three categories."""
    rng = np.random.default_rng(seed + 4)
    kinds = np.stack([rng.integers(0, count, batch) for count in (4, 7, 3)], axis=1)
    return rng.standard_normal((batch, 5)).astype(np.float32), kinds


class DLRM(nn.Module):
    """Recommendation: bags of categories, products of each pair of vectors, two perceptrons."""

    def __init__(self, width: int = 8):
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(20, width, mode="sum") for _ in range(3))
        self.bottom = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, width), nn.ReLU())
        self.top = nn.Sequential(
            nn.Linear(width + 6, 16), nn.ReLU(), nn.Linear(16, 1), nn.Sigmoid()
        )

    def forward(self, x: Tensor, bags: Tensor) -> Tensor:
        dense = self.bottom(x)
        vectors = [dense] + [table(bags[:, n]) for n, table in enumerate(self.tables)]
        stacked = torch.stack(vectors, dim=1)
        products = torch.bmm(stacked, stacked.transpose(1, 2))
        rows, columns = torch.tril_indices(4, 4, offset=-1)
        return self.top(torch.cat((dense, products[:, rows, columns]), dim=1))


def numbers_and_bags(batch: int, seed: int) -> Inputs:
    """Draw five numbers and three bags of four categories."""
    rng = np.random.default_rng(seed + 4)
    return rng.standard_normal((batch, 5)).astype(np.float32), rng.integers(0, 20, (batch, 3, 4))


class Flow(nn.Module):
    """Real NVP: coupled halves, a permutation, the sum of the logarithms."""

    def __init__(self, width: int = 6):
        super().__init__()
        self.nets = nn.ModuleList(
            nn.Sequential(nn.Linear(width // 2, 16), nn.Tanh(), nn.Linear(16, width))
            for _ in range(3)
        )
        self.register_buffer("order", torch.tensor([3, 1, 5, 0, 4, 2]))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        total = torch.zeros(x.shape[0])
        for net in self.nets:
            x = x[:, self.order]
            a, b = x.chunk(2, dim=1)
            scale, shift = net(a).chunk(2, dim=1)
            scale = torch.tanh(scale)
            total += scale.sum(dim=1)
            x = torch.cat((a, b * scale.exp() + shift), dim=1)
        density = -0.5 * (x**2).sum(1) - 0.5 * x.shape[1] * math.log(2 * math.pi)
        return x, density + total


class Translate(nn.Module):
    """Encoder and decoder of GRUs with additive attention, greedy, six words."""

    def __init__(self, width: int = 24):
        super().__init__()
        self.words = nn.Embedding(60, width)
        self.encoder = nn.GRU(width, width, batch_first=True, bidirectional=True)
        self.join = nn.Linear(2 * width, width)
        self.score = nn.Sequential(
            nn.Linear(3 * width, width), nn.Tanh(), nn.Linear(width, 1, bias=False)
        )
        self.cell = nn.GRUCell(3 * width, width)
        self.head = nn.Linear(width, 60)

    def forward(self, words: Tensor) -> tuple[Tensor, Tensor]:
        outputs, state = self.encoder(self.words(words))
        state = torch.tanh(self.join(torch.cat((state[0], state[1]), dim=1)))
        word = torch.ones(words.shape[0], dtype=torch.long)
        scores = []
        for _ in range(6):
            repeated = state.unsqueeze(1).expand(-1, outputs.shape[1], -1)
            weights = self.score(torch.cat((repeated, outputs), dim=2)).squeeze(2).softmax(1)
            context = torch.bmm(weights.unsqueeze(1), outputs).squeeze(1)
            state = self.cell(torch.cat((self.words(word), context), dim=1), state)
            scores.append(self.head(state))
            word = scores[-1].argmax(1)
        found = torch.stack(scores, dim=1)
        return found, found.argmax(-1)


class Informer(nn.Module):
    """Series: attention of the queries that differ most, a convolution that halves the length."""

    def __init__(self, width: int = 16, heads: int = 2, chosen: int = 5):
        super().__init__()
        self.heads, self.chosen = heads, chosen
        self.embed = nn.Conv1d(4, width, 3, padding=1, padding_mode="circular", bias=False)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.halve = nn.Sequential(
            nn.Conv1d(width, width, 3, padding=1, padding_mode="circular"),
            nn.BatchNorm1d(width),
            nn.ELU(),
            nn.MaxPool1d(3, 2, 1),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x.transpose(1, 2)).transpose(1, 2)
        n, length, width = x.shape
        q, k, v = (
            part.view(n, length, self.heads, -1).transpose(1, 2)
            for part in self.qkv(x).chunk(3, -1)
        )
        scores = q @ k.transpose(-2, -1)
        spread = scores.max(-1)[0] - scores.mean(-1)
        top = spread.topk(self.chosen, sorted=False)[1]
        members, heads = torch.arange(n)[:, None, None], torch.arange(self.heads)[None, :, None]
        weights = (scores[members, heads, top, :] / math.sqrt(width // self.heads)).softmax(-1)
        context = v.mean(dim=-2, keepdim=True).expand(-1, -1, length, -1).clone()
        context[members, heads, top, :] = weights @ v
        x = x + self.out(context.transpose(1, 2).reshape(n, length, width))
        return self.halve(x.transpose(1, 2))


class CenterNet(nn.Module):
    """Objects as peaks of a map: 3x3 maxima, the highest scores, gathered sizes."""

    def __init__(self, width: int = 16, classes: int = 5, found: int = 12):
        super().__init__()
        self.found = found
        self.body = nn.Sequential(
            normed(3, width, nn.BatchNorm2d, nn.ReLU(True), kernel_size=3, stride=2, padding=1),
            normed(width, width, nn.BatchNorm2d, nn.ReLU(True), kernel_size=3, stride=2, padding=1),
        )
        self.heat, self.size = nn.Conv2d(width, classes, 1), nn.Conv2d(width, 4, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.body(x)
        heat, size = self.heat(x).sigmoid(), self.size(x)
        heat = heat * (F.max_pool2d(heat, 3, 1, 1) == heat).float()
        n, _, h, w = heat.shape
        scores, index = torch.topk(heat.view(n, -1), self.found)
        kind, pixel = index // (h * w), index % (h * w)
        values = size.permute(0, 2, 3, 1).reshape(n, -1, 4)
        values = values.gather(1, pixel.unsqueeze(2).expand(-1, -1, 4))
        cx = (pixel % w).float() + values[..., 0]
        cy = torch.div(pixel, w, rounding_mode="floor").float() + values[..., 1]
        half = values[..., 2:].exp() / 2
        boxes = torch.stack(
            (cx - half[..., 0], cy - half[..., 1], cx + half[..., 0], cy + half[..., 1]), -1
        )
        return boxes, torch.stack((scores, kind.float()), dim=-1)


class ECAPA(nn.Module):
    """Speaker embedding: filters of several widths, attentive statistics over time."""

    def __init__(self, width: int = 24):
        super().__init__()
        self.first = nn.Sequential(
            nn.Conv1d(20, width, 5, padding=2), nn.ReLU(), nn.BatchNorm1d(width)
        )
        self.parts = nn.ModuleList(
            nn.Conv1d(width // 4, width // 4, 3, padding=2, dilation=2) for _ in range(3)
        )
        self.gate = nn.Sequential(
            nn.AdaptiveAvgPool1d(1),
            nn.Conv1d(width, 8, 1),
            nn.ReLU(),
            nn.Conv1d(8, width, 1),
            nn.Sigmoid(),
        )
        self.attention = nn.Sequential(
            nn.Conv1d(3 * width, 16, 1),
            nn.ReLU(),
            nn.Tanh(),
            nn.Conv1d(16, width, 1),
            nn.Softmax(dim=2),
        )
        self.head = nn.Sequential(nn.BatchNorm1d(2 * width), nn.Linear(2 * width, 16))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        pieces = torch.split(x, x.shape[1] // 4, 1)
        done, y = [], pieces[0]
        for number, part in enumerate(self.parts):
            y = F.relu(part(y if number == 0 else y + pieces[number]))
            done.append(y)
        y = torch.cat((*done, pieces[3]), 1)
        x = x + y * self.gate(y)
        t = x.size(-1)
        spread = torch.sqrt(torch.var(x, dim=2, keepdim=True).clamp(min=1e-4))
        both = torch.cat(
            (x, x.mean(dim=2, keepdim=True).repeat(1, 1, t), spread.repeat(1, 1, t)), 1
        )
        weights = self.attention(both)
        mean = torch.sum(x * weights, dim=2)
        deviation = torch.sqrt((torch.sum((x**2) * weights, dim=2) - mean**2).clamp(min=1e-4))
        return F.normalize(self.head(torch.cat((mean, deviation), 1)))


class FastSpeech(nn.Module):
    """Text to spectrum: each phoneme is repeated by its duration."""

    def __init__(self, width: int = 24, frames: int = 40):
        super().__init__()
        self.frames = frames
        self.words = nn.Embedding(60, width)
        layer = nn.TransformerEncoderLayer(width, 2, 48, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.duration = nn.Sequential(
            nn.Conv1d(width, width, 3, padding=1), nn.ReLU(), nn.Conv1d(width, 1, 1)
        )
        self.decoder = nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, 20)

    def forward(self, words: Tensor) -> tuple[Tensor, Tensor]:
        x = self.encoder(self.words(words))
        spread = self.duration(x.transpose(1, 2)).squeeze(1)
        lengths = torch.clamp(torch.round(torch.exp(spread.clamp(max=2)) - 1), min=0)
        ends = torch.cumsum(lengths, dim=1)
        frame = torch.arange(self.frames)[None, :, None] + 0.5
        path = ((frame < ends[:, None]) & (frame >= (ends - lengths)[:, None])).float()
        return self.head(self.decoder(torch.bmm(path, x))[0]), lengths


TASKS = {
    "dcgan": Network(DCGAN, numbers((24,))),
    "cyclegan": Network(CycleGAN, pictures(3, 36, 44)),
    "stylegan2": Network(StyleGAN2, numbers((16,))),
    "nafnet": Network(NAFNet, pictures(3, 37, 42)),
    "restormer": Network(Restormer, pictures(3, 24, 20)),
    "crnn": Network(CRNN, pictures(1, 32, 100)),
    "dgcnn": Network(DGCNN, numbers((3, 40))),
    "pointnet2": Network(PointNet2, numbers((3, 40))),
    "kan": Network(KAN, numbers((6,))),
    "tabnet": Network(TabNet, numbers((12,))),
    "ft_transformer": Network(FTTransformer, numbers_and_kinds),
    "dlrm": Network(DLRM, numbers_and_bags),
    "real_nvp": Network(Flow, numbers((6,))),
    "gru_translator": Network(Translate, tokens(11, 60)),
    "informer": Network(Informer, numbers((24, 4))),
    "centernet": Network(CenterNet, pictures(3, 48, 64)),
    "ecapa": Network(ECAPA, numbers((20, 50))),
    "fastspeech": Network(FastSpeech, tokens(9, 60)),
}
