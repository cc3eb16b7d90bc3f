# The table of a micro-kernel variant: function pointers and tile sizes.
#
# One filled `kernels_t` exists per instruction set (<isa>.pyx); drivers depend on the table and not
# on the CPU.  Declarations only: a memoryview here would add its code to every importer.  Strides
# and extents are in elements; ld... is a row stride.

from libc.stdint cimport int32_t, int64_t, uint8_t

from kuiper._kernels.simd.bfloat16 cimport bfloat16_t

cdef enum:
    MAX_MR = 14
    MAX_TILE_ROWS = 32    # of products of bfloat16 or of bytes
    MAX_DW_M = 8
    DW_ROW = 8
    MAX_DW_KW = 7
    MAX_DW_STEP = 2
    MAX_PREFETCH = 65536  # floats of a panel that fit the L2 cache beside the panel in use
    LINE_FLOATS = 16      # of a cache line
    SOLE_TILE = 1         # added to a prefetch distance: prefetch all lines of the next panel

# y[b * ldy + a] = x[a * ldx + b] for a < n_a, b < n_b; elements of any 32-bit type
ctypedef void (*transpose_fn)(
    const float* x, Py_ssize_t ldx, float* y, Py_ssize_t ldy, Py_ssize_t n_a, Py_ssize_t n_b,
) noexcept nogil

# Windows over channels-last pixels: y[i * y_step + c] = max, or sum / divisor, over r < n_rows and
# k < n_columns of x[i * x_step + rows[r] + k * column + c], for i < count and c < channels; in
# float32 or bfloat16.
ctypedef void (*pool_fn)(
    const void* x, Py_ssize_t x_step, const Py_ssize_t* rows, Py_ssize_t n_rows,
    Py_ssize_t n_columns, Py_ssize_t column, void* y, Py_ssize_t y_step, Py_ssize_t count,
    Py_ssize_t channels, float divisor,
) noexcept nogil

# The maximum of bytes; 0 of a window without pixels.
ctypedef void (*u8_pool_fn)(
    const uint8_t* x, Py_ssize_t x_step, const Py_ssize_t* rows, Py_ssize_t n_rows,
    Py_ssize_t n_columns, Py_ssize_t column, uint8_t* y, Py_ssize_t y_step, Py_ssize_t count,
    Py_ssize_t channels,
) noexcept nogil

# The maximum of one window and its index in the image, row_index[r] + k * index_step; the first of
# equal maxima, the last of NaNs.
ctypedef void (*pool_argmax_fn)(
    const float* x, const Py_ssize_t* rows, Py_ssize_t n_rows, Py_ssize_t n_columns,
    Py_ssize_t column, Py_ssize_t channels, const int* row_index, int index_step,
    float* y, int64_t* indices,
) noexcept nogil

# Resampling of one row, for i < count and c < channels, with 1, 2 or 4 taps:
# y[i * y_step + c] = sum_k weights[i * taps + k] * x[offsets[i * taps + k] + c].
ctypedef void (*resize_columns_fn)(
    int taps, const float* x, const int* offsets, const float* weights, float* y,
    Py_ssize_t y_step, Py_ssize_t count, Py_ssize_t channels,
) noexcept nogil

# Sampling of an image at up to GRID_BLOCK points of a grid, axes innermost first.  Along an axis a
# coordinate g of -1 to 1 is position (g + 1) * scale - shift, reflected or clamped by the padding.
cdef enum:
    GRID_BLOCK = 128         # points; a multiple of any variant's lanes
    GRID_AXES = 3
    GRID_NEAREST = 0
    GRID_LINEAR = 1
    GRID_ZEROS = 0
    GRID_BORDER = 1
    GRID_REFLECTION = 2

ctypedef struct grid_axis_t:
    float scale              # pixels per unit of g
    float shift              # pixels
    float extent             # pixels, at most 2^22
    float low                # reflection: lower end, in pixels
    float span               # reflection: distance between the ends, in pixels
    int stride               # from one pixel to the next, in elements

# Located points: `is_inside` is 0 for a point outside the image, `is_number` is 0 for NaN.
ctypedef struct grid_block_t:
    int[GRID_BLOCK] first                 # offset of the first pixel read, in elements
    int[GRID_AXES][GRID_BLOCK] step       # to the next pixel along each axis, in elements; or 0
    float[4][GRID_BLOCK] weight           # of the four pixels of a plane
    float[2][GRID_BLOCK] plane            # weights of the two planes of a volume
    float[GRID_BLOCK] is_inside           # 0 or 1
    float[GRID_BLOCK] is_number           # 0 or 1
    bint all_inside                       # all points are inside and are numbers

ctypedef void (*locate_points_fn)(
    int mode, int padding, int n_axes, const grid_axis_t* axes, const float* grid, Py_ssize_t n,
    grid_block_t* block,
) noexcept nogil

# y[c * y_channel + i * y_pixel] = the sample of x + c * x_channel at point i, for i < n.
ctypedef void (*grid_read_fn)(
    int mode, int n_axes, Py_ssize_t channels, const grid_block_t* block, Py_ssize_t n,
    const float* x, Py_ssize_t x_channel, float* y, Py_ssize_t y_channel, Py_ssize_t y_pixel,
) noexcept nogil

# y[i] = sum_k weights[k] * rows[k][i] for i < count; 2 or 4 taps.
ctypedef void (*resize_rows_fn)(
    int taps, const float* const* rows, const float* weights, float* y, Py_ssize_t count,
) noexcept nogil

# Reductions: sum, maximum, minimum and product of x; sum of x^2; sum, maximum and minimum of |x|;
# sum of (x - shift)^2 and of exp(x - shift).
cdef enum:
    REDUCE_SUM
    REDUCE_MAX
    REDUCE_MIN
    REDUCE_PRODUCT
    REDUCE_SQUARES
    REDUCE_ABS
    REDUCE_ABS_MAX
    REDUCE_ABS_MIN
    REDUCE_DEVIATIONS
    REDUCE_EXPONENTIALS

# y[i] = the reduction of x[i * x_row + k] over k < n, for i < rows; shift (rows,) or NULL.
ctypedef void (*reduce_rows_fn)(
    int kind, const float* x, Py_ssize_t x_row, Py_ssize_t rows, Py_ssize_t n,
    const float* shift, float* y,
) noexcept nogil

# y[c] = the reduction of x[k * x_step + c] over k < n, for c < inner; shift (inner,) or NULL.
ctypedef void (*reduce_columns_fn)(
    int kind, const float* x, Py_ssize_t x_step, Py_ssize_t n, Py_ssize_t inner,
    const float* shift, float* y,
) noexcept nogil

# Softmax of scale * x, or its logarithm, over rows or over columns; y may be x.  buffer: scratch
# memory (n, 4 * lanes).
ctypedef void (*softmax_rows_fn)(
    bint is_log, const float* x, Py_ssize_t x_row, float* y, Py_ssize_t y_row, Py_ssize_t rows,
    Py_ssize_t n, float scale,
) noexcept nogil
ctypedef void (*softmax_columns_fn)(
    bint is_log, const float* x, Py_ssize_t x_step, float* y, Py_ssize_t y_step, Py_ssize_t n,
    Py_ssize_t inner, float scale, float* buffer,
) noexcept nogil

# y = (x - mean) / sqrt(variance + eps) * weight + bias over rows of n; mean is 0 if not `centred`.
# weight (n,) and bias (n,) may be NULL; y may be x.
ctypedef void (*layer_norm_fn)(
    bint centred, const float* x, Py_ssize_t x_row, float* y, Py_ssize_t y_row, Py_ssize_t rows,
    Py_ssize_t n, const float* weight, const float* bias, float eps,
) noexcept nogil

# y = (x - mean) * factor + bias, with one mean, factor and bias, or with (channels,) of each.
ctypedef void (*normalize_flat_fn)(
    const float* x, float* y, Py_ssize_t n, float mean, float factor, float bias,
) noexcept nogil
ctypedef void (*normalize_columns_fn)(
    const float* x, Py_ssize_t x_step, float* y, Py_ssize_t y_step, Py_ssize_t rows,
    Py_ssize_t channels, const float* mean, const float* factor, const float* bias,
) noexcept nogil

# y[c] = x[c] / (k + alpha * sum of x[d]^2 over a window of `size` channels around c)^beta.
# squares is scratch memory of channels + size + lanes floats.
ctypedef void (*local_response_norm_fn)(
    const float* x, float* y, Py_ssize_t channels, Py_ssize_t size, float alpha, float beta,
    float k, float* squares,
) noexcept nogil

# y[i, j] = clamp(bias[j] + sum_t sum_k rows[t * m + i][k] * panel[t * kc + k, j] + residual[i, j])
#
# rows (taps, m): pointers to kc floats; panel (1 + taps * kc, nr): biases first; y (m, n).
# m, the number of rows, is fixed per function; n <= nr columns are stored.  residual may be NULL.
# For each row of the panel the tile prefetches the cache line `distance` floats ahead; see
# prefetch_distance.  A caller with only one tile for the panel may add SOLE_TILE to the distance;
# the tile then prefetches the following line too.
ctypedef void (*gemm_fn)(
    Py_ssize_t taps, Py_ssize_t kc, const float* const* rows, const float* panel,
    Py_ssize_t distance, float* y, Py_ssize_t ldy, Py_ssize_t n,
    const float* residual, Py_ssize_t ldr, float lo, float hi,
) noexcept nogil

# The same, bit for bit, for mr rows that are a constant step apart in each tap:
#     y[i, j] = clamp(bias[j] + sum_t sum_k runs[t][i * step + k] * panel[t * kc + k, j] + ...)
#
# Only rows first <= i < mr are stored, and the residual is read for these only.
ctypedef void (*gemm_strided_fn)(
    Py_ssize_t taps, Py_ssize_t kc, const float* const* runs, Py_ssize_t step, int first,
    const float* panel, float* y, Py_ssize_t ldy, Py_ssize_t n,
    const float* residual, Py_ssize_t ldr, float lo, float hi,
) noexcept nogil

# A tile of m <= mr rows and n <= FEW_OUTPUTS columns, which would fill few lanes of a panel.
# rows (taps, m): pointers to `channels` floats; weight: one vector of biases, then
# (taps, ceil(channels / lanes), n, lanes), padded with zeros.
cdef enum:
    FEW_OUTPUTS = 4

ctypedef void (*few_outputs_fn)(
    Py_ssize_t m, Py_ssize_t taps, Py_ssize_t channels, const float* const* rows,
    const float* weight, float* y, Py_ssize_t ldy, Py_ssize_t n, const float* residual,
    Py_ssize_t ldr, float lo, float hi,
) noexcept nogil

# y[i] = f(x[i]; p0, p1) for i < n; y may be x.  Functions are numbered in functions.pxd.
ctypedef void (*unary_fn)(Py_ssize_t n, const float* x, float* y, float p0, float p1) noexcept nogil

# What becomes of sums of products, each step rounded to float32.  Of exact integers:
#
#     v = sums[i, j] * (scale[j] * factor) + bias[j]
#     v = pre(clamp(v)) + residual[i, j], or clamp(v + residual[i, j]) if the residual comes first
#     y[i, j] = post(v), or the byte clamp(rint(post(v) * inverse_scale) + zero, 0, 255)
#
# A residual in bytes is (byte - residual_zero) * residual_scale.  NaN becomes the byte `zero`.
# Sums of products of bfloat16 are floats with their biases; they are clamped, and so on, as above.
cdef extern from "_kernels/simd/sums.h" nogil:
    ctypedef struct sums_end_t "kp_sums_end":
        float lo                   # bounds of the clamp
        float hi
        bint factor_per_row        # else one factor for all rows
        bint residual_first
        bint residual_in_bytes     # else bfloat16 or float32
        bint residual_in_bfloat16
        float residual_scale
        float residual_zero
        unary_fn pre               # or NULL
        float pre_p0
        float pre_p1
        unary_fn post              # or NULL
        float post_p0
        float post_p1
        bint to_bytes              # else y is bfloat16 or float32
        bint to_bfloat16
        float inverse_scale
        float zero
        int low                    # bounds of a result in bytes
        int high
        bint in_registers          # clamp, after a residual if any, to bytes, by one factor

# Integer products, four terms at a time:
#
#     sums[i, j] = start[j] + sum_t sum_k rows[t * m + i][k] * panel[t * 4 * quads + k, j]
#
# rows (taps, m): pointers to 4 * quads unsigned bytes; panel: nr biases, nr scales, nr integers
# `start`, then the signed bytes [taps * quads][nr][4].  The sums are exact.  m, the number of rows,
# is fixed per function; n <= nr columns are stored.  residual may be NULL.  The tile prefetches the
# panel `distance` bytes ahead.
ctypedef void (*u8s8_gemm_fn)(
    Py_ssize_t taps, Py_ssize_t quads, const uint8_t* const* rows, const void* panel,
    Py_ssize_t distance, const float* factors, void* y, Py_ssize_t ldy, Py_ssize_t n,
    const void* residual, Py_ssize_t ldr, const sums_end_t* end,
) noexcept nogil

# What becomes of m rows of exact sums in memory, (m, n rounded up to vectors), as `end` says; they
# are overwritten.
ctypedef void (*u8s8_end_fn)(
    Py_ssize_t m, int32_t* sums, const float* scale, const float* bias, const float* factors,
    void* y, Py_ssize_t ldy, Py_ssize_t n, const void* residual, Py_ssize_t ldr,
    const sums_end_t* end,
) noexcept nogil

# Products of bfloat16, two terms at a time, with sums in float32:
#
#     sums[i, j] = bias[j] + sum_t sum_k rows[t * m + i][k] * panel[t * terms + k, j]
#
# rows (taps, m): pointers to `terms` numbers; panel: nr biases, float32, then the pairs
# [taps * ceil(terms / 2)][nr][2], a missing last term 0.  What follows the last term of a row is
# not read.  Without `end`, NULL, y is float32 and gets the sums.  All else as for integer products.
ctypedef void (*bf16_gemm_fn)(
    Py_ssize_t taps, Py_ssize_t terms, const bfloat16_t* const* rows, const void* panel,
    Py_ssize_t distance, void* y, Py_ssize_t ldy, Py_ssize_t n, const void* residual,
    Py_ssize_t ldr, const sums_end_t* end,
) noexcept nogil

# What becomes of m rows of such sums in memory, (m, n rounded up to vectors), as `end` says: in
# bfloat16 or float32, or, by f32_end, in bytes or float32, of a residual likewise.
ctypedef void (*bf16_end_fn)(
    Py_ssize_t m, float* sums, void* y, Py_ssize_t ldy, Py_ssize_t n, const void* residual,
    Py_ssize_t ldr, const sums_end_t* end,
) noexcept nogil

# Softmax of attention but for the division: scores (m, n), row stride ld, become
# t = scores * scale + added, and terms[i, j] = exp(t[i, j] - max t[i]), in bfloat16, with their
# sums.  added may be NULL.  If `may_hide`, a row whose scores are all -inf has zeros and the sum 1.
ctypedef void (*bf16_exp_rows_fn)(
    Py_ssize_t m, Py_ssize_t n, float* scores, Py_ssize_t ld, float scale, const float* added,
    Py_ssize_t added_row, bint may_hide, bfloat16_t* terms, Py_ssize_t terms_row, float* sums,
) noexcept nogil

# y[i, j] = x[i, j] / divisors[i] for m rows and n columns; y in bfloat16 or float32.
ctypedef void (*bf16_divide_rows_fn)(
    Py_ssize_t m, Py_ssize_t n, const float* x, Py_ssize_t x_row, const float* divisors, void* y,
    Py_ssize_t y_row, bint to_bfloat16,
) noexcept nogil

# y[i] = x[i], to nearest even, for i < n.
ctypedef void (*f32_to_bf16_fn)(Py_ssize_t n, const float* x, bfloat16_t* y) noexcept nogil

# Rounds rows of nr weights to bfloat16, in place, and keeps the sums of columns where it can.
ctypedef void (*bf16_keep_sums_fn)(Py_ssize_t rows, float* panel) noexcept nogil

# Such a panel from one of floats, (1 + taps * channels, nr), to nearest even.  Term c of each tap
# is multiplied by factors[c * step] first, unless factors is NULL.
ctypedef void (*bf16_pack_fn)(
    Py_ssize_t taps, Py_ssize_t channels, const float* panel, const float* factors,
    Py_ssize_t step, void* pairs,
) noexcept nogil


cdef inline Py_ssize_t byte_prefetch_distance(
    Py_ssize_t tile, Py_ssize_t panel_bytes, Py_ssize_t nr
) noexcept nogil:
    """As :func:`prefetch_distance`, in bytes; each tile prefetches all lines of its range."""
    if tile > 0:
        return 0
    return panel_bytes if panel_bytes <= 4 * MAX_PREFETCH else 16 * 4 * nr


# Rows of floats as unsigned bytes and one factor per row:
#
#     x[i * x_row + k] = (y[i * y_row + k] - BYTE_ZERO) * factors[i], nearly
#
# for k < n; for n <= k < width y is BYTE_ZERO.  The largest magnitude of a row becomes 127.  The
# factor of a row with an infinity or NaN is NaN.
cdef enum:
    BYTE_ZERO = 128

ctypedef void (*quantize_rows_fn)(
    const float* x, Py_ssize_t x_row, Py_ssize_t rows, Py_ssize_t n, uint8_t* y, Py_ssize_t y_row,
    Py_ssize_t width, float* factors,
) noexcept nogil

# Floats as bytes of one scale and zero point, for i < n; NaN becomes `zero`:
#
#     y[i] = clamp(rint(x[i] * inverse) + zero, 0, 255)
#
# and back: y[i] = (x[i] - zero) * scale.
ctypedef void (*f32_to_u8_fn)(
    Py_ssize_t n, const float* x, uint8_t* y, float inverse, int zero
) noexcept nogil
ctypedef void (*u8_to_f32_fn)(
    Py_ssize_t n, const uint8_t* x, float* y, float scale, int zero
) noexcept nogil

# y[i] = table[x[i]] for i < n; table (256,).  y may be x.
ctypedef void (*u8_lookup_fn)(
    Py_ssize_t n, const uint8_t* x, uint8_t* y, const uint8_t* table
) noexcept nogil

# f32_gemm[1] for one tap and ROW_PANELS panels `stride` floats apart, without residual or bounds:
# y[q * nr + j] for q < ROW_PANELS.
cdef enum:
    ROW_PANELS = 4

ctypedef void (*gemm_row_fn)(
    Py_ssize_t kc, const float* row, const float* panels, Py_ssize_t stride, float* y
) noexcept nogil


cdef inline Py_ssize_t prefetch_distance(
    Py_ssize_t tile, Py_ssize_t panel_floats, Py_ssize_t nr
) noexcept nogil:
    """Return how many floats ahead tile number `tile` prefetches, if panels are the outer loop.

    Hardware prefetchers stop at page ends, so panels in memory stall.  The first two tiles prefetch
    half of the next panel's lines each.  A panel too large to share the L2 cache with the current
    one is only prefetched 16 rows ahead of its use.
    """
    if panel_floats > MAX_PREFETCH:
        return 16 * nr if tile == 0 else 0
    return panel_floats + tile * nr // 2 if tile < 2 else 0


# The tile of a sum of products, whose partial sums can be added to and stored between products:
#
#     y[i, j] = clamp(biases + sum over the products of (added + rows x panel) + residual[i, j])
#
# The biases are the sum of the first panel's and the last panel's.  Only rows first <= i < m are
# stored in y.
ctypedef struct product_t:
    const float* const* rows   # (taps, m) pointers to kc floats
    const float* panel         # (1 + taps * kc, nr)
    const float* added         # (m, nr), added before the product; or NULL
    float* saved               # (m, nr), the partial sum after the product; or NULL

ctypedef void (*gemm_chain_fn)(
    int n_products, const product_t* products, Py_ssize_t taps, Py_ssize_t kc, Py_ssize_t distance,
    int first, float* y, Py_ssize_t ldy, Py_ssize_t n, const float* residual, Py_ssize_t ldr,
    float lo, float hi,
) noexcept nogil

# Sums of rows and of the halves of rows, for i < n:
#
#     s[0] = down_1 + down_2    s[1] = s[0] - up_1    s[2] = up_1 - down_1    s[3] = up_2 - s[1]
#
# up, down: n pointers to rows of 2 * half floats, the halves 1 and 2; `half` is a multiple of
# `lanes`.  s[q] of row i lies at sums + q * stride + i * row_stride.  Returns whether all sums are
# finite; sums of a row that is not finite are not.
ctypedef bint (*strassen_sums_fn)(
    Py_ssize_t n, Py_ssize_t half, const float* const* up, const float* const* down, float* sums,
    Py_ssize_t row_stride, Py_ssize_t stride,
) noexcept nogil

# y[i, j] = clamp(a[i, j] + b[i, j] + bias[j] + residual[i, j]) for first <= i < m and j < n <= nr;
# a and b are (m, nr).  residual may be NULL.
ctypedef void (*tile_sum_fn)(
    int m, int first, Py_ssize_t n, const float* a, const float* b, const float* bias,
    const float* residual, Py_ssize_t ldr, float* y, Py_ssize_t ldy, float lo, float hi,
) noexcept nogil

# y[i, j] = f(a[i, j], b[i, j]) for operands of any row stride.  y may be a or b if its strides are
# the same.  Strides are in elements.
ctypedef struct rows_t:
    Py_ssize_t n_rows
    Py_ssize_t n_columns
    const float* a          # (n_rows, n_columns)
    Py_ssize_t a_row
    Py_ssize_t a_column     # 1, or 0 if the rows are constant
    const float* b          # (n_rows, n_columns)
    Py_ssize_t b_row
    Py_ssize_t b_column     # 1, or 0 if the rows are constant
    float* y                # (n_rows, n_columns)
    Py_ssize_t y_row

ctypedef void (*binary_fn)(const rows_t* rows) noexcept nogil

# A chain of cheap operations on a running value, which stays in registers.  A link loads the value,
# stores it, or replaces it by a function of the value and, for most functions, of an operand.
cdef enum:
    MAX_LINKS = 48

# The operations of a link on the running value r and its operands x and z.  Functions follow:
# setup.py numbers those that a chain may contain from N_LINKS on.
cdef enum:
    LINK_LOAD         # r = x
    LINK_STORE        # x = r
    LINK_ADD_PRODUCT  # r = r + x * z, rounded twice
    N_LINKS

ctypedef struct link_t:
    int code
    bint moves             # whether x advances along the row; else it is one value per row
    float* x               # (n_rows, n_columns or 1); written by LINK_STORE
    Py_ssize_t row         # row stride of x, in elements
    bint z_moves
    const float* z         # (n_rows, n_columns or 1), of LINK_ADD_PRODUCT
    Py_ssize_t z_row       # row stride of z, in elements
    float p0               # parameters of the function
    float p1

ctypedef struct chain_t:
    int n_links
    Py_ssize_t n_rows
    Py_ssize_t n_columns
    float* y               # (n_rows, n_columns); may be an operand of the same strides
    Py_ssize_t y_row       # in elements
    link_t[MAX_LINKS] links

ctypedef void (*chain_fn)(const chain_t* chain) noexcept nogil

# Depthwise taps, for m pixels (fixed per function) and all channels:
#     y[i, c] = clamp(bias[c] + sum_t pixels[t][i * steps[t] + c] * weight[t, c] + residual[i, c])
# or, if steps is NULL, with pixels[t * m + i][c].
# weights (ceil(channels / lanes), 1 + taps, lanes): biases, then taps.
ctypedef void (*dwconv_fn)(
    Py_ssize_t taps, Py_ssize_t channels, const float* const* pixels, const Py_ssize_t* steps,
    const float* weights, float* y, Py_ssize_t ldy,
    const float* residual, Py_ssize_t ldr, float lo, float hi,
) noexcept nogil

# The same for DW_ROW pixels of one output row whose windows, kw wide and s apart (fixed per
# function), cross no border sideways: rows[u] is row u < kh of the first window, steps[u] the
# distance between its pixels (0 for a row outside the image, where rows[u] points to zeros).
ctypedef void (*dwrow_fn)(
    Py_ssize_t kh, Py_ssize_t channels, const float* const* rows, const Py_ssize_t* steps,
    const float* weights, float* y, Py_ssize_t ldy,
    const float* residual, Py_ssize_t ldr, float lo, float hi,
) noexcept nogil

# Depthwise taps over bytes, m pixels (fixed per function), one pointer per pixel and tap:
#
#     sums[i, c] = start[c] + sum_t pixels[t * m + i][c] * weight[t, c]
#
# weights: blocks of channels, which start with biases, scales and `start`; then
#     - taps, whole numbers as floats, blocks of one vector (QuantizedDepthwiseBlocks); or
#     - if dw_takes_quads quads of taps, blocks of DW_QUAD_CHANNELS (QuantizedDepthwiseQuads).
# factor: one for all rows.
cdef enum:
    DW_QUAD_CHANNELS = 64

ctypedef void (*u8_dwconv_fn)(
    Py_ssize_t taps, Py_ssize_t channels, const uint8_t* const* pixels, const void* weights,
    const float* factor, void* y, Py_ssize_t ldy, const void* residual, Py_ssize_t ldr,
    const sums_end_t* end,
) noexcept nogil

# The same for `count` >= DW_ROW adjacent windows, as dwrow_fn.
ctypedef void (*u8_dwrow_fn)(
    Py_ssize_t kh, Py_ssize_t channels, Py_ssize_t count, const uint8_t* const* rows,
    const Py_ssize_t* steps, const void* weights, const float* factor, void* y, Py_ssize_t ldy,
    const void* residual, Py_ssize_t ldr, const sums_end_t* end,
) noexcept nogil

# The same, with quads of taps of one column, for `n_rows` rows of `count` adjacent windows whose
# results follow each other.  rows[i * kh + u] is the first of `width` pixels of row u, NULL for a
# row outside the image.  The first window starts at pixel `first`, which may be negative.
# zeros (channels,): a pixel outside.
ctypedef void (*u8_dwrows_fn)(
    Py_ssize_t kh, Py_ssize_t channels, Py_ssize_t n_rows, Py_ssize_t count,
    const uint8_t* const* rows, Py_ssize_t first, Py_ssize_t width, Py_ssize_t ldx,
    const uint8_t* zeros, const void* weights, const float* factor, void* y, Py_ssize_t ldy,
    const void* residual, Py_ssize_t ldr, const sums_end_t* end,
) noexcept nogil

# Depthwise taps over bfloat16, with sums in float32, as dwconv_fn without steps; and as dwrow_fn.
# weights: NarrowDepthwiseBlocks; whole pairs of vectors hold even channels and then odd ones.
ctypedef void (*bf16_dwconv_fn)(
    Py_ssize_t taps, Py_ssize_t channels, const bfloat16_t* const* pixels,
    const Py_ssize_t* steps, const float* weights, void* y, Py_ssize_t ldy,
    const void* residual, Py_ssize_t ldr, const sums_end_t* end,
) noexcept nogil

# Grouped convolution of GROUPED_PIXELS pixels, of which first <= i < GROUPED_PIXELS are written:
#     y[i, o] = clamp(bias[o] + sum_t,j pixels[t * GROUPED_PIXELS + i][group(o) * terms + j]
#                                        * weight[t, j, o] + residual[i, o])
# A group has `terms` inputs and `per_group` outputs; a vector holds whole groups of either, and
# terms <= per_group.  weights (ceil(channels / lanes), 1 + taps * terms, lanes): biases, then taps.
# input_lanes (terms, lanes) are int32: lane o of vector j is the lane of output o's term j among
# the inputs of a vector of outputs.
cdef enum:
    GROUPED_PIXELS = 8

ctypedef void (*grouped_fn)(
    Py_ssize_t taps, Py_ssize_t terms, Py_ssize_t per_group, Py_ssize_t channels,
    const float* const* pixels, const float* input_lanes, const float* weights, int first, float* y,
    Py_ssize_t ldy, const float* residual, Py_ssize_t ldr, float lo, float hi,
) noexcept nogil

# Winograd F(t x t, 3x3) for t = 2 and t = 4, and for t = 4 with a stride of 2 (fixed per function).
# Filter: one panel, taps[(c * 9 + tap) * nr + i] -> panel[f * stride + c * nr + i] for the points f
# of one row.
# Input and output transform one tile, all channels; only the first rows x columns of its t x t
# outputs are wanted.  Frequencies f for which wino_needs is False are not written, and their values
# are not used.
# Input: the pixels of the patch, row by row -> v[f * stride + c].
# Output: m[f * stride + c] -> rows x columns pixels, plus bias and residual, clamped; returns
# whether the products were finite and the transform did not overflow.  `streams` allows stores that
# bypass the caches; vectors of y then lie on cache lines.
ctypedef void (*wino_filter_fn)(
    int row, Py_ssize_t channels, const float* taps, float* panel, Py_ssize_t stride
) noexcept nogil
ctypedef void (*wino_input_fn)(
    Py_ssize_t channels, const float* const* pixels, Py_ssize_t rows, Py_ssize_t columns, float* v,
    Py_ssize_t stride,
) noexcept nogil
ctypedef bint (*wino_output_fn)(
    Py_ssize_t channels, const float* m, Py_ssize_t stride, const float* bias,
    float* y, Py_ssize_t row, Py_ssize_t column, Py_ssize_t rows, Py_ssize_t columns,
    const float* residual, Py_ssize_t r_row, Py_ssize_t r_column, float lo, float hi,
    bint streams,
) noexcept nogil

# The same for t = 2 and t = 4 (fixed per function) from and to images in bfloat16, with all
# frequencies.  Input: transformed channels, in bfloat16, are in groups of PAIRED_VECTORS vectors,
# even ones and then odd ones; the last group is filled up with zeros.
cdef enum:
    PAIRED_VECTORS = 2

ctypedef void (*bf16_wino_input_fn)(
    Py_ssize_t channels, const bfloat16_t* const* pixels, bfloat16_t* v, Py_ssize_t stride,
) noexcept nogil
# The same of bytes less their zero point; NULL unless pairs_are_native.
ctypedef void (*u8_wino_input_fn)(
    Py_ssize_t channels, const uint8_t* const* pixels, float zero, bfloat16_t* v, Py_ssize_t stride,
) noexcept nogil
ctypedef bint (*bf16_wino_output_fn)(
    Py_ssize_t channels, const float* m, Py_ssize_t stride, const float* bias,
    bfloat16_t* y, Py_ssize_t row, Py_ssize_t column, Py_ssize_t rows, Py_ssize_t columns,
    const bfloat16_t* residual, Py_ssize_t r_row, Py_ssize_t r_column, float lo, float hi,
) noexcept nogil


cdef inline bint wino_needs(int t, int step, Py_ssize_t wanted, int point) noexcept nogil:
    """Whether the first `wanted` of t outputs along an axis need an interpolation point.

    The points are 0, a, -a, then b, -b for t = 4, then infinity.  t outputs need all of them, t - 1
    all but infinity.  For t = 4, two outputs are F(2) over 0, a, -a and infinity, and one output
    needs no infinity.  With a stride, `step`, of 2 all points are needed.
    """
    if step == 2:
        return True
    if point == t + 1:
        return wanted == t or wanted == 2
    return point < 3 or wanted > 2


# y[i] = x[i] in another type, for i < n; element_functions.pxd numbers the types.
ctypedef void (*typed_convert_fn)(
    int source, int target, Py_ssize_t n, const void* x, void* y
) noexcept nogil

# y[i] = f(a[i], b[i]) for i < n, in one type; element_functions.pxd numbers the functions.  y may
# be a or b if its elements have the same size.
ctypedef void (*typed_apply_fn)(
    int function, int type, Py_ssize_t n, const void* a, const void* b, void* y
) noexcept nogil

# What a thread does after its share of a job.
ctypedef void (*release_fn)() noexcept nogil

# Multiply-adds in registers, in as many independent sums as keep the units of a core busy; returns
# the number of operations.  sink: any number in, a sum out, which keeps the compiler from
# skipping the work.
ctypedef double (*multiply_adds_fn)(Py_ssize_t rounds, float* sink) noexcept nogil


cdef enum:
    MAX_TILE = 4
    MAX_WINO_STEP = 2
    MAX_UNARY = 64
    MAX_BINARY = 24

ctypedef struct kernels_t:
    int lanes
    # data movement
    transpose_fn b32_transpose
    # pooling
    pool_fn f32_pool_max
    pool_fn f32_pool_mean
    pool_fn bf16_pool_max
    pool_fn bf16_pool_mean
    pool_argmax_fn f32_pool_argmax
    # resampling
    resize_columns_fn f32_resize_columns
    resize_rows_fn f32_resize_rows
    locate_points_fn f32_locate_points
    grid_read_fn f32_grid_read
    # rows
    reduce_rows_fn f32_reduce_rows
    reduce_columns_fn f32_reduce_columns
    softmax_rows_fn f32_softmax_rows
    softmax_columns_fn f32_softmax_columns
    layer_norm_fn f32_layer_norm_rows
    normalize_flat_fn f32_normalize_flat
    normalize_columns_fn f32_normalize_columns
    local_response_norm_fn f32_local_response_norm
    # GEMM: rows and columns of the register tile; f32_gemm[m] handles m rows, 1 <= m <= mr
    int mr
    int nr
    gemm_fn[MAX_MR + 1] f32_gemm
    gemm_strided_fn f32_gemm_strided
    gemm_row_fn f32_gemm_row
    few_outputs_fn f32_few_outputs
    gemm_chain_fn[MAX_MR + 1] f32_gemm_chain
    # integer products: u8s8_gemm[m] handles m rows, 1 <= m <= dot_mr, by nr columns
    int dot_mr
    bint dot_is_native               # whether one instruction sums four products
    bint dw_takes_quads              # whether depthwise products of bytes use it
    u8s8_gemm_fn[MAX_TILE_ROWS + 1] u8s8_gemm
    u8s8_end_fn u8s8_end
    quantize_rows_fn f32_quantize_rows
    # products of bfloat16: bf16_gemm[m] handles m rows, 1 <= m <= pair_mr, by nr columns
    int pair_mr
    bint pairs_are_native            # whether one instruction sums two products
    int pair_rate                    # products per lane and cycle, roughly; for estimates
    bf16_gemm_fn[MAX_TILE_ROWS + 1] bf16_gemm
    bf16_end_fn bf16_end
    bf16_end_fn f32_end
    bf16_keep_sums_fn bf16_keep_sums
    bf16_pack_fn bf16_pack
    f32_to_bf16_fn f32_to_bf16
    # attention; only where products of bfloat16 are native, else NULL
    bf16_exp_rows_fn bf16_exp_rows
    bf16_divide_rows_fn bf16_divide_rows
    # tensors of bytes
    f32_to_u8_fn f32_to_u8
    u8_to_f32_fn u8_to_f32
    u8_lookup_fn u8_lookup
    u8_pool_fn u8_pool_max
    strassen_sums_fn f32_strassen_sums
    tile_sum_fn f32_tile_sum
    # depthwise convolution: f32_dwconv[m] handles m pixels, 1 <= m <= dw_m
    int dw_m
    dwconv_fn[MAX_DW_M + 1] f32_dwconv
    # by width and stride of the window; NULL for others
    dwrow_fn[MAX_DW_KW + 1][MAX_DW_STEP + 1] f32_dwrow
    bf16_dwconv_fn[MAX_DW_M + 1] bf16_dwconv                         # without steps
    bf16_dwconv_fn[MAX_DW_KW + 1][MAX_DW_STEP + 1] bf16_dwrow
    u8_dwconv_fn[MAX_DW_M + 1] u8_dwconv
    u8_dwrow_fn[MAX_DW_KW + 1][MAX_DW_STEP + 1] u8_dwrow
    u8_dwrows_fn[MAX_DW_KW + 1][MAX_DW_STEP + 1] u8_dwrows
    grouped_fn f32_grouped           # NULL without an instruction that permutes lanes
    # Winograd: by tile side and stride
    wino_filter_fn[MAX_TILE + 1][MAX_WINO_STEP + 1] f32_wino_filter
    wino_input_fn[MAX_TILE + 1][MAX_WINO_STEP + 1] f32_wino_input
    wino_output_fn[MAX_TILE + 1][MAX_WINO_STEP + 1] f32_wino_output
    bf16_wino_input_fn[MAX_TILE + 1] bf16_wino_input
    u8_wino_input_fn[MAX_TILE + 1] u8_wino_input
    bf16_wino_output_fn[MAX_TILE + 1] bf16_wino_output
    # elementwise functions of one tensor and of two, by their numbers in functions.pxd
    unary_fn[MAX_UNARY] f32_unary
    unary_fn[MAX_UNARY] bf16_unary   # for results that are rounded to bfloat16 or to bytes
    binary_fn[MAX_BINARY] f32_binary
    chain_fn f32_chain
    # elements of any type
    typed_convert_fn typed_convert
    typed_apply_fn typed_apply
    release_fn release_tiles         # of the thread; NULL without tile registers
    # the ceiling of arithmetic
    multiply_adds_fn f32_multiply_adds
    multiply_adds_fn bf16_multiply_adds


cdef inline dwrow_fn row_kernel(
    const kernels_t* kernels, Py_ssize_t kernel_w, Py_ssize_t stride_w, Py_ssize_t dilation_w
) noexcept nogil:
    """Return the depthwise micro-kernel for adjacent windows of a row, or NULL."""
    if kernel_w > MAX_DW_KW or stride_w > MAX_DW_STEP or dilation_w != 1:
        return NULL
    return kernels.f32_dwrow[kernel_w][stride_w]


cdef inline bf16_dwconv_fn narrow_row_kernel(
    const kernels_t* kernels, Py_ssize_t kernel_w, Py_ssize_t stride_w, Py_ssize_t dilation_w
) noexcept nogil:
    """As `row_kernel`, of bfloat16."""
    if kernel_w > MAX_DW_KW or stride_w > MAX_DW_STEP or dilation_w != 1:
        return NULL
    return kernels.bf16_dwrow[kernel_w][stride_w]
