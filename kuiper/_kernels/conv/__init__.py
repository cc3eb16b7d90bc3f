"""Drivers of the convolution kernels.

The planner chooses among them (:mod:`kuiper.ops.product.algorithms`) by shapes, channels and vector
width, never by batch or threads.

``conv.pyx``
    Implicit GEMM: the tile of :mod:`kuiper._kernels.micro` with one pointer per pixel and tap.
    An image that does not fit the L2 cache is cut into blocks of pixels, each read once for all
    panels.
``narrow.pyx``
    The same over bytes and over bfloat16, also for the rows of a linear layer.  Pairs of bfloat16:
    98 to 100 % of the ceiling of ``vdpbf16ps`` in the layers of ResNet-50.
``few_inputs.pxi``
    A photo's three channels are too few for the inner loop, so the loop runs along a row of the
    filter, which is contiguous in the caller's NCHW array.  Tiles stay inside output rows: one
    pointer per filter row, and a constant step between pixels.  The last tile of a row overlaps the
    one before it.  Copying receptive fields first took a third longer.
``depthwise.pxi``
    Vectors run across channels.  Eight pixels by two vectors are summed at once; fewer sums would
    wait for the latency of the FMA.  Windows of 3, 5 and 7 columns overlap, so eight adjacent ones
    load each pixel once.
``quantized.pyx``
    Images of bytes.  Depthwise windows of 3 and 5 columns take 0.4 to 0.7 of the time in float32
    where an instruction sums four products (simd/dot_depthwise.h): rows are interleaved channel by
    channel, and each column is interleaved once for all windows that contain it.  Elsewhere bytes
    become floats, which is slower than float32 by 1.2 to 1.8.
``winograd.pyx``
    F(4x4, 3x3) does a quarter of the multiplications but reads four times the weights; F(2x2, 3x3)
    does 4/9 with 16/9 of the weights, which is better for planes of 7x7 with hundreds of channels.
    The interpolation points of F(4x4) are 0, +-5/8, +-3/2 and infinity: with 1 and 2, as in
    textbooks, the largest error is three to four times as large (5e-6 to 1.2e-5 against 2e-6 to
    3.5e-6 of the largest element, 64 to 512 channels).  F(6x6) was tried: its 64 frequencies leave
    the L2 cache, and U-Net would have gained 4 to 7 % for twice the memory.  Frequencies are an odd
    number of cache lines apart; 16 KiB apart, the transforms took twice as long.  A tile with a
    non-finite value is computed again by the definition (winograd_direct.pxi).
``winograd_pairs.pyx``
    The same in bfloat16, stride 1: transforms and sums in float32.  The tile prefetches the panel
    of the next frequency.  0.2 to 0.5 of the time of implicit GEMM in pairs for 64 to 512 channels.
``strassen.pyx``
    Seven products instead of eight, applied once.  The chains of products stay in registers.  A
    third to a half of the saved eighth is lost again to sums: layers take 0.90 to 0.95 of the time.
``expand_depthwise.pyx``
    The wide image between a 1x1 convolution and a depthwise one is the largest of MobileNet and
    EfficientNet.  Only a ring of the rows that the window spans is kept, in the L2 cache of each
    thread.  The sums and their order, and so the bits, are those of two separate convolutions.
``grouped.pyx``
    Few channels per group, as in ResNeXt.
``conv3d.pyx``
    Volumes by implicit GEMM.  3x3 kernels per plane use Winograd; the products of all kernel_d
    planes are one product of kernel_d times the terms.

**Deferred filters.** ResNet-18's transformed filters are 94 MB, and writing them took the larger
half of its first call.  Filters of 2 MB or more are therefore not packed while planning.  A run
reads the filters of one panel into its workspace, packs and transforms them there, and multiplies
while they are in the cache.  From the second call on they are finalized, a few MB at a time, for at
most a third of the time.  Both ways call the same function on the same values.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:

    def __getattr__(name: str) -> Any: ...  # the compiled modules have no stubs
