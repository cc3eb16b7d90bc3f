"""Measure the five convolutions of chapter 5.

    python docs/tutorial/measure_convolution.py

Each is timed on the largest size that it finishes in a moment, and reported in operations per
second, so that the sizes do not matter.  The functions come out of the chapter itself.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

import kuiper
from kuiper.ops.product import algorithms

CHAPTER = Path(__file__).with_name("05-convolution.md")


def functions() -> dict[str, Callable]:
    """Return the functions that the chapter defines."""
    names: dict = {"np": np}
    for block in re.findall(r"```python\n(.*?)```", CHAPTER.read_text("utf-8"), re.DOTALL):
        lines = [line[4:] for line in block.splitlines() if line.startswith((">>> ", "... "))]
        for part in re.split(r"\n(?=\S)", "\n".join(lines)):
            if part.startswith(("def ", "import ")):
                exec(part, names)
    return names


def gflops(run: Callable[[], object], channels: int, extent: int, seconds: float = 1.0) -> float:
    """Return billions of operations per second of the definition: the best of some runs."""
    best, end = float("inf"), time.perf_counter() + seconds
    while True:
        start = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - start)
        if time.perf_counter() > end:
            return 2.0 * channels * channels * 9 * extent * extent / best / 1e9


def main(seconds: float = 1.0) -> None:
    """Print the table of the chapter; measure each way for about so long."""
    names = functions()
    rng = np.random.default_rng(0)

    def tensors(channels: int, extent: int):
        x = rng.standard_normal((channels, extent, extent)).astype(np.float32)
        return x, rng.standard_normal((channels, channels, 3, 3)).astype(np.float32)

    rows = []
    x, w = tensors(8, 14)
    run = names["naive"]
    rows.append(("seven loops in Python", gflops(lambda: run(x, w, 1), 8, 14, seconds)))
    x, w = tensors(64, 56)
    for label, name in (("im2col", "im2col"), ("implicit GEMM", "implicit_gemm")):
        run = names[name]
        speed = gflops(lambda r=run: r(x, w, 1), 64, 56, seconds)
        rows.append((f"{label} with numpy", speed))
    chosen = algorithms.ALGORITHMS
    for label, name in (("implicit GEMM in kuiper", "gemm"), ("Winograd in kuiper", "winograd")):
        algorithms.ALGORITHMS = tuple(kind for kind in chosen if kind.name == name)
        try:
            model = names["with_kuiper"](x, w)
            out = model(x[None])
        finally:
            algorithms.ALGORITHMS = chosen
        kinds = {step.kind for step in model.plan(x[None].shape).steps}
        assert any("winograd" in kind for kind in kinds) == (name == "winograd"), kinds
        speed = gflops(lambda m=model, y=out: m(x[None], out=y), 64, 56, seconds)
        rows.append((label, speed))
    print(f"{kuiper.show_config()['isa']}, {kuiper.get_num_threads()} threads\n")
    print("| | GFLOP/s | ms |\n|---|--:|--:|")
    for label, speed in rows:
        ms = 2.0 * 64 * 64 * 9 * 56 * 56 / speed / 1e6
        time_text = f"{ms:,.0f}" if ms > 100 else f"{ms:.3g}"
        print(f"| {label} | {speed:.3g} | {time_text} |")


if __name__ == "__main__":
    main()
