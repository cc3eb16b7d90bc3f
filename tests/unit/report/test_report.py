"""kuiper.report: layout, drawings, the page, and the roofline."""

from __future__ import annotations

import json
import random
import re
import time
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser
from itertools import pairwise

import numpy as np
import pytest

import kuiper
from kuiper import report
from kuiper._kernels.micro import dispatch
from kuiper.ir import Attribute, Graph, PostOp
from kuiper.ir.view import BufferKind
from kuiper.report.layout import GAP, arrange, arrange_graph, heading
from kuiper.report.page import fused_into, soft, weight_statistics
from kuiper.report.svg import ticks

from ...support import load_cases
from ...support.pages import chain_graph, make_small_page
from ...support.shipped import MODELS

needs_weights = pytest.mark.skipif(
    not (MODELS / "nanodet_m.f16.pnnx.bin").exists(),
    reason="the weights of the example models are in the repository, not in the sdist",
)


# -- layout -------------------------------------------------------------------------------------


def assert_is_layered(layout, edges) -> None:
    """Fail if boxes overlap or an edge does not lead downwards between its ends."""
    rows: dict[int, list] = {}
    for node in layout.nodes.values():
        rows.setdefault(node.layer, []).append(node)
        assert node.width / 2 <= node.x <= layout.width - node.width / 2
        assert node.height / 2 <= node.y <= layout.height - node.height / 2
    for row in rows.values():
        row.sort()
        for left, right in pairwise(row):
            assert right.x - left.x >= (left.width + right.width) / 2 + GAP - 1e-6
    ends = [edge for edge in layout.edges if edge.target is not None]
    assert sorted((e.source, e.target) for e in ends) == sorted(edges)
    for edge in ends:
        source, target = layout.nodes[edge.source], layout.nodes[edge.target]
        assert source.layer < target.layer
        points = line_to(layout, edge)
        assert points[0][0] == pytest.approx(source.x)
        assert points[-1][0] == pytest.approx(target.x)
        heights = [y for _, y in points]
        assert heights == sorted(heights)
        # One point in each layer in between, so that the line passes around the boxes there.
        assert len(points) == target.layer - source.layer + 1


def line_to(layout, edge) -> list[tuple[float, float]]:
    """Return the points of an edge from its source: along the trunk, then its own part."""
    trunk = [e for e in layout.edges if e.source == edge.source and e.target is None]
    points = []
    for piece in [
        *sorted((e for e in trunk if e.branch <= edge.branch), key=lambda e: e.branch),
        edge,
    ]:
        if points:
            assert piece.points[0] == points.pop()  # each piece begins where the previous one ends
        points += piece.points
    return points


@pytest.mark.parametrize("seed", range(6))
def test_random_graphs_are_layered(seed):
    rng = random.Random(seed)
    order = [f"n{i}" for i in range(rng.randint(1, 60))]
    edges = {
        (order[rng.randrange(i)], order[i])
        for i in range(1, len(order))
        for _ in range(rng.randint(0, 3))
    }
    widths = {name: rng.uniform(40, 200) for name in order}
    assert_is_layered(arrange(order, sorted(edges), widths), edges)


def test_lines_from_one_operator_share_a_trunk():
    # As in DenseNet: every operator reads all operators before it.
    order = [f"n{i}" for i in range(40)]
    edges = [(a, b) for i, b in enumerate(order) for a in order[:i]]
    layout = arrange(order, edges, dict.fromkeys(order, 100.0))
    assert_is_layered(layout, edges)
    # One line beside the boxes per operator instead of one per edge.
    assert layout.width < 100 + 2 * 39 * (GAP + 4) + 100
    assert sum(len(edge.points) for edge in layout.edges) < 4 * len(edges)


def test_an_empty_graph():
    layout = arrange([], [], {})
    assert layout.nodes == {}
    assert layout.edges == []


def test_a_chain_is_straight():
    layout = arrange_graph(chain_graph(20))
    assert len({round(node.x, 3) for node in layout.nodes.values()}) == 1


def test_crossings_are_removed():
    # Two ladders in crossed order: a0-b1-c0 and a1-b0-c1 need no crossing.
    order = ["a0", "a1", "b0", "b1", "c0", "c1"]
    edges = [("a0", "b1"), ("a1", "b0"), ("b1", "c0"), ("b0", "c1")]
    layout = arrange(order, edges, dict.fromkeys(order, 50.0))
    x = {name: node.x for name, node in layout.nodes.items()}
    assert (x["a0"] < x["a1"]) == (x["b1"] < x["b0"]) == (x["c0"] < x["c1"])


def test_constants_are_near_their_readers():
    graph = chain_graph(10)
    graph.add_operator("pnnx.Attribute", "weight", outputs=["w"])
    out = graph.operator("op9")
    graph.set_inputs(out, [*out.inputs, graph.operand("w")])
    layout = arrange_graph(graph)
    assert layout.nodes["weight"].layer == layout.nodes["op9"].layer - 1


def test_six_hundred_operators_take_a_moment():
    graph = chain_graph(600, skip=7)
    start = time.process_time()
    layout = arrange_graph(graph)
    assert time.process_time() - start < 10  # usually half a second
    edges = {(o.producer.name, reader.name) for o in graph.operands for reader in o.consumers}
    assert_is_layered(layout, edges)


# -- drawings -----------------------------------------------------------------------------------


def test_svg_shows_every_operator_and_edge():
    graph = chain_graph(9, skip=3)
    root = ElementTree.fromstring(report.svg(graph))
    shown = [g.get("data-op") for g in root.iter() if g.get("class") == "op"]
    assert sorted(shown) == sorted(op.name for op in graph)
    paths = list(root.iter("{http://www.w3.org/2000/svg}path"))
    assert len(paths) == sum(len(o.consumers) for o in graph.operands)


def test_names_that_contain_markup():
    graph = Graph()
    graph.add_operand('a<b&"', (1,), "f32")
    graph.add_operator("pnnx.Input", '</script><b>"', outputs=['a<b&"'])
    graph.add_operator("pnnx.Output", "out", ['a<b&"'])
    ElementTree.fromstring(report.svg(graph))
    page = report.page(kuiper.Model(graph), [np.zeros(1, np.float32)], runs=1, title="<i>&")
    assert page.count("</script>") == 2  # the data and the program
    assert "<b>" not in re.sub(r"<b>\w+</b>", "", page)
    assert data_of(page)["graphs"]["file"]['</script><b>"']["type"] == "pnnx.Input"


def test_buffers_do_not_overlap_in_the_memory_drawing():
    model = kuiper.Model(chain_graph(30, skip=5), optimize=False)
    plan = model.plan((1, 4, 8, 8))
    root = ElementTree.fromstring(report.memory_svg(plan))
    boxes = [
        [float(r.get(k)) for k in ("x", "y", "width", "height")]
        for r in root.iter()
        if (r.get("class") or "").startswith("buffer")
    ]
    assert len(boxes) == sum(
        b.kind in (BufferKind.ARENA, BufferKind.SCRATCH) and b.last >= 0 for b in plan.buffers
    )
    assert len(boxes) >= 5
    for i, a in enumerate(boxes):
        for b in boxes[:i]:
            apart = (
                a[0] + a[2] <= b[0] + 0.02 or b[0] + b[2] <= a[0] + 0.02
                or a[1] + a[3] <= b[1] + 0.02 or b[1] + b[3] <= a[1] + 0.02
            )  # fmt: skip
            assert apart, (a, b)


@pytest.mark.parametrize("end", [1e-3, 0.4, 1, 7.79, 10, 116.4, 1999, 2000, 12345.6])
@pytest.mark.parametrize("most", [5, 8, 10])
def test_ticks_are_few_and_round(end, most):
    found = ticks(end, most)
    assert found[0] == 0
    assert most / 3 <= len(found) - 1 <= most
    assert found[-1] <= end * (1 + 1e-9)
    steps = {round(b - a, 9) for a, b in pairwise(found)}
    assert len(steps) == 1
    assert f"{steps.pop():e}"[0] in "125"


def test_texts_do_not_leave_the_drawing():
    """Neither a long kernel name at the left nor the last time at the right."""
    rows = [{"name": "a", "kind": "conv_expand_depthwise_row", "seconds": 0.01, "share": 1.0}]
    root = ElementTree.fromstring(report.timeline_svg(rows))
    for text in root.iter("{http://www.w3.org/2000/svg}text"):
        x, room = float(text.get("x")), 6.2 * len(text.text)
        left = x - room if text.get("class") == "lane" else x - room / 2
        assert left > 0
        assert left + room < float(root.get("width"))


def test_boxes_have_room_for_post_ops():
    graph = chain_graph(3)
    op = graph.operator("op1")
    op.post_ops = (PostOp("nn.ReLU", {}), PostOp("nn.Hardtanh", {}))
    assert f">{heading(op)}<" in report.svg(graph)


def test_the_timeline_is_as_long_as_the_steps_together():
    rows = [
        {"name": f"op{i}", "kind": "conv" if i % 2 else "pool", "seconds": s, "share": s / 10}
        for i, s in enumerate([1.0, 2.0, 3.0, 4.0])
    ]
    root = ElementTree.fromstring(report.timeline_svg(rows))
    steps = [r for r in root.iter() if r.get("class") == "step"]
    starts = [float(r.get("x")) for r in steps]
    widths = [float(r.get("width")) for r in steps]
    np.testing.assert_allclose(np.diff(starts), widths[:-1], atol=0.02)
    np.testing.assert_allclose(np.array(widths) / sum(widths), [0.1, 0.2, 0.3, 0.4], atol=1e-3)
    assert len({r.get("y") for r in steps}) == 2  # one lane per kernel


# -- the page -----------------------------------------------------------------------------------


def data_of(page: str) -> dict:
    match = re.search(r'<script type="application/json" id="data">(.*?)</script>', page)
    return json.loads(match[1])


@pytest.fixture(scope="module")
def small_page() -> str:
    return make_small_page()


class _References(HTMLParser):
    """Collects the URLs that a page would load."""

    def __init__(self):
        super().__init__()
        self.found: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag, attributes):
        self.found += [v for k, v in attributes if k in ("src", "href") and v]
        self.found += [tag] if tag in ("link", "img", "iframe", "object") else []


def test_the_page_needs_no_network(small_page):
    parser = _References()
    parser.feed(small_page)
    assert parser.found == []
    addresses = set(re.findall(r"https?://[\w./]+", small_page))
    assert addresses <= {"http://www.w3.org/2000/svg"}  # a name space, which is not loaded
    assert not re.search(r"@import|url\(|fetch\(|XMLHttpRequest|import\(", small_page)


def test_the_page_says_why_an_algorithm_was_chosen(small_page):
    (title,) = re.findall(r'<span title="([^"]*)">conv_\w+</span>', small_page)
    first, *reasons = title.split("\n")
    assert first == "algorithm few_inputs"
    assert "not depthwise: one group" in reasons


def test_the_data_of_the_page(small_page):
    data = data_of(small_page)
    ops = data["graphs"]["file"]
    conv = ops["stem.conv"]
    assert conv["inputs"][0]["ops"] == ["in"]
    assert conv["outputs"][0]["ops"] == ["stem.act", "gate"]
    assert conv["params"]["kernel_size"] == "(3, 3)"
    assert conv["time"]["us"] > 0
    (weight,) = conv["weights"]
    assert (weight["shape"], sum(weight["histogram"])) == ([8, 3, 3, 3], 216)
    gate = ops["gate"]
    assert gate["tree"].startswith("<svg")
    assert gate["infix"] == "%r * tanh(%c)"
    run = data["graphs"]["run"]
    timed = [op for op in run.values() if "time" in op]
    assert sum(op["time"]["share"] for op in timed) == pytest.approx(1, abs=1e-6)
    assert any(op["outputs"] and op["outputs"][0]["shape"] == [1, 8, 16, 16] for op in run.values())


def test_fused_operators_name_their_host():
    param = b"""7767517
6 5
pnnx.Input       in    0 1 0 #0=(1,4,8,8)f32
nn.Tanh          t     1 1 0 1
nn.Identity      id    1 1 1 2
nn.ReLU          act   1 1 2 3
pnnx.Expression  plus  2 1 3 0 4 expr=add(@0,@1)
pnnx.Output      out   1 0 4
"""
    model = kuiper.load(param)
    planned = model.planned_graph((1, 4, 8, 8))
    owners = fused_into(model.graph, planned)
    running = {op.name for op in planned}
    for op in model.graph:
        assert (op.name in running) != (op.name in owners), op.name
    assert set(owners.values()) <= running


def test_weight_statistics():
    stats = weight_statistics(Attribute.from_array(np.float32([0, 0, 1, 3])))
    assert (stats["min"], stats["max"], stats["mean"], stats["zeros"]) == (0, 3, 1, 0.5)
    assert stats["std"] == pytest.approx(np.std([0, 0, 1, 3]))
    stats = weight_statistics(Attribute.from_array(np.float32([np.nan, 1])))
    assert (stats["odd"], stats["min"]) == (1, 1)
    assert weight_statistics(Attribute.from_array(np.float32([np.inf]))) == {}
    assert weight_statistics(Attribute.from_array(np.zeros(0, np.float32))) == {}
    # A mask's smallest number, numbers that differ in the last bit, and a range beyond float64.
    lowest = np.finfo(np.float64).min
    near = np.nextafter(np.float32(1), np.float32(2))
    for array in (np.float32([-3.4e38]), np.float32([1, near]), np.array([lowest, -lowest])):
        stats = weight_statistics(Attribute.from_array(array))
        assert sum(stats["histogram"]) == array.size
    half = weight_statistics(Attribute.from_array(np.float16([1, 2])))
    assert half["max"] == 2


@pytest.mark.parametrize("case", load_cases("models"), ids=lambda case: case.name)
def test_a_page_of_every_stored_network(case):
    model = kuiper.load(case.param, case.bin)
    page = report.page(model, case.inputs, title=case.name, runs=1)
    data = data_of(page)
    assert set(data["graphs"]["file"]) == {op.name for op in model.graph}


def test_a_notebook_shows_pictures():
    model = kuiper.Model(chain_graph(4))
    html = model._repr_html_()
    assert "&lt;kuiper.Model" in html
    profile = model.profile(np.ones((1, 4, 8, 8), np.float32), runs=1)
    for text, mark in ((html, "op"), (profile._repr_html_(), "step")):
        root = ElementTree.fromstring(text[text.index("<svg") : text.index("</svg>") + 6])
        assert any(element.get("class") == mark for element in root.iter())


def test_edges_have_the_shapes_of_results():
    root = ElementTree.fromstring(report.svg(chain_graph(4)))
    # Of the input; the file says nothing of the others.
    assert [e.text for e in root.iter() if e.get("class") == "shape"] == ["1×4×8×8"]
    model = kuiper.Model(chain_graph(4), optimize=False)
    planned = ElementTree.fromstring(report.svg(model.planned_graph((1, 4, 8, 8))))
    assert [e.text for e in planned.iter() if e.get("class") == "shape"] == ["1×4×8×8"] * 5


def test_wide_steps_of_the_timeline_are_labelled():
    rows = [
        {"name": name, "kind": "conv", "seconds": seconds, "share": 0.5}
        for name, seconds in (("wide", 1.0), ("narrow", 1e-4))
    ]
    root = ElementTree.fromstring(report.timeline_svg(rows))
    assert [e.text for e in root.iter() if e.get("class") == "name"] == ["wide"]


@pytest.mark.parametrize("kind", ["a", "conv_expand_depthwise"])
def test_the_title_of_the_timeline_does_not_touch_the_first_tick(kind):
    root = ElementTree.fromstring(
        report.timeline_svg([{"name": "a", "kind": kind, "seconds": 1e-3, "share": 1.0}])
    )
    title = next(e for e in root.iter() if e.text == "kernel, time:")
    tick = next(e for e in root.iter() if e.text == "0 ms")
    end, middle = float(title.get("x")), float(tick.get("x"))
    assert end <= middle - len("0 ms") * 6.2 / 2 - 4
    assert end - len("kernel, time:") * 6.2 >= 0


def test_names_break_between_words_only():
    assert soft("layer1.0<a_b") == "layer1.<wbr>0&lt;a_<wbr>b"


# -- roofline -----------------------------------------------------------------------------------


def test_roofline_is_the_lower_limit():
    rows = [{"seconds": 1.0, "gflops": 50.0, "gbytes": 1.0}, {"seconds": 1.0, "gflops": 1.0,
            "gbytes": 15.0}, {"seconds": 1.0, "gflops": 0.0, "gbytes": 0.0}]  # fmt: skip
    result = report.with_roofline(rows, report.Peaks(100.0, 20.0))
    assert [row["roofline"] for row in result] == [0.5, 0.75, None]
    assert {row["roofline"] for row in report.with_roofline(rows, None)} == {None}


def test_roofline_uses_the_memory_level_that_holds_the_bytes():
    peaks = report.Peaks(100.0, 10.0, ((1 << 20, 40.0), (1 << 22, 20.0)))
    assert [peaks.bandwidth(n) for n in (0, 1, 1 << 20, 1 << 21, 1 << 22, 1 << 24, 1 << 30)] == [
        10.0, 40.0, 40.0, 30.0, 20.0, 10.0, 10.0
    ]  # fmt: skip
    small = {"seconds": 1e-4, "gflops": 0.0, "gbytes": 10.0}  # 1 MB
    large = {"seconds": 1.0, "gflops": 0.0, "gbytes": 10.0}
    result = report.with_roofline([small, large], peaks)
    assert [row["roofline"] for row in result] == [0.25, 1.0]


def test_steps_of_an_operator_are_combined():
    def row(name, type, kind, seconds, gflops, gbytes):
        return {"name": name, "type": type, "kind": kind, "seconds": seconds,
                "share": seconds / 8, "gflops": gflops, "gbytes": gbytes}  # fmt: skip

    rows = [
        row("a", "nn.Conv2d", "winograd_input", 1.0, 0.0, 8.0),
        row("a", "nn.Conv2d", "winograd_gemm", 3.0, 40.0, 0.0),
        row("b", "nn.ReLU", "elementwise", 2.0, 0.0, 5.0),
        row("c", "nn.Conv2d", "conv", 2.0, 60.0, 1.0),
    ]
    operators = report.with_roofline(report.by_operator(rows), report.Peaks(100.0, 10.0))
    assert [o["name"] for o in operators] == ["a", "b", "c"]
    assert operators[0]["kernels"] == ["winograd_input", "winograd_gemm"]
    assert (operators[0]["seconds"], operators[0]["share"]) == (4.0, 0.5)
    assert (operators[0]["gflops"], operators[0]["gbytes"]) == (30.0, 2.0)
    assert [o["roofline"] for o in operators] == [0.3, 0.5, 0.6]
    conv, relu = report.by_type(operators)
    assert (conv["type"], conv["count"], conv["seconds"]) == ("nn.Conv2d", 2, 6.0)
    assert conv["gflops"] == pytest.approx(40.0)
    assert conv["roofline"] == pytest.approx((0.3 * 4 + 0.6 * 2) / 6)
    assert (relu["count"], relu["share"], relu["roofline"]) == (1, 0.25, 0.5)


def test_no_operator_exceeds_the_peaks():
    def row(kernels, seconds, gflops, gbytes):
        return {"kernels": kernels, "seconds": seconds, "gflops": gflops, "gbytes": gbytes}

    peaks = report.Peaks(100.0, 10.0, ((1 << 20, 40.0),))
    rows = [
        row(["conv"], 1.0, 120.0, 1.0),
        row(["copy"], 1.0, 0.0, 15.0),  # 1.5 times the measured bandwidth
    ]
    assert peaks.raised(rows) == report.Peaks(120.0, 15.0, ((1 << 20, 40.0),))
    shares = [r["roofline"] for r in report.with_roofline(rows, peaks.raised(rows))]
    assert shares == [1.0, 1.0]
    assert peaks.raised([]) == peaks


@pytest.mark.parametrize(
    ("n_bytes", "speed", "expected"),
    [
        (1 << 30, 80.0, (100.0, 80.0, 80.0)),  # memory; caches are never slower
        (1 << 21, 200.0, (200.0, 200.0, 10.0)),  # a smaller cache is never slower
        (1 << 20, 150.0, (200.0, 100.0, 10.0)),  # between two points, both are raised
        (1 << 10, 200.0, (200.0, 50.0, 10.0)),
        (1 << 10, 90.0, (100.0, 50.0, 10.0)),  # nothing to raise
    ],
)
def test_one_disturbed_peak_does_not_raise_the_others(n_bytes, speed, expected):
    """A tenfold error in the bandwidth of memory once raised that of the caches tenfold."""
    peaks = report.Peaks(1.0, 10.0, ((1 << 19, 100.0), (1 << 21, 50.0)))
    row = {"kernels": ["copy"], "gflops": 0.0, "gbytes": speed, "seconds": n_bytes / speed / 1e9}
    raised = peaks.raised([row])
    assert (raised.caches[0][1], raised.caches[1][1], raised.gbytes) == pytest.approx(expected)


def convolution(channels: int, side: int) -> kuiper.Model:
    """Return a 3x3 convolution that keeps the number of channels, for one thread."""
    params = {
        "in_channels": channels, "out_channels": channels, "kernel_size": (3, 3), "stride": (1, 1),
        "padding": (1, 1), "dilation": (1, 1), "groups": 1, "bias": False, "padding_mode": "zeros",
    }  # fmt: skip
    weight = Attribute.from_array(np.ones((channels, channels, 3, 3), np.float32))
    graph = Graph()
    graph.add_operand("x", (1, channels, side, side), "f32")
    graph.add_operator("pnnx.Input", "in", outputs=["x"])
    graph.add_operator(
        "nn.Conv2d", "conv", ["x"], ["y"], params=params, attributes={"weight": weight}
    )
    graph.add_operator("pnnx.Output", "out", ["y"])
    return kuiper.Model(graph, threads=1)


@pytest.mark.parametrize(("channels", "side"), [(64, 56), (512, 7)])  # blocked, and in stages
def test_each_stage_of_winograd_counts_what_it_does(channels, side):
    plan = convolution(channels, side).plan((1, channels, side, side))
    steps = [s for s in plan.steps if "winograd" in s.kind]
    direct = 2 * 9 * channels**2 * side**2
    assert sum(s.flops + s.saved_flops for s in steps) == pytest.approx(direct)
    assert [s.saved_flops > 0 for s in steps] == [False] * (len(steps) - 1) + [True]
    assert all(s.flops > 0 and s.bytes > 0 for s in steps)
    if len(steps) == 3:
        assert steps[1].flops > 5 * (steps[0].flops + steps[2].flops)


def test_the_page_tells_the_operations_that_an_algorithm_saves():
    model = convolution(64, 56)
    x = np.ones((1, 64, 56, 56), np.float32)
    data = data_of(report.page(model, [x], profile=model.profile(x, runs=1)))
    time = data["graphs"]["run"]["conv"]["time"]
    assert time["flop"] + time["saved"] == pytest.approx(2 * 9 * 64**2 * 56**2)
    assert time["saved"] > time["flop"] / 4


@pytest.mark.parametrize("name", dispatch.available())
def test_no_product_is_faster_than_the_multiply_adds_in_registers(name):
    """Nor do they claim more than the units can do, as if the compiler had left out sums."""
    before = dispatch.select(name)
    try:
        model, x = convolution(256, 14), np.ones((1, 256, 14, 14), np.float32)
        product = ceiling = 0.0
        for attempt in range(600):  # on a busy machine it takes long until neither is disturbed
            if attempt > 20 and ceiling / 5 < product < 1.2 * ceiling:
                break
            start = time.perf_counter()
            flops = dispatch.multiply_adds(5000, 1)
            ceiling = max(ceiling, flops / (time.perf_counter() - start))
            row = max(model.profile(x, runs=1).rows, key=lambda row: row["gflops"])
            product = max(product, row["gflops"] * 1e9)
    finally:
        dispatch.select(before)
    assert ceiling / 5 < product < 1.2 * ceiling


def test_peaks_of_this_machine():
    peaks = report.measure_peaks(0.1)
    assert 0.5 < peaks.gflops < 1e5
    assert 0.1 < peaks.gbytes < 1e4
    sizes, speeds = zip(*peaks.caches, strict=True)
    assert list(sizes) == sorted(sizes)
    assert list(speeds) == sorted(speeds, reverse=True)
    assert min(speeds) >= peaks.gbytes
