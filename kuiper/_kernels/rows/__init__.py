"""Drivers of kernels that reduce or normalise rows.

The same loops run along contiguous rows, or across columns with one vector of columns at a time,
whichever way the data lies.  Sums are added in a fixed blocked order.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:

    def __getattr__(name: str) -> Any: ...  # the compiled modules have no stubs
