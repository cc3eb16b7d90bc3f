"""Drivers that move, gather and order data.

``move.pyx``
    Strided copies and fills, in blocks that stay in the L1 cache.
``indexing.pyx``, with ``masks.pxi`` and ``bags.pxi``
    Gather and scatter iterate over operands of one shape, in loops merged as far as strides allow;
    an index that is constant in the inner loop moves a run.  Scatters are sharded along an axis
    that no index addresses, so all writes to an element happen in one thread, in the order of the
    indices.  Only element sizes matter, except for sums.
``order.pyx``, with ``extremes.pxi``, ``ranks.pxi`` and ``scans.pxi``
    Elements become unsigned keys with their indices in the low bits, and a radix sort orders them,
    so equal elements keep their order and NaN comes last.  If few elements of a line are wanted,
    most are only compared with the last of those kept so far.
``strided.pxd``
    The iterator over strided operands: the loops around an inner one, merged by ``loops.py``.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:

    def __getattr__(name: str) -> Any: ...  # the compiled modules have no stubs
