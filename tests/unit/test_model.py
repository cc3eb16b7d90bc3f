"""The public interface: loading, calling, tracing, saving, and messages about wrong input."""

from __future__ import annotations

import json
import pickle
import re
import sys
import threading

import numpy as np
import pytest

import kuiper
from kuiper.errors import (
    GraphError,
    InputError,
    KuiperError,
    OperatorError,
    ShapeError,
    UnsupportedOperatorError,
)
from kuiper.ir import Attribute, Graph
from kuiper.ops import Record, record, record_or_none
from kuiper.ops.core import record as registry
from kuiper.ops.core.advice import STAYS_OUT, advice
from kuiper.ops.core.record import record_later
from kuiper.ops.product.algorithms import ALGORITHMS
from kuiper.planning.names import INPUT, OUTPUT, write_names

from ..support import assert_close, assert_same_bits
from ..support.engine import n_threads
from ..support.textgraph import files_of, graph_of, model_of, user_operator, values

TWO_INPUTS = """pnnx.Input first 0 1 x #x=(2,3)f32
    pnnx.Input second 0 1 y #y=(?,3)f32
    pnnx.Expression sum 2 1 x y s expr=sub(@0,@1) #s=(2,3)f32
    F.relu act 1 1 s z #z=(2,3)f32
    pnnx.Output out 1 0 z"""

CONVOLUTIONS = """pnnx.Input in 0 1 x #x=(1,3,?,?)f32
    nn.Conv2d conv 1 1 x y bias=True dilation=(1,1) groups=1 in_channels=3 kernel_size=(3,3) out_channels=20 padding=(1,1) padding_mode=zeros stride=(1,1) @bias=(20)f32 @weight=(20,3,3,3)f32
    nn.BatchNorm2d norm 1 1 y z affine=True eps=1e-05 num_features=20 @bias=(20)f32 @running_mean=(20)f32 @running_var=(20)f32 @weight=(20)f32
    nn.ReLU act 1 1 z w
    F.adaptive_avg_pool2d pool 1 1 w v output_size=(1,1)
    torch.flatten flat 1 1 v u end_dim=-1 start_dim=1
    nn.Linear head 1 1 u t bias=True in_features=20 out_features=5 @bias=(5)f32 @weight=(5,20)f32
    pnnx.Output out 1 0 t"""  # noqa: E501


def message_of(error, call) -> str:
    with pytest.raises(error) as caught:
        call()
    return str(caught.value)


# -- inputs ------------------------------------------------------------------------------------


def test_arrays_in_order_or_by_name():
    model = model_of(TWO_INPUTS)
    x, y = values(2, 3), values(2, 3, seed=1)
    expected = np.maximum(x - y, 0)
    for outputs in (
        model(x, y),
        model({"x": x, "y": y}),
        model({"y": y, "x": x}),
        model({"first": x, "second": y}),
        model({"second": y, "x": x}),
    ):
        np.testing.assert_array_equal(outputs, expected)


def test_the_name_of_an_operand_takes_precedence_over_an_operators_name():
    model = model_of(
        """pnnx.Input y 0 1 x
        pnnx.Input x 0 1 y
        pnnx.Expression sum 2 1 x y z expr=sub(@0,@1)
        pnnx.Output out 1 0 z"""
    )
    x, y = values(3), values(3, seed=1)
    np.testing.assert_array_equal(model({"x": x, "y": y}), x - y)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["x"], "got inputs ['x'], expected ['x', 'y']; missing: ['y']"),
        (["x", "y", "w"], "got inputs ['w', 'x', 'y'], expected ['x', 'y']; unknown: ['w']"),
        (
            ["x", "w"],
            "got inputs ['w', 'x'], expected ['x', 'y']; missing: ['y']; unknown: ['w']",
        ),
        (
            ["x", "y", "first"],
            "got inputs ['first', 'x', 'y'], expected ['x', 'y']; given twice: ['x']",
        ),
        ([], "got inputs [], expected ['x', 'y']; missing: ['x', 'y']"),
    ],
)
def test_wrong_names(given, message):
    model = model_of(TWO_INPUTS)
    assert message_of(InputError, lambda: model(dict.fromkeys(given, values(2, 3)))) == message


@pytest.mark.parametrize("count", [0, 1, 3])
def test_wrong_number_of_inputs(count):
    model = model_of(TWO_INPUTS)
    assert message_of(InputError, lambda: model(*[values(2, 3)] * count)) == (
        f"got {count} input{'' if count == 1 else 's'}, expected 2: 'x', 'y'"
    )


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (
            np.zeros((2, 3)),
            "input 'x': got float64 (2, 3), expected float32 (2, 3); pass x.astype(np.float32)",
        ),
        (
            np.zeros((2, 3), ">f4"),
            "input 'x': got >f4 (2, 3), expected float32 (2, 3); pass x.astype(np.float32)",
        ),
        (
            [[1, 2, 3], [4, 5, 6]],
            "input 'x': got int64 (2, 3), expected float32 (2, 3); pass np.asarray(x, np.float32)",
        ),
        (
            np.zeros((1, 2, 3), np.float32),
            "input 'x': got float32 (1, 2, 3), expected rank 2, like (2, 3)",
        ),
        (np.float32(1), "input 'x': got float32 (), expected rank 2, like (2, 3)"),
        (
            np.zeros(3, np.float32),
            "input 'x': got float32 (3,), expected rank 2, like (2, 3); x[None] adds a batch axis",
        ),
        (np.zeros(2, np.float32), "input 'x': got float32 (2,), expected rank 2, like (2, 3)"),
        (None, "input 'x': got a NoneType, expected an array of float32 (2, 3)"),
    ],
    ids=["float64", "big-endian", "list", "rank", "scalar", "no batch", "not a batch", "None"],
)
def test_wrong_arrays(array, message):
    model = model_of(TWO_INPUTS)
    assert message_of(InputError, lambda: model(array, values(2, 3))) == message


class Tensor:
    """A tensor of another library, whose values would fill a message."""

    def __init__(self, *shape: int) -> None:
        self.shape, self.dtype = shape, "torch.float32"

    def numpy(self) -> np.ndarray:
        return np.empty(self.shape, np.float32)

    def __iter__(self):
        return iter([Tensor(*self.shape[1:])] * self.shape[0])

    def __repr__(self) -> str:
        return "tensor(" + "0.0, " * 1000 + ")"


def test_a_tensor_of_another_library_for_a_result_is_described_by_type_and_shape():
    model, x = model_of(TWO_INPUTS), values(2, 3)
    for out in (Tensor(2, 3), [Tensor(2, 3)]):
        message = message_of(InputError, lambda: model(x, x, out=out))  # noqa: B023
        assert message == (
            f"result 0: got a {__name__}.Tensor of float32 (2, 3), expected a writeable C-order "
            "array float32 (2, 3); pass x.numpy(), which shares its memory"
        )


IMAGES = """pnnx.Input in 0 1 x #x=(1,3,6,5)f32
nn.Conv2d conv 1 1 x y in_channels=3 out_channels=1 kernel_size=(1,1) stride=(1,1) padding=(0,0) \
dilation=(1,1) groups=1 bias=False padding_mode=zeros @weight=(1,3,1,1)f32
pnnx.Output out 1 0 y""".replace("\\\n", "")


@pytest.mark.parametrize(
    ("arrays", "hint"),
    [
        ([[values(1, 3, 6, 5)]], "like (1, 3, 6, 5); this is a list of arrays: pass the array "
         "itself, model(x)"),
        ([(values(1, 3, 6, 5),) * 2], "; this is a tuple of arrays: np.concatenate joins them to "
         "one batch"),
        ([values(6, 5, 3)], "; x.transpose(2, 0, 1)[None] puts the channels first and adds a batch "
         "axis"),
        ([np.zeros((6, 5, 3), np.uint8)], "expected float32 (1, 3, 6, 5); this is a picture of "
         "(height, width, channels), which kuiper.vision.preprocess converts to the input of a "
         "network"),
        ([np.zeros((2, 6, 5, 3), np.uint8)], "these are pictures of (height, width, channels): "
         "np.stack([kuiper.vision.preprocess(p, how) for p in x]) converts them to the input of a "
         "network"),
        ([[[values(1, 3, 6, 5)]]], "; the array is in several lists: pass the array itself, "
         "model(x)"),
        (["cat.jpg"], "input 'x': got a str, expected an array of float32 (1, 3, 6, 5)"),
        ([[values(3), values(2)]], "; expected an array of float32 (1, 3, 6, 5)"),
    ],
    ids=["list", "tuple", "picture", "bytes", "many", "lists", "path", "ragged"],
)  # fmt: skip
def test_hints_for_arrays_in_lists_and_pictures(arrays, hint):
    model = model_of(IMAGES)
    assert message_of(InputError, lambda: model(*arrays)).endswith(hint)


def test_a_hint_for_a_list_of_all_inputs():
    model = model_of(TWO_INPUTS)
    assert message_of(InputError, lambda: model([values(2, 3)] * 2)) == (
        "got 1 input, expected 2: 'x', 'y'; model(*arrays) passes the arrays of a list"
    )


SIZED = """pnnx.Input in 0 1 x #x=(1,3,6,5)f32
pnnx.Attribute w 0 1 a @data=(1,3,6,5)f32 #a=(1,3,6,5)f32
{last}
pnnx.Output out 1 0 y"""


@pytest.mark.parametrize(
    ("last", "between"),
    [
        ("torch.cat cat 2 1 x a y dim=1", "; "),
        ("pnnx.Expression e 2 1 x a y expr=add(@0,@1)", "^\n"),
    ],
)
def test_a_hint_for_the_size_of_the_trace(last, between):
    model = model_of(SIZED.format(last=last))
    model(values(1, 3, 6, 5))
    said = f"{between}input 'x' has shape (1, 3, 6, 4), the file was exported for (1, 3, 6, 5)"
    for run in (model, lambda x: model.plan(x.shape)):
        assert message_of(ShapeError, lambda: run(values(1, 3, 6, 4))).endswith(said)  # noqa: B023
    with pytest.raises(ShapeError) as caught:
        model.plan((3, 6, 4))  # the hint compares extents of one rank
    assert "was exported for" not in str(caught.value)


def test_a_hint_for_channels_in_the_last_axis():
    model = model_of(IMAGES)
    x = values(1, 6, 5, 3)
    runs = (model, lambda x: model.trace(x, ["y"]), model.profile, lambda x: model.plan(x.shape))
    for run in runs:
        message = message_of(ShapeError, lambda: run(x))  # noqa: B023
        assert message.startswith("<param>:4: operator 'conv' (nn.Conv2d): the input has shape")
        assert message.endswith(
            "; input 'x' has the channels last, expected (1, 3, 6, 5): pass x.transpose(0, 3, 1, 2)"
        )
    assert "channels last" not in message_of(ShapeError, lambda: model(values(1, 4, 5, 6)))


def test_the_description_of_an_input_names_its_dtype():
    assert repr(model_of(IMAGES).inputs) == (
        "(TensorInfo(name='x', shape=(1, 3, 6, 5), dtype=float32),)"
    )


def test_errors_of_shapes_name_the_operator():
    model = model_of(TWO_INPUTS)
    text = message_of(ShapeError, lambda: model(values(2, 3), values(5, 3)))
    assert text.startswith("<param>:5: operator 'sum' (pnnx.Expression): ")
    assert "(2, 3) and (5, 3)" in text


def odd_arrays(x):
    """Yield arrays equal to `x` with other memory layouts."""
    yield "transposed", np.asfortranarray(x)
    wide = np.empty((*x.shape[:-1], 2 * x.shape[-1]), np.float32)
    wide[..., ::2] = x
    yield "every second", wide[..., ::2]
    yield "reversed", np.flip(np.flip(x, 1).copy(), 1)
    yield "broadcast", np.broadcast_to(x[:1], x.shape)
    shifted = np.zeros(x.nbytes + 1, np.uint8)
    unaligned = shifted[1:].view(np.float32).reshape(x.shape)
    unaligned[...] = x
    yield "unaligned", unaligned
    read_only = x.copy()
    read_only.flags.writeable = False
    yield "read-only", read_only
    yield "a list", [[np.float32(v) for v in row] for row in x]


def test_arrays_of_any_memory_layout():
    x, y = values(4, 5), values(4, 5, seed=1)
    model = model_of(TWO_INPUTS.replace("(2,3)", "(4,5)").replace("(?,3)", "(?,5)"))
    seen = 0
    for name, odd in odd_arrays(x):
        given = np.asarray(odd)
        before = given.copy()
        np.testing.assert_array_equal(model(odd, y), np.maximum(given - y, 0), err_msg=name)
        np.testing.assert_array_equal(given, before)
        seen += 1
    assert seen == 7


def test_a_memory_mapped_array(tmp_path):
    x = values(2, 3)
    np.save(tmp_path / "x.npy", x)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    result = model_of(TWO_INPUTS)(mapped, np.zeros((2, 3), np.float32))
    assert type(result) is np.ndarray
    np.testing.assert_array_equal(result, np.maximum(x, 0))


def test_a_contiguous_input_is_not_copied():
    seen = []
    text = """pnnx.Input in 0 1 x
        tests.Look op 1 1 x y
        pnnx.Output out 1 0 y"""
    with user_operator("tests.Look", lambda x: seen.append(x) or x):
        model = model_of(text)
        x = values(3, 4)
        for array, shared in ((x, True), (x[::2], True), (x.T, False), (x[:, ::2], False)):
            np.testing.assert_array_equal(model(array), array)
            whole = array.flags.c_contiguous
            assert np.shares_memory(seen[-1], array) == whole
            assert whole == (shared and array is x)


def test_inputs_without_annotation_accept_any_rank():
    model = model_of("pnnx.Input in 0 1 x\nF.relu act 1 1 x y\npnnx.Output out 1 0 y")
    assert model.inputs[0] == ("x", None, np.float32)
    for shape in ((), (3,), (2, 1, 3), (0,), (2, 0, 4)):
        x = values(*shape)
        y = model(x)
        assert y.shape == shape
        assert type(y) is np.ndarray
        np.testing.assert_array_equal(y, np.maximum(x, 0))


@pytest.mark.parametrize(
    ("dtype", "word"),
    [(np.int64, "i64"), (np.float64, "f64"), (np.bool_, "bool"), (np.uint8, "u8")],
)
def test_inputs_of_other_dtypes(dtype, word):
    model = model_of(
        f"""pnnx.Input in 0 1 x #x=(2,3){word}
        Tensor.permute op 1 1 x y dims=(1,0) #y=(3,2){word}
        pnnx.Output out 1 0 y"""
    )
    x = np.abs(values(2, 3) * 10).astype(dtype)
    assert model.inputs[0].dtype == dtype
    y = model(x)
    assert y.dtype == dtype
    np.testing.assert_array_equal(y, x.T)
    with pytest.raises(InputError, match=f"got float32 .* expected {np.dtype(dtype)} "):
        model(values(2, 3))


# -- outputs -----------------------------------------------------------------------------------


def test_one_result_is_an_array_and_several_are_a_tuple():
    assert isinstance(model_of(TWO_INPUTS)(values(2, 3), values(2, 3)), np.ndarray)
    model = model_of(TWO_INPUTS + "\npnnx.Output out1 1 0 x")
    results = model(values(2, 3), values(2, 3))
    assert isinstance(results, tuple)
    assert len(results) == 2


def test_results_are_new_arrays():
    model = model_of(CONVOLUTIONS)
    x = values(1, 3, 8, 8)
    first = model(x)
    kept = first.copy()
    second = model(2 * x)
    assert not np.shares_memory(first, second)
    np.testing.assert_array_equal(first, kept)
    assert first.flags.owndata
    assert first.flags.writeable
    assert first.flags.c_contiguous


def test_results_in_the_callers_arrays():
    model = model_of(TWO_INPUTS + "\npnnx.Output out1 1 0 s")
    x, y = values(2, 3), values(2, 3, seed=1)
    outs = [np.full((2, 3), 7, np.float32) for _ in range(2)]
    results = model(x, y, out=outs)
    for result, out, expected in zip(results, outs, (np.maximum(x - y, 0), x - y), strict=True):
        assert result is out
        np.testing.assert_array_equal(out, expected)
    single = model_of(TWO_INPUTS)
    out = np.empty((2, 3), np.float32)
    assert single(x, y, out=out) is out
    assert single({"x": x, "y": y}, out=[out]) is out
    np.testing.assert_array_equal(out, np.maximum(x - y, 0))


def test_numbers_in_the_callers_arrays():
    model = model_of(
        """pnnx.Input in 0 1 x
        pnnx.Expression a 1 1 x n expr=add(size(@0,0),1)
        pnnx.Output out 1 0 n"""
    )
    out = np.zeros((), np.int64)
    assert model(values(4, 2), out=out) is out
    assert out == 5
    # There are no steps to measure.
    assert model.profile(values(4, 2)).rows == []


@pytest.mark.parametrize(
    ("out", "got"),
    [
        (np.empty((2, 4), np.float32), "float32 (2, 4)"),
        (np.empty((2, 3), np.float64), "float64 (2, 3)"),
        (np.empty((3, 2), np.float32).T, "float32 (2, 3)"),
        (np.broadcast_to(np.float32(0), (2, 3)), "float32 (2, 3)"),
        ([[0.0] * 3] * 2, "a list"),
    ],
    ids=["shape", "dtype", "transposed", "read-only", "list"],
)
def test_invalid_arrays_for_results(out, got):
    model = model_of(TWO_INPUTS)
    outs = out if isinstance(out, np.ndarray) else [out[0]]
    x = values(2, 3)
    assert message_of(InputError, lambda: model(x, x, out=outs)) == (
        f"result 0: got {got}, expected a writeable C-order array float32 (2, 3)"
    )


def test_a_wrong_number_of_arrays_for_results():
    model = model_of(TWO_INPUTS)
    x = values(2, 3)
    assert message_of(InputError, lambda: model(x, x, out=[])) == (
        "got 0 arrays for results, expected 1"
    )


def test_results_that_would_overwrite_an_input():
    model = model_of(TWO_INPUTS + "\npnnx.Output out1 1 0 s")
    block = values(4, 3)
    x, y, z = block[:2], values(2, 3, seed=1), np.empty((2, 3), np.float32)
    for outs, words in (
        ([x, z], "result 0: its array shares memory with input 'x'"),
        ([z, block[1:3]], "result 1: its array shares memory with input 'x'"),
        ([z, z], "result 1: its array shares memory with result 0"),
    ):
        assert message_of(InputError, lambda: model(x, y, out=outs)).startswith(words)  # noqa: B023
    # Adjacent memory does not overlap.
    model(x, y, out=[block[2:], z])
    np.testing.assert_array_equal(block[2:], np.maximum(x - y, 0))


# -- inspection --------------------------------------------------------------------------------


def test_inputs_and_outputs():
    model = model_of(TWO_INPUTS)
    assert model.inputs == (("x", (2, 3), np.float32), ("y", (None, 3), np.float32))
    assert model.outputs == (("z", (2, 3), np.float32),)
    assert model.inputs[1].name == "y"
    assert repr(model) == (
        "<kuiper.Model: 5 operators, inputs x (2, 3), y (?, 3), outputs z (2, 3)>"
    )


def test_the_graph_is_the_one_of_the_file():
    model = model_of(CONVOLUTIONS)
    before = str(model.graph)
    model(values(1, 3, 8, 8))
    assert str(model.graph) == before
    assert model.graph.operator("norm").type == "nn.BatchNorm2d"


def test_trace():
    model = model_of(TWO_INPUTS)
    x, y = values(2, 3), values(2, 3, seed=1)
    traced = model.trace((x, y), ["z", "s", "sum", "x", "act", "first", "out"])
    assert list(traced) == ["z", "s", "sum", "x", "act", "first", "out"]
    np.testing.assert_array_equal(traced["s"], x - y)
    np.testing.assert_array_equal(traced["sum"], x - y)
    np.testing.assert_array_equal(traced["x"], x)
    np.testing.assert_array_equal(traced["first"], x)
    for name in ("z", "act", "out"):
        np.testing.assert_array_equal(traced[name], np.maximum(x - y, 0))
    np.testing.assert_array_equal(model.trace({"x": x, "y": y}, ["s"])["s"], x - y)
    write_names(model.graph, INPUT, ["ids", "mask"])
    write_names(model.graph, OUTPUT, ["logits"])
    named = kuiper.Model(model.graph)
    traced = named.trace({"ids": x, "mask": y}, ["mask", "logits", "s"])
    assert list(traced) == ["mask", "logits", "s"]
    np.testing.assert_array_equal(traced["mask"], y)
    np.testing.assert_array_equal(traced["logits"], np.maximum(x - y, 0))
    assert named.profile(ids=x, mask=y, runs=1).rows
    write_names(model.graph, INPUT, ["out", "runs"])
    reserved = kuiper.Model(model.graph)
    np.testing.assert_array_equal(reserved({"out": x, "runs": y}), np.maximum(x - y, 0))
    with pytest.raises(InputError, match=r"model\(\{'out': x, ...\}\) passes inputs that"):
        reserved(runs=y, out=x)
    assert model.trace((x, y), []) == {}


def test_trace_of_operands_that_passes_remove():
    """A traced operand is not fused away; its value is that of the file's graph."""
    model = model_of(CONVOLUTIONS)
    x = values(1, 3, 8, 8)
    traced = model.trace(x, ["y", "z", "w", "t"])
    norm = {k: v.numpy() for k, v in model.graph.operator("norm").attributes.items()}
    along = (-1, 1, 1)
    z = (traced["y"] - norm["running_mean"].reshape(along)) / np.sqrt(
        norm["running_var"].reshape(along) + np.float32(1e-5)
    ) * norm["weight"].reshape(along) + norm["bias"].reshape(along)
    assert_close(traced["z"], z, 1e-5)
    np.testing.assert_array_equal(traced["w"], np.maximum(traced["z"], 0))
    assert_close(traced["t"], model(x), 1e-5)


def test_trace_lists():
    model = model_of(
        """pnnx.Input in 0 1 x
        torch.chunk cut 1 1 x list chunks=2 dim=1
        prim::ListUnpack pieces 1 2 list a b
        prim::TupleConstruct pair 2 1 b x p
        prim::TupleConstruct all 2 1 a p r
        pnnx.Output out 1 0 r"""
    )
    x = values(2, 4)
    traced = model.trace(x, ["list", "pieces", "pair", "r", "out", "a"])
    for name, expected in {
        "list": (x[:, :2], x[:, 2:]),
        "pieces": (x[:, :2], x[:, 2:]),
        "pair": (x[:, 2:], x),
        "r": (x[:, :2], x[:, 2:], x),
        "out": (x[:, :2], x[:, 2:], x),
    }.items():
        assert isinstance(traced[name], tuple)
        assert_same_bits(traced[name], expected, name)
        assert len(traced[name]) == len(expected)
    np.testing.assert_array_equal(traced["a"], x[:, :2])


def test_a_list_is_returned():
    model = model_of(
        """pnnx.Input in 0 1 x
        torch.chunk cut 1 1 x list chunks=2 dim=1
        pnnx.Output out 1 0 list"""
    )
    x = values(2, 4)
    assert_same_bits(model(x), (x[:, :2], x[:, 2:]), "pieces")


def test_trace_of_unknown_names():
    model = model_of(TWO_INPUTS)
    text = message_of(InputError, lambda: model.trace((values(2, 3),) * 2, ["z", "actt"]))
    assert text == (
        "nothing called 'actt' to trace: no operator 'actt' in the graph; similar names: act"
    )


def test_profile():
    model = model_of(CONVOLUTIONS)
    x = values(1, 3, 16, 16)
    profile = model.profile(x, runs=5)
    names = [row["name"] for row in profile.rows]
    assert {"conv", "pool", "head"} <= set(names)
    assert "norm" not in names
    types = {row["name"]: row["type"] for row in profile.rows}
    assert (types["conv"], types["head"]) == ("nn.Conv2d", "nn.Linear")
    assert all(row["seconds"] >= 0 for row in profile.rows)
    assert profile.total == pytest.approx(sum(row["seconds"] for row in profile.rows))
    assert sum(row["share"] for row in profile.rows) == pytest.approx(1)
    groups = profile.by_kind()
    assert sum(group["count"] for group in groups) == len(profile.rows)
    assert [g["seconds"] for g in groups] == sorted((g["seconds"] for g in groups), reverse=True)
    flops = 2 * 20 * 27 * 16 * 16
    conv = next(row for row in profile.rows if row["name"] == "conv")
    assert conv["gflops"] * conv["seconds"] * 1e9 == pytest.approx(flops)


def test_a_profile_as_a_trace(tmp_path):
    model = model_of(CONVOLUTIONS)
    profile = model.profile(values(1, 3, 16, 16), runs=1)
    profile.save_trace(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    steps = [event for event in events if event["ph"] == "X"]
    assert [step["name"] for step in steps] == [row["name"] for row in profile.rows]
    ends = [step["ts"] + step["dur"] for step in steps]
    assert ends[:-1] == pytest.approx([step["ts"] for step in steps[1:]])
    assert ends[-1] == pytest.approx(profile.total * 1e6)
    assert repr(profile).startswith("<kuiper.Profile: ")
    plan = model.plan((1, 3, 16, 16))
    assert f"(1, 3, 16, 16) -> {plan.outputs[0].shape}, {len(plan.steps)} steps" in repr(plan)


@pytest.mark.parametrize(
    ("shapes", "said"),
    [
        ((), r"^got 0 shapes, expected one per input: 'x' \(1, 3, \?, \?\)$"),
        (((1, 3, 16, 16),) * 2, "^got 2 shapes, expected one per input"),
        ((1, 3, 16, 16), r"^got the numbers 1, 3, 16, 16, expected one tuple per input, such as "
         r"\(1, 3, 16, 16,\): 'x'"),
        (("1x3",), r"^input 'x': got '1x3', expected a tuple of integers, like \(1, 3, \?, \?\)$"),
        ((None,), "^input 'x': got None, expected a tuple of integers"),
        (((1, 3, -16, 16),), r"^input 'x': got \(1, 3, -16, 16\), expected a tuple of integers"),
        (((1, 3, 16.0, 16),), r"^input 'x': got \(1, 3, 16.0, 16\), expected a tuple"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("method", ["plan", "planned_graph"])
def test_what_is_no_shape_per_input_is_refused(method, shapes, said):
    with pytest.raises(kuiper.InputError, match=said):
        getattr(model_of(CONVOLUTIONS), method)(*shapes)


def test_the_columns_of_a_profile_are_aligned():
    profile = model_of(CONVOLUTIONS).profile(values(1, 3, 16, 16), runs=1)
    profile.rows[0]["kind"] = "a_kernel_with_a_long_name"
    head, *lines = str(profile).splitlines()
    for line in lines[: len(profile.rows)]:
        assert len(line) == len(head)
        assert re.search(r"\d$", line[: head.index("us") + 2])
    for line in lines[len(profile.rows) + 1 :][: len(profile.by_kind())]:
        assert line.endswith("%")
        assert len(line) == head.index("share") + len("share")


def test_completion_offers_public_names_alone():
    model = model_of(CONVOLUTIONS)
    for thing in (kuiper, model):
        assert all(hasattr(thing, name) for name in dir(thing))
    assert set(dir(kuiper)) - set(kuiper.__all__) <= {"expression"} | {
        name for name in dir(kuiper) if name.startswith("__")
    }
    for names in (dir(kuiper), dir(model)):
        assert "_" not in {name[0] for name in names if not name.startswith("__")}
    assert {"load", "from_torch", "expression"} <= set(dir(kuiper))
    assert not {"annotations", "TYPE_CHECKING", "lazy_names", "loading"} & set(dir(kuiper))
    assert {"profile", "inputs", "graph"} <= set(dir(model))


def test_a_profile_says_which_algorithm_was_chosen_and_why():
    model = model_of(CONVOLUTIONS)
    profile = model.profile(values(1, 3, 16, 16), runs=1)
    rows = {row["name"]: row for row in profile.rows}
    conv, pool = rows["conv"], rows["pool"]
    assert conv["algorithm"] == "few_inputs"
    names = [algorithm.name for algorithm in ALGORITHMS]
    assert sorted([conv["algorithm"], *conv["left"]]) == sorted(names)
    assert conv["left"]["winograd"] == "3 channels, at least 16 pay"
    assert conv["left"]["depthwise"] == "one group"
    assert conv["left"]["gemm"] == "few_inputs is tried first"
    assert (pool["algorithm"], pool["left"]) == (None, {})
    assert profile.by_algorithm()["few_inputs"] == 1
    assert "convolutions: 1 by few_inputs" in str(profile)


def test_a_profile_prints_as_a_table():
    text = str(model_of(CONVOLUTIONS).profile(values(1, 3, 8, 8), runs=1))
    lines = text.splitlines()
    assert lines[0].split() == ["operator", "kernel", "us", "share", "GFLOP/s", "GB/s"]
    assert any(line.startswith("conv ") for line in lines)
    assert re.fullmatch(r"total \d+\.\d{3} ms, \d+ threads, arena \d+\.\d MiB", lines[-1])


def test_show_config():
    config = kuiper.show_config()
    assert f"version        {kuiper.__version__}\n" in str(config)
    assert json.loads(json.dumps(config)) == config
    assert config["version"] == kuiper.__version__
    assert config["isa"] in config["isa_available"]
    assert re.fullmatch(r"\d+x\d+", config["tile"])
    assert config["multithreaded"] is (sys.platform != "win32")
    with n_threads(3):
        assert kuiper.show_config()["threads"] == 3


# -- saving and pickling -----------------------------------------------------------------------


def test_pickle():
    model = model_of(CONVOLUTIONS)
    x = values(2, 3, 9, 9)
    expected = model(x)
    twin = pickle.loads(pickle.dumps(model))
    assert_same_bits([twin(x)], [expected], "unpickled")
    assert twin.inputs == model.inputs
    assert str(twin.graph) == str(model.graph)


def test_save(tmp_path):
    model = model_of(CONVOLUTIONS)
    x = values(2, 3, 9, 9)
    expected = model(x)
    kuiper.save(model, tmp_path / "m.pnnx.param")
    twin = kuiper.load(tmp_path / "m.pnnx.param")
    assert_same_bits([twin(x)], [expected], "saved and loaded")


# -- unsupported operators ---------------------------------------------------------------------


def test_all_unsupported_operators_are_listed():
    lines = """pnnx.Input in 0 1 x
        torch.unknown a 1 1 x y
        nn.Strange b 1 1 y z
        F.relu c 1 1 z u
        torch.unknown d 1 1 u v
        odd.na[me]* e 1 1 v w
        pnnx.Output out 1 0 w"""
    assert message_of(UnsupportedOperatorError, lambda: model_of(lines)) == (
        "3 operators are not supported: torch.unknown (2 uses, first 'a'), "
        "nn.Strange (1 use, first 'b'), odd.na[me]* (1 use, first 'e'). "
        "See kuiper.supported_operators(); @kuiper.operator adds one of your own."
    )
    one = message_of(
        UnsupportedOperatorError,
        lambda: model_of("pnnx.Input in 0 1 x\nnn.Strange b 1 1 x y\npnnx.Output out 1 0 y"),
    )
    assert one.startswith("1 operator is not supported: nn.Strange (1 use, first 'b').")


@pytest.mark.parametrize(
    ("type", "said"),
    [
        ("torch.grid_sample", "; nearest F.grid_sample)"),
        ("nn.Relu6", "; nearest F.relu6 or nn.ReLU6)"),
        ("torch.unfolded", "; nearest "),
        ("aten::linalg_svd", "; compute it before or after the model"),
        ("nn.intrinsic.quantized.ConvReLU2d", "; export the float model and call "),
        ("prim::If", "; export a module in which the branch is decided"),
        ("my.Widget", "(1 use, first 'b'). "),
    ],
)
def test_similar_operators_are_suggested(type, said):
    lines = f"pnnx.Input in 0 1 x\n{type} b 1 1 x y\npnnx.Output out 1 0 y"
    assert said in message_of(UnsupportedOperatorError, lambda: model_of(lines))


def test_excluded_operators_have_no_record():
    types = {type for types, *_ in STAYS_OUT for type in types.split()}
    # Other tests may have registered operators.
    rules = [record_or_none(type) for type in types]
    assert not [rule for rule in rules if rule and rule.__module__.startswith("kuiper.ops.")]
    for type in types - {type for type in types if type.endswith("*")}:
        assert advice(type)


def test_supported_operators():
    names = kuiper.supported_operators()
    assert names == sorted(set(names))
    assert {"pnnx.Input", "pnnx.Output", "nn.Conv2d", "torch.cat"} <= set(names)
    with user_operator("tests.Known", lambda x: x):
        assert "tests.Known" in kuiper.supported_operators()
    assert "tests.Known" not in kuiper.supported_operators()


# -- users' operators --------------------------------------------------------------------------

SCALE = """pnnx.Input in 0 1 x
    F.relu before 1 1 x a
    tests.Scale op 1 1 a b {params}
    F.sigmoid after 1 1 b y
    pnnx.Output out 1 0 y"""


def test_a_users_operator():
    def scale(x, factor=1.0, name="", shape=(), flag=None, weight=None):
        """Multiply."""
        assert (name, shape, flag) == ("word", (1, 2), None)
        return x * factor * (1 if weight is None else weight)

    with user_operator("tests.Scale", scale):
        text = SCALE.format(params="factor=2.5 name=word shape=(1,2) flag=None @weight=(4)f32")
        model = model_of(text)
        weight = model.graph.operator("op").attributes["weight"].numpy()
        x = values(3, 4)
        expected = 1 / (1 + np.exp(-(np.maximum(x, 0) * 2.5 * weight).astype(np.float64)))
        assert_close(model(x), expected.astype(np.float32))
        kinds = [row["kind"] for row in model.profile(x, runs=1).rows]
        assert "python" in kinds


def test_users_operators_get_half_precision_weights_widened():
    seen = []
    with user_operator("tests.Scale", lambda x, weight: seen.append(weight) or x * weight):
        graph = graph_of(SCALE.format(params="@weight=(4)f32"))
        half = np.arange(4, dtype=np.float16)
        graph.operator("op").attributes["weight"] = Attribute.from_array(half)
        assert kuiper.Model(graph)(values(3, 4)).dtype == np.float32
    assert {w.dtype for w in seen} == {np.dtype(np.float32)}


def test_users_operators_get_tensors_and_numbers_with_keywords():
    def blend(x, n, other, *, weight):
        return x * n + other * weight

    text = """pnnx.Input in0 0 1 x
        pnnx.Input in1 0 1 w
        pnnx.Expression size 1 1 x n expr=size(@0,1)
        tests.Blend op 4 1 x n x w y $weight=w
        pnnx.Output out 1 0 y"""
    with user_operator("tests.Blend", blend):
        x, w = values(3, 4), values(4)
        assert_close(model_of(text)(x, w), x * 4 + x * w)


def test_several_outputs_and_other_dtypes():
    def top(x, k):
        best = np.argsort(-x, axis=-1)[..., :k]
        return np.take_along_axis(x, best, -1), best

    text = """pnnx.Input in 0 1 x
        tests.Top op 1 2 x v i k=2
        pnnx.Output out0 1 0 v
        pnnx.Output out1 1 0 i"""
    with user_operator("tests.Top", top, 2):
        x = values(3, 5)
        v, i = model_of(text)(x)
        expected = np.argsort(-x, axis=-1)[:, :2]
        np.testing.assert_array_equal(i, expected)
        assert i.dtype == np.int64
        np.testing.assert_array_equal(v, np.take_along_axis(x, expected, -1))


def test_a_users_operator_cannot_write_to_its_inputs():
    def spoil(x):
        x += 1
        return x

    with user_operator("tests.Scale", spoil):
        x = values(3, 4)
        with pytest.raises(ValueError, match="read-only"):
            model_of(SCALE.format(params=""))(x)


def test_errors_in_a_users_operator_name_it():
    class Boom(Exception):
        pass

    def fail(x):
        if x.any():
            raise Boom("from inside")
        return x

    with user_operator("tests.Scale", fail):
        model = model_of(SCALE.format(params=""))
        zeros = np.zeros((3, 4), np.float32)
        for _ in range(3):
            with pytest.raises(OperatorError) as caught:
                model(values(3, 4))
            assert str(caught.value).endswith(
                "operator 'op' (tests.Scale): its function raised Boom: from inside"
            )
            assert isinstance(caught.value.__cause__, Boom)
            np.testing.assert_array_equal(model(zeros), np.full((3, 4), 0.5, np.float32))
    with user_operator("tests.Scale", lambda x: 1 / 0):
        with pytest.raises(OperatorError, match=r"'op' \(tests.Scale\).*ZeroDivis") as caught:
            model_of(SCALE.format(params=""))(values(3, 4))
        assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_results_of_a_wrong_shape_or_number():
    model = None
    with user_operator("tests.Scale", lambda x: x[:1] if x.any() else x):
        model = model_of(SCALE.format(params=""))
        assert message_of(ShapeError, lambda: model(values(3, 4))) == (
            "operator 'op': its function returned shape (1, 4), expected (3, 4)"
        )
    with user_operator("tests.Scale", lambda x: (x, x) if x.any() else x):
        model = model_of(SCALE.format(params=""))
        assert message_of(OperatorError, lambda: model(values(3, 4))) == (
            "operator 'op': its function returned 2 arrays, expected 1"
        )
    with user_operator("tests.Scale", lambda x: (x, x)):
        model = model_of(SCALE.format(params=""))
        assert "its function returned 2 arrays, expected 1; the graph has 1 outputs" in message_of(
            ShapeError, lambda: model(values(3, 4))
        )
    with user_operator("tests.Scale", lambda x: (x, x), 2):
        model = model_of(SCALE.format(params=""))
        assert "returned 2 arrays, expected 2; the graph has 1 outputs" in message_of(
            ShapeError, lambda: model(values(3, 4))
        )


def test_a_users_operator_may_be_redefined_but_not_one_of_kuiper():
    def first(x):
        return x

    def second(x):
        return x + 1

    with user_operator("tests.Scale", first):
        kuiper.operator("tests.Scale")(first)  # the same function again, as in a service
        message = message_of(KuiperError, lambda: kuiper.operator("tests.Scale")(second))
        told = r"\S*first \(\S*test_model.py:\d+\) is the function for the operator type "
        told += r"'tests.Scale': \S*second \(\S*:\d+\) would replace it; pass kuiper.operator\("
        assert re.match(f"{told}'tests.Scale', replace=True", message), message
        model = model_of(SCALE.format(params=""))
        assert_close(model(np.zeros((2, 2), np.float32)), np.full((2, 2), 0.5, np.float32))
        kuiper.operator("tests.Scale", replace=True)(second)
        y = model_of(SCALE.format(params=""))(np.zeros((2, 2), np.float32))
        assert_close(y, np.full((2, 2), 1 / (1 + np.exp(-1)), np.float32))
    with pytest.raises(KuiperError, match=r"'nn.ReLU' has a record already"):
        kuiper.operator("nn.ReLU", replace=True)(lambda x: x)


def test_users_operators_given_with_the_model():
    """With any number of results; an object that is not callable, or kuiper's type, is refused."""
    files = files_of(SCALE.format(params=""))
    with user_operator("tests.Scale", lambda x: x):
        model = kuiper.load(*files, custom_operators={"tests.Scale": lambda x: x - x + 3})
        y = model(np.zeros((2, 2), np.float32))
        assert_close(y, np.full((2, 2), 1 / (1 + np.exp(-3)), np.float32))
    halves = files_of(
        "pnnx.Input in 0 1 x\ntests.Halves h 1 2 x a b\npnnx.Output o 1 0 a\npnnx.Output p 1 0 b"
    )
    with user_operator("tests.Halves", lambda x: x):
        model = kuiper.load(*halves, custom_operators={"tests.Halves": lambda x: (x[:1], x[1:])})
        first, second = model(values(2, 3))
        assert first.shape == second.shape == (1, 3)
    with pytest.raises(InputError, match=r"custom_operators\['tests.Scale'\] is 3, expected a fun"):
        kuiper.load(*files, custom_operators={"tests.Scale": 3})
    with pytest.raises(InputError, match=r"custom_operators is \['tests.Scale'\], expected a dict"):
        kuiper.load(*files, custom_operators=["tests.Scale"])
    with pytest.raises(KuiperError, match=r"'nn.ReLU' has a record already"):
        kuiper.load(*files, custom_operators={"nn.ReLU": lambda x: x})


def test_a_record_of_a_table_is_made_on_first_lookup():
    made = []

    class Table(Record):
        def __init_subclass__(cls):
            made.append(cls)
            super().__init_subclass__()

    record_later(["tests.later", "tests.too"], Table, "Later")
    try:
        assert "tests.later" in kuiper.supported_operators()
        assert not made
        with pytest.raises(KuiperError, match=r"'tests.too' has a record already"):
            record_later(["tests.too"], Table, "Other")
        with pytest.raises(KuiperError, match=r"'tests.too' has a record already"):
            record("tests.too")(type("Other", (Record,), {}))
        threads = [threading.Thread(target=record_or_none, args=("tests.too",)) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(made) == 1
        assert record_or_none("tests.later") is record_or_none("tests.too")
        assert record_or_none("tests.later").types == ("tests.later", "tests.too")
        assert record_or_none("tests.later").__name__ == "Later"
    finally:
        for name in ("tests.later", "tests.too"):
            del registry._registry[name]


# -- shapes and plans --------------------------------------------------------------------------


def test_other_sizes_and_batches():
    model = model_of(CONVOLUTIONS)
    for shape in ((1, 3, 8, 8), (3, 3, 8, 8), (1, 3, 5, 17), (8, 3, 1, 1), (1, 3, 8, 8)):
        x = values(*shape)
        y = model(x)
        assert y.shape == (shape[0], 5)
        for number in range(shape[0]):
            assert_same_bits([y[number : number + 1]], [model(x[number : number + 1])], str(shape))
    assert np.std([model(values(1, 3, 8, 8, seed=s)) for s in range(3)], 0).min() > 0


def test_the_number_of_cached_plans_is_bounded():
    model = model_of(CONVOLUTIONS)
    plan = model.plan((1, 3, 4, 4))
    assert model.plan((1, 3, 4, 4)) is plan
    for height in range(1, 3 * model.max_plans):
        model(values(1, 3, height, 4))
        assert len(model._plans) <= model.max_plans
    assert model.plan((1, 3, 4, 4)) is not plan
    latest = model.plan((1, 3, 4, 4))
    for height in range(20, 20 + model.max_plans - 1):
        model.plan((1, 3, height, 4))
    assert model.plan((1, 3, 4, 4)) is latest


@pytest.mark.parametrize("plans", [1, 3, 20])
def test_a_model_keeps_as_many_plans_as_it_was_told(plans):
    model = kuiper.load(*files_of(CONVOLUTIONS), plans=plans)
    assert model.max_plans == pickle.loads(pickle.dumps(model)).max_plans == plans
    kept = [model.plan((1, 3, height, 4)) for height in range(1, plans + 1)]
    assert [model.plan((1, 3, height, 4)) for height in range(1, plans + 1)] == kept
    model.plan((1, 3, plans + 1, 4))
    assert len(model._plans) == plans
    assert model.plan((1, 3, 1, 4)) is not kept[0]


@pytest.mark.parametrize("plans", [0, -1, True, 2.5, "8", None])
def test_a_number_of_plans_that_is_none(plans):
    with pytest.raises(InputError, match="expected an integer of at least 1"):
        kuiper.load(*files_of(CONVOLUTIONS), plans=plans)


def test_weights_are_packed_once_for_all_shapes():
    model = model_of(CONVOLUTIONS)
    for height in range(1, 12):
        model(values(1, 3, height, 4))
    assert len(model._plans.weights) == 2


def test_a_plan_for_the_wrong_number_of_shapes():
    with pytest.raises(kuiper.InputError, match="got 1 shape, expected one per input"):
        model_of(TWO_INPUTS).plan((2, 3))


def test_an_inconsistent_graph_is_refused():
    graph = Graph()
    graph.add_operator("F.relu", "act", ["x"], ["y"])
    with pytest.raises(GraphError, match="operand 'x' has no producer"):
        kuiper.Model(graph)


def test_load_takes_bytes_and_paths(tmp_path):
    param, archive = files_of(CONVOLUTIONS)
    (tmp_path / "m.pnnx.param").write_bytes(param)
    (tmp_path / "m.pnnx.bin").write_bytes(archive)
    for model in (
        kuiper.load(param, archive),
        kuiper.load(tmp_path / "m.pnnx.param"),
        kuiper.load(str(tmp_path / "m.pnnx.param"), str(tmp_path / "m.pnnx.bin")),
        kuiper.load(bytearray(param), memoryview(archive), check_crc=True),
    ):
        assert [op.name for op in model.graph][:2] == ["in", "conv"]


@pytest.mark.parametrize(
    ("producer", "shape"),
    [
        ("torch.chunk c 1 1 x l chunks=1 dim=1 $input=x", (2, 6)),
        ("torch.chunk c 1 1 x l chunks=4 dim=0 $input=x", (1, 6)),
        ("torch.split c 1 1 x l split_size_or_sections=6 dim=1 $tensor=x", (2, 6)),
        ("torch.tensor_split c 1 1 x l sections=1 dim=1 $input=x", (2, 6)),
    ],
)
def test_a_list_of_one_piece(producer, shape):
    model = model_of(f"""
        pnnx.Input x 0 1 x
        {producer}
        prim::ListUnpack u 1 1 l p
        pnnx.Expression e 1 1 p y expr=mul(@0,2)
        pnnx.Output o 1 0 y
        """)
    x = values(*shape)
    np.testing.assert_array_equal(model(x), x * 2)


@pytest.mark.parametrize(
    ("type", "rank", "weight"),
    [
        ("nn.Conv2d", 4, "(4,3,5)"),
        ("nn.Conv1d", 3, "(4,3,5,1)"),
        ("nn.ConvTranspose2d", 4, "(3,4,5)"),
    ],
)
def test_weights_of_a_wrong_rank_are_refused_on_loading(type, rank, weight):
    lines = f"""
        pnnx.Input x 0 1 x
        {type} c 1 1 x y in_channels=3 out_channels=4 kernel_size=(5) stride=(1) @weight={weight}f32
        pnnx.Output o 1 0 y
        """
    with pytest.raises(OperatorError) as caught:
        model_of(lines)
    shape = weight.replace(",", ", ")
    assert f"operator 'c' ({type}): 'weight' has shape {shape}, expected rank {rank}" in str(
        caught.value
    )


def test_what_is_no_file_is_named():
    class Net:
        state_dict = None

    with pytest.raises(TypeError, match=r"<param>: got .*Net, .*; from_torch converts a module$"):
        kuiper.load(Net())
    with pytest.raises(TypeError, match=r"<param>: got int, expected a path, bytes or an open f"):
        kuiper.load(3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((lambda x: x,), r"expected a string; write @kuiper.operator\('type'\) above <lambda>"),
        ((3,), "the operator type is 3, expected a string$"),
        (("pnnx.Input",), "'pnnx.Input', expected one word other than"),
        (("test.A test.B",), "'test.A test.B', expected one word"),
        (("",), "'', expected one word"),
        (("test.A", 0), "n_outputs is 0, expected an integer of at least 1"),
        (("test.A", "2"), "n_outputs is '2', expected"),
    ],
)
def test_operators_that_no_line_of_a_file_names(arguments, message):
    with pytest.raises(InputError, match=message):
        kuiper.operator(*arguments)


@pytest.mark.parametrize("value", [None, "text", {"y": 1}])
def test_a_function_that_returns_no_array(value):
    with user_operator("test.NoArray", lambda x: value):
        model = model_of(
            "pnnx.Input i 0 1 x #x=(2)f32\ntest.NoArray n 1 1 x y\npnnx.Output o 1 0 y"
        )
        with pytest.raises(OperatorError, match=r"'n' .*: its function returned a v"):
            model(values(2))
