"""The package as a whole: the cost of an import, public names, shipped files."""

from __future__ import annotations

import ast
import doctest
import importlib
import importlib.metadata
import importlib.util
import inspect
import json
import re
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from types import ModuleType

import pytest

import kuiper
from kuiper._kernels.micro import dispatch
from kuiper._support.struct import Struct
from kuiper.ops import record_or_none

from ..support.paths import ROOT
from ..support.process import output_of, run_python

SOURCE = ROOT / "kuiper"
INSTALLED = Path(kuiper.__file__).parent


# -- import --------------------------------------------------------------------------------

# Not needed to load and run a model; each takes milliseconds or imports others that do.  (.ci/run
# measures the time of the import, since a test cannot rely on times.)
HEAVY = {
    "asyncio", "concurrent", "cv2", "cython", "Cython", "dataclasses", "difflib", "doctest",
    "email", "html", "http", "importlib.metadata", "inspect", "json", "logging", "multiprocessing",
    "pathlib", "pdb", "pkg_resources", "setuptools", "shutil", "socket", "ssl", "subprocess",
    "tempfile", "torch", "typing_extensions", "unittest", "urllib", "xml", "zipfile",
}  # fmt: skip


def test_import_loads_nothing_heavy_beyond_numpy():
    code = (
        "import json, sys, numpy; before = set(sys.modules)\n"
        "import kuiper; print(json.dumps(sorted(set(sys.modules) - before)))"
    )
    done = run_python("-c", code)
    loaded = set(json.loads(done.stdout))
    assert "kuiper.errors" in loaded
    heavy = sorted(HEAVY & loaded | {name for name in loaded if name.split(".")[0] in HEAVY})
    assert not heavy
    assert done.stderr == ""


# Not imported by `import kuiper` but by programs that use them; a plain network uses few.
LATER = {
    "kuiper.ops.core.custom", "kuiper.export.pnnx_tool", "kuiper.planning.profile",
    "kuiper.planning.segments",
    "kuiper.export.tracing", "kuiper.cli", "kuiper.expression", "kuiper.ops.product.conv2d",
    "kuiper.ops.core.batch", "kuiper.passes.batch.unfreeze", "kuiper.report", "kuiper.vision",
    "kuiper.batch", "threading",
}  # fmt: skip
UNNEEDED = {
    "heapq", "kuiper.ops.core.custom", "kuiper.export.pnnx_tool", "kuiper._kernels.conv.grouped",
    "kuiper._kernels.conv.strassen", "kuiper._kernels.elementwise.typed",
    "kuiper.planning.segments",
    "kuiper.expression.compiled", "kuiper.expression.drawing", "kuiper.expression.scalars",
    "kuiper.ops.nn.batch_norm", "kuiper.ops.tensor.padding",
    "kuiper.passes.optimize.fold_batch_norm",
    "kuiper.ops.core.batch", "kuiper.passes.batch.unfreeze", "kuiper.passes.optimize.fuse_pad",
    "threading",
}  # fmt: skip
PLAIN_NETWORK = """7767517
5 4
pnnx.Input in 0 1 x #x=(1,3,9,9)f32
F.max_pool2d p 1 1 x y kernel_size=(2,2)
pnnx.Expression a 2 1 y y z expr=add(@0,@1)
nn.ReLU r 1 1 z w
pnnx.Output out 1 0 w
"""


def test_a_program_imports_only_what_it_uses():
    code = (
        "import json, sys, numpy as np; before = set(sys.modules)\n"
        "import kuiper; first = set(sys.modules) - before\n"
        f"y = kuiper.load({PLAIN_NETWORK.encode()!r})(np.ones((1, 3, 9, 9), np.float32))\n"
        "print(json.dumps([sorted(first), sorted(set(sys.modules) - before), y.sum().item()]))"
    )
    imported, loaded, total = json.loads(output_of(code))
    assert total == 2 * 3 * 4 * 4
    assert "kuiper.model" in imported
    assert not LATER & set(imported)
    assert "kuiper.ops.nn.pooling" in loaded
    assert not UNNEEDED & set(loaded)


@pytest.mark.parametrize("package", [kuiper, kuiper.expression])
def test_names_that_are_imported_on_first_use(package):
    assert set(package.__all__) <= set(dir(package))
    for name in package.__all__:
        assert getattr(package, name) is getattr(package, name)
    with pytest.raises(AttributeError, match=f"module '{package.__name__}' has no attribute 'no'"):
        _ = package.no


class Point(Struct):
    """A small record of fields."""

    x: int
    y: int = 2

    @property
    def sum(self) -> int:
        return self.x + self.y


def test_fields_by_position_or_name_and_comparison():
    assert Point(1) == Point(x=1, y=2) == Point(1, y=2)
    assert Point(1, 3) != Point(1)
    assert Point(1) != (1, 2)
    assert Point(4, 5).sum == 9
    assert repr(Point(1)) == "Point(x=1, y=2)"


@pytest.mark.parametrize("make", [
    Point, lambda: Point(1, 2, 3), lambda: Point(1, x=1), lambda: Point(1, z=3),
])  # fmt: skip
def test_wrong_fields(make):
    with pytest.raises(TypeError, match="Point has the fields x, y"):
        make()


# -- public names ----------------------------------------------------------------------------


def test_public_names_exist_and_are_documented():
    assert {"load", "load_graph", "save", "Model", "operator", "errors", "__version__"} <= set(
        kuiper.__all__
    )
    assert sorted(set(kuiper.__all__)) == sorted(kuiper.__all__)
    for name in kuiper.__all__:
        value = getattr(kuiper, name)
        if callable(value):
            assert inspect.getdoc(value), f"kuiper.{name} has no docstring"


def test_every_error_is_public_and_a_kuiper_error():
    for name in kuiper.errors.__all__:
        error = getattr(kuiper, name)
        assert issubclass(error, kuiper.KuiperError)
        assert error is getattr(kuiper.errors, name)


def source_files() -> list[Path]:
    """Return the package's Python and Cython sources."""
    suffixes = {".py", ".pyx", ".pxd", ".pxi"}
    return sorted(path for path in SOURCE.rglob("*.*") if path.suffix in suffixes)


@pytest.mark.parametrize(
    "path",
    [path for path in source_files() if path.suffix == ".py"],
    ids=lambda path: str(path.relative_to(SOURCE)),
)
def test_every_module_has_a_docstring(path):
    text = path.read_text("utf-8")
    # A package marker may be empty.
    if text.strip():
        assert ast.get_docstring(ast.parse(text))


def module_names() -> list[str]:
    """Return the dotted name of every Python and Cython module of the package."""
    found = []
    for path in source_files():
        if path.suffix in (".py", ".pyx"):
            parts = path.relative_to(SOURCE.parent).with_suffix("").parts
            found.append(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
    return sorted(found)


def test_variants_that_cannot_run_here_are_refused():
    """Running one might end the process with an illegal instruction."""
    built = {
        path.name.split(".")[0]
        for suffix in EXTENSION_SUFFIXES
        for path in (INSTALLED / "_kernels" / "micro").glob(f"*{suffix}")
    } - {"dispatch", "packing"}
    able = dispatch.available()
    refused = built - {*able, *dispatch.tried(), *dispatch.extensions_of(able[-1])}
    if not refused:
        pytest.skip("this machine runs every variant that was built")
    for name in refused:
        with pytest.raises(ImportError, match=f"{name}: this processor lacks"):
            importlib.import_module(f"kuiper._kernels.micro.{name}")


def test_examples_in_docstrings():
    finder = doctest.DocTestFinder(exclude_empty=True)
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
    needs_extra = ("kuiper.serving.grpc", "kuiper.serving.metrics")
    for name in module_names():
        try:
            module = importlib.import_module(name)
        except ImportError:
            # Micro-kernels of other processors are not compiled, or refuse to run; two modules of
            # the server import packages of an extra.
            assert "._kernels.micro." in name or name in needs_extra
            continue
        for example in finder.find(module, name):
            runner.run(example)
    assert runner.tries > 10
    assert runner.failures == 0  # the captured output shows the differences


# -- shipped files --------------------------------------------------------------------------


def test_the_package_has_type_hints():
    assert (INSTALLED / "py.typed").exists()


def test_compiled_modules_that_users_may_import_have_stubs():
    for path in SOURCE.rglob("*.pyx"):
        if not any(part.startswith("_") for part in path.relative_to(SOURCE).parts):
            assert path.with_suffix(".pyi").exists(), f"{path.name} has no type stub"


def test_all_versions_are_equal():
    assert re.fullmatch(r"\d+\.\d+\.\d+(\.dev\d+|a\d+|b\d+|rc\d+)?", kuiper.__version__)
    try:
        installed = importlib.metadata.version("kuiper-runtime")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("kuiper is built in place, not installed")
    assert installed == kuiper.__version__


def test_the_changelog_has_this_version():
    changelog = (ROOT / "CHANGELOG.md").read_text("utf-8")
    assert re.search(rf"^## {re.escape(kuiper.__version__)}\b", changelog, re.MULTILINE)


def test_the_build_uses_neither_the_local_cpu_nor_fast_math():
    setup = (ROOT / "setup.py").read_text("utf-8")
    assert "-mavx2" in setup
    for flag in ("-march=native", "-mtune=native", "-ffast-math", "-Ofast"):
        assert flag not in setup


def test_the_notice_names_every_third_party_file():
    notice = (ROOT / "NOTICE").read_text("utf-8")
    folders = [ROOT / "examples" / "models", ROOT / "examples" / "photos"]
    own = {"__init__.py", "pyproject.toml", "README.md"}  # of the data package
    files = [
        path
        for folder in folders
        for path in folder.iterdir()
        if path.is_file() and path.name not in own
    ]
    assert len(files) >= 11
    for path in files:
        assert path.name in notice, f"NOTICE does not say where {path.name} is from"
    for licence in (ROOT / "examples" / "models" / "LICENSES").iterdir():
        assert licence.name in notice


def _make_operators() -> ModuleType:
    script = ROOT / "docs" / "make_operators.py"
    spec = importlib.util.spec_from_file_location("make_operators", script)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_list_of_operators_is_up_to_date():
    module = _make_operators()
    written = module.PAGE.read_text("utf-8")
    assert written == module.page(), "run: python docs/make_operators.py"
    own = {name for record in module.records() for name in record.types}
    assert {"nn.Conv2d", "pnnx.Expression", "torch.cat"} <= own
    missing = [name for name in own if f"`{name}`" not in written]
    assert not missing


def test_the_index_of_operator_types_is_up_to_date():
    module = _make_operators()
    written = Path(module.INDEX.__file__).read_text("utf-8")
    assert written == module.index(), "run: python docs/make_operators.py"
    for family, types in module.INDEX.MODULES.items():
        for name in types.split():
            assert record_or_none(name).__module__ == f"kuiper.ops.{family}"
