"""Micro-kernels, compiled once per instruction set, and the choice among them.

**The GEMM tile** (gemm.pxi) keeps 14 x 32 accumulators in registers (AVX-512; 6 x 16 on AVX2, 6 x 8
on SSE) over the whole sum.  Rows of A are reached through one pointer each: there is no im2col and
no packing of activations.  A 3x3 convolution passes nine pointers per pixel, and padding is a
pointer to a row of zeros; strides, dilation and transposed convolution differ only in how pointers
are computed.  This costs nothing measurable: 240 to 265 of the 288 GFLOP/s of one core, the same as
with a fixed stride.  Tiles of all heights from 1 to 14 exist (heights.h), so a plane of 49 pixels
is four tiles of 12 or 13 rows and never a padded one.

**Prefetching.** If the weights do not fit the L2 cache, drivers go panel by panel, and the tile
prefetches the next panel line by line, because the processor's own prefetcher stops at every 4 KiB
page.  The first two tiles of a panel prefetch half of the lines each; a sole tile prefetches all.

**Row strides.** Rows of channels that are a large power of two of bytes apart share a few sets of
the L1 cache, and the rows of one tile would evict each other.  The planner pads such rows
(``padded_row`` in :mod:`kuiper.ir.view`): 1x1 convolutions of 1024 channels are a third faster.

**Packing** (packing.pyx) reads a weight 1 MB at a time, so that the buffer stays in the cache, and
writes panels, whole cache lines at a time.  New memory is the most expensive part of a cold start:
one page fault per 4 KiB, and on a virtual machine often a second one in the host.

**Few output channels** (few_outputs.h): a convolution to 1 to 4 channels would fill only that many
lanes of a panel.  Its tile holds vectors of *input* channels, which are summed once per output.
3x3 from 64 to 3 channels: 3.3 times as fast on AVX-512, 2.1 on AVX2, 1.6 on SSE.

**Few channels per group** (grouped.pxi): a vector of outputs spans several whole groups.  Their
inputs are adjacent and fit one vector; a permutation moves term j of every output to its lane.
25 -> 130 to 145 GFLOP/s for 4 and 8 channels per group; ResNeXt-50 takes 0.88 of the time.

**Grids over few channels** (grid.pxi): at 16 channels or fewer, finding the pixels of a sampling
point costs more than reading them.  Pixels and weights of 128 points are computed first, in
vectors, and kept in the L1 cache; then the points are read, four channels at a time.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:

    def __getattr__(name: str) -> Any: ...  # the compiled modules have no stubs
