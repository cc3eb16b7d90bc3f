"""Names of a package that are imported on first use, by a module ``__getattr__`` (PEP 562).

Import time adds to every start, so a package only imports what every model needs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

__all__ = ["lazy_names", "method_of"]


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

    Returns
    -------
    (callable, callable)
        ``__dir__`` lists what completion should offer: ``__all__`` and the names in `homes`, but
        not what the package itself imports.
    """
    module = sys.modules[package]

    def find(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        home = import_module(homes[name])
        value = home if home.__name__ == f"{package}.{name}" else getattr(home, name)
        setattr(module, name, value)
        return value

    def public() -> list[str]:
        special = (name for name in vars(module) if name.startswith("__"))
        return sorted({*module.__all__, *homes, *special})

    return find, public


def method_of(module: str, function: str) -> Callable[[Any], Any]:
    """Return a method that calls a function of a module, imported at the first call.

    For methods that only some environments call, such as the pictures of a notebook.
    """

    def method(self: Any) -> Any:
        return getattr(import_module(module), function)(self)

    return method
