"""Merge convolutions of one tensor whose results are added into one with the summed filters.

::

    nn.Conv2d       a 1 1 x p  3x3           nn.Conv2d a 1 1 x y  3x3
    nn.Conv2d       b 1 1 x q  1x1     ->
    nn.BatchNorm2d  c 1 1 x r
    pnnx.Expression s 3 1 p q r y expr=add(add(@0,@1),@2)

A smaller window is a larger one padded with zeros, and a batch normalisation is a depthwise 1x1
window.  RepVGG, MobileOne, FastViT and RepViT are trained in this form; the merge is called
re-parameterisation: Ding et al., RepVGG: Making VGG-style ConvNets Great Again (2021).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from kuiper.expression import Call, Node, Ref, compact, parse, stored
from kuiper.ir import Attribute, Graph, Operand, Operator
from kuiper.ops.product.geometry import Geometry
from kuiper.passes.optimize.eliminate import eliminate_dead
from kuiper.passes.optimize.match import (
    arguments_of,
    is_float32,
    only_reader,
    same_shape,
    take_over_output,
)

__all__ = ["fuse_branches"]


class Branch(NamedTuple):
    """A summand that is a convolution, by its index among the inputs of the sum.

    `corner` is the offset of its window, in taps.
    """

    number: int
    convolution: Operator
    groups: int
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    corner: tuple[int, int]
    window: tuple[int, ...]

    @property
    def extents(self) -> list[tuple[int, int]]:
        """The range of taps, [first, end), along h and w."""
        return [(c, c + n) for c, n in zip(self.corner, self.window, strict=True)]

    def holds(self, other: Branch) -> bool:
        """Tell whether the other window lies inside this one."""
        return all(
            low <= first and last <= high
            for (low, high), (first, last) in zip(self.extents, other.extents, strict=True)
        )

    def offset_of(self, other: Branch) -> tuple[int, int]:
        """Return the offset of the other window in this one."""
        return other.corner[0] - self.corner[0], other.corner[1] - self.corner[1]


def fuse_branches(graph: Graph, specs: dict[Operand, Any]) -> None:
    """Merge convolutions of one tensor if only their sum is read."""
    joined = False
    for op in graph.find("pnnx.Expression"):
        if not op.inputs or not all(is_float32(o, specs) for o in (*op.inputs, *op.outputs)):
            continue
        if not op.outputs[0].uses:  # dead since an earlier merge
            continue
        expr = op.params["expr"]
        tree = expr if isinstance(expr, Node) else parse(expr, len(op.inputs))
        summands = _summands(tree)
        if len(summands) > 1:
            merged = _merge(graph, specs, op, summands)
            if merged:
                _shorten(graph, op, summands, merged)
                joined = True
    if joined:
        # Inputs of a sum that its expression does not reference may be dead now.
        eliminate_dead(graph, specs)


def _summands(tree: Node) -> list[Node]:
    """Return the summands of the additions at the root of an expression, in written order."""
    found, stack = [], [tree]
    while stack:
        node = stack.pop()
        if isinstance(node, Call) and node.name == "add":
            stack.extend(reversed(node.children))
        else:
            found.append(node)
    return found


def _merge(
    graph: Graph, specs: dict[Operand, Any], op: Operator, summands: Sequence[Node]
) -> set[int]:
    """Sum filters; return the indices of the inputs that were merged into others."""
    producers = [op.inputs[s.index].required_producer for s in summands if isinstance(s, Ref)]
    read = [producer.inputs[0] for producer in producers if producer.inputs]
    if len(set(read)) == len(read):
        return set()  # no two read the same tensor, as in almost all networks
    uses = Counter(n.index for s in summands for n in s.preorder() if isinstance(n, Ref))
    sources: dict[Operand, tuple[list[Branch], list[int]]] = {}
    for number in (s.index for s in summands if isinstance(s, Ref)):
        operand = op.inputs[number]
        producer = operand.required_producer
        if (
            uses[number] > 1
            or only_reader(operand) is not op
            or not same_shape(operand, op.outputs[0], specs)
        ):
            continue
        if producer.type == "nn.BatchNorm2d" and len(producer.inputs) == 1:
            sources.setdefault(producer.inputs[0], ([], []))[1].append(number)
        elif branch := _branch(number, producer, specs):
            sources.setdefault(producer.inputs[0], ([], []))[0].append(branch)
    merged: set[int] = set()
    for x, (branches, norms) in sources.items():
        while branches:
            base = max(branches, key=lambda branch: math.prod(branch.window))
            inside = [
                branch
                for branch in branches
                if branch[2:5] == base[2:5] and base.holds(branch) and branch is not base
            ]
            branches = [branch for branch in branches if branch not in (base, *inside)]
            scales = []
            if base.stride == (1, 1) and same_shape(x, op.outputs[0], specs):
                pixel = base._replace(corner=(0, 0), window=(1, 1))
                if base.holds(pixel):
                    scales, norms = [op.inputs[number].required_producer for number in norms], []
            if inside or scales:
                _sum_filters(graph, base, inside, scales)
                merged.update(branch.number for branch in inside)
                merged.update(op.inputs.index(scale.outputs[0]) for scale in scales)
    return merged


def _branch(number: int, producer: Operator, specs: dict[Operand, Any]) -> Branch | None:
    if (
        producer.type != "nn.Conv2d"
        or len(producer.inputs) != 1
        or "weight" not in producer.attributes
        or producer.post_ops
        or producer.params.get("padding_mode", "zeros") != "zeros"
    ):
        return None
    convolution: Any = arguments_of(producer, specs)
    geometry = Geometry.of(convolution)
    before, dilation = geometry.origin, geometry.dilation
    if any(p % d for p, d in zip(before, dilation, strict=True)):
        return None
    corner = (-before[0] // dilation[0], -before[1] // dilation[1])
    groups = producer.params.get("groups", 1)
    return Branch(number, producer, groups, geometry.stride, dilation, corner, geometry.kernel)


def _sum_filters(
    graph: Graph, base: Branch, others: Sequence[Branch], scales: Sequence[Operator]
) -> None:
    conv = base.convolution
    producers = [conv, *(branch.convolution for branch in others), *scales]
    sources = [attribute for producer in producers for attribute in producer.attributes.values()]
    # With "same" padding, the offsets of windows depend on the image size.
    corners = [branch.corner for branch in (base, *others)]
    key = ("fuse_branches", conv.name, *corners, *map(id, sources))
    if key not in graph.derived:
        # Keep the sources alive, so that their ids are not reused.
        graph.derived[key] = (_summed(base, others, scales), sources)
    conv.attributes = dict(graph.derived[key][0])
    if "bias" in conv.params:
        conv.params = {**conv.params, "bias": True}


def _summed(
    base: Branch, others: Sequence[Branch], scales: Sequence[Operator]
) -> dict[str, Attribute]:
    weight = base.convolution.attributes["weight"]
    bias = np.zeros(weight.shape[0])
    for branch in (base, *others):
        if "bias" in branch.convolution.attributes:
            bias += branch.convolution.attributes["bias"].numpy()
    scale = np.zeros(weight.shape[0])
    if scales:
        from kuiper.passes.optimize.fold_batch_norm import affine

        for factors, shift in map(affine, scales):
            scale += factors
            bias += shift
    parts = [(b.convolution.attributes["weight"], base.offset_of(b)) for b in (base, *others)]
    middle = (-base.corner[0], -base.corner[1])
    # Computed during packing, so that it takes no memory before or after.
    rows = partial(_filters, weight.shape, parts, scale if scales else None, middle)
    attributes = dict(base.convolution.attributes)
    attributes["weight"] = Attribute(weight.shape, "f32", rows)
    attributes["bias"] = Attribute.from_array(bias.astype(np.float32))
    return attributes


def _filters(
    shape: tuple[int, ...],
    parts: Iterable[tuple[Attribute, tuple[int, int]]],
    scale: np.ndarray | None,
    middle: tuple[int, int],
    start: int,
    stop: int,
) -> np.ndarray:
    """Return the bytes of filters [start, stop) of the sum, added in float64."""
    total = np.zeros((stop - start, *shape[1:]))
    for weight, (top, left) in parts:
        filters = weight.rows(start, stop)
        height, width = filters.shape[2:]
        total[:, :, top : top + height, left : left + width] += filters
    if scale is not None:
        own = np.arange(start, stop)  # there are as many channels as filters
        total[own - start, own % shape[1], middle[0], middle[1]] += scale[start:stop]
    return total.astype(np.float32).reshape(-1).view(np.uint8)


def _shorten(graph: Graph, op: Operator, summands: Sequence[Node], merged: set[int]) -> None:
    """Remove the merged summands from a sum."""
    producers = [op.inputs[number].required_producer for number in merged]
    left = [s for s in summands if not (isinstance(s, Ref) and s.index in merged)]
    if len(left) == 1 and isinstance(left[0], Ref):
        take_over_output(graph, op.inputs[left[0].index].required_producer, op)
    else:
        tree = left[0]
        for summand in left[1:]:
            tree = Call("add", [tree, summand])
        tree, operands = compact(tree, op.inputs)
        op.params = {"expr": stored(tree)}
        graph.set_inputs(op, operands)
    for producer in producers:
        graph.remove_operator(producer)
