"""Restore the name of key padding masks.

pnnx writes the `key_padding_mask` of a module, of shape (n, keys), as its `attn_mask`, of shape
(queries, keys).  The annotated shapes tell them apart unless the trace had as many sequences as
queries::

    nn.MultiheadAttention a 2 1 x m y $attn_mask=m batch_first=True #x=(2,7,16)f32 #m=(2,7)f32
                                ->   nn.MultiheadAttention a 2 1 x m y $key_padding_mask=m

If pnnx recognizes an attention that a model spells out, it reshapes the mask, gives the input of
the reshape the mask's keyword, and does not invert a bool mask::

    Tensor.reshape r 1 1 m n shape=(7,7) $attn_mask=m #m=(1,1,7,7)bool
                                ->   torch.logical_not r_not 1 1 m o
                                     Tensor.reshape r 1 1 o n shape=(7,7)
"""

from __future__ import annotations

from kuiper.ir import Graph, Operator
from kuiper.ir.attribute import Shape

__all__ = ["restore_masks"]


def restore_masks(graph: Graph) -> None:
    """Restore the names and the meaning of masks; only annotations are needed."""
    for op in graph.find("Tensor.reshape"):
        if op.input_keys in (("attn_mask",), ("mask",)):
            _restore_reshaped(graph, op)
    for op in graph.find("nn.MultiheadAttention"):
        if list(op.input_keys).count("attn_mask") != 1:
            continue
        slot = op.input_keys.index("attn_mask")
        named, others = op.inputs[slot], [*op.inputs[:slot], *op.inputs[slot + 1 :]]
        # Some files have the mask first, and its keyword at the last of the other inputs.
        for given, mask in ((others, named), ([*others[1:], named], op.inputs[0])):
            if _masks_keys(op, [operand.shape for operand in given], mask.shape):
                keys = [None] * len(given)
                graph.set_inputs(op, [*given, mask], [*keys, "key_padding_mask"])
                break


def _restore_reshaped(graph: Graph, op: Operator) -> None:
    """Restore the meaning of a mask that pnnx reshaped for an attention it recognized."""
    mask = op.inputs[0]
    if mask.dtype == "bool":
        name = graph.unique_name(f"{op.name}_not")
        inverse = graph.add_operand(name, mask.shape, mask.dtype)
        graph.add_operator("torch.logical_not", name, [mask], [inverse], location=op.location)
        mask = inverse
    graph.set_inputs(op, [mask], [None])


def _masks_keys(op: Operator, given: list[Shape | None], mask: Shape | None) -> bool:
    """Tell whether the input called `attn_mask` must be a key padding mask."""
    if not given or mask is None or len(mask) != 2:
        return False
    query, key = (_lengths(op, shape) for shape in (given[0], given[min(len(given) - 1, 1)]))
    if query is None or key is None or None in (*mask, *query, *key):
        return False
    return mask == (query[0], key[1]) != (query[1], key[1])


def _lengths(op: Operator, shape: Shape | None) -> tuple[int | None, ...] | None:
    """Return the number of sequences and their length."""
    if shape is None or len(shape) != 3:
        return None
    return tuple(shape[:2]) if op.params.get("batch_first") else (shape[1], shape[0])
