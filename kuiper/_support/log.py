"""Messages for :mod:`logging`, which kuiper imports only for warnings.

A process that has not imported it has no handlers, and importing it would cost each start as much
as loading a small model.  Nothing here installs a handler or sets a level.
"""

from __future__ import annotations

import sys
from typing import Any

__all__ = ["debug", "info", "warning"]


def debug(logger: str, message: str, *args: Any) -> None:
    """Log details for the analysis of a model or its speed."""
    _log(logger, 10, message, args)


def info(logger: str, message: str, *args: Any) -> None:
    """Log an event that matters to the operation of a service."""
    _log(logger, 20, message, args)


def warning(logger: str, message: str, *args: Any) -> None:
    """Log a hazard to the correctness of results; without handlers it goes to stderr."""
    import logging

    logging.getLogger(logger).warning(message, *args)


def _log(logger: str, level: int, message: str, args: tuple[Any, ...]) -> None:
    logging = sys.modules.get("logging")
    if logging is not None:
        logging.getLogger(logger).log(level, message, *args)
