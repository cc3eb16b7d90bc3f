"""Graphs written as ``.param`` text, for tests of passes, plans and the public interface."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import numpy as np

import kuiper
from kuiper.ir import Attribute, Graph
from kuiper.ops.core import record as registry

from .weights import fill_archive

__all__ = [
    "NETWORK", "branch", "contents_of", "conv", "files_of", "graph_of", "linear", "lines_of",
    "model_of", "norm", "text", "user_operator", "values",
]  # fmt: skip

# Dense and depthwise convolutions, a sum, a concatenation, a linear layer and two outputs: most
# kinds of kernels in a network that is built and run in milliseconds.
NETWORK = """pnnx.Input in 0 1 x
    nn.Conv2d a 1 1 x p bias=True dilation=(1,1) groups=1 in_channels=3 kernel_size=(3,3) out_channels=32 padding=(1,1) padding_mode=zeros stride=(1,1) @bias=(32)f32 @weight=(32,3,3,3)f32
    nn.BatchNorm2d b 1 1 p q affine=True eps=1e-05 num_features=32 @bias=(32)f32 @running_mean=(32)f32 @running_var=(32)f32 @weight=(32)f32
    nn.ReLU c 1 1 q r
    nn.Conv2d d 1 1 r s bias=True dilation=(1,1) groups=1 in_channels=32 kernel_size=(3,3) out_channels=32 padding=(1,1) padding_mode=zeros stride=(1,1) @bias=(32)f32 @weight=(32,32,3,3)f32
    pnnx.Expression e 2 1 s r t expr=add(@0,@1)
    nn.SiLU f 1 1 t u
    nn.Conv2d g 1 1 u v bias=True dilation=(1,1) groups=32 in_channels=32 kernel_size=(3,3) out_channels=32 padding=(1,1) padding_mode=zeros stride=(2,2) @bias=(32)f32 @weight=(32,1,3,3)f32
    torch.cat h 2 1 v v w dim=1
    F.adaptive_avg_pool2d i 1 1 w y output_size=(1,1)
    torch.flatten j 1 1 y z end_dim=-1 start_dim=1
    nn.Linear k 1 1 z o bias=True in_features=64 out_features=10 @bias=(10)f32 @weight=(10,64)f32
    pnnx.Output out0 1 0 o
    pnnx.Output out1 1 0 v"""  # noqa: E501


def files_of(text: str, key: str = "text") -> tuple[bytes, bytes]:
    """Return the ``.param`` and ``.bin`` of a graph given by its operator lines, without a header.

    Weights are noise that depends on `key` and on the names of the operator and the attribute.
    """
    lines = [line.strip() for line in text.strip().splitlines()]
    operands = set()
    for line in lines:
        words = line.split()
        operands.update(words[4 : 4 + int(words[2]) + int(words[3])])
    header = f"7767517\n{len(lines)} {len(operands)}\n"
    param = (header + "\n".join(lines) + "\n").encode()
    return param, fill_archive(param, key)


def graph_of(text: str, key: str = "text") -> Graph:
    """Return the graph of a text; variances are positive, other weights are centred on zero."""
    graph = kuiper.load_graph(*files_of(text, key))
    for operator in graph:
        if "running_var" in operator.attributes:
            variance = operator.attributes["running_var"].numpy() + 0.75
            operator.attributes["running_var"] = Attribute.from_array(variance)
    return graph


def model_of(text: str, key: str = "text") -> kuiper.Model:
    """Return the model of a graph given as text."""
    return kuiper.Model(graph_of(text, key))


def lines_of(graph: Graph) -> list[str]:
    """Return the operators of a graph, without inputs and outputs, as short lines.

    ``nn.Conv2d x r -> y | add nn.ReLU`` is a convolution with two post-ops; an expression shows
    its text instead of its type.
    """
    lines = []
    for operator in graph.topological_order():
        if operator.type in ("pnnx.Input", "pnnx.Output"):
            continue
        head = operator.type
        if head == "pnnx.Expression":
            head = str(operator.params["expr"])
        words = [
            head,
            *(o.name for o in operator.inputs),
            "->",
            *(o.name for o in operator.outputs),
        ]
        if operator.post_ops:
            words += ["|", *(post.type for post in operator.post_ops)]
        lines.append(" ".join(words))
    return lines


def contents_of(graph: Graph) -> list:
    """Return everything that a graph contains, except the lines of its operators in a file."""
    return [
        (
            operator.type,
            operator.name,
            [(o.name, o.shape, o.dtype) for o in (*operator.inputs, *operator.outputs)],
            operator.input_keys,
            operator.params,
            [
                (k, v.shape, v.dtype, v.raw.tobytes())
                for k, v in sorted(operator.attributes.items())
            ],
        )
        for operator in graph
    ]


def values(*shape: int, seed: int = 0) -> np.ndarray:
    """Return float32 noise."""
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


@contextlib.contextmanager
def user_operator(
    type: str, function: Callable, n_outputs: int = 1, **options: bool
) -> Iterator[None]:
    """Register a user's operator inside a with block."""
    kuiper.operator(type, n_outputs, **options)(function)
    try:
        yield
    finally:
        del registry._registry[type]


def text(*lines: str, inputs=("x",), outputs=("y",)) -> str:
    """Return operator lines with lines for the inputs and outputs around them."""
    before = [f"pnnx.Input in_{name} 0 1 {name}" for name in inputs]
    after = [f"pnnx.Output out{k}_{name} 1 0 {name}" for k, name in enumerate(outputs)]
    return "\n".join([*before, *lines, *after])


def conv(name, x, y, c=3, o=4, more="", type="nn.Conv2d", kernel=1, padding=0) -> str:
    """Return the line of a convolution with bias and a square kernel."""
    return (
        f"{type} {name} 1 1 {x} {y} bias=True dilation=(1,1) groups=1 in_channels={c} "
        f"kernel_size=({kernel},{kernel}) out_channels={o} padding=({padding},{padding}) "
        f"padding_mode=zeros stride=(1,1) @bias=({o})f32 @weight=({o},{c},{kernel},{kernel})f32 "
        + more
    )


def branch(name, x, y, kernel, padding, c=4, o=4, groups=1, stride=1, dilation=1, more="") -> str:
    """Return the line of a convolution without bias."""
    (kh, kw), (ph, pw) = kernel, padding
    return (
        f"nn.Conv2d {name} 1 1 {x} {y} bias=False dilation=({dilation},{dilation}) "
        f"groups={groups} in_channels={c} kernel_size=({kh},{kw}) out_channels={o} "
        f"padding=({ph},{pw}) padding_mode=zeros stride=({stride},{stride}) "
        f"@weight=({o},{c // groups},{kh},{kw})f32 " + more
    )


def norm(name, x, y, c=4, type="nn.BatchNorm2d") -> str:
    """Return the line of a batch normalisation."""
    return (
        f"{type} {name} 1 1 {x} {y} affine=True eps=1e-02 num_features={c} @bias=({c})f32 "
        f"@running_mean=({c})f32 @running_var=({c})f32 @weight=({c})f32"
    )


def linear(name, x, y, i=4, o=5) -> str:
    """Return the line of a linear layer with bias."""
    return (
        f"nn.Linear {name} 1 1 {x} {y} bias=True in_features={i} out_features={o} "
        f"@bias=({o})f32 @weight=({o},{i})f32"
    )
