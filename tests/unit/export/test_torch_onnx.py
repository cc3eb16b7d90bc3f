"""Modules that go through torch's ONNX exporter."""

from __future__ import annotations

import sys

import numpy as np
import pytest

import kuiper


def test_arguments(monkeypatch):
    with pytest.raises(kuiper.InputError, match="via is 'jit', expected 'pnnx' or 'onnx'"):
        kuiper.from_torch(None, None, via="jit")
    with pytest.raises(kuiper.InputError, match="leave out via='onnx'"):
        kuiper.from_torch(None, None, via="onnx", moduleop="Net")
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(kuiper.MissingPackageError, match="pip install torch onnxscript"):
        kuiper.from_torch(None, None, via="onnx")


@pytest.fixture
def torch():
    """Return torch, if its exporter works."""
    pytest.importorskip("onnxscript", reason="torch's exporter needs onnxscript")
    return pytest.importorskip("torch", reason="exporting a module needs torch")


@pytest.mark.filterwarnings("default")  # of PyTorch
def test_names_and_open_extents(torch):
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.words = torch.nn.Embedding(10, 4)
            self.fc = torch.nn.Linear(4, 6)

        def forward(self, ids, *, scale):
            hidden = self.fc(self.words(ids)) * scale
            pairs = hidden.reshape(ids.shape[0], ids.shape[1] * 2, 3)
            return {"hidden": hidden, "none": None, "rest": (pairs, pairs.mean(dim=1))}

    net = Net()
    ids, scale = torch.tensor([[1, 2, 9]]), torch.rand(1, 3, 1)
    ids2, scale2 = torch.arange(8).reshape(2, 4), torch.rand(2, 4, 1)
    model = kuiper.from_torch(
        net, {"scale": scale, "ids": ids}, via="onnx",
        example_inputs2={"scale": scale2, "ids": ids2},
    )  # fmt: skip
    assert net.training
    assert [(i.name, i.shape) for i in model.inputs] == [
        ("scale", (None, None, 1)), ("ids", (None, None)),
    ]  # fmt: skip
    assert [i.name for i in model.outputs] == ["hidden", "rest.0", "rest.1"]
    for n in (1, 3):
        more, factor = torch.arange(5 * n).reshape(n, 5) % 10, torch.rand(n, 5, 1)
        with torch.no_grad():
            found = net(more, scale=factor)
        expected = [found["hidden"], *found["rest"]]
        for y, z in zip(model(ids=more, scale=factor), expected, strict=True):
            np.testing.assert_allclose(y, z.numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.filterwarnings("default")  # of PyTorch
def test_what_cannot_be_exported(torch):
    with pytest.raises(kuiper.KuiperError, match=r"Bilinear: PyTorch cannot export .*\(1, 2\)"):
        kuiper.from_torch(torch.nn.Bilinear(2, 2, 2), torch.rand(1, 2), via="onnx")
    x = torch.rand(1, 2)
    with pytest.raises(kuiper.InputError, match="equal the first ones"):
        kuiper.from_torch(torch.nn.ReLU(), x, example_inputs2=x, via="onnx")
    with pytest.raises(kuiper.InputError, match="example input 0 is ndarray"):
        kuiper.from_torch(torch.nn.ReLU(), [x.numpy()], via="onnx")
