# What a micro-kernel variant offers: function pointers and tile sizes.
#
# One filled `kernels_t` exists per instruction set (<isa>.pyx).  Drivers read the table and
# never ask for the CPU.  Declarations only; no memoryviews here, or every importer would carry
# them.

from libc.stdint cimport int64_t

cdef enum:
    MAX_MR = 14
    MAX_DW_M = 8
    DW_ROW = 8
    MAX_DW_KW = 7
    MAX_DW_STEP = 2
    # floats of a panel that may wait in the L2 cache while another one is used
    MAX_PREFETCH = 65536
    LINE_FLOATS = 16   # of a cache line
    SOLE_TILE = 1     # added to a distance of prefetching: all lines are asked for

# y[b * ldy + a] = x[a * ldx + b] for a < n_a, b < n_b; elements of any 32-bit type
ctypedef void (*transpose_fn)(
    const float* x, Py_ssize_t ldx, float* y, Py_ssize_t ldy, Py_ssize_t n_a, Py_ssize_t n_b,
) noexcept nogil

# Windows over channels-last pixels: y[i * y_step + c] = max, or sum / divisor, over r < n_rows and
# k < n_columns of x[i * x_step + rows[r] + k * column + c], for i < count and c < channels.
ctypedef void (*pool_fn)(
    const float* x, Py_ssize_t x_step, const Py_ssize_t* rows, Py_ssize_t n_rows,
    Py_ssize_t n_columns, Py_ssize_t column, float* y, Py_ssize_t y_step, Py_ssize_t count,
    Py_ssize_t channels, float divisor,
) noexcept nogil

# The maximum of one window and its place, places[r] + k * place_column; of equal ones the first, of
# NaNs the last.
ctypedef void (*pool_argmax_fn)(
    const float* x, const Py_ssize_t* rows, Py_ssize_t n_rows, Py_ssize_t n_columns,
    Py_ssize_t column, Py_ssize_t channels, const int* places, int place_column,
    float* y, int64_t* indices,
) noexcept nogil

# Resampling of one row, for i < count and c < channels, with 1, 2 or 4 taps:
# y[i * y_step + c] = sum_k weights[i * taps + k] * x[offsets[i * taps + k] + c].
ctypedef void (*resize_columns_fn)(
    int taps, const float* x, const int* offsets, const float* weights, float* y,
    Py_ssize_t y_step, Py_ssize_t count, Py_ssize_t channels,
) noexcept nogil

# Images read at up to GRID_BLOCK places that a grid names, axes innermost first.  A place is
# (g + 1) * scale - shift, then reflected or clamped as the padding says.
cdef enum:
    GRID_BLOCK = 128         # a multiple of all numbers of lanes
    GRID_AXES = 3
    GRID_NEAREST = 0
    GRID_LINEAR = 1
    GRID_ZEROS = 0
    GRID_BORDER = 1
    GRID_REFLECTION = 2

ctypedef struct grid_axis_t:
    float scale
    float shift
    float extent             # at most 2^22
    float low                # where reflections begin, and how far apart their ends are
    float span
    int stride               # from one pixel to the next, in elements

# What is known of the points: the first pixel that each reads, how far the next one along each axis
# is, what the four pixels of a plane weigh and what two planes do; 0 where a point lies outside
# the image, or nowhere.
ctypedef struct grid_block_t:
    int[GRID_BLOCK] first
    int[GRID_AXES][GRID_BLOCK] step
    float[4][GRID_BLOCK] weight
    float[2][GRID_BLOCK] plane
    float[GRID_BLOCK] is_inside
    float[GRID_BLOCK] is_number
    bint all_inside          # and are numbers

ctypedef void (*locate_points_fn)(
    int mode, int padding, int n_axes, const grid_axis_t* axes, const float* grid, Py_ssize_t n,
    grid_block_t* block,
) noexcept nogil

# y[c * y_channel + i * y_pixel] = what point i reads of x + c * x_channel, for i < n.
ctypedef void (*grid_read_fn)(
    int mode, int n_axes, Py_ssize_t channels, const grid_block_t* block, Py_ssize_t n,
    const float* x, Py_ssize_t x_channel, float* y, Py_ssize_t y_channel, Py_ssize_t y_pixel,
) noexcept nogil

# y[i] = sum_k weights[k] * rows[k][i] for i < count; 2 or 4 taps.
ctypedef void (*resize_rows_fn)(
    int taps, const float* const* rows, const float* weights, float* y, Py_ssize_t count,
) noexcept nogil

# What is reduced: the elements, their squares, their absolute values, (x - shift)^2 or
# exp(x - shift); all are summed, but for the maxima, the minima and the product.
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

# y[i] = the reduction of x[i * x_row + k] over k < n, for i < rows; shift[i] is row i's, or NULL.
ctypedef void (*reduce_rows_fn)(
    int kind, const float* x, Py_ssize_t x_row, Py_ssize_t rows, Py_ssize_t n,
    const float* shift, float* y,
) noexcept nogil

# y[c] = the reduction of x[k * x_step + c] over k < n, for c < inner.
ctypedef void (*reduce_columns_fn)(
    int kind, const float* x, Py_ssize_t x_step, Py_ssize_t n, Py_ssize_t inner,
    const float* shift, float* y,
) noexcept nogil

# Softmax of scale * x, or its logarithm, over rows or over columns; y may be x.  The buffer for
# columns is scratch memory of n * 4 * lanes floats.
ctypedef void (*softmax_rows_fn)(
    bint is_log, const float* x, Py_ssize_t x_row, float* y, Py_ssize_t y_row, Py_ssize_t rows,
    Py_ssize_t n, float scale,
) noexcept nogil
ctypedef void (*softmax_columns_fn)(
    bint is_log, const float* x, Py_ssize_t x_step, float* y, Py_ssize_t y_step, Py_ssize_t n,
    Py_ssize_t inner, float scale, float* buffer,
) noexcept nogil

# y = (x - mean) / sqrt(variance + eps) * weight + bias over rows of n; not centred, mean is 0.
# weight and bias may be NULL, y may be x.
ctypedef void (*layer_norm_fn)(
    bint centred, const float* x, Py_ssize_t x_row, float* y, Py_ssize_t y_row, Py_ssize_t rows,
    Py_ssize_t n, const float* weight, const float* bias, float eps,
) noexcept nogil

# y = (x - mean) * factor + bias, with one mean, factor and bias, or with one for each channel.
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
# m, the number of rows, is fixed per function; n <= nr columns are stored.  The panel starts with
# nr biases.  residual may be NULL.  With each row of the panel, the cache line that lies `distance`
# floats beyond it is asked for; see prefetch_distance.  A tile that is the only one to take the
# panel may add SOLE_TILE, for the line behind as well.
ctypedef void (*gemm_fn)(
    Py_ssize_t taps, Py_ssize_t kc, const float* const* rows, const float* panel,
    Py_ssize_t distance, float* y, Py_ssize_t ldy, Py_ssize_t n,
    const float* residual, Py_ssize_t ldr, float lo, float hi,
) noexcept nogil

# The same, bit for bit, for mr rows that are a constant step apart in each tap:
#     y[i, j] = clamp(bias[j] + sum_t sum_k runs[t][i * step + k] * panel[t * kc + k, j] + ...)
#
# Only rows from `first` on are stored, and only for those the residual is read.
ctypedef void (*gemm_strided_fn)(
    Py_ssize_t taps, Py_ssize_t kc, const float* const* runs, Py_ssize_t step, int first,
    const float* panel, float* y, Py_ssize_t ldy, Py_ssize_t n,
    const float* residual, Py_ssize_t ldr, float lo, float hi,
) noexcept nogil

# A tile of m <= mr rows and n <= FEW_OUTPUTS columns, for which most lanes of a panel would be
# idle.  weight: a vector of biases, then [tap, vector of channels, column, lane], zeros at the end.
cdef enum:
    FEW_OUTPUTS = 4

ctypedef void (*few_outputs_fn)(
    Py_ssize_t m, Py_ssize_t taps, Py_ssize_t channels, const float* const* rows,
    const float* weight, float* y, Py_ssize_t ldy, Py_ssize_t n, const float* residual,
    Py_ssize_t ldr, float lo, float hi,
) noexcept nogil

# What f32_gemm[1] does for one tap, for ROW_PANELS panels `stride` apart: y[q * nr + j], without a
# residual or bounds.
cdef enum:
    ROW_PANELS = 4

ctypedef void (*gemm_row_fn)(
    Py_ssize_t kc, const float* row, const float* panels, Py_ssize_t stride, float* y
) noexcept nogil


cdef inline Py_ssize_t prefetch_distance(
    Py_ssize_t tile, Py_ssize_t panel_floats, Py_ssize_t nr
) noexcept nogil:
    """How far ahead a tile prefetches weights, when all tiles take one panel before the next one.

    The processor's own prefetching ends at each page, so panels from memory would come in fits and
    starts.  The first two tiles ask for one half each of the lines of the next panel; a panel that
    would drive the present one out of the L2 cache is only asked for a little ahead of its use.
    """
    if panel_floats > MAX_PREFETCH:
        return 16 * nr if tile == 0 else 0
    return panel_floats + tile * nr // 2 if tile < 2 else 0


# The same tile for several products in a row, which it sums; the sums so far can be added to and
# stored on the way, as tiles of rows nr apart:
#
#     y[i, j] = clamp(biases + sum over the products of (added + rows x panel) + residual[i, j])
#
# The biases are those of the first panel and of the last one.  Only rows from `first` on are stored
# in y.
ctypedef struct product_t:
    const float* const* rows
    const float* panel
    const float* added     # ahead of the product, or NULL
    float* saved           # behind it, or NULL

ctypedef void (*gemm_chain_fn)(
    int n_products, const product_t* products, Py_ssize_t taps, Py_ssize_t kc, Py_ssize_t distance,
    int first, float* y, Py_ssize_t ldy, Py_ssize_t n, const float* residual, Py_ssize_t ldr,
    float lo, float hi,
) noexcept nogil

# Sums of rows and of the halves of rows, for i < n:
#
#     s[0] = down_1 + down_2    s[1] = s[0] - up_1    s[2] = up_1 - down_1    s[3] = up_2 - s[1]
#
# s[q] of row i lies at sums + q * stride + i * row stride; `half` is a multiple of `lanes`.
# Returns whether all are finite, which they are not where the rows are not.
ctypedef bint (*strassen_sums_fn)(
    Py_ssize_t n, Py_ssize_t half, const float* const* up, const float* const* down, float* sums,
    Py_ssize_t row_stride, Py_ssize_t stride,
) noexcept nogil

# y[i, j] = clamp(a[i, j] + b[i, j] + bias[j] + residual[i, j]) for first <= i < m and j < n <= nr;
# rows of a and b are nr apart.  residual may be NULL.
ctypedef void (*tile_sum_fn)(
    int m, int first, Py_ssize_t n, const float* a, const float* b, const float* bias,
    const float* residual, Py_ssize_t ldr, float* y, Py_ssize_t ldy, float lo, float hi,
) noexcept nogil

# y[i] = f(x[i]; p0, p1) for i < n; y may be x.  Functions are numbered in functions.pxd.
ctypedef void (*unary_fn)(Py_ssize_t n, const float* x, float* y, float p0, float p1) noexcept nogil

# y[i, j] = f(a[i, j], b[i, j]): two-dimensional operands with any row stride; the column stride of
# a and b is 1, or 0 where the operand is broadcast along its row.  y may be a or b where these lie
# alike.
ctypedef struct rows_t:
    Py_ssize_t n_rows
    Py_ssize_t n_columns
    const float* a
    Py_ssize_t a_row
    Py_ssize_t a_column
    const float* b
    Py_ssize_t b_row
    Py_ssize_t b_column
    float* y
    Py_ssize_t y_row

ctypedef void (*binary_fn)(const rows_t* rows) noexcept nogil

# A chain of cheap operations on one running value, which stays in registers: a link loads it,
# stores it, or replaces it by an operation on it and, for most, on an operand of its own.
cdef enum:
    MAX_LINKS = 48

# What a link does to the running value r with its operands x and z, besides applying a function:
# setup.py numbers those that a chain may contain from N_LINKS on.
cdef enum:
    LINK_LOAD         # x
    LINK_STORE        # r, stored to x
    LINK_ADD_PRODUCT  # r + x * z, rounded twice
    N_LINKS

ctypedef struct link_t:
    int code
    bint moves             # whether the operand moves along the row
    float* x               # written by a link that stores
    Py_ssize_t row         # stride of the operand
    bint z_moves           # the same for the second operand, where there is one
    const float* z
    Py_ssize_t z_row
    float p0
    float p1

ctypedef struct chain_t:
    int n_links
    Py_ssize_t n_rows
    Py_ssize_t n_columns
    float* y               # may be an operand that lies alike
    Py_ssize_t y_row
    link_t[MAX_LINKS] links

ctypedef void (*chain_fn)(const chain_t* chain) noexcept nogil

# Depthwise taps, for m pixels (fixed per function) and all channels:
#     y[i, c] = clamp(bias[c] + sum_t pixels[t][i * steps[t] + c] * weight[t, c] + residual[i, c])
# or, where steps is NULL, with pixels[t * m + i][c].
# Weights come in blocks of `lanes` channels: bias, then the taps.
ctypedef void (*dwconv_fn)(
    Py_ssize_t taps, Py_ssize_t channels, const float* const* pixels, const Py_ssize_t* steps,
    const float* weights, float* y, Py_ssize_t ldy,
    const float* residual, Py_ssize_t ldr, float lo, float hi,
) noexcept nogil

# The same for DW_ROW pixels of one row of the output whose windows, kw wide and s apart (fixed per
# function), meet no border at their sides: rows[u] is row u of the first window, steps[u] the
# distance between its pixels (0 where the row lies outside the image, and rows[u] holds zeros).
ctypedef void (*dwrow_fn)(
    Py_ssize_t kh, Py_ssize_t channels, const float* const* rows, const Py_ssize_t* steps,
    const float* weights, float* y, Py_ssize_t ldy,
    const float* residual, Py_ssize_t ldr, float lo, float hi,
) noexcept nogil

# Grouped convolution of GROUPED_PIXELS pixels, of which the last ones from `first` on are written:
#     y[i, o] = clamp(bias[o] + sum_t,j pixels[t * GROUPED_PIXELS + i][group(o) * terms + j]
#                                        * weight[t, j, o] + residual[i, o])
# A group has `terms` inputs and `per_group` outputs; a vector holds whole groups of either, and
# terms <= per_group.  Weights come in blocks of `lanes` outputs: bias, then for each tap its terms.
# Lane o of vector j of `places`, which are integers, says where among the inputs of a block's
# groups term j of output o lies.
cdef enum:
    GROUPED_PIXELS = 8

ctypedef void (*grouped_fn)(
    Py_ssize_t taps, Py_ssize_t terms, Py_ssize_t per_group, Py_ssize_t channels,
    const float* const* pixels, const float* places, const float* weights, int first, float* y,
    Py_ssize_t ldy, const float* residual, Py_ssize_t ldr, float lo, float hi,
) noexcept nogil

# Winograd F(t x t, 3x3) for t = 2 and t = 4, and for t = 4 with a stride of 2 (fixed per function).
# Filters: one panel of them, taps[(c * 9 + tap) * nr + i] -> panel[f * stride + c * nr + i] for the
# points f of one row.  The others take one tile, all channels; of its t x t outputs only
# the first rows x columns are wanted.  Frequencies that wino_needs denies are not written, and what
# is read in their place does not matter.
# Input: the pixels of all windows, row by row -> v[f * stride + c].
# Output: m[f * stride + c] -> rows x columns pixels, plus bias and residual, clamped; tells whether
# the products were finite, and left room for the transform.  `streams` allows stores past the
# caches; vectors of y then lie on cache lines.
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


cdef inline bint wino_needs(int t, int step, Py_ssize_t wanted, int point) noexcept nogil:
    """Whether `wanted` outputs of a tile of t, along one axis, take the interpolation point.

    With a stride, `step`, of 2 they take all.  With 1:
    The points are 0, a, -a, then b, -b for t = 4, then infinity.  All t outputs take all of them;
    t - 1 do without infinity by the same formulas; two and one of t = 4 are F(2) over 0, a, -a and
    infinity, and that without infinity.
    """
    if step == 2:
        return True
    if point == t + 1:
        return wanted == t or wanted == 2
    return point < 3 or wanted > 2


# y[i] = x[i] in another type, for i < n; types are numbered in element_functions.pxd.
ctypedef void (*typed_convert_fn)(
    int source, int target, Py_ssize_t n, const void* x, void* y
) noexcept nogil

# y[i] = f(a[i], b[i]) for i < n, in one type; element_functions.pxd numbers the functions as well.
# y may be a or b if its elements have the same size.
ctypedef void (*typed_apply_fn)(
    int function, int type, Py_ssize_t n, const void* a, const void* b, void* y
) noexcept nogil


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
    strassen_sums_fn f32_strassen_sums
    tile_sum_fn f32_tile_sum
    # depthwise convolution: f32_dwconv[m] handles m pixels, 1 <= m <= dw_m
    int dw_m
    dwconv_fn[MAX_DW_M + 1] f32_dwconv
    # by width and step of the window; NULL where there is none
    dwrow_fn[MAX_DW_KW + 1][MAX_DW_STEP + 1] f32_dwrow
    grouped_fn f32_grouped           # NULL where vectors cannot be permuted
    # Winograd: by the side of a tile and the stride
    wino_filter_fn[MAX_TILE + 1][MAX_WINO_STEP + 1] f32_wino_filter
    wino_input_fn[MAX_TILE + 1][MAX_WINO_STEP + 1] f32_wino_input
    wino_output_fn[MAX_TILE + 1][MAX_WINO_STEP + 1] f32_wino_output
    # elementwise functions of one tensor and of two, by number
    unary_fn[MAX_UNARY] f32_unary
    binary_fn[MAX_BINARY] f32_binary
    chain_fn f32_chain
    # elements of any type
    typed_convert_fn typed_convert
    typed_apply_fn typed_apply


cdef inline dwrow_fn row_kernel(
    const kernels_t* kernels, Py_ssize_t kernel_w, Py_ssize_t stride_w, Py_ssize_t dilation_w
) noexcept nogil:
    """The depthwise micro-kernel for windows that follow each other in a row, NULL without one."""
    if kernel_w > MAX_DW_KW or stride_w > MAX_DW_STEP or dilation_w != 1:
        return NULL
    return kernels.f32_dwrow[kernel_w][stride_w]
