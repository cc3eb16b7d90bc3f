"""Split a transformer encoder layer, which is one operator in TorchScript, into its parts.

::

    aten::_transformer_encoder_layer_fwd e 20 1 x ... y

    nn.MultiheadAttention e_attention 1 1 x a          norm_first: reads the normalised x
    pnnx.Expression e_sum1 2 1 x a b expr=add(@0,@1)
    nn.LayerNorm e_norm1 1 1 b c                       norm_first: before each half
    nn.Linear e_up 1 1 c d
    F.relu e_activation 1 1 d f
    nn.Linear e_down 1 1 f g
    pnnx.Expression e_sum2 2 1 c g h expr=add(@0,@1)
    nn.LayerNorm e_norm2 1 1 h y

What proves each change:

- PyTorch's schema of the operator gives each of its 20 inputs a meaning by its position.  A layer
  with parameters or with names of inputs, and one with computed weights, is not split; its record
  refuses it.
- `mask_type` tells masks of pairs of queries and keys (0), of the keys of each sequence (1), and
  of all of these per head (2) apart, also if their shapes are equal.  The record refuses a mask
  that does not have the shape of its type, and one without a type.
- Whatever its type, a mask hides where it is not 0: the operator in PyTorch converts it to bool.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from kuiper.expression import built_in
from kuiper.ir import Attribute, Graph, Operand, Operator
from kuiper.ir.view import TensorSpec
from kuiper.passes.optimize.match import arguments_of

__all__ = ["split_encoder_layer"]

LAYER = "aten::_transformer_encoder_layer_fwd"

# The input slot of each weight, by the operator that takes it.
WEIGHTS = {
    "attention": {
        "in_proj_weight": 3,
        "in_proj_bias": 4,
        "out_proj.weight": 5,
        "out_proj.bias": 6,
    },
    "norm1": {"weight": 10, "bias": 11},
    "norm2": {"weight": 12, "bias": 13},
    "up": {"weight": 14, "bias": 15},
    "down": {"weight": 16, "bias": 17},
}
MASK = 18


def split_encoder_layer(graph: Graph, specs: dict[Operand, Any], masked: bool = True) -> None:
    """Split every encoder layer whose weights are constants.

    Parameters
    ----------
    graph : Graph
    specs : dict of Operand to (TensorSpec or StaticValue)
    masked : bool
        Also layers with a mask, whose parts depend on the batch.
    """
    for op in graph.find(LAYER):
        if not op.outputs[0].uses:
            continue  # dead; removed later
        if op.params or any(op.input_keys):
            continue  # the positions of its weights are unknown
        weights = {
            part: {name: _constant(op.inputs[slot]) for name, slot in slots.items()}
            for part, slots in WEIGHTS.items()
        }
        if all(weight for part in weights.values() for weight in part.values()):
            layer = _Layer(graph, specs, op, weights)
            if masked or layer.a.mask is None:
                layer.split()


def _constant(operand: Operand) -> Attribute | None:
    producer = operand.producer
    if producer is None or producer.type != "pnnx.Attribute":
        return None
    return producer.attributes["data"]


class _Layer:
    """Builds the operators of one layer."""

    def __init__(
        self, graph: Graph, specs: dict[Operand, Any], op: Operator, weights: dict[Any, Any]
    ) -> None:
        self.graph, self.specs, self.op, self.weights = graph, specs, op, weights
        self.a = arguments_of(op, specs)
        self.shape = self.a.src.shape

    def split(self) -> None:
        op, a = self.op, self.a
        x, mask, result = op.inputs[0], op.inputs[MASK : MASK + 1], op.outputs[0]
        self.graph.set_outputs(op, [])
        self.graph.remove_operator(op)
        hidden = self.hidden(mask[0]) if mask and a.mask is not None else None
        if a.norm_first:
            y = self.sum(x, self.attend(self.norm(x, "norm1"), hidden), "sum1")
            self.sum(y, self.feed(self.norm(y, "norm2")), "sum2", result)
        else:
            y = self.norm(self.sum(x, self.attend(x, hidden), "sum1"), "norm1")
            self.norm(self.sum(y, self.feed(y), "sum2"), "norm2", result)

    def attend(self, x: Operand, hidden: Operand | None) -> Operand:
        inputs = [x] if hidden is None else [x, hidden]
        width = self.a.embed_dim
        return self.add(
            "nn.MultiheadAttention",
            "attention",
            inputs,
            self.shape,
            params={
                "embed_dim": width,
                "num_heads": self.a.num_heads,
                "kdim": width,
                "vdim": width,
                "bias": True,
                "batch_first": True,
            },
            attributes=self.weights["attention"],
            keys=[None, "attn_mask"][: len(inputs)],
        )

    def hidden(self, mask: Operand) -> Operand:
        """Return a mask per head, true where a key is hidden."""
        n, length, _ = self.shape
        heads = self.a.num_heads
        given = self.specs[mask].shape
        if len(given) == 4 and given[0] != n:
            # Exported with another batch; the record has checked that all sequences share a mask.
            first = np.asarray(self.specs[mask].constant, np.float32)[:1]
            given = first.shape
            data = {"data": Attribute.from_array(np.ascontiguousarray(first))}
            mask = self.add("pnnx.Attribute", "first_mask", [], given, attributes=data)
        one_for_each = self.add(
            "torch.ne", "hidden", [mask], given, params={"other": 0}, keys=["input"], dtype="bool"
        )
        # A key mask per sequence, one attention mask for all, or one per head of each sequence.
        fit = {2: (n, 1, 1, length) if self.a.mask_type == 1 else (1, 1, length, length)}
        wide = fit.get(len(given), given)
        for type, name, shape, key in (
            ("Tensor.reshape", "mask4", wide, "shape"),
            ("Tensor.expand", "mask_of_heads", (n, heads, length, length), "sizes"),
            ("Tensor.reshape", "mask", (n * heads, length, length), "shape"),
        ):
            one_for_each = self.add(
                type, name, [one_for_each], shape, params={key: shape}, keys=["input"], dtype="bool"
            )
        return one_for_each

    def norm(self, x: Operand, part: str, result: Operand | None = None) -> Operand:
        params = {
            "normalized_shape": (self.a.embed_dim,),
            "eps": self.a.eps,
            "elementwise_affine": True,
        }
        return self.add(
            "nn.LayerNorm",
            part,
            [x],
            self.shape,
            params=params,
            attributes=self.weights[part],
            result=result,
        )

    def feed(self, x: Operand) -> Operand:
        wide = self.weights["up"]["bias"].shape[0]
        inner = (*self.shape[:-1], wide)
        y = self.linear(x, "up", self.a.embed_dim, inner)
        kind = "F.gelu" if self.a.use_gelu else "F.relu"
        y = self.add(kind, "activation", [y], inner, keys=["input"])
        return self.linear(y, "down", wide, self.shape)

    def linear(self, x: Operand, part: str, width: int, shape: Sequence[int]) -> Operand:
        return self.add(
            "nn.Linear",
            part,
            [x],
            shape,
            params={"in_features": width, "out_features": shape[-1], "bias": True},
            attributes=self.weights[part],
        )

    def sum(self, x: Operand, y: Operand, part: str, result: Operand | None = None) -> Operand:
        params = {"expr": built_in("add(@0,@1)")}
        return self.add("pnnx.Expression", part, [x, y], self.shape, params=params, result=result)

    def add(
        self,
        type: str,
        part: str,
        inputs: Sequence[Operand],
        shape: Sequence[int],
        params: Mapping[str, Any] | None = None,
        attributes: Mapping[str, Attribute] | None = None,
        keys: Sequence[str | None] | None = None,
        dtype: str = "float32",
        result: Operand | None = None,
    ) -> Operand:
        """Add an operator of the layer and return its output."""
        name = self.graph.unique_name(f"{self.op.name}_{part}")
        if result is None:
            result = self.graph.add_operand(name)
            self.specs[result] = TensorSpec(shape, dtype)
        self.graph.add_operator(
            type, name, inputs, [result], params=params, attributes=attributes, input_keys=keys,
            location=self.op.location,
        )  # fmt: skip
        return result
