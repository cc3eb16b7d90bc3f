"""0-d tensors, which PyTorch treats as 1-d where an axis is given; the values are PyTorch's."""

from __future__ import annotations

import numpy as np
import pytest

from kuiper.errors import InputError

from ...support.textgraph import model_of

ONE = np.float32(1.5)


def run(line, x, outputs="y", declared="#x=()f32"):
    """Run one operator on a 0-d tensor; `line` names its outputs."""
    names = outputs.split()
    model = model_of(
        f"""
        pnnx.Input  in  0 1 x {declared}
        {line}
        pnnx.Output out {len(names)} 0 {outputs}
        """
    )
    return model(np.asarray(x))


@pytest.mark.parametrize("dim", [0, -1])
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("torch.squeeze   op 1 1 x y dim={dim} $input=x", 1.5),
        ("torch.transpose op 1 1 x y dim0={dim} dim1=0 $input=x", 1.5),
        ("torch.flip      op 1 1 x y dims=({dim}) $input=x", 1.5),
        ("F.normalize     op 1 1 x y dim={dim} eps=1e-12 p=2.0 $input=x", 1.0),
        ("torch.cumsum    op 1 1 x y dim={dim} $input=x", 1.5),
        ("torch.gather    op 1 1 x y dim={dim} index=0 $input=x", 1.5),
    ],
)
def test_axes_of_a_number(line, expected, dim):
    y = run(line.format(dim=dim), ONE)
    assert y.shape == ()
    assert y == np.float32(expected)


def test_an_invalid_axis():
    with pytest.raises(Exception, match="'dim' is 1, expected -1 to 0"):
        run("torch.squeeze op 1 1 x y dim=1 $input=x", ONE)


@pytest.mark.parametrize(
    "line",
    [
        "torch.topk op 1 2 x y i k=1 dim=-1 largest=True sorted=True $input=x",
        "torch.topk op 1 2 x y i k=1 dim=0 largest=False sorted=True $input=x",
        "torch.max  op 1 2 x y i dim=0 keepdim=False $input=x",
    ],
)
def test_indices_in_a_number(line):
    values, indices = run(line, ONE, "y i")
    assert (values.shape, indices.shape) == ((), ())
    assert values == ONE
    assert indices == 0
    assert indices.dtype == np.int64


@pytest.mark.parametrize(("x", "expected"), [(2.0, 2.0), (-2.0, -0.5)])
def test_a_weight_that_is_written_as_a_number(x, expected):
    assert run("F.prelu op 1 1 x y weight=0.25 $input=x", np.float32(x)) == expected


def test_an_input_of_undeclared_type_may_hold_integers():
    line = "torch.logical_not op 1 1 x y $input=x"
    for value, expected in ((0, True), (3, False)):
        for dtype in (np.int64, np.int32, np.uint8, np.bool_, np.float32):
            y = run(line, np.array(value, dtype), declared="")
            assert y.dtype == np.bool_
            assert y == expected


def test_one_model_for_several_types():
    model = model_of(
        """
        pnnx.Input      in  0 1 x
        pnnx.Expression e   1 1 x y expr=add(@0,@0)
        pnnx.Output     out 1 0 y
        """
    )
    for dtype in (np.float32, np.int64, np.float32, np.int32):
        y = model(np.full((2, 3), 4, dtype))
        assert y.dtype == dtype
        assert (y == 8).all()


def test_other_floats_and_other_declared_types_are_refused():
    line = "torch.logical_not op 1 1 x y $input=x"
    with pytest.raises(InputError, match="float64"):
        run(line, np.float64(1.5), declared="")
    with pytest.raises(InputError, match="int64"):
        run(line, np.int64(1))
