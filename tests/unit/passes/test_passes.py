"""Passes over elementwise operators, lists and dead operators, and all passes together.

Each graph must compute the same before and after.
"""

from __future__ import annotations

import numpy as np
import pytest

import kuiper
from kuiper import passes
from kuiper.errors import GraphError
from kuiper.ir.view import TensorSpec
from kuiper.model import Model
from kuiper.passes import Pass, optimize_graph
from kuiper.planning.infer import infer_specs

from ...support import assert_same_bits, load_cases
from ...support.engine import run as run_model
from ...support.passes import PASS_BY_NAME, X, assert_specs, optimized, run
from ...support.textgraph import (
    conv,
    graph_of,
    lines_of,
    norm,
    text,
    user_operator,
    values,
)


def test_the_harness_detects_a_pass_that_changes_results(monkeypatch):
    def spoil(graph, specs):
        graph.operator("a").type = "F.sigmoid"

    monkeypatch.setitem(PASS_BY_NAME, "spoil", spoil)
    graph = graph_of(text("F.relu a 1 1 x y"))
    with pytest.raises(AssertionError, match="after the passes"):
        optimized(graph, [X], "spoil")


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
