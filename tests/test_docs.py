"""The pages of docs/ that are made from the code are up to date."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

DOCS = Path(__file__).parent.parent / "docs"


def test_the_list_of_operators_is_up_to_date():
    script = DOCS / "make_operators.py"
    if not script.exists():
        pytest.skip("this copy has no docs")
    spec = importlib.util.spec_from_file_location("make_operators", script)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    written = (DOCS / "operators.md").read_text(encoding="utf-8")
    assert written == module.markdown(), "run python docs/make_operators.py"
