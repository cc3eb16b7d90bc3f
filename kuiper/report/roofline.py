"""Peaks of this machine, and the part of them that each operator reaches."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from kuiper.ir import Attribute, Graph
from kuiper.model import Model

__all__ = ["Peaks", "by_operator", "by_type", "measure_peaks", "with_roofline"]

# Numbers of float32 elements whose addition measures the caches and memory.
LENGTHS = (1 << 16, 1 << 18, 1 << 20, 1 << 22)
MEMORY_LENGTH = 1 << 24  # 64 MiB: more than the caches of most machines
CHAIN = 16  # additions per run in caches


class Peaks(NamedTuple):
    """Peaks of the machine with the current number of threads.

    Attributes
    ----------
    gflops : float
        GFLOP/s of a float32 matrix product in the caches.
    gbytes : float
        GB/s read from and written to memory, in sum.
    caches : tuple of (int, float)
        Bytes that an operator touches, ascending, and the GB/s if the previous operator left them
        in the caches.  Operators that touch more bytes than the last use memory.
    """

    gflops: float
    gbytes: float
    caches: tuple[tuple[int, float], ...] = ()

    def bandwidth(self, n_bytes: float) -> float:
        """Return the peak in GB/s for an operator that reads and writes `n_bytes`."""
        if not self.caches or n_bytes <= 0:
            return self.gbytes
        points = (*self.caches, (4 * self.caches[-1][0], self.gbytes))
        sizes, speeds = zip(*points, strict=True)
        return float(np.interp(np.log2(n_bytes), np.log2(sizes), speeds))

    def raised(self, rows: Sequence[Mapping[str, Any]]) -> Peaks:
        """Return peaks that no operator exceeds.

        An operator above a peak shows that the measurement of the peak was disturbed.  Winograd
        does not count for `gflops`, since it does fewer operations than are counted.

        Parameters
        ----------
        rows : sequence of dict
            Of :func:`by_operator`.

        Returns
        -------
        Peaks
        """
        plain = [row for row in rows if not any("winograd" in kind for kind in row["kernels"])]
        gflops = max([self.gflops, *(row["gflops"] for row in plain)])
        peaks = self
        for row in rows:
            n_bytes = row["gbytes"] * row["seconds"] * 1e9
            times = row["gbytes"] / peaks.bandwidth(n_bytes)
            if times > 1:
                peaks = peaks._faster(n_bytes, times)
        return peaks._replace(gflops=gflops)

    def _faster(self, n_bytes: float, times: float) -> Peaks:
        """Return peaks with `times` the bandwidth for `n_bytes`, and at least that for fewer.

        Only the points on either side are scaled: a disturbed measurement of memory does not imply
        one of the caches.
        """
        if not self.caches:
            return self._replace(gbytes=self.gbytes * times)
        sizes = [size for size, _ in self.caches]
        speeds = [*(speed for _, speed in self.caches), self.gbytes]
        ends = [*sizes, 4 * sizes[-1]]  # as in `bandwidth`: only memory beyond the last
        if n_bytes >= ends[-1]:
            speeds[-1] *= times
        else:
            right = bisect_left(ends, n_bytes)
            for point in {right if n_bytes == ends[right] else max(0, right - 1), right}:
                speeds[point] *= times
        speeds = [max(speeds[i:]) for i in range(len(speeds))]
        return self._replace(gbytes=speeds[-1], caches=tuple(zip(sizes, speeds, strict=False)))


def measure_peaks(seconds: float = 0.5) -> Peaks:
    """Measure the peaks with kuiper's kernels: a matrix product, and additions.

    Parameters
    ----------
    seconds : float
        Approximate duration.  The trials alternate quickly and the best run of each counts, so
        that a short disturbance of the machine affects no result.

    Returns
    -------
    Peaks
    """
    rows, inner, columns = 448, 512, 512
    weight = Attribute.from_array(np.full((columns, inner), 0.5, np.float32))
    params = {"bias": False, "in_features": inner, "out_features": columns}
    product = _model("nn.Linear", params, {"weight": weight})
    # A chain: the call from Python would take longer than an addition of a few thousand numbers.
    additions = _model("pnnx.Expression", {"expr": "add(@0,1.0)"}, {}, CHAIN)
    addition = _model("pnnx.Expression", {"expr": "add(@0,1.0)"}, {})
    trials: list[tuple[Model, tuple[int, ...], float]]
    trials = [(product, (rows, inner), 2.0 * rows * inner * columns)]
    trials += [(additions, (length,), 8.0 * length * CHAIN) for length in LENGTHS]
    trials.append((addition, (MEMORY_LENGTH,), 8.0 * MEMORY_LENGTH))
    arrays = [np.ones(shape, np.float32) for _, shape, _ in trials]
    results = [model(x) for (model, _, _), x in zip(trials, arrays, strict=True)]
    best = [float("inf")] * len(trials)
    end = time.perf_counter() + seconds
    while True:
        for number, (model, _, _) in enumerate(trials):
            turn = time.perf_counter() + seconds / 50
            while True:
                start = time.perf_counter()
                model(arrays[number], out=results[number])
                now = time.perf_counter()
                best[number] = min(best[number], now - start)
                if now >= turn:
                    break
        if time.perf_counter() >= end:
            break
    speeds = [work / t / 1e9 for (_, _, work), t in zip(trials, best, strict=True)]
    # A smaller cache is never slower, except for disturbed measurements.
    caches = [max(speeds[i:]) for i in range(1, len(speeds))]
    sizes = [8 * length for length in LENGTHS]
    return Peaks(speeds[0], speeds[-1], tuple(zip(sizes, caches[:-1], strict=True)))


def _model(
    type: str, params: dict[str, Any], attributes: dict[str, Attribute], count: int = 1
) -> Model:
    """Return a model of one operator, or of a chain of them without fusion."""
    graph = Graph()
    graph.add_operand("0", None, "f32")
    graph.add_operator("pnnx.Input", "in", outputs=["0"])
    for number in range(count):
        inputs, outputs = [str(number)], [str(number + 1)]
        graph.add_operator(
            type, f"op_{number}", inputs, outputs, params=params, attributes=attributes
        )
    graph.add_operator("pnnx.Output", "out", [str(count)])
    return Model(graph, optimize=False)


def by_operator(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Sum the rows of a profile by operator.

    Parameters
    ----------
    rows : sequence of dict
        One per step, as in :attr:`kuiper.Profile.rows`.

    Returns
    -------
    list of dict
        In order of their first steps: `name`, `type`, `kernels` (a list of kinds), `algorithm` (of
        a convolution, or None), `seconds`, `share`, `gflops`, `gbytes`.
    """
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault(row["name"], []).append(row)
    return [
        {
            "name": name,
            "type": steps[0]["type"],
            "kernels": [step["kind"] for step in steps],
            "algorithm": next(filter(None, (step.get("algorithm") for step in steps)), None),
            **_summed(steps),
        }
        for name, steps in groups.items()
    ]


def with_roofline(rows: Sequence[Mapping[str, Any]], peaks: Peaks | None) -> list[dict[str, Any]]:
    """Add `roofline` to the rows of a profile: the fraction of the possible speed.

    The possible speed is limited by arithmetic, or by the cache or memory that holds the bytes,
    whichever takes longer.  `roofline` is None without peaks or without counted work.

    Parameters
    ----------
    rows : sequence of dict
        From :func:`by_operator`, or single steps.
    peaks : Peaks or None

    Returns
    -------
    list of dict
    """
    result = []
    for row in rows:
        share = None
        if peaks is not None and row["seconds"] > 0:
            n_bytes = row["gbytes"] * row["seconds"] * 1e9
            needed = max(row["gflops"] / peaks.gflops, row["gbytes"] / peaks.bandwidth(n_bytes))
            share = needed or None
        result.append({**row, "roofline": share})
    return result


def by_type(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Sum rows of operators by type, the slowest first.

    Parameters
    ----------
    rows : sequence of dict
        From :func:`with_roofline`.

    Returns
    -------
    list of dict
        `type`, `count` (of operators), `seconds`, `share`, `gflops`, `gbytes`, `roofline`.
    """
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault(row["type"], []).append(row)
    result = []
    for type, members in groups.items():
        total = _summed(members)
        known = [row["roofline"] * row["seconds"] for row in members if row.get("roofline")]
        roofline = sum(known) / total["seconds"] if known else None
        count = len({row["name"] for row in members})
        result.append({"type": type, "count": count, **total, "roofline": roofline})
    return sorted(result, key=lambda group: -group["seconds"])


def _summed(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the total time and the mean speeds of rows."""
    seconds = sum(row["seconds"] for row in rows)
    return {
        "seconds": seconds,
        "share": sum(row["share"] for row in rows),
        **{
            key: sum(row[key] * row["seconds"] for row in rows) / seconds if seconds else 0.0
            for key in ("gflops", "gbytes")
        },
    }
