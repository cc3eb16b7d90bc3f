"""What a network of the benchmarks is, and where torchvision comes from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

__all__ = ["Spec", "import_torchvision"]


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


@dataclass(frozen=True)
class Spec:
    """A network of the benchmark: how to build it and the shape of one input, without the batch.

    `calm` is what :func:`.weights.keep_alive` knows it as.
    """

    build: Callable[[], nn.Module]
    input_shape: tuple[int, ...] = (3, 224, 224)
    calm: bool = False
