"""Pictures of a tree: Graphviz text and SVG."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kuiper.expression.tree import Call, List, Literal, Node, Ref

__all__ = ["to_dot", "to_svg"]

# kind of node -> shape in Graphviz, fill colour
_STYLES = {
    Call: ("box", "#dbe9f6"),
    List: ("box", "#eeeeee"),
    Ref: ("ellipse", "#d9f0d3"),
    Literal: ("ellipse", "#fde8c8"),
}
_OTHER = ("ellipse", "#f2e0f5")


def _style(node: Node) -> tuple[str, str]:
    return _STYLES.get(type(node), _OTHER)


def _label(node: Node, names: Sequence[str] | None) -> str:
    return names[node.index] if names is not None and isinstance(node, Ref) else node.text


def _escaped(text: str) -> str:
    # Importing html for its escape() costs more than this whole module.
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _numbered(tree: Node) -> list[tuple[Node, int | None]]:
    """List the nodes in preorder, each with the number of its parent."""
    nodes: list[tuple[Node, int | None]] = []
    stack: list[tuple[Node, int | None]] = [(tree, None)]
    while stack:
        node, parent = stack.pop()
        stack.extend((child, len(nodes)) for child in reversed(node.children))
        nodes.append((node, parent))
    return nodes


def to_dot(tree: Node, names: Sequence[str] | None = None) -> str:
    """Write a tree as a Graphviz digraph.

    Parameters
    ----------
    tree : Node
    names : sequence of str, optional
        Names of the operands; by default ``@0``, ``@1``, ...

    Returns
    -------
    str
        A graph in Graphviz's language.

    Examples
    --------
    >>> from kuiper.expression import parse
    >>> print(to_dot(parse("neg(@0)")))
    digraph expression {
      node [style=filled, fontname="monospace"];
      n0 [label="neg", shape=box, fillcolor="#dbe9f6"];
      n1 [label="@0", shape=ellipse, fillcolor="#d9f0d3"];
      n0 -> n1;
    }
    """
    lines = ["digraph expression {", '  node [style=filled, fontname="monospace"];']
    edges = []
    for number, (node, parent) in enumerate(_numbered(tree)):
        shape, colour = _style(node)
        label = _label(node, names).replace("\\", "\\\\").replace('"', '\\"')
        lines.append(f'  n{number} [label="{label}", shape={shape}, fillcolor="{colour}"];')
        if parent is not None:
            edges.append(f"  n{parent} -> n{number};")
    return "\n".join([*lines, *edges, "}"])


# Sizes in the picture, in pixels.
_CHARACTER = 8
_PADDING = 10
_HEIGHT = 26
_GAP = 14
_LEVEL = 56
_MARGIN = 12


def to_svg(tree: Node, names: Sequence[str] | None = None) -> str:
    """Draw a tree as an SVG picture.

    Leaves are side by side.  Every other node is centred above its children, or farther to the
    right if its label would overlap its left neighbour.

    Parameters
    ----------
    tree : Node
    names : sequence of str, optional
        Names of the operands.

    Returns
    -------
    str
        A complete SVG document.
    """
    nodes = _numbered(tree)
    labels = [_label(node, names) for node, _ in nodes]
    widths = [_CHARACTER * len(label) + 2 * _PADDING for label in labels]
    levels = [0] * len(nodes)
    children: list[list[int]] = [[] for _ in nodes]
    for number, (_, parent) in enumerate(nodes):
        if parent is not None:
            levels[number] = levels[parent] + 1
            children[parent].append(number)
    centres = _place(nodes, children, widths, levels)
    width = max(c + w / 2 for c, w in zip(centres, widths, strict=True)) + _MARGIN
    height = max(levels) * _LEVEL + _HEIGHT + 2 * _MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        'font-family="monospace" font-size="13" text-anchor="middle">'
    ]
    tops = [_MARGIN + level * _LEVEL for level in levels]
    for number, (_, parent) in enumerate(nodes):
        if parent is not None:
            parts.append(
                f'<line x1="{centres[parent]:.1f}" y1="{tops[parent] + _HEIGHT}" '
                f'x2="{centres[number]:.1f}" y2="{tops[number]}" stroke="#888888"/>'
            )
    for number, (node, _) in enumerate(nodes):
        shape, colour = _style(node)
        left = centres[number] - widths[number] / 2
        radius = 4 if shape == "box" else _HEIGHT / 2
        parts.append(
            f'<rect x="{left:.1f}" y="{tops[number]}" width="{widths[number]}" height="{_HEIGHT}" '
            f'rx="{radius:g}" fill="{colour}" stroke="#555555"/>'
        )
        parts.append(
            f'<text x="{centres[number]:.1f}" y="{tops[number] + 17}">'
            f"{_escaped(labels[number])}</text>"
        )
    return "\n".join([*parts, "</svg>"])


def _place(nodes: Any, children: Any, widths: Any, levels: Any) -> list[float]:
    """Return the horizontal centre of every node; no two on a level overlap."""
    centres = [0.0] * len(nodes)
    edges = [float(_MARGIN)] * (max(levels) + 1)  # least left edge of the next node on each level
    # Postorder: children before parents, from left to right.
    stack = [(0, False)]
    while stack:
        number, is_open = stack.pop()
        if children[number] and not is_open:
            stack.append((number, True))
            stack.extend((child, False) for child in reversed(children[number]))
            continue
        half = widths[number] / 2
        centre = edges[levels[number]] + half
        if children[number]:
            first, last = children[number][0], children[number][-1]
            middle = (centres[first] + centres[last]) / 2
            if middle < centre:
                _move(number, centre - middle, children, widths, levels, centres, edges)
            centre = max(centre, middle)
        centres[number] = centre
        edges[levels[number]] = centre + half + _GAP
    return centres


def _move(
    number: Any, distance: Any, children: Any, widths: Any, levels: Any, centres: Any, edges: Any
) -> None:
    """Move all descendants of a node to the right."""
    stack = list(children[number])
    while stack:
        node = stack.pop()
        centres[node] += distance
        end = centres[node] + widths[node] / 2 + _GAP
        edges[levels[node]] = max(edges[levels[node]], end)
        stack.extend(children[node])
