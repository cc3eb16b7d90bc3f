"""The output of the command line: JSON, plain text, or tables and progress bars of rich.

rich is used if it is installed (``pip install rich``, or the extra ``cli``) and the output is a
terminal.  Results go to standard output, progress and errors to standard error.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

__all__ = ["Console", "bytes_text", "count_text"]


def bytes_text(n: float) -> str:
    """Format a number of bytes with a binary unit."""
    for unit in ("B", "KiB", "MiB"):
        if abs(n) < 1024:
            return f"{n:.0f} {unit}" if unit == "B" else f"{n:.1f} {unit}"
        n /= 1024
    return f"{n:.2f} GiB"


def count_text(n: float, what: str = "") -> str:
    """Format a count with a decimal prefix, such as 3.50 M or 3.60 GFLOP."""
    for unit in ("", "K", "M"):
        if abs(n) < 1000:
            return (f"{n:.0f} {what}" if not unit else f"{n:.2f} {unit}{what}").rstrip()
        n /= 1000
    return f"{n:.2f} G{what}"


class Console:
    """The output of a command.

    Parameters
    ----------
    as_json : bool
        Write only the JSON of :meth:`data`; otherwise, only text and tables.
    plain : bool
        Never use rich.
    """

    def __init__(self, as_json: bool = False, plain: bool = False) -> None:
        self.as_json = as_json
        self._rich_out = self._rich_err = None
        self._bar = 0  # length of the progress line that standard error currently shows
        if not plain and not as_json:
            try:
                from rich.console import Console as Rich
            except ImportError:
                return
            if sys.stdout.isatty():
                self._rich_out = Rich(highlight=False)
            if sys.stderr.isatty():
                self._rich_err = Rich(stderr=True, highlight=False)

    # -- results ---------------------------------------------------------------------------

    def data(self, value: Any) -> None:
        """Write a value as one line of JSON in JSON mode, with NaN and infinities as null."""
        if self.as_json:
            unicode = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
            text = json.dumps(
                _finite(value), ensure_ascii=not unicode, allow_nan=False, default=str
            )
            self._clear()
            print(text, flush=True)

    def text(self, text: str = "") -> None:
        """Write a line of text."""
        if not self.as_json:
            self._clear()
            print(text, flush=True)

    def heading(self, text: str) -> None:
        """Write a title."""
        if self._rich_out is not None:
            self._rich_out.print(f"\n[bold]{_escaped(text)}[/bold]")
        else:
            self.text(f"\n{text}")

    def facts(self, rows: Sequence[tuple[str, Any]]) -> None:
        """Write pairs of name and value, one per line."""
        if self._rich_out is not None:
            from rich.table import Table

            grid = Table.grid(padding=(0, 2, 0, 0))
            grid.add_column(style="cyan", no_wrap=True)
            grid.add_column(overflow="fold")
            for name, value in rows:
                grid.add_row(_escaped(name), _escaped(str(value)))
            self._rich_out.print(grid)
            return
        width = max((len(name) for name, _ in rows), default=0)
        for name, value in rows:
            self.text(f"{name:{width}}  {value}")

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        """Write a table.

        Parameters
        ----------
        columns : sequence of str
            Headings; a leading ``>`` aligns the column to the right.
        rows : sequence of sequences
            Cells, formatted with `str`.
        """
        if self.as_json:
            return
        names = [name.lstrip(">") for name in columns]
        right = [name.startswith(">") for name in columns]
        cells = [[str(cell) for cell in row] for row in rows]
        widths = [max(map(len, column)) for column in zip(names, *cells, strict=True)]
        if self._rich_out is not None:
            self._rich_table(names, right, cells, widths)
            return
        for row in [names, ["-" * width for width in widths], *cells]:
            line = "  ".join(
                cell.rjust(width) if flush else cell.ljust(width)
                for cell, width, flush in zip(row, widths, right, strict=True)
            )
            self.text(line.rstrip())

    def _rich_table(
        self,
        names: Sequence[str],
        right: Sequence[bool],
        cells: Sequence[Sequence[str]],
        widths: Sequence[int],
    ) -> None:
        """Write a table that fits the terminal, folding text but not numbers."""
        from rich import box
        from rich.table import Table

        assert self._rich_out is not None
        widths = list(widths)
        spare = self._rich_out.width - 2 * len(widths) - sum(widths)
        while spare < 0:
            foldable = [
                w if w > 8 and not flush else 0 for w, flush in zip(widths, right, strict=True)
            ]
            if not any(foldable):  # too narrow for columns
                self._rich_blocks(names, cells)
                return
            widths[foldable.index(max(foldable))] -= 1
            spare += 1
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
        for name, flush, width in zip(names, right, widths, strict=True):
            justify: Literal["left", "right"] = "right" if flush else "left"
            table.add_column(
                name, justify=justify, overflow="fold", min_width=width, max_width=width
            )
        for row in cells:
            table.add_row(*map(_escaped, row))
        self._rich_out.print(table)

    def _rich_blocks(self, names: Sequence[str], cells: Sequence[Sequence[str]]) -> None:
        """Write each row of a table as a title, followed by lines of names and values."""
        assert self._rich_out is not None
        for first, *others in cells:
            self._rich_out.print(f"[bold]{_escaped(first)}[/bold]")
            line = ""
            for name, cell in zip(names[1:], others, strict=True):
                pair = f"  {name} {cell}".rstrip() if cell else ""
                if line and len(line) + len(pair) > self._rich_out.width:
                    self._rich_out.print(_escaped(line))
                    line = ""
                line += pair
            self._rich_out.print(_escaped(line))

    # -- progress --------------------------------------------------------------------------

    def progress(self, items: Iterable[Any], total: int | None, label: str) -> Iterator[Any]:
        """Yield items and show the progress on a terminal, after one second."""
        if total == 0:
            return
        with self.meter(total, label) as advance:
            for item in items:
                yield item
                advance(1)

    @contextmanager
    def meter(self, total: int | None, label: str) -> Iterator[Callable[..., None]]:
        """Show the progress on a terminal, after one second.

        The block gets a function of an increment and, if it is known only now, the total.
        """
        if self._rich_err is not None:
            from rich import progress as rich

            # Without markup: the label may be a path with braces and brackets.
            label_column = rich.TextColumn("{task.description}", markup=False)
            numbers = rich.MofNCompleteColumn(), rich.TimeRemainingColumn()
            # On a shared terminal rich prints results above the bar; it must not redirect results
            # that go to a file.
            shared = sys.stdout.isatty()
            with rich.Progress(
                label_column,
                rich.BarColumn(),
                *numbers,
                console=self._rich_err,
                transient=True,
                redirect_stdout=shared,
            ) as bar:
                task = bar.add_task(label, total=total)
                yield lambda amount, total=None: bar.update(task, advance=amount, total=total)
            return
        if not sys.stderr.isatty():
            yield lambda amount, total=None: None
            return
        start = shown = time.monotonic()
        count, wanted = 0, total

        def advance(amount: int, total: int | None = None) -> None:
            nonlocal count, shown, wanted
            count += amount
            wanted = total or wanted
            now = time.monotonic()
            if now - start > 1 and (not self._bar or now - shown > 0.2):
                shown = now
                self._clear()
                of = f"/{wanted}" if wanted else ""
                line = f"{label}: {count}{of}, {count / (now - start):.1f}/s"
                print(line, end="", file=sys.stderr, flush=True)
                self._bar = len(line)

        try:
            yield advance
        finally:
            self._clear()

    def _clear(self) -> None:
        """Erase the progress line before another line is written."""
        if self._bar:
            print(f"\r{' ' * self._bar}\r", end="", file=sys.stderr, flush=True)
            self._bar = 0

    def error(self, text: str) -> None:
        """Write a line to standard error."""
        if self._rich_err is not None:
            self._rich_err.print(f"[red]{_escaped(text)}[/red]")
        else:
            self._clear()
            print(text, file=sys.stderr, flush=True)


def _escaped(text: str) -> str:
    """Escape brackets, which start markup in rich."""
    return text.replace("[", "\\[")


def _finite(value: Any) -> Any:
    """Return a value with None for NaN and infinities, and lists for arrays."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    if hasattr(value, "tolist"):  # numpy's numbers and arrays
        return _finite(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
