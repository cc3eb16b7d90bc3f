"""A self-contained HTML page that shows a model: graph, times, timeline and memory plan."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from html import escape
from importlib import resources
from typing import Any

import numpy as np

import kuiper
from kuiper.errors import ExpressionError
from kuiper.expression import infix, parse, to_svg
from kuiper.ir import Attribute, Graph, Operand, Operator
from kuiper.model import Model
from kuiper.planning.profile import Profile
from kuiper.report.roofline import Peaks, by_operator, by_type, with_roofline
from kuiper.report.svg import memory_svg, svg, timeline_svg, type_colour

__all__ = ["page", "weight_statistics"]

# Larger weights are subsampled with a fixed stride for their statistics.
MAX_VALUES = 4_000_000
BINS = 24


def page(
    model: Model,
    inputs: Sequence[np.ndarray],
    *,
    title: str = "model",
    profile: Profile | None = None,
    peaks: Peaks | None = None,
    runs: int = 10,
) -> str:
    """Return an HTML page about a model.

    Parameters
    ----------
    model : Model
    inputs : sequence of numpy.ndarray
        The inputs to plan for and to measure with.
    title : str
    profile : Profile, optional
        Known times; by default they are measured.
    peaks : Peaks, optional
        For the roofline.
    runs : int, default=10
        Number of runs to measure.

    Returns
    -------
    str
    """
    profile = model.profile(*inputs, runs=runs) if profile is None else profile
    shapes = [np.shape(x) for x in inputs]
    plan = model.plan(*shapes)
    planned = model.planned_graph(*shapes)
    steps = with_roofline(profile.rows, peaks)
    rows = with_roofline(by_operator(profile.rows), peaks)
    times = _times(rows, planned)
    statistics: dict[int, dict[str, Any]] = {}
    graphs = {"file": model.graph, "run": planned}
    owners = {"file": fused_into(model.graph, planned), "run": {}}
    data = {
        "title": title,
        "total": profile.total,
        "graphs": {
            name: {op.name: _operator(op, times, owners[name], statistics) for op in graph}
            for name, graph in graphs.items()
        },
    }
    facts = [
        ("input", ", ".join("×".join(map(str, shape)) for shape in shapes)),
        ("operators", f"{len(model.graph)} in the file, {len(planned)} after the passes"),
        (
            "time",
            f"{profile.total * 1e3:.3f} ms, {profile.n_threads} threads, "
            f"{kuiper.show_config()['isa']}",
        ),
        ("memory", f"{profile.arena_bytes / 2**20:.2f} MiB for intermediate results"),
    ]
    if peaks is not None:
        facts.append(("machine", f"{peaks.gflops:.0f} GFLOP/s, {peaks.gbytes:.0f} GB/s"))
    files = resources.files(__package__)
    return _PAGE.format(
        title=escape(title),
        version=escape(kuiper.__version__),
        style=files.joinpath("page.css").read_text("utf-8"),
        script=files.joinpath("page.js").read_text("utf-8"),
        data=_embedded(data),
        facts="".join(f"<span><b>{k}</b> {escape(v)}</span>" for k, v in facts),
        file_graph=svg(model.graph, style=False),
        run_graph=svg(planned, style=False),
        timeline=timeline_svg(steps),
        memory=memory_svg(plan),
        operators=_operator_table(rows),
        steps=_step_table(steps),
        types=_type_table(rows),
    )


def fused_into(graph: Graph, planned: Graph) -> dict[str, str]:
    """Map each operator that the passes fused to the planned operator that computes it.

    An operator that is fused into its producer keeps the name of its output; for one that is fused
    into its reader, the readers are followed.  Operators without an entry were eliminated:
    identities, folded constants, shape arithmetic.
    """
    found: dict[str, str] = {}
    for op in reversed(graph.topological_order()):
        if planned.has_operator(op.name) or op.type == "pnnx.Output":
            continue
        for operand in op.outputs:
            if planned.has_operand(operand.name):
                producer = planned.operand(operand.name).producer
                if producer is not None:
                    found[op.name] = producer.name
                    break
            readers = [reader.name for reader in operand.consumers]
            owner = next(
                (found.get(r, r if planned.has_operator(r) else None) for r in readers), None
            )
            if owner is not None:
                found[op.name] = owner
                break
    return found


def weight_statistics(attribute: Attribute) -> dict[str, Any]:
    """Return extremes, mean, deviation, fraction of zeros and a histogram of a weight."""
    values = attribute.numpy().reshape(-1)
    values = values[:: 1 + values.size // MAX_VALUES]
    if values.dtype.kind == "c":
        values = np.abs(values)
    values = values.astype(np.float64)
    finite = values[np.isfinite(values)]
    if not finite.size:
        return {}
    least, most = float(finite.min()), float(finite.max())
    # The square of a larger float64 overflows, and values that are (nearly) equal share all bins.
    finite = np.clip(finite, -1e140, 1e140)
    low, high = float(finite.min()), float(finite.max())
    margin = max(abs(low), abs(high)) * 1e-6 or 0.5
    if high - low < margin:
        low, high = low - margin, high + margin
    counts, edges = np.histogram(finite, BINS, (low, high))
    return {
        "min": least,
        "max": most,
        "mean": float(finite.mean()),
        "std": float(finite.std()),
        "zeros": float((values == 0).mean()),
        "odd": int(values.size - finite.size),
        "histogram": counts.tolist(),
        "from": float(edges[0]),
        "to": float(edges[-1]),
    }


def _times(rows: Sequence[Mapping[str, Any]], planned: Graph) -> dict[str, dict[str, Any]]:
    """Map each operator to its times.

    Steps that copy into the caller's arrays have no operator; they are named ``pnnx.Output``.
    """
    ends = [op.name for op in planned if op.type == "pnnx.Output"]
    times: dict[str, dict[str, Any]] = {}
    for row in rows:
        is_copy = row["name"] == "pnnx.Output" and ends and not planned.has_operator(row["name"])
        times[ends[0] if is_copy else row["name"]] = {
            "us": row["seconds"] * 1e6,
            "share": row["share"],
            "kernels": [
                kind if n == 1 else f"{n} × {kind}" for kind, n in Counter(row["kernels"]).items()
            ],
            "flop": row["gflops"] * row["seconds"] * 1e9,
            "saved": row["saved_flops"],
            "bytes": row["gbytes"] * row["seconds"] * 1e9,
            "roofline": row["roofline"] or 0.0,
        }
    return times


def _operator(
    op: Operator,
    times: Mapping[str, dict[str, Any]],
    owners: Mapping[str, str],
    statistics: dict[int, dict[str, Any]],
) -> dict[str, Any]:
    """Return the data of an operator for the page; `statistics` caches those of weights by id."""
    weights = []
    for key, attribute in op.attributes.items():
        if id(attribute) not in statistics:
            statistics[id(attribute)] = weight_statistics(attribute)
        tensor = {"key": key, "shape": attribute.shape, "dtype": attribute.dtype}
        weights.append({**tensor, **statistics[id(attribute)]})
    entry: dict[str, Any] = {
        "type": op.type,
        "colour": type_colour(op.type),
        "params": {key: str(value) for key, value in op.params.items()},
        "inputs": [
            {"key": key, **_operand(o, [o.producer] if o.producer else [])}
            for o, key in zip(op.inputs, op.input_keys, strict=True)
        ],
        "outputs": [_operand(o, o.consumers) for o in op.outputs],
        "weights": weights,
        "post": [post.type for post in op.post_ops],
    }
    if op.location:
        entry["location"] = op.location.rpartition("/")[2]
    if op.name in times:
        entry["time"] = times[op.name]
    elif op.name in owners:
        entry["owner"] = owners[op.name]
        if owners[op.name] in times:
            entry["owner_time"] = times[owners[op.name]]
    expression = op.params.get("expr")
    if op.type == "pnnx.Expression" and isinstance(expression, str):
        try:
            tree = parse(expression, len(op.inputs), extended=True)
        except ExpressionError:
            pass  # its text appears among the parameters
        else:
            entry["tree"] = to_svg(tree)
            entry["infix"] = infix(tree, [f"%{o.name}" for o in op.inputs])
    return entry


def _operand(operand: Operand, ops: Sequence[Operator]) -> dict[str, Any]:
    """Return the data of an operand, with links to the operators at its other end."""
    names = [op.name for op in ops]
    return {"name": operand.name, "shape": operand.shape, "dtype": operand.dtype, "ops": names}


def _embedded(data: Any) -> str:
    """Return JSON that is safe inside a script element."""
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


FIGURES = ("µs", "share", "GFLOP/s", "GB/s", "roofline")


def soft(text: str) -> str:
    """Escape a name for HTML; a line may break after its dots and underscores, not within words."""
    return re.sub(r"([._/,])(?=\w)", r"\1<wbr>", escape(text))


def _figures(row: Mapping[str, Any]) -> list[str]:
    """Return the cells of the columns FIGURES."""
    return [
        f"{row['seconds'] * 1e6:.1f}",
        f"{row['share']:.1%}",
        f"{row['gflops']:.1f}",
        f"{row['gbytes']:.1f}",
        f"{row['roofline']:.0%}" if row["roofline"] else "",
    ]


def _table(
    heads: Sequence[str], rows: Sequence[tuple[str | None, Sequence[str]]], words: Sequence[int]
) -> str:
    """Return a sortable table.

    Parameters
    ----------
    heads : sequence of str
    rows : sequence of (str or None, sequence of str)
        The operator that a click selects, and the cells as HTML.
    words : sequence of int
        Indices of text columns; the others are numbers, aligned to the right.
    """

    def cell(tag: str, column: int, text: str) -> str:
        return f"<{tag}>{text}</{tag}>" if column in words else f'<{tag} class="n">{text}</{tag}>'

    head = "".join(cell("th", *pair) for pair in enumerate(heads))
    body = "".join(
        (f'<tr data-op="{escape(op)}">' if op is not None else "<tr>")
        + "".join(cell("td", *pair) for pair in enumerate(cells))
        + "</tr>"
        for op, cells in rows
    )
    return f'<table class="sortable"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'


def _operator_table(rows: Sequence[Mapping[str, Any]]) -> str:
    cells = [
        (
            row["name"],
            [soft(row["name"]), soft(row["type"]), str(len(row["kernels"])), *_figures(row)],
        )
        for row in rows
    ]
    return _table(["operator", "type", "steps", *FIGURES], cells, (0, 1))


def _kernel(row: Mapping[str, Any]) -> str:
    """Return the cell of a step's kernel; for a convolution with a tooltip on its algorithm."""
    if row["algorithm"] is None:
        return escape(row["kind"])
    reasons = "\n".join(f"not {name}: {reason}" for name, reason in row["left"].items())
    title = f"algorithm {row['algorithm']}\n{reasons}".strip()
    return f'<span title="{escape(title)}">{escape(row["kind"])}</span>'


def _step_table(rows: Sequence[Mapping[str, Any]]) -> str:
    cells = [
        (row["name"], [str(number), soft(row["name"]), _kernel(row), *_figures(row)[:-1]])
        for number, row in enumerate(rows)
    ]
    return _table(["step", "operator", "kernel", *FIGURES[:-1]], cells, (1, 2))


def _type_table(rows: Sequence[Mapping[str, Any]]) -> str:
    cells = [
        (
            None,
            [
                f'<i style="background:{type_colour(group["type"])}"></i>{soft(group["type"])}',
                str(group["count"]),
                *_figures(group),
                f'<span class="bar" style="width:{group["share"] * 200:.0f}px"></span>',
            ],
        )
        for group in by_type(rows)
    ]
    return _table(["type", "operators", *FIGURES, ""], cells, (0, 7))


_PAGE = """\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="generator" content="kuiper {version}">
<title>{title}</title>
<style>
{style}</style>
</head>
<body>
<header>
<h1>{title}</h1>
<div class="facts">{facts}</div>
<nav>
<button data-view="graph" class="on">Graph</button>
<button data-view="timeline">Timeline</button>
<button data-view="memory">Memory</button>
<button data-view="operators">Operators</button>
</nav>
<div class="tools">
<input id="search" type="search" placeholder="name, type or operand  ( / )" autocomplete="off">
<output id="hits"></output>
<label>graph <select id="which"><option value="file">of the file</option>
<option value="run">as it runs</option></select></label>
<label>colour <select id="colour"><option value="time">by time</option>
<option value="type">by type</option></select></label>
<button id="minus" title="smaller">−</button><button id="plus" title="larger">+</button>
<button id="fit" title="fit to window">all</button>
</div>
</header>
<main>
<section id="view">
<div class="pane" data-pane="graph" data-graph="file">{file_graph}</div>
<div class="pane" data-pane="graph" data-graph="run" hidden>{run_graph}</div>
<div class="pane" data-pane="timeline" hidden>{timeline}</div>
<div class="pane" data-pane="memory" hidden>{memory}</div>
<div class="pane text" data-pane="operators" hidden>
<h2>By type</h2>{types}
<h2>Operators</h2>{operators}
<h2>Steps</h2>{steps}</div>
</section>
<aside id="details" aria-live="polite"><p class="hint">Click an operator, or navigate the graph with
the arrow keys. Drag to pan; use the wheel or + - 0 to zoom. Press / to search, Enter for the next
match, Esc to clear the search.</p></aside>
</main>
<script type="application/json" id="data">{data}</script>
<script>
{script}</script>
</body>
</html>
"""
