"""YOLOv5s and U-Net, which torchvision lacks."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn

__all__ = ["ConvSiLU", "DoubleConv", "UNet", "YOLOv5s"]


class ConvSiLU(nn.Sequential):
    """Convolution with "same" padding, batch norm and SiLU, the brick of YOLOv5."""

    def __init__(self, inputs: int, outputs: int, kernel: int = 1, stride: int = 1, padding=None):
        super().__init__(
            nn.Conv2d(
                inputs,
                outputs,
                kernel,
                stride,
                kernel // 2 if padding is None else padding,
                bias=False,
            ),
            nn.BatchNorm2d(outputs, eps=1e-3),
            nn.SiLU(),
        )


class Bottleneck(nn.Module):
    """1x1 and 3x3 convolution, with a shortcut where the neck does not forbid it."""

    def __init__(self, channels: int, shortcut: bool):
        super().__init__()
        self.cv1 = ConvSiLU(channels, channels, 1)
        self.cv2 = ConvSiLU(channels, channels, 3)
        self.shortcut = shortcut

    def forward(self, x: Tensor) -> Tensor:
        y = self.cv2(self.cv1(x))
        return x + y if self.shortcut else y


class C3(nn.Module):
    """Cross-stage block: bottlenecks on one half of the channels, a 1x1 on the other."""

    def __init__(self, inputs: int, outputs: int, depth: int, shortcut: bool = True):
        super().__init__()
        half = outputs // 2
        self.cv1 = ConvSiLU(inputs, half)
        self.cv2 = ConvSiLU(inputs, half)
        self.cv3 = ConvSiLU(outputs, outputs)
        self.m = nn.Sequential(*(Bottleneck(half, shortcut) for _ in range(depth)))

    def forward(self, x: Tensor) -> Tensor:
        return self.cv3(torch.cat((self.m(self.cv1(x)), self.cv2(x)), 1))


class SPPF(nn.Module):
    """Three 5x5 max pools in a row, all four stages concatenated."""

    def __init__(self, channels: int):
        super().__init__()
        half = channels // 2
        self.cv1 = ConvSiLU(channels, half)
        self.cv2 = ConvSiLU(half * 4, channels)
        self.pool = nn.MaxPool2d(5, 1, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.cv1(x)
        y = self.pool(x)
        z = self.pool(y)
        return self.cv2(torch.cat((x, y, z, self.pool(z)), 1))


class YOLOv5s(nn.Module):
    """Backbone, neck and the three head convolutions of YOLOv5s (release 6).

    (n, 3, 640, 640) -> (n, 255, 80, 80), (n, 255, 40, 40), (n, 255, 20, 20): the maps
    before the decoding, which every runtime leaves to its caller. With half the base width it is
    YOLOv5n.
    """

    def __init__(self, outputs: int = 255, base: int = 32):
        super().__init__()
        w1, w2, w3, w4, w5 = (base << level for level in range(5))
        self.stem = ConvSiLU(3, w1, 6, 2, 2)
        self.down2, self.stage2 = ConvSiLU(w1, w2, 3, 2), C3(w2, w2, 1)
        self.down3, self.stage3 = ConvSiLU(w2, w3, 3, 2), C3(w3, w3, 2)
        self.down4, self.stage4 = ConvSiLU(w3, w4, 3, 2), C3(w4, w4, 3)
        self.down5, self.stage5 = ConvSiLU(w4, w5, 3, 2), C3(w5, w5, 1)
        self.sppf = SPPF(w5)
        self.lateral5, self.merge4 = ConvSiLU(w5, w4), C3(w5, w4, 1, shortcut=False)
        self.lateral4, self.merge3 = ConvSiLU(w4, w3), C3(w4, w3, 1, shortcut=False)
        self.up = nn.Upsample(scale_factor=2.0, mode="nearest")
        self.reduce3, self.out4 = ConvSiLU(w3, w3, 3, 2), C3(w4, w4, 1, shortcut=False)
        self.reduce4, self.out5 = ConvSiLU(w4, w4, 3, 2), C3(w5, w5, 1, shortcut=False)
        self.heads = nn.ModuleList(nn.Conv2d(width, outputs, 1) for width in (w3, w4, w5))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x = self.stage2(self.down2(self.stem(x)))
        x3 = self.stage3(self.down3(x))
        x4 = self.stage4(self.down4(x3))
        x5 = self.lateral5(self.sppf(self.stage5(self.down5(x4))))
        y4 = self.lateral4(self.merge4(torch.cat((self.up(x5), x4), 1)))
        y3 = self.merge3(torch.cat((self.up(y4), x3), 1))
        z4 = self.out4(torch.cat((self.reduce3(y3), y4), 1))
        z5 = self.out5(torch.cat((self.reduce4(z4), x5), 1))
        return self.heads[0](y3), self.heads[1](z4), self.heads[2](z5)


class DoubleConv(nn.Sequential):
    """Two 3x3 convolutions, each with batch norm and ReLU."""

    def __init__(self, inputs: int, outputs: int):
        super().__init__(
            nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(inplace=True),
            nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(inplace=True),
        )


class UNet(nn.Module):
    """U-Net with base width 64 and transposed convolutions on the way up.

    (n, 3, 512, 512) -> (n, 2, 512, 512)
    """

    def __init__(self, channels: int = 3, classes: int = 2, base: int = 64):
        super().__init__()
        widths = [base << level for level in range(5)]
        self.stem = DoubleConv(channels, base)
        self.down = nn.ModuleList(
            nn.Sequential(nn.MaxPool2d(2), DoubleConv(a, b)) for a, b in pairwise(widths)
        )
        upwards = list(pairwise(widths[::-1]))
        self.up = nn.ModuleList(nn.ConvTranspose2d(a, b, 2, 2) for a, b in upwards)
        self.merge = nn.ModuleList(DoubleConv(a, b) for a, b in upwards)
        self.head = nn.Conv2d(base, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        levels = [self.stem(x)]
        for block in self.down:
            levels.append(block(levels[-1]))
        y = levels.pop()
        for up, merge in zip(self.up, self.merge, strict=True):
            y = merge(torch.cat((levels.pop(), up(y)), 1))
        return self.head(y)
