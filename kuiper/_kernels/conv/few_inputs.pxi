# Convolution with few input channels: the inner loop runs along a row of the filter.
#
# A run is a row of the filter over adjacent columns of the image: `run` columns of `unit` elements.

cdef struct few_inputs_t:
    const kernels_t* kernels
    const window_t* window
    ref_t x                      # (n, c, h, w) or (n, h, w, c)
    ref_t weight                 # (panels, 1 + runs * run * unit, nr)
    ref_t y                      # (n, out_h, out_w, out_channels)
    bint to_bfloat16             # else y is float32
    ref_t scratch                # pointers to the runs of a tile, and copies of runs
    Py_ssize_t tile              # offset in the scratch of a tile of floats, for y in bfloat16
    Py_ssize_t image_stride      # of the input, in elements
    Py_ssize_t row_stride
    Py_ssize_t unit              # adjacent elements of one column: 1, or all channels
    Py_ssize_t run               # columns of a run
    Py_ssize_t columns           # input columns that a run covers for all pixels of a tile
    const float* zeros           # (in_w + columns) * unit: a row outside the image
    bint fetches                 # prefetch the output lines of a tile before computing it
    Py_ssize_t out_channels
    epilogue_t epilogue


cdef class FewInputsConvStep(Step):
    """Convolution with few input channels.

    The micro-kernel reads runs in place; only runs that cross the border are copied first.  Tiles
    of an output in bfloat16 are computed in scratch memory and rounded.

    Parameters
    ----------
    x : TensorView
        (n, c, h, w), in C order or channels-last without gaps.
    weight : TensorView
        Panels over receptive fields in the order of the runs.
    y : TensorView
        Channels-last, float32 or bfloat16.
    window : Window
        Its taps are the runs: (dy, dx) of their first column.
    offsets : sequence of int
        Start of each run relative to the pixel's origin, in elements.
    unit, run : int
    out_channels : int
    scratch : TensorView
        :func:`few_inputs_scratch_bytes` for each thread.
    epilogue : Epilogue or None
    """

    cdef few_inputs_t p
    cdef Window window

    def __init__(self, x, weight, y, Window window, offsets, unit, run, out_channels, scratch,
                 epilogue=None):
        cdef Py_ssize_t i
        cdef float[::1] zero_view
        cdef sums_end_t end
        self.window = window
        for i, offset in enumerate(offsets):
            window.w.phases[0].taps[i].offset = offset
        # A run is inside the image only if its last column is.
        window.w.phases[0].max_dx += run - 1
        self.p.kernels = active()
        self.p.window = &window.w
        self.p.x, self.p.weight, self.p.y = self.ref(x), self.ref(weight), self.ref(y)
        self.p.scratch = self.ref(scratch)
        self.p.image_stride, self.p.row_stride = x.strides[0], x.strides[2]
        self.p.unit, self.p.run = unit, run
        self.p.out_channels = out_channels
        self.p.to_bfloat16 = y.dtype == BFLOAT16
        self.p.tile = pointer_bytes(x, y, window.w.in_step_w, len(offsets), run, unit)
        self.p.epilogue = make_epilogue(self, epilogue)
        if self.p.to_bfloat16:
            end = make_sums_end(&self.p.epilogue, epilogue, True)
            self.p.epilogue.pre_activation, self.p.epilogue.post_activation = end.pre, end.post
        self.params = &self.p
        self.kind = "conv_few_inputs"
        mr = active().mr
        if is_by_rows(x.shape[3], y.shape[3], window.w.in_step_w, run):
            self.p.columns = tile_columns(window.w.in_step_w, run)
            zeros = np.zeros((x.shape[3] + self.p.columns) * unit, np.float32)
            zero_view = zeros
            self.p.zeros = &zero_view[0]
            self.keep = zeros
            self.run = few_inputs_rows_run
            self.p.fetches = 4 * y.size > FETCHED_ROW_BYTES and not self.p.to_bfloat16
            self.max_shards = y.shape[0] * y.shape[2] * ceil_div(y.shape[3], mr)
        else:
            self.run = few_inputs_run
            self.max_shards = max(ceil_div(window.max_pixels, mr), 1)


cdef Py_ssize_t tile_columns(Py_ssize_t stride, Py_ssize_t run):
    """Return the number of input columns that a run covers for all pixels of a tile."""
    return (active().mr - 1) * stride + run


cdef bint is_by_rows(Py_ssize_t in_w, Py_ssize_t out_w, Py_ssize_t stride, Py_ssize_t run):
    """Tell whether tiles stay inside output rows.

    The last tile of a row then overlaps the one before it.  That pays if at most a fifth of the
    pixels are computed twice.
    """
    tiles = ceil_div(out_w, active().mr)
    whole = out_w >= active().mr and 6 * out_w >= 5 * tiles * active().mr
    # With a stride much larger than the image, the copies would be large.
    return whole and tile_columns(stride, run) <= 2 * (in_w + run)


def few_inputs_scratch_bytes(
    x, y, Py_ssize_t stride, Py_ssize_t n_runs, Py_ssize_t run, Py_ssize_t unit
):
    """Return the bytes of scratch per thread: pointers to the runs of a tile, and their copies.

    Parameters
    ----------
    x, y : TensorView
        Images, as for FewInputsConvStep.
    stride : int
        Input columns per output column.
    n_runs, run, unit : int
        Runs of a receptive field, columns of a run, elements of a column.
    """
    tile_bytes = 4 * active().mr * y.shape[1] if y.dtype == BFLOAT16 else 0
    return pointer_bytes(x, y, stride, n_runs, run, unit) + tile_bytes


cdef Py_ssize_t pointer_bytes(
    x, y, Py_ssize_t stride, Py_ssize_t n_runs, Py_ssize_t run, Py_ssize_t unit
):
    """Return the bytes of pointers and copies, in whole cache lines."""
    cdef Py_ssize_t n_bytes = active().mr * n_runs * (8 + 4 * run * unit)
    if is_by_rows(x.shape[3], y.shape[3], stride, run):
        n_bytes = n_runs * (8 + 4 * tile_columns(stride, run) * unit)
    return ceil_div(n_bytes, 64) * 64


cdef inline void round_rows(
    const few_inputs_t* p, const float* tile, char* const* slots, Py_ssize_t pixel, Py_ssize_t m
) noexcept nogil:
    """Store m rows of a tile as pixels in bfloat16."""
    cdef bfloat16_t* y = <bfloat16_t*> at(slots, p.y) + pixel * p.window.ldy
    cdef Py_ssize_t i
    for i in range(m):
        p.kernels.f32_to_bf16(p.out_channels, tile + i * p.out_channels, y + i * p.window.ldy)


cdef inline void copy_field(
    const few_inputs_t* p, const phase_t* phase, const float* origin, Py_ssize_t ih, Py_ssize_t iw,
    float* field,
) noexcept nogil:
    """Copy a receptive field that crosses the border, with zeros outside the image."""
    cdef Py_ssize_t t, first, last, unit = p.unit
    memset(field, 0, phase.n_taps * p.run * unit * sizeof(float))
    for t in range(phase.n_taps):
        if 0 <= ih + phase.taps[t].dy < p.window.in_h:
            first = max(0, -(iw + phase.taps[t].dx))
            last = min(p.run, p.window.in_w - (iw + phase.taps[t].dx))
            if first < last:
                memcpy(
                    field + first * unit, origin + phase.taps[t].offset + first * unit,
                    (last - first) * unit * sizeof(float),
                )
        field += p.run * unit


cdef inline void point_pixels(
    const few_inputs_t* p, const float* x, Py_ssize_t start, Py_ssize_t m, float* fields,
    const float** rows,
) noexcept nogil:
    """Fill rows[t * m + i] with the address of run t of output pixel start + i.

    Receptive fields that cross the border are copied to `fields` first.
    """
    cdef const window_t* w = p.window
    cdef const phase_t* phase = &w.phases[0]
    cdef Py_ssize_t length = p.run * p.unit, i, t, ow, oh, image, ih, iw
    cdef const float* origin
    cdef float* field
    ow, oh, image = start % w.out_w, start // w.out_w % w.out_h, start // w.out_w // w.out_h
    ih, iw = oh * w.in_step_h, ow * w.in_step_w
    if ow + m <= w.out_w and is_inside(w, phase, ih, iw, iw + (m - 1) * w.in_step_w):
        origin = x + image * p.image_stride + ih * p.row_stride + iw * p.unit
        point_inside(phase, origin, w.in_step_w * p.unit, m, rows)
        return
    for i in range(m):
        ih, iw = oh * w.in_step_h, ow * w.in_step_w
        origin = x + image * p.image_stride + ih * p.row_stride + iw * p.unit
        if is_inside(w, phase, ih, iw, iw):
            for t in range(phase.n_taps):
                rows[t * m + i] = origin + phase.taps[t].offset
        else:
            field = fields + i * phase.n_taps * length
            copy_field(p, phase, origin, ih, iw, field)
            for t in range(phase.n_taps):
                rows[t * m + i] = field + t * length
        ow += 1
        if ow == w.out_w:
            ow = 0
            oh += 1
            if oh == w.out_h:
                oh = 0
                image += 1


cdef void few_inputs_run(
    const void* params, char* const* slots, Py_ssize_t shard, Py_ssize_t n_shards
) noexcept nogil:
    """Cross-correlate images of few channels with packed filters and apply the epilogue.

    For short rows: a tile is consecutive pixels of any rows, with one pointer per pixel and run.

    Layout : x (n, c, h, w) by runs of adjacent columns -> y (n, oh, ow, oc), any row stride
    Needs  : weights packed in the order of the runs
    Threads: over tiles of pixels; no shared writes
    Source : torch.nn.Conv2d
    """
    cdef const few_inputs_t* p = <const few_inputs_t*> params
    cdef const window_t* w = p.window
    cdef const phase_t* phase = &w.phases[0]
    cdef const kernels_t* kernels = p.kernels
    cdef const float* x = <const float*> at(slots, p.x)
    cdef const float* weight = <const float*> at(slots, p.weight)
    cdef const float* residual
    cdef float* y = <float*> at(slots, p.y)
    cdef float* tile_y
    cdef float* floats = <float*> (at(slots, p.scratch) + p.tile)
    cdef Py_ssize_t ldy = p.out_channels if p.to_bfloat16 else w.ldy
    cdef Py_ssize_t mr = kernels.mr, nr = kernels.nr, pixels = w.n * w.out_h * w.out_w
    cdef const float** rows = <const float**> at(slots, p.scratch)
    cdef float* fields = <float*> (rows + mr * phase.n_taps)
    cdef Py_ssize_t tiles = ceil_div(pixels, mr), panels = ceil_div(p.out_channels, nr)
    cdef Py_ssize_t length = p.run * p.unit, depth = phase.n_taps * length
    cdef Py_ssize_t tile, start, m, panel, n
    for tile in range(shard_start(tiles, shard, n_shards), shard_start(tiles, shard + 1, n_shards)):
        start = tile * pixels // tiles
        m = (tile + 1) * pixels // tiles - start
        point_pixels(p, x, start, m, fields, rows)
        tile_y = floats if p.to_bfloat16 else y + start * ldy
        for panel in range(panels):
            n = min(nr, p.out_channels - panel * nr)
            residual = residual_at(&p.epilogue, slots, start * p.epilogue.ldr + panel * nr)
            kernels.f32_gemm[m](
                phase.n_taps, length, <const float* const*> rows,
                weight + panel * (depth + 1) * nr, 0,
                tile_y + panel * nr, ldy, n,
                residual if p.epilogue.residual_in_tile else NULL, p.epilogue.ldr,
                p.epilogue.lo, p.epilogue.hi,
            )
        # Run the post-ops on all panels at once, as long rows.
        finish_tile(
            &p.epilogue, m, p.out_channels, tile_y, ldy,
            residual_at(&p.epilogue, slots, start * p.epilogue.ldr), p.epilogue.ldr,
        )
        if p.to_bfloat16:
            round_rows(p, tile_y, slots, start, m)


cdef inline void point_runs(
    const few_inputs_t* p, const float* image, Py_ssize_t ih, Py_ssize_t iw, float* copies,
    const float** runs,
) noexcept nogil:
    """Fill runs[t] with the address of run t of a tile whose first pixel has origin (ih, iw).

    A run that leaves the image is copied, with zeros outside.
    """
    cdef const phase_t* phase = &p.window.phases[0]
    cdef const float* origin = image + ih * p.row_stride + iw * p.unit
    cdef Py_ssize_t in_h = p.window.in_h, in_w = p.window.in_w, unit = p.unit, n = p.columns
    cdef Py_ssize_t t, row, column, first, last
    for t in range(phase.n_taps):
        row, column = ih + phase.taps[t].dy, iw + phase.taps[t].dx
        first, last = max(0, -column), min(n, in_w - column)
        if row < 0 or row >= in_h or first >= last:
            runs[t] = p.zeros
        elif last - first == n:
            runs[t] = origin + phase.taps[t].offset
        else:
            memset(copies, 0, first * unit * sizeof(float))
            memcpy(
                copies + first * unit, origin + phase.taps[t].offset + first * unit,
                (last - first) * unit * sizeof(float),
            )
            memset(copies + last * unit, 0, (n - last) * unit * sizeof(float))
            runs[t] = copies
            copies += n * unit


cdef void few_inputs_rows_run(
    const void* params, char* const* slots, Py_ssize_t shard, Py_ssize_t n_shards
) noexcept nogil:
    """Cross-correlate images of few channels with packed filters and apply the epilogue.

    The pixels of a tile are in one row, so a run needs one pointer and a constant step.  The last
    tile of a row overlaps the one before it and stores only the remaining pixels.

    Layout : x (n, c, h, w) by runs of adjacent columns -> y (n, oh, ow, oc), any row stride
    Needs  : weights packed in the order of the runs; rows of at least one tile
    Threads: over tiles of pixels; no shared writes
    Source : torch.nn.Conv2d
    """
    cdef const few_inputs_t* p = <const few_inputs_t*> params
    cdef const window_t* w = p.window
    cdef const kernels_t* kernels = p.kernels
    cdef const float* x = <const float*> at(slots, p.x)
    cdef const float* weight = <const float*> at(slots, p.weight)
    cdef const float* residual
    cdef float* y = <float*> at(slots, p.y)
    cdef float* y_pixels
    cdef float* y_tile
    cdef float* floats = <float*> (at(slots, p.scratch) + p.tile)
    cdef const float* image
    cdef const float** runs = <const float**> at(slots, p.scratch)
    cdef Py_ssize_t n_runs = w.phases[0].n_taps, length = p.run * p.unit
    cdef Py_ssize_t mr = kernels.mr, nr = kernels.nr, step = w.in_step_w * p.unit
    cdef Py_ssize_t panels = ceil_div(p.out_channels, nr), per_row = ceil_div(w.out_w, mr)
    cdef Py_ssize_t q = shard_start(w.n * w.out_h * per_row, shard, n_shards)
    cdef Py_ssize_t stop = shard_start(w.n * w.out_h * per_row, shard + 1, n_shards)
    # No run crosses a side border if left <= origin of the tile's first pixel < right.
    cdef Py_ssize_t left = -w.phases[0].min_dx
    cdef Py_ssize_t right = w.in_w - w.phases[0].max_dx - (mr - 1) * w.in_step_w
    cdef Py_ssize_t i, t, row, tile, ow, iw, ih, first, pixel, panel, n
    cdef Py_ssize_t ldy = p.out_channels if p.to_bfloat16 else w.ldy, ldr = p.epilogue.ldr
    cdef bint was_inside, stays_inside
    while q < stop:
        row, tile = q // per_row, q % per_row
        image = x + row // w.out_h * p.image_stride
        ih = row % w.out_h * w.in_step_h
        was_inside = False
        while q < stop and tile < per_row:
            ow = min(tile * mr, w.out_w - mr)
            first = tile * mr - ow
            iw = ow * w.in_step_w
            stays_inside = left <= iw < right
            if was_inside and stays_inside and first == 0:
                for t in range(n_runs):
                    runs[t] += mr * step
            else:
                point_runs(p, image, ih, iw, <float*> (runs + n_runs), runs)
            was_inside = stays_inside
            pixel = row * w.out_w + ow
            y_pixels = floats if p.to_bfloat16 else y + pixel * ldy
            for panel in range(panels):
                n = min(nr, p.out_channels - panel * nr)
                y_tile = y_pixels + panel * nr
                residual = residual_at(&p.epilogue, slots, pixel * ldr + panel * nr)
                if p.fetches:
                    # Prefetch the output lines for writing; the tile hides the latency.
                    for i in range(first, mr):
                        fetch(y_tile + i * ldy)
                        fetch(y_tile + i * ldy + n - 1)
                kernels.f32_gemm_strided(
                    n_runs, length, <const float* const*> runs, step, first,
                    weight + panel * (n_runs * length + 1) * nr, y_tile, ldy, n,
                    residual if p.epilogue.residual_in_tile else NULL, ldr, p.epilogue.lo,
                    p.epilogue.hi,
                )
            # Run the post-ops on all panels at once, as long rows.
            finish_tile(
                &p.epilogue, mr - first, p.out_channels, y_pixels + first * ldy, ldy,
                residual_at(&p.epilogue, slots, (pixel + first) * ldr), ldr,
            )
            if p.to_bfloat16:
                round_rows(p, y_pixels + first * ldy, slots, pixel + first, mr - first)
            tile += 1
            q += 1
