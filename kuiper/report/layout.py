"""Layered layout of a graph (Sugiyama's method).

1. *Layers*: each operator is below all its producers.
2. *Dummy nodes*: an edge across several layers gets one in each, which leads it around the
   operators between.  The edges of one operator share them as a trunk from which each reader
   branches off (in DenseNet one result has up to fifty readers).
3. *Order*: each layer is sorted by the median index of the neighbours in sweeps down and up; the
   order with the fewest crossings wins.
4. *Positions*: each layer moves as close to its neighbours as the widths allow.  Per layer this is
   least squares with minimum distances, which pool-adjacent-violators solves in linear time.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import median
from typing import Any, NamedTuple

from kuiper.ir import Graph, Operator

__all__ = ["Box", "Edge", "Layout", "arrange", "arrange_graph"]

HEIGHT = 38
LAYER = 74  # between the boxes of two layers is room for the shape of the result
GAP = 18
CHARACTER = 6.7
BOLD = 7.4
SMALL = 5.8
WIDEST = 230
SWEEPS = 8
STRAIGHTNESS = 8.0  # weight of a dummy node's position relative to an operator's


class Box(NamedTuple):
    """A box: centre, extents and layer."""

    x: float
    y: float
    width: float
    height: float
    layer: int


class Edge(NamedTuple):
    """A line through points from one box to another.

    Attributes
    ----------
    source : str
    target : str or None
        None for a section of a trunk, which several readers share.
    points : list of (float, float)
    branch : int
        Index of the branch, counted from the source, at which the line leaves the trunk or the
        section ends.
    """

    source: str
    target: str | None
    points: list[tuple[float, float]]
    branch: int = 0


class Layout(NamedTuple):
    """The positions of all boxes and lines, in pixels.

    Attributes
    ----------
    nodes : dict of str to Box
    edges : list of Edge
    width, height : float
    """

    nodes: dict[str, Box]
    edges: list[Edge]
    width: float
    height: float


def arrange_graph(graph: Graph) -> Layout:
    """Lay out the operators of a graph.

    Parameters
    ----------
    graph : kuiper.ir.Graph

    Returns
    -------
    Layout
        Producers are above their readers.
    """
    order = [op.name for op in graph.topological_order()]
    edges = {
        (op.name, reader.name): None
        for op in graph.operators
        for operand in op.outputs
        for reader in operand.consumers
    }
    widths = {op.name: box_width(heading(op), op.name, shapes_text(op)) for op in graph}
    return arrange(order, list(edges), widths)


def heading(op: Operator) -> str:
    """Return the first line of an operator's box: its type and its post-ops."""
    return " + ".join([op.type, *(post.type.removeprefix("nn.") for post in op.post_ops)])


def shapes_text(op: Operator) -> str:
    """Return the shapes of an operator's results, such as 1×64×56×56; equal ones once."""
    shapes = (operand.shape for operand in op.outputs if operand.shape)
    texts = ("×".join("?" if n is None else str(n) for n in shape) for shape in shapes)
    return ", ".join(dict.fromkeys(texts))


def box_width(first: str, *others: str) -> float:
    """Return the width of a box with a first line in bold."""
    letters = max([BOLD * len(first), *(CHARACTER * len(line) for line in others)])
    return min(WIDEST, max(64.0, 18 + letters))


def arrange(
    order: Sequence[str], edges: Sequence[tuple[str, str]], widths: Mapping[str, float]
) -> Layout:
    """Lay out nodes.

    Parameters
    ----------
    order : sequence of str
        All nodes in topological order.
    edges : sequence of (str, str)
    widths : mapping of str to float

    Returns
    -------
    Layout
    """
    layers = _layers(order, edges)
    # Below, nodes are numbers: the operators first, then the dummy nodes.
    number = {name: i for i, name in enumerate(order)}
    layer_of = [layers[name] for name in order]
    extents = [widths[name] for name in order]
    above: list[list[int]] = [[] for _ in order]
    below: list[list[int]] = [[] for _ in order]
    targets: dict[str, list[str]] = {}
    for source, target in edges:
        targets.setdefault(source, []).append(target)
    trunks = {}
    for source, readers in targets.items():
        trunk = trunks[source] = [number[source]]
        for layer in range(layers[source] + 1, max(layers[reader] for reader in readers)):
            layer_of.append(layer)
            extents.append(4.0)
            above.append([])
            below.append([])
            trunk.append(len(layer_of) - 1)
        leaving = [
            (trunk[layers[reader] - 1 - layers[source]], number[reader]) for reader in readers
        ]
        for a, b in [*pairwise(trunk), *leaving]:
            below[a].append(b)
            above[b].append(a)
    rows: list[list[int]] = [[] for _ in range(max(layer_of, default=-1) + 1)]
    for node in _depth_first(len(order), above, below):
        rows[layer_of[node]].append(node)
    rows = _ordered(rows, above, below)
    centres = _placed(rows, above, below, extents, len(order))
    margin = 24.0
    left = min((c - w / 2 for c, w in zip(centres, extents, strict=True)), default=0) - margin
    right = max((c + w / 2 for c, w in zip(centres, extents, strict=True)), default=0) + margin
    tops = [margin + HEIGHT / 2 + LAYER * layer for layer in layer_of]
    nodes = {
        name: Box(centres[i] - left, tops[i], extents[i], HEIGHT, layer_of[i])
        for name, i in number.items()
    }
    lines = []
    for source, readers in targets.items():
        at = [layers[reader] - 1 - layers[source] for reader in readers]
        begin = 0
        for branch, end in enumerate(sorted(set(at))):
            piece = trunks[source][begin : end + 1]
            ends = [reader for reader, index in zip(readers, at, strict=True) if index == end]
            if len(ends) > 1 or end < max(at):
                # Several lines share the trunk up to here, so it is a separate line.
                if len(piece) > 1:
                    points = _points(piece, len(order), centres, tops, left)
                    lines.append(Edge(source, None, points, branch))
                piece = piece[-1:]
            for reader in ends:
                chain = [*piece, number[reader]]
                points = _points(chain, len(order), centres, tops, left)
                lines.append(Edge(source, reader, points, branch))
            begin = end
    height = 2 * margin + HEIGHT + LAYER * max(0, len(rows) - 1)
    return Layout(nodes, lines, right - left, height)


def _points(
    chain: Sequence[int], n_real: int, centres: Any, tops: Any, left: float
) -> list[tuple[float, float]]:
    """Return the points of a line, from the lower edge of a box to the upper edge of another."""
    points = [(centres[i] - left, tops[i]) for i in chain]
    if chain[0] < n_real:
        points[0] = points[0][0], points[0][1] + HEIGHT / 2
    if chain[-1] < n_real:
        points[-1] = points[-1][0], points[-1][1] - HEIGHT / 2
    return points


def _layers(order: Sequence[str], edges: Sequence[tuple[str, str]]) -> dict[str, int]:
    """Return the layer of each node: below its sources; roots directly above their readers."""
    readers: dict[str, list[str]] = {name: [] for name in order}
    sources: dict[str, list[str]] = {name: [] for name in order}
    for source, target in edges:
        readers[source].append(target)
        sources[target].append(source)
    layers: dict[str, int] = {}
    for name in order:
        layers[name] = 1 + max((layers[source] for source in sources[name]), default=-1)
    for name in order:
        # Constants move down to their readers, which keeps their edges short.
        if not sources[name] and readers[name] and len(order) > 2:
            layers[name] = max(0, min(layers[reader] for reader in readers[name]) - 1)
    return layers


def _depth_first(n_real: int, above: list[list[int]], below: list[list[int]]) -> list[int]:
    """Return all nodes in depth-first order: an initial order with few crossings."""
    seen = [False] * len(above)
    found = []
    for root in range(n_real):
        if above[root]:
            continue
        stack = [root]
        while stack:
            node = stack.pop()
            if seen[node]:
                continue
            seen[node] = True
            found.append(node)
            stack.extend(reversed(below[node]))
    return found


def _ordered(
    rows: list[list[int]], above: list[list[int]], below: list[list[int]]
) -> list[list[int]]:
    """Order each layer so that few edges cross."""
    best, fewest = [list(row) for row in rows], _crossings(rows, below)
    for sweep in range(SWEEPS):
        if fewest == 0:
            break
        down = sweep % 2 == 0
        neighbours = above if down else below
        index = {node: i for row in rows for i, node in enumerate(row)}
        for row in rows if down else reversed(rows):
            keys = {
                node: median(index[other] for other in neighbours[node] or [node]) for node in row
            }
            row.sort(key=keys.__getitem__)
            index.update((node, i) for i, node in enumerate(row))
        crossings = _crossings(rows, below)
        if crossings < fewest:
            best, fewest = [list(row) for row in rows], crossings
    return best


def _crossings(rows: list[list[int]], below: list[list[int]]) -> int:
    """Count the pairs of edges that cross."""
    index = {node: i for row in rows for i, node in enumerate(row)}
    total = 0
    for row in rows:
        seen: list[int] = []
        for node in row:
            ends = sorted(index[other] for other in below[node])
            for end in ends:
                total += len(seen) - bisect_right(seen, end)
            for end in ends:
                insort(seen, end)
    return total


def _placed(
    rows: list[list[int]],
    above: list[list[int]],
    below: list[list[int]],
    extents: list[float],
    n_real: int,
) -> list[float]:
    """Return the horizontal centre of each node."""
    centres = [0.0] * len(extents)
    for row in rows:  # start with each row packed around the centre
        total = sum(extents[node] for node in row) + GAP * (len(row) - 1)
        x = -total / 2
        for node in row:
            centres[node] = x + extents[node] / 2
            x += extents[node] + GAP
    for sweep in range(2 * SWEEPS):
        down = sweep % 2 == 0
        for row in rows if down else reversed(rows):
            wanted, weights = [], []
            for node in row:
                near = above[node] if down else below[node]
                near = near or (below[node] if down else above[node])
                if node >= n_real:  # trunks stay straight regardless of their branches
                    near = [other for other in near if other >= n_real] or near
                wanted.append(
                    sum(centres[other] for other in near) / len(near) if near else centres[node]
                )
                weights.append(STRAIGHTNESS if node >= n_real else 1.0)
            for node, x in zip(row, _spaced(row, wanted, weights, extents), strict=True):
                centres[node] = x
    return centres


def _spaced(
    row: Sequence[int], wanted: Sequence[float], weights: Sequence[float], extents: Sequence[float]
) -> list[float]:
    """Return the positions closest to those wanted at which no two boxes of a row overlap."""
    # Relative to the minimum offset of each box, the positions must not decrease.
    offsets = [0.0]
    for left, right in pairwise(row):
        offsets.append(offsets[-1] + (extents[left] + extents[right]) / 2 + GAP)
    groups: list[list[float]] = []  # mean, weight, count
    for want, weight, offset in zip(wanted, weights, offsets, strict=True):
        groups.append([want - offset, weight, 1])
        while len(groups) > 1 and groups[-2][0] > groups[-1][0]:
            mean, weight, count = groups.pop()
            last = groups[-1]
            last[0] = (last[0] * last[1] + mean * weight) / (last[1] + weight)
            last[1] += weight
            last[2] += count
    means = [mean for mean, _, count in groups for _ in range(int(count))]
    return [mean + offset for mean, offset in zip(means, offsets, strict=True)]
