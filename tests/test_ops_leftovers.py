"""What the records of sampling, sorting, folding and Einstein summation refuse, and how."""

from __future__ import annotations

import numpy as np
import pytest

from kuiper.errors import OperatorError, ShapeError

from .textgraph import model_of, values


def build(lines: str, *inputs: np.ndarray):
    """Run a graph of one operator and its constants; the result is called y."""
    ends = [f"pnnx.Input in{i} 0 1 x{i}" for i in range(len(inputs))]
    text = "\n".join([*ends, lines, "pnnx.Output out 1 0 y"])
    return model_of(text)(*inputs)


IMAGE = values(1, 2, 5, 6)


@pytest.mark.parametrize(
    ("lines", "inputs", "message"),
    [
        ("torch.einsum e 2 1 x0 x1 y equation=ij,jk->il", [(2, 3), (3, 4)], "but no operand has"),
        ("torch.einsum e 2 1 x0 x1 y equation=ij,jk->ii", [(2, 3), (3, 4)], "twice"),
        ("torch.einsum e 2 1 x0 x1 y equation=ij,jk", [(2, 3), (4, 4)], "extent 4 for letter 'j'"),
        ("torch.einsum e 1 1 x0 y equation=ii", [(2, 3)], "extents 2 and 3"),
        ("torch.einsum e 1 1 x0 y equation=i$j", [(2, 3)], "expected letters"),
        ("torch.einsum e 1 1 x0 y equation=ij,jk", [(2, 3)], "for 2 operands, but there are 1"),
        ("torch.einsum e 1 1 x0 y equation=ijk", [(2, 3)], "gives it 3 letters"),
        (
            "F.unfold e 1 1 x0 y dilation=(1,1) kernel_size=(9,9) padding=(0,0) stride=(1,1)",
            [(1, 2, 5, 6)],
            "does not fit",
        ),
        (
            "F.fold e 1 1 x0 y dilation=(1,1) kernel_size=(2,2) output_size=(4,4) padding=(0,0) "
            "stride=(1,1)",
            [(1, 8, 7)],
            "3 by 3 blocks",
        ),
        (
            "F.grid_sample e 2 1 x0 x1 y align_corners=False mode=bilinear padding_mode=zeros",
            [(1, 2, 5, 6), (1, 2, 2, 3)],
            r"expected \(1, ..., 2\)",
        ),
        (
            "F.grid_sample e 2 1 x0 x1 y align_corners=False mode=bicubic padding_mode=zeros",
            [(1, 2, 3, 5, 6), (1, 2, 2, 2, 3)],
            "bilinear or nearest for a volume",
        ),
        (
            "torchvision.ops.RoIAlign e 2 1 x0 x1 y aligned=False output_size=(2,2) "
            "sampling_ratio=2147483647 spatial_scale=1.0",
            [(1, 2, 5, 6), (3, 5)],
            "expected at most 4096",
        ),
        (
            "torchvision.ops.DeformConv2d e 2 1 x0 x1 y bias=False dilation=(1,1) groups=1 "
            "in_channels=2 kernel_size=(3,3) out_channels=4 padding=(0,0) stride=(1,1) "
            "@weight=(4,2,3,3)f32",
            [(1, 2, 5, 6), (1, 17, 3, 4)],
            "'offset' has shape",
        ),
        ("torch.as_strided e 1 1 x0 y size=(3,3) stride=(9,1)", [(2, 3)], "element would be"),
        ("torch.addmm e 3 1 x0 x1 x2 y alpha=1 beta=1", [(7,), (2, 3), (3, 4)], "do not broadcast"),
        ("torch.cross e 2 1 x0 x1 y dim=None", [(2, 4), (2, 4)], "no axis of extent 3"),
    ],
)
def test_refused(lines, inputs, message):
    with pytest.raises((ShapeError, OperatorError), match=message):
        build(lines, *(values(*shape) for shape in inputs))


def test_a_box_of_no_image_gives_nan():
    boxes = np.array([[0, 0, 0, 4, 4], [7, 0, 0, 4, 4], [0, np.nan, 0, 4, 4]], np.float32)
    lines = (
        "torchvision.ops.RoIAlign e 2 1 x0 x1 y aligned=True output_size=(2,2) sampling_ratio=2 "
        "spatial_scale=1.0"
    )
    y = build(lines, IMAGE, boxes)
    assert np.isfinite(y[0]).all()
    assert np.isnan(y[1:]).all()


def test_a_huge_box_takes_no_time():
    boxes = np.array([[0, -1e30, -1e30, 1e30, 1e30]], np.float32)
    lines = (
        "torchvision.ops.RoIAlign e 2 1 x0 x1 y aligned=True output_size=(2,2) sampling_ratio=-1 "
        "spatial_scale=1.0"
    )
    assert build(lines, IMAGE, boxes).shape == (1, 2, 2, 2)
