"""Strassen's algorithm: a matrix product from seven products of quarters instead of eight.

Rows, terms and columns are halved: A = (A11 A12; A21 A22), B and C accordingly.  In Winograd's
form, which shares sums:

    S1 = A21 + A22     S2 = S1 - A11      S3 = A11 - A21     S4 = A12 - S2
    T1 = B12 - B11     T2 = B22 - T1      T3 = B22 - B12     T4 = B21 - T2
    P  = A11 B11       U2 = P + S2 T2     U3 = U2 + S3 T3    Q  = S1 T1
    C11 = P + A12 B21                     C12 = U2 + Q + S4 B22
    C21 = U3 + A22 T4                     C22 = U3 + Q

The sums of B are computed once, when the weights are packed.  The sums of A cost little if each
serves many columns.  The sums of products stay in the caches, because the unit of work is small: a
quad is two tiles of rows, "up" and "down", by a pair of panels, "left" and "right".  The terms are
halved by channels: the first and the second half of each tap.

Sums larger than the result increase rounding errors to two to three times those of the definition,
relative to the greater of the rows, and of the columns, that share sums.  A pair of panels is
multiplied by the definition if two columns that share sums differ by a factor of more than 100, for
example next to a filter that training left at zero.  So is a quad with a non-finite value, which
would spread to its neighbours.

``StrassenStep``
    A convolution as implicit GEMM, or a Linear layer over pixels.

Source: Strassen (1969), Gaussian elimination is not optimal; Winograd (1971), On multiplication of
2 x 2 matrices.
"""

import numpy as np

from libc.math cimport fabsf
from libc.stdint cimport intptr_t

from kuiper._kernels.micro.dispatch cimport active
from kuiper._kernels.micro.packing cimport (
    biases, pack_panel, panels_of_columns, panels_t, tap_offsets,
)
from kuiper._kernels.conv.epilogue cimport make_epilogue, epilogue_t, finish_tile
from kuiper._runtime.step cimport Step, at, ceil_div, ref_t, shard_start
from kuiper._kernels.micro.table cimport kernels_t, product_t
from kuiper._runtime.thread_pool cimport parallel_for
from kuiper._kernels.conv.window cimport Window, phase_t, point_rows, window_t

from kuiper._runtime.pages import aligned_empty
from kuiper._kernels.micro.packing import n_panels, parts
from kuiper.ir.view import padded_row

cdef extern from "_runtime/populate.h" nogil:
    void populate "kp_populate"(char* first, Py_ssize_t n_bytes) noexcept

# The parts of a pair of panels, in the order of their use.  The biases of T3, which no tile reads,
# hold SIMILAR or DISSIMILAR.
cdef enum:
    B11
    B21          # with the biases of the left panel
    T2
    T3
    T4           # with the biases of the left panel
    T1
    B22          # with the biases of the right panel
    B12          # read by the definition only
    N_PARTS

# The lists of rows that products read.
cdef enum:
    UP_1
    UP_2
    DOWN_1
    DOWN_2
    SUM_1
    SUM_2
    SUM_3
    SUM_4
    N_LISTS

# The stored tiles of intermediate products.
cdef enum:
    TILE_P
    TILE_U2
    TILE_U3
    TILE_Q
    N_TILES

# Quads per pair of panels: as many as fit in the L2 cache, and more if the weights are so large
# that reading them less often pays.
cdef enum:
    MAX_QUADS = 16
    LARGE_BYTES = 7 * 512 * 1024   # weights above this are large
    FEW_BYTES = 256 * 1024         # rows and sums of these quads
    MANY_BYTES = 1200 * 1024       # the same for large weights

cdef enum:
    MAX_NR = 32
    MAX_RATIO = 100              # between the greatest weights of two columns that share sums
    SIMILAR = 0                  # whether the ratio is below, for all columns of a pair
    DISSIMILAR = 1
    PREFETCH_DISTANCE_ROWS = 32  # prefetch distance, in rows of a panel


# -- weights -----------------------------------------------------------------------------------

def packed_floats(Py_ssize_t columns, Py_ssize_t taps, Py_ssize_t channels):
    """Return the size of the weights that :func:`pack_strassen` writes, in floats."""
    cdef Py_ssize_t nr = active().nr, panels = ceil_div(columns, nr)
    return (panels // 2) * pair_floats(taps, channels, nr) + (panels % 2) * (
        (1 + taps * channels) * nr
    )


cdef Py_ssize_t pair_floats(Py_ssize_t taps, Py_ssize_t channels, Py_ssize_t nr) noexcept nogil:
    return N_PARTS * (1 + taps * channels // 2) * nr


def pack_strassen(weight, bias, int n_threads=1, out=None):
    """Pack a matrix, given as its transpose, and the sums of its quarters.

    Parameters
    ----------
    weight : array, shape (columns, taps, channels), float32
        Any strides; the number of channels is even.  May be an object with a `shape` whose slices
        are such arrays.
    bias : array, shape (columns,), or None
    n_threads : int
    out : array, optional
        Memory for the result.

    Returns
    -------
    numpy.ndarray, shape (packed_floats(columns, taps, channels),), float32
        `N_PARTS` panels over half the channels for each pair of panels; then, if the number of
        panels is odd, the last one unchanged.
    """
    cdef Py_ssize_t pair
    columns, taps, channels = weight.shape
    pair = pair_floats(taps, channels, active().nr)
    packed = out
    if out is None:
        packed = aligned_empty((packed_floats(columns, taps, channels),))
    for rows in parts(weight, n_threads, 2):
        pack_rows(
            weight[rows], None if bias is None else bias[rows],
            packed[rows.start // (2 * active().nr) * pair:], n_threads,
        )
    return packed


cdef pack_rows(const float[:, :, :] weight, bias, float[::1] out, int n_threads):
    cdef const Py_ssize_t[::1] offsets = tap_offsets(weight.shape[1], weight.strides[1] // 4)
    cdef const float[::1] b = biases(bias, weight.shape[0])
    cdef panels_t job = panels_of_columns(weight, b, offsets)
    job.out = &out[0]
    with nogil:
        parallel_for(pack_one, &job, ceil_div(job.columns, 2 * job.kernels.nr), n_threads)


cdef void pack_one(void* job, Py_ssize_t pair, Py_ssize_t rank) noexcept nogil:
    """Pack a pair of panels, or a single last one."""
    cdef panels_t* pairs = <panels_t*> job
    cdef Py_ssize_t nr = pairs.kernels.nr, start = 2 * nr * pair
    cdef Py_ssize_t left = min(nr, pairs.columns - start)
    cdef Py_ssize_t right = min(nr, pairs.columns - start - left)
    cdef Py_ssize_t size = pair_floats(pairs.taps, pairs.channels, nr)
    cdef const float* first = pairs.first + start * pairs.column
    cdef float* out = pairs.out + pair * size
    if right > 0:
        populate(<char*> out, 4 * size)
        pack_pair(
            pairs.kernels, first, pairs.column, pairs.taps, pairs.offsets, pairs.channels // 2,
            pairs.channel, pairs.bias + start, left, right, out,
        )
    else:
        pack_panel(
            pairs.kernels, first, pairs.column, pairs.taps, pairs.offsets, pairs.channels,
            pairs.channel, pairs.bias + start, left, out,
        )


cdef void pack_pair(
    const kernels_t* kernels, const float* w, Py_ssize_t column, Py_ssize_t taps,
    const Py_ssize_t* offsets, Py_ssize_t half, Py_ssize_t channel, const float* bias,
    Py_ssize_t left, Py_ssize_t right, float* out,
) noexcept nogil:
    """Write the parts of a pair of panels with `left` and `right` columns."""
    cdef Py_ssize_t nr = kernels.nr, part = (1 + taps * half) * nr, i
    cdef const float* w_right = w + nr * column
    cdef float* b11 = out + B11 * part
    cdef float* b12 = out + B12 * part
    cdef float* b21 = out + B21 * part
    cdef float* b22 = out + B22 * part
    cdef double t1, t2
    cdef float[MAX_NR] greatest_left, greatest_right, checked
    cdef Py_ssize_t j, k
    pack_panel(kernels, w, column, taps, offsets, half, channel, NULL, left, b11)
    pack_panel(kernels, w_right, column, taps, offsets, half, channel, NULL, right, b12)
    w += half * channel
    w_right += half * channel
    pack_panel(kernels, w, column, taps, offsets, half, channel, bias, left, b21)
    pack_panel(kernels, w_right, column, taps, offsets, half, channel, bias + nr, right, b22)
    for j in range(nr):
        out[T1 * part + j] = out[T2 * part + j] = 0
        out[T4 * part + j] = b21[j]
        greatest_left[j] = greatest_right[j] = checked[j] = 0
    for i in range(1, 1 + taps * half):
        for j in range(nr):
            k = i * nr + j
            t1 = <double> b12[k] - b11[k]
            t2 = b22[k] - t1
            out[T1 * part + k] = <float> t1
            out[T2 * part + k] = <float> t2
            out[T3 * part + k] = b22[k] - b12[k]
            out[T4 * part + k] = <float> (b21[k] - t2)
            # 0 * x is 0 unless x is infinite or NaN.
            checked[j] += 0 * out[T3 * part + k] + 0 * out[T4 * part + k]
            greatest_left[j] = max(greatest_left[j], max(fabsf(b11[k]), fabsf(b21[k])))
            greatest_right[j] = max(greatest_right[j], max(fabsf(b12[k]), fabsf(b22[k])))
    for j in range(nr):
        out[T3 * part + j] = DISSIMILAR
    for j in range(right):
        if checked[j] != 0 or (
            max(greatest_left[j], greatest_right[j])
            > MAX_RATIO * min(greatest_left[j], greatest_right[j])
        ):
            return
    for j in range(nr):
        out[T3 * part + j] = SIMILAR


# -- the step ----------------------------------------------------------------------------------

cdef struct quad_t:              # two tiles of pixels, their rows and sums
    Py_ssize_t m                 # pixels of a tile
    Py_ssize_t up                # first output pixel of the upper tile
    Py_ssize_t down              # first output pixel of the lower tile
    Py_ssize_t shared            # pixels in both tiles, 0 or 1; the upper tile stores them
    bint finite                  # whether all sums are finite
    (const float**)[N_LISTS] lists  # (taps, m) pointers to rows of `half` floats
    float* tiles                 # (N_TILES, mr, nr)


cdef struct strassen_t:
    const kernels_t* kernels
    const window_t* window
    ref_t x                      # (n, in_h, in_w, 2 * half)
    ref_t weight                 # of pack_strassen
    ref_t y                      # (n, out_h, out_w, out_channels)
    ref_t scratch                # per quad: sums (4, taps * mr, ld_sums), tiles, lists
    const float* zeros           # (2 * half,)
    Py_ssize_t half              # of the channels
    Py_ssize_t out_channels
    Py_ssize_t ld_sums           # from row to row, in elements
    Py_ssize_t sums_stride       # from S1 to S2, in elements
    Py_ssize_t quads             # of an image
    Py_ssize_t at_a_time         # quads processed together
    Py_ssize_t part_floats       # size of a panel over half the channels
    epilogue_t epilogue


cdef class StrassenStep(Step):
    """Convolution of one group by Strassen's algorithm.

    Parameters
    ----------
    x, y : TensorView
        Channels-last.  The number of input channels is a multiple of twice the lanes.
    weight : TensorView
        Packed by :func:`pack_strassen`; at least two panels.
    window : Window
        Of one phase.
    scratch : TensorView
        :func:`strassen_scratch_bytes` for each thread.
    epilogue : Epilogue or None
    """

    cdef strassen_t p
    cdef Window window

    def __init__(self, x, weight, y, Window window, scratch, epilogue=None):
        zeros = np.zeros(x.shape[1], np.float32)
        cdef float[::1] zero_view = zeros
        cdef Py_ssize_t mr = active().mr, taps = window.w.phases[0].n_taps
        self.window = window
        self.keep = zeros
        self.p.kernels = active()
        self.p.window = &window.w
        self.p.x, self.p.weight, self.p.y = self.ref(x), self.ref(weight), self.ref(y)
        self.p.scratch = self.ref(scratch)
        self.p.zeros = &zero_view[0]
        self.p.half, self.p.out_channels = x.shape[1] // 2, y.shape[1]
        self.p.ld_sums = padded_row(self.p.half)
        self.p.sums_stride = taps * mr * self.p.ld_sums
        self.p.quads = ceil_div(y.shape[2] * y.shape[3], 2 * mr)
        self.p.at_a_time = quads_at_a_time(
            y.shape[2] * y.shape[3], taps, x.shape[1], y.shape[1]
        )
        self.p.part_floats = (1 + taps * self.p.half) * active().nr
        self.p.epilogue = make_epilogue(self, epilogue)
        self.run = strassen_run
        self.params = &self.p
        self.kind = "strassen"
        self.max_shards = max(y.shape[0] * self.p.quads * n_pairs(&self.p), 1)
        # Seven products instead of eight for pairs of panels, the four sums of quarters of rows,
        # and seven of quarters of the products.
        terms, paired = float(taps * x.shape[1]), float(self.p.out_channels)
        if n_panels(self.p.out_channels) % 2:
            paired = (n_panels(self.p.out_channels) - 1) * active().nr
        rows = float(y.shape[0] * y.shape[2] * y.shape[3])
        self.flops = 2 * rows * terms * (self.p.out_channels - paired / 8)
        self.flops += rows * terms + 7 * rows * paired / 4


cdef inline Py_ssize_t n_pairs(const strassen_t* p) noexcept nogil:
    """Return the number of pairs of panels; a single last panel counts as a pair."""
    return ceil_div(p.out_channels, 2 * p.kernels.nr)


cdef Py_ssize_t quads_at_a_time(
    Py_ssize_t rows, Py_ssize_t taps, Py_ssize_t channels, Py_ssize_t columns
):
    cdef Py_ssize_t mr = active().mr, limit = FEW_BYTES
    if 7 * taps * channels * columns > LARGE_BYTES:
        limit = MANY_BYTES
    return max(1, min(MAX_QUADS, ceil_div(rows, 2 * mr), limit // (16 * mr * taps * channels)))


cdef Py_ssize_t quad_floats(Py_ssize_t taps, Py_ssize_t row_stride):
    """Return the scratch of a quad, in floats: sums of rows, tiles, pointers of all lists."""
    cdef Py_ssize_t mr = active().mr
    return mr * (4 * taps * row_stride + N_TILES * active().nr + 2 * N_LISTS * taps)


def strassen_scratch_bytes(
    Py_ssize_t rows, Py_ssize_t taps, Py_ssize_t channels, Py_ssize_t columns
):
    """Return the bytes of scratch per thread, for the quads processed together.

    Parameters
    ----------
    rows : int
        Output pixels of an image.
    taps, channels : int
        Their product is the number of terms.
    columns : int
    """
    return 4 * quad_floats(taps, padded_row(channels // 2)) * quads_at_a_time(
        rows, taps, channels, columns
    )


cdef inline Py_ssize_t first_pixel(const strassen_t* p, Py_ssize_t quad) noexcept nogil:
    cdef Py_ssize_t plane = p.window.phases[0].height * p.window.phases[0].width
    return quad // p.quads * plane + quad % p.quads * plane // p.quads


cdef void open_quad(
    const strassen_t* p, char* const* slots, Py_ssize_t number, float* space, quad_t* quad
) noexcept nogil:
    """Fill the lists of rows of a quad and compute their sums."""
    cdef const window_t* w = p.window
    cdef const phase_t* phase = &w.phases[0]
    cdef const float* x = <const float*> at(slots, p.x)
    cdef Py_ssize_t mr = p.kernels.mr, taps = phase.n_taps
    cdef Py_ssize_t start = first_pixel(p, number), stop = first_pixel(p, number + 1), i, j
    cdef const float** rows
    quad.tiles = space + 4 * p.sums_stride
    rows = <const float**> (quad.tiles + N_TILES * mr * p.kernels.nr)
    for i in range(N_LISTS):
        quad.lists[i] = rows + i * taps * mr
    quad.m = (stop - start + 1) // 2
    quad.shared = 2 * quad.m - (stop - start)
    quad.up = start
    quad.down = quad.up + quad.m - quad.shared
    point_rows(w, phase, x, p.zeros, quad.up, quad.m, quad.lists[UP_1])
    point_rows(w, phase, x, p.zeros, quad.down, quad.m, quad.lists[DOWN_1])
    for i in range(taps * quad.m):
        quad.lists[UP_2][i] = quad.lists[UP_1][i] + p.half
        quad.lists[DOWN_2][i] = quad.lists[DOWN_1][i] + p.half
        for j in range(4):
            quad.lists[SUM_1 + j][i] = space + j * p.sums_stride + i * p.ld_sums
    quad.finite = p.kernels.f32_strassen_sums(
        taps * quad.m, p.half, <const float* const*> quad.lists[UP_1],
        <const float* const*> quad.lists[DOWN_1], space, p.ld_sums, p.sums_stride,
    )


cdef inline void multiply(
    const strassen_t* p, char* const* slots, const quad_t* quad, int n_products,
    const product_t* products, Py_ssize_t distance, bint down, Py_ssize_t column,
) noexcept nogil:
    """Compute an output tile as a chain of products, which adds and stores partial sums."""
    cdef Py_ssize_t pixel = quad.down if down else quad.up
    p.kernels.f32_gemm_chain[quad.m](
        n_products, products, p.window.phases[0].n_taps, p.half, distance,
        quad.shared if down else 0,
        output_at(p, slots, pixel, column), p.window.ldy,
        min(p.kernels.nr, p.out_channels - column), tile_residual(p, slots, pixel, column),
        p.epilogue.ldr, p.epilogue.lo, p.epilogue.hi,
    )


cdef inline product_t product_of(
    const strassen_t* p, const quad_t* quad, int rows, const float* panels, int part,
    const float* added, float* saved,
) noexcept nogil:
    cdef product_t product
    product.rows = <const float* const*> quad.lists[rows]
    product.panel = panels + part * p.part_floats
    product.added, product.saved = added, saved
    return product


cdef inline float* output_at(
    const strassen_t* p, char* const* slots, Py_ssize_t pixel, Py_ssize_t column
) noexcept nogil:
    return <float*> at(slots, p.y) + pixel * p.window.ldy + column


cdef inline const float* tile_residual(
    const strassen_t* p, char* const* slots, Py_ssize_t pixel, Py_ssize_t column
) noexcept nogil:
    """Return the residual that the tile adds, or NULL."""
    if not p.epilogue.residual_in_tile:
        return NULL
    return <const float*> at(slots, p.epilogue.residual) + pixel * p.epilogue.ldr + column


cdef void one_chain(
    const strassen_t* p, char* const* slots, int chain, const quad_t* quad, const float* panels,
    Py_ssize_t distance, Py_ssize_t column,
) noexcept nogil:
    """Compute C11 (chain 0), C21 (1), or C12 and C22 (2); the module docstring has the formulas."""
    cdef Py_ssize_t nr = p.kernels.nr, tile = p.kernels.mr * nr, right = column + nr
    cdef float* product = quad.tiles + TILE_P * tile
    cdef float* u2 = quad.tiles + TILE_U2 * tile
    cdef float* u3 = quad.tiles + TILE_U3 * tile
    cdef float* q = quad.tiles + TILE_Q * tile
    cdef product_t[3] s
    if chain == 0:
        s[0] = product_of(p, quad, UP_1, panels, B11, NULL, product)
        s[1] = product_of(p, quad, UP_2, panels, B21, NULL, NULL)
        multiply(p, slots, quad, 2, s, distance, False, column)
    elif chain == 1:
        s[0] = product_of(p, quad, SUM_2, panels, T2, product, u2)
        s[1] = product_of(p, quad, SUM_3, panels, T3, NULL, u3)
        s[2] = product_of(p, quad, DOWN_2, panels, T4, NULL, NULL)
        multiply(p, slots, quad, 3, s, distance, True, column)
    else:
        s[0] = product_of(p, quad, SUM_1, panels, T1, NULL, q)
        s[1] = product_of(p, quad, SUM_4, panels, B22, u2, NULL)
        multiply(p, slots, quad, 2, s, distance, False, right)
        p.kernels.f32_tile_sum(
            quad.m, quad.shared, min(nr, p.out_channels - right), u3, q, s[1].panel,
            tile_residual(p, slots, quad.down, right), p.epilogue.ldr,
            output_at(p, slots, quad.down, right), p.window.ldy, p.epilogue.lo, p.epilogue.hi,
        )


cdef void by_definition(
    const strassen_t* p, char* const* slots, const quad_t* quad, const float* panels,
    Py_ssize_t column,
) noexcept nogil:
    """Multiply a quad by a pair of panels in eight products, if Strassen's sums cannot be used."""
    cdef product_t[2] s
    cdef bint down
    for down in range(2):
        s[0] = product_of(p, quad, DOWN_1 if down else UP_1, panels, B11, NULL, NULL)
        s[1] = product_of(p, quad, DOWN_2 if down else UP_2, panels, B21, NULL, NULL)
        multiply(p, slots, quad, 2, s, PREFETCH_DISTANCE_ROWS * p.kernels.nr, down, column)
        s[0].panel, s[1].panel = panels + B12 * p.part_floats, panels + B22 * p.part_floats
        multiply(
            p, slots, quad, 2, s, PREFETCH_DISTANCE_ROWS * p.kernels.nr, down, column + p.kernels.nr
        )


cdef void pair_of_panels(
    const strassen_t* p, char* const* slots, const quad_t* quads, Py_ssize_t count,
    const float* panels, const float* const* rows, Py_ssize_t column,
) noexcept nogil:
    """Multiply `count` quads by a pair of panels, chain by chain, to read each part once.

    Prefetches the `rows` of the next quads that are not NULL, otherwise the next panels.
    """
    cdef Py_ssize_t i, distance, nr = p.kernels.nr
    cdef bint similar = panels[T3 * p.part_floats] == SIMILAR
    cdef int chain
    for chain in range(3 if similar else 0):
        for i in range(count):
            distance = PREFETCH_DISTANCE_ROWS * nr
            if chain == 0 and rows[i] != NULL:
                distance = (<intptr_t> rows[i] - <intptr_t> panels) // <intptr_t> sizeof(float) - nr
            if quads[i].finite:
                one_chain(p, slots, chain, &quads[i], panels, distance, column)
    for i in range(count):
        if not (similar and quads[i].finite):
            by_definition(p, slots, &quads[i], panels, column)


cdef void one_panel(
    const strassen_t* p, char* const* slots, const quad_t* quads, Py_ssize_t count,
    const float* panel, Py_ssize_t column,
) noexcept nogil:
    """Multiply `count` quads by the single last panel."""
    cdef Py_ssize_t i, pixel
    cdef product_t product
    cdef bint down
    for i in range(count):
        for down in range(2):
            product = product_of(p, &quads[i], DOWN_1 if down else UP_1, panel, 0, NULL, NULL)
            pixel = quads[i].down if down else quads[i].up
            p.kernels.f32_gemm_chain[quads[i].m](
                1, &product, p.window.phases[0].n_taps, 2 * p.half,
                PREFETCH_DISTANCE_ROWS * p.kernels.nr,
                quads[i].shared if down else 0, output_at(p, slots, pixel, column),
                p.window.ldy, p.out_channels - column, tile_residual(p, slots, pixel, column),
                p.epilogue.ldr, p.epilogue.lo, p.epilogue.hi,
            )


cdef void strassen_run(
    const void* params, char* const* slots, Py_ssize_t shard, Py_ssize_t n_shards
) noexcept nogil:
    """Cross-correlate images with packed filters and apply the epilogue.

    Layout : x (n, h, w, ic) -> y (n, oh, ow, oc), any row strides
    Needs  : weights of pack_strassen for the table's tile; one phase
    Threads: over groups of quads x pairs of panels x quads; quads do not depend on the threads
    Source : Strassen (1969), Winograd (1971)
    """
    cdef const strassen_t* p = <const strassen_t*> params
    cdef const window_t* w = p.window
    cdef const float* weight = <const float*> at(slots, p.weight)
    cdef const float* residual = NULL
    cdef float* space = <float*> at(slots, p.scratch)
    cdef Py_ssize_t nr = p.kernels.nr, pairs = n_pairs(p), total = w.n * p.quads
    cdef Py_ssize_t q = shard_start(total * pairs, shard, n_shards)
    cdef Py_ssize_t stop = shard_start(total * pairs, shard + 1, n_shards)
    cdef Py_ssize_t groups = ceil_div(total, p.at_a_time), group, opened = -1, first, size
    cdef Py_ssize_t offset, pair, count, i, column, n, pixel
    cdef quad_t[MAX_QUADS] quads
    cdef (const float*)[MAX_QUADS] rows
    cdef Py_ssize_t following
    while q < stop:
        # Quads form groups of nearly equal size; all pairs of panels of a group come first.
        group = group_of(q // pairs, total, groups)
        first = group * total // groups
        size = (group + 1) * total // groups - first
        if group != opened:
            opened = group
            for i in range(size):
                open_quad(p, slots, first + i, space + i * space_floats(p), &quads[i])
        offset = (q - first * pairs) % size
        pair = (q - first * pairs) // size
        count = min(size - offset, stop - q)
        column = pair * 2 * nr
        n = min(2 * nr, p.out_channels - column)
        if n <= nr:
            one_panel(
                p, slots, &quads[offset], count, weight + pair * N_PARTS * p.part_floats, column
            )
        else:
            for i in range(count):
                rows[i] = NULL
                following = first + size + offset + i
                if following < total and pair + 1 == pairs and w.phases[0].n_taps == 1:
                    point_rows(
                        w, &w.phases[0], <const float*> at(slots, p.x), p.zeros,
                        first_pixel(p, following), 1, &rows[i],
                    )
            pair_of_panels(
                p, slots, &quads[offset], count, weight + pair * N_PARTS * p.part_floats,
                <const float* const*> rows, column,
            )
        for i in range(offset, offset + count):
            pixel = quads[i].up
            if p.epilogue.has_residual:
                residual = (
                    <const float*> at(slots, p.epilogue.residual) + pixel * p.epilogue.ldr
                    + column
                )
            finish_tile(
                &p.epilogue, 2 * quads[i].m - quads[i].shared, n,
                output_at(p, slots, pixel, column),
                w.ldy, residual, p.epilogue.ldr,
            )
        q += count


cdef inline Py_ssize_t space_floats(const strassen_t* p) noexcept nogil:
    """Return quad_floats for the extents of the step."""
    return 4 * p.sums_stride + p.kernels.mr * (
        N_TILES * p.kernels.nr + 2 * N_LISTS * p.window.phases[0].n_taps
    )


cdef inline Py_ssize_t group_of(
    Py_ssize_t quad, Py_ssize_t total, Py_ssize_t groups
) noexcept nogil:
    """Return the group of a quad; group g starts at quad g * total // groups."""
    return ((quad + 1) * groups - 1) // total
