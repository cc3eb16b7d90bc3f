"""Write ncnn_values.json: the values that ncnn computes for shape expressions.

Needs the ncnn package (1.0.20261020 was used) and kuiper.  An Interp layer with the expression as
its target size is run, and the size of its output recorded: ``[expression, shapes, [w, h]]``.
kuiper's evaluation only selects expressions whose values can be the size of an image.
"""

import json
import random
from pathlib import Path

import ncnn
import numpy as np

from kuiper.errors import ExpressionError
from kuiper.expression.ncnn import OPERATORS, count_blobs, eval_list

COUNT = 600
LARGEST = 3000
NUMBERS = ["0", "1", "2", "3", "7", "-1", "-4", "2.0", "0.5", "2.5", "-1.5", "1e1", ".25", "5."]


def size_by_ncnn(text, shapes):
    """Return the width and height of the Interp layer's output for an expression."""
    names = [f"in{i}" for i in range(len(shapes))]
    lines = [f"Input {name} 0 1 {name}" for name in names]
    lines.append(f'Interp size {len(names)} 1 {" ".join(names)} out 0=1 9="{text}"')
    net = ncnn.Net()
    net.load_param_mem("\n".join(["7767517", f"{len(lines)} {len(lines)}", *lines, ""]))
    net.load_model_mem(b"\0" * 64)
    extractor = net.create_extractor()
    for name, shape in zip(names, shapes, strict=True):
        extractor.input(name, ncnn.Mat(np.zeros(shape, np.float32)))
    code, result = extractor.extract("out")
    assert code == 0, text
    height, width = np.array(result).shape[-2:]
    return [width, height]


def random_item(rng, shapes, depth):
    """Return an item of random depth."""
    if depth == 0 or rng.random() < 0.2:
        if rng.random() < 0.5:
            return f"{rng.randrange(len(shapes))}{rng.choice('whdcn')}"
        return rng.choice(NUMBERS)
    name = rng.choice(list(OPERATORS))
    arguments = [random_item(rng, shapes, depth - 1) for _ in range(OPERATORS[name])]
    return f"{name}({','.join(arguments)})"


def size_by_kuiper(text, shapes):
    try:
        return eval_list(text, shapes)[0]
    except ExpressionError:
        return -1


def main():
    rng = random.Random(0)
    records = []
    while len(records) < COUNT:
        # Interp resizes the first input, so it has three axes.
        shapes = [[rng.randrange(1, 9) for _ in range(3)]]
        shapes += [[rng.randrange(1, 13) for _ in range(rng.randrange(1, 5))] for _ in range(2)]
        items = []
        while len(items) < 2:
            item = random_item(rng, shapes, rng.randrange(1, 5))
            if "(" in item and 0 < size_by_kuiper(item, shapes) <= LARGEST and len(item) < 100:
                items.append(item)
        text = ",".join(items)
        # A layer with inputs that its expression does not use does not run.
        shapes = shapes[: max(1, count_blobs(text))]
        records.append([text, shapes, size_by_ncnn(text, shapes)])
    path = Path(__file__).with_name("ncnn_values.json")
    lines = [json.dumps(r, separators=(",", ":")) for r in records]
    path.write_text("[\n" + ",\n".join(lines) + "\n]\n")


if __name__ == "__main__":
    main()
