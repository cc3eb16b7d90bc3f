"""Options and parameters of the whole suite."""

from __future__ import annotations

from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--model-zoo",
        metavar="DIR",
        help="also run every model of DIR/<name>/<name>.pnnx.param against DIR/<name>/golden.npz",
    )


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
