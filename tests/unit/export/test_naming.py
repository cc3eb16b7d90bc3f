"""Names and classes that an export keeps."""

from __future__ import annotations

from collections import namedtuple

import numpy as np
import pytest

import kuiper
from kuiper.export import naming

from ...support.onnxfile import graph, model, node, tensor, value


def onnx_file() -> bytes:
    """Return an ONNX file of which a weight is listed among the inputs."""
    inputs = [value(name, np.float32, (2,)) for name in ("input.1", "w", "größe")]
    content = graph(
        [node("Add", "input.1 w", "logits")], inputs, [value("logits")],
        [tensor("w", np.float32([1, 2]))],
    )  # fmt: skip
    return model(content)


def test_names_in_an_onnx_file(tmp_path):
    path = tmp_path / "x.onnx"
    path.write_bytes(onnx_file())
    assert naming.onnx_names(path) == (["input.1", "größe"], ["logits"])


@pytest.mark.parametrize("content", [b"", b"nothing", b"\x3a", b"\x3a\x03\x5a\x01\x08", bytes(9)])
def test_a_damaged_onnx_file_has_no_names(tmp_path, content):
    path = tmp_path / "x.onnx"
    path.write_bytes(content)
    assert naming.onnx_names(path) == ([], [])


def net_of(result):
    torch = pytest.importorskip("torch", reason="tracing needs torch")
    pytest.importorskip("pnnx", reason="converting a module needs pnnx")

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = torch.nn.Linear(3, 3)

        def forward(self, ids, mask=None):
            y = self.fc(ids)
            return result(y if mask is None else y * mask, ids + 1)

    Net.__qualname__ = "Net"
    return Net(), torch.rand(2, 3), torch.rand(2, 3)


@pytest.mark.parametrize(
    ("result", "names"),
    [
        (lambda y, z: {"logits": y, "none": None, "past": (z, {"key": y})},
         ["logits", "past.0", "past.1.key"]),
        (namedtuple("Result", "logits state"), ["logits", "state"]),
        (lambda y, z: [y, {"state": z}], ["0", "1.state"]),
    ],
)  # fmt: skip
def test_names_of_results(result, names):
    net, ids, mask = net_of(result)
    model = kuiper.from_torch(net, {"mask": mask, "ids": ids})
    assert [info.name for info in model.inputs] == ["mask", "ids"]
    found = model(ids=ids.numpy(), mask=mask.numpy(), as_dict=True)
    assert [*found] == names
    np.testing.assert_allclose(
        found[names[0]], (net.fc(ids) * mask).detach().numpy(), rtol=1e-5, atol=1e-6
    )


def test_names_of_parameters_and_given_names(tmp_path):
    net, ids, mask = net_of(lambda y, z: (y, z))
    model = kuiper.from_torch(net, (ids, mask), output_names=["y z", "0"])
    assert [info.name for info in model.inputs] == ["ids", "mask"]
    kuiper.save(model, tmp_path / "x.pnnx.param")
    model = kuiper.load(tmp_path / "x.pnnx.param")
    assert [info.name for info in model.outputs] == ["y z", "0"]
    with pytest.raises(kuiper.InputError, match=r"input_names: got 1 name \(a\), expected 2"):
        kuiper.from_torch(net, (ids, mask), input_names="a")


def test_parameter_names():
    class Net:
        def forward(self, x, *others, scale=1):
            pass

    assert naming.parameter_names(Net(), 3) == ["x", "others.0", "others.1"]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda net, x: kuiper.from_torch(net, x, x), r"several inputs pass a tuple.*example_in"),
        (lambda net, x: kuiper.from_torch(net, x, example_inputs2=x), "equal the first ones"),
        (
            lambda net, x: kuiper.from_torch(net, x, example_inputs2=x.long()),
            r"input 0 is \(2, 3\) torch.int64, expected rank 2 and torch.float32",
        ),
        (lambda net, x: kuiper.from_torch(net, {"ids": x}, example_inputs2=x), "no keys, expected"),
        (lambda net, x: kuiper.from_torch(net, x, moduleop="Sanke"), "no module of the class 'San"),
        (
            lambda net, x: kuiper.from_torch(net, x, moduleop="Linear"),
            "did you mean torch.nn.modules.linear.Linear",
        ),
        (lambda net, x: kuiper.from_torch(net, x, moduleop=["Net"]), r"moduleop is \['Net'\], exp"),
        (lambda net, x: kuiper.from_torch(net, x, input_names=3), "input_names is 3, expected a l"),
        (
            lambda net, x: kuiper.from_torch(type(net), x),
            r"the class Net, .*an instance, Net\(\.\.",
        ),
        (lambda net, x: kuiper.from_torch(x, net), "got Tensor, .*; the module goes first"),
        (lambda net, x: kuiper.from_torch("x.pt", x), "`kuiper export FILE` converts a file"),
        (lambda net, x: kuiper.from_torch(net.state_dict(), x), "module.load_state_dict"),
    ],
)
def test_arguments_that_would_be_misread(call, message):
    net, ids, _ = net_of(lambda y, z: y)
    with pytest.raises(kuiper.InputError, match=message):
        call(net, ids)


def test_second_inputs_of_a_dict_are_matched_by_key():
    net, ids, mask = net_of(lambda y, z: y)
    model = kuiper.from_torch(
        net,
        {"ids": ids, "mask": mask},
        example_inputs2={"mask": mask[:, :1], "ids": ids.repeat(2, 1)[:2]},
    )
    assert [info.shape for info in model.inputs] == [(2, 3), (2, None)]


def test_a_class_that_is_never_called(tmp_path):
    torch = pytest.importorskip("torch")
    net, ids, _ = net_of(lambda y, z: y)
    net.spare = torch.nn.Bilinear(1, 1, 1)
    with pytest.raises(kuiper.InputError, match="Net calls no module of the class"):
        kuiper.from_torch(net, ids, moduleop="torch.nn.modules.linear.Bilinear")
