"""Hostile input: generators that damage valid files, and checks of what kuiper makes of them.

::

    chance.py        what mutations are made of: odd numbers, odd words, cuts and copies of bytes
    param.py  archive.py  expressions.py  models.py
                     one target each: `make` an input, `mutate` one, `check` what comes out
    runner.py        many inputs in a child process; crashes and hangs are caught, made small, saved
    child.py         that child
    guided.py        the same targets guided by coverage, with atheris

A check lets :class:`kuiper.errors.KuiperError` pass, and nothing else: whatever comes out of it is
a finding.  Every input follows from a target, a seed and a number, so each can be made again::

    python -m tests.robustness.fuzz --target model --count 10000 --seed 7
    python -m tests.robustness.fuzz --target model --seed 7 --only 4711  # one, with its traceback
    python -m tests.robustness.fuzz --target model --replay FILE         # one that was saved
"""
