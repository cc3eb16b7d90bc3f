"""Pictures and figures of a model: the graph as SVG, and a page that needs nothing but a browser.

::

    layout.py     where the operators of a graph go: layers, few crossings, short edges
    svg.py        the graph, the timeline and the memory plan as SVG
    page.py       all of it in one HTML file, with page.css and page.js inside
    roofline.py   what the machine could do, and how near each operator comes

The command line uses this package (``kuiper graph``, ``kuiper profile --html``); nothing else in
kuiper imports it.
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
