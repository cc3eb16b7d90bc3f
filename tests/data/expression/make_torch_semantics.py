"""Write torch_semantics.json: PyTorch's results for expressions on small operands.

Needs torch (2.13.0 was used).  Every operator is tried on every pair of operand kinds; a record is
``[expression, operands, dtype, values]``, or ``[expression, operands, null, null]`` where PyTorch
raises.  An operand is ``[dtype or null, value]``: null marks a Python number.
"""

import itertools
import json
import operator
from pathlib import Path

import torch

DTYPES = {
    "float32": torch.float32,
    "float64": torch.float64,
    "float16": torch.float16,
    "int64": torch.int64,
    "int32": torch.int32,
    "int8": torch.int8,
    "uint8": torch.uint8,
    "bool": torch.bool,
    "complex64": torch.complex64,
}

BINARY = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "div": operator.truediv,
    "floor_divide": operator.floordiv,
    "remainder": operator.mod,
    "fmod": torch.fmod,
    "pow": operator.pow,
    "atan2": torch.atan2,
    "logaddexp": torch.logaddexp,
    "max": torch.max,
    "minimum": torch.minimum,
    "and": operator.and_,
    "or": operator.or_,
    "xor": operator.xor,
    "lshift": operator.lshift,
    "rshift": operator.rshift,
}

UNARY_NAMES = """
    abs neg sign square sqrt rsqrt reciprocal exp expm1 log log10 log1p erf
    sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh floor ceil trunc round
"""
UNARY = {name: getattr(torch, name) for name in UNARY_NAMES.split()}

F = torch.nn.functional

ACTIVATIONS = {
    "relu(@0)": F.relu,
    "relu6(@0)": F.relu6,
    "leaky_relu(@0)": F.leaky_relu,
    "leaky_relu(@0,0.3)": lambda x: F.leaky_relu(x, 0.3),
    "prelu(@0,0.25)": lambda x: F.prelu(x, torch.tensor([0.25], dtype=x.dtype)),
    "clamp(@0,-0.5,1.5)": lambda x: torch.clamp(x, -0.5, 1.5),
    "sigmoid(@0)": torch.sigmoid,
    "logsigmoid(@0)": F.logsigmoid,
    "hardsigmoid(@0)": F.hardsigmoid,
    "silu(@0)": F.silu,
    "hardswish(@0)": F.hardswish,
    "mish(@0)": F.mish,
    "gelu(@0)": F.gelu,
    "gelu_tanh(@0)": lambda x: F.gelu(x, approximate="tanh"),
    "elu(@0)": F.elu,
    "elu(@0,0.7)": lambda x: F.elu(x, 0.7),
    "celu(@0,1.3)": lambda x: F.celu(x, 1.3),
    "selu(@0)": F.selu,
    "softplus(@0)": F.softplus,
    "softplus(@0,2.0,3.0)": lambda x: F.softplus(x, 2.0, 3.0),
    "softsign(@0)": F.softsign,
    "tanhshrink(@0)": F.tanhshrink,
    "hardshrink(@0,0.75)": lambda x: F.hardshrink(x, 0.75),
    "softshrink(@0,0.75)": lambda x: F.softshrink(x, 0.75),
    "threshold(@0,0.5,-2.0)": lambda x: F.threshold(x, 0.5, -2.0),
}

VECTORS = {
    "float32": [0.0, -0.0, 1.5, -2.5, 7.0, -7.0, 0.5, float("nan"), float("inf"), float("-inf")],
    "float64": [0.25, -3.0, 2.0],
    "float16": [0.25, -3.0, 2.0],
    "int64": [0, 7, -7, 3],
    "int32": [2, -5, 1],
    "int8": [100, -100, 3],
    "uint8": [200, 3, 1],
    "bool": [True, False],
    "complex64": [1.5 - 2.0j, -0.5 + 0.25j],
}

SECOND = {
    "float32": [2.0],
    "float64": [-3.0],
    "float16": [0.5],
    "int64": [-3],
    "int32": [2],
    "int8": [3],
    "uint8": [2],
    "bool": [True],
    "complex64": [0.5 + 1.0j],
}

# Paired only with each other, since their other pairs follow the rules of int64.
SMALL_INTEGERS = {"int32", "int8", "uint8"}

NUMBERS = [3, -2, 0.1, True, 1.0 + 2.0j]


def written(value):
    """Convert a value for JSON: complex numbers become pairs."""
    if isinstance(value, list):
        return [written(item) for item in value]
    return [value.real, value.imag] if isinstance(value, complex) else value


def record(expression, operands, function):
    """Run PyTorch and record the result."""
    values = [v if d is None else torch.tensor(v, dtype=DTYPES[d]) for d, v in operands]
    noted = [[d, written(v)] for d, v in operands]
    try:
        result = function(*values)
    except (RuntimeError, TypeError, NotImplementedError):
        return [expression, noted, None, None]
    if not isinstance(result, torch.Tensor):
        return None
    return [expression, noted, str(result.dtype).removeprefix("torch."), written(result.tolist())]


def main():
    records = []
    for (name, function), (dtype, vector) in itertools.product(UNARY.items(), VECTORS.items()):
        records.append(record(f"{name}(@0)", [(dtype, vector)], function))
    for expression, function in ACTIVATIONS.items():
        for dtype in ("float32", "float64", "float16"):
            records.append(record(expression, [(dtype, VECTORS[dtype])], function))
    for name, function in BINARY.items():
        for first, second in itertools.product(VECTORS, SECOND):
            if (first in SMALL_INTEGERS) != (second in SMALL_INTEGERS):
                continue
            vector, other = VECTORS[first], SECOND[second]
            expression = f"{name}(@0,@1)"
            records.append(record(expression, [(first, vector), (second, other)], function))
            records.append(record(expression, [(first, vector), (second, other[0])], function))
            records.append(record(expression, [(first, vector[1]), (second, other)], function))
        if name in ("atan2", "logaddexp", "max", "minimum", "fmod"):
            continue  # functions that accept only tensors
        for dtype, number in itertools.product(VECTORS, NUMBERS):
            expression = f"{name}(@0,@1)"
            records.append(record(expression, [(dtype, VECTORS[dtype]), (None, number)], function))
            records.append(record(expression, [(None, number), (dtype, VECTORS[dtype])], function))
    records = [r for r in records if r is not None]
    path = Path(__file__).with_name("torch_semantics.json")
    lines = [json.dumps(r, separators=(",", ":")) for r in records]
    path.write_text("[\n" + ",\n".join(lines) + "\n]\n")


if __name__ == "__main__":
    main()
