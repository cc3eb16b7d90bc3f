# Images of few channels sampled at the points of a grid: positions and weights of a block of points
# first, in vectors, then the samples channel by channel.

from libc.math cimport fmodf

from kuiper._kernels.micro.table cimport (
    GRID_BLOCK, GRID_BORDER, GRID_LINEAR, GRID_NEAREST, GRID_REFLECTION, GRID_ZEROS, grid_axis_t,
    grid_block_t,
)


cdef inline vf32 vreflected(const grid_axis_t* axis, int n_axes, vf32 position) noexcept nogil:
    """Reflect at the ends, by PyTorch's formulas, of which that for volumes is exact."""
    cdef vf32 span = splat(axis.span), period = splat(2 * axis.span), rest
    cdef float[MAX_LANES] lanes
    cdef int i
    if axis.span <= 0:
        return splat(0.0)
    rest = vabs(position - splat(axis.low))
    if n_axes == 2:
        rest = rest - vtrunc(rest / period) * period
    else:
        store(lanes, rest)
        for i in range(LANES):
            if not lanes[i] < 2 * axis.span:
                lanes[i] = fmodf(lanes[i], 2 * axis.span)
        rest = load(lanes)
    return select(vlt(span, rest), period - rest, rest) + splat(axis.low)


cdef inline void positions_along(
    const grid_axis_t* axis, int n_axes, int padding, Py_ssize_t n, float* position,
    float* is_number,
) noexcept nogil:
    """Convert coordinates of -1 to 1 to positions in pixels, in place."""
    cdef vf32 one = splat(1.0), last = splat(axis.extent - 1), t
    # PyTorch's kernels for planes and for volumes treat NaN differently.
    cdef vf32 missing = splat(0.0) if n_axes == 2 else last
    cdef Py_ssize_t i = 0
    while i < n:
        t = (load(position + i) + one) * splat(axis.scale) - splat(axis.shift)
        if padding == GRID_REFLECTION:
            t = vreflected(axis, n_axes, t)
        if padding == GRID_ZEROS:
            store(is_number + i, select(veq(t - t, splat(0.0)), load(is_number + i), splat(0.0)))
        else:
            t = select(veq(t, t), vmax(splat(0.0), vmin(last, t)), missing)
        store(position + i, t)
        i += LANES


cdef inline void nearest_along(
    const grid_axis_t* axis, Py_ssize_t n, float* position, float* is_inside
) noexcept nogil:
    """Round positions to the nearest pixel."""
    cdef vf32 zero = splat(0.0), t
    cdef vi32 inside
    cdef Py_ssize_t i = 0
    while i < n:
        t = vrint(load(position + i))
        inside = vle(zero, t) & vlt(t, splat(axis.extent))
        store(position + i, select(inside, t, zero))
        store(is_inside + i, select(inside, load(is_inside + i), zero))
        i += LANES


cdef inline void linear_along(
    const grid_axis_t* axis, Py_ssize_t n, float* position, float* is_inside, float* has_next,
    float* below, float* above,
) noexcept nogil:
    """Replace each position by the pixel below it, and compute the weights of both neighbours.

    If only one neighbour is in the image, it takes both sides with half its weight each: no pixel
    outside is read, and two halves of a product sum to the product.
    """
    cdef vf32 zero = splat(0.0), one = splat(1.0), half = splat(0.5), t, first, high, low
    cdef vi32 inside, under, over
    cdef Py_ssize_t i = 0
    while i < n:
        t = load(position + i)
        inside = vlt(splat(-1.0), t) & vlt(t, splat(axis.extent))
        t = select(inside, t, zero)
        first = vfloor(t)
        high = t - first
        low = one - high
        under, over = vlt(first, zero), veq(first, splat(axis.extent - 1))
        low = select(under, high * half, low)
        high = select(under, low, high)
        low = select(over, low * half, low)
        high = select(over, low, high)
        store(position + i, select(under, zero, first))
        store(is_inside + i, select(inside, load(is_inside + i), zero))
        store(has_next + i, select(under | over, zero, one))
        store(below + i, low)
        store(above + i, high)
        i += LANES


cdef void f32_locate_points(
    int mode, int padding, int n_axes, const grid_axis_t* axes, const float* grid, Py_ssize_t n,
    grid_block_t* k,
) noexcept nogil:
    cdef Py_ssize_t whole = (n + LANES - 1) // LANES * LANES, i
    cdef float[GRID_BLOCK] position, has_next
    cdef float[2][2][GRID_BLOCK] along
    cdef float[MAX_LANES] lanes
    cdef vf32 least = splat(1.0)
    cdef int a, stride
    for i in range(whole):
        k.first[i] = 0
        k.is_inside[i] = k.is_number[i] = 1
    for a in range(n_axes):
        for i in range(n):
            position[i] = grid[i * n_axes + a]
        for i in range(n, whole):
            position[i] = 0
        if padding == GRID_ZEROS:
            positions_along(&axes[a], n_axes, GRID_ZEROS, n, position, k.is_number)
        elif padding == GRID_BORDER:
            positions_along(&axes[a], n_axes, GRID_BORDER, n, position, k.is_number)
        else:
            positions_along(&axes[a], n_axes, GRID_REFLECTION, n, position, k.is_number)
        stride = axes[a].stride
        if mode == GRID_NEAREST:
            nearest_along(&axes[a], n, position, k.is_inside)
        elif a < 2:
            linear_along(&axes[a], n, position, k.is_inside, has_next, along[a][0], along[a][1])
        else:
            linear_along(&axes[a], n, position, k.is_inside, has_next, k.plane[0], k.plane[1])
        for i in range(whole):
            k.first[i] += <int> position[i] * stride
        if mode == GRID_LINEAR:
            for i in range(whole):
                k.step[a][i] = <int> has_next[i] * stride
    for i in range(n, whole):
        k.is_inside[i] = k.is_number[i] = 1
    i = 0
    while i < n:
        least = vmin(least, load(k.is_inside + i) * load(k.is_number + i))
        i += LANES
    store(lanes, least)
    k.all_inside = True
    for i in range(LANES):
        k.all_inside &= lanes[i] != 0
    if mode == GRID_LINEAR:
        for a in range(4):
            i = 0
            while i < n:
                store(k.weight[a] + i, load(along[1][a >> 1] + i) * load(along[0][a & 1] + i))
                i += LANES


cdef inline void read_nearest(
    int channels, const grid_block_t* k, Py_ssize_t n, const float* x, Py_ssize_t x_channel,
    float* y, Py_ssize_t y_channel, Py_ssize_t y_pixel,
) noexcept nogil:
    cdef const float* pixel
    cdef Py_ssize_t i
    cdef int c
    for i in range(n):
        pixel = x + k.first[i]
        for c in range(channels):
            y[c * y_channel + i * y_pixel] = pixel[c * x_channel]


cdef inline void read_linear(
    int n_axes, int channels, const grid_block_t* k, Py_ssize_t n, const float* x,
    Py_ssize_t x_channel, float* y, Py_ssize_t y_channel, Py_ssize_t y_pixel,
) noexcept nogil:
    """Sum the weighted neighbours of points in `channels` channels, a constant."""
    cdef const float* near
    cdef const float* far
    cdef Py_ssize_t i, right, down, across
    cdef float w0, w1, w2, w3, result
    cdef int c
    for i in range(n):
        right, down = k.step[0][i], k.step[1][i]
        across = right + down
        w0, w1, w2, w3 = k.weight[0][i], k.weight[1][i], k.weight[2][i], k.weight[3][i]
        for c in range(channels):
            near = x + c * x_channel + k.first[i]
            result = w0 * near[0] + w1 * near[right] + w2 * near[down] + w3 * near[across]
            if n_axes == 3:
                far = near + k.step[2][i]
                result = k.plane[0][i] * result + k.plane[1][i] * (
                    w0 * far[0] + w1 * far[right] + w2 * far[down] + w3 * far[across]
                )
            y[c * y_channel + i * y_pixel] = result


cdef void f32_grid_read(
    int mode, int n_axes, Py_ssize_t channels, const grid_block_t* k, Py_ssize_t n, const float* x,
    Py_ssize_t x_channel, float* y, Py_ssize_t y_channel, Py_ssize_t y_pixel,
) noexcept nogil:
    cdef int step
    while channels > 0:
        step = 1
        if mode == GRID_NEAREST and channels >= 3:
            read_nearest(3, k, n, x, x_channel, y, y_channel, y_pixel)
            step = 3
        elif mode == GRID_NEAREST:
            read_nearest(1, k, n, x, 0, y, 0, y_pixel)
        elif n_axes == 3:
            read_linear(3, 1, k, n, x, 0, y, 0, y_pixel)
        elif channels >= 4:
            read_linear(2, 4, k, n, x, x_channel, y, y_channel, y_pixel)
            step = 4
        elif channels == 3:
            read_linear(2, 3, k, n, x, x_channel, y, y_channel, y_pixel)
            step = 3
        elif channels == 2:
            read_linear(2, 2, k, n, x, x_channel, y, y_channel, y_pixel)
            step = 2
        else:
            read_linear(2, 1, k, n, x, 0, y, 0, y_pixel)
        x += step * x_channel
        y += step * y_channel
        channels -= step


cdef void fill_grid(kernels_t* k) noexcept:
    k.f32_locate_points = f32_locate_points
    k.f32_grid_read = f32_grid_read
