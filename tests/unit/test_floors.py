"""The floors of the package: no module imports from a higher one, also by Cython's `cimport`."""

from __future__ import annotations

import ast
import importlib.util
import re
from pathlib import Path

import pytest

from ..support.paths import ROOT

SOURCE = ROOT / "kuiper"

if not (ROOT / "docs" / "make_floors.py").is_file() or not SOURCE.is_dir():
    pytest.skip("needs the sources beside the tests", allow_module_level=True)

_spec = importlib.util.spec_from_file_location("make_floors", ROOT / "docs" / "make_floors.py")
make_floors = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(make_floors)

FLOORS = {folder: make_floors.floor_of(folder) for folder in make_floors.FLOORS}


def python_imports(text: str, package: str) -> list[tuple[int, str]]:
    """Return line and dotted name of every import anywhere in the file."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, base]).rstrip(".")
            # `from kuiper import ir` names a module, `from kuiper.ir import Graph` does not.
            names = [f"{base}.{alias.name}" if base == "kuiper" else base for alias in node.names]
            found += [(node.lineno, name) for name in names]
    return found


CYTHON_IMPORT = re.compile(
    r"""^\s*(?:from\s+(kuiper[\w.]*)\s+)?c?import\s+([\w., ]+)"""
    r"""|^\s*(?:cdef\s+extern\s+from|include|\#\s*include)\s+"([\w./]+)\""""
)


def cython_imports(text: str, package: str) -> list[tuple[int, str]]:
    """Return line and dotted name of every import, cimport, include and header of kuiper."""
    found = []
    for number, line in enumerate(text.splitlines(), start=1):
        match = CYTHON_IMPORT.match(line)
        if match is None:
            continue
        base, names, file = match.groups()
        if file is not None:
            # Headers are relative to the package's root, included files to the folder.
            parts = file.rpartition(".")[0].split("/")
            above = package.split(".")
            while parts[0] == "..":
                parts, above = parts[1:], above[:-1]
            inside = "/" in file and not file.startswith("..")
            found.append((number, ".".join([*(["kuiper"] if inside else above), *parts])))
            continue
        names = [name.split()[0] for name in names.split(",") if name.strip()]
        if base is None:
            found += [(number, name) for name in names]
        elif base == "kuiper" or base.removeprefix("kuiper.") in FLOORS:
            found += [(number, f"{base}.{name}") for name in names]
        else:
            found.append((number, base))
    return found


def upward_imports(path: Path, text: str) -> list[str]:
    """Return a line for every import of `path` that violates the floors."""
    relative = path.relative_to(SOURCE.parent).with_suffix("")
    module = ".".join(relative.parts)
    package = module.rpartition(".")[0]
    imports = python_imports if path.suffix == ".py" else cython_imports
    breaches = []
    for line, name in imports(text, package):
        if not re.match(r"kuiper(\.|$)", name):
            continue
        for folder, floors in FLOORS.items():
            base = ["kuiper", *folder.split("/")] if folder else ["kuiper"]
            inside = [m.split(".")[: len(base)] == base for m in (module, name)]
            if not all(inside):
                continue
            room, target = ((m.split(".")[len(base) :] or ["__init__"])[0] for m in (module, name))
            if room == target:
                continue
            if target not in floors and (folder == "" or (SOURCE / folder / target).is_dir()):
                breaches.append(f"{relative}:{line}: {name} has no floor")
            elif floors.get(target, floors["__init__"]) >= floors.get(room, 99):
                breaches.append(
                    f"{relative}:{line}: {room} (floor {floors[room]}) imports {target} "
                    f"(floor {floors.get(target)})"
                )
    return breaches


def source_files() -> list[Path]:
    """Return the package's Python, Cython and C sources."""
    suffixes = {".py", ".pyx", ".pxd", ".pxi", ".h"}
    return sorted(path for path in SOURCE.rglob("*.*") if path.suffix in suffixes)


def test_no_module_imports_upward():
    files = source_files()
    assert len(files) > 20
    breaches = [line for path in files for line in upward_imports(path, path.read_text("utf-8"))]
    assert not breaches, "\n".join(breaches)


@pytest.mark.parametrize("folder", FLOORS)
def test_every_folder_has_a_floor(folder):
    here = SOURCE / folder
    rooms = {path.relative_to(here).parts[0].partition(".")[0] for path in source_files()
             if path.is_relative_to(here)}  # fmt: skip
    assert rooms == FLOORS[folder].keys()


def test_the_design_page_shows_these_floors():
    text = make_floors.PAGE.read_text("utf-8")
    assert text == make_floors.page(text), "run: python docs/make_floors.py"


@pytest.mark.parametrize(
    ("file", "text", "line"),
    [
        ("ir/graph.py", "import numpy\nfrom kuiper.errors import X\nimport kuiper.planning\n", 3),
        ("ir/graph.py", "def late():\n    from kuiper.ops import registry\n", 2),
        ("ops/tensor/shape.py", "from kuiper import ir, passes\n", 1),
        ("ops/tensor/shape.py", "from kuiper.ops.nn.softmax import Softmax\n", 1),
        ("ops/nn/softmax.py", "from kuiper.ops.index import gather\n", 1),
        ("pnnx/param.py", "from ..planning import Plan\n", 1),
        ("pnnx/param.py", "from .. import model\n", 1),
        ("_kernels/conv/conv.pyx", "cimport cython\nfrom kuiper.ops cimport _x\n", 2),
        ("_kernels/conv/conv.pyx", "from kuiper._kernels.linear.linear cimport Step\n", 1),
        ("_kernels/conv/conv.pyx", "from kuiper._kernels cimport linear\n", 1),
        ("_kernels/simd/vec.h", '#include "_kernels/micro/table.h"\n', 1),
        ("_kernels/micro/all.pxi", 'include "../conv/winograd_direct.pxi"\n', 1),
        ("_runtime/step.pxd", 'cdef extern from "_kernels/simd/cpu.h" nogil:\n', 1),
        ("errors.py", "import kuiper.somewhere\n", 1),
    ],
)  # fmt: skip
def test_the_check_detects_upward_imports(file, text, line):
    breaches = upward_imports(SOURCE / file, text)
    assert len(breaches) == 1
    assert f":{line}: " in breaches[0]


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("model.py", "from kuiper.planning.plan import Plan\nfrom kuiper import errors\n"),
        ("pnnx/param.py", "from . import archive\nfrom .archive import Archive\n"),
        ("pnnx/param.py", "from ..errors import KuiperError\nimport kuiperish\n"),
        ("_kernels/conv/conv.pyx", "from kuiper._runtime.step cimport Step\nimport numpy as np\n"),
        ("_kernels/micro/gemm.pxi", 'cdef extern from "_kernels/simd/tile.h" nogil:\n'),
        ("_kernels/micro/all.pxi", 'include "../simd/vec.pxi"\ninclude "gemm.pxi"\n'),
        ("ops/nn/softmax.py", "from kuiper.ops.math.elementwise import bind_tree\n"),
    ],
)  # fmt: skip
def test_the_check_allows_downward_imports(file, text):
    assert upward_imports(SOURCE / file, text) == []
