"""The documentation: every public name is described, every link leads somewhere."""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path

import pytest

import kuiper

from ..support.paths import ROOT

API = ROOT / "docs" / "api.md"
MODULES = [
    "kuiper", "kuiper.ir", "kuiper.pnnx", "kuiper.errors", "kuiper.expression", "kuiper.vision",
    "kuiper.report", "kuiper.batch",
]  # fmt: skip

# Compiled classes do not expose the names of their constructors' parameters.
NAMELESS = {"self", "cls", "args", "kwargs"}


def public_things():
    """Yield the dotted name and the object of everything that is public."""
    for module in MODULES:
        if module == "kuiper.vision":
            pytest.importorskip("cv2", reason="kuiper.vision needs OpenCV")
        loaded = importlib.import_module(module)
        for name in loaded.__all__:
            thing = getattr(loaded, name)
            if not inspect.ismodule(thing) and name != "__version__":
                yield f"{module}.{name}", thing


def sections(doc: str) -> dict[str, list[str]]:
    """Return the sections of a docstring in numpydoc form: title -> lines."""
    lines, found, title = inspect.cleandoc(doc).splitlines(), {"": []}, ""
    for line, below in zip(lines, [*lines[1:], ""], strict=True):
        if below and set(below) == {"-"} and len(below) == len(line):
            title = line
            found[title] = []
        elif not (line and set(line) == {"-"}):
            found[title].append(line)
    return found


def documented(doc: str, title: str) -> set[str]:
    """Return the names that a section of a docstring describes."""
    entries = [line for line in sections(doc).get(title, []) if line[:1].strip()]
    names = [name for entry in entries for name in entry.partition(" :")[0].split(",")]
    return {name.strip().lstrip("*") for name in names}


def faults_of(name: str, function, doc: str | None) -> list[str]:
    """Return the parameters and results that the docstring of a function omits."""
    doc = inspect.getdoc(function) if doc is None else doc
    if not doc:
        return [f"{name}: no docstring"]
    try:
        signature = inspect.signature(function)
    except ValueError:  # of compiled classes
        return []
    parameters = set(signature.parameters) - NAMELESS
    # A summary that names plain arguments is enough.
    told = documented(doc, "Parameters") | documented(doc, "Attributes")
    told |= set(re.findall(r"\w+", sections(doc)[""][0]))
    faults = [f"{name}: no word on '{p}'" for p in sorted(parameters - told)]
    returns = signature.return_annotation
    says = {"Returns", "Yields"} & sections(doc).keys()
    says_it_at_once = doc.startswith(("Return", "Tell", "Yield", "Make", "Pickle"))
    if returns not in ("None", None, inspect.Signature.empty) and not says and not says_it_at_once:
        faults.append(f"{name}: no word on what it returns")
    return faults


def test_every_public_function_tells_its_arguments_and_results():
    faults = []
    for name, thing in public_things():
        if inspect.isclass(thing):
            assert thing.__doc__, name
            made_by_users = thing is not kuiper.Profile and not issubclass(thing, tuple | Exception)
            if made_by_users and "__init__" in vars(thing):
                faults += faults_of(name, thing.__init__, thing.__doc__)
            for key, member in vars(thing).items():
                if key.startswith("_") and key != "__call__":
                    continue
                bound = getattr(thing, key)
                if isinstance(member, property):
                    faults += [] if inspect.getdoc(bound) else [f"{name}.{key}: no docstring"]
                elif inspect.isroutine(bound):
                    inherited = inspect.getdoc(bound)
                    faults += faults_of(f"{name}.{key}", bound, inherited)
        elif inspect.isroutine(thing):
            faults += faults_of(name, thing, None)
    assert not faults, "\n".join(faults)


def test_the_check_sees_what_is_missing():
    def bad(x, y):
        """Do something.

        Parameters
        ----------
        x : int
        """

    assert faults_of("bad", bad, None) == ["bad: no word on 'y'"]

    def silent(x: int) -> int:
        """Do something with `x`."""
        return x

    assert faults_of("silent", silent, None) == ["silent: no word on what it returns"]


def test_every_public_name_is_in_the_reference():
    entries = set(re.findall(r"^::: (\S+)$", API.read_text("utf-8"), re.MULTILINE))
    same = {
        "kuiper.pnnx.load_graph": "kuiper.load_graph",
        "kuiper.pnnx.save_graph": "kuiper.save",
    }
    missing = [
        name
        for name, thing in public_things()
        if name not in entries
        and same.get(name) not in entries
        and not (inspect.isclass(thing) and issubclass(thing, Exception))  # with their module
    ]
    assert not missing
    assert "kuiper.errors" in entries
    for entry in entries:
        module, _, name = entry.rpartition(".")
        if module == "kuiper.vision":
            pytest.importorskip("cv2")
        assert hasattr(importlib.import_module(module), name), entry


# -- links ---------------------------------------------------------------------------------------

PAGES = sorted(
    path
    for pattern in ("*.md", "docs/**/*.md", "examples/**/*.md", "benchmarks/*.md")
    for path in ROOT.glob(pattern)
)


def anchors(path: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub and mkdocs make them."""
    text = re.sub(r"^```.*?^```", "", path.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    titles = re.findall(r"^#+ (.+?)\s*$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.skipif(not PAGES, reason="there are no pages here")
@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    text = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"`[^`\n]*`", "", text)
    faults = []
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        file, _, anchor = target.partition("#")
        goal = (page.parent / file).resolve() if file else page
        if not goal.exists() or (anchor and goal.suffix == ".md" and anchor not in anchors(goal)):
            faults.append(target)
    assert not faults, f"{page.name}: {faults}"


def test_the_command_line_page_lists_every_command_and_option():
    path = ROOT / "docs" / "make_cli.py"
    spec = importlib.util.spec_from_file_location("make_cli", path)
    make_cli = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(make_cli)
    text = make_cli.PAGE.read_text("utf-8")
    assert text == make_cli.page(text), "run: python docs/make_cli.py"
    parsers = {name: parser for name, (_, parser) in make_cli.commands().items()}
    # The text above the generated tables names all commands, and no option that does not exist.
    head = text.partition(make_cli.START)[0]
    table = re.findall(r"^\| `kuiper ([-\w]+)([^`]*)` \|(.*)", head, re.M)
    assert {name for name, _, _ in table} == set(parsers)
    for name, arguments, meaning in table:
        used = re.findall(r"(?<![-\w])--?[a-z][-\w]*", f"{arguments} {meaning}")
        assert set(used) <= set(make_cli.names(parsers[name])), name
    known = {option for parser in parsers.values() for option in make_cli.names(parser)}
    assert set(re.findall(r"`(--[a-z][-\w]*)", head)) <= known | {"--help"}
    tables = make_cli.tables()
    for option in known - {"-h", "--help"}:
        assert re.search(rf"^\| `[^`]*{option}\b", tables, re.M), option
