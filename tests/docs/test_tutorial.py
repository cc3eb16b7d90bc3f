"""docs/tutorial: every chapter runs and prints the output shown, in both languages."""

from __future__ import annotations

import doctest
import re
import runpy
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import kuiper

from ..support.paths import ROOT
from ..support.shipped import MODELS

TUTORIAL = ROOT / "docs" / "tutorial"
CHAPTERS = sorted(path.name for path in TUTORIAL.glob("[01]*.md"))

if not CHAPTERS:
    pytest.skip("the documentation is not here", allow_module_level=True)

NEEDS_PICTURES = {"08-classification.md", "09-detection.md", "13-fewer-bits.md"}
NEEDS_WEIGHTS = {*NEEDS_PICTURES, "10-memory.md"}


def blocks(text: str) -> list[str]:
    """Return the code blocks of a page, with their fences."""
    return re.findall(r"^```.*?^```$", text, re.DOTALL | re.MULTILINE)


def test_there_is_a_chapter_for_each_lesson():
    """Eleven lessons, serving and fewer bits."""
    assert [name[:2] for name in CHAPTERS] == [f"{number:02}" for number in range(1, 14)]
    for language in (TUTORIAL, TUTORIAL / "zh"):
        index = (language / "index.md").read_text("utf-8")
        for name in CHAPTERS:
            assert f"]({name})" in index


@pytest.mark.skipif(int(np.__version__.split(".")[0]) < 2, reason="numpy 1 prints otherwise")
@pytest.mark.parametrize("name", CHAPTERS)
def test_a_chapter_says_the_truth(name, tmp_path, monkeypatch):
    if name in NEEDS_WEIGHTS and not (MODELS / "nanodet_m.f16.pnnx.bin").exists():
        pytest.skip("the weights of the example models are in the repository, not in the sdist")
    if name in NEEDS_PICTURES:
        pytest.importorskip("cv2")
    text = (TUTORIAL / name).read_text("utf-8")
    for folder in ("examples", "tests"):  # what a chapter writes must not land in the clone
        (tmp_path / folder).symlink_to(ROOT / folder)
    monkeypatch.chdir(tmp_path)
    threads = kuiper.get_num_threads()
    test = doctest.DocTestParser().get_doctest(text, {}, name, name, 0)
    assert len(test.examples) >= 8
    complaints: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS, verbose=False)
    runner.run(test, out=complaints.append)
    kuiper.set_num_threads(threads)
    assert runner.failures == 0, "".join(complaints)


@pytest.mark.parametrize("name", CHAPTERS)
def test_both_languages_have_the_same_code(name):
    english = (TUTORIAL / name).read_text("utf-8")
    chinese = (TUTORIAL / "zh" / name).read_text("utf-8")
    assert blocks(chinese) == blocks(english)
    assert len(re.findall(r"^#+ ", chinese, re.MULTILINE)) >= len(
        re.findall(r"^## ", english, re.MULTILINE)
    )


@pytest.mark.parametrize(
    "path", sorted(TUTORIAL.rglob("*.md")), ids=lambda p: p.parent.name + p.stem
)
def test_links_lead_somewhere(path):
    text = path.read_text("utf-8")
    for block in blocks(text):
        text = text.replace(block, "")
    for target in re.findall(r"\]\(([^)#:]+)\)", text):
        assert (path.parent / target).exists(), target


def test_every_picture_is_used_and_well_formed():
    pages = "".join(path.read_text("utf-8") for path in TUTORIAL.glob("*.md"))
    pictures = sorted((TUTORIAL / "pictures").glob("*.svg"))
    assert len(pictures) >= 7
    for picture in pictures:
        assert f"pictures/{picture.name}" in pages
        ElementTree.fromstring(picture.read_text("utf-8"))


def test_the_expression_in_the_picture_is_that_of_the_chapter():
    from kuiper.expression import parse, to_svg

    drawn = (TUTORIAL / "pictures" / "expression.svg").read_text("utf-8")
    assert drawn.strip() == to_svg(parse("add(@0,div(@1,@2))")).strip()


def test_the_table_of_convolutions_can_be_measured_anew(capsys):
    """The script runs the chapter's functions and forces the planner to use each algorithm."""
    script = runpy.run_path(str(TUTORIAL / "measure_convolution.py"))
    script["main"](0.0)
    printed = re.findall(r"^\| ([^|]+) \| [\d.e+-]+ \|", capsys.readouterr().out, re.MULTILINE)
    chapter = (TUTORIAL / "05-convolution.md").read_text("utf-8")
    stands = re.findall(r"^\| ([^|]+) \| [\d.]+ \| [\d.,]+ \|$", chapter, re.MULTILINE)
    assert printed == stands
    assert len(stands) == 5


def test_what_the_site_leaves_out():
    """The site omits links out of docs/ and Sphinx roles in docstrings."""
    hooks = runpy.run_path(str(ROOT / "docs" / "site_hooks.py"))
    page = SimpleNamespace(file=SimpleNamespace(src_uri="tutorial/zh/x.md"))
    text = "[a](../b.md), [c](../../d.md), [e](../../../SECURITY.md), [f](https://x.org)"
    kept = "[a](../b.md), [c](../../d.md), e, [f](https://x.org)"
    assert hooks["on_page_markdown"](text, page=page, config=None, files=None) == kept
    session = "```python\n>>> x = 1\n>>> x\n1\n```\n```python\nx = 1\n```"
    marked = session.replace("python\n>>>", "pycon\n>>>", 1)
    assert hooks["on_page_markdown"](session, page=page, config=None, files=None) == marked
    html = "see :func:<code>load</code>, :class:<code>~kuiper.ir.Graph</code> and :func: alone"
    shown = "see <code>load</code>, <code>Graph</code> and :func: alone"
    assert hooks["on_page_content"](html, page=page, config=None, files=None) == shown


def test_the_site_builds(tmp_path):
    if shutil.which("mkdocs", path=str(Path(sys.executable).parent)) is None:
        pytest.skip("mkdocs-material and mkdocstrings are not installed beside this Python")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)],
        cwd=ROOT, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    reference = (tmp_path / "api" / "index.html").read_text("utf-8")
    for name in ("kuiper.load", "kuiper.Model", "kuiper.from_torch"):
        assert f'id="{name}"' in reference
    chapter = (tmp_path / "tutorial" / "05-convolution" / "index.html").read_text("utf-8")
    # The stylesheet keeps prompts and results, which carry these classes, out of copied text.
    assert 'class="gp"' in chapter
    assert 'class="go"' in chapter
    assert "site.css" in chapter
    assert "md-footer__link--next" in chapter
    assert (tmp_path / "howto" / "golden" / "index.html").exists()
    assert (tmp_path / "tutorial" / "zh" / "05-convolution" / "index.html").exists()
