"""Attention that an exporter wrote out: ``softmax(scale * q @ k.T + mask) @ v``, and its heads."""

from __future__ import annotations

import math

import numpy as np

from kuiper.ir import Attribute, Graph, Operand, Operator
from kuiper.onnx.restore import constant_of, product_of, term_of

__all__ = ["restore_attention", "restore_heads", "restore_packed_heads"]

ATTENTION = "F.scaled_dot_product_attention"
MAX_MASK = 1 << 22  # elements of a constant mask that are read


def restore_attention(graph: Graph, op: Operator) -> bool:
    """Recognise the second product, whose left side is the softmax.

    Nothing else may read the scores: the first product becomes the swap of the keys' axes.
    """
    if op.type != "torch.matmul":
        return False
    weights, value = op.inputs
    softmax, hides_nan = weights.producer, False
    if softmax is not None and softmax.type == "torch.where" and len(weights.uses) == 1:
        softmax, hides_nan = _before_nan(softmax), True
    if softmax is None or softmax.type != "F.softmax":
        return False
    if len(softmax.outputs[0].uses) != 1 + hides_nan:
        return False
    scores = softmax.inputs[0]
    rank = len(scores.shape or ())
    if rank < 3 or softmax.params.get("dim") not in (-1, rank - 1) or scores.dtype != "f32":
        return False
    found = _scores(scores)
    if found is None:
        return False
    product, mask, scale = found
    mask = None if mask is not None and _adds_nothing(mask) else mask
    (c, query), (d, turned) = map(_scaled, product.inputs)
    shapes = [operand.shape or () for operand in (query, turned, value)]
    if any(len(shape) != rank or shape[:-2] != shapes[0][:-2] for shape in shapes):
        return False
    if {operand.dtype for operand in (query, turned, value)} != {"f32"}:
        return False
    key, swapped = product.outputs[0], shapes[1]
    product.type = "Tensor.permute"
    product.params = {"dims": (*range(rank - 2), rank - 1, rank - 2)}
    key.shape = (*swapped[:-2], swapped[-1], swapped[-2])
    graph.set_inputs(product, [turned])
    keys: list[str | None] = [None, None, None]
    inputs = [query, key, value]
    if mask is not None:
        inputs.append(_hidden(mask) if hides_nan else mask)
        keys.append("attn_mask")
    op.type = ATTENTION
    op.params = {"dropout_p": 0.0, "is_causal": False, "scale": scale * c * d}
    graph.set_inputs(op, inputs, keys)
    _join_swaps(graph, product)
    return True


def _join_swaps(graph: Graph, swap: Operator) -> None:
    """Let one operator reorder the axes that two reorder, also around a cut of the first ones."""
    before = swap.inputs[0].producer
    if before is None:
        return
    *lead, a, b = swap.params["dims"]
    if before.type == "Tensor.permute":
        dims = before.params["dims"]
        swap.params = {"dims": tuple(dims[i] for i in (*lead, a, b))}
        graph.set_inputs(swap, [before.inputs[0]])
        return
    inner = before.inputs[0].producer if before.type == "Tensor.reshape" else None
    if inner is None or inner.type != "Tensor.permute":
        return
    dims, shape, kept = inner.params["dims"], swap.outputs[0].shape, inner.inputs[0].shape
    count = len(dims)
    if shape is None or None in shape or kept is None or kept[-2:] != shape[-2:]:
        return
    if dims == (*range(count - 2), count - 1, count - 2):
        swap.type, swap.params = "Tensor.reshape", {"shape": shape}
        graph.set_inputs(swap, [inner.inputs[0]])


def _before_nan(where: Operator) -> Operator | None:
    """Return the softmax of ``where(isnan(softmax), 0, softmax)``."""
    if len(where.inputs) != 3 or any(where.input_keys):
        return None
    condition, zero, other = where.inputs
    test = condition.producer
    if test is None or test.type != "aten::isnan" or test.inputs[0] is not other:
        return None
    return other.producer if term_of(zero) == 0 else None


def _adds_nothing(mask: Operand) -> bool:
    """Tell whether a mask is a constant of zeros: queries see all keys."""
    constant = constant_of(mask)
    return constant is not None and constant.size <= MAX_MASK and not constant.numpy().any()


def _hidden(mask: Operand) -> Operand:
    """Return the condition of a mask that is ``where(condition, 0, -inf)``."""
    where = mask.producer
    if where is not None and where.type == "torch.where" and not any(where.input_keys):
        condition, zero, low = where.inputs
        if term_of(zero) == 0 and term_of(low) == -math.inf and condition.dtype == "bool":
            return condition
    return mask


def _scores(scores: Operand) -> tuple[Operator, Operand | None, float] | None:
    """Return the first product, the mask and the scale."""
    total = scores.producer
    if len(scores.uses) == 1 and total is not None and total.params.get("expr") == "add(@0,@1)":
        for part, mask in (total.inputs, total.inputs[::-1]):
            found = _scaled_product(part)
            if found is not None and part.shape == scores.shape and mask.dtype == "f32":
                return found[0], mask, found[1]
        return None
    found = _scaled_product(scores)
    return None if found is None else (found[0], None, found[1])


def _scaled_product(operand: Operand) -> tuple[Operator, float] | None:
    scale, product = _scaled(operand)
    matmul = product.producer
    if matmul is None or matmul.type != "torch.matmul" or len(product.uses) != 1:
        return None
    return matmul, scale


def _scaled(operand: Operand) -> tuple[float, Operand]:
    """Return the numbers by which an operand is multiplied, and what; nothing else reads these."""
    scale = 1.0
    while len(operand.uses) == 1:
        factor, factors = product_of(term_of(operand, 1))
        if len(factors) != 1 or not isinstance(factors[0], Operand) or factors[0] is operand:
            break
        scale, operand = scale * factor, factors[0]
    return scale, operand


# -- heads ----------------------------------------------------------------------------------------


class _Stacked:
    """The rows of matrices one below the other, read from each when they are asked for."""

    def __init__(self, parts: list[Attribute]) -> None:
        self._parts = parts

    def __call__(self, start: int, stop: int) -> np.ndarray:
        found, first = [], 0
        for part in self._parts:
            low, high = max(start - first, 0), min(stop - first, part.shape[0])
            if low < high:
                found.append(np.ascontiguousarray(part.rows(low, high), np.float32))
            first += part.shape[0]
        joined = found[0] if len(found) == 1 else np.concatenate(found)
        return joined.reshape(-1).view(np.uint8)


def restore_heads(graph: Graph, op: Operator) -> None:
    """Let attention between linear layers be one layer: the last of these becomes it."""
    if op.type != "nn.Linear" or not op.params["bias"]:
        return
    attention = _merged_heads(op.inputs[0])
    if attention is None or len(attention.outputs[0].uses) != 1:
        return
    sides = [found for found in map(_head_of, attention.inputs[:3]) if found is not None]
    if len(sides) < 3:
        return
    layers, heads = [layer for layer, _ in sides], sides[0][1]
    e, width = layers[0].params["out_features"], (attention.inputs[0].shape or (None,))[-1]
    sources = [layer.inputs[0] for layer in layers]
    scale = attention.params.get("scale")
    fits = (
        all(n == heads for _, n in sides)
        and all(layer.params["out_features"] == e for layer in layers)
        and all(layer.params["in_features"] == e for layer in layers)
        and op.params["in_features"] == op.params["out_features"] == e
        and all(source is sources[0] for source in sources)
        and len(sources[0].shape or ()) == 3
        and isinstance(width, int)
        and heads * width == e
        and (scale is None or math.isclose(scale, width**-0.5, rel_tol=1e-5))
    )
    mask = attention.inputs[3] if len(attention.inputs) > 3 else None
    if not fits or mask is not None:
        return
    biases = [
        layer.attributes["bias"].float32() if layer.params["bias"] else np.zeros(e, np.float32)
        for layer in layers
    ]
    weights = [layer.attributes["weight"] for layer in layers]
    if any(weight.dtype != "f32" for weight in weights):
        return
    op.attributes = {
        "in_proj_weight": Attribute((3 * e, e), "f32", _Stacked(weights)),
        "in_proj_bias": Attribute.from_array(np.concatenate(biases)),
        "out_proj.weight": op.attributes["weight"],
        "out_proj.bias": op.attributes["bias"],
    }
    op.type = "nn.MultiheadAttention"
    op.params = {
        "add_bias_kv": False, "add_zero_attn": False, "batch_first": True, "bias": True,
        "embed_dim": e, "kdim": e, "num_heads": heads, "vdim": e,
    }  # fmt: skip
    graph.set_inputs(op, [sources[0]])


def _merged_heads(operand: Operand) -> Operator | None:
    """Return the attention of which an operand has the heads side by side."""
    merge = operand.producer
    if merge is None or merge.type != "Tensor.reshape" or len(operand.shape or ()) != 3:
        return None
    swap = merge.inputs[0].producer
    if swap is None or swap.type != "Tensor.permute" or swap.params["dims"] != (0, 2, 1, 3):
        return None
    attention = swap.inputs[0].producer
    before, after = swap.outputs[0].shape, operand.shape
    if attention is None or attention.type != ATTENTION or before is None or after is None:
        return None
    if not isinstance(before[2], int) or not isinstance(before[3], int):
        return None
    return attention if after[2] == before[2] * before[3] else None


def _head_of(operand: Operand) -> tuple[Operator, int] | None:
    """Return the linear layer whose features an operand has as heads, and their number."""
    swap = operand.producer
    if swap is None or swap.type != "Tensor.permute" or swap.params["dims"] != (0, 2, 1, 3):
        return None
    cut = swap.inputs[0].producer
    if cut is None or cut.type != "Tensor.reshape":
        return None
    linear, heads = cut.inputs[0].producer, cut.outputs[0].shape
    if linear is None or linear.type != "nn.Linear" or heads is None or len(heads) != 4:
        return None
    before = cut.inputs[0].shape
    if before is None or len(before) != 3 or before[1] != heads[1]:
        return None
    if not isinstance(heads[2], int) or not isinstance(heads[3], int):
        return None
    return (linear, heads[2]) if heads[2] * heads[3] == before[2] else None


# -- heads of a packed layer ----------------------------------------------------------------------

MOVES = frozenset({
    "Tensor.permute", "Tensor.reshape", "Tensor.select", "torch.squeeze", "torch.transpose",
    "torch.unsqueeze",
})  # fmt: skip
MAX_MOVES = 12
MAX_MOVED = 1 << 22  # elements that are followed


def restore_packed_heads(graph: Graph, op: Operator) -> None:
    """Let attention whose queries, keys and values are one linear layer be one layer.

    What the operators between the layers do to the order of elements is computed with numbers
    instead of elements: if query (n, h, m, d) is element h * size + d of the row of (n, m), keys
    and values follow in the same row, and the rows of the last layer have the heads side by side,
    then this is torch's layer, with the batch or the length as the first axis.
    """
    if op.type != "nn.Linear":
        return
    joined = _followed(op.inputs[0])
    attention = None if joined is None else joined[0].producer
    if joined is None or attention is None or attention.type != ATTENTION:
        return
    if len(attention.inputs) != 3 or len(attention.outputs[0].uses) != 1:
        return
    if attention.params.get("is_causal") or attention.params.get("enable_gqa"):
        return
    parts = [_followed(operand) for operand in attention.inputs]
    packed = parts[0][0].producer if parts[0] is not None else None
    shape = attention.outputs[0].shape
    if packed is None or packed.type != "nn.Linear" or shape is None or len(shape) != 4:
        return
    if any(part is None or part[0] is not packed.outputs[0] for part in parts):
        return
    n, h, m, d = (int(extent or 0) for extent in shape)
    e, scale = h * d, attention.params.get("scale")
    fits = (
        packed.params["in_features"] == e
        and packed.params["out_features"] == 3 * e
        and op.params["in_features"] == op.params["out_features"] == e
        and packed.attributes["weight"].dtype == op.attributes["weight"].dtype == "f32"
        and (scale is None or math.isclose(scale, d**-0.5, rel_tol=1e-5))
    )
    end = _with_three_axes(op)
    if not fits or end is None:
        return
    batch, head, length, feature = np.ix_(*map(np.arange, (n, h, m, d)))
    for is_batch_first in (True, False):
        row = batch * m + length if is_batch_first else length * n + batch
        rows = (n, m, e) if is_batch_first else (m, n, e)
        if packed.inputs[0].shape != rows or end.outputs[0].shape != rows:
            continue
        wanted = [row * 3 * e + part * e + head * d + feature for part in range(3)]
        found = [part[1] for part in parts if part is not None]
        if not all(map(np.array_equal, found, wanted)):
            continue
        after = np.empty(n * m * e, np.int64)
        after[row * e + head * d + feature] = np.arange(n * m * e).reshape(n, h, m, d)
        if np.array_equal(joined[1].reshape(-1), after):
            _become_packed(graph, end, op, packed, h, is_batch_first)
            return


def _followed(operand: Operand) -> tuple[Operand, np.ndarray] | None:
    """Return the tensor whose elements an operand has in another order, and their numbers."""
    moves: list[Operator] = []
    source = operand
    while source.producer is not None and source.producer.type in MOVES:
        moves.append(source.producer)
        source = source.producer.inputs[0]
    shapes = [source.shape, *(move.outputs[0].shape for move in moves)]
    if len(moves) > MAX_MOVES or any(shape is None or None in shape for shape in shapes):
        return None
    extents = [int(n or 0) for n in source.shape or ()]
    if math.prod(extents) > MAX_MOVED:
        return None
    numbers = np.arange(math.prod(extents)).reshape(extents)
    for move in reversed(moves):
        params = move.params
        if move.type == "Tensor.permute":
            numbers = numbers.transpose(params["dims"])
        elif move.type == "torch.transpose":
            numbers = numbers.swapaxes(params["dim0"], params["dim1"])
        elif move.type == "Tensor.select":
            if len(move.inputs) > 1:
                return None
            numbers = numbers.take(params["index"], params["dim"])
        else:
            numbers = numbers.reshape([int(n or 0) for n in move.outputs[0].shape or ()])
    return source, numbers


def _with_three_axes(op: Operator) -> Operator | None:
    """Return a layer, or the reshape to three axes that alone reads its rows."""
    result = op.outputs[0]
    if len(result.shape or ()) == 3:
        return op
    if len(result.shape or ()) != 2 or len(result.uses) != 1:
        return None
    end = result.uses[0].operator
    is_reshape = end.type == "Tensor.reshape" and len(end.outputs[0].shape or ()) == 3
    return end if is_reshape else None


def _become_packed(
    graph: Graph, end: Operator, op: Operator, packed: Operator, heads: int, is_batch_first: bool
) -> None:
    e, source = op.params["in_features"], packed.inputs[0]
    before, uses = source.producer, end.outputs[0].uses
    if not is_batch_first and before is not None and len(uses) == 1:
        # The swaps around a layer that has the length first are those of one that does not.
        after = uses[0].operator
        if all(
            m.type == "Tensor.permute" and m.params["dims"] == (1, 0, 2) for m in (before, after)
        ):
            end, source, is_batch_first = after, before.inputs[0], True

    def bias(layer: Operator, size: int) -> Attribute:
        found = layer.attributes.get("bias")
        return Attribute.from_array(np.zeros(size, np.float32)) if found is None else found

    end.attributes = {
        "in_proj_weight": packed.attributes["weight"], "in_proj_bias": bias(packed, 3 * e),
        "out_proj.weight": op.attributes["weight"], "out_proj.bias": bias(op, e),
    }  # fmt: skip
    end.type = "nn.MultiheadAttention"
    end.params = {
        "add_bias_kv": False, "add_zero_attn": False, "batch_first": is_batch_first, "bias": True,
        "embed_dim": e, "kdim": e, "num_heads": heads, "vdim": e,
    }  # fmt: skip
    graph.set_inputs(end, [source])
