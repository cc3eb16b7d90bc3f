"""One sweep over memory: an expression of six tensors against numpy and against copying.

``add(add(mul(@0,@1),mul(@2,add(add(add(@0,@2),@3),@4))),@5)`` on six tensors of 1x64x112x112 reads
19 MB and writes 3 MB.  Copying 3.5 tensors moves as many bytes, copying all six 38 MB.  The
contenders alternate, so that the memory of each is cold; median and minimum are reported.

Run: ``python benchmarks elementwise``; numpy uses one thread, and so does kuiper with
``KUIPER_NUM_THREADS=1`` in the environment.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

import kuiper
from kuiper.expression import compile

TEXT = "add(add(mul(@0,@1),mul(@2,add(add(add(@0,@2),@3),@4))),@5)"
SHAPE = (1, 64, 112, 112)
ROUNDS = 50


def seconds(function: Callable) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def main():
    rng = np.random.default_rng(0)
    a, b, c, d, e, f = tensors = [rng.standard_normal(SHAPE, np.float32) for _ in range(6)]
    copies = [np.empty_like(x) for x in tensors]
    result = np.empty_like(a)
    half = SHAPE[1] // 2
    expression = compile(TEXT)
    print(f"kuiper with {kuiper.get_num_threads()} threads, numpy with one")

    def copy_six():
        for x, y in zip(tensors, copies, strict=True):
            np.copyto(y, x)

    def copy_the_same_bytes():
        for x, y in zip(tensors[:3], copies[:3], strict=True):
            np.copyto(y, x)
        np.copyto(copies[3][:, :half], tensors[3][:, :half])

    contenders = {
        "expression": lambda: expression(*tensors, out=result),
        "numpy": lambda: a * b + c * (a + c + d + e) + f,
        "copying as many bytes": copy_the_same_bytes,
        "copying the operands": copy_six,
    }
    assert np.array_equal(contenders["expression"](), contenders["numpy"]())
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(ROUNDS):
        for name, function in contenders.items():
            times[name].append(seconds(function))
    print(f"{'':24s} {'median':>10s} {'best':>10s}")
    for name, values in times.items():
        print(f"{name:24s} {np.median(values) * 1e3:7.3f} ms {min(values) * 1e3:7.3f} ms")
