"""Interpolation at computed positions: grid sampling; RoI align (roi_align.pxi) and the windows of
deformable convolutions (deform.pxi).

Images are channels-last, except those with few channels that a grid samples.  The value at a
position between pixels is a weighted sum of the pixels around it that lie inside the image; pixels
outside are left out, not multiplied by 0, since 0 * infinity = NaN.
"""

from libc.math cimport ceilf, fabsf, floorf, fmodf, INFINITY, isfinite, NAN, rintf
from libc.stdint cimport int32_t
from libc.string cimport memset

from kuiper._kernels.micro.dispatch cimport active
from kuiper._runtime.step cimport Step, at, at_or_null, ref_t, shard_start
from kuiper._kernels.micro.table cimport GRID_AXES, GRID_BLOCK, grid_axis_t, grid_block_t, kernels_t

cdef enum:
    SHARD_FLOATS = 4096      # fewest floats written by a shard that are worth a thread
    MAX_AXES = 3
    MAX_TAPS = 4             # pixels along one axis, or around a position in a plane
    FEW = 8                  # with fewer channels, calling a micro-kernel does not pay
    EXACT = 8388608          # 2^23: floats from here on are integers

# The interpolation; the first two, and the paddings, are numbered as in _kernels/micro/table.pxd.
cdef enum:
    NEAREST
    LINEAR
    CUBIC

# The values outside the image.
cdef enum:
    ZEROS
    BORDER
    REFLECTION

MODES = {"nearest": NEAREST, "bilinear": LINEAR, "bicubic": CUBIC}
PADDINGS = {"zeros": ZEROS, "border": BORDER, "reflection": REFLECTION}

# -- weighted sums of pixels -------------------------------------------------------------------

# The pixels along one axis that a position is interpolated from.
cdef struct taps_t:
    int n
    Py_ssize_t[MAX_TAPS] index
    float[MAX_TAPS] weight

# The terms of a weighted sum of pixels.
cdef struct pixels_t:
    int n
    (const float*)[MAX_TAPS] pixel  # (channels,) each
    float[MAX_TAPS] weight


cdef inline void add_tap(taps_t* taps, Py_ssize_t index, float weight) noexcept nogil:
    taps.index[taps.n], taps.weight[taps.n] = index, weight
    taps.n += 1


cdef inline void linear_taps(float position, Py_ssize_t extent, taps_t* taps) noexcept nogil:
    """Find the pixels on both sides of a position, without those outside the image."""
    cdef float below
    taps.n = 0
    if not (position > -1 and position < extent):
        return
    below = floorf(position)
    if below >= 0:
        add_tap(taps, <Py_ssize_t> below, 1 - (position - below))
    if below + 1 < extent:
        add_tap(taps, <Py_ssize_t> below + 1, position - below)


cdef inline void cross(
    const float* image, Py_ssize_t columns, Py_ssize_t row_stride, const taps_t* row,
    const taps_t* column, float factor, pixels_t* pixels,
) noexcept nogil:
    """Find the pixels at the crossings of up to two rows and two columns, and their weights."""
    cdef int i, j, n = 0
    for i in range(row.n):
        for j in range(column.n):
            pixels.pixel[n] = image + (row.index[i] * columns + column.index[j]) * row_stride
            pixels.weight[n] = row.weight[i] * column.weight[j] * factor
            n += 1
    pixels.n = n


cdef inline void add_up(
    const kernels_t* kernels, pixels_t* pixels, float* y, Py_ssize_t channels
) noexcept nogil:
    """y = the weighted sum of the pixels, which are overwritten."""
    cdef Py_ssize_t c
    cdef int k, n = pixels.n
    if n == 0:
        memset(y, 0, channels * sizeof(float))
        return
    if channels < FEW:
        for c in range(channels):
            y[c] = pixels.weight[0] * pixels.pixel[0][c]
        for k in range(1, n):
            for c in range(channels):
                y[c] += pixels.weight[k] * pixels.pixel[k][c]
        return
    # The micro-kernel takes two or four pixels: split one into halves, which is exact.
    if n == 1 or n == 3:
        pixels.weight[n - 1] *= 0.5
        pixels.weight[n] = pixels.weight[n - 1]
        pixels.pixel[n] = pixels.pixel[n - 1]
        n += 1
    kernels.f32_resize_rows(n, pixels.pixel, pixels.weight, y, channels)


cdef inline void fill(float* y, Py_ssize_t channels, float value) noexcept nogil:
    cdef Py_ssize_t c
    for c in range(channels):
        y[c] = value


# -- grids -------------------------------------------------------------------------------------

cdef struct grid_t:
    const kernels_t* kernels
    ref_t x
    ref_t grid
    ref_t y
    ref_t scratch
    Py_ssize_t batch
    Py_ssize_t channels
    Py_ssize_t points            # per image of the output
    Py_ssize_t row_stride        # of pixels of x, in elements
    Py_ssize_t ldy
    int n_axes
    Py_ssize_t[MAX_AXES] extents    # of the input, outermost axis first
    int mode
    int padding
    bint align_corners


cdef class GridSampleStep(Step):
    """Samples an image at the positions of a grid.

    Parameters
    ----------
    x : TensorView, shape (n, c, rows, columns), channels-last
        Depth and height of a volume are one axis of rows.
    grid : TensorView, shape (n, points, axes), C order
        Positions from -1 to 1, the innermost axis first.
    y : TensorView, shape (n, c, rows, columns), channels-last
        One pixel per point.
    extents : tuple of int
        The two or three spatial extents of the input.
    mode, padding : str
        Keys of `MODES` and `PADDINGS`.
    align_corners : bool
    scratch : TensorView
        ``16 * c`` bytes.
    """

    cdef grid_t p

    def __init__(self, x, grid, y, extents, mode, padding, align_corners, scratch):
        cdef int i
        self.p.kernels = active()
        self.p.x, self.p.grid, self.p.y = self.ref(x), self.ref(grid), self.ref(y)
        self.p.scratch = self.ref(scratch)
        self.p.batch, self.p.channels = x.shape[0], x.shape[1]
        self.p.points = y.shape[2] * y.shape[3]
        self.p.row_stride, self.p.ldy = x.row_stride, y.row_stride
        self.p.n_axes = len(extents)
        for i in range(self.p.n_axes):
            self.p.extents[i] = extents[i]
        self.p.mode, self.p.padding = MODES[mode], PADDINGS[padding]
        self.p.align_corners = align_corners
        self.run = grid_run
        self.params = &self.p
        self.kind = "grid_sample"
        self.flops = 2.0 * y.size * (1, 2, 4)[self.p.mode] ** self.p.n_axes
        self.bytes = float(x.n_bytes + grid.n_bytes + y.n_bytes)
        self.max_shards = max(min(self.p.batch * self.p.points, y.size // SHARD_FLOATS), 1)


cdef inline float unnormalized(const grid_t* p, float g, Py_ssize_t extent) noexcept nogil:
    """Map -1 to 1 to a pixel coordinate, in PyTorch's order of operations."""
    if p.n_axes == 2:
        if p.align_corners:
            return (g + 1) * (<float> (extent - 1) / 2)
        return (g + 1) * (<float> extent / 2) - <float> 0.5
    if p.align_corners:
        return ((g + 1) / 2) * (extent - 1)
    return ((g + 1) * extent - 1) / 2


cdef inline float reflected(const grid_t* p, float position, Py_ssize_t extent) noexcept nogil:
    """Reflect at the centres of the outer pixels, or at their edges without align_corners."""
    cdef float low = 0 if p.align_corners else -0.5
    cdef float span = extent - 1 if p.align_corners else extent
    cdef float rest
    if span <= 0:
        return 0
    position = fabsf(position - low)
    if p.n_axes == 2:
        rest = position / (2 * span)
        # Truncate without a function call, so that the loop vectorises.
        rest = <float> <int32_t> (rest if rest < EXACT else <float> 0) if rest < EXACT else rest
        rest = position - rest * (2 * span)
    else:
        rest = fmodf(position, 2 * span)
    return (rest if rest <= span or rest != rest else 2 * span - rest) + low


cdef inline float padded(const grid_t* p, float position, Py_ssize_t extent) noexcept nogil:
    """Move a position into the image, if the padding is not zeros."""
    if p.padding == ZEROS:
        return position
    if p.padding == REFLECTION:
        position = reflected(p, position, extent)
    if position != position:
        # PyTorch's kernels for planes and for volumes differ here.
        return 0 if p.n_axes == 2 else extent - 1
    return min(max(position, <float> 0), <float> (extent - 1))


cdef void grid_run(
    const void* params, char* const* slots, Py_ssize_t shard, Py_ssize_t n_shards
) noexcept nogil:
    """Pixels interpolated at the positions of a grid.

    Layout : x (n, h, w, c), grid (n, points, axes) -> y (n, points, c), any pixel strides
    Needs  : grid in C order
    Threads: over points
    Source : torch.nn.functional.grid_sample
    """
    cdef const grid_t* p = <const grid_t*> params
    cdef const float* x = <const float*> at(slots, p.x)
    cdef const float* grid = <const float*> at(slots, p.grid)
    cdef float* scratch = <float*> at(slots, p.scratch)
    cdef float* y = <float*> at(slots, p.y)
    cdef const float* image
    cdef float* target
    cdef float[MAX_AXES] position
    cdef Py_ssize_t total = p.batch * p.points, size = p.row_stride, q, axis
    cdef bint is_finite
    for axis in range(p.n_axes):
        size *= p.extents[axis]
    for q in range(shard_start(total, shard, n_shards), shard_start(total, shard + 1, n_shards)):
        image = x + q // p.points * size
        target = y + q * p.ldy
        is_finite = True
        for axis in range(p.n_axes):
            position[axis] = unnormalized(p, grid[(q + 1) * p.n_axes - 1 - axis], p.extents[axis])
            if p.mode != CUBIC:
                position[axis] = padded(p, position[axis], p.extents[axis])
            is_finite = is_finite and isfinite(position[axis])
        if not is_finite and p.n_axes == 2 and p.mode != NEAREST:
            fill(target, p.channels, NAN)
        elif p.mode == NEAREST:
            sample_nearest(p, image, position, target)
        elif p.mode == LINEAR:
            sample_linear(p, image, position, scratch, target)
        else:
            sample_cubic(p, image, position, scratch, target)


cdef inline void sample_nearest(
    const grid_t* p, const float* image, const float* position, float* y
) noexcept nogil:
    cdef Py_ssize_t index = 0, axis, c
    cdef float nearest
    for axis in range(p.n_axes):
        nearest = rintf(position[axis])
        if not (nearest >= 0 and nearest < p.extents[axis]):
            memset(y, 0, p.channels * sizeof(float))
            return
        index = index * p.extents[axis] + <Py_ssize_t> nearest
    image += index * p.row_stride
    for c in range(p.channels):
        y[c] = image[c]


cdef inline void sample_linear(
    const grid_t* p, const float* image, const float* position, float* scratch, float* y
) noexcept nogil:
    """Interpolate four pixels of a plane, or of each of two planes, whose sums are then added."""
    cdef Py_ssize_t rows = p.extents[p.n_axes - 2], columns = p.extents[p.n_axes - 1]
    cdef taps_t plane, row, column
    cdef pixels_t pixels, sums
    cdef int k
    linear_taps(position[p.n_axes - 2], rows, &row)
    linear_taps(position[p.n_axes - 1], columns, &column)
    if p.n_axes == 2:
        cross(image, columns, p.row_stride, &row, &column, 1, &pixels)
        add_up(p.kernels, &pixels, y, p.channels)
        return
    linear_taps(position[0], p.extents[0], &plane)
    sums.n = plane.n if row.n * column.n else 0
    for k in range(sums.n):
        cross(
            image + plane.index[k] * rows * columns * p.row_stride, columns, p.row_stride, &row,
            &column, plane.weight[k], &pixels,
        )
        add_up(p.kernels, &pixels, scratch + k * p.channels, p.channels)
        sums.pixel[k], sums.weight[k] = scratch + k * p.channels, 1
    add_up(p.kernels, &sums, y, p.channels)


cdef inline void cubic_taps(
    const grid_t* p, float position, Py_ssize_t extent, taps_t* taps
) noexcept nogil:
    """Find up to four pixels of one axis; the padding applies to each."""
    cdef float below = floorf(position), t = position - floorf(position), u = 1 - t, tap
    cdef float a = -0.75
    cdef float[MAX_TAPS] w
    cdef int i
    w[0] = ((a * (t + 1) - 5 * a) * (t + 1) + 8 * a) * (t + 1) - 4 * a
    w[1] = ((a + 2) * t - (a + 3)) * t * t + 1
    w[2] = ((a + 2) * u - (a + 3)) * u * u + 1
    w[3] = ((a * (u + 1) - 5 * a) * (u + 1) + 8 * a) * (u + 1) - 4 * a
    taps.n = 0
    for i in range(4):
        tap = padded(p, below + (i - 1), extent)
        if tap >= 0 and tap < extent:
            add_tap(taps, <Py_ssize_t> tap, w[i])


cdef inline void sample_cubic(
    const grid_t* p, const float* image, const float* position, float* scratch, float* y
) noexcept nogil:
    """Interpolate up to four rows along their columns, then across the rows."""
    cdef taps_t row, column
    cdef pixels_t pixels, sums
    cdef int i, j
    cubic_taps(p, position[0], p.extents[0], &row)
    cubic_taps(p, position[1], p.extents[1], &column)
    pixels.n = column.n
    sums.n = row.n if column.n else 0
    for i in range(sums.n):
        for j in range(column.n):
            pixels.pixel[j] = image + (row.index[i] * p.extents[1] + column.index[j]) * p.row_stride
            pixels.weight[j] = column.weight[j]
        add_up(p.kernels, &pixels, scratch + i * p.channels, p.channels)
        sums.pixel[i], sums.weight[i] = scratch + i * p.channels, row.weight[i]
    add_up(p.kernels, &sums, y, p.channels)


# -- grids over few channels -------------------------------------------------------------------

cdef struct planes_t:
    const kernels_t* kernels
    ref_t x
    ref_t grid
    ref_t y
    Py_ssize_t batch
    Py_ssize_t channels
    Py_ssize_t points            # per image of the output
    Py_ssize_t x_image           # strides, in elements, from here on
    Py_ssize_t x_channel
    Py_ssize_t y_image
    Py_ssize_t y_channel
    Py_ssize_t y_pixel
    int mode
    int padding
    int n_axes
    grid_axis_t[GRID_AXES] axes


cdef class GridPlanesStep(Step):
    """Samples an image of few channels at the positions of a grid, a channel at a time.

    Parameters
    ----------
    x : TensorView, shape (n, c, pixels)
        In any layout; all pixels are less than 2^31 elements from the first one.
    grid : TensorView, shape (n, points, axes), C order
        Positions from -1 to 1, the innermost axis first.
    y : TensorView, shape (n, c, points)
        In any layout.
    extents : tuple of int
        The two or three spatial extents of the input, at most 2^22.
    mode, padding : str
        Keys of `MODES` and `PADDINGS`; ``"nearest"`` or ``"bilinear"``.
    align_corners : bool
    """

    cdef planes_t p

    def __init__(self, x, grid, y, extents, mode, padding, align_corners):
        cdef grid_axis_t* axis = self.p.axes
        self.p.kernels = active()
        self.p.x, self.p.grid, self.p.y = self.ref(x), self.ref(grid), self.ref(y)
        self.p.batch, self.p.channels, self.p.points = y.shape
        self.p.x_image, self.p.x_channel, stride = x.strides
        self.p.y_image, self.p.y_channel, self.p.y_pixel = y.strides
        self.p.n_axes = len(extents)
        for extent in reversed(extents):
            axis.extent, axis.stride = extent, stride
            stride *= extent
            # PyTorch's formulas for planes and for volumes, which differ by a factor of 2.
            axis.span = extent - 1 if align_corners else extent
            axis.scale = axis.span / 2
            axis.shift = 0 if align_corners else 0.5
            axis.low = 0 if align_corners else -0.5
            axis += 1
        self.p.mode, self.p.padding = MODES[mode], PADDINGS[padding]
        self.run = planes_run
        self.params = &self.p
        self.kind = "grid_sample"
        self.flops = 2.0 * y.size * (1, 2)[self.p.mode] ** self.p.n_axes
        self.bytes = float(x.n_bytes + grid.n_bytes + y.n_bytes)
        self.max_shards = max(min(self.p.batch * self.p.points, y.size // SHARD_FLOATS), 1)


cdef void planes_run(
    const void* params, char* const* slots, Py_ssize_t shard, Py_ssize_t n_shards
) noexcept nogil:
    """Pixels of few channels, interpolated at the positions of a grid.

    Layout : x (n, c, pixels), grid (n, points, axes) -> y (n, c, points)
    Needs  : grid in C order
    Threads: over points
    Source : torch.nn.functional.grid_sample
    """
    cdef const planes_t* p = <const planes_t*> params
    cdef const float* x = <const float*> at(slots, p.x)
    cdef const float* grid = <const float*> at(slots, p.grid)
    cdef float* y = <float*> at(slots, p.y)
    cdef float* target
    cdef float outside
    cdef grid_block_t block
    cdef Py_ssize_t total = p.batch * p.points, q = shard_start(total, shard, n_shards)
    cdef Py_ssize_t stop = shard_start(total, shard + 1, n_shards), n, i, c
    while q < stop:
        n = min(min(stop - q, <Py_ssize_t> GRID_BLOCK), p.points - q % p.points)
        p.kernels.f32_locate_points(
            p.mode, p.padding, p.n_axes, p.axes, grid + q * p.n_axes, n, &block
        )
        target = y + q // p.points * p.y_image + q % p.points * p.y_pixel
        p.kernels.f32_grid_read(
            p.mode, p.n_axes, p.channels, &block, n, x + q // p.points * p.x_image, p.x_channel,
            target, p.y_channel, p.y_pixel,
        )
        if not block.all_inside:
            for i in range(n):
                if block.is_inside[i] == 0 or block.is_number[i] == 0:
                    # PyTorch returns NaN for a NaN position in a plane, 0 in a volume.
                    outside = 0
                    if block.is_number[i] == 0 and p.n_axes == 2 and p.mode == LINEAR:
                        outside = NAN
                    for c in range(p.channels):
                        target[c * p.y_channel + i * p.y_pixel] = outside
        q += n


include "roi_align.pxi"
include "deform.pxi"
