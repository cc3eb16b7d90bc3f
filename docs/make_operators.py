"""Write docs/operators.md and kuiper/ops/core/type_index.py from the operator records.

python docs/make_operators.py
"""

from __future__ import annotations

import inspect
import pkgutil
from importlib import import_module
from pathlib import Path

import kuiper
from kuiper.ops.core import record as registry
from kuiper.ops.core import type_index as INDEX
from kuiper.ops.core.advice import STAYS_OUT
from kuiper.ops.core.record import Record, record_or_none

PAGE = Path(__file__).with_name("operators.md")

HEAD = """\
# Operators

What `kuiper.supported_operators()` lists: {count} names for {records} operators, by family, and
`pnnx.Input` and `pnnx.Output`, which mark the ends of a graph. Names in one row are spellings of
the same operator. Arguments and defaults are PyTorch's; where a module and a function differ (a
weight is an attribute here and an input there), either will do. An argument without a default is
required. Where numpy is named first, the operator is a call of numpy between the compiled steps.
*constant:* marks those whose results are computed once, while planning, and cost nothing in a run.
*cut:* marks the operators whose results may have as many elements as values tell that the model
computes: there the model is cut, and what follows is planned while it runs
([design.md](design.md), section 6).

What kuiper does not have, on purpose, is [at the end](#what-stays-out).

This page is written by `docs/make_operators.py` from the records in `kuiper/ops/`; do not edit it.
"""


OUT = """\
## What stays out

A model with one of these is refused when it is loaded; the error names every operator that is
missing. `@kuiper.operator` adds a function in Python for any of them. A star stands for all names
that begin so.

| names | why | what to do |
|---|---|---|
"""

# What no record can mend, since the file lacks it.
LOST = """\

Some of what PyTorch computes does not reach the file at all, as of pnnx 20261020; models that rely
on it give other results, in kuiper as in the Python module that pnnx writes:

- the `rounding_mode` of `torch.div` (``floor`` becomes a division, ``trunc`` a division rounded
  down), and the `decimals` of `torch.round`;
- the `storage_offset` of `torch.as_strided`;
- the weight of an `nn.LayerNorm` without bias;
- where an ellipsis stood in an equation of `torch.einsum` with several operands: kuiper takes it
  for one in front;
- what a constant index of several axes (``x[rows[:, None], columns]``) holds behind its first axis:
  kuiper takes it for all places in their order where that gives the traced shape, as in the
  attention masks of text models, and refuses it elsewhere;
- a value that is written into a slice of a constant (the bias of Swin-v2's attention).
"""


def is_own(module: str) -> bool:
    """Tell whether the records of a module are the package's, and not made by its users."""
    return module.startswith("kuiper.ops.") and module != "kuiper.ops.core.custom"


def records() -> list[type[Record]]:
    """Return every record once, by family and name."""
    found = {record_or_none(name) for name in kuiper.supported_operators()} - {None}
    # Operators that a user added are not the package's.
    own = [record for record in found if is_own(record.__module__)]
    return sorted(own, key=lambda record: (record.__module__, record.types[0].lower()))


def row(record: type[Record]) -> str:
    """Return a record's row of the table."""
    names = ", ".join(f"`{name}`" for name in record.types)
    arguments = ", ".join(
        f"`{argument!r}`" for argument in record.arguments if not argument.internal
    )
    summary = (inspect.getdoc(record) or "").partition("\n\n")[0].replace("\n", " ")
    marks = [
        ("constant", record.is_folded),
        ("cut", record.data_dependent),
        ("numpy", record.runs_in_numpy),
    ]
    if found := ", ".join(word for word, holds in marks if holds):
        summary = f"*{found}:* {summary}"
    cells = [cell.replace("|", "\\|") for cell in (names, arguments, summary)]
    return f"| {cells[0]} | {cells[1]} | {cells[2]} |"


def page() -> str:
    """Return the text of operators.md."""
    lines = []
    family = None
    for record in records():
        if record.__module__ != family:
            family = record.__module__
            title = (inspect.getmodule(record).__doc__ or family).partition("\n")[0].rstrip(".")
            lines += ["", f"## {title}", "", "| names | arguments | |", "|---|---|---|"]
        lines.append(row(record))
    count = sum(len(record.types) for record in records())
    out = "".join(
        f"| {', '.join(f'`{type}`' for type in types.split())} | {why} | {remedy} |\n"
        for types, why, remedy in STAYS_OUT
    )
    head = HEAD.format(count=count, records=len(records()))
    return head + "\n".join(lines) + "\n\n" + OUT + out + LOST


INDEX_HEAD = '''\
"""The module of kuiper.ops that registers each operator type; record_or_none imports it on demand.

Written by docs/make_operators.py from the records; do not edit it.
"""

# ruff: noqa: E501

MODULES = {
'''


def index() -> str:
    """Return the text of ops/core/type_index.py: the operator types of each module of records."""
    for module in pkgutil.walk_packages(kuiper.ops.__path__, "kuiper.ops."):
        import_module(module.name)
    types: dict[str, list[str]] = {}
    for name, record in registry._registry.items():
        if is_own(record.__module__):
            types.setdefault(record.__module__.removeprefix("kuiper.ops."), []).append(name)
    rows = [f'    "{module}": "{" ".join(sorted(types[module]))}",\n' for module in sorted(types)]
    return f"{INDEX_HEAD}{''.join(rows)}}}\n"


if __name__ == "__main__":
    Path(INDEX.__file__).write_text(index(), encoding="utf-8")
    PAGE.write_text(page(), encoding="utf-8")
    print(f"{PAGE}: {len(records())} operators")
