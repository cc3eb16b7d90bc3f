"""Names of a package that are imported on first use, by a module ``__getattr__`` (PEP 562).

Import time adds to every start, so a package only imports what every model needs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

__all__ = ["lazy_names"]


def lazy_names(
    package: str, homes: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the ``__getattr__`` and ``__dir__`` of a package.

    Parameters
    ----------
    package : str
        Its ``__name__``.
    homes : mapping of str to str
        Name -> the module that defines it; a submodule maps to itself.
    """
    module = sys.modules[package]

    def find(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        home = import_module(homes[name])
        value = home if home.__name__ == f"{package}.{name}" else getattr(home, name)
        setattr(module, name, value)
        return value

    return find, lambda: sorted({*vars(module), *homes})
