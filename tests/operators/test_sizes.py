"""Operators at sizes and in layouts for which another kernel is used, against the references."""

from __future__ import annotations

import numpy as np
import pytest

import kuiper
from kuiper.errors import OperatorError

from ..support import load_cases
from ..support.cases import reference_outputs
from ..support.compare import assert_outputs
from ..support.engine import n_threads
from ..support.engine import run as run_engine
from ..support.textgraph import files_of, graph_of, lines_of, values

KINDS = {"float32": "f32", "int64": "i64", "int32": "i32", "bool": "bool"}


def graph_text(lines: str, inputs, outputs: str) -> str:
    ends = [
        f"pnnx.Input in{i} 0 1 x{i} #x{i}=({','.join(map(str, x.shape))}){KINDS[x.dtype.name]}"
        for i, x in enumerate(inputs)
    ]
    outs = [f"pnnx.Output out{i} 1 0 {name}" for i, name in enumerate(outputs.split())]
    return "\n".join([*ends, lines, *outs])


def run(lines: str, *inputs, outputs: str = "y"):
    """Run a graph of one operator."""
    results = kuiper.load(*files_of(graph_text(lines, inputs, outputs)))(*inputs)
    return list(results) if isinstance(results, tuple | list) else [results]


def check(lines: str, *inputs, outputs: str = "y", rtol: float = 1e-5):
    """Compare with the reference, on one thread and on two."""
    param, archive = files_of(graph_text(lines, inputs, outputs))
    expected = reference_outputs(param, archive, inputs)
    for count in (1, 2):
        with n_threads(count):
            assert_outputs(run(lines, *inputs, outputs=outputs), expected, rtol)


def grid(*shape, reach=1.3, seed=0):
    return np.random.default_rng(seed).uniform(-reach, reach, shape).astype(np.float32)


@pytest.mark.parametrize("align", [True, False])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["bilinear", "nearest"])
@pytest.mark.parametrize("channels", [1, 3, 6, 18])
def test_grids_over_few_and_many_channels(channels, mode, padding, align):
    """A block has 128 points, so that the second one of a 13 x 11 plane is partial."""
    lines = (
        f"F.grid_sample s 2 1 x0 x1 y mode={mode} padding_mode={padding} align_corners={align} "
        "$input=x0 $grid=x1"
    )
    check(lines, values(2, channels, 7, 6), grid(2, 13, 11, 2), rtol=3e-5)
    check(lines, values(1, channels, 3, 5, 4), grid(1, 3, 5, 9, 3), rtol=3e-5)


@pytest.mark.parametrize("channels", [3, 18])
@pytest.mark.parametrize("mode", ["bilinear", "nearest"])
def test_points_outside_an_image_do_not_spoil_others(channels, mode):
    """Zero times infinity is NaN, which must not appear at an edge or between two images."""
    image = np.full((2, channels, 4, 5), np.inf, np.float32)
    positions = np.array([-1.5, 1.5, -1.19, 1.19, -1.0, 1.0], np.float32)
    points = np.stack(np.meshgrid(positions, positions), -1)[np.newaxis].repeat(2, 0)
    lines = f"F.grid_sample s 2 1 x0 x1 y mode={mode} padding_mode=zeros align_corners=False"
    (result,) = run(lines, image, points)
    assert not np.isnan(result).any()
    assert (result[:, :, 0] == 0).all()
    inside = result[:, :, 2:, 2:] if mode == "bilinear" else result[:, :, 4, 4]
    assert np.isinf(inside).all()


def test_a_grid_over_channels_last_images():
    """The output of a convolution is read in its layout."""
    text = """
        pnnx.Input in0 0 1 x0 #x0=(2,4,6,7)f32
        pnnx.Input in1 0 1 x1 #x1=(2,5,9,2)f32
        nn.Conv2d c 1 1 x0 h in_channels=4 out_channels=5 kernel_size=(3,3) stride=(1,1) \
padding=(1,1) dilation=(1,1) groups=1 bias=False padding_mode=zeros @weight=(5,4,3,3)f32
        F.grid_sample s 2 1 h x1 y mode=bilinear padding_mode=border align_corners=False
        pnnx.Output out 1 0 y
    """
    param, archive = files_of(text)
    inputs = [values(2, 4, 6, 7), grid(2, 5, 9, 2)]
    model = kuiper.load(param, archive)
    assert_outputs([model(*inputs)], reference_outputs(param, archive, inputs), 3e-5)
    kinds = [step.kind for step in model.plan((2, 4, 6, 7), (2, 5, 9, 2)).steps]
    assert kinds.index("grid_sample") == 1  # without a copy before it


@pytest.mark.parametrize("k", [1, 2, 7, 32, 33, 60, 700])
@pytest.mark.parametrize("largest", [True, False])
def test_topk_of_long_lines(k, largest):
    x = np.random.default_rng(k).integers(-40, 40, (3, 1400)).astype(np.float32)
    x[2] = np.sort(x[2])
    lines = f"torch.topk t 1 2 x0 y p k={k} dim=-1 largest={largest} sorted=True"
    check(lines, x, outputs="y p")


@pytest.mark.parametrize("rows", [(3, 4), (40, 7), (5, 300)])
@pytest.mark.parametrize("p", [0.0, 0.5, 1.0, 2.0, 3.0, float("inf")])
def test_distances(rows, p):
    lines = f"aten::cdist d 2 1 x0 x1 y p={p} compute_mode=None $x1=x0 $x2=x1"
    check(lines, values(2, rows[0], 9), values(1, rows[1], 9, seed=1), rtol=3e-5)


@pytest.mark.parametrize("mode", [1, 2])
def test_modes_of_euclidean_distance(mode):
    lines = f"aten::cdist d 2 1 x0 x1 y p=2.0 compute_mode={mode} $x1=x0 $x2=x1"
    check(lines, values(6, 33), values(30, 33, seed=1), rtol=3e-5)


@pytest.mark.parametrize("dtype", [np.float32, np.int64])
@pytest.mark.parametrize("right", [True, False])
def test_searches(right, dtype):
    edges = np.sort(values(2, 70) * 9, axis=-1).astype(dtype)
    found = np.concatenate([edges[:, ::3], (values(2, 200, seed=1) * 12).astype(dtype)], -1)
    search = f"aten::searchsorted s 2 1 x0 x1 y out_int32=False right={right} side=None sorter=None"
    check(f"{search} $sorted_sequence=x0 $values=x1", edges, found)
    lines = f"aten::bucketize s 2 1 x0 x1 y out_int32=True right={right} $input=x0 $boundaries=x1"
    check(lines, found, edges[0])


def test_nan_in_searches():
    lines = "aten::bucketize s 2 1 x0 x1 y out_int32=False right=False $input=x0 $boundaries=x1"
    x, edges = np.array([np.nan, 0.5], np.float32), np.array([0, 1, 2], np.float32)
    assert run(lines, x, edges)[0].tolist() == [3, 1]


def test_bags_with_indices_out_of_range():
    lines = (
        "aten::embedding_bag e 3 1 x0 x1 x2 y scale_grad_by_freq=False mode=0 sparse=False "
        "per_sample_weights=None include_last_offset=False padding_idx=None "
        "$weight=x0 $indices=x1 $offsets=x2"
    )
    table, offsets = values(5, 3), np.array([0, 2])
    (result,) = run(lines, table, np.array([4, 1, 0]), offsets)
    np.testing.assert_allclose(result, [table[4] + table[1], table[0]], rtol=1e-6)
    with pytest.raises(
        OperatorError, match=r"'e'.*index 5 is out of range for an axis of extent 5"
    ):
        run(lines, table, np.array([4, 5, 0]), offsets)


def test_masks_that_select_more_than_there_is():
    lines = "aten::masked_scatter m 3 1 x0 x1 x2 y $input=x0 $mask=x1 $source=x2"
    mask = np.array([[True], [False], [True]])
    x, source = values(3, 4), values(9, seed=1)
    (result,) = run(lines, x, mask, source)
    np.testing.assert_array_equal(result[[0, 2]].ravel(), source[:8])
    np.testing.assert_array_equal(result[1], x[1])
    with pytest.raises(OperatorError, match="true 8 times, 'source' has 7"):
        run(lines, x, mask, source[:7])


@pytest.mark.parametrize("reduce", ["sum", "mean", "prod", "amax", "amin"])
@pytest.mark.parametrize("include_self", [True, False])
def test_reductions_with_and_without_the_input(reduce, include_self):
    index = np.random.default_rng(0).integers(0, 5, (40, 3))
    lines = (
        f"aten::scatter_reduce s 3 1 x0 x1 x2 y dim=0 reduce={reduce} include_self={include_self} "
        "$input=x0 $index=x1 $src=x2"
    )
    check(lines, values(7, 3), index, values(40, 3, seed=1))


@pytest.mark.parametrize("name", ["median", "nanmedian", "mode", "kthvalue 1"])
def test_reductions_of_no_lines(name):
    """PyTorch refuses empty lines, but not an empty set of lines."""
    name, _, k = name.partition(" ")
    constants = {"k": k, "dim": "-1", "keep": "False"}
    lines = [f"pnnx.Expression e{n} 0 1 {n} expr={v}" for n, v in constants.items() if v]
    wires = " ".join(n for n, v in constants.items() if v)
    text = "\n".join([*lines, f"aten::{name} m {len(lines) + 1} 2 x0 {wires} y p"])
    try:
        results = run(text, np.zeros((0, 3), np.float32), outputs="y p")
    except OperatorError as error:
        pytest.fail(str(error))
    assert [r.shape for r in results] == [(0,), (0,)]
    with pytest.raises(OperatorError, match=r"nothing to take|at most 0"):
        run(text, np.zeros((3, 0), np.float32), outputs="y p")


def test_synonyms_are_fused():
    graph = graph_of("""
        pnnx.Input in0 0 1 x #x=(2,3)f32
        pnnx.Input in1 0 1 w #w=(2,3)f32
        aten::nan_to_num a 1 1 x a $input=x
        aten::log2 b 1 1 a b $input=a
        aten::lerp c 3 1 b x w c $input=b $end=x $weight=w
        pnnx.Output out 1 0 c
    """)
    model = kuiper.Model(graph)
    x, w = np.abs(values(2, 3)), values(2, 3, seed=1)
    x[0, 1:] = np.inf, 2.0
    steps = model.plan((2, 3), (2, 3)).steps
    assert [step.kind for step in steps] == ["elementwise"]
    log = np.log2(np.nan_to_num(x))
    np.testing.assert_allclose(model(x, w), log + w * (x - log), rtol=1e-5)
    assert len(lines_of(graph)) == 3


def test_the_median_of_an_empty_tensor():
    """PyTorch's results."""
    (result,) = run("aten::median m 1 1 x0 y", np.zeros((0, 3), np.float32))
    assert result.shape == ()
    assert np.isnan(result)


def test_a_mask_expanded_for_the_traced_batch():
    """All sequences share one mask, so it fits any batch."""
    case = next(c for c in load_cases("operators") if c.id.endswith("transformer/fast_stack"))
    model = kuiper.load(case.param, case.bin)
    (x,) = case.inputs
    (two,), (three,) = run_engine(model, [x]), run_engine(model, [np.concatenate([x, x[:1]])])
    np.testing.assert_array_equal(three, np.concatenate([two, two[:1]]))


def test_a_clamped_size_pads():
    lines = """
        pnnx.Expression extra 1 1 x0 n expr=sub(4,size(@0,1))
        torch.clamp least 1 1 n k max=None min=0 $input=n
        pnnx.Expression list 1 1 k p expr=[0,@0]
        F.pad pad 2 1 x0 p y mode=constant value=0.0 $input=x0 $pad=p
    """
    lines = "\n".join(line.strip() for line in lines.strip().splitlines())
    for size in (1, 4, 6):
        x = values(2, size)
        (y,) = run(lines, x)
        np.testing.assert_array_equal(y, np.pad(x, ((0, 0), (0, max(4 - size, 0)))))
