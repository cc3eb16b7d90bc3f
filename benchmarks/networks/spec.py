"""The description of a network, and the import of torchvision."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

__all__ = ["Spec", "import_torchvision"]


def import_torchvision():
    """Import torchvision, even if its compiled operators do not match this torch.

    The package from PyPI is built against the CUDA build of torch. With a CPU build its
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
        # The registration ends with the object, so keep it as long as the process lives.
        import_torchvision.library = library
        import torchvision
    return torchvision


@dataclass(frozen=True)
class Spec:
    """A network of the benchmark: how to build it and the shape of one input, without the batch.

    `calm` is the argument of :func:`.weights.keep_alive`.
    """

    build: Callable[[], nn.Module]
    input_shape: tuple[int, ...] = (3, 224, 224)
    calm: bool = False
