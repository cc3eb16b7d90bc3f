"""Runs many inputs in a child process; catches, shrinks and saves crashes and hangs."""

from __future__ import annotations

import json
import mmap
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from ...support.process import python_environment, run_python
from .child import NOTE, minimise
from .targets import TARGETS

__all__ = ["Finding", "Outcome", "run"]

CHILD = Path(__file__).with_name("child.py")
ASLEEP = 10  # a child may sleep this many times `patience` over one input


@dataclass
class Finding:
    """A failure of a check.

    Attributes
    ----------
    number : int
        Number of the input.
    name : str
        Equal for findings with the same cause.
    text : str
        The traceback, or a description of the crash.
    data : bytes
        An input that reproduces it.
    count : int
        Number of inputs with this finding.
    """

    number: int
    name: str
    text: str
    data: bytes
    count: int = 1


@dataclass
class Outcome:
    """The results of a run.

    Attributes
    ----------
    tried : int
        Number of inputs.
    tally : Counter
        Counts of their outcomes.
    findings : dict of str to Finding
    seconds : float
    """

    tried: int = 0
    tally: Counter = field(default_factory=Counter)
    findings: dict[str, Finding] = field(default_factory=dict)
    seconds: float = 0.0


def run(
    target: str,
    count: int,
    seed: int,
    *,
    seconds: float = 1e9,
    start: int = 0,
    patience: float = 20.0,
    limit: bool = True,
    options: dict | None = None,
    say=None,
) -> Outcome:
    """Try the inputs `start` to ``start + count``, or as many as `seconds` allow.

    Parameters
    ----------
    target : str
    count, seed : int
    seconds : float, optional
    start : int, default=0
    patience : float, default=20
        Seconds after which an input counts as a hang.
    limit : bool, default=True
        Whether to limit the memory of the child; AddressSanitizer needs no limit.
    options : dict, optional
        Keyword arguments of the check.
    say : callable, optional
        Receives a line of progress now and then.
    """
    outcome = Outcome()
    begin = time.monotonic()
    number, end = start, start + count
    order = {"target": target, "seed": seed, "limit": limit, "options": options or {}}
    with tempfile.NamedTemporaryFile() as file:
        file.write(NOTE.pack(start, time.monotonic()))
        file.flush()
        with mmap.mmap(file.fileno(), NOTE.size) as note:
            while number < end and time.monotonic() - begin < seconds:
                watched = _Watched(
                    {**order, "note": file.name, "start": number, "count": end - number}
                )
                fate = watched.watch(note, outcome, begin + seconds, patience, say)
                at, _ = NOTE.unpack_from(note)
                outcome.tried += (
                    max(at - number + (fate is None), 0) if fate != "time" else at - number
                )
                text = watched.tail()
                watched.close()
                if fate is None or fate == "time":
                    break
                _add(outcome, target, seed, at, fate, text)
                outcome.tried += 1
                number = at + 1
    for name, finding in outcome.findings.items():
        finding.data = _shrunk(order, name, finding, patience)
    outcome.seconds = time.monotonic() - begin
    return outcome


def _add(outcome: Outcome, target: str, seed: int, number: int, name: str, text: str) -> None:
    if name in outcome.findings:
        outcome.findings[name].count += 1
        return
    data = TARGETS[target].make(Random(f"{target}/{seed}/{number}"))
    outcome.findings[name] = Finding(number, name, text, data)


class _Watched:
    """A child process and its messages."""

    def __init__(self, order: dict):
        self.order = order
        # The current input, the child's processor time at its start, the time the child has slept
        # since, and when the latter was last updated.
        self.at, self.busy, self.asleep, self.seen = -1, 0.0, 0.0, time.monotonic()
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115, closed by `close`
        self.process = subprocess.Popen(
            [sys.executable, "-X", "faulthandler", str(CHILD), json.dumps(order)],
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
            env=python_environment(OMP_NUM_THREADS="2"),
        )
        self.lines: queue.Queue = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        with self.process.stdout as said:
            for line in said:
                self.lines.put(line)
        self.lines.put(None)

    def _activity(self) -> tuple[str, float]:
        """Return the state of the child ("S" asleep, "T" stopped ...) and its processor time."""
        try:
            fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:  # not on Linux, or the child has ended
            return "", time.monotonic()
        return fields[0], (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def _hangs(self, at: int, patience: float) -> bool:
        """Tell whether the child has computed or slept over one input for too long.

        Wall time is no measure: a child computes little on a busy machine and nothing while it is
        stopped, and its parent may have been stopped with it.
        """
        state, busy = self._activity()
        now = time.monotonic()
        passed, self.seen = min(now - self.seen, 1.0), now
        if at != self.at:
            self.at, self.busy, self.asleep = at, busy, 0.0
        elif state in ("S", "D"):
            self.asleep += passed
        return busy - self.busy > patience or self.asleep > ASLEEP * patience

    def tail(self) -> str:
        """Return the end of the child's standard error."""
        self.errors.seek(0)
        return self.errors.read().decode(errors="replace")[-4000:]

    def close(self) -> None:
        self.errors.close()

    def watch(self, note, outcome: Outcome, until: float, patience: float, say) -> str | None:
        """Follow the child to its end; return None if it finished, else how it died."""
        done, fate = False, None
        while True:
            try:
                line = self.lines.get(timeout=0.5)
            except queue.Empty:
                line = ""
            if line is None:
                break
            if line:
                done |= self._take(json.loads(line), outcome, say)
            at, _ = NOTE.unpack_from(note)
            hangs = self._hangs(at, patience)
            if fate is None and not done:
                fate = "time" if time.monotonic() > until else "hang" if hangs else None
                if fate:
                    self.process.kill()
        code = self.process.wait()
        if fate is None and not done:
            fate = f"killed by signal {-code}" if code < 0 else f"exit code {code}"
        return fate

    def _take(self, said: dict, outcome: Outcome, say) -> bool:
        if "tally" in said:
            outcome.tally.update(said["tally"])
            if say:
                say(f"{sum(outcome.tally.values())} inputs, {len(outcome.findings)} findings")
        elif "finding" in said:
            order = self.order
            _add(
                outcome, order["target"], order["seed"], said["finding"], said["name"], said["text"]
            )
            if say and outcome.findings[said["name"]].count == 1:
                say(f"input {said['finding']}: {said['name']}")
        elif said["name"] in outcome.findings:
            outcome.findings[said["name"]].count += 1
        return said.get("done", False)


def _shrunk(order: dict, name: str, finding: Finding, patience: float) -> bytes:
    """Shrink the input of a finding in child processes."""
    target = TARGETS[order["target"]]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "input")
        path.write_bytes(finding.data)

        def call(**more) -> subprocess.CompletedProcess | None:
            said = json.dumps({**order, **more})
            try:
                return run_python(str(CHILD), said)
            except subprocess.TimeoutExpired:
                return None

        if not name.startswith(("killed", "hang", "exit")):
            call(shrink=str(path))
            return path.read_bytes()

        def still(data: bytes) -> bool:
            path.write_bytes(data)
            ended = call(replay=str(path))
            return ended is not None and ended.returncode < 0

        if name == "hang" or not still(finding.data):
            return finding.data
        return minimise(finding.data, still, target.split, time.monotonic() + 3 * patience)
