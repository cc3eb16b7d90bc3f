"""Calls in process, to compare a server with: as many threads as there are clients.

Reads commands as lines of JSON and answers with lines of JSON; `compare` starts it.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from typing import Any

import numpy as np

import kuiper
from common import images

MODELS: dict[str, tuple[kuiper.Model, list[np.ndarray]]] = {}


def load(name: str, path: str, case: str, mixed: bool) -> dict[str, Any]:
    """Load a model, and write inputs and results to a file.

    Parameters
    ----------
    name, path : str
    case : str
        The npz file.
    mixed : bool
        Whether the inputs have several shapes.
    """
    model = kuiper.load(path)
    shape = model.inputs[0].shape or ()
    extents = tuple(n or 224 for n in shape[1:])
    shapes = [(1, *extents)] * 4
    if mixed:
        shapes += [
            (2, *extents),
            (3, *extents),
            (1, extents[0], 192, 160),
            (1, extents[0], 256, 256),
        ]
    inputs = [images(shape, seed) for seed, shape in enumerate(shapes)]
    results = [model(x) for x in inputs]
    arrays = {f"x{n}": x for n, x in enumerate(inputs)} | {
        f"y{n}": y for n, y in enumerate(results)
    }
    np.savez(case, input=model.inputs[0].name, output=model.outputs[0].name, **arrays)
    MODELS[name] = (model, inputs[:4])
    return {"input_bytes": inputs[0].nbytes}


def burst(model: str, clients: int, seconds: float) -> dict[str, Any]:
    """Call a model from some threads for some seconds; as `clients.burst`, with ``cpu``."""
    network, inputs = MODELS[model]
    latencies: list[float] = []
    begin, before = time.perf_counter(), time.process_time()

    def work(number: int) -> None:
        while time.perf_counter() - begin < seconds:
            start = time.perf_counter()
            network(inputs[number % len(inputs)])
            latencies.append(1e3 * (time.perf_counter() - start))
            number += 1

    threads = [threading.Thread(target=work, args=(client,)) for client in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {
        "seconds": time.perf_counter() - begin,
        "cpu": time.process_time() - before,
        "statuses": {"200": len(latencies)},
        "ms": latencies,
        "wrong": 0,
    }


def main() -> None:
    """Answer commands until the input ends."""
    functions = {"load": load, "burst": burst}
    for line in sys.stdin:
        command = json.loads(line)
        print(json.dumps(functions[command.pop("do")](**command)), flush=True)
