"""Drivers that move, gather and order data.

``indexing.pyx``
    Gathering and scattering walk operands of one shape, merged as far as strides allow; an index
    that is constant in the inner loop moves a run.  Scatters are sharded along an axis that no
    index addresses, so all writes to one element happen in one thread, in the order of the indices.
    Only element sizes matter, except for sums.
``order.pyx``
    Elements become unsigned keys above their indices, which are sorted by digits, so equal elements
    keep their order and NaN comes last.  If few elements of a line are wanted, those whose first
    digit is too large are dropped first.
``strided``
    The one iterator over strided operands: loops around an inner one, which loops.py merges.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:

    def __getattr__(name: str) -> Any: ...  # the compiled modules have no stubs
