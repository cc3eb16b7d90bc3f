"""Convolution of volumes: implicit GEMM as in ``conv.pyx``, with one axis more.

Volumes have shape (n, depth, height, width, channels) without gaps.  A tile is up to mr output
voxels by one panel of output channels; the micro-kernel gets one pointer per voxel and tap, to a
row of zeros for a tap outside the volume.  A transposed convolution runs once for each phase of its
stride.
"""

import numpy as np

from libc.stdlib cimport calloc, free
from libc.string cimport memset

from kuiper._kernels.micro.dispatch cimport active
from kuiper._kernels.conv.epilogue cimport epilogue_t, finish_tile, make_epilogue, residual_at
from kuiper._runtime.step cimport Step, at, ceil_div, ref_t, shard_start
from kuiper._kernels.micro.table cimport kernels_t, prefetch_distance

from kuiper._kernels.micro.packing import pack_panels
from kuiper._runtime.step import run_step
from kuiper.ir.view import Buffer, TensorView, contiguous_strides
from kuiper.errors import InputError

cdef struct volume_tap_t:
    Py_ssize_t[3] delta      # from the output voxel's origin in the input, in voxels per axis
    Py_ssize_t offset        # the same in elements

cdef struct volume_phase_t:
    Py_ssize_t[3] first      # first output voxel of the phase
    Py_ssize_t[3] extent     # output voxels in the phase
    Py_ssize_t n_taps
    volume_tap_t* taps       # (n_taps,)
    Py_ssize_t weight        # start of its panels, in elements

cdef struct volume_window_t:
    Py_ssize_t n             # volumes
    Py_ssize_t[3] x_extent   # depth, height, width
    Py_ssize_t[3] y_extent
    Py_ssize_t x_channels    # of all groups
    Py_ssize_t y_channels
    Py_ssize_t[3] in_step    # input voxels between consecutive output voxels of a phase
    Py_ssize_t[3] out_step   # output voxels between consecutive output voxels of a phase
    Py_ssize_t n_phases
    volume_phase_t* phases   # (n_phases,)


cdef class VolumeWindow:
    """The input voxels of each output voxel.

    Parameters
    ----------
    x, y : TensorView, shape (n, depth, height, width, channels)
    in_step, out_step : (int, int, int)
        Input voxels per output voxel of a phase; output voxels per phase (transposed stride).
    phases : list of (first, extent, taps, weight)
        `first`, `extent` and each tap are (depth, height, width); `weight` is the offset of the
        phase's panels.
    """

    cdef volume_window_t w

    def __cinit__(self, x, y, in_step, out_step, phases):
        cdef volume_window_t* w = &self.w
        cdef volume_phase_t* phase
        cdef Py_ssize_t i, t
        cdef int axis
        memset(w, 0, sizeof(volume_window_t))
        w.n, w.x_channels, w.y_channels = x.shape[0], x.shape[4], y.shape[4]
        for axis in range(3):
            w.x_extent[axis], w.y_extent[axis] = x.shape[1 + axis], y.shape[1 + axis]
            w.in_step[axis], w.out_step[axis] = in_step[axis], out_step[axis]
        w.n_phases = len(phases)
        w.phases = <volume_phase_t*> calloc(max(w.n_phases, 1), sizeof(volume_phase_t))
        if w.phases == NULL:
            raise MemoryError
        for i, (first, extent, taps, weight) in enumerate(phases):
            phase = &w.phases[i]
            phase.weight = weight
            phase.taps = <volume_tap_t*> calloc(max(len(taps), 1), sizeof(volume_tap_t))
            if phase.taps == NULL:
                raise MemoryError
            phase.n_taps = len(taps)
            for axis in range(3):
                phase.first[axis], phase.extent[axis] = first[axis], extent[axis]
            for t, delta in enumerate(taps):
                phase.taps[t].offset = 0
                for axis in range(3):
                    phase.taps[t].delta[axis] = delta[axis]
                    phase.taps[t].offset = (
                        phase.taps[t].offset * w.x_extent[axis] + phase.taps[t].delta[axis]
                    )
                phase.taps[t].offset = phase.taps[t].offset * w.x_channels

    def __dealloc__(self):
        cdef Py_ssize_t i
        if self.w.phases != NULL:
            for i in range(self.w.n_phases):
                free(self.w.phases[i].taps)
            free(self.w.phases)

    @property
    def max_taps(self):
        return max(self.w.phases[i].n_taps for i in range(self.w.n_phases))

    @property
    def max_voxels(self):
        counts = [
            self.w.phases[i].extent[0] * self.w.phases[i].extent[1] * self.w.phases[i].extent[2]
            for i in range(self.w.n_phases)
        ]
        return self.w.n * max(counts)


cdef inline void point_rows(
    const volume_window_t* w, const volume_phase_t* phase, const float* x, const float* zeros,
    Py_ssize_t voxel, Py_ssize_t m, const float** rows,
) noexcept nogil:
    """Fill rows[t * m + i] with the address of tap t of output voxel `voxel + i` of the phase."""
    cdef Py_ssize_t i, t, rest, a, b, c, image, d, h, v
    cdef const float* origin
    cdef const volume_tap_t* tap
    for i in range(m):
        rest = voxel + i
        c, rest = rest % phase.extent[2], rest // phase.extent[2]
        b, rest = rest % phase.extent[1], rest // phase.extent[1]
        a, image = rest % phase.extent[0], rest // phase.extent[0]
        a, b, c = a * w.in_step[0], b * w.in_step[1], c * w.in_step[2]
        origin = x + (
            ((image * w.x_extent[0] + a) * w.x_extent[1] + b) * w.x_extent[2] + c
        ) * w.x_channels
        for t in range(phase.n_taps):
            tap = &phase.taps[t]
            d, h, v = a + tap.delta[0], b + tap.delta[1], c + tap.delta[2]
            if (
                0 <= d < w.x_extent[0] and 0 <= h < w.x_extent[1] and 0 <= v < w.x_extent[2]
            ):
                rows[t * m + i] = origin + tap.offset
            else:
                rows[t * m + i] = zeros


cdef inline Py_ssize_t output_voxel(
    const volume_window_t* w, const volume_phase_t* phase, Py_ssize_t voxel
) noexcept nogil:
    """Return the index in the output of voxel number `voxel` of a phase."""
    cdef Py_ssize_t c = voxel % phase.extent[2], rest = voxel // phase.extent[2]
    cdef Py_ssize_t b = rest % phase.extent[1], a = rest // phase.extent[1] % phase.extent[0]
    cdef Py_ssize_t image = rest // phase.extent[1] // phase.extent[0]
    a = phase.first[0] + a * w.out_step[0]
    b = phase.first[1] + b * w.out_step[1]
    c = phase.first[2] + c * w.out_step[2]
    return ((image * w.y_extent[0] + a) * w.y_extent[1] + b) * w.y_extent[2] + c


cdef struct volume_t:
    const kernels_t* kernels
    const volume_window_t* window
    ref_t x                      # (n, depth, height, width, groups * in_channels)
    # (phases, groups, panels, 1 + taps * in_channels, nr), or if depthwise
    # (ceil(channels / lanes), 1 + taps, lanes)
    ref_t weight
    ref_t y                      # (n, depth, height, width, groups * out_channels)
    ref_t scratch                # (taps, voxels of a tile) pointers
    const float* zeros           # (in_channels,), or depthwise (channels,)
    Py_ssize_t groups
    Py_ssize_t in_channels       # of one group
    Py_ssize_t out_channels      # of one group
    bint is_depthwise
    bint panel_major             # all tiles of a panel before the next panel
    epilogue_t epilogue


cdef class VolumeConvStep(Step):
    """Convolution of volumes, grouped or not, forward or transposed.

    Parameters
    ----------
    x, y : TensorView, shape (n, depth, height, width, channels)
        Without gaps.
    weight : TensorView
        Panels of :func:`~kuiper._kernels.micro.packing.pack_panels`, for each phase, for each
        group; or, if each group has one channel on both sides, those of a
        :class:`~kuiper._kernels.micro.packed.DepthwiseBlocks`.
    window : VolumeWindow
    groups, in_channels, out_channels : int
        Channels of one group.
    scratch : TensorView
        :func:`volume_scratch_bytes` for each thread.
    epilogue : Epilogue or None
        A residual has rows of channels.
    is_depthwise : bool
        Whether the weight is of DepthwiseBlocks.
    """

    cdef volume_t p
    cdef VolumeWindow window

    def __init__(self, x, weight, y, VolumeWindow window, groups, in_channels, out_channels,
                 scratch, epilogue=None, is_depthwise=False):
        zeros = np.zeros(max(x.shape[4] if is_depthwise else in_channels, 1), np.float32)
        cdef float[::1] zero_view = zeros
        self.window = window
        self.keep = zeros
        self.p.kernels = active()
        self.p.window = &window.w
        self.p.x, self.p.weight, self.p.y = self.ref(x), self.ref(weight), self.ref(y)
        self.p.scratch = self.ref(scratch)
        self.p.zeros = &zero_view[0]
        self.p.groups, self.p.in_channels, self.p.out_channels = groups, in_channels, out_channels
        self.p.is_depthwise = is_depthwise
        # Small weights stay in the L2 cache: apply all panels to a tile before the next tile.
        # Large weights should be read once: apply a panel to all tiles before the next panel.
        self.p.panel_major = weight.n_bytes > 512 * 1024
        self.p.epilogue = make_epilogue(self, epilogue)
        self.run = depthwise_run if is_depthwise else volume_run
        self.params = &self.p
        self.kind = "conv3d"
        tiles = ceil_div(window.max_voxels, volume_tile(is_depthwise))
        if not is_depthwise:
            tiles *= groups * ceil_div(out_channels, active().nr)
        self.max_shards = max(tiles, 1)


def volume_tile(bint is_depthwise):
    """Return the largest number of voxels in a tile."""
    return active().dw_m if is_depthwise else active().mr


def volume_scratch_bytes(Py_ssize_t taps, bint is_depthwise=False):
    """Return the bytes of scratch per thread: one pointer per voxel of a tile and tap."""
    return 8 * volume_tile(is_depthwise) * taps


cdef void volume_run(
    const void* params, char* const* slots, Py_ssize_t shard, Py_ssize_t n_shards
) noexcept nogil:
    """Cross-correlate volumes with packed filters and apply the epilogue.

    Layout : x (n, d, h, w, groups * ic) -> y (n, od, oh, ow, groups * oc)
    Needs  : packed weights for the table's tile; positive strides
    Threads: over tiles of voxels x panels of channels; the sum over taps is never split
    Source : torch.nn.Conv3d, torch.nn.ConvTranspose3d
    """
    cdef const volume_t* p = <const volume_t*> params
    cdef const volume_window_t* w = p.window
    cdef const kernels_t* kernels = p.kernels
    cdef const float* x = <const float*> at(slots, p.x)
    cdef const float* weight = <const float*> at(slots, p.weight)
    cdef const float* residual
    cdef float* y = <float*> at(slots, p.y)
    cdef float* y_tile
    cdef const float** rows = <const float**> at(slots, p.scratch)
    cdef const volume_phase_t* phase
    cdef Py_ssize_t mr = kernels.mr, nr = kernels.nr, panels = ceil_div(p.out_channels, nr)
    cdef Py_ssize_t f, q, count, n_runs, run, per_run, tiles, tile, panel, group, depth
    cdef Py_ssize_t start, voxel, m, n, column, at_tile, at_group
    cdef Py_ssize_t ldy = w.out_step[2] * w.y_channels
    cdef Py_ssize_t ldr = w.out_step[2] * p.epilogue.ldr
    for f in range(w.n_phases):
        phase = &w.phases[f]
        count = w.n * phase.extent[0] * phase.extent[1] * phase.extent[2]
        if count == 0:
            continue
        # A run is voxels at a constant distance in the output: all of them, or a row of a phase.
        n_runs = count // phase.extent[2]
        if w.out_step[0] == w.out_step[1] == w.out_step[2] == 1:
            n_runs = 1
        run = count // n_runs
        per_run = ceil_div(run, mr)
        tiles = n_runs * per_run
        depth = (phase.n_taps * p.in_channels + 1) * nr
        at_tile = at_group = -1
        voxel = m = 0
        for q in range(
            shard_start(p.groups * panels * tiles, shard, n_shards),
            shard_start(p.groups * panels * tiles, shard + 1, n_shards),
        ):
            if p.panel_major:
                tile, panel, group = q % tiles, q // tiles % panels, q // tiles // panels
            else:
                panel, tile, group = q % panels, q // panels % tiles, q // panels // tiles
            if tile != at_tile or group != at_group:
                at_tile, at_group = tile, group
                start = tile % per_run * run // per_run
                m = (tile % per_run + 1) * run // per_run - start
                voxel = tile // per_run * run + start
                point_rows(w, phase, x + group * p.in_channels, p.zeros, voxel, m, rows)
                voxel = output_voxel(w, phase, voxel)
            n = min(nr, p.out_channels - panel * nr)
            column = group * p.out_channels + panel * nr
            y_tile = y + voxel * w.y_channels + column
            residual = residual_at(&p.epilogue, slots, voxel * p.epilogue.ldr + column)
            kernels.f32_gemm[m](
                phase.n_taps, p.in_channels, <const float* const*> rows,
                weight + phase.weight + (group * panels + panel) * depth,
                prefetch_distance(tile, depth, nr) if p.panel_major else 0, y_tile, ldy, n,
                residual if p.epilogue.residual_in_tile else NULL, ldr,
                p.epilogue.lo, p.epilogue.hi,
            )
            finish_tile(&p.epilogue, m, n, y_tile, ldy, residual, ldr)


cdef void depthwise_run(
    const void* params, char* const* slots, Py_ssize_t shard, Py_ssize_t n_shards
) noexcept nogil:
    """Cross-correlate each channel with its filter and apply the epilogue.

    Layout : x (n, d, h, w, c) -> y (n, od, oh, ow, c)
    Needs  : depthwise weights; one phase
    Threads: over tiles of voxels
    Source : torch.nn.Conv3d with groups == in_channels == out_channels
    """
    cdef const volume_t* p = <const volume_t*> params
    cdef const volume_window_t* w = p.window
    cdef const volume_phase_t* phase = &w.phases[0]
    cdef const float* x = <const float*> at(slots, p.x)
    cdef const float* residual
    cdef float* y = <float*> at(slots, p.y)
    cdef const float** rows = <const float**> at(slots, p.scratch)
    cdef Py_ssize_t count = w.n * phase.extent[0] * phase.extent[1] * phase.extent[2]
    cdef Py_ssize_t tiles = ceil_div(count, p.kernels.dw_m), tile, start, m
    for tile in range(shard_start(tiles, shard, n_shards), shard_start(tiles, shard + 1, n_shards)):
        start = tile * count // tiles
        m = (tile + 1) * count // tiles - start
        point_rows(w, phase, x, p.zeros, start, m, rows)
        residual = residual_at(&p.epilogue, slots, start * p.epilogue.ldr)
        p.kernels.f32_dwconv[m](
            phase.n_taps, w.y_channels, <const float* const*> rows, NULL,
            <const float*> at(slots, p.weight), y + start * w.y_channels, w.y_channels,
            residual if p.epilogue.residual_in_tile else NULL, p.epilogue.ldr,
            p.epilogue.lo, p.epilogue.hi,
        )
        finish_tile(
            &p.epilogue, m, w.y_channels, y + start * w.y_channels, w.y_channels, residual,
            p.epilogue.ldr,
        )


# -- without a plan ----------------------------------------------------------------------------

def conv3d(const float[:, :, :, :, ::1] x, const float[:, :, :, :, ::1] weight, bias=None, *,
           stride=(1, 1, 1), padding=(0, 0, 0), int n_threads=1):
    """Convolve channels-last volumes without graph or plan, for learning, tests and measurements.

    Parameters
    ----------
    x : array, shape (n, depth, height, width, in_channels), float32
    weight : array, shape (out_channels, in_channels, kernel_d, kernel_h, kernel_w), float32
        PyTorch's order.
    bias : array, shape (out_channels,), float32, optional
    stride, padding : (int, int, int)
    n_threads : int

    Returns
    -------
    numpy.ndarray, shape (n, out_depth, out_height, out_width, out_channels), float32

    Raises
    ------
    InputError
        If extents do not fit each other.
    """
    out_channels, in_channels = weight.shape[0], weight.shape[1]
    kernel = np.shape(weight)[2:]
    if x.shape[4] != in_channels or min(stride) < 1 or min(padding) < 0 or n_threads < 1:
        raise InputError(
            f"x has {x.shape[4]} channels and weight shape {np.shape(weight)}; they must agree, "
            "stride and n_threads be >= 1, padding >= 0"
        )
    if bias is not None and np.shape(bias) != (out_channels,):
        raise InputError(f"bias has shape {np.shape(bias)}, expected ({out_channels},)")
    extents = [
        (n + 2 * p - k) // s + 1
        for n, p, k, s in zip(np.shape(x)[1:4], padding, kernel, stride)
    ]
    if min(extents) < 1 or min(kernel) < 1 or x.shape[0] < 1:
        raise InputError(f"the output would have extents {extents}")
    taps = [tuple(np.subtract(tap, padding).tolist()) for tap in np.ndindex(*kernel)]
    packed = pack_panels(
        np.asarray(weight).reshape(out_channels, in_channels, -1).transpose(0, 2, 1), bias
    )
    y = np.empty((x.shape[0], *extents, out_channels), np.float32)
    scratch_bytes = volume_scratch_bytes(len(taps))
    scratches = np.empty((n_threads, scratch_bytes), np.uint8)
    arrays = [np.asarray(x), packed, y, scratches[0]]
    values = [
        TensorView(Buffer(slot, 0, "input"), array.shape, contiguous_strides(array.shape), 0,
                   array.dtype)
        for slot, array in enumerate(arrays)
    ]
    window = VolumeWindow(
        values[0], values[2], stride, (1, 1, 1), [((0, 0, 0), extents, taps, 0)]
    )
    step = VolumeConvStep(
        values[0], values[1], values[2], window, 1, in_channels, out_channels, values[3]
    )
    run_step(step, [*arrays[:3], (scratches,)], n_threads)
    return y
