"""Run one of the benchmarks: ``python benchmarks NAME [options]``; README.md describes them.

This folder, not its parent, is on the import path: kuiper is the installed one, or that of
PYTHONPATH, never accidentally the one of this checkout.
"""

import sys
from importlib import import_module

COMMANDS = {
    "peers": "peers.compare",
    "export": "peers.export",
    "cold": "cold.measure",
    "kernels": "kernels",
    "elementwise": "elementwise",
    "smoke": "smoke",
    "batch": "batch",
    "serving": "serving.compare",
    "serving-limits": "serving.limits",
    "serving-soak": "serving.soak",
    "zoo": "zoo.survey",
    "zoo-shapes": "zoo.shapes",
    "zoo-detectors": "zoo.detectors",
}
# Processes that `peers`, `cold` and `serving` start with the interpreter of each runtime.
PROCESSES = {
    "worker": "peers.worker",
    "first": "cold.first",
    "installed": "cold.installed",
    "serving-clients": "serving.clients",
    "serving-engine": "serving.engine",
    "serving-onnxruntime": "serving.with_onnxruntime",
    "serving-kserve": "serving.in_kserve",
    "serving-mlserver": "serving.in_mlserver",
    "serving-ray": "serving.in_ray",
}


def main() -> int | None:
    """Run the benchmark that the first argument names, with the others as its command line."""
    modules = COMMANDS | PROCESSES
    name = sys.argv.pop(1) if len(sys.argv) > 1 else ""
    if name not in modules:
        sys.exit(f"usage: python benchmarks NAME [options]; NAME is one of {', '.join(COMMANDS)}")
    sys.argv[0] = f"benchmarks {name}"
    return import_module(modules[name]).main()


if __name__ == "__main__":
    sys.exit(main())
