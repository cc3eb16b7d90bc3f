"""Operators that occur twice: found without reading the weights of all others."""

import importlib

from kuiper.passes.optimize.eliminate_common import eliminate_common

from ...support.textgraph import graph_of, lines_of

LINES = """
pnnx.Input in 0 1 x
nn.PReLU a 1 1 x p num_parameters=1 @weight=(1)f32
F.relu b 1 1 p q
F.relu c 1 1 p r
F.relu d 1 1 p s
F.leaky_relu e 1 1 p t negative_slope=1
F.leaky_relu f 1 1 p u negative_slope=True
torch.cat g 5 1 q r s t u y dim=1
pnnx.Output out 1 0 y
"""


def test_only_operators_with_equal_inputs_are_compared(monkeypatch):
    module = importlib.import_module("kuiper.passes.optimize.eliminate_common")
    compared = []
    key = module._key
    monkeypatch.setattr(module, "_key", lambda op: compared.append(op.name) or key(op))
    graph = graph_of(LINES)
    eliminate_common(graph, {})
    assert sorted(compared) == ["b", "c", "d", "e", "f"]
    assert [op.name for op in graph] == ["in", "a", "b", "e", "f", "g", "out"]
    assert "torch.cat q q q t u -> y" in lines_of(graph)
