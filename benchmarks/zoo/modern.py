"""Networks of kinds that no package of the zoo has, written as in common repositories.

Generators of sound and images, points and graphs, volumes and video, operators of physics,
hand-written mixtures of experts and state spaces. Sizes are small because weights are seeded.
Needs torch.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from zoo.nets import Inputs, Network, pictures, sound


def numbers(*shapes: tuple[int, ...]):
    """Return a function that draws one normally distributed tensor for each shape."""

    def draw(batch: int, seed: int) -> Inputs:
        generator = np.random.default_rng(seed + 11)
        return tuple(
            generator.standard_normal((batch, *shape)).astype(np.float32) for shape in shapes
        )

    return draw


# -- sound -------------------------------------------------------------------------------------


class WaveNet(nn.Module):
    """Dilated causal convolutions with gates, residuals and skips."""

    def __init__(self, width: int = 24, levels: int = 6):
        super().__init__()
        self.first = nn.Conv1d(1, width, 1)
        self.gates = nn.ModuleList(
            nn.Conv1d(width, width * 2, 2, dilation=2**level) for level in range(levels)
        )
        self.residuals = nn.ModuleList(nn.Conv1d(width, width, 1) for _ in range(levels))
        self.skips = nn.ModuleList(nn.Conv1d(width, 32, 1) for _ in range(levels))
        self.head = nn.Sequential(nn.ReLU(), nn.Conv1d(32, 32, 1), nn.ReLU(), nn.Conv1d(32, 16, 1))

    def forward(self, x: Tensor) -> Tensor:
        x, total = self.first(x), 0.0
        for gate, residual, skip in zip(self.gates, self.residuals, self.skips, strict=True):
            a, b = gate(F.pad(x, (gate.dilation[0], 0))).chunk(2, dim=1)
            y = torch.tanh(a) * torch.sigmoid(b)
            total = total + skip(y)
            x = (x + residual(y)) * math.sqrt(0.5)
        return self.head(total)


class HiFiGAN(nn.Module):
    """Transposed convolutions, each followed by the mean of residual blocks of three widths."""

    def __init__(self, mels: int = 20, width: int = 64):
        super().__init__()
        self.first = nn.utils.parametrizations.weight_norm(nn.Conv1d(mels, width, 7, padding=3))
        self.up = nn.ModuleList(
            nn.ConvTranspose1d(width >> level, width >> (level + 1), 8, 4, padding=2)
            for level in range(2)
        )
        self.blocks = nn.ModuleList(
            nn.ModuleList(
                nn.Conv1d(width >> (level + 1), width >> (level + 1), kernel, dilation=dilation,
                          padding=dilation * (kernel // 2))
                for kernel, dilation in ((3, 1), (7, 3), (11, 5))
            )
            for level in range(2)
        )  # fmt: skip
        self.last = nn.Conv1d(width >> 2, 1, 7, padding=3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for up, blocks in zip(self.up, self.blocks, strict=True):
            x = up(F.leaky_relu(x, 0.1))
            x = sum(x + block(F.leaky_relu(x, 0.1)) for block in blocks) / len(blocks)
        return torch.tanh(self.last(F.leaky_relu(x)))


class TCN(nn.Module):
    """Temporal blocks: dilated convolutions, cropped at the right end, and a residual."""

    def __init__(self, width: int = 32):
        super().__init__()
        self.convs = nn.ModuleList(
            nn.Conv1d(3 if level == 0 else width, width, 3, padding=2 << level, dilation=1 << level)
            for level in range(4)
        )
        self.shortcut = nn.Conv1d(3, width, 1)
        self.head = nn.Linear(width, 5)

    def forward(self, x: Tensor) -> Tensor:
        for level, conv in enumerate(self.convs):
            y = F.relu(conv(x)[:, :, : -(2 << level)].contiguous())
            x = F.relu(y + (self.shortcut(x) if level == 0 else x))
        return self.head(x[:, :, -1])


# -- images ------------------------------------------------------------------------------------


class RCAN(nn.Module):
    """Residual blocks with channel attention, and a pixel shuffle to twice the size."""

    def __init__(self, width: int = 24, depth: int = 3):
        super().__init__()
        self.first = nn.Conv2d(3, width, 3, padding=1)
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(width, width, 3, padding=1), nn.ReLU(), nn.Conv2d(width, width, 3, 1, 1)
            )
            for _ in range(depth)
        )
        self.squeeze = nn.ModuleList(
            nn.Sequential(nn.Conv2d(width, 6, 1), nn.ReLU(), nn.Conv2d(6, width, 1), nn.Sigmoid())
            for _ in range(depth)
        )
        self.last = nn.Sequential(nn.Conv2d(width, 12, 3, padding=1), nn.PixelShuffle(2))

    def forward(self, x: Tensor) -> Tensor:
        first = y = self.first(x)
        for block, squeeze in zip(self.blocks, self.squeeze, strict=True):
            z = block(y)
            y = y + z * squeeze(F.adaptive_avg_pool2d(z, 1))
        size = [2 * n for n in x.shape[2:]]
        return self.last(y + first) + F.interpolate(x, size=size, mode="bicubic")


class ESRGAN(nn.Module):
    """Residual dense blocks inside a residual, and nearest upsampling."""

    def __init__(self, width: int = 16, growth: int = 8):
        super().__init__()
        self.first = nn.Conv2d(3, width, 3, padding=1)
        self.dense = nn.ModuleList(
            nn.ModuleList(
                nn.Conv2d(width + n * growth, growth if n < 4 else width, 3, padding=1)
                for n in range(5)
            )
            for _ in range(2)
        )
        self.up, self.last = nn.Conv2d(width, width, 3, 1, 1), nn.Conv2d(width, 3, 3, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        y = x
        for block in self.dense:
            parts = [y]
            for conv in block[:-1]:
                parts.append(F.leaky_relu(conv(torch.cat(parts, 1)), 0.2))
            y = y + block[-1](torch.cat(parts, 1)) * 0.2
        y = F.interpolate(x + y * 0.2, scale_factor=2, mode="nearest")
        return self.last(F.leaky_relu(self.up(y), 0.2))


class StyleGenerator(nn.Module):
    """A constant, and convolutions whose weights a style modulates and scales back."""

    def __init__(self, latent: int = 16, width: int = 16):
        super().__init__()
        self.mapping = nn.Sequential(nn.Linear(latent, 32), nn.LeakyReLU(0.2), nn.Linear(32, 32))
        self.start = nn.Parameter(torch.randn(1, width, 4, 4))
        self.weights = nn.ParameterList(torch.randn(width, width, 3, 3) for _ in range(3))
        self.styles = nn.ModuleList(nn.Linear(32, width) for _ in range(3))
        self.rgb = nn.Conv2d(width, 3, 1)

    def forward(self, z: Tensor) -> Tensor:
        n = z.shape[0]
        z = z * torch.rsqrt(z.pow(2).mean(1, keepdim=True) + 1e-8)
        style = self.mapping(z)
        x = self.start.repeat(n, 1, 1, 1)
        for level, (weight, affine) in enumerate(zip(self.weights, self.styles, strict=True)):
            scaled = x * (affine(style) + 1)[:, :, None, None]
            modulated = weight[None] * (affine(style) + 1)[:, None, :, None, None]
            factor = torch.rsqrt(modulated.pow(2).sum(dim=(2, 3, 4)) + 1e-8)
            x = F.conv2d(scaled, weight, padding=1) * factor[:, :, None, None]
            x = F.leaky_relu(x, 0.2)
            if level < 2:
                x = F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False)
        return torch.tanh(self.rgb(x))


class DiffusionUNet(nn.Module):
    """Noise and a time step in, noise out: sinusoids, group norms, attention in the middle."""

    def __init__(self, base: int = 16):
        super().__init__()
        self.time = nn.Sequential(
            nn.Linear(base, base * 4), nn.SiLU(), nn.Linear(base * 4, base * 2)
        )
        self.base = base
        self.first = nn.Conv2d(3, base, 3, padding=1)
        self.down = nn.Conv2d(base, base * 2, 3, stride=2, padding=1)
        self.norm, self.mid = nn.GroupNorm(8, base * 2), nn.Conv2d(base * 2, base * 2, 3, padding=1)
        self.qkv, self.out = nn.Conv2d(base * 2, base * 6, 1), nn.Conv2d(base * 2, base * 2, 1)
        self.up = nn.Conv2d(base * 2, base, 3, padding=1)
        self.last = nn.Sequential(
            nn.GroupNorm(8, base * 2), nn.SiLU(), nn.Conv2d(base * 2, 3, 3, 1, 1)
        )

    def forward(self, x: Tensor, steps: Tensor) -> Tensor:
        half = self.base // 2
        rates = torch.exp(-math.log(10000.0) * torch.arange(half, dtype=torch.float32) / half)
        angles = steps[:, None].float() * rates[None]
        time = self.time(torch.cat((angles.cos(), angles.sin()), dim=-1))
        first = self.first(x)
        y = self.down(first) + time[:, :, None, None]
        y = y + self.mid(F.silu(self.norm(y)))
        n, c, rows, columns = y.shape
        q, k, v = self.qkv(self.norm(y)).reshape(n, 3, c, rows * columns).unbind(1)
        weights = torch.softmax(torch.einsum("bci,bcj->bij", q, k) * c**-0.5, dim=-1)
        y = y + self.out(torch.einsum("bij,bcj->bci", weights, v).reshape(n, c, rows, columns))
        y = self.up(F.interpolate(y, scale_factor=2.0, mode="nearest"))
        return self.last(torch.cat((y, first), 1))


def noise_and_steps(batch: int, seed: int) -> Inputs:
    """Draw images of noise, and the time step of each."""
    (x,) = numbers((3, 16, 16))(batch, seed)
    return x, np.random.default_rng(seed).integers(0, 1000, (batch,))


class VQVAE(nn.Module):
    """Encoder, the nearest vector of a table for each position, decoder."""

    def __init__(self, width: int = 16, codes: int = 32):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(3, width, 4, 2, 1), nn.ReLU(), nn.Conv2d(width, width, 4, 2, 1)
        )
        self.codes = nn.Embedding(codes, width)
        self.decoder = nn.Sequential(
            nn.ConvTranspose2d(width, width, 4, 2, 1),
            nn.ReLU(),
            nn.ConvTranspose2d(width, 3, 4, 2, 1),
        )

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        z = self.encoder(x).permute(0, 2, 3, 1).contiguous()
        flat, table = z.view(-1, z.shape[-1]), self.codes.weight
        distances = flat.pow(2).sum(1, keepdim=True) + table.pow(2).sum(1) - 2 * flat @ table.t()
        found = torch.argmin(distances, dim=1)
        quantized = self.codes(found).view(z.shape)
        return self.decoder(quantized.permute(0, 3, 1, 2)), found.view(z.shape[:3])


class BiFPN(nn.Module):
    """Weighted sums of maps of three sizes, up and down; boxes and classes per position."""

    def __init__(self, width: int = 24):
        super().__init__()
        self.stages = nn.ModuleList(
            nn.Conv2d(3 if n == 0 else width, width, 3, stride=4 if n == 0 else 2, padding=1)
            for n in range(3)
        )
        self.fusions = nn.ParameterList(torch.ones(k) for k in (2, 2, 3, 2))
        self.convs = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(width, width, 3, 1, 1, groups=width), nn.Conv2d(width, width, 1)
            )
            for _ in range(4)
        )
        self.boxes, self.classes = nn.Conv2d(width, 12, 3, 1, 1), nn.Conv2d(width, 15, 3, 1, 1)

    def fuse(self, number: int, *maps: Tensor) -> Tensor:
        weights = F.relu(self.fusions[number])
        weights = weights / (weights.sum() + 1e-4)
        total = sum(weight * x for weight, x in zip(weights, maps, strict=True))
        return self.convs[number](F.silu(total))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        levels = []
        for stage in self.stages:
            x = F.silu(stage(x))
            levels.append(x)
        a, b, c = levels
        middle = self.fuse(0, b, F.interpolate(c, scale_factor=2, mode="nearest"))
        a = self.fuse(1, a, F.interpolate(middle, scale_factor=2, mode="nearest"))
        b = self.fuse(2, b, middle, F.max_pool2d(a, 3, 2, 1))
        c = self.fuse(3, c, F.max_pool2d(b, 3, 2, 1))

        def flat(head: nn.Module, size: int) -> Tensor:
            return torch.cat(
                [head(m).permute(0, 2, 3, 1).reshape(m.shape[0], -1, size) for m in (a, b, c)], 1
            )

        return flat(self.boxes, 4), flat(self.classes, 5).sigmoid()


# -- volumes and video -------------------------------------------------------------------------


class VolumeUNet(nn.Module):
    """U-Net of three dimensions with instance norms and one skip."""

    def __init__(self, base: int = 8):
        super().__init__()
        self.a = nn.Sequential(
            nn.Conv3d(1, base, 3, padding=1), nn.InstanceNorm3d(base), nn.LeakyReLU()
        )
        self.b = nn.Sequential(
            nn.Conv3d(base, base * 2, 3, 2, 1), nn.GroupNorm(4, base * 2), nn.ReLU()
        )
        self.up = nn.ConvTranspose3d(base * 2, base, 2, 2)
        self.c = nn.Sequential(
            nn.Conv3d(base * 2, base, 3, padding=1), nn.ReLU(), nn.Conv3d(base, 3, 1)
        )

    def forward(self, x: Tensor) -> Tensor:
        a = self.a(x)
        return torch.softmax(self.c(torch.cat((a, self.up(self.b(a))), 1)), dim=1)


class R2Plus1D(nn.Module):
    """Convolutions over space and then over time, with residuals."""

    def __init__(self, width: int = 16):
        super().__init__()
        self.stem = nn.Conv3d(3, width, (1, 7, 7), (1, 2, 2), (0, 3, 3))
        self.space = nn.ModuleList(nn.Conv3d(width, 24, (1, 3, 3), 1, (0, 1, 1)) for _ in range(2))
        self.time = nn.ModuleList(nn.Conv3d(24, width, (3, 1, 1), 1, (1, 0, 0)) for _ in range(2))
        self.norms = nn.ModuleList(nn.BatchNorm3d(24) for _ in range(2))
        self.head = nn.Linear(width, 7)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem(x))
        for space, time, norm in zip(self.space, self.time, self.norms, strict=True):
            x = F.relu(x + time(F.relu(norm(space(x)))))
        return self.head(F.adaptive_avg_pool3d(x, 1).flatten(1))


class ConvLSTM(nn.Module):
    """A recurrent cell whose gates are convolutions, over the frames of a video."""

    def __init__(self, width: int = 8):
        super().__init__()
        self.width = width
        self.gates = nn.Conv2d(3 + width, width * 4, 3, padding=1)
        self.head = nn.Conv2d(width, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        n, steps, _, rows, columns = x.shape
        h = x.new_zeros(n, self.width, rows, columns)
        c, found = torch.zeros_like(h), []
        for step in range(steps):
            i, f, o, g = self.gates(torch.cat((x[:, step], h), 1)).split(self.width, dim=1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
            found.append(self.head(h))
        return torch.stack(found, dim=1)


# -- points, graphs, fields --------------------------------------------------------------------


class PointNet(nn.Module):
    """Multiplies points by a computed matrix and takes the maximum over them."""

    def __init__(self):
        super().__init__()
        self.turn = nn.Sequential(nn.Conv1d(3, 24, 1), nn.BatchNorm1d(24), nn.ReLU())
        self.matrix = nn.Linear(24, 9)
        self.body = nn.Sequential(nn.Conv1d(3, 48, 1), nn.BatchNorm1d(48), nn.ReLU())
        self.head = nn.Conv1d(96, 6, 1)

    def forward(self, x: Tensor) -> Tensor:
        n, _, points = x.shape
        turn = self.matrix(torch.max(self.turn(x), 2)[0]).view(-1, 3, 3) + torch.eye(3)
        x = self.body(torch.bmm(x.transpose(2, 1), turn).transpose(2, 1))
        whole = torch.max(x, 2, keepdim=True)[0].expand(n, 48, points)
        return F.log_softmax(self.head(torch.cat((x, whole), 1)), dim=1)


class GraphNet(nn.Module):
    """Messages along edges, averaged at their targets."""

    def __init__(self, width: int = 16):
        super().__init__()
        self.message, self.update = nn.Linear(width * 2, width), nn.GRUCell(width, width)
        self.first, self.head = nn.Linear(5, width), nn.Linear(width, 3)

    def forward(self, nodes: Tensor, edges: Tensor) -> Tensor:
        x = F.relu(self.first(nodes))
        source, target = edges[0], edges[1]
        ones = torch.ones_like(target, dtype=x.dtype)
        count = torch.zeros(x.shape[0]).index_add(0, target, ones).clamp(min=1)
        for _ in range(2):
            message = F.relu(self.message(torch.cat((x[source], x[target]), dim=1)))
            where = target[:, None].expand_as(message)
            total = torch.zeros_like(x).scatter_add(0, where, message) / count[:, None]
            gates = F.linear(total, self.update.weight_ih, self.update.bias_ih)
            states = F.linear(x, self.update.weight_hh, self.update.bias_hh)
            (a, b, c), (d, e, f) = gates.chunk(3, 1), states.chunk(3, 1)
            reset, keep = torch.sigmoid(a + d), torch.sigmoid(b + e)
            x = (1 - keep) * torch.tanh(c + reset * f) + keep * x
        return self.head(x)


def nodes_and_edges(batch: int, seed: int) -> Inputs:
    """Draw a graph of 12 nodes and 30 edges; it has no batch."""
    generator = np.random.default_rng(seed + 5)
    return (
        generator.standard_normal((12, 5)).astype(np.float32),
        generator.integers(0, 12, (2, 30)),
    )


class FourierOperator(nn.Module):
    """Layers that multiply the lowest frequencies of a field by weights."""

    def __init__(self, width: int = 12, modes: int = 6):
        super().__init__()
        self.modes = modes
        self.lift, self.head = nn.Conv1d(2, width, 1), nn.Conv1d(width, 1, 1)
        self.real = nn.Parameter(torch.randn(width, width, modes))
        self.imaginary = nn.Parameter(torch.randn(width, width, modes))
        self.skip = nn.Conv1d(width, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.lift(x)
        spectrum = torch.fft.rfft(x)[:, :, : self.modes]
        a, b = spectrum.real, spectrum.imag
        real = torch.einsum("bik,iok->bok", a, self.real) - torch.einsum(
            "bik,iok->bok", b, self.imaginary
        )
        imaginary = torch.einsum("bik,iok->bok", a, self.imaginary) + torch.einsum(
            "bik,iok->bok", b, self.real
        )
        rest = x.shape[-1] // 2 + 1 - self.modes
        product = torch.complex(F.pad(real, (0, rest)), F.pad(imaginary, (0, rest)))
        return self.head(F.gelu(torch.fft.irfft(product, n=x.shape[-1]) + self.skip(x)))


class NeRF(nn.Module):
    """Sines and cosines of points and directions, layers with a skip, colour and density."""

    def __init__(self, width: int = 48):
        super().__init__()
        self.first = nn.ModuleList(nn.Linear(a, width) for a in (39, width, width + 39))
        self.density, self.feature = nn.Linear(width, 1), nn.Linear(width, width)
        self.colour = nn.Sequential(nn.Linear(width + 27, 24), nn.ReLU(), nn.Linear(24, 3))

    @staticmethod
    def encode(x: Tensor, levels: int) -> Tensor:
        rates = 2.0 ** torch.arange(levels, dtype=torch.float32)
        angles = (x[..., None, :] * rates[:, None]).flatten(-2)
        return torch.cat((x, angles.sin(), angles.cos()), dim=-1)

    def forward(self, points: Tensor, directions: Tensor) -> Tensor:
        code = self.encode(points, 6)
        x = code
        for number, layer in enumerate(self.first):
            x = F.relu(layer(torch.cat((x, code), -1) if number == 2 else x))
        colour = self.colour(torch.cat((self.feature(x), self.encode(directions, 4)), -1))
        density = F.softplus(self.density(x))[..., 0]
        # Along each ray: how much is seen of every point.
        opacity = 1 - torch.exp(-density * 0.1)
        clear = torch.cumprod(torch.cat((torch.ones_like(opacity[:, :1]), 1 - opacity), -1), -1)
        return ((opacity * clear[:, :-1])[..., None] * torch.sigmoid(colour)).sum(dim=-2)


# -- sequences ---------------------------------------------------------------------------------


class SelectiveScan(nn.Module):
    """A state space model whose steps depend on the input, computed step by step."""

    def __init__(self, width: int = 24, state: int = 8):
        super().__init__()
        self.into, self.out = nn.Linear(width, width * 2), nn.Linear(width, width)
        self.conv = nn.Conv1d(width, width, 4, padding=3, groups=width)
        self.project, self.step = nn.Linear(width, state * 2 + 4), nn.Linear(4, width)
        self.rates = nn.Parameter(torch.rand(width, state))
        self.skip = nn.Parameter(torch.ones(width))
        self.state = state

    def forward(self, x: Tensor) -> Tensor:
        length = x.shape[1]
        x, gate = self.into(x).chunk(2, dim=-1)
        x = F.silu(self.conv(x.transpose(1, 2))[:, :, :length].transpose(1, 2))
        step, b, c = self.project(x).split((4, self.state, self.state), dim=-1)
        step = F.softplus(self.step(step))
        decay = torch.exp(step[..., None] * -torch.exp(self.rates))
        drive = step[..., None] * b[:, :, None] * x[..., None]
        h, found = torch.zeros_like(drive[:, 0]), []
        for time in range(length):
            h = decay[:, time] * h + drive[:, time]
            found.append((h * c[:, time, None]).sum(-1))
        return self.out((torch.stack(found, 1) + x * self.skip) * F.silu(gate))


class Experts(nn.Module):
    """Each token uses the two experts with the highest router scores; all are computed."""

    def __init__(self, width: int = 24, experts: int = 4):
        super().__init__()
        self.router = nn.Linear(width, experts, bias=False)
        self.up = nn.Parameter(torch.randn(experts, width, 32))
        self.down = nn.Parameter(torch.randn(experts, 32, width))

    def forward(self, x: Tensor) -> Tensor:
        scores = torch.softmax(self.router(x), dim=-1)
        values, experts = torch.topk(scores, 2, dim=-1)
        weights = torch.zeros_like(scores).scatter(-1, experts, values)
        weights = weights / weights.sum(-1, keepdim=True)
        h = F.silu(torch.einsum("blw,ewh->bleh", x, self.up))
        return torch.einsum("bleh,ehw,ble->blw", h, self.down, weights)


class LatentAttention(nn.Module):
    """Keys and values from a narrow projection, rotary positions on a part of each head."""

    def __init__(self, width: int = 48, heads: int = 4, narrow: int = 12, turned: int = 4):
        super().__init__()
        self.heads, self.turned, self.size = heads, turned, width // heads
        self.q = nn.Linear(width, heads * (self.size + turned))
        self.narrow = nn.Linear(width, narrow + turned)
        self.norm = nn.RMSNorm(narrow)
        self.wide = nn.Linear(narrow, heads * self.size * 2)
        self.out = nn.Linear(width, width)

    def turn(self, x: Tensor) -> Tensor:
        half = self.turned // 2
        rates = 100.0 ** (-torch.arange(half, dtype=torch.float32) / half)
        angles = torch.outer(torch.arange(x.shape[-2], dtype=torch.float32), rates)
        a, b = x[..., 0::2], x[..., 1::2]
        pairs = (a * angles.cos() - b * angles.sin(), a * angles.sin() + b * angles.cos())
        return torch.stack(pairs, dim=-1).flatten(-2)

    def forward(self, x: Tensor) -> Tensor:
        n, length, width = x.shape
        q = self.q(x).view(n, length, self.heads, -1).transpose(1, 2)
        q = torch.cat((q[..., : self.size], self.turn(q[..., self.size :])), dim=-1)
        narrow, shared = self.narrow(x).split(
            (self.narrow.out_features - self.turned, self.turned), -1
        )
        k, v = (
            self.wide(self.norm(narrow))
            .view(n, length, self.heads, -1)
            .transpose(1, 2)
            .chunk(2, -1)
        )
        shared = self.turn(shared.unsqueeze(1)).expand(-1, self.heads, -1, -1)
        y = F.scaled_dot_product_attention(q, torch.cat((k, shared), -1), v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(n, length, width))


MODERN = {
    "wavenet": Network(WaveNet, sound(1, 400)),
    "hifigan": Network(HiFiGAN, numbers((20, 17))),
    "tcn": Network(TCN, numbers((3, 50))),
    "rcan": Network(RCAN, pictures(3, 24, 20)),
    "esrgan": Network(ESRGAN, pictures(3, 24, 20)),
    "style_generator": Network(StyleGenerator, numbers((16,))),
    "diffusion_unet": Network(DiffusionUNet, noise_and_steps),
    "vq_vae": Network(VQVAE, pictures(3, 32, 32)),
    "bifpn": Network(BiFPN, pictures(3, 64, 96)),
    "volume_unet": Network(VolumeUNet, numbers((1, 12, 16, 20))),
    "r2plus1d": Network(R2Plus1D, numbers((3, 5, 24, 20))),
    "conv_lstm": Network(ConvLSTM, numbers((4, 3, 12, 14))),
    "pointnet": Network(PointNet, numbers((3, 40))),
    "graph_net": Network(GraphNet, nodes_and_edges, others=(("another graph", nodes_and_edges),)),
    "fourier_operator": Network(FourierOperator, numbers((2, 64))),
    "nerf": Network(NeRF, numbers((9, 3), (9, 3))),
    "selective_scan": Network(SelectiveScan, numbers((10, 24))),
    "experts": Network(Experts, numbers((7, 24))),
    "latent_attention": Network(LatentAttention, numbers((11, 48))),
}

__all__ = ["MODERN"]
