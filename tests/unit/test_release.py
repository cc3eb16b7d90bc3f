"""What a release needs: links that work on PyPI, a compiler on Windows, one version."""

import re
import runpy
import shutil
import sys
from types import SimpleNamespace

import pytest

from kuiper._version import __version__

from ..support.paths import ROOT

RELEASE = ROOT / ".github" / "workflows" / "release.yml"

if not RELEASE.exists():
    pytest.skip("the sources are not there", allow_module_level=True)


@pytest.fixture(scope="module")
def absolute():
    return runpy.run_path(str(ROOT / ".ci" / "readme_links.py"))["absolute"]


def test_links_and_pictures_become_absolute(absolute):
    text = "![p](docs/p.jpg) [`a`](b.md#c) [d](https://e) [f](#g)\n```python\nx[0](y)\n```\n"
    assert absolute(text, "https://h/o/k/", "v1") == (
        "![p](https://h/o/k/raw/v1/docs/p.jpg) [`a`](https://h/o/k/blob/v1/b.md#c) "
        "[d](https://e) [f](#g)\n```python\nx[0](y)\n```\n"
    )


def test_no_link_of_the_readme_is_relative_on_pypi(absolute):
    text = (ROOT / "README.md").read_text("utf-8")
    result = absolute(text, "https://h/o/k", "v1")
    assert "](https://h/o/k/raw/v1/docs/photo.jpg)" in result
    targets = re.findall(r"\]\(([^)\s]+)\)", re.sub(r"^```.*?^```", "", result, flags=re.M | re.S))
    assert len(targets) > 20
    assert [t for t in targets if not t.startswith(("https://", "#"))] == []


def test_the_recipe_has_the_version_of_the_package():
    text = (ROOT / "packaging" / "conda" / "recipe.yaml").read_text("utf-8")
    assert re.search(r'^  version: "(.+)"$', text, re.M)[1] == __version__


def test_the_programs_of_the_workflow_exist():
    text = RELEASE.read_text("utf-8")
    programs = re.findall(r"python (\.ci/\S+)", text)
    assert len(programs) == 2
    assert all((ROOT / program).exists() for program in programs)


def test_another_compiler_is_used_instead_of_cl(monkeypatch):
    pytest.importorskip("Cython")
    monkeypatch.chdir(ROOT)
    use = runpy.run_path("setup.py")["use_compiler"]

    class Compiler(SimpleNamespace):
        """Stands for setuptools' class, which exists on Windows only."""

        def initialize(self):
            assert not self.initialized
            self.initialized, self.cc = True, "cl.exe"
            self.compile_options = ["/nologo", "/O2", "/GL", "/MD"]

    compiler = Compiler(initialized=False)
    use(compiler, sys.executable)
    assert compiler.cc == shutil.which(sys.executable)
    assert compiler.compile_options == ["/nologo", "/O2", "/MD"]
    use(compiler, sys.executable)  # initialised before
    with pytest.raises(SystemExit, match="CC names no-such-compiler"):
        use(compiler, "no-such-compiler")
