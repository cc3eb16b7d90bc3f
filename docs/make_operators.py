"""Write docs/operators.md from the operator records: ``python docs/make_operators.py``."""

from __future__ import annotations

import sys
from pathlib import Path

from kuiper.ops import find_record, registered_types

HEADER = """# Supported operators

Made from the records in `kuiper/ops/` by `python docs/make_operators.py`; the names are those of
PyTorch as pnnx writes them. An argument may come as a parameter, as an input or, for modules, as an
attribute; `=` gives the default where it may be missing.

"""


def markdown() -> str:
    """Return the page: one section per file of records, one row per record."""
    families: dict[str, list] = {}
    for rule in dict.fromkeys(find_record(name) for name in registered_types()):
        families.setdefault(rule.__module__.rpartition(".")[2], []).append(rule)
    lines = [HEADER + f"{len(registered_types())} types.\n"]
    for family in sorted(families):
        lines.append(f"\n## {family.replace('_', ' ')}\n")
        lines.append("| types | arguments | |")
        lines.append("|---|---|---|")
        for rule in sorted(families[family], key=lambda r: r.types):
            types = "<br>".join(f"`{name}`" for name in rule.types)
            arguments = ", ".join(map(repr, rule.arguments)).replace("|", "\\|") or "none"
            summary = (rule.__doc__ or "").strip().splitlines()[0].replace("|", "\\|")
            lines.append(f"| {types} | {arguments} | {summary} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    target = Path(__file__).with_name("operators.md")
    target.write_text(markdown(), encoding="utf-8")
    sys.stdout.write(f"{target}: {len(registered_types())} types\n")
