"""The command line: ``kuiper`` and ``python -m kuiper``.

::

    _app.py        the parser, errors -> exit codes
    _arguments.py  types of arguments and options that several commands share
    _console.py    tables, bars and JSON; with rich where it is installed
    _inputs.py     models, shapes and arrays from what the command line names
    inspecting     info, check, expr, graph
    measuring      run, bench, profile
    pictures       classify, detect, segment
    exporting      export
    completing     completion

Nothing in kuiper imports this package, so that importing kuiper costs none of it.

Exit codes, which scripts can rely on:

====  =====================================================================================
0     everything went well
1     some inputs failed, or ``check`` found a difference; the others were handled
2     the command line is wrong
3     kuiper refused the model, the input or the expression
4     a file cannot be read or written
5     a package is missing that this command needs; the message says which
130   interrupted by Ctrl-C
====  =====================================================================================
"""

from __future__ import annotations

from kuiper.cli._app import main

__all__ = ["main"]
