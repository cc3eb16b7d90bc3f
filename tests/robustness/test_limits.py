"""Hostile or damaged models: each raises a specific error, soon and without a large allocation.

Everything goes through `kuiper.load` and a call, as for a user.  `unit/pnnx`, `unit/ir` and
`unit/planning` also test some of the limits where they are enforced.
"""

from __future__ import annotations

import io
import time

import numpy as np
import pytest

import kuiper
from kuiper.errors import (
    GraphError,
    InputError,
    KuiperError,
    ModelFormatError,
    OperatorError,
    ShapeError,
)
from kuiper.pnnx.archive_writer import write_archive

IN = "pnnx.Input in 0 1 x #x=(1,4,6,6)f32\n"
OUT = "pnnx.Output out 1 0 y\n"
CONV = (
    "nn.Conv2d c 1 1 x y bias={bias} dilation={dilation} groups={groups} in_channels={ins} "
    "kernel_size={kernel} out_channels={outs} padding={padding} padding_mode=zeros stride={stride} "
    "@weight={weight}f32"
)
GOOD = {
    "bias": "False", "dilation": "(1,1)", "groups": "1", "ins": "4", "kernel": "(3,3)", "outs": "8",
    "padding": "(1,1)", "stride": "(1,1)", "weight": "(8,4,3,3)",
}  # fmt: skip


def text(*lines: str) -> bytes:
    """Return a .param text whose header counts its lines; each line may end with a newline."""
    lines = [line.rstrip("\n") for line in lines]
    operands = sum(int(line.split()[3]) for line in lines)
    return "\n".join(["7767517", f"{len(lines)} {operands}", *lines, ""]).encode()


def archive(**members: bytes) -> bytes:
    target = io.BytesIO()
    write_archive(target, [(k.replace("__", "."), v) for k, v in members.items()])
    return target.getvalue()


def run(param: bytes, bin: bytes | None = None, shape=(1, 4, 6, 6), **options):
    return kuiper.load(param, bin, **options)(np.ones(shape, np.float32))


def conv(shape=(1, 4, 6, 6), **changes: str):
    """Run a convolution with changed arguments."""
    values = {**GOOD, **changes}
    extents = [int(n) for n in values["weight"].strip("()").split(",")]
    raw = np.ones(extents, np.float32).tobytes()
    return run(text(IN, CONV.format(**values), OUT), archive(c__weight=raw), shape)


def test_the_undamaged_model_runs():
    assert conv().shape == (1, 8, 6, 6)


# -- attributes against arguments --------------------------------------------------------------


@pytest.mark.parametrize("bias", ["hello", "1", "0.5", "None", "(1,2)"])
def test_a_flag_beside_the_weight_that_it_announces(bias):
    linear = (
        f"nn.Linear fc 1 1 x y bias={bias} in_features=6 out_features=2 "
        "@weight=(2,6)f32 @bias=(2)f32"
    )
    weights = archive(fc__weight=bytes(48), fc__bias=bytes(8))
    with pytest.raises(OperatorError, match=r"'bias' is .*, expected True with a weight 'bias'"):
        kuiper.load(text(IN, linear, OUT), weights)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ins": "5"}, "weight"),
        ({"outs": "9"}, "weight"),
        ({"kernel": "(3,5)"}, "weight"),
        ({"weight": "(8,4,3,1)"}, "weight"),
        ({"weight": "(8,4,9)"}, "weight"),
        ({"weight": "(8,2,3,3)"}, "weight"),
        ({"bias": "True"}, "'bias' is True, but the tensor 'bias' is missing"),
        ({"bias": "hello"}, "'bias' is 'hello', expected True with a weight 'bias'"),
        ({"groups": "3"}, "in_channels"),
        ({"groups": "0"}, "'groups' is 0"),
        ({"groups": "-2"}, "'groups' is -2"),
        ({"stride": "(0,1)"}, r"'stride' is \(0, 1\)"),
        ({"stride": "(1,-1)"}, r"'stride' is \(1, -1\)"),
        ({"stride": "(1,1,1)"}, "'stride'"),
        ({"stride": "9223372036854775808"}, "'stride' is 9223372036854775808"),
        ({"stride": "1e308"}, "'stride' is 1e"),
        ({"dilation": "0"}, "'dilation' is 0"),
        ({"dilation": "(4,1)"}, "6"),
        ({"padding": "(-1,0)"}, r"'padding' is \(-1, 0\)"),
        ({"padding": "(0,nan.0)"}, "'padding'"),
        ({"padding": "1099511627776"}, "max_memory"),
        ({"kernel": "(9,9)", "weight": "(8,4,9,9)"}, "kernel|window|6"),
    ],
    ids=lambda value: (
        ",".join(f"{k}={v}" for k, v in value.items()) if isinstance(value, dict) else ""
    ),
)
def test_arguments_that_do_not_fit_the_convolution(changes, message):
    with pytest.raises(OperatorError, match=message) as caught:
        conv(**changes)
    assert "operator 'c' (nn.Conv2d)" in str(caught.value)


def test_a_kernel_larger_than_the_padded_input():
    with pytest.raises(ShapeError, match=r"operator 'c' \(nn.Conv2d\)"):
        conv((1, 4, 0, 6), padding="(0,0)")
    with pytest.raises(ShapeError, match=r"operator 'c' \(nn.Conv2d\)"):
        conv((1, 4, 2, 6), padding="(0,0)")


@pytest.mark.parametrize(
    "line",
    [
        "nn.MaxPool2d p 1 1 x y kernel_size=(2,2) stride=(0,2) padding=(0,0) dilation=(1,1)",
        "nn.MaxPool2d p 1 1 x y kernel_size=(2,2) stride=(-1,2) padding=(0,0) dilation=(1,1)",
        "nn.MaxPool2d p 1 1 x y kernel_size=(9,9) stride=(2,2) padding=(0,0) dilation=(1,1)",
        "nn.MaxPool2d p 1 1 x y kernel_size=(2,2) stride=(2,2) padding=(2,2) dilation=(1,1)",
        "nn.AvgPool2d p 1 1 x y kernel_size=0 stride=1",
        "nn.AdaptiveAvgPool2d p 1 1 x y output_size=(-3,2)",
        "nn.PixelShuffle p 1 1 x y upscale_factor=3",
        "nn.PixelShuffle p 1 1 x y upscale_factor=0",
        "nn.ChannelShuffle p 1 1 x y groups=3",
        "Tensor.reshape p 1 1 x y shape=(5,-1)",
        "Tensor.reshape p 1 1 x y shape=(-1,-1)",
        "Tensor.permute p 1 1 x y dims=(0,1,2,9)",
        "Tensor.permute p 1 1 x y dims=(0,0,1,2)",
        "torch.flatten p 1 1 x y start_dim=3 end_dim=1",
        "torch.unsqueeze p 1 1 x y dim=99",
        "Tensor.slice p 1 1 x y dim=1 start=0 end=4 step=0",
        "Tensor.slice p 1 1 x y dim=1 start=0 end=4 step=-1",
        "F.pad p 1 1 x y pad=(-9,0) mode=constant value=None",
        "F.interpolate p 1 1 x y size=(0,4) mode=nearest",
        "F.interpolate p 1 1 x y scale_factor=(nan.0,1.0) mode=nearest",
        "F.interpolate p 1 1 x y scale_factor=(1e30,1.0) mode=nearest",
        "F.softmax p 1 1 x y dim=4",
        "torch.chunk p 1 1 x y chunks=0 dim=1",
    ],
    ids=lambda line: " ".join(line.split()[0:1] + line.split()[6:8]),
)
def test_impossible_geometry(line):
    with pytest.raises(OperatorError, match="operator 'p'"):
        run(text(IN, line, OUT))


TRANSPOSED = (
    "nn.ConvTranspose2d c 1 1 x y bias=True dilation=(1,1) groups=1 in_channels=4 "
    "kernel_size=(2,3) out_channels=2 output_padding=(0,0) padding=(0,0) stride={} "
    "@weight=(4,2,2,3)f32 @bias=(2)f32"
)


def test_transposed_convolutions_of_large_strides():
    """Outputs between the taps are the bias; the cost must not grow with the stride."""
    weight = np.arange(48, dtype=np.float32).reshape(4, 2, 2, 3)
    bias = np.array([0.5, -1], np.float32)
    weights = archive(c__weight=weight.tobytes(), c__bias=bias.tobytes())

    def transposed(stride):
        return run(text(IN, TRANSPOSED.format(stride), OUT), weights)

    found = transposed("(120,150)")
    expected = np.tile(bias[None, :, None, None], (1, 1, 5 * 120 + 2, 5 * 150 + 3))
    for i, j in np.ndindex(6, 6):
        expected[0, :, 120 * i :, 150 * j :][:, :2, :3] += weight.sum(0)
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    with pytest.raises(ShapeError, match=r"'stride' is \(300, 219\), which makes 65700 phases"):
        transposed("(300,219)")


# -- the graph ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lines", "error", "message"),
    [
        (
            (IN, "nn.ReLU a 1 1 x y", "nn.ReLU a 1 1 y z", "pnnx.Output out 1 0 z"),
            ModelFormatError, "operator name 'a' is already taken in line 4",
        ),
        (
            (IN, "nn.ReLU a 1 1 x x", "pnnx.Output out 1 0 x"),
            ModelFormatError, "operand 'x' is already produced in line 3",
        ),
        (
            (IN, "nn.ReLU a 1 1 z y", "nn.ReLU b 1 1 y z", OUT),
            ModelFormatError, "used here but produced only in line 5",
        ),
        ((IN, "nn.ReLU a 1 1 y y", OUT), ModelFormatError, "line 4, this one"),
        ((IN, "nn.ReLU a 1 1 ghost y", OUT), ModelFormatError, "no operator produces"),
        ((IN, "nn.ReLU a 1 0 x", "pnnx.Output out 1 0 x"), GraphError, "expected an output"),
        (("pnnx.Input in 0 2 x y", OUT), GraphError, "expected no input and one output"),
        ((IN, "pnnx.Output out 1 1 x y"), GraphError, "expected no output"),
        ((IN, "nn.ReLU a 2 1 x y y", OUT), ModelFormatError, "this one"),
        ((IN, "nn.ReLU a 0 1 y", OUT), OperatorError, "'input' is missing"),
    ],
    ids=[
        "operator twice", "operand twice", "cycle", "cycle of one", "dangling", "no output",
        "two inputs", "output with output", "itself beside another", "no input",
    ],
)  # fmt: skip
def test_invalid_graphs(lines, error, message):
    with pytest.raises(error, match=message):
        run(text(*lines))


@pytest.mark.parametrize(
    ("expression", "message", "column"),
    [
        ("axc(@0,@1)", "unknown operator 'axc'", 1),
        ("add(@0,@2)", "@2 refers to none of the 2 operands", 8),
        ("", "the expression is empty", 1),
        ("add(@0,1", "'\\(' is never closed", 4),
        ("add(@0,1))", "'\\)' closes nothing", 10),
        ("add(@0)", "add takes 2 arguments, got 1", 1),
        ("add(@0,@1,@0)", "add takes 2 arguments, got 3", 1),
        ("ant", "'ant' is no operator, reference or number", 1),
        ("[@0,ant]", "'ant' is no operator, reference or number", 5),
        ("add(@0,ant)", "'ant' is no operator, reference or number", 8),
        ("add(@0,div(1,0))", r"division by zero in div\(1,0\)", 8),
        ("[@0,log(-1)]", r"log\(-1\) has no value", 5),
        ("size(@0,floor_divide(3,0))", "division by zero", 9),
        ("add(@0,None)", "add takes numbers and tensors, got None", 1),
        ("mul(@0,[1,2])", "mul takes numbers and tensors, got a list of 2", 1),
        ("sqrt([1,2])", "sqrt takes numbers and arrays, got a list of 2", 1),
    ],
)
def test_expressions_that_cannot_run_are_refused_by_load(expression, message, column):
    lines = IN, "pnnx.Input in2 0 1 z", f"pnnx.Expression e 2 1 x z y expr={expression}", OUT
    with pytest.raises(OperatorError, match=f"operator 'e' .*{message}") as caught:
        kuiper.load(text(*lines))
    *_, written, caret = str(caught.value).split("\n")
    assert written.strip() == expression
    assert caret == " " * (column + 1) + "^"


@pytest.mark.parametrize("reader", ["pnnx.Output out 1 0 w", "pnnx.Expression r 1 1 w v expr=@0"])
def test_a_word_without_operands_is_no_tensor(reader):
    with pytest.raises(OperatorError, match="'ant' is no operator, reference or number"):
        kuiper.load(text("pnnx.Expression e 0 1 w expr=ant", reader))


# -- sizes -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        # 2^40 elements from a few.
        ((IN, "Tensor.expand e 1 1 x y sizes=(1048576,1048576,4,6,6)", OUT), "max_memory"),
        ((IN, "F.pad e 1 1 x y pad=(0,1099511627776) mode=constant value=None", OUT), "max_memory"),
        ((IN, "F.interpolate e 1 1 x y size=(1048576,1048576) mode=nearest", OUT), "max_memory"),
        ((IN, "Tensor.repeat e 1 1 x y sizes=(1048576,1048576,1,1)", OUT), "max_memory"),
        # Sizes beyond 64 bits.
        ((IN, "Tensor.expand e 1 1 x y sizes=(4294967296,4294967296,4,6,6)", OUT), "max_memory"),
        (
            (IN, f"Tensor.repeat e 1 1 x y sizes=({'1099511627776,' * 28}1,1,1,1)", OUT),
            "max_memory",
        ),
        ((IN, "nn.Upsample e 1 1 x y scale_factor=(1e9,1e9) mode=nearest", OUT), "max_memory"),
    ],
)
def test_operands_too_large_for_any_machine(lines, message):
    start = time.process_time()
    with pytest.raises(ShapeError, match=message) as caught:
        run(text(*lines))
    assert "operator 'e'" in str(caught.value)
    assert time.process_time() - start < 2


def test_zeros_of_terabytes():
    lines = (
        "pnnx.Expression s 0 1 a expr=[1048576,1048576]",
        "torch.zeros z 1 1 a y dtype=torch.float",
        OUT,
    )
    with pytest.raises(KuiperError):
        kuiper.load(text(*lines))()


def test_max_memory_limits_what_a_model_may_allocate():
    param = text(IN, "Tensor.repeat r 1 1 x y sizes=(1000,1,1,1)", OUT)
    assert run(param).shape == (1000, 4, 6, 6)
    with pytest.raises(ShapeError, match="operator 'r'"):
        run(param, max_memory=500_000)


def test_an_annotation_of_2_to_40_elements_allocates_nothing():
    param = text("pnnx.Input in 0 1 x #x=(1048576,1048576)f32", "nn.ReLU r 1 1 x y", OUT)
    model = kuiper.load(param)
    assert model(np.ones((2, 3), np.float32)).shape == (2, 3)
    with pytest.raises(ShapeError, match="max_memory"):
        model.plan((1048576, 1048576))


def test_weights_that_claim_terabytes():
    line = (
        "nn.Linear l 1 1 x y bias=False in_features=6 out_features=1 @weight=(1099511627776,6)f32"
    )
    with pytest.raises(ModelFormatError, match="does not belong to"):
        run(text(IN, line, OUT), archive(l__weight=b"1234"))
    line = line.replace("1099511627776,6", "9223372036854775807,9223372036854775807")
    with pytest.raises(ModelFormatError, match="more bytes than any memory holds"):
        run(text(IN, line, OUT), archive(l__weight=b"1234"))


def test_counts_that_claim_billions():
    start = time.process_time()
    with pytest.raises(ModelFormatError, match="promises 4000000000"):
        kuiper.load(b"7767517\n4000000000 4000000000\npnnx.Input in 0 1 x\n")
    with pytest.raises(ModelFormatError, match="4000000000 inputs"):
        kuiper.load(b"7767517\n1 1\nnn.ReLU r 4000000000 1 x y\n")
    assert time.process_time() - start < 1


# -- long graphs -------------------------------------------------------------------------------


def chain(length: int) -> bytes:
    """Return the text of a chain of `length` operators."""
    kinds = ("nn.ReLU", "nn.Sigmoid", "F.tanh")
    lines = ["pnnx.Input in 0 1 v0 #v0=(2,3)f32"]
    lines += [f"{kinds[i % 3]} r{i} 1 1 v{i} v{i + 1}" for i in range(length)]
    return text(*lines, f"pnnx.Output out 1 0 v{length}")


def seconds_to_load(length: int) -> float:
    param = chain(length)
    start = time.process_time()
    assert len(kuiper.load(param).graph) == length + 2
    return time.process_time() - start


def test_loading_takes_linear_time():
    small, large = seconds_to_load(1_500), seconds_to_load(15_000)
    # Ten times the work; quadratic time would show as a factor of 100.
    assert large < 40 * max(small, 0.02)


def separate(length: int) -> bytes:
    """Return a chain of operators that are not fused but share one buffer."""
    lines = ["pnnx.Input in 0 1 v0 #v0=(2,3)f32"]
    lines += [f"F.softmax r{i} 1 1 v{i} v{i + 1} dim=1" for i in range(length)]
    return text(*lines, f"pnnx.Output out 1 0 v{length}")


def wide(length: int) -> bytes:
    """Return a graph whose operators all read the input and are concatenated."""
    lines = ["pnnx.Input in 0 1 x #x=(2,3)f32"]
    lines += [f"F.softmax r{i} 1 1 x v{i} dim=1" for i in range(length)]
    joined = " ".join(f"v{i}" for i in range(length))
    return text(*lines, f"torch.cat c {length} 1 {joined} y dim=0", "pnnx.Output out 1 0 y")


def copied(length: int) -> bytes:
    """Return a graph that unbinds a tensor into parts that must be copied and are overwritten."""
    parts = " ".join(f"v{i}" for i in range(length))
    lines = [
        f"pnnx.Input in 0 1 x #x=({length},3)f32",
        "Tensor.permute p 1 1 x t dims=(1,0)",
        f"torch.unbind s 1 {length} t {parts} dim=1",
    ]
    lines += [f"F.softmax r{i} 1 1 v{i} w{i} dim=0" for i in range(length)]
    joined = " ".join(f"w{i}" for i in range(length))
    return text(*lines, f"torch.stack c {length} 1 {joined} y dim=0", "pnnx.Output out 1 0 y")


@pytest.mark.parametrize("graph", [chain, separate, wide, copied])
@pytest.mark.parametrize("optimize", [False, True])
def test_planning_takes_linear_time(graph, optimize):
    def seconds(length: int) -> float:
        model = kuiper.load(graph(length), optimize=optimize)
        x = np.ones((length if graph is copied else 2, 3), np.float32)
        start = time.process_time()
        assert np.isfinite(model(x)).all()
        return time.process_time() - start

    small, large = seconds(300), seconds(2_400)
    # Eight times the work; quadratic time would show as a factor of 64.
    assert large < 30 * max(small, 0.02)


def test_a_text_whose_graph_may_exceed_max_memory_is_refused(tmp_path):
    param = chain(40_000)  # 1.3 MB
    path = tmp_path / "m.pnnx.param"
    path.write_bytes(param)
    for source in (param, path, str(path), io.BytesIO(param)):
        with pytest.raises(
            GraphError,
            match=r"the text has 1\.\d MiB, its graph may take \d+\.\d MiB, more than the 64.0 MiB "
            "of max_memory; pass a larger one if you trust the file",
        ):
            kuiper.load(source, max_memory=64 << 20)
    # Texts of up to a megabyte are always accepted.
    assert len(kuiper.load(chain(1000), max_memory=1).graph) == 1002
    assert len(kuiper.load_graph(path, max_memory=160 * len(param))) == 40_002


@pytest.mark.parametrize("optimize", [False, True])
def test_a_deep_chain_runs_without_recursion(optimize):
    length = 3_000  # above Python's recursion limit
    model = kuiper.load(chain(length), optimize=optimize)
    y = model(np.ones((2, 3), np.float32))
    assert y.shape == (2, 3)
    assert np.isfinite(y).all()


def test_nested_lists():
    def nested(count: int) -> bytes:
        lines = ["pnnx.Input in 0 1 t0 #t0=(1,1)f32"]
        lines += [f"prim::TupleConstruct c{i} 1 1 t{i} t{i + 1}" for i in range(count)]
        return text(*lines, f"pnnx.Output out 1 0 t{count}")

    assert np.asarray(kuiper.load(nested(90))(np.ones((1, 1), np.float32))).shape == (1, 1)
    with pytest.raises(GraphError, match=r"operator 'c100' .* 101 deep, expected up to 100"):
        kuiper.load(nested(20_000))


def test_nested_lists_of_an_expression():
    for item in ("@0", "1"):
        lines = f"pnnx.Expression e 1 1 x y expr={'[' * 900}{item}{']' * 900}", OUT
        with pytest.raises(OperatorError, match=r"operator 'e' .* nested more than 100 deep"):
            kuiper.load(text(IN, *lines))


def test_a_chain_of_concatenations():
    """Aliases within aliases, hundreds deep, as in a dense network."""
    count = 300
    lines = ["pnnx.Input in 0 1 v0 #v0=(1,1)f32"]
    for i in range(count):
        lines.append(f"nn.ReLU r{i} 1 1 v0 a{i}")
        lines.append(f"torch.cat c{i} 2 1 a{i} v{i} v{i + 1} dim=1")
    param = text(*lines, f"pnnx.Output out 1 0 v{count}")
    assert run(param, shape=(1, 1)).shape == (1, count + 1)


# -- files of another kind ---------------------------------------------------------------------

PAGE = b"<!DOCTYPE html>\n<html><head><title>404</title></head></html>\n"
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:0123\nsize 46828888\n"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (PAGE, "web page"),
        (POINTER, "git-lfs pointer"),
        (b"", "empty"),
        (b"\x00" * 5000, "zero byte in the text; the file is damaged"),
        (b"PK\3\4" + b"\x00" * 5000, "ZIP archive"),
        (text(IN, "nn.ReLU r 1 1 x y", OUT)[:-30], "truncated"),
        (b"7767517\n", "truncated"),
    ],
    ids=["page", "pointer", "empty", "zeros", "archive", "cut", "cut early"],
)
def test_other_files_instead_of_the_text(data, message, tmp_path):
    path = tmp_path / "m.pnnx.param"
    path.write_bytes(data)
    with pytest.raises(ModelFormatError, match=message) as caught:
        kuiper.load(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (PAGE, "web page"),
        (POINTER, "git-lfs pointer"),
        (b"", "empty"),
        (archive(c__weight=bytes(8 * 4 * 9 * 4))[:-40], "truncated"),
        (archive(c__weight=bytes(8 * 4 * 9 * 4))[:99], "truncated"),
        (archive(c__weight=bytes(10)), "has 10 bytes, its shape"),
        (archive(), "'c.weight'"),
        (text(IN, OUT), "swapped"),
    ],
    ids=["page", "pointer", "empty", "cut", "cut early", "short", "bare", "swapped"],
)
def test_other_files_instead_of_the_archive(data, message, tmp_path):
    path = tmp_path / "m.pnnx.param"
    path.write_bytes(text(IN, CONV.format(**GOOD), OUT))
    path.with_suffix(".bin").write_bytes(data)
    with pytest.raises(ModelFormatError, match=message) as caught:
        kuiper.load(path)
    assert str(path.with_suffix(".bin")) in str(caught.value)


# -- inputs ------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(2,), (1, 2, 3), ()])
def test_inputs_of_another_rank(shape):
    param = text("pnnx.Input in 0 1 x #x=(2,3)f32", "nn.ReLU r 1 1 x y", OUT)
    with pytest.raises(InputError, match="rank 2"):
        run(param, shape=shape)


# -- files that change while they are in use -----------------------------------------------------


@pytest.mark.parametrize("change", ["truncate", "overwrite", "replace", "remove"])
@pytest.mark.parametrize("is_planned", [False, True])
def test_a_model_outlives_its_files(change, is_planned, tmp_path):
    """Weights are packed at the first run and again for other shapes, from the loaded file."""
    path = tmp_path / "m.pnnx.param"
    raw = np.arange(64 * 4 * 9, dtype=np.float32) / 100
    changes = {"outs": "64", "weight": "(64,4,3,3)"}
    path.write_bytes(text(IN, CONV.format(**{**GOOD, **changes}), OUT))
    bin = path.with_suffix(".bin")
    bin.write_bytes(archive(c__weight=raw.tobytes()))
    x = np.ones((1, 4, 6, 6), np.float32)
    expected = kuiper.load(path)(x)
    model = kuiper.load(path)
    if is_planned:
        model(x)
    for file in (path, bin):
        if change == "truncate":
            with open(file, "r+b") as opened:
                opened.truncate(0)
        elif change == "overwrite":
            size = file.stat().st_size
            with open(file, "r+b") as opened:
                opened.write(b"\xff" * size)
        elif change == "replace":
            other = tmp_path / "other"
            other.write_bytes(b"nothing of ours")
            other.replace(file)
        else:
            file.unlink()
    assert np.array_equal(model(x), expected)
    assert model(np.ones((2, 4, 9, 9), np.float32)).shape == (2, 64, 9, 9)
    target = io.BytesIO()
    kuiper.save(model, io.BytesIO(), target)
    assert raw.tobytes() in target.getvalue()


def test_topk_refuses_more_elements_than_a_rank_can_represent():
    """The rank of the last element would be rounded to an index out of range."""
    ranked = "aten::quantile ranked 2 1 x q y"
    level = "pnnx.Expression level 0 1 q expr=1.0"
    param = text("pnnx.Input in 0 1 x #x=(4)f32", level, ranked, OUT)
    assert run(param, shape=((1 << 18) + 1,)) == 1
    with pytest.raises(ShapeError, match="16777217 elements to rank, expected at most 16777216"):
        run(param, shape=((1 << 24) + 1,))
