"""Hostile input: generators that damage valid files, and checks of what kuiper does with them.

::

    chance.py        random edits: odd numbers, odd words, cuts and copies of bytes
    param.py  archive.py  expressions.py  models.py  onnx_models.py
                     one target each: `make` an input, `mutate` one, `check` the result
    runner.py        runs many inputs in a child process; catches, shrinks and saves crashes, hangs
    child.py         the child process
    guided.py        the same targets guided by coverage, with atheris

A check accepts :class:`kuiper.errors.KuiperError`; any other exception is a finding.  Every input
is determined by a target, a seed and a number, so each can be made again::

    python -m tests.robustness.fuzz --target model --count 10000 --seed 7
    python -m tests.robustness.fuzz --target model --seed 7 --only 4711  # one, with its traceback
    python -m tests.robustness.fuzz --target model --replay FILE         # one that was saved
"""
