"""One runtime with one model in a separate process, driven through pipes.

:mod:`.compare` starts it. Commands are lines of JSON on standard input, answers lines on standard
output; between two commands the process sleeps in `read`. Output of the runtime goes to standard
error.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import numpy as np

from peers.runtimes import RUNTIMES

CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}


def burst(runtime, x: np.ndarray, command: dict) -> tuple[list[float], list[np.ndarray]]:
    """Time calls of `runtime` one by one for ``seconds``, at least ``least`` of them.

    Before that, about a fifth of ``seconds`` is spent on calls that are not counted: another
    process has used the caches in the meantime, and thread pools have to wake up.

    Parameters
    ----------
    runtime : Runtime
    x : ndarray
        The input of every call.
    command : dict
        ``seconds``, ``least`` and ``clock``, a key of CLOCKS.

    Returns
    -------
    times : list of float
        Seconds of each call.
    outputs : list of ndarray
        The result of the last one, which is checked.
    """
    now = time.perf_counter
    clock = CLOCKS[command["clock"]]
    warm_until = now() + 0.2 * command["seconds"]
    warm = 0
    runtime.prepare(x.shape)
    while warm < 1 or now() < warm_until:
        runtime.run(x)
        warm += 1
    times = []
    end = now() + command["seconds"]
    while len(times) < command["least"] or now() < end:
        started = clock()
        outputs = runtime.run(x)
        times.append(clock() - started)
    return times, outputs


def serve(commands, replies, runtime) -> None:
    """Answer commands until standard input closes."""
    for line in commands:
        command = json.loads(line)
        x = np.load(command["input"])
        try:
            if command["do"] == "run":
                times, outputs = [], runtime.run(x)
            else:
                times, outputs = burst(runtime, x, command)
            np.savez(command["output"], *outputs)
            answer = {"times": times}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=replies, flush=True)


def main() -> int:
    """Load the model named on the command line, report, serve."""
    name, folder, threads, batch = sys.argv[1:]
    # Libraries print to descriptor 1: keep the pipe for the replies, send the rest to 2.
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    try:
        started = time.perf_counter()
        runtime = RUNTIMES[name](Path(folder), int(threads), int(batch))
        seconds = time.perf_counter() - started
        answer = {"version": runtime.version(), "load_seconds": seconds}
    except ModuleNotFoundError as error:
        answer = {"missing": str(error)}
    except Exception as error:
        answer = {"error": f"{type(error).__name__}: {error}"}
    print(json.dumps(answer), file=replies, flush=True)
    if "version" in answer:
        serve(sys.stdin, replies, runtime)
    return 0
