"""setup.py: what it says without a compiler, and what it compiles again."""

import os
import re
import shutil
import subprocess
import sys

import pytest

from ..support.paths import ROOT

pytest.importorskip("Cython")

TINY = """\
#include <Python.h>
static PyModuleDef tiny = {PyModuleDef_HEAD_INIT, "tiny", 0, VALUE};
PyMODINIT_FUNC PyInit_tiny(void) { return PyModule_Create(&tiny); }
"""

BUILD = """\
import sys
import setup
from setuptools import Extension
setup.setup(
    name="tiny", version="1", packages=[], cmdclass={"build_ext": setup.Build},
    ext_modules=[Extension("tiny", ["tiny.c"], define_macros=[("VALUE", sys.argv[1])])],
    script_args=["build_ext", "--build-lib", sys.argv[2], "--build-temp", sys.argv[2]],
)
"""


@pytest.fixture
def run(tmp_path):
    """Return a function that runs Python in a folder that holds setup.py."""
    if not (ROOT / "setup.py").exists():
        pytest.skip("the sources are not there")
    shutil.copy(ROOT / "setup.py", tmp_path)

    def python(*arguments, **environment):
        return subprocess.run(
            [sys.executable, *arguments], cwd=tmp_path, env={**os.environ, **environment},
            capture_output=True, text=True,
        )  # fmt: skip

    return python


def test_a_missing_compiler_is_named_with_what_to_install(run):
    done = run("setup.py", "build_ext", CC="/nonexistent")
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "`/nonexistent" in done.stderr
    for system in ("apt-get install gcc", "dnf install gcc", "apk add", "xcode-select", "winget"):
        assert system in done.stderr


def test_metadata_needs_no_compiler(run, tmp_path):
    done = run("setup.py", "-q", "egg_info", CC="/nonexistent")
    assert done.returncode == 0, done.stderr


def test_modules_are_compiled_again_if_sources_or_settings_differ(run, tmp_path):
    if shutil.which(os.environ.get("CC", "cc").split()[0]) is None:
        pytest.skip("no C compiler")
    (tmp_path / "build.py").write_text(BUILD)
    source = tmp_path / "tiny.c"
    source.write_text(TINY)

    def reused(value, folder):
        done = run("build.py", value, folder)
        assert done.returncode == 0, done.stderr
        assert list((tmp_path / folder).rglob("tiny*.*"))
        (line,) = re.findall(r"^\[  1/1\].* tiny(.*)$", done.stdout, re.MULTILINE)
        return line == " (compiled before)"

    assert not reused("-1", "first")
    assert reused("-1", "second")
    assert not reused("0", "second")
    assert reused("-1", "second")
    source.write_text(TINY + "/* another */\n")
    os.utime(source, (1, 1))  # an old file can be new to the build
    assert not reused("-1", "second")


TRANSLATE = """\
import setup
from setuptools import Extension
setup.translate([Extension("tiny", ["tiny.pyx"])], 1)
"""


def test_modules_are_translated_again_if_sources_differ_not_timestamps(run, tmp_path):
    (tmp_path / "translate.py").write_text(TRANSLATE)
    source, written = tmp_path / "tiny.pyx", tmp_path / "build" / "cython" / "tiny.c"

    def translated(code, time):
        source.write_text(code)
        os.utime(source, (time, time))
        if written.exists():
            os.utime(written, (1.2e9, 1.2e9))
        done = run("translate.py")
        assert done.returncode == 0, done.stderr
        assert written.exists()
        return "Cythonizing" in done.stdout

    assert translated("x = 1\n", 1e9)
    assert not translated("x = 1\n", 1.5e9)  # as after an installation into a new folder
    assert translated("x = 2\n", 1e9)
    written.write_text(written.read_text() + "/* not from this source */\n")
    assert translated("x = 2\n", 1e9)


def test_names_and_layout_of_the_distribution():
    text = (ROOT / "pyproject.toml").read_text("utf-8")
    assert re.search(r'^name = "kuiper-runtime"$', text, re.MULTILINE)
    # Without it, setuptools installs an import hook, which type checkers cannot follow.
    assert 'package-dir = { "" = "." }' in text
