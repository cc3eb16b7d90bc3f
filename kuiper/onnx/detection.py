"""Operators of detectors: suppression of boxes, regions of images, deformable convolution."""

from __future__ import annotations

from typing import Any

import numpy as np

from kuiper.onnx.builder import Builder
from kuiper.onnx.registry import op
from kuiper.onnx.values import Ref
from kuiper.onnx.windows import window_pads, with_margins

__all__: list[str] = []


@op("NonMaxSuppression")
def non_max_suppression(
    b: Builder, boxes: Any, scores: Any, max_output_boxes_per_class: Any = None,
    iou_threshold: Any = None, score_threshold: Any = None, *, center_point_box: int = 0,
) -> Any:  # fmt: skip
    found = b.emit(
        "kuiper.NonMaxSuppression", boxes, scores=scores,
        limit=_number(b, max_output_boxes_per_class, 0),
        iou_threshold=_number(b, iou_threshold, 0.0),
        score_threshold=_number(b, score_threshold, None), centered=bool(center_point_box),
    )  # fmt: skip
    return b.declared(found, np.int64, (None, 3))


def _number(b: Builder, value: Any, default: Any) -> Any:
    """Return the element of an input that may be left out or empty."""
    if value is None or value.shape == (0,):
        return default
    return b.numbers(value)[0]


@op("RoiAlign")
def roi_align_old(
    b: Builder, x: Any, rois: Any, batch_indices: Any, *, mode: str = "avg",
    output_height: int = 1, output_width: int = 1, sampling_ratio: int = 0,
    spatial_scale: float = 1.0,
) -> Any:  # fmt: skip
    return roi_align(
        b, x, rois, batch_indices, coordinate_transformation_mode="output_half_pixel", mode=mode,
        output_height=output_height, output_width=output_width, sampling_ratio=sampling_ratio,
        spatial_scale=spatial_scale,
    )  # fmt: skip


@op("RoiAlign", since=16)
def roi_align(
    b: Builder, x: Any, rois: Any, batch_indices: Any, *,
    coordinate_transformation_mode: str = "half_pixel", mode: str = "avg",
    output_height: int = 1, output_width: int = 1, sampling_ratio: int = 0,
    spatial_scale: float = 1.0,
) -> Any:  # fmt: skip
    types = {"avg": "torchvision.ops.RoIAlign", "max": "kuiper.RoiAlignMax"}
    if mode not in types:
        raise b.error(f"mode is '{mode}', expected avg or max")
    aligned = {"half_pixel": True, "output_half_pixel": False}
    if coordinate_transformation_mode not in aligned:
        raise b.error(
            f"coordinate_transformation_mode is '{coordinate_transformation_mode}', expected "
            "half_pixel or output_half_pixel"
        )
    image = b.emit("torch.unsqueeze", b.cast(b.ref(batch_indices), np.float32), dim=1)
    return b.emit(
        types[mode], x, b.emit("torch.cat", image, rois, dim=1),
        output_size=(output_height, output_width), spatial_scale=spatial_scale,
        sampling_ratio=sampling_ratio, aligned=aligned[coordinate_transformation_mode],
    )  # fmt: skip


@op("MaxRoiPool")
def max_roi_pool(
    b: Builder, x: Any, rois: Any, *, pooled_shape: Any, spatial_scale: float = 1.0
) -> Any:
    return b.emit(
        "kuiper.RoiMaxPool", x, rois, output_size=tuple(pooled_shape), spatial_scale=spatial_scale
    )


@op("DeformConv")
def deform_conv(
    b: Builder, x: Any, w: Any, offset: Any, bias: Any = None, mask: Any = None, *,
    dilations: Any = None, group: int = 1, kernel_shape: Any = None, offset_group: int = 1,
    pads: Any = None, strides: Any = None,
) -> Any:  # fmt: skip
    if w.rank != 4:
        raise b.error(f"has filters with {w.rank - 2} spatial axes, expected 2")
    extents = b.extents(w)
    kernel = kernel_shape or extents[2:]
    if list(kernel) != list(extents[2:]):
        raise b.error(f"kernel_shape is {kernel}, but the filters have {extents[2:]}")
    channels = b.extents(offset)[1]
    if channels != 2 * offset_group * kernel[0] * kernel[1]:
        raise b.error(
            f"the offsets have {channels} channels, expected "
            f"{2 * offset_group * kernel[0] * kernel[1]} for {offset_group} groups"
        )
    stride, dilation = tuple(strides or (1, 1)), tuple(dilations or (1, 1))
    margins = window_pads(b, x, "NOTSET", pads, kernel, stride, dilation)
    padding = tuple(a for a, _ in margins)
    if any(a != c for a, c in margins):
        # Pixels outside of the image are zeros too.
        x, padding = with_margins(b, x, margins, 0.0), (0, 0)
    found: Ref = b.emit(
        "torchvision.ops.DeformConv2d", x, offset=offset, mask=mask, weight=w, bias=bias,
        stride=stride, padding=padding, dilation=dilation, groups=group,
    )  # fmt: skip
    return found
