"""Layers that an exporter wrote out are put together again, once, when the model is loaded.

::

    MatMul + Add          ->  nn.Linear with a bias
    x * sigmoid(x)        ->  F.silu
    0.5 x (1 + erf(...))  ->  F.gelu, also by tanh
    (x - mean(x)) / ...   ->  nn.LayerNorm, F.rms_norm
    reshape, swap, back   ->  nn.ChannelShuffle
    softmax(q @ k.T) @ v  ->  F.scaled_dot_product_attention, in :mod:`kuiper.onnx.attention_layers`
    attention of products ->  nn.MultiheadAttention, also if the products are one

Each function looks at one operator, which ends a pattern, and rewrites it in place: its name, its
output and its position in the graph stay.  What nothing reads any more is removed at the end.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from kuiper.expression import parse
from kuiper.expression.tree import Call, Literal, Node
from kuiper.expression.tree import Ref as Leaf
from kuiper.ir import Attribute, Graph, Operand, Operator

__all__ = ["Term", "constant_of", "product_of", "rewrite", "term_of", "without_unused"]

EXPRESSION = "pnnx.Expression"
CONSTANT = "pnnx.Attribute"
MAX_DEPTH = 12  # of the expression of a layer
MAX_TERMS = 100
NUMBERS = ("f32", "f64", "i64")


class Term(NamedTuple):
    """A call in an expression that several operators compute; leaves are operands and numbers."""

    name: str
    arguments: tuple[Any, ...]


# Operators of one input that stand in such an expression.
FUNCTIONS = {"F.sigmoid": "sigmoid", "F.tanh": "tanh"}


def constant_of(operand: Any) -> Attribute | None:
    """Return the weight that an operand is, None if it is computed."""
    producer = operand.producer if isinstance(operand, Operand) else None
    return producer.attributes.get("data") if producer and producer.type == CONSTANT else None


def term_of(operand: Operand, depth: int = MAX_DEPTH) -> Any:
    """Return the expression that computes an operand: a Term, a number or the operand itself."""
    return _Reader(operand).term(operand, depth)


class _Reader:
    """Reads the operators that compute an operand; of an expression without end, the last part.

    What is read twice is a leaf, as is the input of a layer, except for the difference from a mean.
    """

    def __init__(self, root: Operand) -> None:
        self.root = root
        self.left = MAX_TERMS

    def term(self, operand: Operand, depth: int) -> Any:
        producer = operand.producer
        attribute = constant_of(operand)
        if attribute is not None and attribute.size == 1 and attribute.dtype in NUMBERS:
            return attribute.numpy().reshape(-1)[0].item()
        self.left -= 1
        if producer is None or attribute is not None or depth == 0 or self.left < 0:
            return operand
        is_shared = operand is not self.root and len(operand.uses) > 1
        if is_shared and producer.params.get("expr") != "sub(@0,@1)":
            return operand
        if producer.type in FUNCTIONS:
            return Term(FUNCTIONS[producer.type], (self.term(producer.inputs[0], depth - 1),))
        if producer.type == "torch.mean" and producer.params.get("keepdim"):
            inner = self.term(producer.inputs[0], depth - 1)
            return Term("mean", (inner, producer.params.get("dim")))
        if producer.type != EXPRESSION:
            return operand
        tree = parse(str(producer.params["expr"]), len(producer.inputs))
        found = self.substituted(tree, producer, depth - 1)
        return operand if found is None else found

    def substituted(self, tree: Node, producer: Operator, depth: int) -> Any:
        if isinstance(tree, Literal):
            is_number = isinstance(tree.value, int | float) and not isinstance(tree.value, bool)
            return tree.value if is_number else None
        if isinstance(tree, Leaf):
            return self.term(producer.inputs[tree.index], depth)
        if not isinstance(tree, Call) or tree.name == "size":
            return None
        arguments = tuple(self.substituted(child, producer, depth) for child in tree.children)
        return (
            None if any(argument is None for argument in arguments) else Term(tree.name, arguments)
        )


def product_of(term: Any) -> tuple[float, list[Any]]:
    """Return the numeric factor of a product, and its other factors."""
    if isinstance(term, int | float):
        return float(term), []
    if isinstance(term, Term):
        if term.name == "mul":
            (c, first), (d, second) = map(product_of, term.arguments)
            return c * d, first + second
        if term.name == "div" and isinstance(term.arguments[1], int | float) and term.arguments[1]:
            c, factors = product_of(term.arguments[0])
            return c / term.arguments[1], factors
        if term.name == "neg":
            c, factors = product_of(term.arguments[0])
            return -c, factors
        if term.name == "square" or (term.name == "pow" and term.arguments[1] in (2, 3)):
            c, factors = product_of(term.arguments[0])
            power = 2 if term.name == "square" else int(term.arguments[1])
            return c**power, factors * power
    return 1.0, [term]


def _sum_of(term: Any) -> tuple[float, list[Any]]:
    """Return the numeric summand of a sum, and its other summands."""
    if isinstance(term, int | float):
        return float(term), []
    if isinstance(term, Term) and term.name == "add":
        (c, first), (d, second) = map(_sum_of, term.arguments)
        return c + d, first + second
    return 0.0, [term]


def _close(a: float, b: float) -> bool:
    return math.isclose(a, b, rel_tol=1e-5)


def _is_scaled(term: Any, x: Any, factor: float) -> bool:
    c, factors = product_of(term)
    return _close(c, factor) and factors == [x]


# -- layers ---------------------------------------------------------------------------------------


def restore_bias(graph: Graph, op: Operator) -> bool:
    """Let a linear layer add the vector that is added to its result."""
    if op.type != EXPRESSION or op.params.get("expr") != "add(@0,@1)":
        return False
    for vector, result in ((op.inputs[0], op.inputs[1]), (op.inputs[1], op.inputs[0])):
        bias, linear = constant_of(vector), result.producer
        if bias is None or linear is None or linear.type != "nn.Linear" or linear.params["bias"]:
            continue
        if bias.shape != (linear.params["out_features"],) or bias.dtype != "f32":
            continue
        if len(result.uses) != 1:
            continue
        op.params = linear.params | {"bias": True}
        op.attributes = linear.attributes | {"bias": bias}
        _become(graph, op, "nn.Linear", [linear.inputs[0]])
        return True
    return False


def restore_silu(graph: Graph, op: Operator) -> bool:
    """Recognise ``x * sigmoid(x)``."""
    if op.type != EXPRESSION or op.params.get("expr") not in ("mul(@0,@1)", "mul(@1,@0)"):
        return False
    for x, gate in (op.inputs, op.inputs[::-1]):
        producer = gate.producer
        if producer is not None and producer.type == "F.sigmoid" and producer.inputs[0] is x:
            op.params = {}
            _become(graph, op, "F.silu", [x])
            return True
    return False


def restore_gelu(graph: Graph, op: Operator) -> bool:
    """Recognise ``0.5 x (1 + erf(x / sqrt(2)))`` and its approximation by tanh."""
    if op.type != EXPRESSION or "mul" not in str(op.params.get("expr")):
        return False
    c, factors = product_of(term_of(op.outputs[0]))
    if len(factors) != 2 or not _close(c, 0.5):
        return False
    for x, gate in (factors, factors[::-1]):
        one, rest = _sum_of(gate)
        if not isinstance(x, Operand) or not _close(one, 1.0) or len(rest) != 1:
            continue
        inner = rest[0]
        if not isinstance(inner, Term) or inner.name not in ("erf", "tanh"):
            continue
        argument = inner.arguments[0]
        if inner.name == "erf" and _is_scaled(argument, x, math.sqrt(0.5)):
            op.params = {"approximate": "none"}
        elif inner.name == "tanh" and _is_cubic(argument, x):
            op.params = {"approximate": "tanh"}
        else:
            continue
        _become(graph, op, "F.gelu", [x])
        return True
    return False


def _is_cubic(term: Any, x: Any) -> bool:
    """Tell whether a term is ``sqrt(2 / pi) * (x + 0.044715 x^3)``."""
    factor, factors = product_of(term)
    if len(factors) == 1:
        zero, terms = _sum_of(factors[0])
        pairs = [product_of(each) for each in terms]
    elif len(factors) == 2 and x in factors:  # x * (1 + 0.044715 x^2)
        rest = factors[1 - factors.index(x)]
        one, terms = _sum_of(rest)
        zero, pairs = 0.0, [(one, [x]), *((c, [x, *f]) for c, f in map(product_of, terms))]
    else:
        return False
    found = {len(f): c * factor for c, f in pairs if f == [x] * len(f)}
    root = math.sqrt(2 / math.pi)
    return (
        zero == 0
        and len(pairs) == 2
        and set(found) == {1, 3}
        and _close(found[1], root)
        and _close(found[3], 0.044715 * root)
    )


def restore_norm(graph: Graph, op: Operator) -> bool:
    """Recognise layer normalisation, and normalisation by the root mean square."""
    if op.type != EXPRESSION:
        return False
    shift, body = None, term_of(op.outputs[0])
    if isinstance(body, Term) and body.name == "add":
        for first, second in (body.arguments, body.arguments[::-1]):
            if constant_of(first) is not None:
                shift, body = first, second
    c, factors = product_of(_as_product(body))
    weights = [f for f in factors if constant_of(f) is not None]
    inverses = [f for f in factors if isinstance(f, Term) and f.name == "inverse"]
    others = [f for f in factors if f not in weights and f not in inverses]
    if c != 1.0 or not len(weights) == len(inverses) == len(others) == 1:
        return False
    (weight,), (inverse,), (x,) = weights, inverses, others
    centred = x
    along = []
    if isinstance(x, Term) and x.name == "sub":
        x, mean = x.arguments
        if not isinstance(mean, Term) or mean.name != "mean" or mean.arguments[0] != x:
            return False
        along.append(mean.arguments[1])
    size = constant_of(weight)
    found = _variance(inverse, centred)
    if found is None or size is None or not isinstance(x, Operand) or x.shape is None:
        return False
    epsilon, dims = found
    last = ((-1,), (len(x.shape) - 1,))
    if size.shape != (x.shape[-1],) or {size.dtype, x.dtype} != {"f32"}:
        return False
    if any(axes not in last for axes in (*along, dims)):
        return False
    params: dict[str, Any] = {"normalized_shape": size.shape, "eps": epsilon}
    if centred is x:
        if shift is not None:
            return False
        op.params = params
        _become(graph, op, "F.rms_norm", [x, weight], [None, "weight"])
        return True
    bias = constant_of(shift)
    if bias is not None and (bias.shape != size.shape or bias.dtype != "f32"):
        return False
    if bias is None:
        op.params = params
        _become(graph, op, "F.layer_norm", [x, weight], [None, "weight"])
        return True
    op.params = params | {"elementwise_affine": True}
    op.attributes = {"weight": size, "bias": bias}
    _become(graph, op, "nn.LayerNorm", [x])
    return True


def _as_product(term: Any) -> Any:
    """Return a term in which quotients by a root are products with its inverse."""
    if not isinstance(term, Term):
        return term
    if term.name in ("mul", "div"):
        first, second = map(_as_product, term.arguments)
        if term.name == "mul":
            return Term("mul", (first, second))
        if isinstance(second, Term):
            return Term("mul", (first, Term("inverse", (_root(second),))))
        return Term("div", (first, second))
    if term.name in ("reciprocal", "rsqrt"):
        inner = term.arguments[0]
        return Term("inverse", (inner if term.name == "rsqrt" else _root(inner),))
    return term


def _root(term: Any) -> Any:
    """Return the argument of a square root, None if it is none."""
    if isinstance(term, Term) and (
        term.name == "sqrt" or (term.name == "pow" and term.arguments[1] == 0.5)
    ):
        return term.arguments[0]
    return None


def _variance(inverse: Term, centred: Any) -> tuple[float, Any] | None:
    """Return the epsilon and the axes of ``1 / sqrt(mean(centred^2) + epsilon)``."""
    epsilon, terms = _sum_of(inverse.arguments[0])
    if len(terms) != 1 or not isinstance(terms[0], Term) or terms[0].name != "mean":
        return None
    c, factors = product_of(terms[0].arguments[0])
    if c != 1.0 or factors != [centred, centred]:
        return None
    return epsilon, terms[0].arguments[1]


def restore_shuffle(graph: Graph, op: Operator) -> bool:
    """Recognise channels that are cut into groups, interleaved and joined."""
    if op.type != "Tensor.reshape":
        return False
    swap = op.inputs[0].producer
    if swap is None or swap.type != "Tensor.permute" or swap.params.get("dims") != (0, 2, 1, 3, 4):
        return False
    cut = swap.inputs[0].producer
    if cut is None or cut.type != "Tensor.reshape":
        return False
    x, groups, result = cut.inputs[0], cut.outputs[0].shape, op.outputs[0].shape
    if x.shape is None or groups is None or result is None or len(x.shape) != 4 or len(result) != 4:
        return False
    known = (*x.shape[1:], *groups[1:], *result[1:])
    if None in known or x.shape[1:] != result[1:] or groups[3:] != x.shape[2:]:
        return False
    op.params = {"groups": groups[1]}
    _become(graph, op, "nn.ChannelShuffle", [x])
    return True


def _become(graph: Graph, op: Operator, type: str, inputs: list[Operand], keys: Any = None) -> None:
    op.type = type
    graph.set_inputs(op, inputs, keys)


LAYERS: tuple[Callable[[Graph, Operator], bool], ...] = (
    restore_bias, restore_silu, restore_gelu, restore_norm, restore_shuffle,
)  # fmt: skip


def rewrite(graph: Graph) -> None:
    """Restore the layers of a graph in place."""
    from kuiper.onnx.attention_layers import (
        restore_attention,
        restore_heads,
        restore_packed_heads,
    )

    for op in reversed(graph.operators):  # the last operator of a layer is the one to find first
        for restore in (*LAYERS, restore_attention):
            if restore(graph, op):
                break
    for op in graph.operators:
        restore_heads(graph, op)
        restore_packed_heads(graph, op)
    without_unused(graph)


def without_unused(graph: Graph) -> None:
    """Remove the operators whose results nothing reads."""
    for op in reversed(graph.operators):
        is_read = any(operand.uses for operand in op.outputs)
        if op.outputs and not is_read and op.type != "pnnx.Input":
            graph.remove_operator(op)
