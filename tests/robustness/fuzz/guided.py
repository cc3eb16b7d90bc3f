"""The targets guided by coverage.

::

    python -m tests.robustness.fuzz.guided TARGET [libFuzzer's options]

Needs atheris (``pip install atheris``).  The engine keeps inputs that reach new branches and
mutates those further, with the mutations of the targets, since random bytes rarely form a model.
It stops at the first finding and writes the input to a file for
``python -m tests.robustness.fuzz --replay``.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from random import Random

import atheris

with atheris.instrument_imports(include=["kuiper"]):
    import kuiper
    from kuiper.expression import ncnn
    from kuiper.pnnx import param

    from .targets import TARGETS

INSTRUMENTED = (kuiper, ncnn, param)

SEEDS = 300  # initial inputs


def main() -> None:
    names = ", ".join(TARGETS)
    if len(sys.argv) < 2 or sys.argv[1] not in TARGETS:
        sys.exit(
            f"usage: python -m tests.robustness.fuzz.guided TARGET [options]; targets: {names}"
        )
    target = TARGETS[sys.argv.pop(1)]

    def try_one(data: bytes) -> None:
        if target.name == "model":
            try:
                from .models import unpack

                unpack(data)
            except (ValueError, KeyError, TypeError):  # not in the form of this target
                return
        target.check(data)

    def change(data: bytes, max_size: int, seed: int) -> bytes:
        random = Random(seed)
        try:
            return target.mutate(data, random)[:max_size]
        except (ValueError, KeyError, TypeError, IndexError):
            return target.make(random)[:max_size]

    with tempfile.TemporaryDirectory() as folder:
        for number in range(SEEDS):
            data = target.make(Random(f"{target.name}/guided/{number}"))
            Path(folder, str(number)).write_bytes(data)
        options = ["-max_len=65536", "-timeout=30", "-rss_limit_mb=4096"]
        atheris.Setup(
            [*sys.argv[:1], *options, *sys.argv[1:], folder], try_one, custom_mutator=change
        )
        atheris.Fuzz()


if __name__ == "__main__":
    main()
