"""Drivers of kernels that reduce or normalise rows.

Depending on the layout, a reduction runs along contiguous rows, or across columns, one vector of
columns at a time.  Sums are added in a fixed blocked order.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:

    def __getattr__(name: str) -> Any: ...  # the compiled modules have no stubs
