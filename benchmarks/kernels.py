"""Measure kernels at the shapes of real layers against the ceilings of this machine.

The ceilings, measured with all threads at once: multiply-adds in registers, and reading and
writing the cache or memory that holds as many bytes as a layer touches. A layer takes at least
the time of its arithmetic at the first, or of its bytes at the second, whichever is longer; the
last column is the fraction of that speed. Winograd's and Strassen's algorithms count the
operations that they do, fewer than those of the definition.

With ``--precision bfloat16`` or ``int8`` only dense products are measured, which read and write
elements of this type: another layer follows each of them.  The ceiling is then the speed of the
instructions that sum two or four products per lane.

Run: ``python benchmarks kernels [--threads 2] [--only conv] [--precision float32] [--json FILE]``;
needs numpy and kuiper. ``KUIPER_ISA`` chooses the variant.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np

import kuiper
from kuiper._kernels.micro import dispatch
from kuiper.ir import Attribute, Graph
from kuiper.model import Model
from kuiper.report import measure_peaks

PRECISIONS = ("float32", "bfloat16", "int8")


def one(type: str, shapes, params: dict | None = None, weights: dict | None = None):
    """Return a model of one operator, and inputs for it."""
    rng = np.random.default_rng(0)
    graph = Graph()
    names = [f"x{i}" for i in range(len(shapes))]
    for name in names:
        graph.add_operand(name, None, "f32")
        graph.add_operator("pnnx.Input", f"in_{name}", outputs=[name])
    attributes = {
        key: Attribute.from_array(rng.standard_normal(shape, np.float32) * np.float32(0.05))
        for key, shape in (weights or {}).items()
    }
    graph.add_operator(type, "op", names, ["y"], params=params or {}, attributes=attributes)
    graph.add_operator("pnnx.Output", "out", ["y"])
    return Model(graph), [rng.standard_normal(shape, np.float32) for shape in shapes]


def conv(c: int, o: int, size: int, k: int = 1, stride: int = 1, groups: int = 1):
    params = {
        "bias": True, "dilation": (1, 1), "groups": groups, "in_channels": c, "out_channels": o,
        "kernel_size": (k, k), "stride": (stride, stride), "padding": (k // 2, k // 2),
        "padding_mode": "zeros",
    }  # fmt: skip
    weights = {"bias": (o,), "weight": (o, c // groups, k, k)}
    return one("nn.Conv2d", [(1, c, size, size)], params, weights)


def transposed(c: int, o: int, size: int):
    params = {
        "bias": True, "dilation": (1, 1), "groups": 1, "in_channels": c, "out_channels": o,
        "kernel_size": (2, 2), "stride": (2, 2), "padding": (0, 0), "output_padding": (0, 0),
    }  # fmt: skip
    weights = {"bias": (o,), "weight": (c, o, 2, 2)}
    return one("nn.ConvTranspose2d", [(1, c, size, size)], params, weights)


def linear(rows: int, inner: int, columns: int):
    params = {"bias": True, "in_features": inner, "out_features": columns}
    weights = {"bias": (columns,), "weight": (columns, inner)}
    return one("nn.Linear", [(rows, inner)], params, weights)


def max_pool(c: int, size: int):
    params = {
        "kernel_size": (3, 3), "stride": (2, 2), "padding": (1, 1), "dilation": (1, 1),
        "ceil_mode": False, "return_indices": False,
    }  # fmt: skip
    return one("nn.MaxPool2d", [(1, c, size, size)], params)


LAYERS = {
    "conv 7x7/2 3-64 @224": lambda: conv(3, 64, 224, 7, 2),
    "conv 3x3/2 3-32 @224": lambda: conv(3, 32, 224, 3, 2),
    "conv 3x3 3-64 @224": lambda: conv(3, 64, 224, 3),
    "conv 6x6/2 3-32 @640": lambda: conv(3, 32, 640, 6, 2),
    "conv 4x4/4 3-96 @224": lambda: conv(3, 96, 224, 4, 4),
    "conv 3x3 64-64 @224": lambda: conv(64, 64, 224, 3),
    "conv 3x3 128-128 @112": lambda: conv(128, 128, 112, 3),
    "conv 3x3 64-64 @56": lambda: conv(64, 64, 56, 3),
    "conv 3x3 128-128 @28": lambda: conv(128, 128, 28, 3),
    "conv 3x3 512-512 @28": lambda: conv(512, 512, 28, 3),
    "conv 3x3 256-256 @14": lambda: conv(256, 256, 14, 3),
    "conv 3x3 512-512 @7": lambda: conv(512, 512, 7, 3),
    "conv 3x3/2 64-128 @56": lambda: conv(64, 128, 56, 3, 2),
    "conv 3x3/2 256-512 @14": lambda: conv(256, 512, 14, 3, 2),
    "conv 3x3 256 groups 32 @14": lambda: conv(256, 256, 14, 3, 1, 32),
    "conv 1x1 16-96 @112": lambda: conv(16, 96, 112),
    "conv 1x1 24-144 @56": lambda: conv(24, 144, 56),
    "conv 1x1 64-256 @56": lambda: conv(64, 256, 56),
    "conv 1x1 256-64 @56": lambda: conv(256, 64, 56),
    "conv 1x1 256-1024 @14": lambda: conv(256, 1024, 14),
    "conv 1x1 1024-256 @14": lambda: conv(1024, 256, 14),
    "conv 1x1 576-96 @14": lambda: conv(576, 96, 14),
    "conv 1x1 2048-512 @7": lambda: conv(2048, 512, 7),
    "conv depthwise 3x3 144 @56": lambda: conv(144, 144, 56, 3, 1, 144),
    "conv depthwise 3x3/2 96 @112": lambda: conv(96, 96, 112, 3, 2, 96),
    "conv depthwise 3x3 576 @14": lambda: conv(576, 576, 14, 3, 1, 576),
    "conv depthwise 5x5 672 @14": lambda: conv(672, 672, 14, 5, 1, 672),
    "conv depthwise 7x7 192 @28": lambda: conv(192, 192, 28, 7, 1, 192),
    "conv transposed 2x2/2 512-256 @32": lambda: transposed(512, 256, 32),
    "max_pool 3x3/2 64 @112": lambda: max_pool(64, 112),
    "avg_pool all of 2048 @7": lambda: one(
        "nn.AdaptiveAvgPool2d", [(1, 2048, 7, 7)], {"output_size": (1, 1)}
    ),
    "linear 197 x 768-3072": lambda: linear(197, 768, 3072),
    "linear 197 x 3072-768": lambda: linear(197, 3072, 768),
    "linear 1 x 2048-1000": lambda: linear(1, 2048, 1000),
    "attention 12 x 197 x 64": lambda: one(
        "F.scaled_dot_product_attention", [(1, 12, 197, 64)] * 3,
        {"attn_mask": None, "dropout_p": 0.0, "is_causal": False},
    ),
    "layer_norm 197 x 768": lambda: one(
        "nn.LayerNorm", [(1, 197, 768)],
        {"elementwise_affine": True, "eps": 1e-5, "normalized_shape": (768,)},
        {"bias": (768,), "weight": (768,)},
    ),
    "softmax 12 x 197 x 197": lambda: one("F.softmax", [(12, 197, 197)], {"dim": -1}),
    "elementwise a b + c @56 x 256": lambda: one(
        "pnnx.Expression", [(1, 256, 56, 56)] * 3, {"expr": "add(mul(@0,@1),@2)"}
    ),
    "elementwise gelu 197 x 3072": lambda: one("F.gelu", [(197, 3072)], {"approximate": "none"}),
    "elementwise silu @56 x 144": lambda: one("F.silu", [(1, 144, 56, 56)]),
    "resize bilinear 64 @64 to 128": lambda: one(
        "F.interpolate", [(1, 64, 64, 64)],
        {"mode": "bilinear", "scale_factor": (2.0, 2.0), "align_corners": False,
         "recompute_scale_factor": None},
    ),
}  # fmt: skip


def is_dense(name: str) -> bool:
    words = ("depthwise", "groups", "transposed", " 3-", "1 x")
    return name.startswith(("conv", "linear")) and not any(word in name for word in words)


def in_precision(model: Model, inputs, precision: str) -> Model:
    """Return a model of a dense layer that reads and writes a type, with a layer after it."""
    graph = model.graph
    (layer,) = (operator for operator in graph if operator.name == "op")
    (output,) = (operator for operator in graph if operator.type == "pnnx.Output")
    columns = layer.attributes["weight"].shape[0]
    is_conv = layer.type == "nn.Conv2d"
    after = conv(columns, 16, 1) if is_conv else linear(1, columns, 16)
    (follower,) = (operator for operator in after[0].graph if operator.name == "op")
    graph.remove_operator(output)
    graph.add_operator(
        follower.type, "next", ["y"], ["z"], params=follower.params, attributes=follower.attributes
    )
    graph.add_operator("pnnx.Output", "out", ["z"])
    if precision == "int8":
        return kuiper.quantize(Model(graph), inputs)
    return Model(graph, precision=precision)


def measure(make, runs: int, precision: str) -> dict:
    """Return seconds (median), operations and bytes of a layer, without copies and conversions."""
    model, inputs = make()
    if precision != "float32":
        model = in_precision(model, inputs, precision)
    rows = [
        row
        for row in model.profile(*inputs, runs=runs).rows
        if row["kind"] not in ("copy", "convert") and row["name"] == "op"
    ]
    return {
        "kernels": "+".join(dict.fromkeys(row["kind"] for row in rows)),
        "seconds": sum(row["seconds"] for row in rows),
        "gflop": sum(row["gflops"] * row["seconds"] for row in rows),
        "gbyte": sum(row["gbytes"] * row["seconds"] for row in rows),
    }


def ceiling(precision: str, threads: int) -> float:
    """Return the GFLOP/s of multiply-adds in registers.

    Instructions that sum four products of bytes run at the rate of those of one of floats.
    """
    best, end = 0.0, time.perf_counter() + 0.5
    while time.perf_counter() < end:
        start = time.perf_counter()
        count = dispatch.multiply_adds(20_000, threads, precision == "bfloat16")
        best = max(best, count / (time.perf_counter() - start) / 1e9)
    return best * (4 if precision == "int8" else 1)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n\n")[0], formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=kuiper.get_num_threads())
    parser.add_argument("--only", default="", help="layers whose names contain this")
    parser.add_argument("--runs", type=int, default=30, help="how many runs; medians count")
    parser.add_argument(
        "--rounds", type=int, default=3, help="how often, the others in between; the best counts"
    )
    parser.add_argument("--precision", choices=PRECISIONS, default="float32")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    options = parser.parse_args()
    kuiper.set_num_threads(options.threads)
    peaks = measure_peaks(2.0)
    if options.precision != "float32":
        peaks = peaks._replace(gflops=ceiling(options.precision, options.threads))
    caches = ", ".join(f"{speed:.0f} up to {size / 2**20:g} MiB" for size, speed in peaks.caches)
    print(
        f"{options.threads} threads: {peaks.gflops:.0f} GFLOP/s; GB/s: {caches}, "
        f"{peaks.gbytes:.1f} beyond\n"
    )
    print(
        f"{'layer':34} {'kernels':44} {'us':>9} {'GFLOP/s':>8} {'GB/s':>7} {'of the ceiling':>14}"
    )
    chosen = {
        name: make
        for name, make in LAYERS.items()
        if options.only in name and (options.precision == "float32" or is_dense(name))
    }
    best = {}
    for _ in range(options.rounds):
        for name, make in chosen.items():
            f = measure(make, options.runs, options.precision)
            best[name] = min(f, best.get(name, f), key=lambda figure: figure["seconds"])
    figures = []
    for name, f in best.items():
        speed, flow = f["gflop"] / f["seconds"], f["gbyte"] / f["seconds"]
        share = max(speed / peaks.gflops, flow / peaks.bandwidth(f["gbyte"] * 1e9))
        print(
            f"{name:34} {f['kernels']:44} {f['seconds'] * 1e6:9.1f} {speed:8.1f} {flow:7.1f} "
            f"{share:14.0%}",
            flush=True,
        )
        figures.append({"layer": name, **f, "share": share})
    if options.json:
        ceilings = {"threads": options.threads, **peaks._asdict()}
        options.json.write_text(json.dumps({"ceiling": ceilings, "layers": figures}, indent=1))
