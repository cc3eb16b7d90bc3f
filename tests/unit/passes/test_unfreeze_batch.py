"""Unfreezing the batch: each member of a batch gives the same as alone."""

from __future__ import annotations

import numpy as np
import pytest

from kuiper.errors import OperatorError, ShapeError
from kuiper.ir import Graph
from kuiper.model import Model
from kuiper.passes import unfreeze_batch
from kuiper.planning.infer import infer_known, infer_specs

from ...support import assert_outputs
from ...support.engine import run as run_model
from ...support.passes import X
from ...support.textgraph import (
    conv,
    graph_of,
    linear,
    lines_of,
    norm,
    text,
    user_operator,
    values,
)

# -- unfreezing the batch ----------------------------------------------------------------------


def members_are_independent(
    lines, shapes, batch, axes=None, inputs=("x",), outputs=("y",)
) -> Graph:
    """Check that each of `batch` members gives the same alone; return the unfrozen graph.

    `axes` are the batch axes of the inputs and outputs, by default axis 0.
    """
    axes = axes or (0,) * (len(inputs) + len(outputs))
    graph = graph_of(text(*lines, inputs=inputs, outputs=outputs))
    for operand, shape in zip(graph.inputs, shapes, strict=True):
        operand.shape = shape
    model = Model(graph)
    many = [
        np.concatenate([values(*s, seed=seed) for seed in range(batch)], axis)
        for s, axis in zip(shapes, axes, strict=False)
    ]
    results = run_model(model, many)
    for member in range(batch):
        one = [np.take(x, [member], axis) for x, axis in zip(many, axes[: len(many)], strict=True)]
        singles = run_model(model, one)
        for got, want, axis in zip(results, singles, axes[len(many) :], strict=True):
            part = want.shape[axis]
            got = np.take(got, range(member * part, (member + 1) * part), axis)
            assert_outputs([got], [want], 1e-6, f"member {member}")
    unfrozen = graph.copy()
    unfreeze_batch(unfrozen, [x.shape for x in many], infer_specs)
    unfrozen.verify()
    return unfrozen


@pytest.mark.parametrize(
    ("line", "shape", "unfrozen"),
    [
        ("Tensor.reshape r 1 1 x y shape=(1,90)", (1, 3, 5, 6), (4, 90)),
        ("Tensor.view r 1 1 x y shape=(1,15,6)", (1, 3, 5, 6), (4, 15, 6)),
        ("Tensor.reshape r 1 1 x y shape=(3,30)", (1, 3, 5, 6), (12, 30)),
        ("Tensor.reshape r 1 1 x y shape=(0,90)", (1, 3, 5, 6), (0, 90)),
        ("Tensor.reshape r 1 1 x y shape=(-1,90)", (1, 3, 5, 6), (-1, 90)),
        ("Tensor.reshape r 1 1 x y shape=(1,15,-1,3)", (1, 3, 5, 6), (4, 15, -1, 3)),
        ("Tensor.reshape r 1 1 x y shape=(3,-1)", (1, 3, 5, 6), (12, -1)),
        ("Tensor.expand r 1 1 x y sizes=(1,3,5,6)", (1, 3, 5, 1), (4, 3, 5, 6)),
        ("Tensor.expand r 1 1 x y sizes=(-1,3,5,6)", (1, 3, 5, 1), (-1, 3, 5, 6)),
    ],
)
def test_traced_shapes_get_the_batch_of_the_inputs(line, shape, unfrozen):
    graph = members_are_independent([line], [shape], 4)
    params = graph.operator("r").params
    assert params.get("shape", params.get("sizes")) == unfrozen


def test_a_traced_batch_larger_than_one():
    graph = graph_of(text("Tensor.reshape r 1 1 x y shape=(2,90)"))
    graph.operand("x").shape = (2, 3, 5, 6)
    big = values(7, 3, 5, 6)
    np.testing.assert_array_equal(Model(graph)(big), big.reshape(7, 90))
    np.testing.assert_array_equal(Model(graph)(X), X.reshape(2, 90))


@pytest.mark.parametrize("shape", [None, (None, 3, 5, 6), (2, 3, None, 6)])
def test_the_batch_stays_frozen_if_the_traced_one_is_unknown(shape):
    graph = graph_of(text("Tensor.reshape r 1 1 x y shape=(2,90)"))
    graph.operand("x").shape = shape
    with pytest.raises(ShapeError, match=r"operator 'r'.*the shape \(2, 90\)"):
        Model(graph)(values(7, 3, 5, 6))


def test_a_reshape_with_an_open_extent_is_kept():
    graph = graph_of(text("Tensor.view r 1 1 x y shape=(2,15,-1)"))
    graph.operand("x").shape = (2, 3, 5, 6)
    big = values(4, 3, 5, 6)
    np.testing.assert_array_equal(Model(graph)(big), big.reshape(2, 15, 12))


def test_an_empty_batch():
    graph = graph_of(text("Tensor.reshape r 1 1 x y shape=(1,90)"))
    graph.operand("x").shape = (1, 3, 5, 6)
    assert Model(graph)(np.zeros((0, 3, 5, 6), np.float32)).shape == (0, 90)


@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize("form", ["separate", "side by side"])
@pytest.mark.parametrize(
    ("type", "filters"), [("conv2d", "(6,4,3,3)"), ("conv_transpose2d", "(4,6,3,3)")]
)
def test_filters_of_each_member_become_groups(type, filters, form, constant):
    """Modulated convolutions; for one member, pnnx drops the reshapes around the convolution."""
    images = "pnnx.Attribute i 0 1 i0 @data=(1,4,5,5)f32" if constant else "F.relu i 1 1 z i0"
    lines = [
        images,
        "pnnx.Attribute k 0 1 k0 @data=(1,6,4,3,3)f32",
        "Tensor.reshape s 1 1 x s0 shape=(1,1,4,1,1)",
        "pnnx.Expression m 2 1 k0 s0 m0 expr=mul(@0,@1)",
        f"Tensor.reshape f 1 1 m0 f0 shape={filters}",
        f"F.{type} c 2 1 i0 f0 c0 bias=None dilation=(1,1) groups=1 padding=(1,1) stride=(1,1) "
        "$input=i0 $weight=f0",
        "pnnx.Attribute n 0 1 n0 @data=(1,1,5,5)f32",
        "pnnx.Expression a 2 1 c0 n0 a0 expr=add(@0,@1)",
    ]
    if form == "separate":
        lines.append(conv("o", "a0", "y", 6, 2))
    else:
        lines += [
            "Tensor.reshape r 1 1 a0 r0 shape=(6,1,5,5)",
            "F.avg_pool2d p 1 1 r0 p0 "
            "ceil_mode=False count_include_pad=True divisor_override=None kernel_size=(3,3) "
            "padding=(1,1) stride=(1,1)",
            "Tensor.reshape q 1 1 p0 y shape=(1,6,5,5)",
        ]
    inputs, shapes = (("x",), [(1, 4)]) if constant else (("x", "z"), [(1, 4), (1, 4, 5, 5)])
    graph = members_are_independent(lines, shapes, 3, inputs=inputs)
    assert graph.operator("c").params["groups"] == 3


@pytest.mark.parametrize("sign", ["@0", "sub(@0,6)"])
def test_indices_among_the_rows_of_each_member(sign):
    """As networks for point clouds gather the neighbours of each point."""
    lines = [
        "torch.topk t 1 2 x t0 t1 dim=1 k=2 largest=True sorted=True",
        f"pnnx.Expression a 1 1 t1 a0 expr={sign}",
        "Tensor.reshape p 1 1 a0 p0 shape=(6)",
        "Tensor.reshape r 1 1 x r0 shape=(6,3)",
        "pnnx.Expression l 1 1 p0 l0 expr=[@0]",
        "Tensor.index i 2 1 r0 l0 i0",
        "Tensor.reshape q 1 1 i0 y shape=(1,2,3,3)",
    ]
    graph = members_are_independent(lines, [(1, 6, 3)], 4)
    assert graph.operator("q").params["shape"] == (4, 2, 3, 3)


@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("moved", ["add(@0,5)", "add(@0,60)", "sub(@0,8)", "sub(@0,60)"])
def test_no_member_reads_rows_of_the_next(moved, batch):
    """An index that is out of range for one member is out of range for several."""
    lines = [
        "torch.topk t 1 2 x t0 t1 dim=1 k=2 largest=True sorted=True",
        f"pnnx.Expression a 1 1 t1 a0 expr={moved}",
        "Tensor.reshape p 1 1 a0 p0 shape=(6)",
        "Tensor.reshape r 1 1 x r0 shape=(6,3)",
        "pnnx.Expression l 1 1 p0 l0 expr=[@0]",
        "Tensor.index i 2 1 r0 l0 i0",
        "Tensor.reshape q 1 1 i0 y shape=(1,2,3,3)",
    ]
    graph = graph_of(text(*lines))
    graph.operand("x").shape = (1, 6, 3)
    with pytest.raises(OperatorError, match="out of range"):
        Model(graph)(values(batch, 6, 3))


@pytest.mark.parametrize(
    ("indices", "expression", "axis"),
    [
        ("torch.argmax t 1 1 x t0 dim=2 keepdim=False", "[@0]", 0),
        ("torch.argmax t 1 1 x t0 dim=2 keepdim=False", "[None,@0]", 1),
        ("torch.argmax t 1 1 x t0 dim=2 keepdim=True", "[@0,@1]", 0),
    ],
)
def test_a_table_of_all_members(indices, expression, axis):
    """As token ids look up rows of an embedding; the second index is shared."""
    lines = [
        indices,
        "pnnx.Attribute w 0 1 w0 @data=(6,6,2)f32",
        "torch.arange s 0 1 s0 dtype=None start=0 end=6 step=1",
        f"pnnx.Expression l 2 1 t0 s0 l0 expr={expression}",
        "Tensor.index i 2 1 w0 l0 y",
    ]
    graph = members_are_independent(lines, [(1, 6, 6)], 3, (0, axis))
    assert not graph.find(type="Tensor.expand")


def test_a_mask_is_not_a_list_of_indices():
    lines = [
        "Tensor.to c 1 1 x c0 copy=False dtype=torch.uint8",
        "Tensor.reshape p 1 1 c0 p0 shape=(6)",
        "Tensor.reshape r 1 1 x r0 shape=(6)",
        "pnnx.Expression l 1 1 p0 l0 expr=[@0]",
        "Tensor.index i 2 1 r0 l0 y",
    ]
    graph = graph_of(text(*lines))
    graph.operand("x").shape = (1, 6)
    unfrozen = graph.copy()
    unfreeze_batch(unfrozen, [(2, 6)], lambda *given: infer_known(*given)[0])
    assert lines_of(unfrozen)[-2:] == lines_of(graph)[-2:]


def test_members_that_were_concatenated_are_split():
    lines = [
        "torch.cat j 2 1 x z j0 dim=0",
        conv("c", "j0", "c0", 3, 2),
        "torch.chunk s 1 2 c0 u v chunks=2 dim=0",
        "pnnx.Expression a 2 1 u v a0 expr=mul(@0,tanh(@1))",
        "Tensor.reshape r 1 1 a0 y shape=(1,60)",
    ]
    shapes = [(1, 3, 5, 6), (1, 3, 5, 6)]
    graph = members_are_independent(lines, shapes, 3, inputs=("x", "z"))
    assert graph.operator("r").params["shape"] == (3, 60)


def test_distances_within_each_member():
    lines = [
        "pnnx.Attribute a 0 1 a0 @data=(1,4,3)f32",
        "pnnx.Expression e 0 1 e0 expr=2.0",
        "pnnx.Expression n 0 1 n0 expr=None",
        "aten::cdist d 4 1 x a0 e0 n0 d0",
        "aten::cdist f 4 1 d0 d0 e0 n0 f0",
        "Tensor.reshape r 1 1 f0 y shape=(1,1,25)",
    ]
    graph = members_are_independent(lines, [(1, 5, 3)], 4)
    assert graph.operator("r").params["shape"] == (4, 1, 25)


@pytest.mark.parametrize("given", ["r0 a0", "a0 r0"])
def test_distances_of_all_members_to_the_same_vectors(given):
    """As in vector quantization, which replaces each vector by the nearest of a codebook."""
    turned = "dim0=1 dim1=0" if given.startswith("a") else "dim0=1 dim1=1"
    lines = [
        "Tensor.reshape r 1 1 x r0 shape=(30,3)",
        "pnnx.Attribute a 0 1 a0 @data=(8,3)f32",
        "pnnx.Expression e 0 1 e0 expr=2.0",
        "pnnx.Expression n 0 1 n0 expr=None",
        f"aten::cdist d 4 1 {given} e0 n0 d0",
        f"torch.transpose t 1 1 d0 t0 {turned}",
        "Tensor.reshape s 1 1 t0 y shape=(1,5,6,8)",
    ]
    graph = members_are_independent(lines, [(1, 5, 6, 3)], 4)
    assert graph.operator("s").params["shape"] == (4, 5, 6, 8)


def test_windows_and_heads_share_an_axis_with_the_batch():
    lines = [
        "Tensor.reshape a 1 1 x a0 shape=(1,2,3,2,3,4)",
        "Tensor.permute b 1 1 a0 b0 dims=(0,1,3,2,4,5)",
        "Tensor.reshape c 1 1 b0 c0 shape=(4,9,4)",
        linear("q", "c0", "q0", 4, 12),
        "torch.chunk s 1 3 q0 u v w chunks=3 dim=-1",
        "Tensor.reshape d 1 1 u d0 shape=(4,9,2,2)",
        "Tensor.permute e 1 1 d0 e0 dims=(0,2,1,3)",
        "Tensor.reshape f 1 1 e0 f0 shape=(8,9,2)",
        "Tensor.reshape g 1 1 v g0 shape=(4,9,2,2)",
        "Tensor.permute h 1 1 g0 h0 dims=(0,2,3,1)",
        "Tensor.reshape i 1 1 h0 i0 shape=(8,2,9)",
        "torch.bmm j 2 1 f0 i0 j0 $input=f0 $mat2=i0",
        "pnnx.Attribute m 0 1 m0 @data=(8,9,9)f32",
        "pnnx.Expression k 2 1 j0 m0 k0 expr=add(@0,@1)",
        "F.softmax l 1 1 k0 y dim=-1",
    ]
    graph = members_are_independent(lines, [(1, 6, 6, 4)], 3)
    shapes = {name: graph.operator(name).params["shape"] for name in "acdfgi"}
    assert shapes == {
        "a": (3, 2, 3, 2, 3, 4),
        "c": (12, 9, 4),
        "d": (12, 9, 2, 2),
        "f": (24, 9, 2),
        "g": (12, 9, 2, 2),
        "i": (24, 2, 9),
    }
    # The mask has one entry per window and head, so it is repeated per member.
    assert graph.operator("k").inputs[1].producer.params == {"sizes": (3, 1, 1)}


def test_a_prepended_token_is_repeated_per_member():
    lines = [
        "pnnx.Attribute t 0 1 t0 @data=(1,1,6)f32",
        "pnnx.Attribute p 0 1 p0 @data=(1,6,6)f32",
        "torch.cat c 2 1 t0 x c0 dim=1",
        "pnnx.Expression e 2 1 c0 p0 y expr=add(@0,@1)",
    ]
    graph = members_are_independent(lines, [(1, 5, 6)], 3)
    assert graph.operator("c").inputs[0].producer.type == "Tensor.expand"
    assert graph.operator("e").inputs[1].name == "p0", "positions are added by broadcasting"


GRU = (
    "nn.GRU g 1 1 {} y batch_first={} bias=True bidirectional=False hidden_size=5 input_size=6 "
    "num_layers=1 @bias_hh_l0=(15)f32 @bias_ih_l0=(15)f32 @weight_hh_l0=(15,5)f32 "
    "@weight_ih_l0=(15,6)f32"
)


def test_a_guess_is_reverted_if_members_would_mix():
    # (1,6) to (1,1,6): with the batch first, the network would take it for time.
    lines = ["Tensor.reshape r 1 1 x r0 shape=(1,1,6)", GRU.format("r0", False)]
    graph = members_are_independent(lines, [(1, 6)], 3, axes=(0, 1))
    assert graph.operator("r").params["shape"] == (1, 3, 6)
    lines = ["Tensor.reshape r 1 1 x r0 shape=(1,1,6)", GRU.format("r0", True)]
    graph = members_are_independent(lines, [(1, 6)], 3)
    assert graph.operator("r").params["shape"] == (3, 1, 6)


def test_a_guess_is_reverted_across_other_operators():
    lines = [
        "Tensor.reshape r 1 1 x r0 shape=(1,1,6)",
        "F.relu a 1 1 r0 a0",
        "Tensor.reshape s 1 1 a0 s0 shape=(1,1,2,3)",
        "Tensor.permute p 1 1 s0 p0 dims=(1,0,3,2)",
        "Tensor.reshape t 1 1 p0 t0 shape=(1,1,6)",
        GRU.format("t0", True),
    ]
    graph = members_are_independent(lines, [(1, 6)], 3)
    assert graph.operator("t").params["shape"] == (3, 1, 6)


def test_recurrent_states_have_the_batch_second():
    lines = [
        GRU.format("x", True).replace("g 1 1 x y", "g 2 2 x h y z"),
    ]
    members_are_independent(lines, [(1, 4, 6), (1, 1, 5)], 3, (0, 1, 0, 1), ("x", "h"), ("y", "z"))


LINEAR = "bias=True in_features=6 out_features=7 @bias=(7)f32 @weight=(7,6)f32"
ATTENTION = (
    "add_bias_kv=False add_zero_attn=False bias=True embed_dim=6 kdim=6 vdim=6 num_heads=2 "
    "@in_proj_bias=(18)f32 @in_proj_weight=(18,6)f32 @out_proj.bias=(6)f32 "
    "@out_proj.weight=(6,6)f32"
)
CONSTANT = "pnnx.Attribute k 0 1 k0 @data={}f32"


@pytest.mark.parametrize(
    ("shape", "lines", "axes"),
    [
        # After a reshape; the batch axes of the input and the output.
        ((4, 6), ["nn.Linear o 1 1 r y " + LINEAR], (0, 0)),
        (
            (4, 6),
            ["nn.LayerNorm o 1 1 r y elementwise_affine=False normalized_shape=(6)"],
            (0, 0),
        ),
        ((3, 5, 6), [conv("o", "r", "y", 3, 4)], (0, 0)),
        ((3, 5, 6), [norm("o", "r", "y", 3)], (0, 0)),
        ((3, 5, 6), ["F.max_pool2d o 1 1 r y kernel_size=(2,2) stride=(2,2)"], (0, 0)),
        ((3, 5, 6), ["F.interpolate o 1 1 r y mode=nearest size=(7,8)"], (0, 0)),
        ((3, 5, 6), ["F.pad o 1 1 r y pad=(1,2,0,1,1,0) mode=constant value=0.5"], (0, 0)),
        ((4, 6), ["F.softmax o 1 1 r y dim=1"], (0, 0)),
        ((4, 6), ["torch.cumsum o 1 1 r y dim=-1"], (0, 0)),
        ((4, 6), ["torch.flip o 1 1 r y dims=(1,2)"], (0, 0)),
        ((4, 6), ["torch.roll o 1 1 r y dims=(1) shifts=(2)"], (0, 0)),
        ((4, 6), ["torch.sum o 1 1 r y dim=(1) keepdim=False"], (0, 0)),
        (
            (4, 6),
            [
                "Tensor.permute p 1 1 r p0 dims=(1,0,2)",
                "torch.mean o 1 1 p0 y dim=(0) keepdim=False",
            ],
            (0, 0),
        ),
        ((4, 6), ["torch.max o 1 2 r y z dim=2 keepdim=True"], (0, 0)),
        ((4, 6), ["torch.topk o 1 2 r y z dim=-1 k=3 largest=True sorted=True"], (0, 0)),
        ((4, 6), ["Tensor.permute o 1 1 r y dims=(2,0,1)"], (0, 1)),
        ((4, 6), ["torch.transpose o 1 1 r y dim0=0 dim1=2"], (0, 2)),
        ((4, 6), ["torch.flatten o 1 1 r y start_dim=0 end_dim=1"], (0, 0)),
        ((4, 6), ["torch.unsqueeze o 1 1 r y dim=0"], (0, 1)),
        ((4, 6), ["torch.unsqueeze u 1 1 r u0 dim=0", "torch.squeeze o 1 1 u0 y dim=0"], (0, 0)),
        (
            (4, 6),
            [
                "Tensor.slice o 1 1 r y dims=(1,2) starts=(1,0) ends=(3,0) steps=(1,0) "
                "selects=(2147483647,2)"
            ],
            (0, 0),
        ),
        (
            (4, 6),
            [
                "Tensor.permute p 1 1 r p0 dims=(1,0,2)",
                "Tensor.slice o 1 1 p0 y dim=0 select=1",
            ],
            (0, 0),
        ),
        ((4, 6), ["Tensor.select o 1 1 r y dim=1 index=2"], (0, 0)),
        ((4, 6), ["torch.unbind o 1 4 r y a b c dim=1"], (0, 0)),
        ((4, 6), ["torch.split o 1 2 r y z dim=2 split_size_or_sections=(2,4)"], (0, 0)),
        ((4, 6), ["torch.stack o 2 1 r r y dim=0"], (0, 1)),
        ((4, 6), ["torch.stack o 2 1 r r y dim=-1"], (0, 0)),
        ((4, 6), [CONSTANT.format("(1,2,6)"), "torch.cat o 3 1 k0 r r y dim=1"], (0, 0)),
        ((4, 6), [CONSTANT.format("(1,4,6)"), "torch.stack o 2 1 k0 r y dim=1"], (0, 0)),
        (
            (4, 6),
            [
                "torch.cat c 2 1 r r c0 dim=0",
                "Tensor.reshape s 1 1 c0 s0 shape=(2,4,6)",
                "torch.sum o 1 1 s0 y dim=(0) keepdim=True",
            ],
            (0, 1),
        ),
        ((4, 6), [CONSTANT.format("(6,3)"), "torch.matmul o 2 1 r k0 y"], (0, 0)),
        (
            (4, 6),
            [
                CONSTANT.format("(2,3,4)"),
                "torch.unsqueeze u 1 1 r u0 dim=1",
                "torch.matmul o 2 1 k0 u0 y",
            ],
            (0, 0),
        ),
        ((4, 6), ["torch.transpose t 1 1 r t0 dim0=1 dim1=2", "torch.bmm o 2 1 r t0 y"], (0, 0)),
        (
            (4, 6),
            [
                CONSTANT.format("(1,4,6)"),
                "torch.transpose t 1 1 r t0 dim0=1 dim1=2",
                "torch.bmm o 2 1 k0 t0 y",
            ],
            (0, 0),
        ),
        ((4, 6), ["torch.einsum o 2 1 r r y equation=ijk,ilk->ijl"], (0, 0)),
        ((4, 6), ["nn.MultiheadAttention o 1 1 r y batch_first=True " + ATTENTION], (0, 0)),
        (
            (4, 6),
            [
                CONSTANT.format("(2,4,4)"),
                "nn.MultiheadAttention o 2 1 r k0 y $attn_mask=k0 batch_first=True " + ATTENTION,
            ],
            (0, 0),
        ),
        (
            (4, 6),
            [
                CONSTANT.format("(1,3,6)"),
                "nn.MultiheadAttention o 3 1 k0 r r y batch_first=True " + ATTENTION,
            ],
            (0, 0),
        ),
        (
            (4, 6),
            [
                "Tensor.permute p 1 1 r p0 dims=(1,0,2)",
                "nn.MultiheadAttention o 1 1 p0 y " + ATTENTION,
            ],
            (0, 1),
        ),
        (
            (2, 4, 6),
            ["F.scaled_dot_product_attention o 3 1 r r r y is_causal=True"],
            (0, 0),
        ),
        ((4, 6), [GRU.format("r", True)], (0, 0)),
        ((4, 6), ["Tensor.permute p 1 1 r p0 dims=(1,0,2)", GRU.format("p0", False)], (0, 1)),
        ((4, 1), ["Tensor.expand o 1 1 r y sizes=(2,1,4,6)"], (0, 1)),
        ((4, 6), [CONSTANT.format("(1,4,6)"), "Tensor.expand_as o 2 1 k0 r y"], (0, 0)),
        ((4, 6), ["Tensor.repeat o 1 1 r y sizes=(1,2,1)"], (0, 0)),
        ((4, 6), ["Tensor.repeat_interleave o 1 1 r y dim=1 output_size=None repeats=3"], (0, 0)),
        (
            (4, 6),
            [CONSTANT.format("(4,1)"), "pnnx.Expression o 2 1 r k0 y expr=mul(add(@0,@1),2)"],
            (0, 0),
        ),
        ((4, 6), ["pnnx.Expression o 1 1 r y expr=div(@0,size(@0,2))"], (0, 0)),
        (
            (4, 6),
            ["torch.gt g 1 1 r g0 other=0", CONSTANT.format("(6)"), "torch.where o 3 1 g0 r k0 y"],
            (0, 0),
        ),
        ((4, 6), ["Tensor.index o 1 1 r y expr=[None,[2,0]]"], (0, 0)),
        ((4, 6), ["torch.zeros_like z 1 1 r z0", "torch.cat o 2 1 z0 r y dim=2"], (0, 0)),
        (
            (4, 6),
            ["Tensor.new_zeros z 1 1 r z0 size=(1,2,6)", "torch.cat o 2 1 z0 r y dim=1"],
            (0, 0),
        ),
        ((4, 6), ["nn.Tanh o 1 1 r y"], (0, 0)),
        ((3, 4, 6), ["pnnx.Expression d 0 1 d0 expr=1", "aten::triu o 2 1 r d0 y"], (0, 0)),
        (
            (4, 6),
            [
                *(f"pnnx.Expression {n} 0 1 {n}0 expr={v}" for n, v in ("d2", "s3", "t2")),
                "aten::unfold o 4 1 r d0 s0 t0 y",
            ],
            (0, 0),
        ),
        (
            (4, 6),
            [
                "pnnx.Expression d 0 1 d0 expr=1",
                "torch.arange i 0 1 i0 dtype=None start=0 end=2 step=1",
                CONSTANT.format("(1,2,6)"),
                "aten::index_copy o 4 1 r d0 i0 k0 y",
            ],
            (0, 0),
        ),
        (
            (4, 6),
            [
                *(
                    f"pnnx.Expression {n} 0 1 {n}0 expr={v}"
                    for n, v in (("d", "[1]"), ("e", 1), ("f", False))
                ),
                "aten::std o 4 1 r d0 e0 f0 y",
            ],
            (0, 0),
        ),
        ((4, 6), ["Tensor.permute s 1 1 r s0 dims=(0,2,1)", "Tensor.view_as o 2 1 r s0 y"], (0, 0)),
        (
            (4, 6),
            [
                "pnnx.Expression d 0 1 d0 expr=1",
                "pnnx.Expression e 0 1 e0 expr=True",
                "aten::sort o 3 2 r d0 e0 y z",
            ],
            (0, 0),
        ),
    ],
    ids=lambda value: value[-1].split()[0] if isinstance(value, list) else "",
)
def test_operators_that_keep_the_batch(shape, lines, axes):
    flat = int(np.prod(shape))
    before = f"Tensor.reshape first 1 1 x r shape=({','.join(map(str, (1, *shape)))})"
    members_are_independent([before, *lines], [(1, flat)], 3, axes)


@pytest.mark.parametrize(
    "mixing",
    [
        "torch.cumsum m 1 1 x m0 dim=0",
        "torch.mean m 1 1 x m0 dim=(0,1) keepdim=True",
        "F.softmax m 1 1 x m0 dim=0",
        "Tensor.slice m 1 1 x m0 dim=0 end=1 start=0 step=1",
        "torch.flip m 1 1 x m0 dims=(0)",
        "tests.Unknown m 1 1 x m0",
    ],
)
def test_the_batch_stays_frozen_where_members_mix(mixing):
    with user_operator("tests.Unknown", lambda x: x[::-1].copy()):
        lines = [mixing, "Tensor.reshape r 1 1 m0 y shape=(1,1,6)"]
        graph = graph_of(text(*lines))
        graph.operand("x").shape = (1, 6)
        unfreeze_batch(graph, [(3, 6)], infer_specs)
        assert graph.operator("r").params["shape"] == (1, 1, 6)


def test_after_an_unknown_operator_only_the_first_axis_is_unfrozen():
    with user_operator("tests.Unknown", lambda x: x * 2):
        lines = ["tests.Unknown m 1 1 x m0", "Tensor.reshape r 1 1 m0 y shape=(1,90)"]
        graph = members_are_independent(lines, [(1, 3, 5, 6)], 4)
        assert graph.operator("r").params["shape"] == (0, 90)
