"""Plans: where operands lie, when memory is reused, and that no operator reads stale data.

The references are numpy, and for random graphs its interpreter of `tests.support.randomgraph`.
"""

from __future__ import annotations

import numpy as np
import pytest

from kuiper._support.memory import default_max_memory, memory_text
from kuiper.errors import InputError, ShapeError
from kuiper.ir import Attribute
from kuiper.ir.view import BufferKind
from kuiper.model import Model

from ...support import assert_close, assert_same_bits
from ...support.engine import n_threads
from ...support.engine import run as run_model
from ...support.randomgraph import RandomGraph, interpret, python_step
from ...support.textgraph import files_of, graph_of, model_of, user_operator, values

CONV = (
    "nn.Conv2d {name} 1 1 {x} {y} bias=True dilation=(1,1) groups=1 in_channels={c} "
    "kernel_size=(1,1) out_channels={o} padding=(0,0) padding_mode=zeros stride=(1,1) "
    "@bias=({o})f32 @weight=({o},{c},1,1)f32"
)


def conv(name: str, x: str, y: str, c: int, o: int) -> str:
    """Return the line of a 1x1 convolution."""
    return CONV.format(name=name, x=x, y=y, c=c, o=o)


def relu(x):
    return np.maximum(x, 0)


def sigmoid(x):
    return 1 / (1 + np.exp(-x.astype(np.float64)))


def copies_in(plan) -> int:
    return sum(step.kind == "copy" for step in plan.steps)


def run(text: str, *inputs, key: str = "text"):
    """Run a graph given as text; return the model, its plan and its outputs."""
    model = model_of(text, key)
    outputs = run_model(model, inputs)
    return model, model.plan(*(x.shape for x in inputs)), outputs


def weights_of(model, name: str):
    attributes = model.graph.operator(name).attributes
    return attributes["weight"].numpy(), attributes["bias"].numpy()


def convolved(model, name: str, x: np.ndarray) -> np.ndarray:
    """Compute one of the 1x1 convolutions."""
    weight, bias = weights_of(model, name)
    y = np.einsum("nchw,oc->nohw", x.astype(np.float64), weight[:, :, 0, 0])
    return y + bias.reshape(-1, 1, 1)


# -- concatenations ----------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(1, 3, 4, 5), (2, 3, 4, 5), (2, 3, 1, 1)], ids=str)
def test_images_are_computed_within_their_concatenation(shape):
    x = values(*shape)
    model, plan, (y,) = run(
        f"""pnnx.Input in 0 1 x
        {conv("a", "x", "p", 3, 5)}
        {conv("b", "x", "q", 3, 7)}
        torch.cat cat 2 1 p q r dim=1
        {conv("c", "r", "y", 12, 4)}
        pnnx.Output out 1 0 y""",
        x,
    )
    joined = np.concatenate([convolved(model, "a", x), convolved(model, "b", x)], 1)
    assert_close(y, convolved(model, "c", joined).astype(np.float32))
    names = [step.name for step in plan.steps]
    assert "cat" not in names


def test_a_dense_block_grows_in_one_buffer():
    lines, width = ["pnnx.Input in 0 1 x", conv("c0", "x", "v0", 3, 4)], 4
    for k in range(1, 5):
        parts = " ".join(f"v{i}" for i in range(k))
        lines.append(f"torch.cat cat{k} {k} 1 {parts} j{k} dim=1")
        lines.append(conv(f"c{k}", f"j{k}", f"v{k}", width, 4))
        width += 4
    lines.append("torch.cat cat5 5 1 v0 v1 v2 v3 v4 j5 dim=1")
    lines.append(conv("last", "j5", "y", width, 3))
    lines.append("pnnx.Output out 1 0 y")
    x = values(1, 3, 6, 6)
    model, plan, (y,) = run("\n".join(lines), x)
    parts = [convolved(model, "c0", x)]
    for k in range(1, 5):
        parts.append(convolved(model, f"c{k}", np.concatenate(parts, 1)))
    assert_close(y, convolved(model, "last", np.concatenate(parts, 1)).astype(np.float32))
    moved = [step for step in plan.steps if step.kind == "copy" and step.name.startswith("cat")]
    assert sum(step.bytes for step in moved) <= 2 * 4 * 36 * 4 * 10  # each part once per block


def test_nested_concatenations_share_a_buffer():
    x = values(1, 3, 4, 4)
    model, plan, (y,) = run(
        f"""pnnx.Input in 0 1 x
        {conv("a", "x", "p", 3, 2)}
        {conv("b", "x", "q", 3, 3)}
        torch.cat inner 2 1 p q r dim=1
        {conv("c", "r", "s", 5, 4)}
        torch.cat outer 2 1 r s t dim=1
        {conv("d", "t", "y", 9, 2)}
        pnnx.Output out 1 0 y""",
        x,
    )
    inner = np.concatenate([convolved(model, "a", x), convolved(model, "b", x)], 1)
    outer = np.concatenate([inner, convolved(model, "c", inner)], 1)
    assert_close(y, convolved(model, "d", outer).astype(np.float32))
    assert copies_in(plan) == 2  # the input to channels-last, and the result from it


def test_an_operand_twice_in_a_concatenation():
    x = values(2, 3, 4, 4)
    model, _, (y,) = run(
        f"""pnnx.Input in 0 1 x
        {conv("a", "x", "p", 3, 2)}
        torch.cat cat 3 1 p x p y dim=1
        pnnx.Output out 1 0 y""",
        x,
    )
    p = convolved(model, "a", x)
    assert_close(y, np.concatenate([p, x, p], 1).astype(np.float32))


def test_an_operand_in_two_concatenations():
    x = values(1, 3, 4, 4)
    model, _, (y, z) = run(
        f"""pnnx.Input in 0 1 x
        {conv("a", "x", "p", 3, 2)}
        {conv("b", "x", "q", 3, 2)}
        torch.cat cat0 2 1 p q r dim=1
        torch.cat cat1 2 1 q p s dim=1
        {conv("c", "r", "y", 4, 1)}
        {conv("d", "s", "z", 4, 1)}
        pnnx.Output out0 1 0 y
        pnnx.Output out1 1 0 z""",
        x,
    )
    p, q = convolved(model, "a", x), convolved(model, "b", x)
    assert_close(y, convolved(model, "c", np.concatenate([p, q], 1)).astype(np.float32))
    assert_close(z, convolved(model, "d", np.concatenate([q, p], 1)).astype(np.float32))


def test_an_operand_in_a_concatenation_that_is_also_an_output():
    x = values(1, 3, 4, 4)
    model, _, (p, y) = run(
        f"""pnnx.Input in 0 1 x
        {conv("a", "x", "p", 3, 2)}
        torch.cat cat 2 1 p x y dim=1
        pnnx.Output out0 1 0 p
        pnnx.Output out1 1 0 y""",
        x,
    )
    expected = convolved(model, "a", x).astype(np.float32)
    assert_close(p, expected)
    assert_close(y, np.concatenate([expected, x], 1))
    assert not np.shares_memory(p, y)


@pytest.mark.parametrize(("rank", "dim"), [(2, 0), (2, 1), (3, 0), (3, -1), (1, 0)])
def test_rows_are_computed_within_their_concatenation(rank, dim):
    x = values(*(1, 3, 4)[:rank])
    text = f"""pnnx.Input in 0 1 x
        F.relu a 1 1 x p
        F.sigmoid b 1 1 x q
        torch.cat cat 2 1 p q r dim={dim}
        F.tanh c 1 1 r s
        torch.flip d 1 1 s y dims=(0)
        pnnx.Output out 1 0 y"""
    _, plan, (y,) = run(text, x)
    joined = np.concatenate([relu(x), sigmoid(x)], dim)
    assert_close(y, np.flip(np.tanh(joined), 0).astype(np.float32))
    in_place = np.prod(joined.shape[: dim % rank]) == 1
    assert ("cat" in [step.name for step in plan.steps]) != in_place


def test_pieces_that_are_joined_again_are_not_copied():
    x = values(2, 6, 3, 3)
    _, plan, (y,) = run(
        """pnnx.Input in 0 1 x
        F.relu a 1 1 x p
        torch.chunk b 1 3 p q0 q1 q2 chunks=3 dim=1
        torch.cat c 2 1 q0 q1 r dim=1
        torch.cat d 2 1 r q2 s dim=1
        torch.flip e 1 1 s y dims=(3)
        pnnx.Output out 1 0 y""",
        x,
    )
    np.testing.assert_array_equal(y, np.flip(relu(x), 3))
    assert [step.name for step in plan.steps] == ["a", "e"]


def test_pieces_in_another_order_are_copied():
    x = values(2, 6, 3, 3)
    _, _, (y,) = run(
        """pnnx.Input in 0 1 x
        F.relu a 1 1 x p
        torch.chunk b 1 2 p q0 q1 chunks=2 dim=1
        torch.cat c 2 1 q1 q0 y dim=1
        pnnx.Output out 1 0 y""",
        x,
    )
    np.testing.assert_array_equal(y, relu(x)[:, [3, 4, 5, 0, 1, 2]])


def test_an_empty_vector_in_a_concatenation():
    """A tensor of shape (0,) can be concatenated with any other, as in PyTorch."""
    text = """pnnx.Input in0 0 1 x
        pnnx.Input in1 0 1 z
        F.relu a 1 1 x p
        torch.cat c 3 1 z p p y dim=1
        pnnx.Output out 1 0 y"""
    x = values(1, 3, 2)
    _, _, (y,) = run(text, x, np.zeros(0, np.float32))
    np.testing.assert_array_equal(y, np.concatenate([relu(x), relu(x)], 1))


def test_the_axis_of_a_concatenation_may_be_an_operand():
    x = values(1, 3, 2)
    _, _, (y,) = run(
        """pnnx.Input in 0 1 x
        pnnx.Expression d 0 1 dim expr=1
        F.relu a 1 1 x p
        torch.cat c 3 1 p x dim y $dim=dim
        pnnx.Output out 1 0 y""",
        x,
    )
    np.testing.assert_array_equal(y, np.concatenate([relu(x), x], 1))


# -- reuse of memory ---------------------------------------------------------------------------


def test_an_elementwise_operator_overwrites_a_dead_operand(monkeypatch):
    monkeypatch.delenv("KUIPER_GUARD", raising=False)  # guards make arenas larger
    x = values(3, 50)
    _, plan, (y,) = run(
        """pnnx.Input in 0 1 x
        torch.flip a 1 1 x p dims=(0)
        F.sigmoid b 1 1 p q
        torch.roll c 1 1 q y shifts=(1) dims=(0)
        pnnx.Output out 1 0 y""",
        x,
    )
    assert_close(y, np.roll(sigmoid(x[::-1]), 1, 0).astype(np.float32))
    assert plan.arena_bytes == 640


@pytest.mark.parametrize(
    "later",
    [
        "torch.roll later 1 1 p z shifts=(1) dims=(0)",
        "Tensor.slice later 1 1 p z dim=0 start=0 end=3 step=1",
        "prim::TupleConstruct t 1 1 p list\nprim::TupleUnpack later 1 1 list z",
    ],
    ids=["tensor", "view", "tuple"],
)
@pytest.mark.parametrize("early", [True, False])
def test_an_operand_with_a_later_reader_is_not_overwritten(later, early):
    """Wherever the line of the later reader is: before or after the overwriting operator."""
    lines = [*later.splitlines(), "F.sigmoid b 1 1 p q", "torch.cat c 2 1 q z y dim=0"]
    if not early:
        lines[-3:-1] = lines[-2], lines[-3]
    x = values(3, 50)
    _, _, (y,) = run(
        "pnnx.Input in 0 1 x\ntorch.flip a 1 1 x p dims=(0)\n"
        + "\n".join(lines)
        + "\npnnx.Output out 1 0 y",
        x,
    )
    p = x[::-1]
    z = np.roll(p, 1, 0) if "roll" in later else p
    assert_close(y, np.concatenate([sigmoid(p), z]).astype(np.float32))


def test_pieces_in_a_list_are_not_overwritten():
    x = values(4, 6)
    _, _, (y,) = run(
        """pnnx.Input in 0 1 x
        torch.flip a 1 1 x p dims=(0)
        torch.chunk b 1 1 p list chunks=2 dim=1
        F.sigmoid c 1 1 p q
        prim::ListUnpack d 1 2 list r s
        torch.cat e 3 1 q s r y dim=1
        pnnx.Output out 1 0 y""",
        x,
    )
    p = x[::-1]
    assert_close(y, np.concatenate([sigmoid(p), p[:, 3:], p[:, :3]], 1).astype(np.float32))


def test_a_tensor_that_was_broadcast_is_not_overwritten():
    """The elements of the expanded tensor share memory that cannot hold their sums."""
    x, other = values(1, 4, 1, 1), values(1, 4, 3, 5)
    model, _, (y,) = run(
        f"""pnnx.Input in0 0 1 x
        pnnx.Input in1 0 1 other
        {conv("a", "x", "p", 4, 4)}
        Tensor.expand b 1 1 p q sizes=(1,4,3,5)
        pnnx.Expression c 2 1 q other r expr=add(@0,@1)
        torch.flip d 1 1 r y dims=(3)
        pnnx.Output out 1 0 y""",
        x,
        other,
    )
    expected = convolved(model, "a", x) + other
    assert_close(y, np.flip(expected, 3).astype(np.float32))


def test_the_other_half_of_a_tensor_is_not_overwritten():
    """A gated unit: half of a tensor times a function of the other half."""
    x = values(2, 8, 3, 3)
    _, _, (y,) = run(
        """pnnx.Input in 0 1 x
        torch.flip a 1 1 x p dims=(2)
        torch.chunk b 1 2 p q r chunks=2 dim=1
        pnnx.Expression c 2 1 q r s expr=mul(@0,sqrt(abs(@1)))
        torch.cat d 2 1 s r t dim=1
        torch.flip e 1 1 t y dims=(3)
        pnnx.Output out 1 0 y""",
        x,
    )
    q, r = np.split(x[:, :, ::-1], 2, 1)
    expected = np.concatenate([q * np.sqrt(np.abs(r)), r], 1)
    assert_close(y, np.flip(expected, 3))


@pytest.mark.parametrize("inputs", ["q r", "r q"])
def test_overlapping_windows_of_one_buffer_are_not_overwritten(inputs):
    """Writing the sum over one window would change what the other has still to read."""
    x = values(1, 5000)
    _, _, (y,) = run(
        f"""pnnx.Input in 0 1 x
        torch.flip a 1 1 x p dims=(1)
        Tensor.slice b 1 1 p q dim=1 start=0 end=4000 step=1
        Tensor.slice c 1 1 p r dim=1 start=8 end=4008 step=1
        pnnx.Expression d 2 1 {inputs} s expr=add(@0,@1)
        torch.flip e 1 1 s y dims=(1)
        pnnx.Output out 1 0 y""",
        x,
    )
    p = x[:, ::-1]
    np.testing.assert_array_equal(y, (p[:, :4000] + p[:, 8:4008])[:, ::-1])


def test_a_copy_for_one_reader_serves_the_next():
    x = values(1, 3, 6, 6)
    model, plan, (y, z, v, u) = run(
        f"""pnnx.Input in 0 1 x
        {conv("a", "x", "y", 3, 16)}
        {conv("b", "x", "z", 3, 17)}
        torch.flip c 1 1 x w dims=(3)
        {conv("d", "w", "v", 3, 9)}
        {conv("e", "w", "u", 3, 9)}
        pnnx.Output out0 1 0 y
        pnnx.Output out1 1 0 z
        pnnx.Output out2 1 0 v
        pnnx.Output out3 1 0 u""",
        x,
    )
    w = x[..., ::-1]
    for name, got, source in (("a", y, x), ("b", z, x), ("d", v, w), ("e", u, w)):
        assert_close(got, convolved(model, name, source).astype(np.float32), what=name)
    assert len([step for step in plan.steps if step.kind == "copy" and step.name in "abde"]) <= 2


def test_a_copy_is_not_reused_after_the_original_was_overwritten():
    x = values(1, 9, 6, 6)
    model, _, (y, z) = run(
        f"""pnnx.Input in 0 1 x
        torch.flip a 1 1 x p dims=(1)
        {conv("b", "p", "y", 9, 4)}
        F.sigmoid c 1 1 p q
        {conv("d", "q", "z", 9, 4)}
        pnnx.Output out0 1 0 y
        pnnx.Output out1 1 0 z""",
        x,
    )
    p = x[:, ::-1]
    assert_close(y, convolved(model, "b", p).astype(np.float32))
    assert_close(z, convolved(model, "d", sigmoid(p)).astype(np.float32))


def test_a_long_chain_needs_little_memory():
    lines = ["pnnx.Input in 0 1 x"]
    lines += [conv(f"c{k}", f"v{k - 1}" if k else "x", f"v{k}", 32, 32) for k in range(20)]
    lines.append("pnnx.Output out 1 0 v19")
    _, plan, _ = run("\n".join(lines), values(1, 32, 16, 16))
    one = 32 * 16 * 16 * 4
    assert 2 * one <= plan.arena_bytes <= 2 * one + 32768


# -- outputs -----------------------------------------------------------------------------------


def test_an_operand_that_is_returned_twice():
    x = values(3, 4)
    _, _, (y, z) = run(
        """pnnx.Input in 0 1 x
        F.relu a 1 1 x y
        pnnx.Output out0 1 0 y
        pnnx.Output out1 1 0 y""",
        x,
    )
    np.testing.assert_array_equal(y, relu(x))
    np.testing.assert_array_equal(z, relu(x))
    assert not np.shares_memory(y, z)


def test_an_output_with_readers_and_views():
    x = values(3, 4)
    _, _, (y, z, w, v) = run(
        """pnnx.Input in 0 1 x
        F.relu a 1 1 x y
        Tensor.permute b 1 1 y z dims=(1,0)
        F.sigmoid c 1 1 y w
        Tensor.slice d 1 1 w v dim=1 start=1 end=3 step=1
        pnnx.Output out0 1 0 y
        pnnx.Output out1 1 0 z
        pnnx.Output out2 1 0 w
        pnnx.Output out3 1 0 v""",
        x,
    )
    np.testing.assert_array_equal(y, relu(x))
    np.testing.assert_array_equal(z, relu(x).T)
    assert_close(w, sigmoid(relu(x)).astype(np.float32))
    np.testing.assert_array_equal(v, w[:, 1:3])
    for a, b in ((y, z), (w, v)):
        assert not np.shares_memory(a, b)


def test_an_input_that_is_returned():
    x = values(3, 4)
    _, _, (y, z) = run(
        """pnnx.Input in 0 1 x
        Tensor.permute a 1 1 x z dims=(1,0)
        pnnx.Output out0 1 0 x
        pnnx.Output out1 1 0 z""",
        x,
    )
    np.testing.assert_array_equal(y, x)
    np.testing.assert_array_equal(z, x.T)
    assert not np.shares_memory(y, x)
    assert not np.shares_memory(z, x)


def test_a_returned_constant_cannot_be_modified():
    text = """pnnx.Input in 0 1 x
        pnnx.Attribute c 0 1 w @data=(2,3)f32
        Tensor.permute t 1 1 w v dims=(1,0)
        pnnx.Output out0 1 0 w
        pnnx.Output out1 1 0 v
        pnnx.Output out2 1 0 x"""
    model = model_of(text)
    data = model.graph.operator("c").attributes["data"].numpy().copy()
    for _ in range(2):
        w, v, _ = model(values(1))
        np.testing.assert_array_equal(w, data)
        np.testing.assert_array_equal(v, data.T)
        w[:] = v[:] = 7


def test_returned_numbers():
    _, _, outputs = run(
        """pnnx.Input in 0 1 x
        pnnx.Expression a 1 1 x n expr=mul(size(@0,0),size(@0,1))
        F.relu b 1 1 x y
        pnnx.Output out0 1 0 n
        pnnx.Output out1 1 0 y""",
        values(3, 4),
    )
    assert outputs[0] == 12
    assert outputs[0].shape == ()
    np.testing.assert_array_equal(outputs[1], relu(values(3, 4)))


def test_nested_results_are_flattened():
    x = values(2, 2)
    _, _, outputs = run(
        """pnnx.Input in 0 1 x
        F.relu a 1 1 x p
        F.sigmoid b 1 1 x q
        prim::TupleConstruct c 2 1 q x r
        prim::TupleConstruct d 3 1 p r p s
        pnnx.Output out 1 0 s""",
        x,
    )
    assert len(outputs) == 4
    for got, expected in zip(outputs, (relu(x), sigmoid(x), x, relu(x)), strict=True):
        assert_close(got, expected.astype(np.float32))


# -- odd sizes ---------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(0, 3, 4, 4), (2, 3, 0, 4), (2, 3, 4, 0), (0, 3, 0, 0)], ids=str)
def test_tensors_without_elements(shape):
    text = """pnnx.Input in 0 1 x
        F.relu a 1 1 x p
        Tensor.permute b 1 1 p q dims=(0,2,3,1)
        pnnx.Expression c 1 1 q r expr=add(mul(@0,2.0),1.0)
        Tensor.permute d 1 1 r s dims=(0,3,1,2)
        torch.cat e 2 1 s p t dim=1
        torch.flip f 1 1 t u dims=(1)
        torch.flatten g 1 1 u v start_dim=1 end_dim=3
        pnnx.Output out0 1 0 v
        pnnx.Output out1 1 0 t"""
    _, _, (v, t) = run(text, np.zeros(shape, np.float32))
    assert t.shape == (shape[0], 6, *shape[2:])
    assert v.shape == (shape[0], 6 * shape[2] * shape[3])


def test_an_empty_batch_through_kernels():
    _, _, (y,) = run(
        f"""pnnx.Input in 0 1 x
        {conv("a", "x", "p", 3, 16)}
        {conv("b", "p", "q", 16, 16)}
        nn.MaxPool2d c 1 1 q r kernel_size=(2,2) stride=(2,2) padding=(0,0) dilation=(1,1)
        torch.flatten d 1 1 r s start_dim=1 end_dim=3
        nn.Linear e 1 1 s y bias=True in_features=64 out_features=5 @bias=(5)f32 @weight=(5,64)f32
        pnnx.Output out 1 0 y""",
        np.zeros((0, 3, 4, 4), np.float32),
    )
    assert y.shape == (0, 5)


def test_more_batch_axes_than_the_loops_of_a_kernel():
    """Axes that are broadcast alternately from both sides cannot be merged."""
    a = values(2, 1, 2, 1, 2, 1, 2, 1, 2, 1, 3, 4)
    b = values(1, 2, 1, 2, 1, 2, 1, 2, 1, 2, 4, 5)
    _, _, (y,) = run(
        """pnnx.Input in0 0 1 a
        pnnx.Input in1 0 1 b
        torch.matmul m 2 1 a b y
        pnnx.Output out 1 0 y""",
        a,
        b,
    )
    assert_close(y, np.matmul(a.astype(np.float64), b).astype(np.float32))


def test_half_precision_constants_are_computed_in_float32():
    """Weights in half precision are widened before use."""
    data = np.float16(0.1)
    graph = graph_of(
        """pnnx.Input in 0 1 x
        pnnx.Attribute c 0 1 w
        pnnx.Expression e 2 1 x w y expr=mul(@0,add(@1,0.0001))
        pnnx.Output out 1 0 y"""
    )
    for shape in ((), (1,), (3,)):
        graph.operator("c").attributes = {"data": Attribute.from_array(np.full(shape, data))}
        x = values(2, 3)
        expected = x * (np.float32(data) + np.float32(0.0001))
        assert_close(Model(graph.copy())(x), expected, 1e-6)


def test_constants_may_be_results_in_half_precision():
    model = model_of(
        """pnnx.Input in 0 1 x #x=(1)f32
        pnnx.Attribute c 0 1 w @data=(2,3)f32
        Tensor.to h 1 1 w y copy=False dtype=torch.half
        pnnx.Output out 1 0 y
        pnnx.Output other 1 0 x"""
    )
    half, _ = model(values(1))
    expected = model.graph.operator("c").attributes["data"].numpy().astype(np.float16)
    np.testing.assert_array_equal(half, expected)


def test_errors_name_the_operator():
    text = """pnnx.Input in 0 1 x
        Tensor.reshape r 1 1 x y shape=(3,5)
        pnnx.Output out 1 0 y"""
    with pytest.raises(
        ShapeError, match=r"operator 'r' \(Tensor.reshape\): cannot give 12 elements"
    ):
        run(text, values(3, 4))


def test_files_of_contain_the_text():
    param, archive = files_of("pnnx.Input in 0 1 x\npnnx.Output out 1 0 x")
    assert param == b"7767517\n2 1\npnnx.Input in 0 1 x\npnnx.Output out 1 0 x\n"
    assert archive.startswith(b"PK\x05\x06")


# -- random graphs -----------------------------------------------------------------------------

SEEDS = range(300)
PER_TEST = 25


@pytest.mark.parametrize("first", range(0, len(SEEDS), PER_TEST))
def test_random_graphs(first):
    """Every operand of a random graph equals numpy's, whatever its layout in the plan."""
    with user_operator("tests.Python", python_step):
        for seed in SEEDS[first : first + PER_TEST]:
            check_random_graph(seed)


def check_random_graph(seed: int) -> None:
    case = RandomGraph(seed, 3 + seed % 20)
    expected = interpret(case.graph, case.inputs)
    model = Model(case.graph)
    before = [x.copy() for x in case.inputs]
    with n_threads(1):
        outputs = run_model(model, case.inputs)
        assert_same_bits(run_model(model, case.inputs), outputs, f"seed {seed}, second run")
        if seed % 4 == 0:
            names = [n for n, v in expected.items() if not isinstance(v, tuple)]
            for name, array in model.trace(case.inputs, names).items():
                assert_close(array, single(expected[name]), 2e-4, f"seed {seed}, {name} traced")
    if seed % 4 == 1:
        with n_threads(2):
            assert_same_bits(run_model(model, case.inputs), outputs, f"seed {seed}, 2 threads")
    for operand, array in zip(case.graph.outputs, outputs, strict=True):
        assert_close(array, single(expected[operand.name]), 2e-4, f"seed {seed}, {operand.name}")
    for x, copy in zip(case.inputs, before, strict=True):
        assert_same_bits([x], [copy], f"seed {seed}, input")


def single(array: np.ndarray) -> np.ndarray:
    return np.asarray(array).astype(np.float32)


def test_random_graphs_vary():
    """They contain every kind of operator, and outputs that differ between elements."""
    types, spreads = set(), []
    for seed in SEEDS[:100]:
        case = RandomGraph(seed, 3 + seed % 20)
        types.update(case.graph.type_counts())
        arrays = interpret(case.graph, case.inputs)
        spreads += [np.std(arrays[o.name]) for o in case.graph.outputs if arrays[o.name].size > 1]
    assert len(types) >= 35
    assert np.median(spreads) > 0.1


# Rows whose stride maps them to the same cache sets --------------------------------------------


def test_rows_that_would_share_cache_sets_are_padded():
    """Only between products, which accept any row stride; other readers get C order."""
    lines = ["pnnx.Input in 0 1 x #x=(3,40)f32"]
    for name, source, target, i, o in (
        ("a", "x", "p", 40, 512), ("b", "p", "q", 512, 1024), ("c", "q", "r", 1024, 512),
    ):  # fmt: skip
        lines.append(
            f"nn.Linear {name} 1 1 {source} {target} bias=True in_features={i} out_features={o} "
            f"@bias=({o})f32 @weight=({o},{i})f32"
        )
    lines += ["torch.flip d 1 1 r s dims=(1)", "pnnx.Output out 1 0 s"]
    x = np.random.default_rng(0).standard_normal((3, 40), np.float32)
    model, plan, (y,) = run("\n".join(lines), x)
    expected = x.astype(np.float64)
    for name in "abc":
        weight, bias = weights_of(model, name)
        expected = expected @ weight.T + bias
    assert_close(y, expected[:, ::-1], 1e-5)
    sizes = {buffer.n_bytes // 4 for buffer in plan.buffers if buffer.kind == BufferKind.ARENA}
    assert {3 * 528, 3 * 1040, 3 * 512} <= sizes


def test_rows_of_an_input_are_padded_once():
    """The caller's rows share cache sets; two large layers read one padded copy."""
    line = (
        "nn.Linear {0} 1 1 x {1} bias=False in_features=512 out_features={2} @weight=({2},512)f32"
    )
    model, plan, (y, z, few) = run(
        f"""
        pnnx.Input in 0 1 x #x=(20,512)f32
        {line.format("a", "y", 512)}
        {line.format("b", "z", 600)}
        {line.format("c", "few", 8)}
        pnnx.Output o0 1 0 y
        pnnx.Output o1 1 0 z
        pnnx.Output o2 1 0 few
        """,
        x := values(20, 512),
    )
    for name, got in (("a", y), ("b", z), ("c", few)):
        weight = model.graph.operator(name).attributes["weight"].numpy()
        expected = (x.astype(np.float64) @ weight.T.astype(np.float64)).astype(np.float32)
        assert_close(got, expected, 2e-6)
    assert [step.name for step in plan.steps if step.kind == "copy"] == ["a"]
    assert copies_in(model.plan((15, 512))) == 0  # it would cost more than it saves


def test_pixels_that_would_share_cache_sets_are_padded():
    text = f"""
        pnnx.Input in 0 1 x #x=(2,8,5,3)f32
        {conv("a", "x", "p", 8, 512)}
        {conv("b", "p", "q", 512, 1024)}
        {conv("c", "q", "r", 1024, 4)}
        torch.flatten f 1 1 q s end_dim=-1 start_dim=1
        pnnx.Output out 2 0 r s
    """
    x = np.random.default_rng(0).standard_normal((2, 8, 5, 3), np.float32)
    model, plan, (r, s) = run(text, x)
    p = convolved(model, "a", x)
    q = convolved(model, "b", p)
    assert_close(r, convolved(model, "c", q), 1e-5)
    assert_close(s, q.reshape(2, -1), 1e-5)
    sizes = {buffer.n_bytes // 4 for buffer in plan.buffers if buffer.kind == BufferKind.ARENA}
    assert {30 * 528, 30 * 1040} <= sizes


# -- the pool of arenas ------------------------------------------------------------------------


def test_all_plans_of_a_model_share_their_arenas():
    model = model_of(
        f"""pnnx.Input in 0 1 x
        {conv("a", "x", "p", 3, 8)}
        nn.Sigmoid s 1 1 p q
        {conv("b", "q", "y", 8, 3)}
        pnnx.Output out 1 0 y"""
    )
    pool = model._plans.arenas
    for height in (3, 40, 7, 80, 5, 80, 1):
        x = values(1, 3, height, 9)
        hidden = sigmoid(convolved(model, "a", x))
        assert_close(model(x), convolved(model, "b", hidden).astype(np.float32))
        assert len(pool) == 1
    largest = max(plan.arena_bytes for plan in model._plans._plans.values())
    assert pool.n_bytes == largest


def test_a_context_is_rebound_to_its_arena():
    """Two plans in turn, and concurrent runs: each finds its operands in the arena it got."""
    model = model_of(
        f"""pnnx.Input in 0 1 x
        {conv("a", "x", "p", 3, 8)}
        nn.Sigmoid s 1 1 p y
        pnnx.Output out 1 0 y"""
    )
    small, large = values(1, 3, 4, 4), values(1, 3, 30, 30)
    expected = [model(small), model(large)]
    pool = model._plans.arenas
    for _ in range(3):
        other = pool.take(1)  # as a concurrent run would
        assert_same_bits([model(small), model(large)], expected, "in another arena")
        pool.give(other)
        assert_same_bits([model(large), model(small)], expected[::-1], "in turn")


def test_the_pool_keeps_a_bounded_number_of_arenas():
    from kuiper._runtime.executor import Arena, ArenaPool

    pool = ArenaPool()
    for _ in range(3 * ArenaPool.KEPT):
        pool.give(Arena(10))
    assert len(pool) == ArenaPool.KEPT
    arena = pool.take(11)
    assert arena.n_bytes == 11
    assert len(pool) == ArenaPool.KEPT - 1


# -- limits ------------------------------------------------------------------------------------

GROWING = f"""pnnx.Input in 0 1 x
    {conv("a", "x", "p", 3, 8)}
    nn.Upsample up 1 1 p q mode=nearest scale_factor=(64.0,64.0) size=None
    torch.mean m 1 1 q y dim=(2,3) keepdim=False $input=q
    pnnx.Output out 1 0 y"""


def test_a_plan_larger_than_the_limit_is_refused():
    graph = graph_of(GROWING)
    x = values(1, 3, 4, 4)
    needed = Model(graph).plan(x.shape).arena_bytes
    assert needed > 8 * 256 * 256 * 4
    Model(graph, max_memory=needed + 100)(x)
    model = Model(graph, max_memory=needed - 1)
    with pytest.raises(ShapeError) as caught:
        model(x)
    total = memory_text(needed + 8 * 4)  # including the result
    assert str(caught.value) == (
        f"a run would take {total} for its operands, more than the {memory_text(needed - 1)} of "
        "max_memory; the largest is 'q', float32 (1, 8, 256, 256), 2.0 MiB, of <param>:5: "
        "operator 'up' (nn.Upsample)"
    )
    assert model(values(1, 3, 2, 2)).shape == (1, 8)


@pytest.mark.parametrize(
    ("line", "where"),
    [
        ("Tensor.repeat big 1 1 x y sizes=(2000000000,2000000000) $input=x", "'y', float32"),
        ("F.pad big 1 1 x y mode=constant pad=(2000000000,2000000000) value=0 $input=x", "'y'"),
        ("torch.zeros big 0 1 y dtype=None size=(2000000000,2000000000)", "constant float32"),
        ("torch.arange big 0 1 y dtype=torch.long end=2000000000 start=0 step=1", "constant int64"),
        ("torch.full big 0 1 y dtype=None fill_value=1.0 size=(65536,65536)", "constant float32"),
        ("Tensor.expand big 1 1 x y sizes=(2000000000,2000000000,2,3) $input=x", "'y', float32"),
    ],
)
def test_absurd_sizes_are_refused_before_anything_is_allocated(line, where):
    model = model_of(
        f"""pnnx.Input in 0 1 x
        {line}
        nn.ReLU act 1 1 y z
        pnnx.Output out 1 0 z"""
    )
    with pytest.raises(ShapeError, match="operator 'big'") as caught:
        model(values(2, 3))
    assert where in str(caught.value)


@pytest.mark.parametrize("limit", [0, -1, True, "1GB", 2.5j, float("nan"), float("inf")])
def test_invalid_limits(limit):
    with pytest.raises(InputError, match=r"max_memory is .*, expected a number of bytes >= 1"):
        Model(graph_of(GROWING), max_memory=limit)


def test_the_default_limit_is_the_memory_of_the_machine_or_container(tmp_path):
    none = str(tmp_path / "none")
    whole = default_max_memory(none, none)
    assert whole > 1 << 20
    assert Model(graph_of(GROWING)).max_memory <= whole
    own = tmp_path / "membership"
    own.write_text("0::/app/worker\n")
    group = tmp_path / "cgroup" / "app"
    group.mkdir(parents=True)
    (group / "memory.max").write_text("1048576\n")
    assert default_max_memory(str(tmp_path / "cgroup"), str(own)) == 1 << 20
    (group / "memory.max").write_text("max\n")
    assert default_max_memory(str(tmp_path / "cgroup"), str(own)) == whole
    own.write_text("3:memory:/app\n")
    first = tmp_path / "cgroup" / "memory" / "app"
    first.mkdir(parents=True)
    (first / "memory.limit_in_bytes").write_text("2097152\n")
    assert default_max_memory(str(tmp_path / "cgroup"), str(own)) == 2 << 20
