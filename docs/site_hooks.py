"""What mkdocs does to the pages besides: see `hooks` in mkdocs.yml.

The pages are written to be read in the repository, and docstrings to be read by `help()`.
"""

from __future__ import annotations

import re
from typing import Any


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Keep only the words of links that lead out of docs/: the site has nothing there."""
    depth = page.file.src_uri.count("/")
    return re.sub(rf"\[([^\]]+)\]\((?:\.\./){{{depth + 1}}}[^)]*\)", r"\1", markdown)


def on_page_content(html: str, **_: Any) -> str:
    """Take away the roles of Sphinx, such as :func:, which stand ahead of names in docstrings."""
    html = re.sub(r":(?:attr|class|data|exc|func|meth|mod):(?=<(?:code|a|span))", "", html)
    return re.sub(r"(?<=<code>)~(?:\w+\.)*(?=\w)", "", html)
