"""Drivers of matrix products: Linear, attention, recurrent networks.

``linear.pyx``
    Blocks of rows, each read once for all panels.  Rows that are a large power of two of bytes
    apart are copied first (CLIP's text encoder: 6 to 9 % of its time).
``attention.pyx``
    A block of query rows stays in the L1 cache from the scores through the softmax to the product
    with the values, so the matrix of all scores is never written.
``recurrent.pyx``
    The input weights multiply all time steps at once; only the hidden weights depend on the state.
    Shards are directions and tiles of sequences.  If these are fewer than threads, the step has one
    *phase* per time step and shards are panels of whole gates, so of two cores each keeps half of
    the hidden weights in its L2 cache.  A GRU of 256 features takes 0.59 of the time with two
    threads, with the same bits.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:

    def __getattr__(name: str) -> Any: ...  # the compiled modules have no stubs
