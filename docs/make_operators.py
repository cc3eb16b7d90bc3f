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

The operators of `kuiper.supported_operators()`: {count} names for {records} operators, by family,
and `pnnx.Input` and `pnnx.Output`, which mark the ends of a graph. Names in one row are spellings
of the same operator. Arguments and defaults are PyTorch's; a weight may be an attribute, as of a
module, or an input, as of a function. An argument without a default is required. *numpy:* marks
operators that are a call of numpy between the compiled steps. *constant:* marks operators whose
results are computed once, while planning, and cost nothing at run time. *cut:* marks operators
whose output shape may depend on computed values: the model is cut there, and the rest is planned
while it runs ([design](design.md#planning-planning), data-dependent shapes).

[The last section](#what-stays-out) lists what kuiper deliberately does not support.

`docs/make_operators.py` writes this page from the records in `kuiper/ops/`; do not edit it.
"""


OUT = """\
## What stays out

Loading a model with one of these raises an error that names every missing operator.
`@kuiper.operator` adds a Python function for any of them. A star stands for all names with that
prefix.

| names | why | what to do |
|---|---|---|
"""

# What no record can restore because the file lacks it.
LOST = """\

pnnx 20261020 loses some information. Models that rely on it give other results, in kuiper as in the
Python module that pnnx writes:

- the `rounding_mode` of `torch.div` (``floor`` becomes a division, ``trunc`` a division rounded
  down), and the `decimals` of `torch.round`;
- the `storage_offset` of `torch.as_strided`;
- the weight of an `nn.LayerNorm` without bias;
- the position of an ellipsis in an equation of `torch.einsum` with several operands: kuiper assumes
  that it comes first;
- the values of a constant index of several axes (``x[rows[:, None], columns]``) after its first
  axis: kuiper assumes all indices in order if that gives the traced shape, as in the attention
  masks of text models, and refuses it otherwise;
- a value that is written into a slice of a constant (the bias of Swin-v2's attention).
"""


def is_own(module: str) -> bool:
    """Tell whether the records of a module belong to the package, not to its users."""
    return module.startswith("kuiper.ops.") and module != "kuiper.ops.core.custom"


def records() -> list[type[Record]]:
    """Return every record once, by family and name."""
    found = {record_or_none(name) for name in kuiper.supported_operators()} - {None}
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
