"""Models and servers that several tests share."""

from __future__ import annotations

import importlib.util

import pytest

import kuiper

from ..support.textgraph import NETWORK, graph_of, text
from .process import serving

PACKAGES = ("uvicorn", "grpc", "google.protobuf", "prometheus_client", "tritonclient")

IMAGES = NETWORK.replace("pnnx.Input in 0 1 x", "pnnx.Input in 0 1 x #x=(1,3,16,16)f32")
TWO = text("pnnx.Expression e 2 1 a b y expr=sub(@0,@1)", inputs=("a", "b")).replace(
    "in_a 0 1 a", "in_a 0 1 a #a=(1,4)f32"
).replace("in_b 0 1 b", "in_b 0 1 b #b=(1,4)f32")  # fmt: skip


def has_packages() -> bool:
    """Tell whether the extra `serve` and the client are installed."""
    return all(importlib.util.find_spec(name.partition(".")[0]) is not None for name in PACKAGES)


def write_model(path, graph: str, key: str = "text") -> None:
    """Write the two files of a model."""
    path.parent.mkdir(parents=True, exist_ok=True)
    kuiper.save(graph_of(graph, key), path)


@pytest.fixture(scope="session")
def repository(tmp_path_factory):
    """Return a folder of models: ``net`` in two versions, ``two`` with two inputs."""
    folder = tmp_path_factory.mktemp("models")
    write_model(folder / "net" / "1" / "net.pnnx.param", IMAGES, "one")
    write_model(folder / "net" / "2" / "net.pnnx.param", IMAGES, "two")
    write_model(folder / "two" / "1" / "two.pnnx.param", TWO)
    return folder


@pytest.fixture(scope="session")
def server(repository):
    """Return a server of the repository with both protocols."""
    if not has_packages():
        pytest.skip('needs pip install "kuiper-runtime[serve]" "tritonclient[http,grpc]"')
    options = ("--grpc", "127.0.0.1:0", "--control", "--poll", "0", "--batch", "4")
    limits = ("--max-body", "1M", "--max-queue", "512", "--log-requests")
    with serving(repository, *options, *limits) as running:
        yield running
