"""Messages for :mod:`logging`, which kuiper does not import itself but for a warning.

A process that never imported it has no handler, so there is nobody to tell; and the import would
cost each start as much as a small model.  Nothing here installs a handler or sets a level.
"""

from __future__ import annotations

import sys
from typing import Any

__all__ = ["debug", "info", "warning"]


def debug(logger: str, message: str, *args: Any) -> None:
    """Log what is of use to whoever looks into a model or its speed."""
    _log(logger, 10, message, args)


def info(logger: str, message: str, *args: Any) -> None:
    """Log what whoever runs a service may want to know."""
    _log(logger, 20, message, args)


def warning(logger: str, message: str, *args: Any) -> None:
    """Log what may make results others than they are taken for; without handlers, to stderr."""
    import logging

    logging.getLogger(logger).warning(message, *args)


def _log(logger: str, level: int, message: str, args: tuple[Any, ...]) -> None:
    logging = sys.modules.get("logging")
    if logging is not None:
        logging.getLogger(logger).log(level, message, *args)
