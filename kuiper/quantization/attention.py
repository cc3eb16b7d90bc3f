"""Split multi-head attention, so that its linear layers can be products of bytes.

::

    nn.MultiheadAttention a  1 1 x y  embed_dim=64 num_heads=4 batch_first=True
    ->
    nn.Linear                       a.in_proj   1 1 x p
    torch.chunk                     a.split     1 3 p q k v  chunks=3 dim=-1
    Tensor.unflatten, Tensor.permute            each to (n, 4, length, 16)
    F.scaled_dot_product_attention  a.attention 3 1 q k v c
    Tensor.permute, torch.flatten               to (n, length, 64)
    nn.Linear                       a.out_proj  1 1 c y

The operators between the layers know no length and no batch, so that the model keeps running with
any.  They compute what the module's record computes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from kuiper.ir import Attribute, Graph, Operand, Operator
from kuiper.ir.view import TensorSpec
from kuiper.passes.optimize.match import arguments_of
from kuiper.quantization.selection import MIN_ELEMENTS

__all__ = ["split_attention"]

SEPARATE = ("q_proj_weight", "k_proj_weight", "v_proj_weight")


def split_attention(graph: Graph, specs: dict[Operand, Any]) -> None:
    """Split every multi-head attention whose layers are large, in place."""
    for op in list(graph.find("nn.MultiheadAttention")):
        if _is_plain(op, specs):
            _Attention(graph, specs, op).split()


def _is_plain(op: Operator, specs: dict[Operand, Any]) -> bool:
    """Tell whether the linear layers of an operator are all that it has beside attention."""
    weights = [op.attributes.get(name) for name in ("in_proj_weight", *SEPARATE)]
    output = op.attributes.get("out_proj.weight")
    if output is None or output.size < MIN_ELEMENTS or not any(weights) or len(op.outputs) > 1:
        return False
    if any(name is not None and name not in ("query", "key", "value") for name in op.input_keys):
        return False
    if op.params.get("add_bias_kv") or op.params.get("add_zero_attn") or len(op.inputs) > 3:
        return False
    found = [specs.get(operand) for operand in (*op.inputs, *op.outputs)]
    return all(
        isinstance(spec, TensorSpec) and spec.rank == 3 and spec.dtype == np.float32
        for spec in found
    )


class _Attention:
    """Builds the operators of one attention."""

    def __init__(self, graph: Graph, specs: dict[Operand, Any], op: Operator) -> None:
        self.graph, self.specs, self.op = graph, specs, op
        a = arguments_of(op, specs)
        self.width, self.heads, self.batch_first = a.embed_dim, a.num_heads, a.batch_first

    def split(self) -> None:
        graph, op = self.graph, self.op
        result = op.outputs[0]
        graph.set_outputs(op, [])
        inputs = [*op.inputs, *op.inputs[-1:] * (3 - len(op.inputs))]
        graph.remove_operator(op)
        q, k, v = (self.by_head(rows, word) for rows, word in self.project(inputs))
        n, _, length, _ = self.specs[q].shape
        shape = (n, self.heads, length, self.width // self.heads)
        context = self.add(
            "F.scaled_dot_product_attention", "attention", [q, k, v], [shape],
            keys=["query", "key", "value"],
        )[0]  # fmt: skip
        dims = (0, 2, 1, 3) if self.batch_first else (2, 0, 1, 3)
        context = self.permute(context, dims, "by_row")
        shape = (*self.specs[context].shape[:2], self.width)
        params: dict[str, Any] = {"start_dim": 2, "end_dim": -1}
        rows = self.add("torch.flatten", "joined", [context], [shape], params, keys=["input"])[0]
        attributes = {
            name: op.attributes[f"out_proj.{name}"]
            for name in ("weight", "bias")
            if f"out_proj.{name}" in op.attributes
        }
        self.linear(rows, attributes, "out_proj", result)

    def project(self, inputs: Sequence[Operand]) -> list[tuple[Operand, str]]:
        """Add the layers of query, key and value; consecutive ones of one input are one product."""
        op, width = self.op, self.width
        results: list[tuple[Operand, str]] = []
        while len(results) < 3:
            first = last = len(results)
            if "in_proj_weight" in op.attributes:
                while last < 2 and inputs[last + 1] is inputs[first]:
                    last += 1
            part = slice(first * width, (last + 1) * width)
            attributes = {"weight": self.weight(first, part)}
            if "in_proj_bias" in op.attributes:
                attributes["bias"] = self.rows("in_proj_bias", part)
            words = ["q", "k", "v"][first : last + 1]
            word = "in_proj" if len(words) == 3 else f"{''.join(words)}_proj"
            rows = self.linear(inputs[first], attributes, word)
            parts = [rows]
            if len(words) > 1:
                shape = (*self.specs[rows].shape[:-1], width)
                params = {"chunks": len(words), "dim": -1}
                parts = self.add(
                    "torch.chunk", f"{word}_parts", [rows], [shape] * len(words), params,
                    keys=["input"],
                )  # fmt: skip
            results.extend(zip(parts, words, strict=True))
        return results

    def weight(self, number: int, part: slice) -> Attribute:
        if "in_proj_weight" in self.op.attributes:
            return self.rows("in_proj_weight", part)
        return self.op.attributes[SEPARATE[number]]

    def rows(self, name: str, part: slice) -> Attribute:
        """Return rows of a weight or of a bias."""
        attribute = self.op.attributes[name]
        if part.stop - part.start == attribute.shape[0]:
            return attribute
        return Attribute.from_array(np.ascontiguousarray(attribute.numpy()[part]))

    def by_head(self, rows: Operand, word: str) -> Operand:
        """View rows of features as (n, heads, length, features per head)."""
        sizes = (self.heads, self.width // self.heads)
        shape = (*self.specs[rows].shape[:2], *sizes)
        params = {"dim": 2, "sizes": sizes}
        heads = self.add("Tensor.unflatten", f"{word}_heads", [rows], [shape], params, ["input"])[0]
        return self.permute(heads, (0, 2, 1, 3) if self.batch_first else (1, 2, 0, 3), word)

    def permute(self, x: Operand, dims: tuple[int, ...], word: str) -> Operand:
        shape = tuple(self.specs[x].shape[axis] for axis in dims)
        return self.add("Tensor.permute", word, [x], [shape], {"dims": dims}, ["input"])[0]

    def linear(
        self, x: Operand, attributes: Mapping[str, Attribute], word: str,
        result: Operand | None = None,
    ) -> Operand:  # fmt: skip
        rows, columns = attributes["weight"].shape
        params = {"bias": "bias" in attributes, "in_features": columns, "out_features": rows}
        shape = (*self.specs[x].shape[:-1], rows)
        results = None if result is None else [result]
        return self.add("nn.Linear", word, [x], [shape], params, None, attributes, results)[0]

    def add(
        self, type: str, word: str, inputs: Sequence[Operand], shapes: Sequence[tuple[int, ...]],
        params: Mapping[str, Any] | None = None, keys: Sequence[str] | None = None,
        attributes: Mapping[str, Attribute] | None = None,
        results: Sequence[Operand] | None = None,
    ) -> list[Operand]:  # fmt: skip
        """Add an operator, and operands for its results unless they are given."""
        graph = self.graph
        name = graph.unique_name(f"{self.op.name}.{word}")
        outputs = list(results or ())
        for number, shape in enumerate(() if results else shapes):
            operand = graph.add_operand(graph.unique_name(f"{name}.{number}"), shape, "f32")
            self.specs[operand] = TensorSpec(shape)
            outputs.append(operand)
        graph.add_operator(
            type, name, list(inputs), outputs, params=dict(params or {}),
            attributes=dict(attributes or {}), location=self.op.location,
            input_keys=list(keys) if keys else None,
        )  # fmt: skip
        return outputs
