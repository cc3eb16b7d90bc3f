# Windows of deformable convolutions.  Included by sample.pyx.

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
    Py_ssize_t row_stride        # of pixels of x, in elements
    Py_ssize_t ld_offset         # of pixels of offset and of mask
    Py_ssize_t ld_mask
    Py_ssize_t groups            # of the convolution
    Py_ssize_t deformed          # groups of channels with separate offsets
    Py_ssize_t[2] taps           # of a window: rows, columns
    Py_ssize_t[2] stride
    Py_ssize_t[2] padding
    Py_ssize_t[2] dilation


cdef class DeformStep(Step):
    """Reads the windows of a deformable convolution: each tap has an offset.

    Parameters
    ----------
    x : TensorView, shape (n, c, rows, columns), channels-last
    offset : TensorView, shape (n, 2 * deformed * taps, out_rows, out_columns), channels-last
        Down and right, for each group of channels and each tap.
    mask : TensorView or None
        A factor for each group of channels and each tap; the layout of `offset`.
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
        self.p.mask = self.ref(mask)
        self.p.ld_mask = 0 if mask is None else mask.row_stride
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
    """Windows of pixels at shifted positions, the rows of a matrix product.

    Layout : x (n, h, w, c), offset (n, oh, ow, groups, taps, 2) -> y (n * oh * ow, groups, taps, c)
    Needs  : channels that divide into both kinds of groups
    Threads: over windows
    Source : torchvision.ops.deform_conv2d
    """
    cdef const deform_t* p = <const deform_t*> params
    cdef const float* x = <const float*> at(slots, p.x)
    cdef const float* offset = <const float*> at(slots, p.offset)
    cdef const float* mask = <const float*> at_or_null(slots, p.mask)
    cdef float* y = <float*> at(slots, p.y)
    cdef float* window
    cdef const float* image
    cdef Py_ssize_t n_taps = p.taps[0] * p.taps[1], planes = p.out_rows * p.out_columns
    cdef Py_ssize_t total = p.batch * planes, q, d, g, k, first, last, at_tap
    cdef Py_ssize_t own = p.channels // p.deformed, group = p.channels // p.groups
    cdef taps_t row, column
    cdef pixels_t pixels, some
    cdef float down, right, factor
    cdef int i
    for q in range(shard_start(total, shard, n_shards), shard_start(total, shard + 1, n_shards)):
        image = x + q // planes * p.rows * p.columns * p.row_stride
        window = y + q * n_taps * p.channels
        for d in range(p.deformed):
            for k in range(n_taps):
                at_tap = d * n_taps + k
                down = offset[q * p.ld_offset + 2 * at_tap]
                right = offset[q * p.ld_offset + 2 * at_tap + 1]
                factor = mask[q * p.ld_mask + at_tap] if mask != NULL else 1
                down += (
                    q % planes // p.out_columns * p.stride[0] - p.padding[0]
                    + k // p.taps[1] * p.dilation[0]
                )
                right += (
                    q % p.out_columns * p.stride[1] - p.padding[1]
                    + k % p.taps[1] * p.dilation[1]
                )
                linear_taps(down, p.rows, &row)
                linear_taps(right, p.columns, &column)
                if down != down or right != right:
                    # A NaN position has no neighbours, but its value is NaN, not 0.
                    row.n = column.n = 0
                    add_tap(&row, 0, NAN)
                    add_tap(&column, 0, NAN)
                cross(image, p.columns, p.row_stride, &row, &column, factor, &pixels)
                # The channels of an offset group may span several groups of the convolution.
                first = d * own
                while first < (d + 1) * own:
                    g = first // group
                    last = min((d + 1) * own, (g + 1) * group)
                    some.n = pixels.n
                    for i in range(some.n):
                        some.pixel[i] = pixels.pixel[i] + first
                        some.weight[i] = pixels.weight[i]
                    add_up(
                        p.kernels, &some, window + (g * n_taps + k) * group + first - g * group,
                        last - first,
                    )
                    first = last
