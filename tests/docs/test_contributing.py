"""CONTRIBUTING.md: its guides are followed word for word, each in a copy of the repository."""

from __future__ import annotations

import filecmp
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import kuiper

from ..support.paths import ROOT

PAGE = ROOT / "CONTRIBUTING.md"
SOURCES = (".py", ".md", ".pxi", ".pyx", ".pxd")
PACKAGES = Path(kuiper.__file__).resolve().parent.parent

if not PAGE.exists():
    pytest.skip("CONTRIBUTING.md is not here", allow_module_level=True)


def blocks(guide: str, kind: str) -> dict[str, str]:
    """Return the files of one kind ("file", "append" or "edit") in a guide: name -> text."""
    text = PAGE.read_text("utf-8")
    section = re.search(rf"^## {guide}$(.*?)(?=^## |\Z)", text, re.DOTALL | re.MULTILINE)
    assert section, f"no section {guide!r}"
    pattern = rf"<!-- {kind}: (\S+) -->\n```\w+\n(.*?)```"
    return dict(re.findall(pattern, section[1], re.DOTALL))


def inserted(text: str, diff: str) -> str:
    """Return a text with the added lines of a diff inserted after its context lines.

    Lines of ``@@`` separate hunks of one file.
    """
    for hunk in diff.split("@@\n"):
        before, added = "", ""
        for line in hunk.splitlines(keepends=True):
            if line.startswith("+"):
                added += line[1:]
            else:
                before += line[1:]
        assert text.count(before) == 1, f"not there once: {before}"
        text = text.replace(before, before + added)
    return text


class Copy:
    """A copy of the repository in which a guide is followed.

    Attributes
    ----------
    folder : Path
    touched : list of str
        The files that a contributor writes or edits by hand, without temporary ones.
    """

    def __init__(self, folder: Path, guide: str, *, sources: bool = False) -> None:
        self.folder = folder
        unwanted = ["*.c"] if sources else ["*.c", "*.pyx", "*.pxi", "*.pxd", "*.h"]
        for top, base in (("kuiper", PACKAGES), ("docs", ROOT), ("tests", ROOT)):
            ignore = shutil.ignore_patterns(*(unwanted if top == "kuiper" else ["data"]))
            shutil.copytree(base / top, folder / top, ignore=ignore, copy_function=_copy_or_link)
        (folder / "tests" / "data").symlink_to(ROOT / "tests" / "data")
        if sources:
            for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE", "NOTICE"):
                shutil.copy(ROOT / name, folder)
        files, edits = blocks(guide, "file"), blocks(guide, "edit")
        appended = blocks(guide, "append")
        for name, text in files.items():
            (folder / name).write_text(text, encoding="utf-8")
        for name, diff in edits.items():
            path = folder / name
            path.write_text(inserted(path.read_text("utf-8"), diff), encoding="utf-8")
        for name, text in appended.items():
            with (folder / name).open("a", encoding="utf-8") as file:
                file.write(f"\n\n{text}")
        self.touched = sorted(name for name in [*files, *edits, *appended] if "/" in name)

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run Python with the copy's package."""
        return subprocess.run(
            [sys.executable, *arguments], cwd=self.folder, timeout=300, text=True,
            capture_output=True, env={**os.environ, "PYTHONPATH": str(self.folder)},
        )  # fmt: skip

    def pytest(self, *arguments: str) -> None:
        """Run tests of the copy; some must be found, and all pass."""
        done = self.run("-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments)
        assert done.returncode == 0, done.stdout + done.stderr

    def changed(self) -> list[str]:
        """Return the files that differ from the repository's."""
        found = []
        for top, base in (("kuiper", PACKAGES), ("tests", ROOT), ("docs", ROOT)):
            for path in sorted((self.folder / top).rglob("*.*")):
                name = path.relative_to(self.folder)
                original = base / name
                if path.suffix not in SOURCES or name.parts[:2] == ("tests", "data"):
                    continue
                if not original.exists() or not filecmp.cmp(path, original, shallow=False):
                    found.append(str(name))
        return found


def _copy_or_link(source: str, target: str) -> None:
    """Copy sources; link data and compiled modules."""
    if source.endswith((".py", ".pyc", ".md", ".pxi", ".pyx", ".pxd", ".h")):
        shutil.copy2(source, target)
    else:
        os.symlink(source, target)


# -- an operator -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def operator(tmp_path_factory) -> Copy:
    """Return a copy with the operator of the guide and an updated index."""
    copy = Copy(tmp_path_factory.mktemp("operator"), "Add an operator")
    done = copy.run("docs/make_operators.py")
    assert done.returncode == 0, done.stderr
    return copy


def test_the_operator_is_not_there_yet():
    assert "nets.ScaledHypot" not in kuiper.supported_operators()


def test_an_operator_takes_three_files(operator):
    """The third is the fixture, which needs PyTorch; the others are written by a script."""
    by_hand = ["kuiper/ops/math/hypotenuse.py", "tests/reference/arithmetic.py"]
    assert operator.touched == by_hand
    by_script = ["docs/operators.md", "kuiper/ops/core/type_index.py"]
    assert sorted(operator.changed()) == sorted([*by_hand, *by_script])


def test_the_record_works(operator):
    done = operator.run("try_it.py")
    assert (done.returncode, done.stdout, done.stderr) == (0, "it works\n", "")


def test_a_mistake_is_explained(operator):
    done = operator.run("get_it_wrong.py")
    assert done.returncode != 0
    message = done.stderr.splitlines()[-1]
    assert message.startswith("kuiper.errors.OperatorError: ")
    for text in ("<param>:4", "operator 'h' (nets.ScaledHypot)", "scale", "much"):
        assert text in message


def test_the_operator_is_asked_for_its_batch_rule_and_its_reference(operator):
    tests = ("tests/operators/test_batch_rules.py", "tests/operators/test_operators.py")
    operator.pytest(*tests, "-k", "ScaledHypot or has_a_reference")


def test_the_reference_agrees():
    """The reference, computed alone, gives the right numbers."""
    names: dict = {"np": np, "reference": lambda name: lambda f: f}
    (text,) = blocks("Add an operator", "append").values()
    exec(compile(text, "reference", "exec"), names)
    got = names["scaled_hypot"](np.float32([3, 0]), np.float32([4, 2]), scale=0.5)
    np.testing.assert_array_equal(got, np.float32([2.5, 1]))


# -- a pass ------------------------------------------------------------------------------------


def test_a_pass_takes_three_files(tmp_path):
    copy = Copy(tmp_path, "Add a pass")
    assert copy.touched == [
        "kuiper/passes/__init__.py",
        "kuiper/passes/optimize/join_permutes.py",
        "tests/unit/passes/test_join_permutes.py",
    ]
    assert sorted(copy.changed()) == copy.touched
    copy.pytest("tests/unit/passes/test_join_permutes.py")


# -- a convolution algorithm, a packed-weight type ---------------------------------------------


def test_a_convolution_algorithm_takes_three_files(tmp_path):
    copy = Copy(tmp_path, "Add a convolution algorithm")
    assert copy.touched == [
        "kuiper/ops/product/algorithms/__init__.py",
        "kuiper/ops/product/algorithms/pointwise.py",
        "tests/unit/ops/test_pointwise.py",
    ]
    assert sorted(copy.changed()) == copy.touched
    copy.pytest("tests/unit/ops/test_pointwise.py")


def test_a_packed_weight_type_takes_two_files(tmp_path):
    copy = Copy(tmp_path, "Add a packed-weight type")
    assert copy.touched == [
        "kuiper/_kernels/micro/packed_bf16.py",
        "tests/unit/kernels/test_packed_bf16.py",
    ]
    assert sorted(copy.changed()) == copy.touched
    copy.pytest("tests/unit/kernels/test_packed_bf16.py")


# -- what has to be built: a kernel, an elementwise function ------------------------------------

# Builds the modules it is given, for the baseline instruction set, without optimisation.
BUILD = """\
import sys
from pathlib import Path
sys.path.insert(0, ".")
import setup
from Cython.Build import cythonize
setup.generate_functions(setup.GENERATED)
names = sys.argv[1:]
modules = [module for module in setup.extensions() if module.name in names]
assert len(modules) == len(names)
for module in modules:
    module.extra_compile_args += [] if setup.MSVC else ["-O0"]
    folder, _, stem = module.name.replace(".", "/").rpartition("/")
    for path in Path(folder).glob(stem + ".*.*"):
        path.unlink()  # a link to the module that is being tested
modules = cythonize(
    modules, compiler_directives=setup.DIRECTIVES, build_dir="build/cython", force=True,
    include_path=[str(setup.GENERATED)], shared_utility_qualified_name="kuiper._cyutility",
)
setup.setup(script_args=["-q", "build_ext", "--inplace", "--force"], ext_modules=modules)
"""


@pytest.fixture
def built(tmp_path, monkeypatch):
    """Return a function that follows a guide and builds the modules it changes."""
    pytest.importorskip("Cython")
    if PACKAGES != ROOT:
        pytest.skip("kuiper is installed without its sources")
    monkeypatch.setenv("KUIPER_ISAS", "baseline")
    monkeypatch.setenv("KUIPER_ISA", "baseline")

    def build(guide: str, *modules: str) -> Copy:
        copy = Copy(tmp_path, guide, sources=True)
        # Rebuild dispatch for the baseline only: the other variants lack the new code.
        names = ("micro.dispatch", "micro.baseline", *modules)
        done = copy.run("-c", BUILD, *(f"kuiper._kernels.{name}" for name in names))
        assert done.returncode == 0, done.stderr[-3000:]
        done = copy.run("docs/make_operators.py")
        assert done.returncode == 0, done.stderr
        generated = ["docs/operators.md", "kuiper/ops/core/type_index.py"]
        assert sorted(copy.changed()) == sorted([*copy.touched, *generated])
        return copy

    return build


def test_a_kernel_takes_five_files(built):
    """Five files, a reference and a test; the record names the batch rule."""
    copy = built("Add a kernel", "spatial.rms_pool")
    assert copy.touched == [
        "kuiper/_kernels/micro/all.pxi",
        "kuiper/_kernels/micro/rms_pool.pxi",
        "kuiper/_kernels/micro/table.pxd",
        "kuiper/_kernels/spatial/rms_pool.pyx",
        "kuiper/ops/nn/rms_pool.py",
        "tests/reference/pooling.py",
        "tests/unit/kernels/test_rms_pool.py",
    ]
    copy.pytest("tests/unit/kernels/test_rms_pool.py")
    tests = ("tests/operators/test_batch_rules.py", "tests/operators/test_operators.py")
    copy.pytest(*tests, "-k", "RMSPool2d or has_a_reference")


def test_an_elementwise_function_takes_three_files(built):
    """Three files, a reference and an error bound; the rest is generated."""
    copy = built("Add an elementwise function", "elementwise.elementwise")
    assert copy.touched == [
        "kuiper/_kernels/micro/activations.pxi",
        "kuiper/expression/functions.py",
        "kuiper/ops/nn/activation.py",
        "tests/reference/activation.py",
        "tests/unit/kernels/test_elementwise.py",
    ]
    done = copy.run("try_function.py")
    assert (done.returncode, done.stdout) == (0, "it works\n"), done.stderr
    copy.pytest("tests/unit/kernels/test_elementwise.py", "-k", "squareplus and baseline")


def test_links_of_the_page_lead_somewhere():
    for target in re.findall(r"\]\(([^)#:]+)\)", PAGE.read_text("utf-8")):
        assert (ROOT / target).exists(), target
