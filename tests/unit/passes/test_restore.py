"""Passes that restore what an export lost: encoder layers, writes into views, masks, indices."""

from __future__ import annotations

import numpy as np
import pytest

from kuiper.errors import OperatorError, ShapeError
from kuiper.ir import Attribute
from kuiper.ir.view import TensorSpec
from kuiper.model import Model
from kuiper.passes.restore.indices import restore_indices
from kuiper.passes.restore.masks import restore_masks
from kuiper.passes.restore.quotients import restore_quotients
from kuiper.passes.restore.write_views import write_views
from kuiper.planning.infer import infer_specs

from ...support import assert_outputs
from ...support.passes import PASS_BY_NAME, assert_specs, run
from ...support.textgraph import (
    graph_of,
    lines_of,
    text,
    values,
)

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
        ("[[0],[0,1,2]]", "(1,3)", "(1,1,1,3)", [1, 2]),
        ("[[0,1,2],[0]]", "(3,1)", "(1,3,1)", [0]),
        ("[[0],[0]]", "(1,1)", "(1,1,1,1)", [1, 2]),
        ("[[0,1,2]]", "(3,4)", "(1,3,4)", [0]),
        ("[[0],[0,1,2]]", "(1,3,5)", "(1,1,3,5)", [1]),
        ("[[0],[0]]", "(1,1,5)", "(1,1,1,5)", [1]),
        ("[None,[3]]", "(2,18)", "(2,1,1)", [1]),
        ("[[2],None,[3]]", "(4,5,6)", "(1,1,5)", [0]),
        # Complete: the traced shape is what they select.
        ("[[0],[0]]", "(1,18)", "(1)", None),
        ("[[0,1,2]]", "(18,4)", "(3,4)", None),
        ("[[True,False]]", "(2,18)", "(1,18)", None),
        ("[[True,False],[3]]", "(2,18)", "(1)", None),
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
        ("[[0],[0]]", "(1,18)", "(1,1,1,18)"),  # a permutation that begins with 0?
        ("[[0,1],[0]]", "(2,18)", "(2,1,1,18)"),
        ("[[0],[0]]", "(1,18)", "(?,1,1,18)"),
        ("[[0]]", "(18,4)", "(1,18,4)"),
        ("[[0,1]]", "(2,4)", "(2,2,4)"),  # [[0,1],[1,0]]?
        ("[[True,False]]", "(2,3)", "(4)"),  # the first row of a matrix of bools
        ("[[True,False]]", "(2,3,4)", "(4,4)"),
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


def test_a_mask_for_as_many_sequences_as_queries_may_be_either():
    attention = "nn.MultiheadAttention a 2 1 x m y $attn_mask=m batch_first=True #x=(7,7,16)f32"
    graph = graph_of(text(f"{attention} #m=(7,7)f32", inputs=("x", "m")))
    with pytest.raises(OperatorError, match=r"'a' .*export with another batch than 7"):
        restore_masks(graph)
    for source in (
        "pnnx.Attribute c 0 1 m @data=(7,7)f32 #m=(7,7)f32",
        "Tensor.reshape r 1 1 x m shape=(7,7) $mask=x #m=(7,7)f32",
    ):
        graph = graph_of(text(source, attention))
        restore_masks(graph)
        assert graph.operator("a").input_keys[1] == "attn_mask"


MASKED = (
    "nn.MultiheadAttention a 2 1 x n y embed_dim=16 num_heads=2 batch_first=True $attn_mask=n "
    "#x=(2,7,16)f32"
)


@pytest.mark.parametrize(
    ("key", "shape", "dtype", "source"),
    [
        ("attn_mask", "2,1,7,7", "bool", "torch.logical_not"),  # True attends in the function
        ("attn_mask", "2,1,7,7", "f32", "pnnx.Input"),  # the attention takes any mask of rank 4
        ("attn_mask", "1,2,1,7", "f32", "pnnx.Input"),
        ("attn_mask", "2,7,7", "f32", "pnnx.Input"),  # of the 2 heads
        ("attn_mask", "3,7,7", "f32", "Tensor.reshape"),
        ("attn_mask", "1,7,7", "f32", "Tensor.reshape"),
        ("attn_mask", "1,1,7,1", "f32", "Tensor.reshape"),
        ("mask", "1,1,7,7", "bool", "Tensor.reshape"),  # True hides for masked_fill, as here
        ("mask", "1,1,7,7", "f32", "Tensor.reshape"),
    ],
)
def test_a_mask_that_was_reshaped(key, shape, dtype, source):
    reshape = f"Tensor.reshape r 1 1 m n shape=(7,7) ${key}=m #m=({shape}){dtype}"
    graph = graph_of(text(reshape, MASKED, inputs=("x", "m")))
    restore_masks(graph)
    graph.verify()
    attention = graph.operator("a")
    assert attention.input_keys[1] == "attn_mask"
    assert attention.inputs[1].producer.type == source
    assert graph.has_operator("r") == (source == "Tensor.reshape")
    assert graph.has_operator("r_not") == (dtype == "bool" and key == "attn_mask")


def test_a_mask_that_two_operators_read_is_reshaped_for_one():
    reshape = "Tensor.reshape r 1 1 m n shape=(7,7) $attn_mask=m #m=(1,1,7,7)f32"
    graph = graph_of(text(reshape, MASKED, "F.relu f 1 1 n z", inputs=("x", "m")))
    restore_masks(graph)
    assert graph.operator("a").inputs[1] is graph.operand("m")
    assert graph.operator("f").inputs == graph.operator("r").outputs


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (
            ["Tensor.reshape r 1 1 m n shape=(7,7) $attn_mask=m"],
            "does not say whether the mask 'm'",
        ),
        (
            [
                "Tensor.reshape r 1 1 m n shape=(7,7) $attn_mask=m #n=(7,7)bool",
                "torch.logical_not other 1 1 n z",
            ],
            "'other' .* reads the bool mask as well",
        ),
    ],
)
def test_a_mask_of_unknown_meaning_is_refused(lines, message):
    graph = graph_of(text(*lines, MASKED, inputs=("x", "m")))
    with pytest.raises(OperatorError, match=message):
        restore_masks(graph)


def test_names_that_a_pattern_gave_the_inputs_of_an_expression_and_an_expand():
    model = Model(
        graph_of(
            text(
                "pnnx.Expression e 2 1 x m n expr=sub(@0,@1) $mask=x $casual_mask=m",
                "Tensor.expand r 1 1 n y sizes=(2,3) $mask=n",
                inputs=("x", "m"),
            )
        )
    )
    x, m = values(1, 3), values(1, 3) + 1
    np.testing.assert_array_equal(model(x, m), np.broadcast_to(x - m, (2, 3)))


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
