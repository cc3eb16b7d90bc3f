"""The graph, the timeline and the memory plan of a model as SVG."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any

from kuiper.ir import Graph, Operator
from kuiper.ir.view import BufferKind
from kuiper.planning.plan import Plan
from kuiper.report.layout import (
    BOLD,
    CHARACTER,
    SMALL,
    Edge,
    arrange_graph,
    heading,
    shapes_text,
)

__all__ = ["memory_svg", "svg", "timeline_svg", "type_colour"]

TITLE = "kernel, time:"  # of the lanes and of the axis of the timeline
LABELLED = 48  # pixels of a step in the timeline that has room for (the ends of) its name

# Distinct colours for frequent types; the others derive one from their name.
_COLOURS = {
    "pnnx.Input": "#c9e4ca", "pnnx.Output": "#c9e4ca", "pnnx.Attribute": "#eee5c8",
    "nn.Conv2d": "#b8d4f0", "nn.Linear": "#cfc4ee", "nn.ConvTranspose2d": "#a9c3e8",
    "nn.ReLU": "#f7d8b5", "nn.ReLU6": "#f7d8b5", "nn.SiLU": "#f7d8b5", "pnnx.Expression": "#f4c9d6",
    "torch.cat": "#dcd6cd", "nn.MaxPool2d": "#c4e6e3", "nn.BatchNorm2d": "#e3e0f5",
}  # fmt: skip


def type_colour(type: str) -> str:
    """Return the fill colour of an operator type or kernel."""
    if type in _COLOURS:
        return _COLOURS[type]
    hue = sum((i + 7) * ord(c) for i, c in enumerate(type)) * 47 % 360
    return f"hsl({hue},45%,82%)"


def svg(
    graph: Graph,
    fill: Callable[[Operator], str] | None = None,
    style: bool = True,
    note: Callable[[Operator], str] | None = None,
) -> str:
    """Draw a graph.

    Parameters
    ----------
    graph : Graph
    fill : callable, optional
        The colour of an operator's box; by default that of its type.
    style : bool, default=True
        Embed fonts and strokes; a page has them in its style sheet.
    note : callable, optional
        Additional text for the tooltip of an operator.

    Returns
    -------
    str
        An SVG document.  Each operator is a group of class ``op`` with its name in ``data-op``.
    """
    layout = arrange_graph(graph)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" class="graph" width="{layout.width:.0f}" '
        f'height="{layout.height:.0f}" viewBox="0 0 {layout.width:.0f} {layout.height:.0f}">'
    ]
    if style:
        parts.append(
            "<style>.graph text{font:11px sans-serif;text-anchor:middle}"
            ".graph .type{font-weight:bold}.graph path{fill:none;stroke:#999}"
            ".graph rect{stroke:#555}.graph .shape{font-size:10px;fill:#555;stroke:#fff;"
            "stroke-width:6px;stroke-linejoin:round;paint-order:stroke}</style>"
        )
    parts.append('<g class="edges">')
    for edge in layout.edges:
        # A section of a trunk has no reader; its branch tells which lines share it.
        to = f' data-to="{escape(edge.target)}"' if edge.target is not None else ""
        parts.append(
            f'<path d="{_curve(edge)}" data-from="{escape(edge.source)}"{to} '
            f'data-branch="{edge.branch}"/>'
        )
    parts.append('</g><g class="shapes">')
    for op in graph:
        node = layout.nodes[op.name]
        if text := shapes_text(op):
            top = node.y + node.height / 2 + 18
            label = escape(_cut(text, node.width + 12, SMALL))
            parts.append(f'<text class="shape" x="{node.x:.1f}" y="{top:.1f}">{label}</text>')
    parts.append('</g><g class="ops">')
    for op in graph:
        node = layout.nodes[op.name]
        left, top = node.x - node.width / 2, node.y - node.height / 2
        colour = type_colour(op.type) if fill is None else fill(op)
        title = f"{op.name}: {op}" if note is None else f"{op.name}: {op}\n{note(op)}"
        parts.append(
            f'<g class="op" data-op="{escape(op.name)}"><title>{escape(title)}</title>'
            f'<rect x="{left:.1f}" y="{top:.1f}" width="{node.width:.1f}" '
            f'height="{node.height}" rx="5" fill="{colour}"/>'
            f'<text class="type" x="{node.x:.1f}" y="{node.y - 4:.1f}">'
            f"{escape(_cut(heading(op), node.width, BOLD))}</text>"
            f'<text x="{node.x:.1f}" y="{node.y + 11:.1f}">{escape(_cut(op.name, node.width))}'
            "</text></g>"
        )
    parts.append("</g></svg>")
    return "\n".join(parts)


def _cut(text: str, width: float, letter: float = 6.2) -> str:
    """Shorten a text to the width of its box; the end of a name is kept as most specific."""
    room = int((width - 12) / letter)
    if len(text) <= room:
        return text
    head = room // 3
    return f"{text[:head]}…{text[len(text) - room + head + 1 :]}"


def _curve(edge: Edge) -> str:
    """Return the path through an edge's points, vertical at each of them."""
    (x, y), *rest = edge.points
    path = [f"M{x:.1f},{y:.1f}"]
    for next_x, next_y in rest:
        if abs(next_x - x) < 0.5:
            if path[-1].startswith("V"):  # extend a straight line
                path.pop()
            path.append(f"V{next_y:.1f}")
            y = next_y
            continue
        middle = (y + next_y) / 2
        path.append(f"C{x:.1f},{middle:.1f} {next_x:.1f},{middle:.1f} {next_x:.1f},{next_y:.1f}")
        x, y = next_x, next_y
    return "".join(path)


# -- time and memory -----------------------------------------------------------------------


def timeline_svg(rows: Sequence[Mapping[str, Any]], width: int = 1200, style: bool = False) -> str:
    """Draw the steps of a profile on a time axis, with a lane for each kind of kernel.

    Parameters
    ----------
    rows : sequence of dict
        See :attr:`kuiper.Profile.rows`.
    width : int, default=1200
        Pixels.
    style : bool, default=False
        Embed fonts and strokes; a page has them in its style sheet.

    Returns
    -------
    str
        An SVG document.  It has one time axis, since all threads share each step; wide steps have
        their operator's name.
    """
    total = sum(row["seconds"] for row in rows) or 1.0
    kinds = list(dict.fromkeys(row["kind"] for row in rows))
    # Margins: kernel names left of the lanes, the text of the last tick right of the last step.
    longest = max(map(len, kinds), default=9)
    label = int(max(20 + CHARACTER * longest, 30 + CHARACTER * len(TITLE)))
    lane, head, right = 30, 26, 40
    scale = (width - label - right) / total
    height = head + lane * len(kinds) + 10
    parts = [_open("timeline", width, height)]
    if style:
        parts.append(
            "<style>.timeline text{font:11px sans-serif;text-anchor:middle}.timeline .lane{"
            "text-anchor:end}.timeline .grid{stroke:#ddd}.timeline .step{stroke:#556;"
            "stroke-width:.4}</style>"
        )
    parts.append(f'<text class="lane" x="{label - 28}" y="16">{TITLE}</text>')
    for tick in ticks(total * 1e3):
        x = label + tick / 1e3 * scale
        parts.append(f'<path class="grid" d="M{x:.1f},{head}V{height - 10}"/>')
        parts.append(f'<text class="tick" x="{x:.1f}" y="16">{tick:g} ms</text>')
    for number, kind in enumerate(kinds):
        y = head + lane * number + lane / 2 + 4
        parts.append(f'<text class="lane" x="{label - 8}" y="{y}">{escape(kind)}</text>')
    start = 0.0
    for row in rows:
        y = head + lane * kinds.index(row["kind"]) + 3
        extent = max(0.4, row["seconds"] * scale)
        title = f"{row['name']} ({row['kind']}): {row['seconds'] * 1e6:.1f} us, {row['share']:.1%}"
        parts.append(
            f'<rect class="step" data-op="{escape(row["name"])}" x="{label + start * scale:.2f}" '
            f'y="{y}" width="{extent:.2f}" height="{lane - 6}" fill="{type_colour(row["kind"])}">'
            f"<title>{escape(title)}</title></rect>"
        )
        if extent >= LABELLED:
            middle = label + start * scale + extent / 2
            parts.append(
                f'<text class="name" x="{middle:.1f}" y="{y + lane / 2 + 1:.1f}">'
                f"{escape(_cut(row['name'], extent, CHARACTER))}</text>"
            )
        start += row["seconds"]
    parts.append("</svg>")
    return "\n".join(parts)


def ticks(end: float, most: int = 10) -> list[float]:
    """Return round numbers from 0 to `end`, at most `most` of them positive.

    Examples
    --------
    >>> ticks(7.79)
    [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]
    """
    power = 10.0 ** math.floor(math.log10(end / most))
    step = next(
        factor * power for factor in (1, 2, 5, 10, 20) if end / (factor * power) <= most + 1e-9
    )
    return [float(f"{step * number:.6g}") for number in range(int(end / step + 1e-9) + 1)]


def memory_svg(plan: Plan, width: int = 1200, height: int = 640) -> str:
    """Draw the memory plan: each buffer by the range of its steps and of its bytes.

    Parameters
    ----------
    plan : kuiper.planning.plan.Plan
        From :meth:`kuiper.Model.plan`.
    width, height : int
        Pixels.

    Returns
    -------
    str
        An SVG document.
    """
    buffers = [
        b for b in plan.buffers if b.kind in (BufferKind.ARENA, BufferKind.SCRATCH) and b.last >= 0
    ]
    n_steps, n_bytes = max(1, len(plan.steps)), max(1, plan.arena_bytes)
    left, top = 80, 10
    across, down = (width - left - 20) / n_steps, (height - top - 40) / n_bytes
    bottom = height - 40
    parts = [_open("memory", width, height)]
    megabyte = 2**20
    for tick in ticks(n_bytes / megabyte, 8):
        y = bottom - tick * megabyte * down
        parts.append(f'<path class="grid" d="M{left},{y:.1f}H{width - 20}"/>')
        parts.append(f'<text class="lane" x="{left - 6}" y="{y + 4:.1f}">{tick:g} MiB</text>')
    for buffer in buffers:
        first, last = plan.steps[buffer.first], plan.steps[buffer.last]
        title = (
            f"{buffer.n_bytes:,} bytes at {buffer.offset:,}, steps {buffer.first} to {buffer.last}:"
            f" from {first.name} to {last.name}"
            + (" (working memory of the threads)" if buffer.kind == BufferKind.SCRATCH else "")
        )
        y = bottom - (buffer.offset + buffer.n_bytes) * down
        parts.append(
            f'<rect class="buffer {buffer.kind.value}" data-op="{escape(first.name)}" '
            f'x="{left + buffer.first * across:.2f}" y="{y:.2f}" '
            f'width="{(buffer.last - buffer.first + 1) * across:.2f}" '
            f'height="{max(0.5, buffer.n_bytes * down):.2f}" fill="{type_colour(first.kind)}">'
            f"<title>{escape(title)}</title></rect>"
        )
    for tick in ticks(n_steps):
        if tick == int(tick) < n_steps:
            x = left + tick * across
            parts.append(f'<text class="tick" x="{x:.1f}" y="{height - 22}">{tick:g}</text>')
    parts.append(f'<text class="tick" x="{width / 2}" y="{height - 6}">step</text></svg>')
    return "\n".join(parts)


def _open(name: str, width: int, height: float) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="{name}" width="{width}" '
        f'height="{height:.0f}" viewBox="0 0 {width} {height:.0f}" preserveAspectRatio="xMidYMin">'
    )
