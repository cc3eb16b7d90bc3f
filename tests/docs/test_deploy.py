"""examples/deploy: the command lines in the container, the systemd unit and KServe's runtime."""

from __future__ import annotations

import json
import re

import pytest

from kuiper.cli._app import build_parser
from kuiper.serving.server import Address

from ..support.paths import ROOT

DEPLOY = ROOT / "examples" / "deploy"

if not DEPLOY.is_dir():
    pytest.skip("the examples are not here", allow_module_level=True)


def of_dockerfile() -> list[str]:
    text = (DEPLOY / "Dockerfile").read_text("utf-8")
    return [word for key in ("ENTRYPOINT", "CMD")
            for word in json.loads(re.search(rf"^{key} (\[.*\])$", text, re.M)[1])][1:]  # fmt: skip


def of_unit() -> list[str]:
    text = (DEPLOY / "kuiper-serve.service").read_text("utf-8")
    return re.search(r"^ExecStart=\S+/kuiper (.*)$", text, re.M)[1].split()


def of_kserve() -> list[str]:
    text = (DEPLOY / "kserve.yaml").read_text("utf-8")
    return ["serve", *re.findall(r'^ +- "?((?:--|\{\{)[^"\n]+)"?$', text, re.M)]


@pytest.mark.parametrize("command", [of_dockerfile, of_unit, of_kserve])
def test_the_command_lines_are_those_of_kuiper_serve(command):
    options = build_parser().parse_args(command())
    assert options.command == "serve"
    assert len(options.models) == 1
    assert Address.parse(options.http).port in (8000, 8080)
    assert Address.parse(options.grpc).port in (8001, 9000)


def test_the_paths_of_the_container_are_in_the_clone():
    text = (DEPLOY / "Dockerfile").read_text("utf-8")
    extras = set(re.search(r'"kuiper-runtime\[(.*)\]"', text)[1].split(","))
    project = (ROOT / "pyproject.toml").read_text("utf-8")
    assert extras == {"serve", "examples"}
    assert all(re.search(rf"^{extra} = \[", project, re.M) for extra in extras)
    ignored = (DEPLOY / "Dockerfile.dockerignore").read_text("utf-8").splitlines()
    needed = {"kuiper", "setup.py", "pyproject.toml", "README.md", "LICENSE", "NOTICE"}
    assert not needed & set(ignored)
