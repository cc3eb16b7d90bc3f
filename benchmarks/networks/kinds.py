"""Networks of other kinds: for text, sound, video, volumes and sequences; rarer ones for pictures.

Widely used architectures, written here if torchvision lacks them. Inputs of text networks are
embeddings, since a table lookup is no work. Needs torch and torchvision.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from networks.spec import Spec, import_torchvision

__all__ = ["KINDS"]


def encoder(depth: int, width: int, heads: int) -> nn.Module:
    """Build an encoder of transformer layers, (n, tokens, width) -> (n, tokens, width)."""
    layer = nn.TransformerEncoderLayer(
        width, heads, 4 * width, activation="gelu", batch_first=True, norm_first=True
    )
    return nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)


class SpeechEncoder(nn.Module):
    """Two convolutions along the time of a spectrogram, then an encoder, as in Whisper (tiny).

    (n, 80, 3000) -> (n, 1500, 384)
    """

    def __init__(self, bands: int = 80, width: int = 384):
        super().__init__()
        self.conv1 = nn.Conv1d(bands, width, 3, padding=1)
        self.conv2 = nn.Conv1d(width, width, 3, stride=2, padding=1)
        self.layers = encoder(4, width, 6)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.gelu(self.conv2(functional.gelu(self.conv1(x))))
        return self.layers(x.transpose(1, 2))


class Separator(nn.Module):
    """Dilated convolutions over time with normalisation, as in Conv-TasNet.

    (n, 64, times) -> (n, 64, times)
    """

    def __init__(self, channels: int = 64, width: int = 128, hidden: int = 256, depth: int = 8):
        super().__init__()
        self.first = nn.Conv1d(channels, width, 1)
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.Conv1d(width, hidden, 1),
                nn.PReLU(),
                nn.GroupNorm(1, hidden),
                nn.Conv1d(hidden, hidden, 3, padding=2**i, dilation=2**i, groups=hidden),
                nn.PReLU(),
                nn.GroupNorm(1, hidden),
                nn.Conv1d(hidden, width, 1),
            )
            for i in range(depth)
        )
        self.last = nn.Conv1d(width, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        for block in self.blocks:
            y = y + block(y)
        return x * torch.sigmoid(self.last(y))


class Tagger(nn.Module):
    """A recurrent network and a linear layer for each time, (n, times, inputs) -> (.., outputs)."""

    def __init__(self, body: nn.Module, width: int, outputs: int):
        super().__init__()
        self.body, self.head = body, nn.Linear(width, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x)[0])


class TextReader(nn.Module):
    """CRNN: convolutions, then a recurrent network from left to right.

    (n, 1, 32, width) -> (n, about width / 4, letters)
    """

    def __init__(self, letters: int = 37):
        super().__init__()
        layers: list[nn.Module] = []
        channels = 1
        for outputs, pool in ((64, 2), (128, 2), (256, None), (256, (2, 1)), (512, (2, 1))):
            layers += [nn.Conv2d(channels, outputs, 3, padding=1), nn.ReLU()]
            layers += [nn.MaxPool2d(pool)] if pool else []
            channels = outputs
        self.features = nn.Sequential(*layers, nn.Conv2d(512, 512, 2), nn.ReLU())
        self.reader = Tagger(
            nn.LSTM(512, 256, 2, bidirectional=True, batch_first=True), 512, letters
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.reader(self.features(x).squeeze(2).transpose(1, 2))


class Residual(nn.Module):
    """A network whose result is added to its input."""

    def __init__(self, *body: nn.Module):
        super().__init__()
        self.body = nn.Sequential(*body)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x)


def magnifier(width: int = 64, depth: int = 8) -> nn.Module:
    """Build EDSR: an image of twice the height and width, (n, 3, h, w) -> (n, 3, 2 h, 2 w)."""
    blocks = (
        Residual(
            nn.Conv2d(width, width, 3, padding=1), nn.ReLU(), nn.Conv2d(width, width, 3, padding=1)
        )
        for _ in range(depth)
    )
    return nn.Sequential(
        nn.Conv2d(3, width, 3, padding=1),
        *blocks,
        nn.Conv2d(width, 4 * width, 3, padding=1),
        nn.PixelShuffle(2),
        nn.Conv2d(width, 3, 3, padding=1),
    )


def generator(noise: int = 100, width: int = 64) -> nn.Module:
    """Build DCGAN's generator, (n, noise, 1, 1) -> (n, 3, 64, 64)."""
    layers: list[nn.Module] = []
    inputs = noise
    for i, outputs in enumerate((8 * width, 4 * width, 2 * width, width)):
        stride, padding = (1, 0) if i == 0 else (2, 1)
        layers += [
            nn.ConvTranspose2d(inputs, outputs, 4, stride, padding, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
        ]
        inputs = outputs
    return nn.Sequential(*layers, nn.ConvTranspose2d(width, 3, 4, 2, 1), nn.Tanh())


class VolumeUNet(nn.Module):
    """A U-Net of volumes with three levels, (n, 1, d, h, w) -> (n, 2, d, h, w)."""

    def __init__(self, base: int = 16):
        super().__init__()
        self.top, self.middle = self._block(1, base), self._block(base, 2 * base)
        self.bottom = self._block(2 * base, 4 * base)
        self.up2 = nn.ConvTranspose3d(4 * base, 2 * base, 2, 2)
        self.merge2 = self._block(4 * base, 2 * base)
        self.up1 = nn.ConvTranspose3d(2 * base, base, 2, 2)
        self.merge1 = self._block(2 * base, base)
        self.head = nn.Conv3d(base, 2, 1)

    @staticmethod
    def _block(inputs: int, outputs: int) -> nn.Module:
        return nn.Sequential(
            nn.Conv3d(inputs, outputs, 3, padding=1), nn.InstanceNorm3d(outputs), nn.LeakyReLU(0.01)
        )

    def forward(self, x: Tensor) -> Tensor:
        x1 = self.top(x)
        x2 = self.middle(functional.max_pool3d(x1, 2))
        y = self.up2(self.bottom(functional.max_pool3d(x2, 2)))
        y = self.up1(self.merge2(torch.cat((y, x2), 1)))
        return self.head(self.merge1(torch.cat((y, x1), 1)))


class Segmenter(nn.Module):
    """A segmentation network of torchvision without its outputs for training."""

    def __init__(self, name: str):
        super().__init__()
        make = getattr(import_torchvision().models.segmentation, name)
        self.body = make(weights=None, weights_backbone=None)

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x)["out"]


KINDS = {
    "text_encoder": Spec(lambda: encoder(12, 768, 12), (128, 768)),
    "small_text_encoder": Spec(lambda: encoder(6, 384, 12), (512, 384)),
    "speech_encoder": Spec(SpeechEncoder, (80, 3000)),
    "voice_separator": Spec(Separator, (64, 2000)),
    "lstm_both_ways": Spec(
        lambda: Tagger(nn.LSTM(80, 256, 2, batch_first=True, bidirectional=True), 512, 40),
        (100, 80),
    ),
    "gru": Spec(lambda: Tagger(nn.GRU(80, 512, 3, batch_first=True), 512, 40), (100, 80)),
    "text_reader": Spec(TextReader, (1, 32, 100)),
    "magnifier": Spec(magnifier, (3, 128, 128)),
    "generator": Spec(generator, (100, 1, 1)),
    "video_resnet18": Spec(
        lambda: import_torchvision().models.video.r3d_18(weights=None), (3, 16, 112, 112)
    ),
    "volume_unet": Spec(VolumeUNet, (1, 32, 64, 64)),
    "deeplab_mobilenet": Spec(lambda: Segmenter("deeplabv3_mobilenet_v3_large"), (3, 320, 320)),
    "perceptron": Spec(
        lambda: nn.Sequential(
            nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10)
        ),
        (784,),
    ),
}
