"""Random graphs, and a numpy interpreter that runs them one operator at a time.

The interpreter knows no plans, layouts or memory: each operand is a separate float64 array.  The
generator prefers recent operands but also picks old ones, so that tensors are read by several
operators at widely separated steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from kuiper.ir import Attribute, Graph

__all__ = ["RandomGraph", "interpret", "python_step"]

MAX_ELEMENTS = 4096


# -- operators in numpy ------------------------------------------------------------------------


def conv2d(x, op):
    """Convolve tap by tap."""
    weight = op.attributes["weight"].numpy().astype(np.float64)
    (sh, sw), (ph, pw) = op.params["stride"], op.params["padding"]
    dh, dw = op.params["dilation"]
    groups = op.params["groups"]
    out, _, kh, kw = weight.shape
    x = np.pad(x, ((0, 0), (0, 0), (ph, ph), (pw, pw)))
    n, channels, height, width = x.shape
    oh = (height - dh * (kh - 1) - 1) // sh + 1
    ow = (width - dw * (kw - 1) - 1) // sw + 1
    x = x.reshape(n, groups, channels // groups, height, width)
    weight = weight.reshape(groups, out // groups, channels // groups, kh, kw)
    y = np.zeros((n, groups, out // groups, oh, ow))
    for u in range(kh):
        for v in range(kw):
            seen = x[..., u * dh : u * dh + sh * (oh - 1) + 1 : sh, :]
            seen = seen[..., v * dw : v * dw + sw * (ow - 1) + 1 : sw]
            y += np.einsum("ngchw,goc->ngohw", seen, weight[..., u, v])
    y = y.reshape(n, out, oh, ow)
    if "bias" in op.attributes:
        y += op.attributes["bias"].numpy().reshape(-1, 1, 1)
    return y


def pool2d(x, op, reduce, fill):
    """Reduce each window; windows are never clipped."""
    (kh, kw), (sh, sw), (ph, pw) = (op.params[k] for k in ("kernel_size", "stride", "padding"))
    x = np.pad(x, ((0, 0), (0, 0), (ph, ph), (pw, pw)), constant_values=fill)
    windows = np.lib.stride_tricks.sliding_window_view(x, (kh, kw), (2, 3))
    return reduce(windows[:, :, ::sh, ::sw], axis=(-2, -1))


def batch_norm(x, op):
    along = (-1,) + (1,) * (x.ndim - 2)
    a = {k: v.numpy().astype(np.float64).reshape(along) for k, v in op.attributes.items()}
    y = (x - a["running_mean"]) / np.sqrt(a["running_var"] + op.params["eps"])
    return y * a["weight"] + a["bias"]


def linear(x, op):
    return x @ op.attributes["weight"].numpy().T.astype(np.float64) + op.attributes["bias"].numpy()


def shuffle(x, op):
    groups = op.params["groups"]
    n, c, *rest = x.shape
    return x.reshape(n, groups, c // groups, *rest).swapaxes(1, 2).reshape(x.shape)


def pieces(x, op):
    """Split along an axis into pieces of one length; the last may be shorter."""
    length = -(-x.shape[op.params["dim"]] // op.params["chunks"])
    cuts = range(length, x.shape[op.params["dim"]], length)
    return tuple(np.split(x, cuts, op.params["dim"]))


def sliced(x, op):
    index = [slice(None)] * x.ndim
    index[op.params["dim"]] = slice(op.params["start"], op.params["end"], op.params["step"])
    return x[tuple(index)]


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


EXPRESSIONS: dict[str, Callable] = {
    "add(@0,@1)": lambda a, b: a + b,
    "add(@1,@0)": lambda a, b: a + b,
    "sub(@0,@1)": lambda a, b: a - b,
    "mul(@0,tanh(@1))": lambda a, b: a * np.tanh(b),
    "add(mul(@0,0.5),@1)": lambda a, b: a * 0.5 + b,
    "max(@0,@1)": np.maximum,
    "add(@0,mul(@1,tanh(@2)))": lambda a, b, c: a + b * np.tanh(c),
    "mul(@0,-0.75)": lambda a: a * -0.75,
    "sub(1.5,@0)": lambda a: 1.5 - a,
    "div(@0,add(abs(@0),1.0))": lambda a: a / (np.abs(a) + 1),
    "mul(@0,div(1.0,size(@0,0)))": lambda a: a / a.shape[0],
}

OPERATORS: dict[str, Callable] = {
    "F.relu": lambda x, op: np.maximum(x, 0),
    "nn.ReLU6": lambda x, op: np.clip(x, 0, 6),
    "F.sigmoid": lambda x, op: sigmoid(x),
    "nn.SiLU": lambda x, op: x * sigmoid(x),
    "F.leaky_relu": lambda x, op: np.where(x < 0, op.params["negative_slope"] * x, x),
    "nn.Dropout": lambda x, op: x,
    "nn.Conv2d": conv2d,
    "nn.BatchNorm2d": batch_norm,
    "nn.MaxPool2d": lambda x, op: pool2d(x, op, np.max, -np.inf),
    "nn.AvgPool2d": lambda x, op: pool2d(x, op, np.mean, 0),
    "F.adaptive_avg_pool2d": lambda x, op: x.mean((2, 3), keepdims=True),
    "nn.Linear": linear,
    "nn.ChannelShuffle": shuffle,
    "torch.matmul": lambda x, y, op: x @ y,
    "torch.cat": lambda *x, op: np.concatenate(x, op.params["dim"]),
    "torch.stack": lambda *x, op: np.stack(x, op.params["dim"]),
    "torch.chunk": pieces,
    "torch.unbind": lambda x, op: tuple(np.moveaxis(x, op.params["dim"], 0)),
    "torch.flip": lambda x, op: np.flip(x, op.params["dims"]),
    "torch.roll": lambda x, op: np.roll(x, op.params["shifts"], op.params["dims"]),
    "torch.flatten": lambda x, op: x.reshape(x.shape[0], -1),
    "Tensor.reshape": lambda x, op: x.reshape(op.params["shape"]),
    "Tensor.permute": lambda x, op: x.transpose(op.params["dims"]),
    "torch.squeeze": lambda x, op: x.squeeze(op.params["dim"]),
    "torch.unsqueeze": lambda x, op: np.expand_dims(x, op.params["dim"]),
    "Tensor.slice": sliced,
    "Tensor.select": lambda x, op: x.take(op.params["index"], op.params["dim"]),
    "Tensor.expand": lambda x, op: np.broadcast_to(x, op.params["sizes"]),
    "prim::TupleConstruct": lambda *x, op: x,
    "prim::ListUnpack": lambda x, op: x,
    "tests.Python": lambda x, op: python_step(x),
}


def python_step(x):
    """Compute "tests.Python", an operator that runs as Python code between compiled steps."""
    return 2 * x - 1


def interpret(graph: Graph, inputs) -> dict[str, np.ndarray]:
    """Return every operand of a graph by name, with lists as tuples."""
    arrays = dict(zip((o.name for o in graph.inputs), inputs, strict=True))
    arrays = {name: array.astype(np.float64) for name, array in arrays.items()}
    for op in graph.topological_order():
        given = [arrays[operand.name] for operand in op.inputs]
        if op.type in ("pnnx.Input", "pnnx.Output"):
            continue
        if op.type == "pnnx.Attribute":
            result = op.attributes["data"].numpy().astype(np.float64)
        elif op.type == "pnnx.Expression":
            result = EXPRESSIONS[op.params["expr"]](*given)
        else:
            result = OPERATORS[op.type](*given, op=op)
        if op.outputs[0].name.startswith("list") or not isinstance(result, tuple):
            result = (result,)
        for operand, array in zip(op.outputs, result, strict=True):
            arrays[operand.name] = array
    return arrays


# -- graph generation --------------------------------------------------------------------------


class RandomGraph:
    """A random graph and inputs for it.

    Parameters
    ----------
    seed : int
    n_operators : int

    Attributes
    ----------
    graph : Graph
    inputs : list of numpy.ndarray
    """

    def __init__(self, seed: int, n_operators: int):
        self.random = np.random.default_rng(seed)
        self.graph = Graph()
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.inputs: list[np.ndarray] = []
        for _ in range(self.pick([1, 1, 2, 3])):
            self.add_input()
        makers = [getattr(self, name) for name in sorted(dir(self)) if name.startswith("make_")]
        made = 0
        while made < n_operators:
            made += bool(self.pick(makers)())
        names = list(self.shapes)
        unread = [n for n in names if not self.graph.operand(n).uses] or names[-1:]
        chosen = [self.pick(unread) for _ in range(self.pick([1, 2, 3]))]
        chosen += [self.pick(names) for _ in range(self.pick([0, 0, 1, 2]))]
        for number, name in enumerate(chosen):
            self.graph.add_operator("pnnx.Output", f"output{number}", [name], [])

    # -- random choices

    def pick(self, items):
        return items[int(self.random.integers(0, len(items)))]

    def noise(self, *shape: int) -> np.ndarray:
        return self.random.standard_normal(shape).astype(np.float32)

    def operand(self, test=lambda shape: True) -> str | None:
        """Return an operand whose shape passes, preferably recent or without readers."""
        names = [name for name, shape in self.shapes.items() if test(shape)]
        if not names:
            return None
        chance = self.random.random()
        unread = [n for n in names if not self.graph.operand(n).uses]
        if chance < 0.4 and unread:
            return self.pick(unread[-6:])
        return self.pick(names[-4:]) if chance < 0.75 else self.pick(names)

    def image(self) -> str | None:
        return self.operand(lambda shape: len(shape) == 4)

    # -- graph construction

    def add_input(self) -> None:
        rank = self.pick([2, 3, 4, 4, 4, 4])
        shape = (self.pick([1, 2]), self.pick([1, 3, 4, 8, 16, 17]))
        shape += tuple(int(n) for n in self.random.integers(1, 8, rank - 2))
        name = f"x{len(self.inputs)}"
        self.graph.add_operand(name, shape, "f32")
        self.graph.add_operator("pnnx.Input", f"input{len(self.inputs)}", [], [name])
        self.shapes[name] = shape
        self.inputs.append(self.noise(*shape))

    def add(self, type: str, inputs, shapes, attributes=None, **params) -> bool:
        """Add an operator with outputs of the given shapes; return True."""
        number = len(self.graph)
        if any(math.prod(shape) > MAX_ELEMENTS or len(shape) > 5 for shape in shapes):
            return False
        outputs = [
            f"v{number}_{i}" if len(shapes) > 1 else f"v{number}" for i in range(len(shapes))
        ]
        attributes = {k: Attribute.from_array(v) for k, v in (attributes or {}).items()}
        self.graph.add_operator(
            type, f"op{number}", inputs, outputs, params=params, attributes=attributes
        )
        self.shapes.update(zip(outputs, map(tuple, shapes), strict=True))
        return True

    # -- one method per kind of operator; each returns False if no operand fits

    def make_conv(self) -> bool:
        x = self.image()
        if x is None:
            return False
        n, c, h, w = self.shapes[x]
        kernel = self.pick([1, 1, 3, 3, 2])
        stride, padding, dilation = self.pick([1, 1, 2]), self.pick([0, 1]), self.pick([1, 1, 2])
        oh, ow = ((e + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1 for e in (h, w))
        if min(oh, ow) < 1:
            return False
        groups = self.pick([g for g in (1, 1, 2, c) if c % g == 0])
        out = groups * self.pick([1, 2, 4, 17]) if groups < c or c == 1 else c
        scale = (c // groups * kernel * kernel) ** -0.5
        weight = self.noise(out, c // groups, kernel, kernel) * np.float32(scale)
        pairs = {k: (v, v) for k, v in (("stride", stride), ("dilation", dilation))}
        return self.add(
            "nn.Conv2d", [x], [(n, out, oh, ow)], {"weight": weight, "bias": self.noise(out)},
            kernel_size=(kernel, kernel), padding=(padding, padding), groups=groups, **pairs,
        )  # fmt: skip

    make_conv_again = make_conv
    make_more_conv = make_conv

    def make_batch_norm(self) -> bool:
        x = self.image()
        if x is None:
            return False
        c = self.shapes[x][1]
        weights = {k: self.noise(c) for k in ("weight", "bias", "running_mean")}
        weights["running_var"] = np.abs(self.noise(c)) + np.float32(0.5)
        return self.add("nn.BatchNorm2d", [x], [self.shapes[x]], weights, eps=1e-5, num_features=c)

    def make_activation(self) -> bool:
        x = self.operand()
        type = self.pick(["F.relu", "F.relu", "nn.ReLU6", "F.sigmoid", "nn.SiLU", "nn.Dropout"])
        return self.add(type, [x], [self.shapes[x]])

    make_activation_again = make_activation

    def make_leaky_relu(self) -> bool:
        x = self.operand()
        return self.add("F.leaky_relu", [x], [self.shapes[x]], negative_slope=0.2)

    def make_python(self) -> bool:
        x = self.operand()
        return self.random.random() < 0.3 and self.add("tests.Python", [x], [self.shapes[x]])

    def make_expression(self) -> bool:
        text = self.pick(list(EXPRESSIONS))
        first = self.operand()
        shape = self.shapes[first]
        names = [first]
        if "size(" in text and shape == ():
            return False
        for k in (1, 2):
            if f"@{k}" in text:
                names.append(self.operand(lambda s, so_far=shape: _broadcasts(s, so_far)))
                shape = np.broadcast_shapes(shape, self.shapes[names[-1]])
        if self.random.random() < 0.3:
            names.reverse()
        return self.add("pnnx.Expression", names, [shape], expr=text)

    make_expression_again = make_expression

    def make_sum(self) -> bool:
        """Add operands of one shape, as residual fusion expects."""
        first = self.operand()
        shape = self.shapes[first]
        other = self.operand(lambda s: s == shape)
        return self.add("pnnx.Expression", [first, other], [shape], expr="add(@0,@1)")

    make_more_sums = make_sum

    def make_constant(self) -> bool:
        shape = self.pick([(), (1,), (3,), (4, 1, 1), (1, 4, 1, 1), (2, 3)])
        return self.random.random() < 0.4 and self.add(
            "pnnx.Attribute", [], [shape], {"data": self.noise(*shape)}
        )

    def make_cat(self) -> bool:
        first = self.operand(lambda s: len(s) > 0)
        shape = self.shapes[first]
        axis = 1 if len(shape) == 4 and self.random.random() < 0.7 else self.pick(range(len(shape)))
        names = [first]
        for _ in range(self.pick([1, 1, 2, 3])):
            names.append(self.operand(lambda s: _fits(s, shape, axis)))
        if self.random.random() < 0.5:
            names.reverse()
        extent = sum(self.shapes[name][axis] for name in names)
        joined = (*shape[:axis], extent, *shape[axis + 1 :])
        dim = axis if self.random.random() < 0.5 else axis - len(shape)
        return self.add("torch.cat", names, [joined], dim=dim)

    make_cat_again = make_cat
    make_more_cats = make_cat

    def make_stack(self) -> bool:
        first = self.operand()
        shape = self.shapes[first]
        names = [first, self.operand(lambda s: s == shape)]
        axis = self.pick(range(len(shape) + 1))
        return self.add("torch.stack", names, [(*shape[:axis], 2, *shape[axis:])], dim=axis)

    def make_chunk(self) -> bool:
        x = self.operand(lambda s: max(s, default=0) > 1)
        if x is None:
            return False
        shape = self.shapes[x]
        axis = self.pick([d for d, n in enumerate(shape) if n > 1])
        chunks = self.pick([2, 2, 3])
        length = -(-shape[axis] // chunks)
        lengths = [min(length, shape[axis] - s) for s in range(0, shape[axis], length)]
        shapes = [(*shape[:axis], n, *shape[axis + 1 :]) for n in lengths]
        if len(shapes) == 1 or self.random.random() < 0.7:
            return self.add("torch.chunk", [x], shapes, chunks=chunks, dim=axis)
        return self.add_list("torch.chunk", [x], shapes, chunks=chunks, dim=axis)

    def make_unbind(self) -> bool:
        x = self.operand(lambda s: max(s, default=0) > 1)
        if x is None:
            return False
        shape = self.shapes[x]
        axis = self.pick([d for d, n in enumerate(shape) if n > 1])
        shapes = [(*shape[:axis], *shape[axis + 1 :])] * shape[axis]
        return self.add("torch.unbind", [x], shapes, dim=axis)

    def make_tuple(self) -> bool:
        names = [self.operand() for _ in range(self.pick([1, 2, 3]))]
        return self.add_list("prim::TupleConstruct", names, [self.shapes[n] for n in names])

    def add_list(self, type: str, inputs, shapes, **params) -> bool:
        """Add an operator whose one output is a list, and later the operators that unpack it."""
        if any(len(shape) > 5 for shape in shapes):
            return False
        number = len(self.graph)
        self.graph.add_operator(type, f"op{number}", inputs, [f"list{number}"], params=params)
        for _ in range(self.pick([0, 1, 2])):
            self.make_activation()
        return self.add("prim::ListUnpack", [f"list{number}"], shapes)

    def make_reshape(self) -> bool:
        x = self.operand()
        rest = math.prod(self.shapes[x])
        target = []
        for _ in range(self.pick([0, 1, 2, 3])):
            extent = self.pick([d for d in range(1, rest + 1) if rest % d == 0])
            target.append(extent)
            rest //= extent
        target.append(rest)
        return self.add("Tensor.reshape", [x], [target], shape=tuple(target))

    def make_flatten(self) -> bool:
        x = self.operand(lambda s: len(s) > 1)
        if x is None:
            return False
        n, *rest = self.shapes[x]
        return self.add("torch.flatten", [x], [(n, math.prod(rest))], start_dim=1, end_dim=-1)

    def make_permute(self) -> bool:
        x = self.operand(lambda s: len(s) > 1)
        if x is None:
            return False
        shape = self.shapes[x]
        dims = [int(d) for d in self.random.permutation(len(shape))]
        if len(shape) == 4 and self.random.random() < 0.5:
            dims = self.pick([[0, 2, 3, 1], [0, 3, 1, 2]])
        return self.add("Tensor.permute", [x], [[shape[d] for d in dims]], dims=tuple(dims))

    make_permute_again = make_permute

    def make_squeeze(self) -> bool:
        x = self.operand(lambda s: 1 in s)
        if x is None:
            return False
        shape = self.shapes[x]
        axis = self.pick([d for d, n in enumerate(shape) if n == 1])
        return self.add("torch.squeeze", [x], [(*shape[:axis], *shape[axis + 1 :])], dim=axis)

    def make_unsqueeze(self) -> bool:
        x = self.operand()
        shape = self.shapes[x]
        axis = self.pick(range(len(shape) + 1))
        return self.add("torch.unsqueeze", [x], [(*shape[:axis], 1, *shape[axis:])], dim=axis)

    def make_slice(self) -> bool:
        x = self.operand(lambda s: len(s) > 0)
        shape = self.shapes[x]
        axis = self.pick(range(len(shape)))
        cut = slice(self.pick([0, 0, 1]), shape[axis] - self.pick([0, 0, 1]), self.pick([1, 1, 2]))
        length = len(range(shape[axis])[cut])
        if length == 0:
            return False
        return self.add(
            "Tensor.slice", [x], [(*shape[:axis], length, *shape[axis + 1 :])],
            dim=axis, start=cut.start, end=cut.stop, step=cut.step,
        )  # fmt: skip

    def make_select(self) -> bool:
        x = self.operand(lambda s: len(s) > 1)
        if x is None:
            return False
        shape = self.shapes[x]
        axis = self.pick(range(len(shape)))
        return self.add(
            "Tensor.select", [x], [(*shape[:axis], *shape[axis + 1 :])],
            dim=axis, index=self.pick(range(shape[axis])),
        )  # fmt: skip

    def make_expand(self) -> bool:
        x = self.operand(lambda s: 1 in s)
        if x is None:
            return False
        shape = tuple(self.pick([2, 3]) if n == 1 else n for n in self.shapes[x])
        return self.add("Tensor.expand", [x], [shape], sizes=shape)

    make_expand_again = make_expand

    def make_move(self) -> bool:
        x = self.operand(lambda s: len(s) > 0)
        axis = self.pick(range(len(self.shapes[x])))
        if self.random.random() < 0.5:
            return self.add("torch.flip", [x], [self.shapes[x]], dims=(axis,))
        return self.add("torch.roll", [x], [self.shapes[x]], shifts=(1,), dims=(axis,))

    def make_shuffle(self) -> bool:
        x = self.operand(lambda s: len(s) == 4 and s[1] % 2 == 0)
        return x is not None and self.add("nn.ChannelShuffle", [x], [self.shapes[x]], groups=2)

    def make_pool(self) -> bool:
        x = self.operand(lambda s: len(s) == 4 and min(s[2:]) > 1)
        if x is None:
            return False
        n, c, h, w = self.shapes[x]
        type, padding = self.pick([("nn.MaxPool2d", 0), ("nn.MaxPool2d", 1), ("nn.AvgPool2d", 0)])
        stride = self.pick([1, 2])
        oh, ow = ((e + 2 * padding - 2) // stride + 1 for e in (h, w))
        pairs = {"kernel_size": 2, "stride": stride, "padding": padding}
        pairs = {k: (v, v) for k, v in pairs.items()}
        return self.add(type, [x], [(n, c, oh, ow)], **pairs)

    def make_global_pool(self) -> bool:
        x = self.image()
        if x is None:
            return False
        n, c, _, _ = self.shapes[x]
        return self.add("F.adaptive_avg_pool2d", [x], [(n, c, 1, 1)], output_size=(1, 1))

    def make_linear(self) -> bool:
        x = self.operand(lambda s: len(s) > 1)
        if x is None:
            return False
        *lead, depth = self.shapes[x]
        out = self.pick([1, 3, 8, 33])
        weight = self.noise(out, depth) * np.float32(depth**-0.5)
        return self.add(
            "nn.Linear", [x], [(*lead, out)], {"weight": weight, "bias": self.noise(out)},
            in_features=depth, out_features=out, bias=True,
        )  # fmt: skip

    def make_matmul(self) -> bool:
        x = self.operand(lambda s: len(s) > 1)
        if x is None:
            return False
        *batch, rows, depth = self.shapes[x]
        y = self.operand(lambda s: len(s) > 1 and s[-2] == depth and _broadcasts(s[:-2], batch))
        if y is None:
            return False
        batch = np.broadcast_shapes(tuple(batch), self.shapes[y][:-2])
        scaled = len(self.graph)
        self.graph.add_operator(
            "pnnx.Expression", f"op{scaled}", [x], [f"v{scaled}"], params={"expr": "mul(@0,-0.75)"}
        )
        self.shapes[f"v{scaled}"] = self.shapes[x]
        return self.add("torch.matmul", [f"v{scaled}", y], [(*batch, rows, self.shapes[y][-1])])


def _broadcasts(a, b) -> bool:
    try:
        np.broadcast_shapes(tuple(a), tuple(b))
    except ValueError:
        return False
    return True


def _fits(a, b, axis: int) -> bool:
    return len(a) == len(b) and all(
        n == m for d, (n, m) in enumerate(zip(a, b, strict=True)) if d != axis
    )
