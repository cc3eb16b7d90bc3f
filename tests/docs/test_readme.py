"""The first snippet of the READMEs runs as it is written, in a clone."""

import re

import pytest

import kuiper

from ..support.paths import ROOT


@pytest.mark.parametrize("name", ["README.md", "README.zh-CN.md"])
def test_the_first_snippet_runs(name, monkeypatch):
    if not (ROOT / "examples" / "models" / "mobilenet_v2.f16.pnnx.bin").exists():
        pytest.skip("the weights of the example models are in the repository, not in the sdist")
    monkeypatch.chdir(ROOT)
    snippet = re.search(r"```python\n(.*?)```", (ROOT / name).read_text("utf-8"), re.DOTALL)[1]
    threads = kuiper.get_num_threads()
    try:
        found = {}
        exec(snippet, found)
    finally:
        kuiper.set_num_threads(threads)
    assert found["y"].shape == (1, 1000)
    assert "<html" in found["page"]
