"""Load and unload for several processes: a list of changes in a file, which every worker follows.

::

    client ── unload net ──> worker 1 ── appends ──> changes <── reads ── worker 1, worker 2, ...
                             worker 1 <── waits ──── done-PID <─ writes ─ worker 1, worker 2, ...

All workers apply the changes in the order of the list, so that their models are the same.  A worker
that replaces another one begins with the changes so far.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from kuiper.serving.failures import Refusal, as_refusal

__all__ = ["Changes", "forget"]

# Seconds between looks at the list, and until a worker that does not follow is an error.
_POLL = 0.1
_WAIT = 60.0


class Changes:
    """The changes that clients have asked for, of all workers.

    Parameters
    ----------
    folder : Path
        Which the workers share.
    apply : callable
        ``await apply(what, name)`` loads or unloads a model in this process.
    """

    def __init__(self, folder: Path, apply: Callable[[str, str], Awaitable[None]]) -> None:
        self._list, self._folder, self._apply = folder / "changes", folder, apply
        self._done = 0
        self._failed: dict[int, str] = {}
        self._asked: dict[int, asyncio.Future[None]] = {}
        self._wake = asyncio.Event()

    async def catch_up(self) -> None:
        """Apply the changes so far; of those to one model only the last."""
        changes = self._read(0)
        last = {name: number for number, (_, name) in enumerate(changes)}
        for number, (what, name) in enumerate(changes):
            if last[name] == number:
                with contextlib.suppress(Refusal):  # a model that did not load for others either
                    await self._apply(what, name)
        self._done = len(changes)
        self._mark()

    async def follow(self) -> None:
        """Apply changes as they come, until the task is cancelled."""
        while True:
            for what, name in self._read(self._done):
                await self._one(what, name)
            self._wake.clear()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._wake.wait(), _POLL)

    async def _one(self, what: str, name: str) -> None:
        number, error = self._done + 1, None
        try:
            await self._apply(what, name)
        except Exception as caught:
            error = as_refusal(caught)
            self._failed[number] = str(error)
        self._done = number
        self._mark()
        asked = self._asked.pop(number, None)
        if asked is not None and not asked.done():
            if error is None:
                asked.set_result(None)
            else:
                asked.set_exception(error)

    async def ask(self, what: str, name: str) -> None:
        """Change a model in all workers, and wait until they have.

        Raises
        ------
        Refusal
            If one of them could not, or does not follow.
        """
        number = self._append(what, name)
        asked = self._asked[number] = asyncio.get_running_loop().create_future()
        self._wake.set()
        await asked
        end = time.monotonic() + _WAIT
        while True:
            marks = self._marks()
            failed = [
                mark["failed"][str(number)] for mark in marks if str(number) in mark["failed"]
            ]
            if failed:
                raise Refusal("unavailable", f"{what} of '{name}' failed in a worker: {failed[0]}")
            if all(mark["done"] >= number for mark in marks):
                return
            if time.monotonic() > end:
                raise Refusal("unavailable", f"a worker did not {what} '{name}' in {_WAIT:g} s")
            await asyncio.sleep(0.02)

    # -- files -----------------------------------------------------------------------------

    def _append(self, what: str, name: str) -> int:
        """Append a change; return its number, from 1."""
        import fcntl  # of systems with fork alone

        with open(self._list, "a+", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            number = len(file.readlines()) + 1
            file.write(json.dumps([what, name]) + "\n")
        return number

    def _read(self, start: int) -> list[tuple[str, str]]:
        try:
            text = self._list.read_text("utf-8")
        except FileNotFoundError:
            return []
        # A line without its end is being written.
        lines = text[: text.rfind("\n") + 1].splitlines()[start:]
        return [(what, name) for what, name in map(json.loads, lines)]

    def _mark(self) -> None:
        """Tell the others how far this worker is."""
        file = self._folder / f"done-{os.getpid()}"
        beside = file.with_suffix(".new")
        recent = {n: text for n, text in self._failed.items() if n > self._done - 16}
        beside.write_text(json.dumps({"done": self._done, "failed": recent}), "utf-8")
        beside.replace(file)

    def _marks(self) -> list[dict[str, Any]]:
        marks = []
        for file in self._folder.glob("done-*[0-9]"):
            with contextlib.suppress(FileNotFoundError):  # a worker that has ended
                marks.append(json.loads(file.read_text("utf-8")))
        return marks


def forget(folder: Path, pid: int) -> None:
    """Remove the mark of a worker that has ended: nothing waits for it any more."""
    (folder / f"done-{pid}").unlink(missing_ok=True)
