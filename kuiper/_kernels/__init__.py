"""How the kernels compute: vector types, micro-kernels, drivers.

::

    simd/   vec.h            a vector of 16, 8 or 4 floats that Cython treats as one float
            tile.h narrow.h  register tiles, in C for the sake of one unroll pragma
              |
    micro/  *.pxi            micro-kernels, written once over that vector type
            <isa>.pyx        the same files, compiled with the flags of one instruction set
            table.pxd        kernels_t: function pointers, tile sizes, lanes
            dispatch.pyx     picks the table of this processor, once
            packing.pyx      weights -> panels; packed.py describes the result
              |
    conv/ linear/ rows/ spatial/ elementwise/ data/
                             drivers: tiling, borders, addresses; they read the table and never
                             ask which processor it is

A micro-kernel is a leaf: pointers and sizes in; no Python, no allocation, no failure.  A driver is
a :class:`~kuiper._runtime.step.Step`: it is made while planning, where everything is checked, and
run by the executor, where nothing can fail.

Numerics
    Sums are never split between threads, and neither the algorithm nor the order of a sum depends
    on the batch or on the number of threads, so the bits of a result do not either.

Layout
    Images are channels-last: the channels of a pixel are adjacent, and pixels are one row stride
    apart.  A 1x1 convolution is a matrix product without repacking.

Large outputs
    Outputs of more than 16 MB bypass the caches (``kp_stream``) if a vector is a cache line: the
    next reader would fetch them from memory anyway.  U-Net takes 4 % less time.

Lessons about compilers
    * gcc decides which arrays live in registers before it unrolls a function's outermost loops.
      The loops that clear and store the accumulators of a tile therefore need an unroll pragma
      (tile.h); without it the whole tile is kept on the stack as well (5 to 20 %).
    * ``cdivision=True`` makes ``-(-a // b)`` round down on C integers: use ``ceil_div``.  It also
      turns ``1 / 6`` between two literals into 0.
    * ``max(a, b)`` on vectors returns the second operand if either is NaN, so a clamp is written
      ``max(bound, x)``, which keeps a NaN.
    * Panels start on a cache line; otherwise each load touches two.
    * With all registers in use, gcc routed one sum of the tallest tile through memory in each
      iteration.  ``accumulate`` adds in place, and ``set_aside`` keeps the clamp's bounds in memory
      during the loop: Linear layers take 0.8 of the time on an Intel processor.
    * On Intel processors a product with one denormal lane costs as much as a hundred others.  Terms
      of a softmax that would be denormal are 0.
"""
