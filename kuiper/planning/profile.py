"""Profiles: the time of each step of a plan."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from kuiper._support.lazy import method_of
from kuiper.planning.plan import Plan
from kuiper.planning.segments import SegmentedPlan

__all__ = ["Profile", "algorithms_text", "count_algorithms"]


def count_algorithms(names: Mapping[str, str | None]) -> dict[str, int]:
    """Return the number of uses of each algorithm, given those of operators; most used first."""
    return dict(Counter(name for name in names.values() if name is not None).most_common())


def algorithms_text(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} by {name}" for name, count in counts.items())


def _choice(step: Any) -> dict[str, Any]:
    choice = step.algorithm
    if choice is None:
        return {"algorithm": None, "left": {}}
    return {"algorithm": choice.name, "left": choice.left}


class Profile:
    """Times of the steps of a plan, in seconds; prints as a table.

    Attributes
    ----------
    rows : list of dict
        Per step: `name` (of the operator), `type`, `kind` (of the kernel), `seconds`, `share`,
        `gflops` (10^9 operations per second), `gbytes` (10^9 bytes per second), `saved_flops` (the
        operations of the definition that Winograd's or Strassen's algorithm does without, on the
        last step of an operator); of a convolution
        `algorithm`, the name of the chosen one, and `left`, the reason against each other one by
        name; of other operators None and empty; `precision`, ``"float32"`` or ``"bfloat16"``, and
        `float32_reason`, why an operator of a model in bfloat16 computes in float32, else None.
    total : float
        Sum over all steps.
    """

    def __init__(
        self,
        plan: Plan | SegmentedPlan,
        steps: Sequence[Any],
        seconds: np.ndarray,
        types: Mapping[str, str],
    ) -> None:
        self.total = float(seconds.sum())
        self.n_threads = plan.n_threads
        self.arena_bytes = plan.arena_bytes
        reasons = plan.float32_reasons
        self.rows = [
            {
                "name": step.name,
                "type": types.get(step.name, step.name),
                "kind": step.kind,
                **_choice(step),
                "seconds": float(t),
                "share": float(t) / self.total if self.total else 0.0,
                "gflops": step.flops / t / 1e9 if t > 0 else 0.0,
                "gbytes": step.bytes / t / 1e9 if t > 0 else 0.0,
                "saved_flops": step.saved_flops,
                "precision": "float32" if reasons is None or step.name in reasons else "bfloat16",
                "float32_reason": None if reasons is None else reasons.get(step.name),
            }
            for step, t in zip(steps, seconds, strict=True)
        ]

    def by_algorithm(self) -> dict[str, int]:
        """Return the number of convolutions by algorithm."""
        return count_algorithms({row["name"]: row["algorithm"] for row in self.rows})

    def precisions_text(self) -> str:
        """Return how many operators compute in which precision; empty if all are in float32."""
        by_operator = {row["name"]: row for row in self.rows}
        if all(row["precision"] == "float32" for row in self.rows):
            return ""
        counts = Counter(row["precision"] for row in by_operator.values())
        parts = [f"{counts['bfloat16']} operators in bfloat16"]
        converted = sum(row["kind"] == "convert" for row in self.rows)
        if converted:
            seconds = sum(row["seconds"] for row in self.rows if row["kind"] == "convert")
            share = seconds / self.total if self.total else 0.0
            parts.append(f"{converted} conversions ({share:.1%} of the time)")
        reasons = Counter(row["float32_reason"] for row in by_operator.values())
        parts += [f"{n} in float32: {reason}" for reason, n in reasons.items() if reason]
        return "; ".join(parts)

    def by_kind(self) -> list[dict[Any, Any]]:
        """Return the rows summed by kernel, slowest first."""
        groups: dict[str, dict[Any, Any]] = {}
        for row in self.rows:
            group = groups.setdefault(
                row["kind"], {"kind": row["kind"], "count": 0, "seconds": 0.0, "share": 0.0}
            )
            group["count"] += 1
            group["seconds"] += row["seconds"]
            group["share"] += row["share"]
        return sorted(groups.values(), key=lambda g: -g["seconds"])

    def save_trace(self, path: str | os.PathLike[str]) -> None:
        """Write the steps as a trace, which chrome://tracing and ui.perfetto.dev show.

        Parameters
        ----------
        path : str or os.PathLike
            The JSON file to write.  Steps follow one another without the gaps of a real run, since
            their times are medians; all threads share each step.
        """
        title = f"{self.n_threads} threads"
        events: list[dict[str, Any]] = [
            {"ph": "M", "pid": 1, "tid": 1, "name": key, "args": {"name": name}}
            for key, name in (("process_name", "kuiper"), ("thread_name", title))
        ]
        start = 0.0
        for row in self.rows:
            event = {"ph": "X", "pid": 1, "tid": 1, "name": row["name"], "cat": row["kind"]}
            keys = ("type", "kind", "algorithm", "gflops", "gbytes")
            known = {key: row[key] for key in keys if row[key]}
            duration = row["seconds"] * 1e6
            events.append({**event, "ts": start, "dur": duration, "args": known})
            start += duration
        with open(path, "w", encoding="utf-8") as file:
            json.dump({"displayTimeUnit": "ms", "traceEvents": events}, file)

    _repr_html_ = method_of("kuiper.report.notebook", "profile_html")

    def __repr__(self) -> str:
        total = f"{self.total * 1e3:.3f} ms, {self.n_threads} threads"
        return f"<kuiper.Profile: {len(self.rows)} steps, {total}>"

    def __str__(self) -> str:
        kernel = max([len(r["kind"]) for r in self.rows] + [16])
        # Kernels are in the first column, too, below the operators.
        width = max([len(text) for r in self.rows for text in (r["name"], r["kind"])] + [8])
        titles = f"{'us':>9} {'share':>6} {'GFLOP/s':>8} {'GB/s':>6}"
        lines = [f"{'operator':{width}}  {'kernel':{kernel}} {titles}"]
        for r in self.rows:
            figures = f"{r['seconds'] * 1e6:9.1f} {r['share']:6.1%}"
            lines.append(
                f"{r['name']:{width}}  {r['kind']:{kernel}} {figures} {r['gflops']:8.1f} "
                f"{r['gbytes']:6.1f}"
            )
        lines.append("")
        for g in self.by_kind():
            figures = f"{g['seconds'] * 1e6:9.1f} {g['share']:6.1%}"
            steps = f"{g['count']:4d} steps"
            lines.append(f"{g['kind']:{width}}  {steps:{kernel}} {figures}")
        if counts := self.by_algorithm():
            lines.append(f"convolutions: {algorithms_text(counts)}")
        if text := self.precisions_text():
            lines.append(text)
        lines.append(
            f"total {self.total * 1e3:.3f} ms, {self.n_threads} threads, "
            f"arena {self.arena_bytes / 2**20:.1f} MiB"
        )
        return "\n".join(lines)
