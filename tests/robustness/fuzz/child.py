"""The process in which inputs are tried; ``runner.py`` starts it as a program.

It writes the number of the current input to a file that its parent watches, so that a crash or a
hang can be attributed.  On standard output it writes a line of JSON for every finding, and now and
then one with the counts so far.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import re
import struct
import sys
import time
import traceback
import warnings
from collections import Counter
from pathlib import Path
from random import Random

# The installed kuiper, or that of PYTHONPATH, takes precedence over the folder of the tests.
import kuiper  # noqa: F401

ROOT = str(Path(__file__).resolve().parents[3])
sys.path.insert(0, ROOT)

from tests.robustness.fuzz.targets import TARGETS  # noqa: E402

NOTE = struct.Struct("<qd")
EXTRA_BYTES = 3 << 29  # by which an input may grow the process


def limit_memory() -> None:
    """Limit the address space to more than any input of the harness needs."""
    try:
        import resource
    except ImportError:  # not on Windows
        return
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(OSError):
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limit = pages * resource.getpagesize() + EXTRA_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def signature(error: BaseException) -> str:
    """Return a name that findings with the same cause share."""
    frames = traceback.extract_tb(error.__traceback__)
    inside = [f for f in frames if "kuiper" in f.filename and "tests" not in f.filename]
    where = f"{Path(inside[-1].filename).name}:{inside[-1].name}" if inside else "check"
    text = re.sub(r"'[^']*'|\d[\d.e+-]*|\(.*?\)", "_", str(error))[:60]
    return f"{type(error).__name__} {where} {text if where == 'check' else ''}".strip()


def attempt(check, data: bytes, options: dict) -> tuple[str, BaseException | None]:
    """Check one input; return a word for the counts and the exception, if any."""
    try:
        return check(data, **options), None
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return "finding", error


def run(target, note, seed: int, start: int, count: int, options: dict) -> None:
    """Try the inputs from number `start` on."""
    tally: Counter[str] = Counter()
    told: Counter[str] = Counter()
    last = time.monotonic()
    for number in range(start, start + count):
        data = target.make(Random(f"{target.name}/{seed}/{number}"))
        now = time.monotonic()
        NOTE.pack_into(note, 0, number, now)
        if now - last > 1:
            print(json.dumps({"tally": tally}), flush=True)
            tally.clear()
            last = now
        word, error = attempt(target.check, data, options)
        tally[word] += 1
        if error is not None:
            name = signature(error)
            told[name] += 1
            if told[name] <= 3:
                text = "".join(traceback.format_exception(error)[-12:])
                print(json.dumps({"finding": number, "name": name, "text": text}), flush=True)
            else:
                print(json.dumps({"again": number, "name": name}), flush=True)
        error = None
    print(json.dumps({"tally": tally, "done": True}), flush=True)


def shrink(target, data: bytes, options: dict, seconds: float = 20.0) -> bytes:
    """Return a smaller input with the same finding."""
    name = signature_of(target, data, options)
    if name is None:  # not reproducible
        return data
    until = time.monotonic() + seconds

    def still(candidate: bytes) -> bool:
        return signature_of(target, candidate, options) == name

    return minimise(data, still, target.split, until)


def signature_of(target, data: bytes, options: dict) -> str | None:
    error = attempt(target.check, data, options)[1]
    return None if error is None else signature(error)


def minimise(data: bytes, still, split, until: float) -> bytes:
    """Leave out pieces while `still` holds, first large ones, then smaller ones.

    Parameters
    ----------
    data : bytes
    still : callable
        Tells whether an input still has the finding of `data`.
    split : callable
        Splits an input into (pieces, join).
    until : float
        Time to stop, by `time.monotonic`.
    """
    for level in (0, 1):
        pieces, join = split(data, level)
        size = max(len(pieces) // 2, 1)
        while size:
            at = 0
            while at < len(pieces) and time.monotonic() < until:
                rest = pieces[:at] + pieces[at + size :]
                if rest and still(join(rest)):
                    pieces = rest
                else:
                    at += size
            size = size // 2 if size > 1 else 0
        data = join(pieces)
    return data


def main(arguments: list[str]) -> int:
    order = json.loads(arguments[0])
    target = TARGETS[order["target"]]
    options = order.get("options", {})
    warnings.simplefilter("error")
    if order.get("limit", True):
        limit_memory()
    if "replay" in order:
        word, error = attempt(target.check, Path(order["replay"]).read_bytes(), options)
        if error is not None:
            traceback.print_exception(error)
        print(json.dumps({"word": word, "name": signature(error) if error else None}))
        return 0
    if "shrink" in order:
        data = shrink(target, Path(order["shrink"]).read_bytes(), options)
        Path(order["shrink"]).write_bytes(data)
        return 0
    with open(order["note"], "r+b") as file, mmap.mmap(file.fileno(), NOTE.size) as note:
        run(target, note, order["seed"], order["start"], order["count"], options)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
