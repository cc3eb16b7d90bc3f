"""Restore the names and the meaning of attention masks.

pnnx writes the `key_padding_mask` of a module, of shape (n, keys), as its `attn_mask`, of shape
(queries, keys).  The annotated shapes tell them apart::

    nn.MultiheadAttention a 2 1 x m y $attn_mask=m batch_first=True #x=(2,7,16)f32 #m=(2,7)f32
                                ->   nn.MultiheadAttention a 2 1 x m y $key_padding_mask=m

If pnnx recognizes an attention that a model spells out, it prepares the mask.  The first of these
operators has the keyword of the mask in pnnx's pattern.  A bool mask keeps its meaning, even if
the module has the opposite one::

    Tensor.reshape r 1 1 m n shape=(7,7) $attn_mask=m #m=(1,1,7,7)bool
                                ->   torch.logical_not r_not 1 1 m o
                                     Tensor.reshape r 1 1 o n shape=(7,7)

pnnx also reshapes a mask of each sequence or head to (queries, keys), which fits only if there is
one of both.  Attention takes such a mask as it is::

    Tensor.reshape r 1 1 m n shape=(7,7) $attn_mask=m #m=(2,1,7,7)f32
    nn.MultiheadAttention a 2 1 x n y $attn_mask=n
                                ->   nn.MultiheadAttention a 2 1 x m y $attn_mask=m

What proves each change:

- A bool mask is inverted if the keyword is `attn_mask`.  A single pattern of pnnx reshapes an
  operand of this name: that of ``F.scaled_dot_product_attention``, where True means that a query
  attends to a key, and it has no condition on the dtype.  The patterns with a bool `mask` are those
  of ``masked_fill`` and ``where``, where True hides a key as it does in the module, so these masks
  are right as they are; all others require float32.
- A reshape of this name from rank 4 is the pattern's, whose mask broadcasts to (n, heads, queries,
  keys), or from rank 3 to (heads, queries, keys).
- A mask is one of keys if its shape is (n, keys), which PyTorch refuses as an `attn_mask`.

Refused are a reshaped `attn_mask` of unknown dtype, an inverted mask that another operator reads
too, and a computed mask for as many sequences as queries, which has the shape of either mask.  A
constant of that shape, and the result of a recognized pattern, is an `attn_mask`.
"""

from __future__ import annotations

from kuiper.errors import OperatorError
from kuiper.ir import Graph, Operand, Operator
from kuiper.ir.attribute import Shape

__all__ = ["restore_masks"]

_ATTENTION = ("nn.MultiheadAttention", "nn.quantized.dynamic.MultiheadAttention")


def restore_masks(graph: Graph) -> None:
    """Restore the names and the meaning of masks; only annotations are needed.

    Raises
    ------
    OperatorError
        If the file allows two readings of a mask.
    """
    for op in graph:
        if op.type not in _ATTENTION or list(op.input_keys).count("attn_mask") != 1:
            continue
        slot = op.input_keys.index("attn_mask")
        named, others = op.inputs[slot], [*op.inputs[:slot], *op.inputs[slot + 1 :]]
        # Some files have the mask first, and its keyword at the last of the other inputs.
        for given, mask in ((others, named), ([*others[1:], named], op.inputs[0])):
            if _masks_keys(op, given, mask):
                keys = [None] * len(given)
                graph.set_inputs(op, [*given, mask], [*keys, "key_padding_mask"])
                break
    for op in graph.find("Tensor.reshape"):
        if op.input_keys == ("attn_mask",) and _is_read_by_attention(op):
            _restore_meaning(graph, op)


def _is_read_by_attention(op: Operator) -> bool:
    return any(reader.type in _ATTENTION for reader in op.outputs[0].consumers)


def _restore_meaning(graph: Graph, op: Operator) -> None:
    """Restore the meaning of a mask that pnnx reshaped for an attention it recognized."""
    mask, result = op.inputs[0], op.outputs[0]
    dtype = mask.dtype or result.dtype
    if dtype is None:
        raise OperatorError(
            f"{op.label}: the file does not say whether the mask '{mask.name}' is bool, and pnnx "
            "changes the meaning of a bool mask here; export again with 'inputshape=', which adds "
            "the dtypes"
        )
    if dtype == "bool":
        others = [reader for reader in result.consumers if reader.type not in _ATTENTION]
        if others:
            raise OperatorError(
                f"{op.label}: {others[0].label} reads the bool mask as well as {_ATTENTION[0]}, "
                "for which True has the opposite meaning; export the model with a float mask"
            )
        name = graph.unique_name(f"{op.name}_not")
        inverse = graph.add_operand(name, mask.shape, mask.dtype)
        graph.add_operator("torch.logical_not", name, [mask], [inverse], location=op.location)
        mask = inverse
    graph.set_inputs(op, [mask], [None])
    for reader in result.consumers:
        if reader.type in _ATTENTION and _broadcasts(reader, mask, op.params.get("shape")):
            inputs = [mask if operand is result else operand for operand in reader.inputs]
            graph.set_inputs(reader, inputs, reader.input_keys)
    if not result.uses:
        graph.remove_operator(op)


def _broadcasts(op: Operator, mask: Operand, target: object) -> bool:
    """Tell whether an attention takes a mask as it is, although pnnx reshapes it to `target`."""
    shape = mask.shape
    if shape is None or not isinstance(target, tuple) or len(target) != 2:
        return False
    if len(shape) == 3:
        return shape[0] == op.params.get("num_heads") and shape[1:] == target
    return len(shape) == 4 and shape[3] == target[1]


def _masks_keys(op: Operator, given: list[Operand], operand: Operand) -> bool:
    """Tell whether the input called `attn_mask` must be a key padding mask."""
    mask, shapes = operand.shape, [one.shape for one in given]
    if not given or mask is None or len(mask) != 2:
        return False
    query, key = (_lengths(op, shape) for shape in (shapes[0], shapes[min(len(given) - 1, 1)]))
    if query is None or key is None or None in (*mask, *query, *key):
        return False
    if mask != (query[0], key[1]):
        return False
    if query[0] != query[1]:
        return True
    if query[0] != 1 and not _is_attention_mask(operand):
        raise OperatorError(
            f"{op.label}: its mask of shape {mask} may hide pairs of queries and keys "
            f"(attn_mask) or keys of sequences (key_padding_mask), and pnnx writes both as "
            f"attn_mask; export with another batch than {query[0]}, which is the number of queries"
        )
    return False


def _is_attention_mask(mask: Operand) -> bool:
    """Tell whether a mask is a constant, or is prepared for an attention that pnnx recognized."""
    producer = mask.producer
    return producer is not None and (
        producer.type == "pnnx.Attribute"
        or producer.name.startswith("attn_ht")
        or producer.input_keys in (("attn_mask",), ("mask",))
    )


def _lengths(op: Operator, shape: Shape | None) -> tuple[int | None, ...] | None:
    """Return the number of sequences and their length."""
    if shape is None or len(shape) != 3:
        return None
    return tuple(shape[:2]) if op.params.get("batch_first") else (shape[1], shape[0])
