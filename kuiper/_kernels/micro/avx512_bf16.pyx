# The variant avx512, with products of bfloat16 by the instruction that sums two of them.

include "extension.pxi"
include "pairs.pxi"
include "dwrow.pxi"
include "narrow_dwconv.pxi"
include "winograd_points.pxi"
include "winograd_pairs.pxi"
include "move.pxi"
include "math.pxi"
include "rows.pxi"
include "rough.pxi"
include "attend.pxi"


cdef void fill_extension(kernels_t* k) noexcept:
    fill_pairs(k)
    fill_narrow_dwconv(k)
    fill_winograd_pairs(k)
    fill_rough(k)
    fill_attend(k)
