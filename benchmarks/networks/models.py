"""The networks of the benchmarks by name.

Architectures come from torchvision if it has them.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from common import images
from networks.kinds import KINDS
from networks.spec import Spec, import_torchvision
from networks.vision import UNet, YOLOv5s
from networks.weights import SEED, keep_alive

__all__ = ["MODELS", "OTHERS", "build", "spec_of"]


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
OTHERS = tuple(Path(__file__).with_name("others.txt").read_text("utf-8").split())


def spec_of(name: str) -> Spec:
    """Return the network of a name: one of `MODELS` or of `KINDS`, or ``timm:NAME``.

    Raises
    ------
    KeyError
        If there is no such network.
    """
    source, _, architecture = name.partition(":")
    if name in MODELS:
        return MODELS[name]
    if source != "timm":
        return KINDS[name]
    import_torchvision()  # timm imports it
    import timm

    if not timm.is_model(architecture):
        raise KeyError(name)
    size = timm.get_pretrained_cfg(architecture).input_size
    return Spec(lambda: timm.create_model(architecture, exportable=True), size, calm=True)


def build(name: str) -> nn.Module:
    """Build the network `name` with its seeded weights, in evaluation mode."""
    spec = spec_of(name)
    module = spec.build()
    keep_alive(module, torch.from_numpy(images((2, *spec.input_shape), SEED)), SEED, spec.calm)
    return module
