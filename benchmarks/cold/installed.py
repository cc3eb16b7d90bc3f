"""Print the installed size of a package, alone and with its requirements.

Run by the interpreter in question: ``python benchmarks installed PACKAGE``. numpy is not counted,
since every runtime here needs it.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import re
import sys
from pathlib import Path


def distribution_bytes(name: str) -> int:
    """Return the size of the files that the distribution `name` installed."""
    files = importlib.metadata.files(name) or []
    return sum(size(Path(file.locate())) for file in files)


def size(path: Path) -> int:
    """Return the size of a file, 0 if it does not exist or is byte code."""
    return path.stat().st_size if path.suffix != ".pyc" and path.exists() else 0


def required(name: str) -> set[str]:
    """Return `name` and all installed distributions that it requires, directly or not."""
    found: set[str] = set()
    queue = [name]
    while queue:
        current = re.sub(r"[-_.]+", "-", queue.pop()).lower()
        if current in found or current == "numpy":
            continue
        try:
            requirements = importlib.metadata.requires(current) or []
        except importlib.metadata.PackageNotFoundError:
            continue
        found.add(current)
        for requirement in requirements:
            if "extra ==" not in requirement:
                queue.append(re.match(r"[\w.-]+", requirement).group())
    return found


def package_folder_bytes(name: str) -> int:
    """Return the size of the files of a package in a source tree that a wheel would contain."""
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(f"No module named {name!r}")
    wanted = {".py", ".so", ".pyd", ".pyi", ".typed"}
    folder = Path(spec.origin).parent
    return sum(size(p) for p in folder.rglob("*") if p.suffix in wanted or p.name == "py.typed")


def main() -> None:
    """Print ``{"alone": bytes, "with_requirements": bytes}``."""
    name = sys.argv[1]
    try:
        distribution = "kuiper-runtime" if name == "kuiper" else name
        alone = distribution_bytes(distribution)
        everything = sum(distribution_bytes(each) for each in required(distribution))
    except importlib.metadata.PackageNotFoundError:
        alone = everything = package_folder_bytes(name)
    print(json.dumps({"alone": alone, "with_requirements": everything}))
