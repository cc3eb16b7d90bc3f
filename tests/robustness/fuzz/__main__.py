"""``python -m tests.robustness.fuzz``; see ``--help``."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from random import Random

from ...support.process import run_python
from .runner import CHILD, run
from .targets import TARGETS


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.robustness.fuzz", description=__doc__)
    parser.add_argument("--target", choices=[*TARGETS, "all"], default="all")
    parser.add_argument("--count", type=int, default=1000, help="inputs per target")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--start", type=int, default=0, help="number of the first input")
    parser.add_argument("--seconds", type=float, default=1e9, help="at most so long per target")
    parser.add_argument("--patience", type=float, default=20.0, help="seconds until a hang")
    parser.add_argument("--reference", action="store_true", help="model: also ask the references")
    parser.add_argument("--no-limit", action="store_true", help="no limit of memory (sanitizers)")
    parser.add_argument("--save", type=Path, help="folder for the inputs of findings")
    parser.add_argument("--only", type=int, help="try this input alone and show what comes out")
    parser.add_argument("--replay", type=Path, nargs="+", help="try saved inputs")
    parser.add_argument("--quiet", action="store_true")
    args = parser.parse_args()
    names = list(TARGETS) if args.target == "all" else [args.target]
    found = 0
    for name in names:
        options = {"reference": True} if args.reference and name == "model" else {}
        if args.only is not None or args.replay:
            found += _replay(name, args, options)
            continue
        outcome = run(
            name,
            args.count,
            args.seed,
            seconds=args.seconds,
            start=args.start,
            patience=args.patience,
            limit=not args.no_limit,
            options=options,
            say=None if args.quiet else _Progress(name),
        )
        found += len(outcome.findings)
        _report(name, outcome, args.save)
    return 1 if found else 0


class _Progress:
    """Prints lines about a run: findings at once, counts at growing intervals."""

    def __init__(self, name: str):
        self.name = name
        self.calls = 0

    def __call__(self, line: str) -> None:
        self.calls += 1
        if not line.endswith("findings") or self.calls % 30 == 0:
            print(f"{self.name}: {line}", file=sys.stderr, flush=True)


def _report(name: str, outcome, folder: Path | None) -> None:
    rate = outcome.tried / max(outcome.seconds, 1e-9)
    print(f"{name}: {outcome.tried} inputs in {outcome.seconds:.0f} s ({rate:.0f}/s)")
    for word, count in outcome.tally.most_common():
        print(f"    {count:9d}  {word}")
    for finding in outcome.findings.values():
        print(f"\nFOUND by input {finding.number}, {finding.count} times: {finding.name}")
        print(finding.text)
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            path = folder / f"{name}-{finding.number}"
            path.write_bytes(finding.data)
            print(f"saved as {path}")
    sys.stdout.flush()


def _replay(name: str, args, options: dict) -> int:
    """Try saved inputs in child processes; return how many are findings."""
    found = 0
    with tempfile.TemporaryDirectory() as scratch:
        paths = args.replay or []
        if args.only is not None:
            path = Path(scratch, f"{name}-{args.only}")
            path.write_bytes(TARGETS[name].make(Random(f"{name}/{args.seed}/{args.only}")))
            paths = [path]
        for path in paths:
            order = {"target": name, "replay": str(path), "options": options}
            order["limit"] = not args.no_limit
            ended = run_python("-X", "faulthandler", str(CHILD), json.dumps(order), timeout=None)
            said = json.loads(ended.stdout.splitlines()[-1]) if ended.returncode == 0 else {}
            bad = ended.returncode != 0 or said.get("name")
            found += bool(bad)
            print(f"{path.name}: {said.get('word', f'exit code {ended.returncode}')}")
            if bad:
                print(ended.stderr)
    return found


if __name__ == "__main__":
    sys.exit(main())
