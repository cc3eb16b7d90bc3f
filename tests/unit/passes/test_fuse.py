"""Passes that fuse norms, branches, activations, sums, gates and padding into products.

Each graph must compute the same before and after.
"""

from __future__ import annotations

import numpy as np
import pytest

from kuiper.errors import ShapeError
from kuiper.ir import Attribute
from kuiper.model import Model

from ...support import assert_outputs
from ...support.passes import X, optimized
from ...support.textgraph import (
    branch,
    conv,
    graph_of,
    linear,
    lines_of,
    norm,
    text,
    values,
)

# -- batch normalisation -----------------------------------------------------------------------


def test_a_norm_is_folded_into_the_preceding_convolution():
    graph = graph_of(text(conv("c", "x", "p"), norm("n", "p", "y")))
    optimized(graph, [X], "fold_batch_norm")
    assert lines_of(graph) == ["nn.Conv2d x -> y"]


def test_a_convolution_without_bias_gets_one():
    line = conv("c", "x", "p").replace("@bias=(4)f32 ", "").replace("bias=True", "bias=False")
    graph = graph_of(text(line, norm("n", "p", "y")))
    optimized(graph, [X], "fold_batch_norm")
    op = graph.operator("c")
    assert op.params["bias"] is True
    assert op.attributes["bias"].shape == (4,)


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("fold_batch_norm", conv("c", "z", "p")),
        ("split_batch_norm", conv("c", "z", "p")),
        ("fuse_pad", "F.pad c 1 1 z p mode=constant pad=(0,0,0,0) value=None"),
    ],
)
def test_the_extra_first_input_of_a_module_is_a_shared_weight(name, line):
    module = conv("n", "p x", "y", 3) if name == "fuse_pad" else norm("n", "p x", "y", 3)
    module = module.replace(" n 1 1 ", " n 2 1 ")
    graph = graph_of(text("nn.ReLU r 1 1 x z", line, module))
    before = lines_of(graph)
    optimized(graph, [X], name)
    assert lines_of(graph) == before


def test_a_norm_that_only_a_sum_of_branches_names():
    lines = [
        branch("a", "x", "p", *BIG),
        branch("b", "x", "q", *SMALL),
        norm("n", "x", "r"),
        "pnnx.Expression s 4 1 p q x r y expr=add(add(@0,@1),@2)",
    ]
    graph = graph_of(text(*lines))
    optimized(graph, [values(2, 4, 9, 8)], "fuse_branches", "split_batch_norm")
    assert lines_of(graph) == ["nn.Conv2d x -> p", "add(@0,@1) p x -> y"]


def test_norms_after_other_products():
    graph = graph_of(text(linear("l", "x", "p"), norm("n", "p", "y", 5, "nn.BatchNorm1d")))
    optimized(graph, [values(3, 4)], "fold_batch_norm")
    assert lines_of(graph) == ["nn.Linear x -> y"]
    line = conv("c", "x", "p", type="nn.Conv1d")
    for old, new in (("(1,1)", "(1)"), ("(0,0)", "(0)"), ("(4,3,1,1)", "(4,3,1)")):
        line = line.replace(old, new)
    graph = graph_of(text(line, norm("n", "p", "y", 4, "nn.BatchNorm1d")))
    optimized(graph, [values(2, 3, 7)], "fold_batch_norm")
    assert lines_of(graph) == ["nn.Conv1d x -> y"]


def test_two_norms_in_a_row_are_both_folded():
    graph = graph_of(text(conv("c", "x", "p"), norm("n", "p", "q"), norm("m", "q", "y")))
    optimized(graph, [X], "fold_batch_norm")
    assert lines_of(graph) == ["nn.Conv2d x -> y"]


AFFINE = ["pnnx.Attribute -> n.scale", "pnnx.Attribute -> n.shift"]


@pytest.mark.parametrize(
    ("lines", "x", "left"),
    [
        ([norm("n", "x", "y", 3)], X, "add(mul(@0,@1),@2) x n.scale n.shift -> y"),
        # The convolution has another reader.
        (
            [
                conv("c", "x", "p"),
                norm("n", "p", "q"),
                "pnnx.Expression e 2 1 p q y expr=add(@0,@1)",
            ],
            X,
            "add(mul(@0,@1),@2) p n.scale n.shift -> q",
        ),
        # Channels are the last axis of a Linear, but axis 1 of a norm.
        (
            [linear("l", "x", "p"), norm("n", "p", "y", 6, "nn.BatchNorm1d")],
            values(2, 6, 4),
            "add(mul(@0,@1),@2) p n.scale n.shift -> y",
        ),
        # Without a batch axis the channels of a convolution are axis 0.
        (
            [conv("c", "x", "p"), norm("n", "p", "y", 5, "nn.BatchNorm1d")],
            X[0],
            "add(mul(@0,@1),@2) p n.scale n.shift -> y",
        ),
    ],
    ids=["input", "two readers", "linear rank 3", "unbatched"],
)
def test_other_norms_become_arithmetic(lines, x, left):
    graph = graph_of(text(*lines))
    optimized(graph, [x], "fold_batch_norm", "split_batch_norm")
    after = lines_of(graph)
    assert left in after
    assert set(AFFINE) <= set(after)
    assert not any("BatchNorm" in line for line in after)


def test_a_norm_of_a_returned_convolution_is_not_folded():
    graph = graph_of(text(conv("c", "x", "p"), norm("n", "p", "y"), outputs=("p", "y")))
    optimized(graph, [X], "fold_batch_norm")
    assert "nn.Conv2d x -> p" in lines_of(graph)


def test_no_norm_is_folded_into_a_convolution_whose_weight_is_an_input():
    graph = graph_of(
        text("F.conv2d c 2 1 x w p $input=x $weight=w", norm("n", "p", "y"), inputs=("x", "w"))
    )
    optimized(graph, [X, values(4, 3, 1, 1)], "fold_batch_norm")
    assert "F.conv2d x w -> p" in lines_of(graph)


def test_a_norm_is_folded_once_for_all_copies_of_a_graph():
    graph = graph_of(text(conv("c", "x", "p"), norm("n", "p", "y")))
    copies = [graph.copy(), graph.copy()]
    for copy in copies:
        optimized(copy, [X], "fold_batch_norm")
    weights = [copy.operator("c").attributes["weight"] for copy in copies]
    assert weights[0] is weights[1]
    assert weights[0] is not graph.operator("c").attributes["weight"]


# -- branches ----------------------------------------------------------------------------------

BIG, SMALL = ((3, 3), (1, 1)), ((1, 1), (0, 0))


def total(*names: str, y: str = "y") -> str:
    tree = "@0"
    for k in range(1, len(names)):
        tree = f"add({tree},@{k})"
    return f"pnnx.Expression s {len(names)} 1 {' '.join(names)} {y} expr={tree}"


@pytest.mark.parametrize(
    ("lines", "left"),
    [
        # RepVGG: a 3x3 window, a 1x1 window, and the scaled tensor itself.
        (
            [
                branch("a", "x", "p", *BIG),
                branch("b", "x", "q", *SMALL),
                norm("n", "x", "r"),
                total("p", "q", "r"),
            ],
            ["nn.Conv2d x -> y"],
        ),
        # MobileOne: several windows of one size, depthwise; and groups.
        (
            [
                *(branch(f"a{k}", "x", f"p{k}", *BIG, groups=4) for k in range(3)),
                branch("b", "x", "q", *SMALL, groups=4),
                norm("n", "x", "r"),
                total("q", "p0", "p1", "p2", "r"),
            ],
            ["nn.Conv2d x -> y"],
        ),
        (
            [
                branch("a", "x", "p", *BIG, groups=2),
                norm("n", "x", "r"),
                norm("m", "x", "q"),
                total("p", "r", "q"),
            ],
            ["nn.Conv2d x -> y"],
        ),
        # With a stride there is no identity branch.
        (
            [
                branch("a", "x", "p", *BIG, stride=2),
                branch("b", "x", "q", *SMALL, stride=2),
                total("p", "q"),
            ],
            ["nn.Conv2d x -> y"],
        ),
        # ACNet: a 1x3 and a 3x1 window in a square one.  Other summands stay.
        (
            [
                branch("a", "x", "p", (3, 1), (1, 0)),
                branch("b", "x", "q", (1, 3), (0, 1)),
                branch("c", "x", "r", (3, 3), (1, 1)),
                total("p", "q", "x", "r"),
            ],
            ["nn.Conv2d x -> r", "add(@0,@1) x r -> y"],
        ),
        # Two tensors, each with its own branches.
        (
            [
                "nn.ReLU f 1 1 x z",
                branch("a", "x", "p", *BIG),
                branch("b", "z", "q", *BIG),
                branch("c", "x", "r", *SMALL),
                branch("d", "z", "u", *SMALL),
                total("p", "q", "r", "u"),
            ],
            ["nn.ReLU x -> z", "nn.Conv2d x -> p", "nn.Conv2d z -> q", "add(@0,@1) p q -> y"],
        ),
        # A 5x5 window with stride 2 contains a 3x3 window with stride 2.
        (
            [
                branch("a", "x", "p", (5, 5), (4, 4), dilation=2),
                branch("b", "x", "q", (3, 3), (2, 2), dilation=2),
                norm("n", "x", "r"),
                total("p", "q", "r"),
            ],
            ["nn.Conv2d x -> y"],
        ),
    ],
    ids=["repvgg", "mobileone", "groups", "stride", "cross", "two tensors", "dilation"],
)
def test_branches_become_one_convolution(lines, left):
    graph = graph_of(text(*lines))
    optimized(graph, [values(2, 4, 9, 8)], "fuse_branches")
    assert lines_of(graph) == left


@pytest.mark.parametrize(
    "lines",
    [
        [branch("a", "x", "p", (3, 1), (1, 0)), branch("b", "x", "q", (1, 3), (0, 1))],
        [branch("a", "x", "p", *BIG), branch("b", "x", "q", *SMALL, groups=2)],
        [branch("a", "x", "p", (5, 5), (4, 4), dilation=2), branch("b", "x", "q", *BIG)],
        [
            branch("a", "x", "p", *BIG, more="").replace("=zeros", "=reflect"),
            branch("b", "x", "q", *BIG),
        ],
        [branch("a", "x", "p", (1, 2), (0, 0)), branch("b", "x", "q", (1, 2), (0, 0), o=1)],
        [branch("a", "x", "p", *BIG, stride=9), branch("b", "x", "q", *BIG)],
    ],
    ids=["neither holds the other", "groups", "dilation", "reflect", "broadcast", "stride"],
)
def test_branches_that_are_not_merged(lines):
    graph = graph_of(text(*lines, total("p", "q")))
    optimized(graph, [values(2, 4, 9, 8)], "fuse_branches")
    assert [line for line in lines_of(graph) if "Conv2d" in line] == [
        "nn.Conv2d x -> p",
        "nn.Conv2d x -> q",
    ]


def test_a_branch_with_other_readers_is_not_merged():
    lines = [branch("a", "x", "p", *BIG), branch("b", "x", "q", *SMALL), total("p", "q")]
    graph = graph_of(text(*lines, outputs=("y", "p")))
    optimized(graph, [values(2, 4, 9, 8)], "fuse_branches")
    assert len(lines_of(graph)) == 3
    twice = "pnnx.Expression s 2 1 p q y expr=add(add(@0,@1),@0)"
    graph = graph_of(text(*lines[:2], twice))
    optimized(graph, [values(2, 4, 9, 8)], "fuse_branches")
    assert len(lines_of(graph)) == 3


def test_branches_whose_padding_depends_on_the_size():
    """At even sizes the margins are 0 and 1, so the centres of the windows differ."""
    lines = [
        "kuiper.SamePadding pad 1 1 x z @value=(1)f32 @window=(3,2)f32",
        branch("a", "z", "p", (3, 3), (0, 0), stride=2),
        branch("b", "x", "q", (1, 1), (0, 0), stride=2),
        total("p", "q"),
    ]
    graph = graph_of(text(*lines))
    window, value = np.array([[3, 3], [2, 2], [1, 1]]), np.zeros(1, np.float32)
    graph.operator("pad").attributes = {
        "window": Attribute.from_array(window),
        "value": Attribute.from_array(value),
    }
    model, plain = Model(graph), Model(graph.copy(), optimize=False)
    for size in (8, 9, 8, 11):
        x = values(2, 4, size, size)
        assert_outputs([model(x)], [plain(x)], 1e-5, f"{size}")
    assert [op.type for op in model.planned_graph(x.shape)].count("nn.Conv2d") == 1


def test_branches_are_summed_once_for_all_copies_of_a_graph():
    lines = [branch("a", "x", "p", *BIG), branch("b", "x", "q", *SMALL), total("p", "q")]
    graph = graph_of(text(*lines))
    copies = [graph.copy(), graph.copy()]
    for copy in copies:
        optimized(copy, [values(2, 4, 9, 8)], "fuse_branches")
    weights = [copy.operator("a").attributes["weight"] for copy in copies]
    assert weights[0] is weights[1]


# -- activations -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "activation",
    [
        "nn.ReLU", "F.relu", "nn.ReLU6", "nn.SiLU", "F.sigmoid", "nn.GELU approximate=tanh",
        "nn.LeakyReLU negative_slope=0.2", "nn.Hardtanh min_val=-0.5 max_val=0.25",
        "nn.ELU alpha=0.5", "F.softplus beta=2.0 threshold=1.0", "torch.clamp min=-0.1 max=None",
    ],
)  # fmt: skip
@pytest.mark.parametrize("product", ["conv", "linear"])
def test_an_activation_is_fused_into_the_preceding_product(activation, product):
    name, *params = activation.split()
    act = f"{name} a 1 1 p y {' '.join(params)}"
    first = conv("c", "x", "p") if product == "conv" else linear("c", "x", "p")
    graph = graph_of(text(first, act))
    optimized(graph, [X if product == "conv" else values(3, 4)], "fuse_activation")
    assert lines_of(graph) == [f"{first.split()[0]} x -> y | {name}"]


@pytest.mark.parametrize(
    "lines",
    [
        # another reader
        [conv("c", "x", "p"), "F.relu a 1 1 p q", "pnnx.Expression e 2 1 p q y expr=add(@0,@1)"],
        # an activation with a tensor argument
        [conv("c", "x", "p"), "nn.PReLU a 1 1 p y num_parameters=4 @weight=(4)f32"],
        # an activation whose parameter is an operand
        [
            conv("c", "x", "p"),
            "pnnx.Expression s 0 1 s expr=0.3",
            "F.leaky_relu a 2 1 p s y $input=p $negative_slope=s",
        ],
        # not an activation
        [conv("c", "x", "p"), "Tensor.permute a 1 1 p y dims=(0,2,3,1)"],
    ],
    ids=["two readers", "prelu", "parameter", "permute"],
)
def test_activations_that_are_not_fused(lines):
    graph = graph_of(text(*lines))
    before = lines_of(graph)
    optimized(graph, [X], "fuse_activation")
    assert lines_of(graph) == before


def test_an_activation_of_a_returned_product_is_not_fused():
    graph = graph_of(text(conv("c", "x", "p"), "F.relu a 1 1 p y", outputs=("p", "y")))
    optimized(graph, [X], "fuse_activation")
    assert lines_of(graph) == ["nn.Conv2d x -> p", "F.relu p -> y"]


def test_only_one_activation_is_fused():
    graph = graph_of(text(conv("c", "x", "p"), "F.relu a 1 1 p q", "F.tanh b 1 1 q y"))
    optimized(graph, [X], "fuse_activation")
    assert lines_of(graph) == ["nn.Conv2d x -> q | F.relu", "F.tanh q -> y"]


# -- residual sums -----------------------------------------------------------------------------

SUM = "pnnx.Expression s 2 1 p r q expr=add(@0,@1)"
R = values(2, 4, 5, 6, seed=1)  # of the shape that a convolution of X gives


@pytest.mark.parametrize("order", ["add(@0,@1)", "add(@1,@0)"])
@pytest.mark.parametrize(
    ("before", "after"),
    [
        (None, None),
        (None, "F.relu"),
        ("F.relu", None),
        ("nn.SiLU", "nn.GELU"),
        ("F.relu", "F.relu"),
    ],
)
def test_a_residual_sum_is_fused_into_a_convolution(order, before, after):
    lines = [conv("c", "x", "v" if before else "p")]
    lines += [f"{before} b 1 1 v p"] if before else []
    lines += [SUM.replace("add(@0,@1)", order)]
    lines += [f"{after} a 1 1 q y"] if after else ["Tensor.permute a 1 1 q y dims=(0,1,3,2)"]
    graph = graph_of(text(*lines, inputs=("x", "r")))
    optimized(graph, [X, R], "fuse_activation", "fuse_residual")
    posts = " ".join(word for word in (before, "add", after) if word)
    assert lines_of(graph)[0] == f"nn.Conv2d x r -> {'y' if after else 'q'} | {posts}"
    assert len(lines_of(graph)) == (1 if after else 2)


@pytest.mark.parametrize("after", [None, "F.relu", "nn.SiLU"])
@pytest.mark.parametrize("shape", [(3, 4), (2, 3, 4), (4,)], ids=str)
def test_a_residual_sum_is_fused_into_a_linear(shape, after):
    lines = [linear("l", "x", "p"), SUM, f"{after or 'F.tanh'} a 1 1 q y"]
    if after is None:
        lines[-1] = "Tensor.flip a 1 1 q y dims=(0)"
    graph = graph_of(text(*lines, inputs=("x", "r")))
    optimized(graph, [values(*shape), values(*shape[:-1], 5)], "fuse_residual")
    posts = "add" if after is None else f"add {after}"
    assert lines_of(graph)[0] == f"nn.Linear x r -> {'q' if after is None else 'y'} | {posts}"


def test_the_later_of_two_products_takes_the_sum():
    lines = [conv("a", "x", "p"), conv("b", "x", "r"), SUM, "F.relu e 1 1 q y"]
    graph = graph_of(text(*lines))
    optimized(graph, [X], "fuse_residual")
    assert lines_of(graph) == ["nn.Conv2d x -> p", "nn.Conv2d x p -> y | add F.relu"]


def test_a_second_sum_is_fused_into_another_product():
    lines = [
        conv("a", "x", "p"),
        SUM,
        conv("b", "q", "u", 4),
        "pnnx.Expression t 2 1 u q y expr=add(@0,@1)",
    ]
    graph = graph_of(text(*lines, inputs=("x", "r")))
    optimized(graph, [X, R], "fuse_residual")
    assert lines_of(graph) == ["nn.Conv2d x r -> q | add", "nn.Conv2d q q -> y | add"]


def test_one_product_takes_one_sum():
    lines = [conv("a", "x", "p"), SUM, "pnnx.Expression t 2 1 q r y expr=add(@0,@1)"]
    graph = graph_of(text(*lines, inputs=("x", "r")))
    optimized(graph, [X, R], "fuse_residual")
    assert lines_of(graph) == ["nn.Conv2d x r -> q | add", "add(@0,@1) q r -> y"]


@pytest.mark.parametrize(
    ("lines", "r"),
    [
        ([conv("c", "x", "p"), SUM.replace(" q ", " y ")], values(2, 4, 1, 1)),
        ([conv("c", "x", "p"), SUM.replace(" q ", " y ")], values(4, 1, 1)),
        ([conv("c", "x", "p"), SUM.replace(" q ", " y ")], values(6)),
        ([conv("c", "x", "p"), SUM.replace(" q ", " y ")], values(3, 2, 4, 5, 6)),
        ([conv("c", "x", "p"), SUM.replace("p r q", "p p y"), "F.tanh z 1 1 r w"], values(2)),
        ([conv("c", "x", "p"), "pnnx.Expression s 2 1 p r y expr=sub(@0,@1)"], R),
        ([conv("c", "x", "p"), "pnnx.Expression s 2 1 p r y expr=add(@0,mul(2,@1))"], R),
        ([conv("c", "x", "p"), SUM, "pnnx.Expression t 2 1 p q y expr=mul(@0,@1)"], R),
    ],
    ids=["pixels", "channels", "row", "batch", "twice", "difference", "scaled", "two readers"],
)  # fmt: skip
def test_sums_that_are_not_residual(lines, r):
    outputs = ("y", "w") if any(" w" in line for line in lines) else ("y",)
    graph = graph_of(text(*lines, inputs=("x", "r"), outputs=outputs))
    before = lines_of(graph)
    optimized(graph, [X, r], "fuse_residual")
    assert lines_of(graph) == before


def test_a_sum_with_a_returned_product_is_fused_into_the_other():
    lines = [conv("a", "x", "p"), conv("b", "x", "r"), SUM.replace(" q ", " y ")]
    graph = graph_of(text(*lines, outputs=("r", "y")))
    optimized(graph, [X], "fuse_residual")
    assert lines_of(graph) == ["nn.Conv2d x -> r", "nn.Conv2d x r -> y | add"]


def test_a_sum_of_returned_products_is_not_fused():
    lines = [conv("a", "x", "p"), conv("b", "x", "r"), SUM.replace(" q ", " y ")]
    graph = graph_of(text(*lines, outputs=("p", "r", "y")))
    optimized(graph, [X], "fuse_residual")
    assert "add(@0,@1) p r -> y" in lines_of(graph)


def test_a_broadcast_summand():
    """An expanded summand has the shape of the product but strides of zero."""
    lines = [
        conv("c", "x", "p"),
        "Tensor.expand e 1 1 s r sizes=(2,4,5,6)",
        SUM.replace(" q ", " y "),
    ]
    for shape in ((2, 4, 1, 1), (1, 1, 5, 6), (2, 1, 1, 6), (4, 5, 1)):
        graph = graph_of(text(*lines, inputs=("x", "s")))
        optimized(graph, [X, values(*shape)], "fuse_residual")
        assert lines_of(graph)[-1] == "nn.Conv2d x r -> y | add"


def test_the_summand_may_be_the_input_of_the_product():
    graph = graph_of(text(conv("c", "x", "p", 3, 3), "pnnx.Expression s 2 1 x p y expr=add(@0,@1)"))
    optimized(graph, [X], "fuse_residual")
    assert lines_of(graph) == ["nn.Conv2d x x -> y | add"]


# -- products with computed weights ------------------------------------------------------------


@pytest.mark.parametrize("after", ["F.relu", "nn.SiLU"])
@pytest.mark.parametrize("bias", [True, False])
def test_post_ops_of_a_linear_whose_weight_is_an_input(after, bias):
    keys = "$input=x $weight=w $bias=b" if bias else "$input=x $weight=w"
    line = f"F.linear l {3 if bias else 2} 1 x w {'b ' if bias else ''}p {keys}"
    lines = [line, SUM, f"{after} a 1 1 q y"]
    graph = graph_of(text(*lines, inputs=("x", "w", "b", "r")))
    inputs = [values(7, 4), values(5, 4), values(5), values(7, 5)]
    optimized(graph, inputs, "fuse_residual")
    assert lines_of(graph) == [f"F.linear x w {'b ' if bias else ''}r -> y | add {after}"]


def test_post_ops_of_a_convolution_whose_weight_is_an_input():
    line = "F.conv2d c 2 1 x w p $input=x $weight=w stride=(1,1) padding=(1,1)"
    graph = graph_of(text(line, SUM, "nn.SiLU a 1 1 q y", inputs=("x", "w", "r")))
    optimized(graph, [X, values(4, 3, 3, 3), values(2, 4, 5, 6)], "fuse_residual")
    assert lines_of(graph) == ["F.conv2d x w r -> y | add nn.SiLU"]


# -- gates -------------------------------------------------------------------------------------

GATE = "pnnx.Expression m 2 1 x g p expr=mul(@0,@1)"
WIDE, NUMBERS = values(2, 12, 5, 4), values(2, 12, 1, 1)


@pytest.mark.parametrize("order", ["mul(@0,@1)", "mul(@1,@0)"])
@pytest.mark.parametrize("batch", [1, 3])
def test_a_gate_is_fused_into_the_following_convolution(order, batch):
    lines = [GATE.replace("mul(@0,@1)", order), conv("c", "p", "y", 12, 7)]
    graph = graph_of(text(*lines, inputs=("x", "g")))
    optimized(graph, [values(batch, 12, 5, 4), values(batch, 12, 1, 1)], "fuse_gate")
    assert lines_of(graph) == ["nn.Conv2d x g -> y"]
    assert graph.operator("c").input_keys == (None, "input_scale")


def test_a_gate_before_a_convolution_with_post_ops():
    lines = [GATE, conv("c", "p", "q", 12, 7), "pnnx.Expression s 2 1 q r v expr=add(@0,@1)"]
    graph = graph_of(text(*lines, "nn.SiLU a 1 1 v y", inputs=("x", "g", "r")))
    optimized(graph, [WIDE, NUMBERS, values(2, 7, 5, 4)], "fuse_residual", "fuse_gate")
    assert lines_of(graph) == ["nn.Conv2d x r g -> y | add nn.SiLU"]


@pytest.mark.parametrize(
    ("lines", "g"),
    [
        pytest.param([GATE, conv("c", "p", "y", 12, 11)], NUMBERS, id="too few pixels"),
        pytest.param([GATE, conv("c", "p", "y", 12, 4, kernel=3)], NUMBERS, id="3x3"),
        pytest.param([GATE, conv("c", "p", "y", 12, 4)], values(1, 12, 1, 1), id="for all images"),
        pytest.param([GATE, conv("c", "p", "y", 12, 4)], values(2, 12, 5, 4), id="for each pixel"),
        pytest.param([GATE, conv("c", "p", "y", 12, 4, padding=1)], NUMBERS, id="padded"),
        pytest.param(
            [GATE, conv("c", "p", "y", 12, 4), "nn.ReLU o 1 1 p w"], NUMBERS, id="read twice"
        ),
    ],
)
def test_gates_that_are_not_fused(lines, g):
    outputs = ("y", "w") if len(lines) > 2 else ("y",)
    graph = graph_of(text(*lines, inputs=("x", "g"), outputs=outputs))
    before = lines_of(graph)
    optimized(graph, [WIDE, g], "fuse_gate")
    assert lines_of(graph) == before


def test_gated_images_are_independent_of_their_batch():
    graph = graph_of(text(GATE, conv("c", "p", "y", 12, 7), inputs=("x", "g")))
    model = Model(graph)
    together = model(WIDE, NUMBERS)
    assert any("c" in report.changed for report in model.passes if report.name == "fuse_gate")
    steps = [s for s in model.plan(WIDE.shape, NUMBERS.shape).steps if s.kind == "conv"]
    assert [step.flops for step in steps] == [2.0 * 7 * 12 * 5 * 4] * 2
    for i in range(2):
        alone = model(WIDE[i : i + 1], NUMBERS[i : i + 1])
        assert alone.tobytes() == together[i : i + 1].tobytes()


@pytest.mark.parametrize("g", [values(2, 12), values(2, 3, 1, 1), values(2, 12, 5, 4)])
def test_a_file_cannot_contain_an_invalid_gate(g):
    line = conv("c", "x", "y", 12, 7).replace("c 1 1 x", "c 2 1 x g") + " $input_scale=g"
    model = Model(graph_of(text(line, inputs=("x", "g"))))
    with pytest.raises(ShapeError, match="'input_scale' has shape"):
        model(WIDE, g)


# -- padding -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pad", "padding"),
    [
        ("nn.ZeroPad2d p 1 1 x v padding=(0,1,2,3)", (0, 1, 2, 3)),
        ("nn.ConstantPad2d p 1 1 x v padding=(1,0,0,1) value=0.0", (1, 0, 0, 1)),
        ("F.pad p 1 1 x v mode=constant pad=(1,2) value=None", (1, 2, 0, 0)),
        ("F.pad p 1 1 x v mode=constant pad=(1,2,0,1) value=0", (1, 2, 0, 1)),
    ],
)
@pytest.mark.parametrize("own", [(0, 0), (2, 1)])
def test_padding_is_fused_into_the_following_convolution(pad, padding, own):
    line = conv("c", "v", "y", kernel=3).replace("(0,0)", f"({own[0]},{own[1]})")
    graph = graph_of(text(pad, line))
    optimized(graph, [X], "fuse_pad")
    assert lines_of(graph) == ["nn.Conv2d x -> y"]
    top, left = own
    expected = tuple(n + m for n, m in zip(padding, (left, left, top, top), strict=True))
    assert graph.operator("c").params["padding"] == expected


def test_only_the_last_of_two_paddings_is_fused():
    lines = ["nn.ZeroPad2d p 1 1 x v padding=(0,1,2,3)", "nn.ZeroPad2d q 1 1 v w padding=(1,1,0,0)"]
    graph = graph_of(text(*lines, conv("c", "w", "y", kernel=3)))
    optimized(graph, [X], "fuse_pad")
    assert lines_of(graph)[-1] in ("nn.Conv2d v -> y", "nn.Conv2d x -> y")


ZERO_PAD = "nn.ZeroPad2d p 1 1 x v padding=(0,1,2,3)"


@pytest.mark.parametrize(
    "lines",
    [
        ["nn.ConstantPad2d p 1 1 x v padding=(1,0,0,1) value=0.5", conv("c", "v", "y")],
        ["F.pad p 1 1 x v mode=reflect pad=(1,2,0,1) value=None", conv("c", "v", "y")],
        ["F.pad p 1 1 x v mode=constant pad=(0,1,0,0,1,0) value=0", conv("c", "v", "y", 4)],
        ["F.pad p 1 1 x v mode=constant pad=(-1,1,0,0) value=0", conv("c", "v", "y")],
        [ZERO_PAD, conv("c", "v", "y", padding=1).replace("=zeros", "=reflect")],
        [ZERO_PAD, conv("c", "v", "y").replace("padding=(0,0)", "padding=same")],
        [ZERO_PAD, conv("c", "v", "w"), conv("d", "v", "z"), "torch.cat e 2 1 w z y dim=1"],
        [ZERO_PAD, "F.relu a 1 1 v y"],
    ],
    ids=["value", "reflect", "channels", "crop", "conv reflects", "same", "two readers", "relu"],
)
def test_padding_that_is_not_fused(lines):
    graph = graph_of(text(*lines))
    before = lines_of(graph)
    optimized(graph, [X], "fuse_pad")
    assert lines_of(graph) == before


def test_padding_that_is_returned_is_not_fused():
    graph = graph_of(text(ZERO_PAD, conv("c", "v", "y"), outputs=("v", "y")))
    optimized(graph, [X], "fuse_pad")
    assert lines_of(graph) == ["nn.ZeroPad2d x -> v", "nn.Conv2d v -> y"]
