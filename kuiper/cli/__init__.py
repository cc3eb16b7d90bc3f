"""The command line: ``kuiper`` and ``python -m kuiper``.

::

    _app.py        the parser, and the exit codes of errors
    _arguments.py  argument types and options that several commands share
    _console.py    output: tables, progress bars and JSON
    _inputs.py     models, shapes and arrays that the arguments name
    inspecting     info, check, expr, graph
    measuring      run, bench, profile
    pictures       classify, detect, segment
    datasets       run-dataset
    serving        serve
    exporting      export
    listing        operators, config
    completing     completion

Nothing else in kuiper imports this package, so ``import kuiper`` does not load it.

Exit codes are stable:

====  =====================================================================================
0     success
1     some inputs failed and the others were processed, or ``check`` found a difference
2     invalid command line
3     kuiper refused the model, the input or the expression
4     a file cannot be read or written
5     a required package is missing; the message names it
130   interrupted by Ctrl-C
====  =====================================================================================
"""

from __future__ import annotations

from kuiper.cli._app import main

__all__ = ["main"]
