"""Images read at places that are computed at run time: grids, regions, deformed windows.

All images are channels-last, but those of few channels that a grid names places in.  A place
between pixels is a weighted sum of those around it: of the pixels inside the image alone, so that
what lies outside cannot spoil a result (0 * infinity).
"""

from libc.math cimport ceilf, fabsf, floorf, fmodf, isfinite, NAN, rintf
from libc.stdint cimport int32_t
from libc.string cimport memset

from kuiper._kernels.micro.dispatch cimport active
from kuiper._runtime.step cimport Step, at, ref_t, shard_start
from kuiper._kernels.micro.table cimport GRID_AXES, GRID_BLOCK, grid_axis_t, grid_block_t, kernels_t

cdef enum:
    SHARD_FLOATS = 4096      # a shard that writes less is not worth another thread
    MAX_AXES = 3
    FEW = 8                  # channels that are not worth the call of a micro-kernel
    EXACT = 8388608          # floats from here on are whole

# How a place becomes pixels; the first two, and what lies outside, are numbered as in
# _kernels/micro/table.pxd.
cdef enum:
    NEAREST
    LINEAR
    CUBIC

# What lies outside the image.
cdef enum:
    ZEROS
    BORDER
    REFLECTION

MODES = {"nearest": NEAREST, "bilinear": LINEAR, "bicubic": CUBIC}
PADDINGS = {"zeros": ZEROS, "border": BORDER, "reflection": REFLECTION}


cdef inline void add_up(
    const kernels_t* kernels, int n, const float** taps, float* weights, float* y,
    Py_ssize_t channels,
) noexcept nogil:
    """y = the weighted sum of up to four pixels; both arrays have room for four."""
    cdef Py_ssize_t c
    cdef int k
    if n == 0:
        memset(y, 0, channels * sizeof(float))
        return
    if channels < FEW:
        for c in range(channels):
            y[c] = weights[0] * taps[0][c]
        for k in range(1, n):
            for c in range(channels):
                y[c] += weights[k] * taps[k][c]
        return
    # The micro-kernel takes two or four: one pixel is split into halves, which is exact.
    if n == 1 or n == 3:
        weights[n - 1] *= 0.5
        weights[n] = weights[n - 1]
        taps[n] = taps[n - 1]
        n += 1
    kernels.f32_resize_rows(n, taps, weights, y, channels)


cdef inline void fill(float* y, Py_ssize_t channels, float value) noexcept nogil:
    cdef Py_ssize_t c
    for c in range(channels):
        y[c] = value


cdef inline int neighbours(
    float place, Py_ssize_t extent, Py_ssize_t* index, float* weight
) noexcept nogil:
    """Find the pixels of one axis on both sides of a place; those outside are left out."""
    cdef float below
    cdef int n = 0
    if not (place > -1 and place < extent):
        return 0
    below = floorf(place)
    if below >= 0:
        index[n] = <Py_ssize_t> below
        weight[n] = 1 - (place - below)
        n += 1
    if below + 1 < extent:
        index[n] = <Py_ssize_t> below + 1
        weight[n] = place - below
        n += 1
    return n


# -- grids -------------------------------------------------------------------------------------

cdef struct grid_t:
    const kernels_t* kernels
    ref_t x
    ref_t grid
    ref_t y
    ref_t scratch
    Py_ssize_t batch
    Py_ssize_t channels
    Py_ssize_t points            # of an image of the output
    Py_ssize_t row_stride
    Py_ssize_t ldy
    int n_axes
    Py_ssize_t[MAX_AXES] extents    # of the input, outermost axis first
    int mode
    int padding
    bint align_corners


cdef class GridSampleStep(Step):
    """Reads an image at the places that a grid names.

    Parameters
    ----------
    x : TensorView, shape (n, c, rows, columns), channels-last
        Depth and height of a volume as one axis of rows.
    grid : TensorView, shape (n, points, axes), C order
        Places from -1 to 1, the innermost axis first.
    y : TensorView, shape (n, c, rows, columns), channels-last
        One pixel for each point.
    extents : tuple of int
        Two or three: those of the spatial axes of the input.
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
    """Turn -1 to 1 into a pixel's number, in PyTorch's order of operations."""
    if p.n_axes == 2:
        if p.align_corners:
            return (g + 1) * (<float> (extent - 1) / 2)
        return (g + 1) * (<float> extent / 2) - <float> 0.5
    if p.align_corners:
        return ((g + 1) / 2) * (extent - 1)
    return ((g + 1) * extent - 1) / 2


cdef inline float reflected(const grid_t* p, float place, Py_ssize_t extent) noexcept nogil:
    """Reflect at the outer pixels' centres, or at their outer edges without align_corners."""
    cdef float low = 0 if p.align_corners else -0.5
    cdef float span = extent - 1 if p.align_corners else extent
    cdef float rest
    if span <= 0:
        return 0
    place = fabsf(place - low)
    if p.n_axes == 2:
        rest = place / (2 * span)
        # Without a call of a function, so that places are reflected several at a time.
        rest = <float> <int32_t> (rest if rest < EXACT else <float> 0) if rest < EXACT else rest
        rest = place - rest * (2 * span)
    else:
        rest = fmodf(place, 2 * span)
    return (rest if rest <= span or rest != rest else 2 * span - rest) + low


cdef inline float padded(const grid_t* p, float place, Py_ssize_t extent) noexcept nogil:
    """Bring a place into the image, if the padding says so."""
    if p.padding == ZEROS:
        return place
    if p.padding == REFLECTION:
        place = reflected(p, place, extent)
    if place != place:
        # PyTorch's kernels for planes and for volumes differ here.
        return 0 if p.n_axes == 2 else extent - 1
    return min(max(place, <float> 0), <float> (extent - 1))


cdef void grid_run(
    const void* params, char* const* slots, Py_ssize_t shard, Py_ssize_t n_shards
) noexcept nogil:
    """Pixels at computed places.

    Layout : x (n, h, w, c), grid (n, points, axes) -> y (n, points, c), pixels pitched
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
    cdef float[MAX_AXES] place
    cdef Py_ssize_t total = p.batch * p.points, size = p.row_stride, q, axis
    cdef bint is_finite
    for axis in range(p.n_axes):
        size *= p.extents[axis]
    for q in range(shard_start(total, shard, n_shards), shard_start(total, shard + 1, n_shards)):
        image = x + q // p.points * size
        target = y + q * p.ldy
        is_finite = True
        for axis in range(p.n_axes):
            place[axis] = unnormalized(p, grid[(q + 1) * p.n_axes - 1 - axis], p.extents[axis])
            if p.mode != CUBIC:
                place[axis] = padded(p, place[axis], p.extents[axis])
            is_finite = is_finite and isfinite(place[axis])
        if not is_finite and p.n_axes == 2 and p.mode != NEAREST:
            fill(target, p.channels, NAN)
        elif p.mode == NEAREST:
            sample_nearest(p, image, place, target)
        elif p.mode == LINEAR:
            sample_linear(p, image, place, scratch, target)
        else:
            sample_cubic(p, image, place, scratch, target)


cdef inline void sample_nearest(
    const grid_t* p, const float* image, const float* place, float* y
) noexcept nogil:
    cdef Py_ssize_t index = 0, axis, c
    cdef float nearest
    for axis in range(p.n_axes):
        nearest = rintf(place[axis])
        if not (nearest >= 0 and nearest < p.extents[axis]):
            memset(y, 0, p.channels * sizeof(float))
            return
        index = index * p.extents[axis] + <Py_ssize_t> nearest
    image += index * p.row_stride
    for c in range(p.channels):
        y[c] = image[c]


cdef inline void sample_linear(
    const grid_t* p, const float* image, const float* place, float* scratch, float* y
) noexcept nogil:
    """Four pixels of a plane, or those of two planes one after the other."""
    cdef Py_ssize_t rows = p.extents[p.n_axes - 2], columns = p.extents[p.n_axes - 1]
    cdef Py_ssize_t[2] row
    cdef Py_ssize_t[2] column
    cdef Py_ssize_t[2] plane
    cdef float[2] row_weight
    cdef float[2] column_weight
    cdef float[2] plane_weight
    cdef (const float*)[4] taps
    cdef (const float*)[4] sums
    cdef float[4] weights
    cdef int n_planes = 1, n_rows, n_columns, n, i, j, k
    plane[0] = 0
    plane_weight[0] = 1
    if p.n_axes == 3:
        n_planes = neighbours(place[0], p.extents[0], plane, plane_weight)
    n_rows = neighbours(place[p.n_axes - 2], rows, row, row_weight)
    n_columns = neighbours(place[p.n_axes - 1], columns, column, column_weight)
    if n_planes * n_rows * n_columns == 0:
        memset(y, 0, p.channels * sizeof(float))
        return
    for k in range(n_planes):
        n = 0
        for i in range(n_rows):
            for j in range(n_columns):
                taps[n] = image + ((plane[k] * rows + row[i]) * columns + column[j]) * p.row_stride
                weights[n] = row_weight[i] * column_weight[j] * plane_weight[k]
                n += 1
        sums[k] = scratch + k * p.channels
        add_up(
            p.kernels, n, taps, weights, y if n_planes == 1 else scratch + k * p.channels,
            p.channels,
        )
    if n_planes == 2:
        weights[0] = weights[1] = 1
        add_up(p.kernels, 2, sums, weights, y, p.channels)


cdef inline int cubic_taps(
    const grid_t* p, float place, Py_ssize_t extent, Py_ssize_t* index, float* weight
) noexcept nogil:
    """Find up to four pixels of one axis; the padding applies to each."""
    cdef float below = floorf(place), t = place - floorf(place), u = 1 - t, tap
    cdef float a = -0.75
    cdef float[4] w
    cdef int n = 0, i
    w[0] = ((a * (t + 1) - 5 * a) * (t + 1) + 8 * a) * (t + 1) - 4 * a
    w[1] = ((a + 2) * t - (a + 3)) * t * t + 1
    w[2] = ((a + 2) * u - (a + 3)) * u * u + 1
    w[3] = ((a * (u + 1) - 5 * a) * (u + 1) + 8 * a) * (u + 1) - 4 * a
    for i in range(4):
        tap = padded(p, below + (i - 1), extent)
        if tap >= 0 and tap < extent:
            index[n] = <Py_ssize_t> tap
            weight[n] = w[i]
            n += 1
    return n


cdef inline void sample_cubic(
    const grid_t* p, const float* image, const float* place, float* scratch, float* y
) noexcept nogil:
    """Sums along the columns of up to four rows, then across the rows."""
    cdef Py_ssize_t[4] row
    cdef Py_ssize_t[4] column
    cdef float[4] row_weight
    cdef float[4] column_weight
    cdef (const float*)[4] taps
    cdef (const float*)[4] sums
    cdef float[4] weights
    cdef int n_rows = cubic_taps(p, place[0], p.extents[0], row, row_weight)
    cdef int n_columns = cubic_taps(p, place[1], p.extents[1], column, column_weight), i, j
    if n_columns == 0:
        n_rows = 0
    for i in range(n_rows):
        for j in range(n_columns):
            taps[j] = image + (row[i] * p.extents[1] + column[j]) * p.row_stride
            weights[j] = column_weight[j]
        add_up(p.kernels, n_columns, taps, weights, scratch + i * p.channels, p.channels)
        sums[i] = scratch + i * p.channels
    add_up(p.kernels, n_rows, sums, row_weight, y, p.channels)


# -- grids over few channels -------------------------------------------------------------------

cdef struct planes_t:
    const kernels_t* kernels
    ref_t x
    ref_t grid
    ref_t y
    Py_ssize_t batch
    Py_ssize_t channels
    Py_ssize_t points            # of an image of the output
    Py_ssize_t x_image           # strides, in elements
    Py_ssize_t x_channel
    Py_ssize_t y_image
    Py_ssize_t y_channel
    Py_ssize_t y_pixel
    int mode
    int padding
    int n_axes
    grid_axis_t[GRID_AXES] axes


cdef class GridPlanesStep(Step):
    """Reads an image of few channels at the places that a grid names, a channel at a time.

    Parameters
    ----------
    x : TensorView, shape (n, c, pixels)
        In any layout; no pixel lies 2^31 elements from the first one.
    grid : TensorView, shape (n, points, axes), C order
        Places from -1 to 1, the innermost axis first.
    y : TensorView, shape (n, c, points)
        In any layout.
    extents : tuple of int
        Two or three: those of the spatial axes of the input, none above 2^22.
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
            # Those of PyTorch's formulas, for planes and for volumes, up to a factor of 2.
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
    """Pixels at computed places, where there are few channels.

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
                    # In planes, not in volumes, PyTorch has NaN for a place that is none.
                    outside = 0
                    if block.is_number[i] == 0 and p.n_axes == 2 and p.mode == LINEAR:
                        outside = NAN
                    for c in range(p.channels):
                        target[c * p.y_channel + i * p.y_pixel] = outside
        q += n


# -- regions -----------------------------------------------------------------------------------

cdef struct roi_t:
    const kernels_t* kernels
    ref_t x
    ref_t boxes
    ref_t y
    ref_t scratch
    Py_ssize_t batch
    Py_ssize_t channels
    Py_ssize_t rows
    Py_ssize_t columns
    Py_ssize_t row_stride
    Py_ssize_t n_boxes
    Py_ssize_t out_rows
    Py_ssize_t out_columns
    Py_ssize_t ldy
    float scale
    int ratio
    bint aligned


cdef class RoiAlignStep(Step):
    """Means of points inside the cells of regions of images.

    Parameters
    ----------
    x : TensorView, shape (n, c, rows, columns), channels-last
    boxes : TensorView, shape (k, 5), C order
        Number of the image, then left, top, right and bottom.
    y : TensorView, shape (k, c, out_rows, out_columns), channels-last
    scale : float
        From the boxes' units to pixels.
    ratio : int
        Points along each axis of a cell; as many as it has pixels where this is not above 0.
    aligned : bool
        Whether pixels' centres lie at halves.
    scratch : TensorView
        ``4 * c`` bytes.
    """

    cdef roi_t p

    def __init__(self, x, boxes, y, scale, ratio, aligned, scratch):
        self.p.kernels = active()
        self.p.x, self.p.boxes, self.p.y = self.ref(x), self.ref(boxes), self.ref(y)
        self.p.scratch = self.ref(scratch)
        self.p.batch, self.p.channels, self.p.rows, self.p.columns = x.shape
        self.p.n_boxes, _, self.p.out_rows, self.p.out_columns = y.shape
        self.p.row_stride, self.p.ldy = x.row_stride, y.row_stride
        self.p.scale, self.p.ratio, self.p.aligned = scale, ratio, aligned
        self.run = roi_run
        self.params = &self.p
        self.kind = "roi_align"
        self.flops = 8.0 * y.size * max(ratio, 1) ** 2
        self.bytes = float(x.n_bytes + y.n_bytes)
        cells = self.p.n_boxes * self.p.out_rows * self.p.out_columns
        self.max_shards = max(min(cells, y.size // SHARD_FLOATS), 1)


cdef inline int roi_taps(
    float place, Py_ssize_t extent, Py_ssize_t* index, float* weight
) noexcept nogil:
    """Find the two pixels around a place; beyond the outer ones these stand for both."""
    cdef Py_ssize_t below
    if not (place >= -1 and place <= extent):
        return 0
    place = max(place, <float> 0)
    below = <Py_ssize_t> place
    if below >= extent - 1:
        index[0] = extent - 1
        weight[0] = 1
        return 1
    index[0], index[1] = below, below + 1
    weight[1] = place - below
    weight[0] = 1 - weight[1]
    return 2


cdef inline Py_ssize_t points_along(float size) noexcept nogil:
    """Return how many points a cell has along an axis: one for each pixel."""
    return <Py_ssize_t> min(max(ceilf(size), <float> 0), <float> 1e9)


cdef inline void points_inside(
    float start, float step, Py_ssize_t extent, Py_ssize_t count, Py_ssize_t* first,
    Py_ssize_t* last
) noexcept nogil:
    """Narrow down which of `count` points may lie in the image, so that a huge box costs little."""
    cdef float low, high
    first[0], last[0] = 0, count
    if step > 0:
        low = (-1 - start) / step - 2
        high = (extent - start) / step + 2
        if low > 0:
            first[0] = count if low >= count else <Py_ssize_t> low
        if high < count:
            last[0] = 0 if high <= 0 else <Py_ssize_t> high


cdef void roi_run(
    const void* params, char* const* slots, Py_ssize_t shard, Py_ssize_t n_shards
) noexcept nogil:
    """Means of points inside cells.

    Layout : x (n, h, w, c), boxes (k, 5) -> y (k, oh, ow, c), pixels pitched
    Needs  : boxes in C order; a box of no image gets NaN
    Threads: over cells
    Source : torchvision.ops.roi_align
    """
    cdef const roi_t* p = <const roi_t*> params
    cdef const float* x = <const float*> at(slots, p.x)
    cdef const float* boxes = <const float*> at(slots, p.boxes)
    cdef const float* box
    cdef const float* image
    cdef float* sums = <float*> at(slots, p.scratch)
    cdef float* y = <float*> at(slots, p.y)
    cdef Py_ssize_t cells = p.out_rows * p.out_columns, total = p.n_boxes * cells
    cdef Py_ssize_t q, i, j, c, n_i, n_j, i0, i1, j0, j1
    cdef Py_ssize_t[2] row
    cdef Py_ssize_t[2] column
    cdef float[2] row_weight
    cdef float[2] column_weight
    cdef (const float*)[4] taps
    cdef float[4] weights
    cdef float top, left, height, width, shift = 0.5 if p.aligned else 0
    cdef int n, n_rows, n_columns, a, b
    for q in range(shard_start(total, shard, n_shards), shard_start(total, shard + 1, n_shards)):
        box = boxes + q // cells * 5
        left, top = box[1] * p.scale - shift, box[2] * p.scale - shift
        width = box[3] * p.scale - shift - left
        height = box[4] * p.scale - shift - top
        if not (box[0] > -1 and box[0] < p.batch and isfinite(left + top + width + height)):
            fill(y + q * p.ldy, p.channels, NAN)
            continue
        if not p.aligned:
            width, height = max(width, <float> 1), max(height, <float> 1)
        image = x + <Py_ssize_t> box[0] * p.rows * p.columns * p.row_stride
        height /= p.out_rows
        width /= p.out_columns
        n_i = p.ratio if p.ratio > 0 else points_along(height)
        n_j = p.ratio if p.ratio > 0 else points_along(width)
        top += q % cells // p.out_columns * height
        left += q % p.out_columns * width
        memset(y + q * p.ldy, 0, p.channels * sizeof(float))
        if n_i <= 0 or n_j <= 0:
            continue
        points_inside(top, height / n_i, p.rows, n_i, &i0, &i1)
        points_inside(left, width / n_j, p.columns, n_j, &j0, &j1)
        for i in range(i0, i1):
            n_rows = roi_taps(top + (i + <float> 0.5) * height / n_i, p.rows, row, row_weight)
            if n_rows == 0:
                continue
            for j in range(j0, j1):
                n_columns = roi_taps(
                    left + (j + <float> 0.5) * width / n_j, p.columns, column, column_weight
                )
                if n_columns == 0:
                    continue
                n = 0
                for a in range(n_rows):
                    for b in range(n_columns):
                        taps[n] = image + (row[a] * p.columns + column[b]) * p.row_stride
                        weights[n] = row_weight[a] * column_weight[b]
                        n += 1
                add_up(p.kernels, n, taps, weights, sums, p.channels)
                for c in range(p.channels):
                    y[q * p.ldy + c] += sums[c]
        for c in range(p.channels):
            y[q * p.ldy + c] /= <float> n_i * <float> n_j


# -- deformed windows --------------------------------------------------------------------------

cdef struct deform_t:
    const kernels_t* kernels
    ref_t x
    ref_t offset
    ref_t mask
    ref_t y
    Py_ssize_t batch
    Py_ssize_t channels
    Py_ssize_t rows
    Py_ssize_t columns
    Py_ssize_t out_rows
    Py_ssize_t out_columns
    Py_ssize_t row_stride
    Py_ssize_t ld_offset
    Py_ssize_t ld_mask
    bint has_mask
    Py_ssize_t groups            # of the convolution
    Py_ssize_t deformed          # groups of channels with offsets of their own
    Py_ssize_t[2] taps
    Py_ssize_t[2] stride
    Py_ssize_t[2] padding
    Py_ssize_t[2] dilation


cdef class DeformStep(Step):
    """Reads the windows of a convolution, each tap moved by an offset of its own.

    Parameters
    ----------
    x : TensorView, shape (n, c, rows, columns), channels-last
    offset : TensorView, shape (n, 2 * deformed * taps, out_rows, out_columns), channels-last
        Down and to the right, for each group of channels and tap.
    mask : TensorView or None
        As `offset`, one factor each.
    y : TensorView, shape (n * out_rows * out_columns, groups, taps, c / groups), C order
    groups, deformed : int
    kernel_size, stride, padding, dilation : tuple of two int
    """

    cdef deform_t p

    def __init__(
        self, x, offset, mask, y, groups, deformed, kernel_size, stride, padding, dilation
    ):
        cdef int i
        self.p.kernels = active()
        self.p.x, self.p.offset, self.p.y = self.ref(x), self.ref(offset), self.ref(y)
        self.p.has_mask = mask is not None
        if self.p.has_mask:
            self.p.mask = self.ref(mask)
            self.p.ld_mask = mask.row_stride
        self.p.batch, self.p.channels, self.p.rows, self.p.columns = x.shape
        self.p.out_rows, self.p.out_columns = offset.shape[2:]
        self.p.row_stride, self.p.ld_offset = x.row_stride, offset.row_stride
        self.p.groups, self.p.deformed = groups, deformed
        for i in range(2):
            self.p.taps[i], self.p.stride[i] = kernel_size[i], stride[i]
            self.p.padding[i], self.p.dilation[i] = padding[i], dilation[i]
        self.run = deform_run
        self.params = &self.p
        self.kind = "deform"
        self.flops = 8.0 * y.size
        self.bytes = float(x.n_bytes + offset.n_bytes + y.n_bytes)
        self.max_shards = max(min(y.shape[0], y.size // SHARD_FLOATS), 1)


cdef void deform_run(
    const void* params, char* const* slots, Py_ssize_t shard, Py_ssize_t n_shards
) noexcept nogil:
    """Windows of pixels at moved places, ready for a matrix product.

    Layout : x (n, h, w, c), offset (n, oh, ow, groups, taps, 2) -> y (n * oh * ow, groups, taps, c)
    Needs  : channels that divide into both kinds of groups
    Threads: over windows
    Source : torchvision.ops.deform_conv2d
    """
    cdef const deform_t* p = <const deform_t*> params
    cdef const float* x = <const float*> at(slots, p.x)
    cdef const float* offset = <const float*> at(slots, p.offset)
    cdef const float* mask = <const float*> at(slots, p.mask) if p.has_mask else NULL
    cdef float* y = <float*> at(slots, p.y)
    cdef float* window
    cdef const float* image
    cdef Py_ssize_t n_taps = p.taps[0] * p.taps[1], planes = p.out_rows * p.out_columns
    cdef Py_ssize_t total = p.batch * planes, q, d, g, k, first, last, at_tap
    cdef Py_ssize_t own = p.channels // p.deformed, group = p.channels // p.groups
    cdef Py_ssize_t[2] row
    cdef Py_ssize_t[2] column
    cdef float[2] row_weight
    cdef float[2] column_weight
    cdef Py_ssize_t[4] pixels
    cdef (const float*)[4] taps
    cdef float[4] factors
    cdef float[4] weights
    cdef float down, right, factor
    cdef int n, n_rows, n_columns, a, b
    for q in range(shard_start(total, shard, n_shards), shard_start(total, shard + 1, n_shards)):
        image = x + q // planes * p.rows * p.columns * p.row_stride
        window = y + q * n_taps * p.channels
        for d in range(p.deformed):
            for k in range(n_taps):
                at_tap = d * n_taps + k
                down = offset[q * p.ld_offset + 2 * at_tap]
                right = offset[q * p.ld_offset + 2 * at_tap + 1]
                factor = mask[q * p.ld_mask + at_tap] if p.has_mask else 1
                down += (
                    q % planes // p.out_columns * p.stride[0] - p.padding[0]
                    + k // p.taps[1] * p.dilation[0]
                )
                right += (
                    q % p.out_columns * p.stride[1] - p.padding[1]
                    + k % p.taps[1] * p.dilation[1]
                )
                n_rows = neighbours(down, p.rows, row, row_weight)
                n_columns = neighbours(right, p.columns, column, column_weight)
                if down != down or right != right:
                    # A place that is no number has no neighbours, but its value is none either.
                    row[0], column[0], n_rows, n_columns = 0, 0, 1, 1
                    row_weight[0], column_weight[0] = NAN, NAN
                n = 0
                for a in range(n_rows):
                    for b in range(n_columns):
                        pixels[n] = (row[a] * p.columns + column[b]) * p.row_stride
                        factors[n] = row_weight[a] * column_weight[b] * factor
                        n += 1
                # The group's channels may belong to several groups of the convolution.
                first = d * own
                while first < (d + 1) * own:
                    g = first // group
                    last = min((d + 1) * own, (g + 1) * group)
                    for a in range(n):
                        taps[a] = image + pixels[a] + first
                        weights[a] = factors[a]
                    add_up(
                        p.kernels, n, taps, weights,
                        window + (g * n_taps + k) * group + first - g * group, last - first,
                    )
                    first = last
