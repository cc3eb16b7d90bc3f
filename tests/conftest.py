"""Options and hooks of the whole suite."""

from __future__ import annotations

import gc
import os
import signal
from collections import Counter
from pathlib import Path

import pytest

MODELS = Path(__file__).resolve().parents[1] / "examples" / "models"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--model-zoo",
        metavar="DIR",
        help="also run every model of DIR/<name>/<name>.pnnx.param against DIR/<name>/golden.npz",
    )

    parser.addoption(
        "--every",
        type=int,
        default=1,
        metavar="N",
        help="run every N-th test of each file only, where a build or an emulator is slow",
    )


def pytest_configure(config: pytest.Config) -> None:
    # A non-interactive shell starts a background job (`pytest &`) with SIGINT ignored, which the
    # programs whose Ctrl-C is tested would inherit.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # An installation without -e and without the data package has no models of its own.
    if any(MODELS.glob("*.bin")):
        os.environ.setdefault("KUIPER_MODELS", str(MODELS))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    step = config.getoption("--every")
    if step <= 1:
        return
    counts: Counter[Path] = Counter()
    chosen, others = [], []
    for item in items:
        (others if counts[item.path] % step else chosen).append(item)
        counts[item.path] += 1
    config.hook.pytest_deselected(items=others)
    items[:] = chosen


def pytest_collection_finish(session: pytest.Session) -> None:
    # Every garbage collection in a test would traverse tens of thousands of items.
    gc.collect()
    gc.freeze()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "zoo_param" not in metafunc.fixturenames:
        return
    folder = metafunc.config.getoption("--model-zoo")
    if folder is None:
        skip = pytest.mark.skip(reason="needs --model-zoo DIR")
        metafunc.parametrize("zoo_param", [pytest.param(None, marks=skip, id="none")])
        return
    paths = [path.parent for path in sorted(Path(folder).glob("*/golden.npz"))]
    params = [param for path in paths for param in sorted(path.glob(f"{path.name}*.pnnx.param"))]
    if not params:
        raise pytest.UsageError(f"--model-zoo: {folder} holds no <name>/golden.npz with a model")
    metafunc.parametrize("zoo_param", params, ids=lambda param: param.name.split(".pnnx")[0])


def pytest_runtest_teardown(item: pytest.Item) -> None:
    # Functions that a test adds to the language of expressions would be those of all later models.
    from kuiper.expression.functions import CUSTOM

    if CUSTOM:
        from kuiper.expression import forget_parsed

        CUSTOM.clear()
        forget_parsed()
