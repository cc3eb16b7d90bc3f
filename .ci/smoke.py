"""Check an installation of kuiper with numpy only.

    python .ci/smoke.py examples/models

Imports the installed kuiper, runs the bundled models on random input, and prints the cost of the
import without numpy's.
"""

import importlib.metadata
import statistics
import subprocess
import sys
from pathlib import Path

import numpy as np

import kuiper

IMPORT_BUDGET_MS = 30


def check_origin() -> None:
    """Fail if kuiper was not imported from this environment, or has imported other packages."""
    where = Path(kuiper.__file__).resolve()
    assert where.is_relative_to(Path(sys.prefix).resolve()), f"imported from {where}"
    assert importlib.metadata.version("kuiper-runtime") == kuiper.__version__
    requires = importlib.metadata.requires("kuiper-runtime") or []
    assert [r for r in requires if "extra ==" not in r] == ["numpy>=1.24"], requires
    print(kuiper.show_config())


def check_model(path: Path) -> None:
    """Run a model on random input and check that the output is finite and not constant."""
    model = kuiper.load(path)
    rng = np.random.default_rng(1)
    inputs = [rng.standard_normal(t.shape).astype(np.float32) for t in model.inputs]
    outputs = model(*inputs)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    for info, y in zip(model.outputs, outputs, strict=True):
        assert y.shape == info.shape, f"{path.name}: {y.shape}, not {info.shape}"
        assert y.dtype == np.float32
        assert np.isfinite(y).all(), f"{path.name}: not finite"
        assert y.std() > 1e-6, f"{path.name}: constant output"
        print(f"{path.name}: {info.name} {y.shape}, {y.min():.4g} .. {y.max():.4g}")


def import_ms(statement: str) -> float:
    """Return the median time of an import statement in new interpreters that have imported numpy.

    It is the processor time of the importing thread: other programs affect it less than wall time,
    and it excludes the threads of numpy's BLAS, which spin at their start and double the processor
    time of the process.
    """
    code = (
        "import numpy, time; start = time.thread_time()\n"
        f"{statement}\nprint((time.thread_time() - start) * 1000)"
    )
    times = []
    for _ in range(7):
        run = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        )
        times.append(float(run.stdout))
    return statistics.median(times)


def main() -> int:
    """Run all checks; a failing assertion ends the program with a traceback."""
    check_origin()
    models = sorted(Path(sys.argv[1]).glob("*.pnnx.param"))
    assert models, f"no models in {sys.argv[1]}"
    for path in models:
        check_model(path)
    elapsed = import_ms("import kuiper")
    print(f"import kuiper: {elapsed:.1f} ms beyond numpy (budget {IMPORT_BUDGET_MS} ms)")
    # The budget is for an idle machine; only an excess beyond noise fails the run.
    return int(elapsed > 2 * IMPORT_BUDGET_MS)


if __name__ == "__main__":
    sys.exit(main())
