"""docs/onnx.md is what docs/make_onnx.py writes."""

import runpy
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def test_the_page_is_up_to_date():
    made = runpy.run_path(str(DOCS / "make_onnx.py"))
    assert (DOCS / "onnx.md").read_text(encoding="utf-8") == made["page"](), (
        "run python docs/make_onnx.py"
    )
