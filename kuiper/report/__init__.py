"""Reports on a model: the graph as SVG, and a self-contained HTML page.

::

    layout.py     layered layout of a graph with few crossings and short edges
    svg.py        the graph, the timeline and the memory plan as SVG
    page.py       all of these in one HTML file, which embeds page.css and page.js
    roofline.py   peaks of the machine, and the part of them that each operator reaches
    notebook.py   the picture of a model or a profile in a notebook

Only the command line (``kuiper graph``, ``kuiper profile --html``) and notebooks import this
package.
"""

from __future__ import annotations

from kuiper.report.layout import Layout, arrange_graph
from kuiper.report.page import page
from kuiper.report.roofline import Peaks, by_operator, by_type, measure_peaks, with_roofline
from kuiper.report.svg import memory_svg, svg, timeline_svg

__all__ = [
    "Layout",
    "Peaks",
    "arrange_graph",
    "by_operator",
    "by_type",
    "measure_peaks",
    "memory_svg",
    "page",
    "svg",
    "timeline_svg",
    "with_roofline",
]
