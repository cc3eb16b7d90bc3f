# Means and maxima over cells of regions of interest.  Included by sample.pyx.

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
    Py_ssize_t row_stride        # of pixels of x, in elements
    Py_ssize_t n_boxes
    Py_ssize_t out_rows
    Py_ssize_t out_columns
    Py_ssize_t ldy               # of pixels of y
    float scale                  # pixels per unit of the boxes
    int ratio                    # points along each axis of a cell, or <= 0: one per pixel
    bint aligned                 # pixel centres are at 0.5, 1.5, ...
    bint maximum                 # of the weighted pixels around the points, instead of the mean


cdef class RoiAlignStep(Step):
    """Divides regions of images into cells and averages points inside each cell.

    With `maximum`, a cell has the largest of its weighted pixels: each point weighs four pixels, of
    which some have the weight 0, and so do those of points outside of the image.

    Parameters
    ----------
    x : TensorView, shape (n, c, rows, columns), channels-last
    boxes : TensorView, shape (k, 5), C order
        Index of the image, then left, top, right and bottom.
    y : TensorView, shape (k, c, out_rows, out_columns), channels-last
    scale : float
        Pixels per unit of the boxes.
    ratio : int
        Points along each axis of a cell; if <= 0, as many as the cell has pixels.
    aligned : bool
        Whether pixel centres are at 0.5, 1.5, ...
    scratch : TensorView
        ``4 * c`` bytes.
    maximum : bool
    """

    cdef roi_t p

    def __init__(self, x, boxes, y, scale, ratio, aligned, scratch, maximum=False):
        self.p.kernels = active()
        self.p.x, self.p.boxes, self.p.y = self.ref(x), self.ref(boxes), self.ref(y)
        self.p.scratch = self.ref(scratch)
        self.p.batch, self.p.channels, self.p.rows, self.p.columns = x.shape
        self.p.n_boxes, _, self.p.out_rows, self.p.out_columns = y.shape
        self.p.row_stride, self.p.ldy = x.row_stride, y.row_stride
        self.p.scale, self.p.ratio, self.p.aligned = scale, ratio, aligned
        self.p.maximum = maximum
        self.run = roi_run
        self.params = &self.p
        self.kind = "roi_align"
        self.flops = 8.0 * y.size * max(ratio, 1) ** 2
        self.bytes = float(x.n_bytes + y.n_bytes)
        cells = self.p.n_boxes * self.p.out_rows * self.p.out_columns
        self.max_shards = max(min(cells, y.size // SHARD_FLOATS), 1)


cdef inline void roi_taps(float position, Py_ssize_t extent, taps_t* taps) noexcept nogil:
    """Find the two pixels around a position; beyond the border, the outer pixel alone."""
    cdef Py_ssize_t below
    cdef float weight
    taps.n = 0
    if not (position >= -1 and position <= extent):
        return
    position = max(position, <float> 0)
    below = <Py_ssize_t> position
    if below >= extent - 1:
        add_tap(taps, extent - 1, 1)
        return
    weight = position - below
    add_tap(taps, below, 1 - weight)
    add_tap(taps, below + 1, weight)


cdef inline Py_ssize_t points_along(float size) noexcept nogil:
    """Return the number of points along an axis of a cell: one per pixel."""
    return <Py_ssize_t> min(max(ceilf(size), <float> 0), <float> 1e9)


cdef inline void points_inside(
    float start, float step, Py_ssize_t extent, Py_ssize_t count, Py_ssize_t* first,
    Py_ssize_t* last
) noexcept nogil:
    """Find a range of the `count` points with all that lie in the image: huge boxes are cheap."""
    cdef float low, high
    first[0], last[0] = 0, count
    if step > 0:
        low = (-1 - start) / step - 2
        high = (extent - start) / step + 2
        if low > 0:
            first[0] = count if low >= count else <Py_ssize_t> low
        if high < count:
            last[0] = 0 if high <= 0 else <Py_ssize_t> high


cdef inline void grow(float* y, const pixels_t* pixels, Py_ssize_t channels) noexcept nogil:
    """Raise values to the largest of weighted pixels; of less than four, others weigh 0."""
    cdef int i
    cdef Py_ssize_t c
    for i in range(pixels.n):
        for c in range(channels):
            y[c] = max(y[c], pixels.weight[i] * pixels.pixel[i][c])
    if pixels.n < 4:
        grow_to_zero(y, channels)


cdef inline void grow_to_zero(float* y, Py_ssize_t channels) noexcept nogil:
    cdef Py_ssize_t c
    for c in range(channels):
        y[c] = max(y[c], <float> 0)


cdef void roi_run(
    const void* params, char* const* slots, Py_ssize_t shard, Py_ssize_t n_shards
) noexcept nogil:
    """Means of points inside the cells of boxes, or maxima of their weighted pixels.

    Layout : x (n, h, w, c), boxes (k, 5) -> y (k, oh, ow, c), any pixel strides
    Needs  : boxes in C order; a box with an invalid image index yields NaN
    Threads: over cells
    Source : torchvision.ops.roi_align; onnx/reference/ops/op_roi_align.py for maxima
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
    cdef taps_t row, column
    cdef pixels_t pixels
    cdef float top, left, height, width, shift = 0.5 if p.aligned else 0
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
        if p.maximum:
            fill(y + q * p.ldy, p.channels, -INFINITY)
            if i1 - i0 < n_i or j1 - j0 < n_j:
                grow_to_zero(y + q * p.ldy, p.channels)
        for i in range(i0, i1):
            roi_taps(top + (i + <float> 0.5) * height / n_i, p.rows, &row)
            if row.n == 0:
                if p.maximum:
                    grow_to_zero(y + q * p.ldy, p.channels)
                continue
            for j in range(j0, j1):
                roi_taps(left + (j + <float> 0.5) * width / n_j, p.columns, &column)
                if column.n == 0:
                    if p.maximum:
                        grow_to_zero(y + q * p.ldy, p.channels)
                    continue
                cross(image, p.columns, p.row_stride, &row, &column, 1, &pixels)
                if p.maximum:
                    grow(y + q * p.ldy, &pixels, p.channels)
                    continue
                add_up(p.kernels, &pixels, sums, p.channels)
                for c in range(p.channels):
                    y[q * p.ldy + c] += sums[c]
        if p.maximum:
            continue
        for c in range(p.channels):
            y[q * p.ldy + c] /= <float> n_i * <float> n_j
