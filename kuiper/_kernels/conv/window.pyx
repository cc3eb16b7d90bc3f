"""The geometry of convolutions over channels-last images."""

from libc.stdlib cimport calloc, free
from libc.string cimport memset


cdef class Window:
    """The input pixels of each output pixel.

    Parameters
    ----------
    x, y : TensorView
        Channels-last input and output.
    in_step, out_step : (int, int)
        Input and output pixels between consecutive output pixels of a phase; `out_step` is the
        stride of a transposed convolution.
    phases : list of (first, extent, taps, weight)
        `first` and `extent` are (height, width), `taps` is a list of (dy, dx), `weight` the offset
        of the phase's panels.
    """

    def __cinit__(self, x, y, in_step, out_step, phases):
        cdef phase_t* phase
        cdef Py_ssize_t i
        cdef window_t* w = &self.w
        memset(w, 0, sizeof(window_t))
        w.n, _, w.in_h, w.in_w = x.shape
        _, _, w.out_h, w.out_w = y.shape
        w.ldx, w.ldy = x.row_stride, y.row_stride
        w.in_step_h, w.in_step_w = in_step
        w.out_step, w.out_step_w = out_step
        w.n_phases = len(phases)
        w.phases = <phase_t*> calloc(max(w.n_phases, 1), sizeof(phase_t))
        if w.phases == NULL:
            raise MemoryError
        for i, (first, extent, taps, weight) in enumerate(phases):
            phase = &w.phases[i]
            phase.first_h, phase.first_w = first
            phase.height, phase.width = extent
            phase.weight = weight
            phase.taps = <tap_t*> calloc(max(len(taps), 1), sizeof(tap_t))
            if phase.taps == NULL:
                raise MemoryError
            phase.n_taps = len(taps)
            for t, (dy, dx) in enumerate(taps):
                phase.taps[t].dy, phase.taps[t].dx = dy, dx
                phase.taps[t].offset = (dy * w.in_w + dx) * w.ldx
                phase.min_dy, phase.max_dy = min(phase.min_dy, dy), max(phase.max_dy, dy)
                phase.min_dx, phase.max_dx = min(phase.min_dx, dx), max(phase.max_dx, dx)

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
    def max_pixels(self):
        planes = [
            self.w.phases[i].height * self.w.phases[i].width for i in range(self.w.n_phases)
        ]
        return self.w.n * max(planes)
