"""Write ncnn_translations.json: expressions that the pnnx converter translated.

Needs torch and pnnx (20261020 was used).  Small models with dynamic shapes are exported, and the
expression of the .pnnx.param file is recorded with the text in the .ncnn.param file.
"""

import json
import os
import re
import tempfile
from pathlib import Path

import pnnx
import torch
import torch.nn.functional as F

MODELS = {
    "split height": lambda x: x.reshape(x.size(0), 8, x.size(2) // 2, x.size(3)),
    "flatten space": lambda x: x.reshape(x.size(0), 4, x.size(2) * x.size(3)),
    "flatten more": lambda x: x.reshape(x.size(0), x.size(1) * x.size(2), x.size(3)),
    "batch in another item": lambda x: x.reshape(x.size(0) * 2, 2, x.size(2) * x.size(3)),
    "tokens": lambda x: x.permute(0, 2, 3, 1).reshape(x.size(0), x.size(2) * x.size(3), 4),
    "grow": lambda x: F.interpolate(x, size=(x.size(2) * 2, x.size(3) + 3)),
    "shrink": lambda x: F.interpolate(x, size=(x.size(2) // 2 + 1, (x.size(3) + 3) // 4)),
    "like another": lambda x, y: F.interpolate(x, size=(y.size(2), y.size(3))),
    "like both": lambda x, y: F.interpolate(x, size=(y.size(2) + x.size(2), 2 * y.size(-1))),
}


class Model(torch.nn.Module):
    """A convolution per input, by which pnnx finds the batch, and a function of the results."""

    def __init__(self, function, n_inputs):
        super().__init__()
        self.function = function
        self.layers = torch.nn.ModuleList(torch.nn.Conv2d(4, 4, 1) for _ in range(n_inputs))

    def forward(self, *inputs):
        inputs = [layer(x) for layer, x in zip(self.layers, inputs, strict=True)]
        return self.function(*inputs)


class TwoInputs(Model):
    def forward(self, x, y):
        return super().forward(x, y)


class OneInput(Model):
    def forward(self, x):
        return super().forward(x)


def export(function, has_batch):
    """Return the lines of the .pnnx.param and .ncnn.param files."""
    n_inputs = function.__code__.co_argcount
    shapes = [(1, 4, 8, 6), (1, 4, 10, 8)][:n_inputs]
    batch = 2 if has_batch else 1
    others = [(batch, 4, 12, 10), (batch, 4, 14, 18)][:n_inputs]
    model = (OneInput if n_inputs == 1 else TwoInputs)(function, n_inputs).eval()
    pnnx.export(model, "m.pt", tuple(map(torch.zeros, shapes)), tuple(map(torch.zeros, others)))
    return [Path(f"m.{kind}.param").read_text().splitlines()[2:] for kind in ("pnnx", "ncnn")]


def fields(line):
    """Split an operator line into inputs, outputs and parameters."""
    parts = line.split()
    n_in, n_out = int(parts[2]), int(parts[3])
    names = parts[4 : 4 + n_in + n_out]
    return names[:n_in], names[n_in:], dict(p.split("=", 1) for p in parts[4 + n_in + n_out :])


def record(function, has_batch):
    """Return the expression and its translation."""
    pnnx_lines, ncnn_lines = export(function, has_batch)
    expressions, ranks = {}, {}
    for line in pnnx_lines:
        inputs, outputs, params = fields(line)
        for key, value in params.items():
            if key.startswith("#"):
                ranks[key[1:]] = value.count(",") + 1
        if line.startswith("pnnx.Expression"):
            expressions[outputs[0]] = (inputs, params["expr"])
        if line.startswith(("Tensor.reshape", "F.upsample", "F.interpolate")):
            user = params
    size = user.get("$shape") or user.get("$size")
    if size is None:
        return None  # pnnx found all axes of the target but one static
    operands, text = expressions[size]
    # The convolutions tell pnnx that axis 0 is the batch, whether it varies or not.
    batch_axis = 0
    layer = next(line for line in ncnn_lines if line.startswith(("Reshape", "Interp")))
    return {
        "expression": text,
        "sources": [[name, ranks[name], batch_axis] for name in operands],
        "data": user["$input"],
        "batch_item": batch_axis if layer.startswith("Reshape") else None,
        "text": re.search(r'\b[69]="([^"]*)"', layer).group(1),
        "keeps_batch": " 12=" in layer,
    }


def main():
    path = Path(__file__).resolve().with_name("ncnn_translations.json")
    records = []
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for function in MODELS.values():
            records += [record(function, has_batch) for has_batch in (False, True)]
        os.chdir("/")
    lines = [json.dumps(r) for r in records if r is not None]
    path.write_text("[\n" + ",\n".join(lines) + "\n]\n")


if __name__ == "__main__":
    main()
