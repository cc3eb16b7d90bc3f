"""Graphs that look like those that a restoring pass expects, and may mean something else."""

from __future__ import annotations

import numpy as np
import pytest

import kuiper
from kuiper.errors import OperatorError, ShapeError
from kuiper.ir import Graph
from kuiper.ir.view import TensorSpec
from kuiper.model import Model
from kuiper.passes.restore.indices import restore_indices
from kuiper.passes.restore.outputs import restore_outputs
from kuiper.passes.restore.quotients import restore_quotients
from kuiper.passes.restore.refine_shapes import refine_shapes
from kuiper.passes.restore.same_padding import sized_margins
from kuiper.passes.restore.write_views import write_views

from ...support.textgraph import files_of, graph_of, lines_of, text, values
from .test_restore import LAYER

# -- outputs of recurrent modules --------------------------------------------------------------


def recurrent(type, outputs, notes, **params):
    count = len(outputs.split())
    params = {"hidden_size": 8, "batch_first": False, **params}
    written = " ".join(f"{key}={value}" for key, value in params.items())
    line = f"{type} l 1 {count} x {outputs} {written} {notes}"
    return graph_of(text(line, outputs=outputs.split()))


@pytest.mark.parametrize(
    ("type", "source", "result", "params"),
    [
        # As long as there are layers: the output of all times, or the last state of all layers?
        ("nn.GRU", "(2,4,6)", "(2,4,8)", {"num_layers": 2}),
        ("nn.LSTM", "(3,4,6)", "(3,4,8)", {"num_layers": 3}),
        ("nn.RNN", "(3,3,6)", "(3,3,8)", {"num_layers": 3, "batch_first": True}),
        # No extent tells the two apart.
        ("nn.GRU", "(5,4,6)", "(?,4,8)", {"num_layers": 2}),
    ],
)
def test_an_output_that_may_be_a_state_is_refused(type, source, result, params):
    with pytest.raises(
        OperatorError, match=r"does not say which of them 'a' is; export with a seq"
    ):
        restore_outputs(recurrent(type, "a", f"#x={source}f32 #a={result}f32", **params))


@pytest.mark.parametrize(
    ("type", "source", "outputs", "results", "params", "names"),
    [
        # One time of one layer: both have the same values.
        ("nn.GRU", "(1,4,6)", "a", ["(1,4,8)"], {}, "a"),
        # All outputs: pnnx has restored their order.
        ("nn.GRU", "(2,4,6)", "a b", ["(2,4,8)", "(2,4,8)"], {"num_layers": 2}, "a b"),
        # Two directions double the features of the output, and not those of the state.
        ("nn.GRU", "(2,4,6)", "a", ["(2,4,8)"], {"bidirectional": True}, "l_y a"),
        # A projection makes the states of an LSTM different.
        ("nn.LSTM", "(5,4,6)", "a", ["(1,4,8)"], {"proj_size": 3}, "l_y l_h a"),
        ("nn.LSTM", "(5,4,6)", "a", ["(1,4,3)"], {"proj_size": 3}, "l_y a l_c"),
        ("nn.LSTM", "(5,4,6)", "a b", ["(1,4,8)", "(1,4,3)"], {"proj_size": 3}, "l_y b a"),
        # Unknown extents at both ends are the same axis.
        ("nn.GRU", "(?,4,6)", "a", ["(?,4,8)"], {}, "a"),
        ("nn.GRU", "(?,4,6)", "a", ["(1,4,8)"], {}, "l_y a"),
        # No shape of the module: nothing is changed.
        ("nn.GRU", "(5,4,6)", "a", ["(5,4,9)"], {}, "a"),
    ],
)
def test_shapes_that_prove_what_an_output_is(type, source, outputs, results, params, names, caplog):
    notes = f"#x={source}f32 " + " ".join(
        f"#{name}={shape}f32" for name, shape in zip(outputs.split(), results, strict=True)
    )
    graph = recurrent(type, outputs, notes, **params)
    restore_outputs(graph)
    assert [operand.name for operand in graph.operator("l").outputs] == names.split()
    assert not caplog.records


@pytest.mark.parametrize(
    ("outputs", "results", "warns"),
    [
        ("a", ["(1,4,8)"], True),  # pnnx writes the same for (h, c)[0] and (h, c)[1]
        ("a b", ["(1,4,8)", "(1,4,8)"], True),
        ("a b c", ["(1,4,8)", "(1,4,8)", "(5,4,8)"], True),
        ("a b c", ["(5,4,8)", "(1,4,8)", "(1,4,8)"], False),
        ("a", ["(5,4,8)"], False),
    ],
)
def test_a_hidden_state_that_may_be_the_cell_state(outputs, results, warns, caplog):
    notes = "#x=(5,4,6)f32 " + " ".join(
        f"#{name}={shape}f32" for name, shape in zip(outputs.split(), results, strict=True)
    )
    restore_outputs(recurrent("nn.LSTM", outputs, notes))
    assert len(caplog.records) == warns
    if warns:
        assert "'a' is taken as the hidden state" in caplog.text


# -- constant indices --------------------------------------------------------------------------

INDEX = "Tensor.index i 1 1 m v expr=[[0],[0]] #m=(2,6){} #v=(2,1,1,6){}"
ATTENTION = (
    "Tensor.expand e 1 1 v w sizes=(2,1,6,6)",
    "F.scaled_dot_product_attention a 4 1 q q q w y $query=q $key=q $value=q $attn_mask=w",
)


def mask_graph(dtype, *rest):
    return graph_of(text(INDEX.format(dtype, dtype), *rest, inputs=("m", "q")))


def test_a_mask_of_keys_that_reaches_an_attention_is_in_order():
    for rest in (
        ATTENTION,
        (
            "torch.where c 1 1 v w $condition=v input=0.0 other=-1e9",
            "pnnx.Expression s 2 1 q w z expr=add(@0,@1)",
            "F.softmax f 1 1 z y dim=-1",
        ),
    ):
        graph = mask_graph("bool", *rest)
        restore_indices(graph)
        assert [op.params["dim"] for op in graph.find("torch.unsqueeze")] == [1, 2]


@pytest.mark.parametrize(
    ("dtype", "rest"),
    [
        ("bool", ("torch.logical_not n 1 1 v y",)),  # no attention
        ("f32", ATTENTION),  # a bias, which may be in any order
        ("bool", ("torch.gather g 2 1 q v w", "F.softmax f 1 1 w y dim=-1")),
    ],
)
def test_a_tensor_that_need_not_be_a_mask_of_keys_is_refused(dtype, rest):
    with pytest.raises(OperatorError, match="has only the first of the indices"):
        restore_indices(mask_graph(dtype, *rest))


def test_an_index_into_an_axis_of_one_element_and_a_complete_one():
    """The numbers that pnnx leaves out are all 0; the others are all there."""
    line = "Tensor.index i 1 1 x y expr=[[0],[0,1,2]] #x=(1,3)f32 #y=(1,1,1,3)f32"
    x = values(1, 3)
    np.testing.assert_array_equal(Model(graph_of(text(line)))(x), x[:, None, None])


# -- rounded quotients -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expr", "notes"),
    [
        ("mul(@0,int(div(size(@0,0),5)))", "#x=(5)i64 #y=(5)i64"),  # int rounds to zero
        ("torch.long(div(@0,5))", "#x=(5)i64 #y=(5)i64"),
        ("trunc(div(@0,5))", "#x=(5)i64 #y=(5)i64"),
        ("and(div(@0,5),1)", "#x=(5)i64 #y=(5)i64"),
        ("add(@0,div(@0,1e0))", "#x=(5)i64 #y=(5)i64"),
        ("div(@0,True)", "#x=(5)i64 #y=(5)i64"),
        ("div(@0,5)", "#x=(5)bool #y=(5)i64"),
        ("div(@0,5)", "#x=(5)i64 #y=(5)f32"),
        ("div(@0,5)", "#x=(5)i64"),
    ],
)
def test_a_quotient_that_may_be_exact_is_left_alone(expr, notes):
    graph = graph_of(text(f"pnnx.Expression e 1 1 x y expr={expr} {notes}"))
    restore_quotients(graph)
    assert graph.operator("e").params["expr"] == expr


def test_a_quotient_of_which_another_operand_is_a_float_is_left_alone():
    line = "pnnx.Expression e 2 1 x z y expr=add(div(@0,5),@1) #x=(5)i64 #z=(5)f32 #y=(5)i64"
    graph = graph_of(text(line, inputs=("x", "z")))
    restore_quotients(graph)
    assert graph.operator("e").params["expr"] == "add(div(@0,5),@1)"


# -- writing into views ------------------------------------------------------------------------

WRITE = (
    "pnnx.Expression m 1 1 x b expr=mul(@0,2) #x=(3,5)f32 #b=(3,5)f32",
    "{}",
    "Tensor.select w 1 1 b v dim=0 index=1 #v=(5)f32",
    "Tensor.copy c 2 1 v z y $self=v $src=z #z=(5)f32 #y=(3,5)f32",
)


def write_graph(view, *after, outputs=("y", "o")):
    lines = [line.format(view) for line in WRITE]
    return graph_of(text(*lines, *after, inputs=("x", "z"), outputs=outputs))


@pytest.mark.parametrize(
    ("view", "read"),
    [
        ("torch.transpose t 1 1 b u dim0=0 dim1=1", "F.relu r 1 1 u o"),
        ("torch.unsqueeze t 1 1 b u dim=0", "pnnx.Expression r 2 1 u y o expr=add(@0,@1)"),
        ("Tensor.reshape t 1 1 b u shape=(15)", "F.relu r 1 1 u o"),
        (
            "torch.t t 1 1 b d\nTensor.slice s 1 1 d u dim=0 start=0 end=2 step=1",
            "F.relu r 1 1 u o",
        ),
    ],
)
def test_a_view_that_is_read_after_a_write(view, read):
    """PyTorch reads the new values; an expression may have been fused from one before the write."""
    with pytest.raises(OperatorError, match=r"'c' .*'r' .* reads 'u', a view of the tensor 'b'"):
        write_views(write_graph(view, read))


def test_a_write_into_the_whole_tensor_of_which_a_view_is_read():
    lines = (
        "pnnx.Expression m 1 1 x b expr=mul(@0,2) #x=(3,5)f32 #b=(3,5)f32",
        "torch.transpose t 1 1 b u dim0=0 dim1=1",
        "Tensor.copy c 2 1 b z y $self=b $src=z #z=(5)f32 #y=(3,5)f32",
        "F.relu r 1 1 u o",
    )
    with pytest.raises(OperatorError, match=r"'r' .* reads 'u'"):
        write_views(graph_of(text(*lines, inputs=("x", "z"), outputs=("y", "o"))))


@pytest.mark.parametrize(
    ("view", "expected"),
    [
        # Read before the write.
        ("torch.transpose t 1 1 b u dim0=0 dim1=1\nF.relu r 1 1 u o", lambda b: b.T),
        # Slices of the tensor that pnnx did not move are read before the write in the module.
        ("Tensor.slice t 1 1 b u dim=0 start=0 end=2 step=1\nF.relu r 1 1 u o", lambda b: b[:2]),
        ("Tensor.clone t 1 1 b u\nF.relu r 1 1 u o", lambda b: b),
    ],
)
def test_a_view_that_is_read_before_a_write(view, expected):
    x, z = values(3, 5), values(5)
    y, o = Model(write_graph(view))(x, z)
    written = x * 2
    np.testing.assert_array_equal(o, np.maximum(expected(written), 0))
    written[1] = z
    np.testing.assert_array_equal(y, written)


def test_a_copy_is_no_view():
    after = "F.relu r 1 1 u o"
    x, z = values(3, 5), values(5)
    _, o = Model(write_graph("Tensor.clone t 1 1 b u", after))(x, z)
    np.testing.assert_array_equal(o, np.maximum(x * 2, 0))


def test_a_write_in_a_file_without_shapes_is_refused():
    """Its result may be the part that older exports meant."""
    lines = (
        "Tensor.select w 1 1 x v dim=0 index=1",
        "Tensor.copy c 2 1 v z y $self=v $src=z",
    )
    with pytest.raises(OperatorError, match="the part that it writes or the whole tensor"):
        write_views(graph_of(text(*lines, inputs=("x", "z"))))


# -- lists of tensors --------------------------------------------------------------------------


def test_a_list_in_a_list_is_split():
    lines = (
        "pnnx.Expression e 1 1 x l expr=[[@0,neg(@0)],[2,3],mul(@0,2)]",
        "prim::ListUnpack u 1 3 l a s b",
        "prim::ListUnpack v 1 2 a c d",
        "pnnx.Expression f 3 1 c d b y expr=add(add(@0,mul(@1,3)),@2)",
    )
    x = values(2, 3)
    np.testing.assert_allclose(Model(graph_of(text(*lines)))(x), x - 3 * x + 2 * x, atol=1e-6)


def test_a_list_of_numbers_is_not_split():
    lines = (
        "pnnx.Expression e 1 1 x s expr=[size(@0,1),size(@0,0)]",
        "Tensor.reshape r 2 1 x s y $input=x $shape=s",
    )
    model = Model(graph_of(text(*lines)))
    assert model(values(2, 3)).shape == (3, 2)
    assert "prim::ListConstruct" not in model.planned_graph((2, 3)).type_counts()


# -- shapes of this run ------------------------------------------------------------------------


def refined(target, traced, actual):
    graph = Graph()
    graph.add_operand("x", traced, "f32")
    operator = graph.add_operator("Tensor.reshape", "r", ["x"], ["y"], params={"shape": target})
    refine_shapes(operator, {graph.operand("x"): TensorSpec(actual)})
    return operator.params["shape"]


def test_a_reshape_that_fits_as_it_is_may_be_a_constant():
    with pytest.raises(OperatorError, match=r"fits 'shape' = \(4, 6, 1\) .* but also \(6, 4, 1\)"):
        refined((4, 6, 1), (4, 6), (6, 4))
    assert refined((24,), (4, 6), (6, 4)) == (24,)
    assert refined((4, 6, 1), (4, 6), (5, 4)) == (5, 4, 1)  # a constant would not fit


def test_an_extent_that_is_equal_by_chance_is_not_the_count():
    assert refined((4, 4, 1), (4, 4), (3, 4)) == (3, 4, 1)  # the first axis, not the second
    assert refined((2, 4, 4), (8, 4), (5, 4)) == (2, 4, 4)  # in which factor?


# -- padding for a size ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "more", "warns"),
    [
        ("constant", "", True),
        ("reflect", "", False),  # "same" padding is of zeros
        ("constant", "F.relu r 1 1 q o", False),  # another reader: no padding of the convolution
    ],
)
def test_padding_that_need_not_depend_on_the_size(mode, more, warns):
    lines = [
        f"F.pad p 1 1 x q pad=(0,1,0,1) mode={mode} #x=(1,3,8,8)f32",
        "nn.MaxPool2d m 1 1 q y kernel_size=(3,3) stride=(2,2) padding=(0,0) dilation=(1,1)",
        *([more] if more else []),
    ]
    graph = graph_of(text(*lines, outputs=("y", "o") if more else ("y",)))
    found = sized_margins(graph, {graph.operand("x"): TensorSpec((1, 3, 9, 9))})
    assert bool(found) == warns
    assert [op.params["pad"] for op in graph.find("F.pad")] == [(0, 1, 0, 1)]


# -- encoder layers ----------------------------------------------------------------------------


def layer_graph(type, mask="pnnx.Input im 0 1 m"):
    chosen = f"{mask}\npnnx.Expression n 0 1 t expr={type}"
    return graph_of(text(LAYER.format(gelu=False, first=False, mask=chosen)))


def test_the_type_of_a_mask_decides_where_its_shape_does_not():
    """Five sequences of five: a mask of pairs of positions, or of the keys of each sequence."""
    x, mask = values(5, 5, 8), np.triu(np.ones((5, 5), np.float32), 1)
    pairs = Model(layer_graph(0))(x, mask)
    keys = Model(layer_graph(1))(x, mask)
    assert np.abs(pairs - keys).max() > 0.01
    # The same masks, as they are for each head.
    per_head = np.broadcast_to(mask, (5, 2, 5, 5)).copy()
    np.testing.assert_array_equal(Model(layer_graph(2))(x, per_head), pairs)
    per_head = np.broadcast_to(mask[:, None, None], (5, 2, 5, 5)).copy()
    np.testing.assert_array_equal(Model(layer_graph(2))(x, per_head), keys)


@pytest.mark.parametrize(
    ("type", "message"),
    [("None", "'mask_type' is None"), (3, "'mask_type' is 3"), (2, r"expected \(5, 2, 5, 5\)")],
)
def test_a_mask_of_unknown_type_is_refused(type, message):
    with pytest.raises(ShapeError, match=message):
        Model(layer_graph(type))(values(5, 5, 8), np.zeros((5, 5), np.float32))


def test_a_layer_whose_inputs_have_other_positions_is_not_split():
    lines = LAYER.format(gelu=False, first=False, mask="pnnx.Attribute z 0 1 m @data=(5,5)f32")
    lines = lines.replace("pnnx.Expression eps 0 1 s expr=1.000000e-5\n", "")
    lines = lines.replace("l 20 1 x e h qw qb pw v g f s v", "l 18 1 x e h qw qb pw v g f v")
    lines = lines.replace("v m t y", "v m y") + " eps=1e-5 mask_type=0"
    model = kuiper.load(*files_of(text(lines)))
    with pytest.raises(ShapeError, match="weights are computed at run time, expected constants"):
        model(values(2, 5, 8))
    assert "nn.Linear" not in " ".join(lines_of(model.graph))
