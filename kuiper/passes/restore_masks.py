"""A mask of keys gets back the name that the export gave away.

pnnx writes the `key_padding_mask` of a module as its `attn_mask`, which has another shape: the one
is (n, keys), the other (queries, keys).  Which it is, the annotated shapes tell, unless there were
as many sequences as queries in the trace::

    nn.MultiheadAttention a 2 1 x m y $attn_mask=m batch_first=True #x=(2,7,16)f32 #m=(2,7)f32
                                ->   nn.MultiheadAttention a 2 1 x m y $key_padding_mask=m
"""

from __future__ import annotations

from kuiper.ir import Graph, Operator, Shape

__all__ = ["restore_masks"]


def restore_masks(graph: Graph) -> None:
    """Name the masks of keys; needs annotations only."""
    for op in graph.find("nn.MultiheadAttention"):
        if list(op.input_keys).count("attn_mask") != 1:
            continue
        slot = op.input_keys.index("attn_mask")
        named, others = op.inputs[slot], [*op.inputs[:slot], *op.inputs[slot + 1 :]]
        # Some masks stand first, and the name at the last of the others.
        for given, mask in ((others, named), ([*others[1:], named], op.inputs[0])):
            if _masks_keys(op, [operand.shape for operand in given], mask.shape):
                keys = [None] * len(given)
                graph.set_inputs(op, [*given, mask], [*keys, "key_padding_mask"])
                break


def _masks_keys(op: Operator, given: list[Shape | None], mask: Shape | None) -> bool:
    """Tell whether what is called `attn_mask` can be a mask of keys alone."""
    if not given or mask is None or len(mask) != 2:
        return False
    query, key = (_lengths(op, shape) for shape in (given[0], given[min(len(given) - 1, 1)]))
    if query is None or key is None or None in (*mask, *query, *key):
        return False
    return mask == (query[0], key[1]) != (query[1], key[1])


def _lengths(op: Operator, shape: Shape | None) -> tuple[int | None, ...] | None:
    """Return how many sequences there are, and how long they are."""
    if shape is None or len(shape) != 3:
        return None
    return tuple(shape[:2]) if op.params.get("batch_first") else (shape[1], shape[0])
