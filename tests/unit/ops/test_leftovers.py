"""What the records of sampling, sorting, folding and Einstein summation refuse."""

from __future__ import annotations

import numpy as np
import pytest

import kuiper
from kuiper.errors import OperatorError, ShapeError

from ...support.textgraph import model_of, values


def build(lines: str, *inputs: np.ndarray):
    """Run a graph of one operator, whose result is y, and its constants."""
    kinds = ["i64" if x.dtype.kind == "i" else "f32" for x in inputs]
    shapes = [",".join(map(str, x.shape)) for x in inputs]
    ends = [
        f"pnnx.Input in{i} 0 1 x{i} #x{i}=({shape}){kind}"
        for i, (shape, kind) in enumerate(zip(shapes, kinds, strict=True))
    ]
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
        ("aten::bincount e 1 1 x0 y", [(5,)], "the input is float32, expected integers"),
        (
            "F.interpolate e 1 1 x0 y scale_factor=1e308",
            [(1, 2, 5, 6)],
            r"'scale_factor' is \(1e\+308, 1e\+308\), with which an input",
        ),
        ("F.interpolate e 1 1 x0 y scale_factor=nan", [(1, 2, 5, 6)], "no finite extents"),
        ("F.interpolate e 1 1 x0 y scale_factor=-1.0", [(1, 2, 5, 6)], "leaves nothing"),
        (
            "aten::_upsample_bilinear2d_aa e 1 1 x0 y align_corners=False scales=(1e308,1.0) "
            "output_size=None",
            [(1, 2, 5, 6)],
            "no finite extents",
        ),
    ],
)
def test_refused(lines, inputs, message):
    with pytest.raises((ShapeError, OperatorError), match=message):
        build(lines, *(values(*shape) for shape in inputs))


def test_a_box_of_an_invalid_image_gives_nan():
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


def test_counts_of_wrong_numbers_are_refused():
    for numbers, message in ([3, -1], "holds -1"), ([1 << 40], "1099511627777 elements"):
        with pytest.raises(ShapeError, match=message):
            build("aten::bincount e 1 1 x0 y", np.array(numbers))


def test_weights_of_other_types_are_refused():
    x, weight = values(1, 4, 3, 2), np.arange(4)
    line = "F.prelu e 2 1 x0 x1 y $input=x0 $weight=x1"
    with pytest.raises(ShapeError, match="'weight' is int64, expected float32"):
        build(line, x, weight)
    line = (
        "F.batch_norm e 3 1 x0 x1 x2 y bias=None eps=1e-5 weight=None "
        "$input=x0 $running_mean=x1 $running_var=x2"
    )
    with pytest.raises(ShapeError, match="'running_mean' is int64, expected float32"):
        build(line, x, weight, weight)


@pytest.mark.parametrize("optimize", [True, False])
def test_values_are_not_checked_where_nothing_reads_the_result(optimize):
    text = """7767517
4 4
pnnx.Input in 0 1 x #x=(1,2,4,2,6)f32
F.max_pool3d pool 1 2 x y i kernel_size=(2,2,2)
nn.MaxUnpool3d unpool 2 1 y i z kernel_size=1
pnnx.Output out 1 0 y
"""
    x = values(1, 2, 4, 2, 6)
    y = kuiper.load(text.encode(), optimize=optimize)(x)
    assert np.array_equal(y, x.reshape(1, 2, 2, 2, 1, 2, 3, 2).max((3, 5, 7)))
    with pytest.raises(ShapeError, match="'unpool'"):
        kuiper.load(text.replace("0 y\n", "0 z\n").encode(), optimize=optimize)(x)
