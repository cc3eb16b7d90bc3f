"""Branches and loops whose course the file determines: If, Loop, Scan.

A branch is translated in place of the node, the body of a loop once per iteration.  The translator
limits the number of nodes that loops write out.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kuiper.onnx.builder import Builder
from kuiper.onnx.registry import op
from kuiper.onnx.values import Known, Ref

__all__: list[str] = []


def _run(b: Builder, branch: Any, inputs: Any = ()) -> list[Any]:
    """Return the outputs of an inner graph, and be at the outer node again."""
    if not hasattr(branch, "run"):
        raise b.error(f"an attribute is {branch!r}, expected a graph")
    node = b._name, b.where, b.opset, b.outputs
    outputs: list[Any] = branch.run(inputs)
    b.enter(*node)
    return outputs


def _decided(b: Builder, condition: Any) -> bool:
    if isinstance(condition, Ref):
        raise b.error("the condition is computed by the model, expected one that the file decides")
    if condition.size != 1:
        raise b.error(f"the condition has {condition.size} elements, expected 1")
    return bool(condition.array.reshape(-1)[0])


@op("If")
def if_(b: Builder, condition: Any, *, then_branch: Any, else_branch: Any) -> Any:
    if isinstance(condition, Known):
        return _run(b, then_branch if _decided(b, condition) else else_branch)
    # Both branches run, which gives the same result if they have the same shapes.
    pairs = list(zip(_run(b, then_branch), _run(b, else_branch), strict=True))
    for one, two in pairs:
        if not _is_alike(one, two):
            raise b.error(
                "the condition is computed by the model, expected one that the file decides, or "
                "branches whose results have equal known shapes"
            )
    return [b.emit("torch.where", condition, one, two) for one, two in pairs]


def _is_alike(one: Any, two: Any) -> bool:
    """Tell whether values are tensors of the same known shape and dtype."""
    if not isinstance(one, Known | Ref) or not isinstance(two, Known | Ref):
        return False
    return (
        one.dtype == two.dtype
        and one.shape == two.shape
        and (one.shape is not None and None not in one.shape)
    )


def _stacked(b: Builder, items: list[Any], axis: int) -> Any:
    """Return values of iterations as one tensor."""
    if not items:
        raise b.error("collects results of no iteration, expected at least one")
    rank = items[0].rank
    axis = b.axis(axis, rank + 1)
    if all(isinstance(item, Known) for item in items) and len({i.shape for i in items}) == 1:
        return Known(np.stack([item.array for item in items], axis), items[0].dtype)
    return b.emit("torch.stack", *items, dim=axis)


@op("Loop")
def loop(b: Builder, trips: Any = None, condition: Any = None, *carried: Any, body: Any) -> Any:
    if isinstance(trips, Ref):
        raise b.error("the trip count is computed by the model, expected one that the file decides")
    limit = None if trips is None else b.numbers(trips)[0]
    is_on = condition is None or _decided(b, condition)
    if limit is None and condition is None:
        raise b.error("has neither a trip count nor a condition, expected one of them")
    values = list(carried)
    collected: list[list[Any]] | None = None
    count = 0
    while is_on and (limit is None or count < limit):
        found = _run(b, body, [Known(np.array(count)), Known(np.array(True)), *values])
        if len(found) < 1 + len(values):
            raise b.error(f"the body has {len(found)} outputs, expected at least {1 + len(values)}")
        is_on = _decided(b, found[0])
        values, results = found[1 : 1 + len(values)], found[1 + len(values) :]
        collected = [[] for _ in results] if collected is None else collected
        for items, result in zip(collected, results, strict=True):
            items.append(result)
        count += 1
    stacked = [
        _stacked(b, items, 0) if b.wants(i + len(values)) else None
        for i, items in enumerate(collected or [[]] * (len(b.outputs) - len(values)))
    ]
    return [*values, *stacked]


def _slice(b: Builder, x: Any, axis: int, index: int) -> Any:
    """Return one element along an axis."""
    if isinstance(x, Known):
        return Known(x.array.take(index, axis), x.dtype)
    return b.emit("Tensor.select", x, dim=axis, index=index)


def _scan(
    b: Builder, inputs: Any, body: Any, num_scan_inputs: int, directions: Any, axes: Any,
    output_directions: Any, output_axes: Any,
) -> list[Any]:  # fmt: skip
    """Return the last states, then the results of all iterations."""
    if not 1 <= num_scan_inputs <= len(inputs):
        raise b.error(
            f"num_scan_inputs is {num_scan_inputs}, expected 1 to {len(inputs)}, the inputs"
        )
    n = len(inputs) - num_scan_inputs
    states, scanned = list(inputs[:n]), inputs[n:]
    along = [b.axis(a, x.rank) for a, x in zip(axes or [0] * len(scanned), scanned, strict=True)]
    lengths = {x.shape[axis] for x, axis in zip(scanned, along, strict=True)}
    length = lengths.pop()
    if lengths or not isinstance(length, int):
        raise b.error("scans inputs of different or open lengths; fix them with shapes={...}")
    back = directions or [0] * len(scanned)
    collected: list[list[Any]] = []
    for step in range(length):
        parts = [
            _slice(b, x, axis, length - 1 - step if back_ else step)
            for x, axis, back_ in zip(scanned, along, back, strict=True)
        ]
        found = _run(b, body, [*states, *parts])
        states, results = found[:n], found[n:]
        collected = collected or [[] for _ in results]
        for items, result in zip(collected, results, strict=True):
            items.append(result)
    if not length:
        raise b.error("scans inputs of no element, expected at least one")
    back, to = output_directions or [0] * len(collected), output_axes or [0] * len(collected)
    return states + [
        _stacked(b, items[::-1] if back_ else items, axis)
        for items, back_, axis in zip(collected, back, to, strict=True)
    ]


@op("Scan", since=9)
def scan(
    b: Builder, *inputs: Any, body: Any, num_scan_inputs: int, scan_input_axes: Any = None,
    scan_input_directions: Any = None, scan_output_axes: Any = None,
    scan_output_directions: Any = None,
) -> Any:  # fmt: skip
    return _scan(
        b, inputs, body, num_scan_inputs, scan_input_directions, scan_input_axes,
        scan_output_directions, scan_output_axes,
    )  # fmt: skip


@op("Scan")
def scan_batch(
    b: Builder, sequence_lens: Any = None, *inputs: Any, body: Any, num_scan_inputs: int,
    directions: Any = None,
) -> Any:  # fmt: skip
    if sequence_lens is not None:
        raise b.error("has lengths of sequences, which kuiper does not support before opset 9")
    batch = inputs[0].shape[0] if inputs else None
    if not isinstance(batch, int) or not batch:
        raise b.error("has an open or empty batch, expected a known one; see shapes={...}")
    each = [
        _scan(
            b, [_slice(b, x, 0, member) for x in inputs], body, num_scan_inputs, directions, None,
            None, None,
        )
        for member in range(batch)
    ]  # fmt: skip
    return [_stacked(b, list(items), 0) for items in zip(*each, strict=True)]
