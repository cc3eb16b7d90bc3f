"""The graph: consistency after every change, topological order, and linear cost."""

from __future__ import annotations

import time
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kuiper.errors import GraphError
from kuiper.ir import Attribute, Graph, PostOp, Use, dtypes


def diamond() -> Graph:
    """Return in -> 0; conv: 0 -> 1; relu: 1 -> 2; add: (2, 1, 1) -> 3; out reads 3."""
    graph = Graph()
    graph.add_operand("0", (1, None), "f32")
    graph.add_operator("pnnx.Input", "in", outputs=["0"])
    graph.add_operator(
        "nn.Conv2d",
        "conv",
        ["0"],
        ["1"],
        params={"stride": (1, 1), "mode": None},
        attributes={"weight": Attribute.from_array(np.ones((2, 3), np.float32))},
        location="m.param:4",
    )
    graph.add_operator("nn.ReLU", "relu", ["1"], ["2"])
    graph.add_operator("t.add", "add", ["2", "1", "1"], ["3"], input_keys=[None, "a", "b"])
    graph.add_operator("pnnx.Output", "out", ["3"])
    return graph


def chain(length: int) -> Graph:
    graph = Graph()
    graph.add_operator("pnnx.Input", "in", outputs=["0"])
    for i in range(length):
        graph.add_operator("nn.ReLU", f"r{i}", [f"{i}"], [f"{i + 1}"])
    graph.add_operator("pnnx.Output", "out", [f"{length}"])
    return graph


def names(items) -> list[str]:
    return [item.name for item in items]


# -- reading ---------------------------------------------------------------------------------


def test_contents():
    graph = diamond()
    graph.verify()
    assert len(graph) == 5
    assert names(graph) == names(graph.operators) == ["in", "conv", "relu", "add", "out"]
    assert names(graph.operands) == ["0", "1", "2", "3"]
    assert names(graph.inputs) == ["0"]
    assert names(graph.outputs) == ["3"]
    assert graph.operand("0").shape == (1, None)
    assert graph.operand("0").dtype == "f32"
    assert graph.operand("1").shape is None
    assert graph.has_operand("1")
    assert not graph.has_operand("conv")
    assert graph.has_operator("conv")
    assert not graph.has_operator("1")


def test_producers_uses_and_consumers():
    graph = diamond()
    conv, relu, add = map(graph.operator, ("conv", "relu", "add"))
    shared = graph.operand("1")
    assert shared.producer is conv
    assert shared.uses == (Use(relu, 0), Use(add, 1), Use(add, 2))
    assert shared.consumers == (relu, add)
    assert graph.operand("3").uses == (Use(graph.operator("out"), 0),)
    assert names(add.inputs) == ["2", "1", "1"]
    assert names(add.outputs) == ["3"]
    assert add.input_keys == (None, "a", "b")


def test_several_inputs_and_outputs_keep_their_order():
    graph = Graph()
    for name in "ab":
        graph.add_operator("pnnx.Input", f"in_{name}", outputs=[name])
    graph.add_operator("torch.topk", "top", ["b", "a"], ["v", "i"])
    for name in ("i", "v", "i"):
        graph.add_operator("pnnx.Output", graph.unique_name("out"), [name])
    assert names(graph.inputs) == ["a", "b"]
    assert names(graph.outputs) == ["i", "v", "i"]


def test_lookup_suggests_similar_names():
    with pytest.raises(KeyError, match="no operator 'convv' in the graph; similar names: conv"):
        diamond().operator("convv")
    with pytest.raises(KeyError, match=r"no operand 'conv' in the graph\W*$"):
        diamond().operand("conv")


def test_find_and_count():
    graph = diamond()
    assert names(graph.find("nn.*")) == ["conv", "relu"]
    assert names(graph.find(name="*u*")) == ["relu", "out"]
    assert names(graph.find("nn.*", "c*")) == ["conv"]
    assert graph.find("F.*") == []
    assert len(graph.find()) == 5
    assert graph.type_counts()["nn.ReLU"] == 1
    assert sum(graph.type_counts().values()) == 5


def test_print():
    graph = diamond()
    graph.operator("relu").post_ops = (PostOp("add", {}, 0), PostOp("nn.SiLU", {}))
    assert str(graph).splitlines() == [
        "graph with 5 operators, 4 operands",
        "  in: %0:(1,?)f32 = pnnx.Input()",
        "  conv: %1 = nn.Conv2d(%0, stride=(1, 1), mode=None, weight=(2,3)f32)",
        "  relu: %2 = nn.ReLU(%1) -> add(%1) -> nn.SiLU",
        "  add: %3 = t.add(%2, a=%1, b=%1)",
        "  out: pnnx.Output(%3)",
    ]
    assert repr(graph) == "<Graph: 5 operators, 1 inputs, 1 outputs>"
    assert repr(graph.operator("conv")) == "<nn.Conv2d 'conv'>"
    assert graph.operator("conv").label == "m.param:4: operator 'conv' (nn.Conv2d)"
    assert graph.operator("relu").label == "operator 'relu' (nn.ReLU)"


# -- changing --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "conv"}, "operator 'conv' exists already"),
        ({"outputs": ["1"]}, "operand '1' is already produced by m.param:4: operator 'conv'"),
        ({"outputs": ["x", "x"]}, "an operand stands twice among the outputs"),
        ({"inputs": ["1", "new"], "input_keys": ["a"]}, "1 input keys for 2 inputs"),
        ({"inputs": [chain(1).operand("0")]}, "operand '0' belongs to another graph"),
        ({"inputs": ["new"], "outputs": [chain(1).operand("0")]}, "belongs to another graph"),
    ],
)
def test_a_refused_operator_does_not_change_the_graph(arguments, message):
    graph = diamond()
    before = str(graph), names(graph.operands), graph.operand("1").uses
    with pytest.raises(GraphError, match=message):
        graph.add_operator(**{"type": "t.x", "name": "new"} | arguments)
    assert (str(graph), names(graph.operands), graph.operand("1").uses) == before
    graph.verify()


def test_add_operand():
    graph = diamond()
    operand = graph.add_operand("free", (3,), "i64")
    assert graph.operand("free") is operand
    with pytest.raises(GraphError, match="operand 'free' exists already"):
        graph.add_operand("free")
    graph.add_operator("t.x", "x", [operand, "4"], ["5"])
    assert graph.operand("4").producer is None


def test_remove_operator():
    graph = diamond()
    add, out = graph.operator("add"), graph.operator("out")
    graph.remove_operator(out)
    assert graph.operand("3").uses == ()
    graph.remove_operator(add)
    assert not graph.has_operand("3")
    assert graph.operand("1").consumers == (graph.operator("relu"),)
    assert names(add.inputs) == ["2", "1", "1"]
    graph.remove_operator(graph.operator("conv"))
    assert graph.operand("1").producer is None
    assert graph.operand("0").uses == ()
    graph.remove_operator(graph.operator("relu"))
    assert names(graph.operands) == ["0"]
    graph.verify()
    with pytest.raises(GraphError, match=r"operator 'add' \(t.add\) belongs to another graph"):
        graph.remove_operator(add)


def test_set_inputs():
    graph = diamond()
    add = graph.operator("add")
    zero, one = graph.operand("0"), graph.operand("1")
    graph.set_inputs(add, [one, zero], ["x", None])
    graph.remove_operator(graph.operator("relu"))
    graph.verify()
    assert add.inputs == (one, zero)
    assert add.input_keys == ("x", None)
    assert one.uses == (Use(add, 0),)
    with pytest.raises(GraphError, match="3 input keys for 1 inputs"):
        graph.set_inputs(add, [one], [None] * 3)
    with pytest.raises(GraphError, match="belongs to another graph"):
        graph.set_inputs(add, [one, chain(1).operand("0")])
    assert add.inputs == (one, zero)
    graph.verify()


def test_set_inputs_removes_operators_that_are_not_needed():
    graph = diamond()
    graph.add_operator("t.x", "x", ["loose"], ["4"])
    graph.set_inputs(graph.operator("x"), [graph.operand("0")])
    assert not graph.has_operand("loose")


def test_set_outputs():
    graph = diamond()
    conv, relu = graph.operator("conv"), graph.operator("relu")
    one, two = graph.operand("1"), graph.operand("2")
    graph.replace_uses(one, two)
    graph.set_outputs(conv, [two])
    assert relu.outputs == ()
    assert two.producer is conv
    assert not graph.has_operand("1")
    with pytest.raises(GraphError, match="twice among the outputs"):
        graph.set_outputs(conv, [two, two])
    with pytest.raises(GraphError, match="belongs to another graph"):
        graph.set_outputs(conv, [chain(1).operand("1")])
    assert conv.outputs == (two,)
    graph.set_outputs(conv, [two])
    assert two.producer is conv


def test_replace_uses():
    graph = diamond()
    one, two = graph.operand("1"), graph.operand("2")
    add = graph.operator("add")
    graph.replace_uses(two, one)
    assert add.inputs == (one, one, one)
    assert two.uses == ()
    assert graph.has_operand("2")
    graph.replace_uses(one, one)
    assert len(one.uses) == 4
    graph.verify()
    with pytest.raises(GraphError, match="belongs to another graph"):
        graph.replace_uses(one, chain(1).operand("0"))


def test_unique_name():
    graph = diamond()
    assert graph.unique_name("new") == "new"
    assert graph.unique_name("conv") == "conv_1"
    graph.add_operand("conv_1")
    assert graph.unique_name("conv") == "conv_2"


def test_copy_is_independent_but_shares_bytes():
    graph = diamond()
    graph.operator("relu").post_ops = (PostOp("nn.SiLU", {}),)
    other = graph.copy()
    assert str(other) == str(graph)
    other.verify()
    conv, twin = graph.operator("conv"), other.operator("conv")
    assert twin is not conv
    assert twin.location == conv.location
    assert twin.attributes["weight"].raw is conv.attributes["weight"].raw
    twin.params["stride"] = (2, 2)
    other.remove_operator(other.operator("out"))
    other.operand("0").shape = None
    assert conv.params["stride"] == (1, 1)
    assert len(graph) == 5
    assert graph.operand("0").shape == (1, None)


# -- order -----------------------------------------------------------------------------------


def test_a_valid_order_is_kept():
    graph = diamond()
    assert graph.topological_order() == list(graph)


def test_order_of_a_shuffled_graph():
    graph = Graph()
    graph.add_operator("pnnx.Output", "out", ["3"])
    graph.add_operator("t.add", "add", ["2", "1"], ["3"])
    graph.add_operator("nn.ReLU", "right", ["0"], ["2"])
    graph.add_operator("nn.ReLU", "left", ["0"], ["1"])
    graph.add_operator("pnnx.Input", "in", outputs=["0"])
    graph.add_operator("pnnx.Input", "spare", outputs=["s"])
    order = names(graph.topological_order())
    assert order == ["in", "right", "left", "add", "out", "spare"]
    graph.verify()


def test_cycle_is_named():
    graph = Graph()
    graph.add_operator("pnnx.Input", "in", outputs=["0"])
    graph.add_operator("t.add", "a", ["0", "3"], ["1"])
    graph.add_operator("t.f", "b", ["1"], ["2"])
    graph.add_operator("t.f", "c", ["2"], ["3"])
    graph.add_operator("pnnx.Output", "second_output", ["3"])
    with pytest.raises(GraphError) as caught:
        graph.topological_order()
    path = str(caught.value).removeprefix("the graph has a cycle: ").split(" -> ")
    assert path[0] == path[-1]
    start = path.index("'a'")
    assert (path[:-1] * 2)[start : start + 3] == ["'a'", "'b'", "'c'"]
    with pytest.raises(GraphError, match="cycle"):
        graph.verify()


def test_operator_that_reads_itself():
    graph = Graph()
    graph.add_operator("t.f", "f", ["x"], ["x"])
    with pytest.raises(GraphError, match="the graph has a cycle: 'f' -> 'f'"):
        graph.topological_order()


@settings(max_examples=100, derandomize=True, database=None, deadline=None)
@given(st.data())
def test_any_insertion_order_gives_a_topological_order(data):
    count = data.draw(st.integers(1, 12))
    reads = [
        data.draw(st.lists(st.integers(0, i - 1), max_size=3)) if i else [] for i in range(count)
    ]
    graph = Graph()
    for i in data.draw(st.permutations(range(count))):
        graph.add_operator("t.f", f"f{i}", [f"{j}" for j in reads[i]], [f"{i}"])
    graph.verify()
    order = graph.topological_order()
    assert sorted(names(order)) == sorted(names(graph))
    rank = {operator: i for i, operator in enumerate(order)}
    for operator in graph:
        for operand in operator.inputs:
            assert rank[operand.producer] < rank[operator]


# -- invariants ------------------------------------------------------------------------------


def test_verify_finds_an_operand_without_producer():
    graph = diamond()
    graph.add_operator("t.f", "f", ["nowhere"], ["4"])
    with pytest.raises(GraphError, match="operand 'nowhere' has no producer; it is read by 'f'"):
        graph.verify()
    graph = diamond()
    graph.add_operand("idle")
    with pytest.raises(GraphError, match="operand 'idle' has no producer; it is read by nothing"):
        graph.verify()


def corrupt_use(graph):
    graph.operand("1")._uses.popitem()


def corrupt_stale_use(graph):
    graph.operand("0")._uses[Use(graph.operator("add"), 0)] = None


def corrupt_use_beyond(graph):
    graph.operand("0")._uses[Use(graph.operator("add"), 9)] = None


def corrupt_removed_reader(graph):
    del graph._operators["out"]


def corrupt_producer(graph):
    graph.operand("2").producer = graph.operator("conv")


def corrupt_outputs(graph):
    graph.operator("relu")._outputs.clear()


def corrupt_two_outputs(graph):
    graph.operator("relu")._outputs.append(graph.operand("2"))


def corrupt_keys(graph):
    graph.operator("add").input_keys = ()


def corrupt_operand_name(graph):
    graph.operand("2").name = "two"


def corrupt_operator_name(graph):
    graph.operator("relu").name = "r"


def corrupt_foreign_input(graph):
    graph.operator("relu")._inputs[0] = chain(1).operand("1")


def corrupt_foreign_output(graph):
    graph.operator("relu")._outputs.append(chain(1).operand("1"))


@pytest.mark.parametrize(
    ("corrupt", "message"),
    [
        (corrupt_use, r"operator 'add' \(t.add\): use of '1' is not recorded"),
        (corrupt_stale_use, "operand '0' is not input 0 of operator 'add'"),
        (corrupt_use_beyond, "operand '0' is not input 9 of operator 'add'"),
        (corrupt_removed_reader, "operand '3' is not input 0 of operator 'out'"),
        (corrupt_producer, r"operator 'relu' \(nn.ReLU\): output '2' has another producer"),
        (corrupt_outputs, "operand '2' is not among the outputs of operator 'relu'"),
        (corrupt_two_outputs, "output '2' has another producer"),
        (corrupt_keys, "input keys and inputs differ in number"),
        (corrupt_operand_name, "output 'two' is not in the graph"),
        (corrupt_operator_name, "is filed under 'relu'"),
        (corrupt_foreign_input, "input '1' is not in the graph"),
        (corrupt_foreign_output, "output '1' is not in the graph"),
    ],
)
def test_verify_finds_every_inconsistency(corrupt, message):
    graph = diamond()
    graph.verify()
    corrupt(graph)
    with pytest.raises(GraphError, match=message):
        graph.verify()


# -- subgraphs -------------------------------------------------------------------------------


def test_subgraph():
    graph = diamond()
    part = graph.subgraph(["1"], [graph.operand("3"), "2"])
    part.verify()
    assert names(part) == ["pnnx_input_0", "relu", "add", "pnnx_output_0", "pnnx_output_1"]
    assert names(part.inputs) == ["1"]
    assert names(part.outputs) == ["3", "2"]
    assert part.operator("add").input_keys == (None, "a", "b")
    assert len(graph) == 5


def test_subgraph_of_operators_listed_after_their_readers():
    graph = Graph()
    graph.add_operator("pnnx.Input", "x", outputs=["a"])
    last = graph.add_operator("nn.ReLU", "last", ["b"], ["c"])
    graph.add_operator("nn.ReLU", "first", ["a"], ["b"])
    part = graph.subgraph(["a"], ["c"])
    part.verify()
    assert [op.name for op in part.topological_order()][1:3] == ["first", last.name]


def test_subgraph_includes_constants():
    graph = diamond()
    graph.add_operator("pnnx.Attribute", "table", outputs=["t"])
    graph.add_operator("t.mul", "mul", ["2", "t"], ["4"])
    part = graph.subgraph(["2"], ["4"])
    assert names(part) == ["pnnx_input_0", "table", "mul", "pnnx_output_0"]


def test_subgraph_of_a_single_input():
    part = diamond().subgraph(["0"], ["0"])
    part.verify()
    assert names(part) == ["pnnx_input_0", "pnnx_output_0"]
    assert part.operand("0").shape == (1, None)


def test_subgraph_with_a_missing_input():
    with pytest.raises(GraphError, match="needs operand '0', which its inputs do not provide"):
        diamond().subgraph(["2"], ["3"])


def test_subgraph_that_computes_its_input():
    graph = diamond()
    graph.add_operator("torch.topk", "top", ["0"], ["v", "i"])
    graph.add_operator("t.f", "f", ["v", "i"], ["4"])
    with pytest.raises(GraphError, match="has 'v' as an input, but also needs another output of"):
        graph.subgraph(["0", "v"], ["4"])
    assert names(graph.subgraph(["v", "i"], ["4"]).inputs) == ["v", "i"]


def test_subgraph_with_unknown_names():
    with pytest.raises(KeyError, match="no operand 'x' in the graph"):
        diamond().subgraph(["x"], ["3"])


# -- cost ------------------------------------------------------------------------------------


def test_a_long_chain():
    """Neither recursion nor anything slower than linear."""
    length = 30_000
    start = time.process_time()
    graph = chain(length)
    assert len(graph.topological_order()) == length + 2
    graph.verify()
    assert len(graph.subgraph(["0"], [f"{length}"])) == length + 2
    assert len(graph.copy()) == length + 2
    graph.set_inputs(graph.operator("r0"), [graph.operand(f"{length}")])
    with pytest.raises(GraphError, match="cycle: 'r"):
        graph.topological_order()
    assert time.process_time() - start < 20


def test_an_operand_with_many_readers():
    """Removing readers one by one must not scan the list of the others."""
    count = 30_000
    graph = Graph()
    graph.add_operator("pnnx.Input", "in", outputs=["x"])
    for i in range(count):
        graph.add_operator("t.f", f"f{i}", ["x", "x"], [f"{i}"])
    graph.add_operator("t.cat", "cat", [f"{i}" for i in range(count)], ["y"])
    start = time.process_time()
    graph.verify()
    assert len(graph.topological_order()) == count + 2
    graph.remove_operator(graph.operator("cat"))
    for i in range(count):
        graph.remove_operator(graph.operator(f"f{i}"))
    assert graph.operand("x").uses == ()
    assert names(graph.operands) == ["x"]
    assert time.process_time() - start < 20


# -- attributes ------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", sorted(dtypes.DTYPES))
@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (0, 4)])
def test_attribute_of_every_type(dtype, shape):
    record = dtypes.DTYPES[dtype]
    values = (np.arange(np.prod(shape, dtype=int)).reshape(shape) % 2).astype(record.value)
    attribute = Attribute.from_array(values, dtype)
    assert (attribute.shape, attribute.dtype) == (shape, dtype)
    assert attribute.size == values.size
    assert attribute.raw.nbytes == values.size * record.itemsize
    result = attribute.numpy()
    assert (result.shape, result.dtype) == (shape, record.value)
    np.testing.assert_array_equal(result, values)
    if values.dtype.kind != "c":
        single = attribute.float32()
        assert (single.shape, single.dtype) == (shape, np.float32)
        assert single.flags.aligned
        assert single.flags.c_contiguous


def test_attribute_is_a_view_that_may_be_unaligned():
    data = np.arange(25, dtype=np.uint8)
    attribute = Attribute((2, 3), "f32", data[1:])
    assert np.shares_memory(attribute.numpy(), data)
    assert not np.shares_memory(attribute.float32(), data)
    np.testing.assert_array_equal(attribute.float32(), attribute.numpy())
    aligned = np.arange(6, dtype=np.float32)
    assert np.shares_memory(Attribute.from_array(aligned).float32(), aligned)


def test_attribute_checks_its_bytes():
    for raw in (np.zeros(7, np.uint8), np.zeros(9, np.uint8), np.zeros((2, 4), np.uint8)):
        with pytest.raises(GraphError, match=r"attribute \(2,\)f32 takes 8 bytes, got uint8"):
            Attribute((2,), "f32", raw)
    with pytest.raises(GraphError, match=r"got float32 \(8,\)"):
        Attribute((2,), "f32", np.zeros(8, np.float32))


def test_attribute_of_an_unknown_type():
    with pytest.raises(GraphError, match="PNNX has no element type uint16; known: f32, f64"):
        Attribute.from_array(np.zeros(2, np.uint16))
    with pytest.raises(GraphError, match="PNNX has no element type f8"):
        Attribute.from_array(np.zeros(2), "f8")


def test_attribute_of_unusual_arrays():
    array = np.arange(12, dtype=">f4").reshape(3, 4)
    attribute = Attribute.from_array(array.T)
    assert attribute.dtype == "f32"
    np.testing.assert_array_equal(attribute.numpy(), array.T)
    assert Attribute.from_array([1, 2]).dtype == "i64"
    assert Attribute.from_array([1, 2], "i8").raw.tobytes() == b"\1\2"


def test_attribute_equality():
    one = Attribute.from_array(np.array([1.0, 2.0], np.float32))
    assert one == Attribute.from_array(np.array([1.0, 2.0], np.float32))
    assert one != Attribute.from_array(np.array([1.0, 3.0], np.float32))
    assert one != Attribute.from_array(np.array([[1.0, 2.0]], np.float32))
    assert one != Attribute((2,), "i32", one.raw)
    assert one != "one"
    assert repr(one) == "<Attribute (2)f32>"


def test_bfloat16_rounds_half_to_even():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        values = np.array([1.0, 1.00390625, 1.01171875, -1.0, 3.4e38, np.inf, np.nan], np.float32)
        attribute = Attribute.from_array(values, "bf16")
    # 1 + 1/256 is half-way between 1 and 1 + 1/128, 1 + 3/256 between 1 + 1/128 and 1 + 2/128.
    # Half-way cases round to even; the largest values round up to infinity.
    expected = [1.0, 1.0, 1.015625, -1.0, np.inf, np.inf, np.nan]
    np.testing.assert_allclose(attribute.numpy(), expected, rtol=1e-7)
    bits = np.frombuffer(attribute.raw, np.uint16).tolist()
    assert bits[:4] == [0x3F80, 0x3F80, 0x3F82, 0xBF80]


@settings(max_examples=200, derandomize=True, database=None, deadline=None)
@given(st.floats(width=32, min_value=2.0**-126, max_value=2.0**127), st.sampled_from([1, -1]))
def test_bfloat16_rounds_to_nearest(value, sign):
    """No other bfloat16 is closer."""
    value *= sign
    attribute = Attribute.from_array(np.array([value], np.float32), "bf16")
    bits = int(np.frombuffer(attribute.raw, np.uint16)[0])
    found = float(attribute.numpy()[0])
    for neighbour in (bits - 1, bits + 1):
        other = np.array([neighbour << 16], np.uint32).view(np.float32)[0]
        assert abs(found - value) <= abs(float(other) - value)


# -- element types ---------------------------------------------------------------------------


def test_dtype_table():
    sizes = {name: record.itemsize for name, record in dtypes.DTYPES.items()}
    assert sizes == {
        "f32": 4, "f64": 8, "f16": 2, "bf16": 2, "i8": 1, "i16": 2, "i32": 4, "i64": 8, "u8": 1,
        "bool": 1, "c64": 8, "c128": 16, "c32": 4,
    }  # fmt: skip
    for name, record in dtypes.DTYPES.items():
        assert record.name == name
        assert dtypes.from_torch(record.torch) is record
        if name not in ("bf16", "c32"):
            assert dtypes.from_numpy(record.value) is record
            assert dtypes.from_numpy(record.value.newbyteorder()) is record
    assert dtypes.from_torch("torch.float32").name == "f32"
    assert dtypes.from_torch("torch.int64").name == "i64"
    with pytest.raises(KeyError):
        dtypes.from_numpy(np.uint16)
    with pytest.raises(KeyError):
        dtypes.from_torch("torch.qint8")
