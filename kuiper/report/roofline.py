"""Peaks of this machine, and the part of them that each operator reaches."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from kuiper._kernels.micro import dispatch
from kuiper._support.threads import get_num_threads
from kuiper.ir import Graph
from kuiper.model import Model

__all__ = ["Peaks", "by_operator", "by_type", "measure_peaks", "with_roofline"]

# Numbers of float32 elements whose addition measures the caches and memory.
LENGTHS = (1 << 16, 1 << 18, 1 << 20, 1 << 22)
MEMORY_LENGTH = 1 << 24  # 64 MiB: more than the caches of most machines
CHAIN = 16  # operators per run in caches
COLUMNS = 1024  # of the rows whose sums are only read
ROUNDS = 40_000  # of multiply-adds: about 0.1 ms


class Peaks(NamedTuple):
    """Peaks of the machine with the current number of threads.

    Attributes
    ----------
    gflops : float
        GFLOP/s of float32 multiply-adds in the registers of all threads at once.
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

        An operator above a peak shows that the measurement of the peak was disturbed.

        Parameters
        ----------
        rows : sequence of dict
            Of :func:`by_operator`.

        Returns
        -------
        Peaks
        """
        gflops = max([self.gflops, *(row["gflops"] for row in rows)])
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
    """Measure the peaks: multiply-adds in registers, additions and sums in the caches and memory.

    The peak in bytes is that of additions, which read and write, or of sums, which only read,
    whichever is higher.

    Parameters
    ----------
    seconds : float
        Approximate duration.  The trials alternate quickly and the best run of each counts, so
        that a short disturbance of the machine affects no result.

    Returns
    -------
    Peaks
    """
    trials: list[Callable[[], float]]
    trials = [partial(dispatch.multiply_adds, ROUNDS, get_num_threads())]
    for length, count in (*((length, CHAIN) for length in LENGTHS), (MEMORY_LENGTH, 1)):
        trials += [_traffic(length, count, reads=False), _traffic(length, count, reads=True)]
    best = [0.0] * len(trials)
    end = time.perf_counter() + seconds
    while True:
        for number, trial in enumerate(trials):
            turn = time.perf_counter() + seconds / (5 * len(trials))
            while True:
                start = time.perf_counter()
                work = trial()
                now = time.perf_counter()
                best[number] = max(best[number], work / (now - start) / 1e9)
                if now >= turn:
                    break
        if time.perf_counter() >= end:
            break
    gflops, *speeds = best
    both = [max(pair) for pair in zip(speeds[::2], speeds[1::2], strict=True)]
    # A smaller cache is never slower, except for disturbed measurements.
    caches = [max(both[i:]) for i in range(len(both))]
    sizes = [8 * length for length in LENGTHS]
    return Peaks(gflops, both[-1], tuple(zip(sizes, caches[:-1], strict=True)))


def _traffic(length: int, count: int, reads: bool) -> Callable[[], float]:
    """Return a trial of a model with `count` operators; it returns the bytes they touch.

    Each adds 1 to the result of the one before: `length` numbers read, as many written.  If it
    only `reads`, each sums the rows of the input, of twice as many numbers.  Several operators in
    a call, or the call from Python would take longer than one of them.
    """
    if reads:
        model = _model("torch.sum", {"dim": (1,), "keepdim": False}, count, is_chain=False)
        shape: tuple[int, ...] = (2 * length // COLUMNS, COLUMNS)
    else:
        model = _model("pnnx.Expression", {"expr": "add(@0,1.0)"}, count, is_chain=True)
        shape = (length,)
    x = np.ones(shape, np.float32)
    results = model(x)

    def trial() -> float:
        model(x, out=results)
        return 8.0 * length * count

    return trial


def _model(type: str, params: dict[str, Any], count: int, is_chain: bool) -> Model:
    """Return a model of equal operators without fusion: a chain, or side by side."""
    graph = Graph()
    graph.add_operand("0", None, "f32")
    graph.add_operator("pnnx.Input", "in", outputs=["0"])
    for number in range(count):
        inputs, outputs = [str(number if is_chain else 0)], [str(number + 1)]
        graph.add_operator(type, f"op_{number}", inputs, outputs, params=params)
    first = count if is_chain else 1
    for number in range(first, count + 1):
        graph.add_operator("pnnx.Output", f"out_{number}", [str(number)])
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
        a convolution, or None), `saved_flops`, `seconds`, `share`, `gflops`, `gbytes`.
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
            "saved_flops": sum(step.get("saved_flops", 0.0) for step in steps),
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
