"""Hooks of mkdocs (`hooks` in mkdocs.yml): adapt pages and docstrings to the site.

The pages are written for the repository, and docstrings for `help()`.
"""

from __future__ import annotations

import re
from typing import Any


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Replace links to files outside of docs/, which the site lacks, by their text.

    Blocks of Python that begin with a prompt become `pycon`, which marks prompts and results:
    site.css keeps these out of what the copy button takes.
    """
    markdown = re.sub(r"^```python\n(?=>>> )", "```pycon\n", markdown, flags=re.MULTILINE)
    depth = page.file.src_uri.count("/")
    return re.sub(rf"\[([^\]]+)\]\((?:\.\./){{{depth + 1}}}[^)]*\)", r"\1", markdown)


def on_page_content(html: str, **_: Any) -> str:
    """Remove Sphinx roles, such as :func:, from names in docstrings."""
    html = re.sub(r":(?:attr|class|data|exc|func|meth|mod):(?=<(?:code|a|span))", "", html)
    return re.sub(r"(?<=<code>)~(?:\w+\.)*(?=\w)", "", html)
