"""Start, load a model, print the time of the first result and the memory; for :mod:`.measure`.

Imports as little as possible before the runtime. ``numpy`` as the runtime's name loads no runtime:
the lower bound of any Python program whose input is an array.
"""

import sys
import time

started = time.perf_counter()

from pathlib import Path  # noqa: E402

import numpy as np  # noqa: E402

from peers.runtimes import RUNTIMES  # noqa: E402


def peak_bytes() -> int:
    """Return the peak resident memory of this process."""
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def main() -> None:
    """Load, run once, report as one line of JSON."""
    name, folder, threads, image = sys.argv[1:]
    x = np.load(image)
    loading = time.perf_counter()
    if name == "numpy":
        loaded, result = loading, [x]
    else:
        runtime = RUNTIMES[name](Path(folder), int(threads), x.shape[0])
        loaded = time.perf_counter()
        result = runtime.run(x)
    total = float(sum(abs(y.astype(np.float64)).sum() for y in result))
    done = time.perf_counter()
    # The marker distinguishes this line from output of libraries.
    print(
        f'FIRST {{"import_and_load": {loaded - loading}, "run": {done - loaded}, '
        f'"since_start": {done - started}, "peak_bytes": {peak_bytes()}, "sum": {total}}}',
        flush=True,
    )
