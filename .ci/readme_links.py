"""Make the relative links of a README absolute, since PyPI has the text without the files.

python .ci/readme_links.py README.md https://github.com/OWNER/kuiper v0.1.0

Pictures lead to the raw files of that tag or commit, other links to its pages.
"""

import re
import sys
from pathlib import Path

# Code is left alone.  Of a link, the text may hold code.
PARTS = re.compile(r"(^```.*?^```$)|(!?)(\[[^\]\n]*\])\((?![a-z]+:|#)([^)\s]+)\)", re.M | re.S)


def absolute(text: str, repository: str, tag: str) -> str:
    """Return the text with links to the files of a tag in a repository on GitHub."""

    def replaced(match: re.Match[str]) -> str:
        code, picture, words, target = match.groups()
        if code:
            return code
        kind = "raw" if picture else "blob"
        return f"{picture}{words}({repository.rstrip('/')}/{kind}/{tag}/{target})"

    return PARTS.sub(replaced, text)


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_text(absolute(path.read_text("utf-8"), sys.argv[2], sys.argv[3]), "utf-8")
