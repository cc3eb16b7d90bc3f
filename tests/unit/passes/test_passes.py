"""Passes: the operators that each leaves of a graph, and equal results before and after."""

from __future__ import annotations

import numpy as np
import pytest

import kuiper
from kuiper import passes
from kuiper.errors import GraphError, OperatorError, ShapeError
from kuiper.ir import Attribute, Graph
from kuiper.ir.view import TensorSpec
from kuiper.model import Model
from kuiper.ops.core.schema import StaticValue
from kuiper.passes import PASSES, Pass, optimize_graph, unfreeze_batch
from kuiper.passes.restore.indices import restore_indices
from kuiper.passes.restore.masks import restore_masks
from kuiper.passes.restore.quotients import restore_quotients
from kuiper.passes.restore.write_views import write_views
from kuiper.planning.infer import infer_known, infer_specs
from kuiper.planning.planner import make_plan

from ...support import assert_outputs, assert_same_bits, load_cases
from ...support.engine import run as run_model
from ...support.textgraph import (
    branch,
    conv,
    graph_of,
    linear,
    lines_of,
    norm,
    text,
    user_operator,
    values,
)

PASS_BY_NAME = {run.__name__: run for run in PASSES}


def optimized(graph: Graph, inputs, *names: str) -> Graph:
    """Return the graph after the passes called `names`, or after all passes.

    The graph is verified after each pass and must compute the same before and after.
    """
    specs_of = {o: TensorSpec(x.shape, x.dtype) for o, x in zip(graph.inputs, inputs, strict=True)}
    specs = infer_specs(graph, specs_of)
    expected = run(graph, inputs)
    chosen = [PASS_BY_NAME[name] for name in names] if names else PASSES
    for change in chosen:
        change(graph, specs)
        graph.verify()
        assert_specs(graph, specs)
    assert all(np.std(x) > 0 for x in expected if x.size > 1), "constant data proves nothing"
    assert_outputs(run(graph, inputs), expected, 1e-5, "after the passes")
    return graph


def run(graph: Graph, inputs) -> list[np.ndarray]:
    """Plan and run a graph without passes."""
    specs = {o: TensorSpec(x.shape, x.dtype) for o, x in zip(graph.inputs, inputs, strict=True)}
    return make_plan(graph, specs, 1).run([np.ascontiguousarray(x) for x in inputs])


def assert_specs(graph: Graph, specs) -> None:
    """Fail unless `specs` equals the result of a new shape inference."""
    sources = {operand: specs[operand] for operand in graph.inputs}
    for operand, spec in infer_specs(graph, sources).items():
        if isinstance(spec, StaticValue):
            continue
        assert specs[operand] == spec, f"{operand}: {specs[operand]} is really {spec}"


X = values(2, 3, 5, 6)


def test_the_harness_detects_a_pass_that_changes_results(monkeypatch):
    def spoil(graph, specs):
        graph.operator("a").type = "F.sigmoid"

    monkeypatch.setitem(PASS_BY_NAME, "spoil", spoil)
    graph = graph_of(text("F.relu a 1 1 x y"))
    with pytest.raises(AssertionError, match="after the passes"):
        optimized(graph, [X], "spoil")


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


# -- elementwise -------------------------------------------------------------------------------


def test_a_chain_becomes_one_expression():
    graph = graph_of(
        text(
            "pnnx.Expression a 2 1 x r p expr=add(mul(@0,@1),0.5)",
            "F.relu b 1 1 p q",
            "pnnx.Expression c 2 1 q x s expr=sub(@0,@1)",
            "nn.LeakyReLU d 1 1 s y negative_slope=0.2",
            inputs=("x", "r"),
        )
    )
    optimized(graph, [X, values(3, 1, 1)], "fuse_elementwise")
    assert lines_of(graph) == ["leaky_relu(sub(relu(add(mul(@0,@1),0.5)),@0),0.2) x r -> y"]


def test_an_operand_that_one_expression_reads_twice_is_written_into_it():
    graph = graph_of(text("F.tanh a 1 1 x p", "pnnx.Expression b 2 1 p p y expr=mul(@0,@1)"))
    optimized(graph, [X], "fuse_elementwise")
    assert lines_of(graph) == ["mul(tanh(@0),tanh(@0)) x -> y"]


def test_both_sides_of_a_sum():
    graph = graph_of(
        text(
            "F.tanh a 1 1 x p",
            "F.sigmoid b 1 1 r q",
            "pnnx.Expression c 2 1 p q y expr=add(@0,@1)",
            inputs=("x", "r"),
        )
    )
    optimized(graph, [X, values(2, 3, 5, 6, seed=1)], "fuse_elementwise")
    assert lines_of(graph) == ["add(tanh(@0),sigmoid(@1)) x r -> y"]


def test_sizes_of_a_fused_tensor():
    """size() of a fused tensor becomes size() of the expression that replaces it."""
    graph = graph_of(
        text("F.tanh a 1 1 x p", "pnnx.Expression b 2 1 p p y expr=mul(@0,div(1.0,size(@1,2)))")
    )
    optimized(graph, [X], "fuse_elementwise")
    assert len(lines_of(graph)) == 1


@pytest.mark.parametrize(
    ("lines", "r"),
    [
        # another reader
        (["F.tanh a 1 1 x p", "F.relu b 1 1 p q", "torch.cat c 2 1 p q y dim=1"], None),
        # a small tensor that is broadcast is cheaper to compute once
        (["F.tanh a 1 1 r p", "pnnx.Expression b 2 1 x p y expr=mul(@0,@1)"], values(3, 1, 1)),
        # not elementwise
        (["Tensor.permute a 1 1 x p dims=(0,1,3,2)", "F.relu b 1 1 p y"], None),
    ],
    ids=["two readers", "broadcast", "view"],
)
def test_elementwise_operators_that_are_not_fused(lines, r):
    inputs = ("x",) if r is None else ("x", "r")
    graph = graph_of(text(*lines, inputs=inputs))
    before = lines_of(graph)
    optimized(graph, [X] if r is None else [X, r], "fuse_elementwise")
    assert lines_of(graph) == before


def test_a_returned_operand_is_not_fused_away():
    graph = graph_of(text("F.tanh a 1 1 x p", "F.relu b 1 1 p y", outputs=("p", "y")))
    optimized(graph, [X], "fuse_elementwise")
    assert lines_of(graph) == ["F.tanh x -> p", "F.relu p -> y"]


@pytest.mark.parametrize(("dtype", "word"), [(np.int64, "i64"), (np.float64, "f64")])
def test_other_dtypes_are_not_fused(dtype, word):
    graph = graph_of(
        f"""pnnx.Input in 0 1 x #x=(2,3){word}
        pnnx.Expression a 1 1 x p expr=mul(@0,3)
        pnnx.Expression b 1 1 p y expr=add(@0,1)
        pnnx.Output out 1 0 y"""
    )
    x = (values(2, 3) * 10).astype(dtype)
    before = lines_of(graph)
    optimized(graph, [x])
    assert lines_of(graph) == before
    np.testing.assert_array_equal(Model(graph)(x), x * 3 + 1)


def test_a_mixed_expression_is_not_fused():
    """An integer tensor times a float one is float, but not a program of float32."""
    graph = graph_of(
        """pnnx.Input in0 0 1 x
        pnnx.Input in1 0 1 k #k=(3)i64
        pnnx.Expression a 2 1 x k p expr=mul(@0,@1)
        F.tanh b 1 1 p y
        pnnx.Output out 1 0 y"""
    )
    optimized(graph, [values(2, 3), np.array([1, 2, 3])], "fuse_elementwise")
    assert lines_of(graph) == ["mul(@0,@1) x k -> p", "F.tanh p -> y"]


def test_a_long_chain_is_split():
    lines = [
        f"pnnx.Expression e{k} 2 1 v{k} r v{k + 1} expr=add(mul(@0,0.5),@1)" for k in range(40)
    ]
    graph = graph_of(text("F.relu e 1 1 x v0", *lines, inputs=("x", "r"), outputs=("v40",)))
    optimized(graph, [X, X[::-1].copy()], "fuse_elementwise")
    after = graph.find("pnnx.Expression")
    assert 2 < len(after) < 8
    assert max(op.params["expr"].size for op in after) <= 48


def test_an_expression_of_many_operands_is_split():
    names = [f"r{k}" for k in range(12)]
    lines = ["F.relu e 1 1 x v0"]
    lines += [
        f"pnnx.Expression e{k} 2 1 v{k} r{k} v{k + 1} expr=add(@0,@1)" for k in range(len(names))
    ]
    graph = graph_of(text(*lines, inputs=("x", *names), outputs=("v12",)))
    optimized(graph, [values(2, 3, seed=k) for k in range(13)], "fuse_elementwise")
    after = graph.find("pnnx.Expression")
    assert 1 < len(after) < 5
    assert max(len(op.inputs) for op in after) <= 8


# -- lists -------------------------------------------------------------------------------------


def test_a_list_of_expressions_is_split():
    graph = graph_of(
        text(
            "pnnx.Expression a 2 1 x r list expr=[add(@0,1),mul(@1,@0),@1,@0]",
            "torch.cat b 1 1 list y dim=0",
            inputs=("x", "r"),
        )
    )
    # A list that is not unpacked can only be inspected after the pass.
    inputs = [values(2, 3), values(2, 3, seed=1)]
    specs = infer_specs_until(graph, "list", inputs)
    PASS_BY_NAME["split_list"](graph, specs)
    graph.verify()
    assert lines_of(graph)[:3] == [
        "add(@0,1) x -> list_0",
        "mul(@0,@1) r x -> list_1",
        "prim::ListConstruct list_0 list_1 r x -> list",
    ]


def infer_specs_until(graph, name, inputs):
    """Infer the part of a graph that computes one operand."""
    part = graph.subgraph([o.name for o in graph.inputs], [name])
    specs = {o: TensorSpec(x.shape, x.dtype) for o, x in zip(part.inputs, inputs, strict=True)}
    return {graph.operand(o.name): s for o, s in infer_specs(part, specs).items()}


def test_a_list_that_is_unpacked():
    graph = graph_of(
        text(
            "pnnx.Expression a 2 1 x r list expr=[add(@0,1.0),mul(@1,@0),@1]",
            "prim::ListUnpack b 1 3 list u v w",
            "torch.cat c 3 1 u v w y dim=0",
            inputs=("x", "r"),
        )
    )
    inputs = [values(2, 3), values(2, 3, seed=1)]
    specs_of = {o: TensorSpec(x.shape, x.dtype) for o, x in zip(graph.inputs, inputs, strict=True)}
    specs = infer_specs(graph, specs_of)
    PASS_BY_NAME["split_list"](graph, specs)
    assert_specs(graph, specs)
    optimize_graph(graph, specs)
    graph.verify()
    (y,) = run(graph, inputs)
    x, r = inputs
    np.testing.assert_array_equal(y, np.concatenate([x + 1, r * x, r]))


def test_a_list_of_numbers_stays():
    graph = graph_of(
        text(
            "pnnx.Expression a 1 1 x shape expr=[size(@0,1),size(@0,0)]",
            "Tensor.reshape b 2 1 x shape y $input=x $shape=shape",
        )
    )
    optimized(graph, [values(2, 3)])
    assert lines_of(graph) == ["[size(@0,1),size(@0,0)] x -> shape", "Tensor.reshape x shape -> y"]


# -- removal -----------------------------------------------------------------------------------


def test_dead_operators_are_removed():
    graph = graph_of(
        text(
            conv("a", "x", "dead0"),
            "F.relu b 1 1 dead0 dead1",
            "torch.chunk c 1 3 x p dead2 dead3 chunks=3 dim=1",
            "pnnx.Attribute d 0 1 dead4 @data=(2)f32",
            "F.tanh e 1 1 p y",
            inputs=("x", "unread"),
        )
    )
    optimized(graph, [X, values(2)], "eliminate_dead")
    assert lines_of(graph) == ["torch.chunk x -> p dead2 dead3", "F.tanh p -> y"]
    assert [o.name for o in graph.inputs] == ["x", "unread"]


@pytest.mark.parametrize(
    "line",
    [
        "nn.Dropout d 1 1 x p p=0.5 inplace=False",
        "F.dropout d 1 1 x p p=0.5 training=False",
        "nn.Identity d 1 1 x p",
        "Tensor.contiguous d 1 1 x p memory_format=torch.contiguous_format",
        "Tensor.detach d 1 1 x p",
        "torch.clone d 1 1 x p memory_format=None",
    ],
    ids=lambda line: line.split()[0],
)
def test_identities_are_removed(line):
    graph = graph_of(text(line, "F.tanh e 1 1 p y", outputs=("y", "p")))
    optimized(graph, [X], "eliminate_identity")
    assert lines_of(graph) == ["F.tanh x -> y"]
    assert [o.name for o in graph.outputs] == ["y", "x"]


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
    result = model(*many)
    results = result if isinstance(result, tuple) else (result,)
    for member in range(batch):
        one = [np.take(x, [member], axis) for x, axis in zip(many, axes[: len(many)], strict=True)]
        single = model(*one)
        singles = single if isinstance(single, tuple) else (single,)
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


# -- all passes --------------------------------------------------------------------------------


def test_a_residual_block_becomes_two_steps():
    lines = [
        conv("a", "x", "p0", 3, 3, kernel=3, padding=1),
        norm("n", "p0", "p1", 3),
        "nn.ReLU r 1 1 p1 p2",
        conv("b", "p2", "p3", 3, 3, kernel=3, padding=1),
        norm("m", "p3", "p4", 3),
        "pnnx.Expression s 2 1 p4 x p5 expr=add(@0,@1)",
        "nn.ReLU t 1 1 p5 y",
    ]
    graph = graph_of(text(*lines))
    optimized(graph, [X])
    assert lines_of(graph) == ["nn.Conv2d x -> p2 | nn.ReLU", "nn.Conv2d p2 x -> y | add nn.ReLU"]


def test_a_pre_activation_becomes_one_expression():
    graph = graph_of(text(norm("n", "x", "p", 3), "nn.ReLU r 1 1 p y"))
    optimized(graph, [X])
    assert lines_of(graph)[-1] == "relu(add(mul(@0,@1),@2)) x n.scale n.shift -> y"


def test_the_pass_that_broke_a_graph_is_named(monkeypatch):
    def break_it(graph, specs):
        graph.operator("a")._inputs.clear()

    monkeypatch.setattr(passes, "PASSES", (break_it,))
    graph = graph_of(text("F.relu a 1 1 x y"))
    monkeypatch.delenv("KUIPER_DEBUG", raising=False)
    optimize_graph(graph, {})
    monkeypatch.setenv("KUIPER_DEBUG", "1")
    with pytest.raises(GraphError, match="after pass break_it: "):
        optimize_graph(graph_of(text("F.relu a 1 1 x y")), {})


@pytest.mark.parametrize("network", load_cases("models"), ids=lambda case: case.name)
def test_skipped_passes_would_change_nothing(network, monkeypatch):
    def reports():
        model = kuiper.load(network.param, network.bin)
        outputs = run_model(model, network.inputs)
        return model.passes, outputs

    passes, outputs = reports()
    with monkeypatch.context() as patch:
        patch.setattr(Pass, "concerns", lambda *_: True)
        all_passes, expected = reports()
    assert passes == all_passes
    assert_same_bits(outputs, expected, network.name)


def test_users_operators_are_left_alone():
    with user_operator("tests.Same", lambda x: x):
        graph = graph_of(text(conv("c", "x", "p"), "tests.Same s 1 1 p q", "F.relu a 1 1 q y"))
        before = lines_of(graph)
        optimized(graph, [X])
        assert lines_of(graph) == before


# -- constants, common subexpressions, identities ----------------------------------------------


def plain_and_optimized(*lines: str) -> tuple[list[str], np.ndarray, np.ndarray]:
    """Return the kernels of the optimized model, and the results without and with passes."""
    x = values(2, 3)
    models = [Model(graph_of(text(*lines)), optimize=o) for o in (False, True)]
    before, after = (np.asarray(model(x)) for model in models)
    return [step.kind for step in models[1].plan(x.shape).steps], before, after


def test_constants_are_folded():
    lines = (
        "pnnx.Attribute a 0 1 c @data=(2,3)f32",
        "pnnx.Expression e 1 1 c d expr=mul(@0,2)",
        "torch.cat k 2 1 x d y dim=0",
    )
    steps, before, after = plain_and_optimized(*lines)
    assert "elementwise" not in steps
    np.testing.assert_array_equal(before, after)
    model = Model(graph_of(text(*lines)))
    assert model.passes == ()
    model(values(2, 3))
    assert {r.name: r.added for r in model.passes}["fold_constants"] == ("e.folded",)


def test_common_subexpressions_are_computed_once():
    steps, before, after = plain_and_optimized(
        "F.gelu a 1 1 x p", "F.gelu b 1 1 x q", "torch.cat c 2 1 p q y dim=0"
    )
    assert steps.count("elementwise") == 1
    np.testing.assert_array_equal(before, after)


def test_operators_with_other_parameters_are_not_common():
    _, before, after = plain_and_optimized(
        "F.leaky_relu a 1 1 x p negative_slope=0.1",
        "F.leaky_relu b 1 1 x q negative_slope=0.2",
        "torch.cat c 2 1 p q y dim=0",
    )
    assert not np.array_equal(after[:2], after[2:])
    np.testing.assert_array_equal(before, after)


@pytest.mark.parametrize(
    ("expression", "simpler"),
    [
        ("mul(@0,1)", True),
        ("mul(1.0,@0)", True),
        ("div(@0,1)", True),
        ("sub(@0,0)", True),
        ("pow(@0,1)", True),
        ("neg(neg(@0))", True),
        ("add(@0,0)", False),  # -0.0 + 0 is 0.0
        ("sub(@0,1)", False),
        ("mul(@0,2)", False),
        ("div(1,@0)", False),
        ("neg(@0)", False),
    ],
)
def test_arithmetic_identities(expression, simpler):
    graph = graph_of(text(f"pnnx.Expression e 1 1 x y expr={expression}"))
    x = np.array([[1.5, -0.0, 0.0], [np.inf, -np.inf, np.nan]], np.float32)
    spec = {graph.inputs[0]: TensorSpec(x.shape, x.dtype)}
    specs = infer_specs(graph, spec)
    PASS_BY_NAME["simplify_expression"](graph, specs)
    graph.verify()
    assert (len(graph.find("pnnx.Expression")) == 0) == simpler
    if simpler:
        (y,) = run(graph, [x])
        assert y.tobytes() == x.tobytes()


# -- encoder layers ----------------------------------------------------------------------------

LAYER = """pnnx.Expression width 0 1 e expr=8
    pnnx.Expression heads 0 1 h expr=2
    pnnx.Expression gelu 0 1 g expr={gelu}
    pnnx.Expression first 0 1 f expr={first}
    pnnx.Expression eps 0 1 s expr=1.000000e-5
    pnnx.Attribute a 0 1 qw @data=(24,8)f32
    pnnx.Attribute b 0 1 qb @data=(24)f32
    pnnx.Attribute c 0 1 pw @data=(8,8)f32
    pnnx.Attribute d 0 1 v @data=(8)f32
    pnnx.Attribute i 0 1 uw @data=(12,8)f32
    pnnx.Attribute j 0 1 ub @data=(12)f32
    pnnx.Attribute k 0 1 dw @data=(8,12)f32
    {mask}
    aten::_transformer_encoder_layer_fwd l 20 1 x e h qw qb pw v g f s v v v v uw ub dw v m t y"""


@pytest.mark.parametrize(
    ("gelu", "first", "expected"),
    [
        (
            False,
            False,
            [
                "nn.MultiheadAttention x -> l_attention",
                "add(@0,@1) x l_attention -> l_sum1",
                "nn.LayerNorm l_sum1 -> l_norm1",
                "nn.Linear l_norm1 -> l_up",
                "F.relu l_up -> l_activation",
                "nn.Linear l_activation -> l_down",
                "add(@0,@1) l_norm1 l_down -> l_sum2",
                "nn.LayerNorm l_sum2 -> y",
            ],
        ),
        (
            True,
            True,
            [
                "nn.LayerNorm x -> l_norm1",
                "nn.MultiheadAttention l_norm1 -> l_attention",
                "add(@0,@1) x l_attention -> l_sum1",
                "nn.LayerNorm l_sum1 -> l_norm2",
                "nn.Linear l_norm2 -> l_up",
                "F.gelu l_up -> l_activation",
                "nn.Linear l_activation -> l_down",
                "add(@0,@1) l_sum1 l_down -> y",
            ],
        ),
    ],
)
def test_an_encoder_layer_is_split(gelu, first, expected):
    mask = "pnnx.Expression none 0 1 m expr=None\npnnx.Expression n 0 1 t expr=None"
    graph = graph_of(text(LAYER.format(gelu=gelu, first=first, mask=mask)))
    x = values(2, 5, 8)
    specs = infer_specs(graph, {graph.inputs[0]: TensorSpec(x.shape)})
    PASS_BY_NAME["split_encoder_layer"](graph, specs)
    graph.verify()
    assert_specs(graph, specs)
    constants = ("pnnx.Attribute", "None", "8 ", "2 ", "True", "False", "1.000000e-5")
    assert [line for line in lines_of(graph) if not line.startswith(constants)] == expected


def test_a_dead_encoder_layer_is_not_split():
    """Tracing an operand before it makes such a graph."""
    mask = "pnnx.Expression none 0 1 m expr=None\npnnx.Expression n 0 1 t expr=None"
    x = values(2, 5, 8)
    model = Model(graph_of(text(LAYER.format(gelu=False, first=False, mask=mask))))
    np.testing.assert_array_equal(model.trace(x, ["x"])["x"], x)


def test_a_dead_list_is_not_split():
    model = Model(graph_of(text("pnnx.Expression l 1 1 x y expr=[@0,neg(@0)]")))
    x = values(2, 3)
    np.testing.assert_array_equal(model.trace(x, ["x"])["x"], x)
    for result, expected in zip(model(x), (x, -x), strict=True):
        np.testing.assert_array_equal(result, expected)


def test_an_encoder_layer_with_computed_weights_is_not_split():
    mask = "pnnx.Expression none 0 1 m expr=None\npnnx.Expression n 0 1 t expr=None"
    lines = LAYER.format(gelu=False, first=False, mask=mask).replace("qw qb pw", "qw z pw")
    graph = graph_of(text(lines, inputs=("x", "z")))
    inputs = [values(2, 5, 8), values(24)]
    specs_of = {o: TensorSpec(x.shape, x.dtype) for o, x in zip(graph.inputs, inputs, strict=True)}
    specs = infer_specs(graph, specs_of)
    PASS_BY_NAME["split_encoder_layer"](graph, specs)
    with pytest.raises(ShapeError, match="expected constants"):
        run(graph, inputs)


# -- writing into views ------------------------------------------------------------------------

WRITE = """pnnx.Expression e 1 1 x b expr=mul(@0,2) #x=(3,5)f32 #b=(3,5)f32
    Tensor.slice s 1 1 b v dim=1 start=1 end=4 step=2 $input=b #b=(3,5)f32 #v=(3,2)f32
    pnnx.Expression index 0 1 p expr=-1
    Tensor.select t 2 1 v p w dim=0 $input=v $index=p #v=(3,2)f32 #w=(2)f32
    Tensor.copy c 2 1 w z y $self=w $src=z #w=(2)f32 #z=(2)f32 #y=(3,5)f32"""


def test_a_write_into_a_slice_becomes_a_copy():
    graph = graph_of(text(WRITE, inputs=("x", "z")))
    write_views(graph)
    graph.verify()
    assert [line for line in lines_of(graph) if "->" in line and " c" in line] == [
        "aten::select_scatter v z p -> c_1_out",
        "Tensor.slice_copy b c_1_out -> y",
    ]
    x, z = values(3, 5), values(2)
    expected = x * 2
    expected[-1, 1:4:2] = z
    (y,) = run(graph, [x, z])
    np.testing.assert_array_equal(y, expected)


def test_a_write_without_readers_is_removed():
    graph = graph_of(text(WRITE + "\nF.relu r 1 1 b q", inputs=("x", "z"), outputs=("q",)))
    write_views(graph)
    graph.verify()
    assert not graph.find("Tensor.copy")
    x, z = values(3, 5), values(2)
    np.testing.assert_array_equal(run(graph, [x, z])[0], np.maximum(x * 2, 0))


def test_a_write_into_a_copy_is_kept():
    lines = "Tensor.clone d 1 1 x v\nTensor.copy c 2 1 v z y $self=v $src=z #x=(3,5)f32 #y=(3,5)f32"
    graph = graph_of(text(lines, inputs=("x", "z")))
    write_views(graph)
    x, z = values(3, 5), values(5)
    np.testing.assert_array_equal(run(graph, [x, z])[0], np.broadcast_to(z, (3, 5)))


def test_a_write_into_the_whole_tensor_is_kept():
    lines = "Tensor.copy c 2 1 x z y $self=x $src=z #x=(3,5)f32 #z=(5)f32 #y=(3,5)f32"
    graph = graph_of(text(lines, inputs=("x", "z")))
    write_views(graph)
    x, z = values(3, 5), values(5)
    np.testing.assert_array_equal(run(graph, [x, z])[0], np.broadcast_to(z, (3, 5)))


@pytest.mark.parametrize(
    ("view", "shape"),
    [
        ("torch.transpose t 1 1 v w dim0=0 dim1=1 $input=v", "(2,3)"),
        # A slice of a view.
        ("torch.t t 1 1 v u\nTensor.slice o 1 1 u w dim=1 start=0 end=2 step=1", "(2,2)"),
    ],
)
def test_a_write_into_another_view_is_refused(view, shape):
    lines = "\n".join(
        [
            *WRITE.splitlines()[:2],
            view,
            f"Tensor.copy c 2 1 w z y $self=w $src=z #w={shape}f32 #z=(2)f32 #y=(3,5)f32",
        ]
    )
    graph = graph_of(text(lines, inputs=("x", "z")))
    with pytest.raises(
        OperatorError, match=r"'c' \(Tensor.copy\): it writes into a view of another"
    ):
        write_views(graph)


# -- key padding masks -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "query", "mask", "named"),
    [
        (True, "(2,7,16)", "(2,7)", True),
        (False, "(7,2,16)", "(2,7)", True),
        (True, "(1,7,16)", "(1,7)", True),
        (True, "(2,7,16)", "(7,7)", False),
        # With as many sequences as queries, it may be either.
        (True, "(7,7,16)", "(7,7)", False),
        (True, "(2,7,16)", "(4,7,7)", False),
        (True, "(?,7,16)", "(?,7)", False),
        (True, "(7,16)", "(7,7)", False),
    ],
)
def test_a_key_padding_mask_gets_its_name(first, query, mask, named):
    graph = graph_of(
        text(
            "nn.MultiheadAttention a 2 1 x m y embed_dim=16 num_heads=2 "
            f"batch_first={first} $attn_mask=m #x={query}f32 #m={mask}f32",
            inputs=("x", "m"),
        )
    )
    restore_masks(graph)
    assert graph.operator("a").input_keys[1] == ("key_padding_mask" if named else "attn_mask")


def test_a_key_padding_mask_that_is_the_first_input():
    graph = graph_of(
        text(
            "nn.MultiheadAttention a 3 1 m x z y embed_dim=16 num_heads=2 batch_first=True "
            "$attn_mask=z #x=(2,7,16)f32 #z=(2,5,16)f32 #m=(2,5)bool",
            inputs=("x", "z", "m"),
        )
    )
    restore_masks(graph)
    attention = graph.operator("a")
    assert [operand.name for operand in attention.inputs] == ["x", "z", "m"]
    assert list(attention.input_keys) == [None, None, "key_padding_mask"]


@pytest.mark.parametrize(
    ("expr", "source", "result", "becomes"),
    [
        ("[[0],[0]]", "(1,18)", "(1,1,1,18)", [1, 2]),
        ("[[0,1],[0]]", "(2,18)", "(2,1,1,18)", [1, 2]),
        ("[[0],[0]]", "(1,1)", "(1,1,1,1)", [1, 2]),
        ("[[0],[0]]", "(1,18)", "(1,1,18)", [1]),
        ("[[0]]", "(18,4)", "(1,18,4)", [0]),
        ("[[0],[0]]", "(1,18,5)", "(1,1,18,5)", [1]),
        ("[None,[3]]", "(2,18)", "(2,1,1)", [1]),
        ("[[2],None,[3]]", "(4,5,6)", "(1,1,5)", [0]),
        # Complete: the traced shape is what they select.
        ("[[0],[0]]", "(1,18)", "(1)", None),
        ("[[0,1,2]]", "(18,4)", "(3,4)", None),
        ("[[0],[0]]", "(1,18)", "(?,1,1,18)", None),
        ("[[True,False]]", "(2,18)", "(1,18)", None),
    ],
)
def test_constant_indices_get_their_axes_back(expr, source, result, becomes):
    graph = graph_of(
        text(f"Tensor.index i 1 1 x y expr={expr} #x={source}f32 #y={result}f32", inputs=("x",))
    )
    restore_indices(graph)
    graph.verify()
    added = [op.params["dim"] for op in graph.find("torch.unsqueeze")]
    assert added == (becomes or [])
    if becomes is None:
        return
    shapes = [tuple(map(int, shape.strip("()").split(","))) for shape in (source, result)]
    specs = infer_specs(graph, {graph.operand("x"): TensorSpec(shapes[0])})
    assert specs[graph.operand("y")].shape == shapes[1]


@pytest.mark.parametrize(
    ("expr", "source", "result"),
    [
        ("[[0],[1]]", "(1,18)", "(1,1,1,18)"),
        ("[[0],[0]]", "(1,18)", "(1,1,1,9)"),
        ("[[0,1]]", "(18,4)", "(2,3,4)"),
        ("[None,[0]]", "(2,18)", "(2,1,18)"),
    ],
)
def test_ambiguous_constant_indices(expr, source, result):
    graph = graph_of(
        text(f"Tensor.index i 1 1 x y expr={expr} #x={source}f32 #y={result}f32", inputs=("x",))
    )
    with pytest.raises(OperatorError, match=r"'i' \(Tensor\.index\).*has only the first of the"):
        restore_indices(graph)


@pytest.mark.parametrize(("key", "dtype"), [("attn_mask", "bool"), ("mask", "f32")])
def test_a_mask_that_was_reshaped(key, dtype):
    graph = graph_of(
        text(
            f"Tensor.reshape r 1 1 m n shape=(7,7) ${key}=m #m=(1,1,7,7){dtype} #n=(7,7){dtype}",
            "nn.MultiheadAttention a 2 1 x n y embed_dim=16 num_heads=2 batch_first=True "
            "$attn_mask=n #x=(2,7,16)f32",
            inputs=("x", "m"),
        )
    )
    restore_masks(graph)
    reshape = graph.operator("r")
    assert reshape.input_keys == (None,)
    # For booleans, true has opposite meanings in the two operators.
    source = reshape.inputs[0].producer
    assert source.type == ("torch.logical_not" if dtype == "bool" else "pnnx.Input")


@pytest.mark.parametrize(
    ("expr", "types", "becomes"),
    [
        ("div(@0,80)", ("i64", "i64"), "floor_divide(@0,80)"),
        ("sub(@0,mul(div(@0,7),7))", ("i32", "i32"), "sub(@0,mul(floor_divide(@0,7),7))"),
        ("add(div(@0,5),div(neg(@0),3))", ("i64", "i64"), None),
        # Floating-point in between or in the result, or an unknown type.
        ("div(@0,80)", ("i64", "f32"), ""),
        ("div(@0,80)", ("f32", "i64"), ""),
        ("div(@0,2.5)", ("i64", "i64"), ""),
        ("torch.long(div(@0,80))", ("i64", "i64"), ""),
        ("floor_divide(@0,80)", ("i64", "i64"), ""),
        ("div(@0,80)", ("i64", None), ""),
    ],
)
def test_quotients_of_integers_are_rounded_down(expr, types, becomes):
    source, result = (t and f"(5){t}" for t in types)
    notes = f"#x={source}" + (f" #y={result}" if result else "")
    graph = graph_of(text(f"pnnx.Expression e 1 1 x y expr={expr} {notes}", inputs=("x",)))
    restore_quotients(graph)
    if becomes is not None:
        assert graph.operator("e").params["expr"] == (becomes or expr)
    if becomes == "":
        return
    x = np.array([-81, -80, -1, 0, 79], source[3:].replace("i", "int"))
    floored = {
        "div(@0,80)": x // 80,
        "sub(@0,mul(div(@0,7),7))": x % 7,
        "add(div(@0,5),div(neg(@0),3))": x // 5 + -x // 3,
    }
    np.testing.assert_array_equal(Model(graph)(x), floored[expr])
    assert Model(graph)(x).dtype == x.dtype


ZERO = np.zeros(1, np.int64)
ENDS = (
    "torch.argmax e 1 1 i k dim=1 keepdim=False #i=(1,6)i64 #k=(1)i64",
    "pnnx.Expression l 2 1 n k c expr=[@0,@1]",
    "Tensor.index t 2 1 x c y $input=x $expr=c #x=(1,6,4)f32 #y=(1,4)f32",
)


def test_one_index_per_member_at_another_batch():
    graph = graph_of(text(*ENDS, inputs=("x", "i", "n")))
    n = graph.operand("n").producer
    graph.add_operator(
        "pnnx.Attribute", "members", [], ["m"], attributes={"data": Attribute.from_array(ZERO)}
    )
    graph.set_inputs(graph.operator("l"), ["m", "k"])
    graph.remove_operator(n)
    x = np.arange(72, dtype=np.float32).reshape(3, 6, 4)
    i = np.array([[0, 9, 1, 2, 3, 4], [9, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 9]])
    assert_outputs(Model(graph)(x, i), x[[0, 1, 2], [1, 0, 5]])
    # The trace had the first member only.
    assert_outputs(Model(graph)(x[:1], i[:1]), x[:1, 1])


def test_a_constant_index_per_member_at_another_batch():
    graph = graph_of(
        text("Tensor.index t 1 1 x y expr=[[0],[4]] #x=(1,6,4)f32 #y=(1,4)f32", inputs=("x",))
    )
    x = np.arange(72, dtype=np.float32).reshape(3, 6, 4)
    assert_outputs(Model(graph)(x), x[:, 4])


def test_writing_at_indices_of_a_constant_at_another_batch():
    graph = graph_of(
        text(
            "Tensor.new_zeros z 1 1 x o size=(1,3,4) #x=(1,4)f32 #o=(1,3,4)f32",
            "Tensor.slice_copy c 2 1 o x y dim=1 end=0 select=1 start=0 step=0 $self=o $src=x "
            "#y=(1,3,4)f32",
            inputs=("x",),
        )
    )
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    expected = np.zeros((2, 3, 4), np.float32)
    expected[:, 1] = x
    assert_outputs(Model(graph)(x), expected)


def test_scattering_into_a_constant_at_another_batch():
    graph = graph_of(
        text(
            "Tensor.new_zeros z 1 1 x o size=(1,5) #x=(1,2)f32 #o=(1,5)f32",
            "torch.scatter_add s 3 1 o i x y dim=1 $input=o $index=i $src=x #i=(1,2)i64 "
            "#y=(1,5)f32",
            inputs=("x", "i"),
        )
    )
    x = np.arange(1, 7, dtype=np.float32).reshape(3, 2)
    i = np.array([[0, 4], [1, 1], [3, 2]])
    expected = np.zeros((3, 5), np.float32)
    np.add.at(expected, (np.arange(3)[:, None], i), x)
    assert_outputs(Model(graph)(x, i), expected)
