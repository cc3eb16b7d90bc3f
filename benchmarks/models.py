"""The networks of the benchmark and their seeded weights.

Architectures come from torchvision; YOLOv5s and U-Net, which it lacks, are written here.
Needs torch and torchvision.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import torch
from common import HERE, images
from torch import Tensor, nn

SEED = 20


def import_torchvision():
    """Import torchvision, also where its compiled operators do not match this torch.

    The package from PyPI is built against the CUDA build of torch. Beside a CPU build its
    operators fail to load, and the import stops because three schemas are missing. None of
    them occurs in a classifier, so empty declarations are enough.
    """
    schemas = (
        "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
        "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
        "roi_align(Tensor input, Tensor rois, float spatial_scale, SymInt pooled_height, "
        "SymInt pooled_width, int sampling_ratio, bool aligned) -> Tensor",
    )
    try:
        import torchvision
    except RuntimeError as error:
        if "torchvision::" not in str(error):
            raise
        library = torch.library.Library("torchvision", "DEF")
        for schema in schemas:
            library.define(schema)
        # The registration ends with the object: it has to live as long as the process.
        import_torchvision.library = library
        import torchvision
    return torchvision


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


@dataclass(frozen=True)
class Spec:
    """A network of the benchmark: how to build it and the shape of one input, without the batch.

    `calm` is what :func:`keep_alive` knows it as.
    """

    build: Callable[[], nn.Module]
    input_shape: tuple[int, ...] = (3, 224, 224)
    calm: bool = False


def _torchvision(name: str, **options) -> Callable[[], nn.Module]:
    return lambda: getattr(import_torchvision().models, name)(weights=None, **options)


MODELS = {
    "resnet18": Spec(_torchvision("resnet18")),
    "resnet50": Spec(_torchvision("resnet50")),
    "vgg16": Spec(_torchvision("vgg16")),
    "mobilenet_v2": Spec(_torchvision("mobilenet_v2")),
    "mobilenet_v3_small": Spec(_torchvision("mobilenet_v3_small")),
    "efficientnet_b0": Spec(_torchvision("efficientnet_b0")),
    "squeezenet1_1": Spec(_torchvision("squeezenet1_1")),
    "shufflenet_v2_x1_0": Spec(_torchvision("shufflenet_v2_x1_0")),
    "densenet121": Spec(_torchvision("densenet121")),
    # The auxiliary classifier and the input's re-normalisation belong to training.
    "inception_v3": Spec(
        _torchvision("inception_v3", aux_logits=False, init_weights=False), (3, 299, 299)
    ),
    "convnext_tiny": Spec(_torchvision("convnext_tiny")),
    "vit_b_16": Spec(_torchvision("vit_b_16")),
    "swin_t": Spec(_torchvision("swin_t")),
    "yolov5s": Spec(YOLOv5s, (3, 640, 640)),
    "unet": Spec(UNet, (3, 512, 512)),
}


# One or two of many families.
OTHERS = tuple((HERE / "others.txt").read_text("utf-8").split())


def spec_of(name: str) -> Spec:
    """Return what a name stands for: one of `MODELS` or of `kinds.KINDS`, or ``timm:NAME``.

    Raises
    ------
    KeyError
        If there is no such network.
    """
    source, _, architecture = name.partition(":")
    if name in MODELS:
        return MODELS[name]
    if source != "timm":
        from kinds import KINDS  # which is made of what stands here

        return KINDS[name]
    import_torchvision()  # timm imports it
    import timm

    if not timm.is_model(architecture):
        raise KeyError(name)
    size = timm.get_pretrained_cfg(architecture).input_size
    return Spec(lambda: timm.create_model(architecture, exportable=True), size, calm=True)


WEIGHTED = (nn.Conv1d, nn.Conv2d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.Linear)
BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d)
NORMS = (*BATCH_NORMS, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)


def keep_alive(
    module: nn.Module, x: Tensor | tuple[Tensor, ...], seed: int, calm: bool = False
) -> None:
    """Give `module` random weights under which the signal neither dies nor explodes.

    A freshly built network is a bad test: a MobileNet puts out about 1e-9, a ViT's head is
    zero, a ConvNeXt scales its branches by 1e-6, and batch norms are the identity. Here every
    parameter is random, each convolution and linear layer is scaled to an output deviation of
    1 on `x` (layer-sequential unit variance), and each batch norm stores roughly the
    statistics it meets. Its bias is about 1, one deviation: were it 0, a ReLU behind it would
    discard so much of the signal, which the next batch norm scales up again, that rounding
    errors grow by a fifth in every layer, and no two correct runtimes agree after sixty.

    Parameters
    ----------
    module : nn.Module
        Changed in place and left in evaluation mode.
    x : Tensor or tuple of Tensor
        Images for the calibration, (n, c, h, w), or whatever the module takes.
    seed : int
        Seed of the random parameters.
    calm : bool
        For networks that need it: biases of layers are about 1, for ReLUs ahead of a batch norm;
        those of batch norms about 0 and their weights less than 1, for attention behind them; gains
        (numbers that scale a whole layer) are 1.
    """
    generator = torch.Generator().manual_seed(seed)

    def normal(parameter: Tensor, deviation: float) -> None:
        parameter.copy_(torch.randn(parameter.shape, generator=generator) * deviation)

    def uniform(parameter: Tensor, low: float, high: float) -> None:
        parameter.copy_(torch.rand(parameter.shape, generator=generator) * (high - low) + low)

    def initialise(owner: nn.Module, name: str, parameter: Tensor) -> None:
        if isinstance(owner, NORMS):
            if name == "weight":
                uniform(parameter, 0.7, 1.3)
                if calm and isinstance(owner, BATCH_NORMS):
                    parameter.mul_(0.4)
            else:
                normal(parameter, 0.2)
                parameter.add_(isinstance(owner, nn.BatchNorm2d) and not calm)
        elif name == "layer_scale":
            uniform(parameter, 0.1, 0.5)
        elif parameter.dim() > 1 and (name.endswith("weight") or name.startswith("weight_")):
            fan_in = parameter[0].numel()
            normal(parameter, fan_in**-0.5)
        elif name.endswith("bias"):
            normal(parameter, 0.1)
            if calm:
                parameter.add_(1)
        elif calm and (parameter.dim() == 0 or "gain" in name):
            parameter.fill_(1)
        else:  # tokens, position embeddings, tables of relative positions
            normal(parameter, 0.5)

    def scale_weight(layer: nn.Module, inputs: tuple[Tensor], output: Tensor) -> Tensor:
        layer.weight.div_(output.std())
        return layer.forward(*inputs)

    def set_statistics(layer: nn.Module, inputs: tuple[Tensor]) -> None:
        axes = [axis for axis in range(inputs[0].dim()) if axis != 1]
        variance, mean = torch.var_mean(inputs[0], axes)
        jitter = torch.randn(mean.shape, generator=generator)
        variance.clamp_(min=1e-2 * float(variance.mean()))
        if calm:  # two images that give nearly the same make the difference between them no larger
            variance.clamp_(min=0.05 * float(inputs[0].square().mean()))
        layer.running_mean.copy_(mean + 0.1 * variance.sqrt() * jitter)
        layer.running_var.copy_(variance)

    module.eval()
    handles = []
    with torch.no_grad():
        for owner in module.modules():
            for name, parameter in owner.named_parameters(recurse=False):
                initialise(owner, name, parameter)
            if isinstance(owner, WEIGHTED):
                handles.append(owner.register_forward_hook(scale_weight))
            elif isinstance(owner, BATCH_NORMS):
                handles.append(owner.register_forward_pre_hook(set_statistics))
        module(*x) if isinstance(x, tuple) else module(x)
    for handle in handles:
        handle.remove()


def build(name: str) -> nn.Module:
    """Build the network `name` with its seeded weights, in evaluation mode."""
    spec = spec_of(name)
    module = spec.build()
    keep_alive(module, torch.from_numpy(images((2, *spec.input_shape), SEED)), SEED, spec.calm)
    return module


def outputs(result: Tensor | tuple[Tensor, ...]) -> list[Tensor]:
    """Return a module's result as a list of tensors."""
    return list(result) if isinstance(result, tuple | list) else [result]


__all__ = [
    "MODELS",
    "OTHERS",
    "SEED",
    "Spec",
    "build",
    "import_torchvision",
    "keep_alive",
    "outputs",
    "spec_of",
]
