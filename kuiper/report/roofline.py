"""What this machine could do, and how near each operator comes to it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from kuiper.ir import Attribute, Graph
from kuiper.model import Model

__all__ = ["Peaks", "by_type", "measure_peaks", "with_roofline"]


class Peaks(NamedTuple):
    """Peaks of the machine with the current number of threads.

    Attributes
    ----------
    gflops : float
        Billions of float32 operations per second, in a matrix product that stays in the caches.
    gbytes : float
        Billions of bytes per second, read and written, from and to memory.
    """

    gflops: float
    gbytes: float


def measure_peaks(seconds: float = 0.3) -> Peaks:
    """Measure the peaks with kuiper's own kernels: a matrix product, and a long addition."""
    rows, inner, columns = 448, 512, 512
    weight = Attribute.from_array(np.full((columns, inner), 0.5, np.float32))
    params = {"bias": False, "in_features": inner, "out_features": columns}
    product = _model("nn.Linear", params, {"weight": weight})
    length = 1 << 24  # 64 MiB: beyond the caches of most machines
    addition = _model("pnnx.Expression", {"expr": "add(@0,1.0)"}, {})
    times = []
    for model, shape in ((product, (rows, inner)), (addition, (length,))):
        x = np.ones(shape, np.float32)
        out = model(x)
        best, end = float("inf"), time.perf_counter() + seconds / 2
        while time.perf_counter() < end:
            start = time.perf_counter()
            model(x, out=out)
            best = min(best, time.perf_counter() - start)
        times.append(best)
    flops = 2.0 * rows * inner * columns
    return Peaks(flops / times[0] / 1e9, 2.0 * 4 * length / times[1] / 1e9)


def _model(type: str, params: dict[str, Any], attributes: dict[str, Attribute]) -> Model:
    """Return a model of one operator."""
    graph = Graph()
    graph.add_operand("x", None, "f32")
    graph.add_operator("pnnx.Input", "in", outputs=["x"])
    graph.add_operator(type, "op", ["x"], ["y"], params=params, attributes=attributes)
    graph.add_operator("pnnx.Output", "out", ["y"])
    return Model(graph)


def with_roofline(rows: Sequence[Mapping[str, Any]], peaks: Peaks | None) -> list[dict[str, Any]]:
    """Return the rows of a profile with `roofline`: which part of the possible speed they reach.

    The possible speed is the peak of arithmetic or of memory, whichever takes longer.  None where
    the peaks are not known or nothing is counted.
    """
    result = []
    for row in rows:
        share = None
        if peaks is not None and row["seconds"] > 0:
            needed = max(row["gflops"] / peaks.gflops, row["gbytes"] / peaks.gbytes)
            share = needed or None
        result.append({**row, "roofline": share})
    return result


def by_type(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return times summed by operator type, slowest first."""
    groups: dict[str, dict[str, Any]] = {}
    for row in rows:
        group = groups.setdefault(
            row["type"], {"type": row["type"], "count": 0, "seconds": 0.0, "share": 0.0}
        )
        group["count"] += 1
        group["seconds"] += row["seconds"]
        group["share"] += row["share"]
    return sorted(groups.values(), key=lambda group: -group["seconds"])
