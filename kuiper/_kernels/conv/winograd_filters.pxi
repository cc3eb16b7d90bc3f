# Filters of a Winograd convolution: read, packed as they are, transformed, at once or later.

cdef class WinogradFilters:
    """3x3 filters, transformed and packed, at once or later.

    Parameters
    ----------
    weight : array, shape (out_channels, in_channels, 3, 3), float32
        In C order.  Or anything with a shape, slices of which are such arrays, and perhaps an
        `in_file`, a :class:`~kuiper._runtime.stored_rows.StoredRows` of them.
    tile : int
        Side of a tile, 2 or 4.
    stride : int
        1, or 2 with a tile of 4.
    n_threads : int
    later : bool, default=False
        Do nothing yet: until :meth:`advance` has transformed all, runs read slices of `weight` and
        transform them where they are used.

    Attributes
    ----------
    weights : numpy.ndarray or None, shape ((tile + 2) ** 2, panels, 1 + in_channels, nr), float32
        Not all of it is written while filters are waiting.
    """

    cdef const char* transformed  # the weights; NULL until all are there
    cdef const kernels_t* kernels
    cdef int tile, stride
    cdef Py_ssize_t columns, channels, panels
    cdef Py_ssize_t done          # panels
    cdef object source            # kept: runs that began before all were transformed still read it
    cdef stored_t stored          # where it lies
    cdef readonly object weights
    cdef object failure           # why they could not be read in a run, which raises it

    def __init__(self, weight, int tile, int stride=1, int n_threads=1, bint later=False):
        self.columns, self.channels = weight.shape[:2]
        self.kernels = active()
        self.tile, self.stride = tile, stride
        self.panels = n_panels(self.columns)
        self.source = weight
        self.stored = where_stored(weight)
        if not later:
            self.allocate()
            for rows in parts(weight, n_threads):
                self.transform(rows, n_threads)
            self.publish()

    @property
    def is_waiting(self):
        """Whether runs that begin now have to read the filters."""
        return self.transformed == NULL

    @property
    def scratch_bytes(self):
        """Memory that a run needs to read and transform some filters; 0 where all are."""
        if not self.is_waiting:
            return 0
        return 4 * self.kernels.nr * (
            1 + 2 * 9 * self.channels + (self.tile + 2) * (1 + self.channels)
        )

    cdef allocate(self):
        self.weights = aligned_empty(
            ((self.tile + 2) ** 2, self.panels, 1 + self.channels, self.kernels.nr)
        )

    cdef publish(self):
        publish(&self.transformed, <const char*> <uintptr_t> self.weights.ctypes.data)

    def advance(self, int n_threads=1):
        """Transform some of the filters, some megabytes of weights; call it until it is done.

        Not from two threads at a time.

        Returns
        -------
        bool
            Whether there are any left.

        Raises
        ------
        MemoryError
            The system has not as much as the weights take.  The filters can be used as they are.
        ModelFormatError
            They cannot be read.
        """
        if not self.is_waiting:
            return False
        if self.weights is None:
            self.allocate()
        panel_bytes = 4 * (self.tile + 2) ** 2 * (1 + self.channels) * self.kernels.nr
        stop = min(self.done + max(ADVANCE_BYTES // panel_bytes, 1), self.panels)
        nr = self.kernels.nr
        self.transform(slice(self.done * nr, min(stop * nr, self.columns)), n_threads)
        self.done = stop
        if stop == self.panels:
            self.publish()
        return stop < self.panels

    cdef transform(self, rows, int n_threads):
        """Write the weights of some panels."""
        cdef float[:, :, :, ::1] out = self.weights
        cdef Py_ssize_t nr = self.kernels.nr, terms = 9 * self.channels
        cdef Py_ssize_t start = rows.start // nr, n = ceil_div(rows.stop - rows.start, nr)
        cdef float[:, :, ::1] taps = np.empty((n, 1 + terms, nr), np.float32)
        cdef filters_t job
        if n == 0:
            return
        job.filters, job.kernels = <void*> self, self.kernels
        job.tile, job.stride, job.channels = self.tile, self.stride, self.channels
        job.start, job.taps = start, &taps[0, 0, 0]
        job.out, job.frequency = &out[0, start, 0, 0], out.strides[0] // 4
        self.pack(&job, n, rows, n_threads)
        with nogil:
            share_out(transform_one, &job, n * (self.tile + 2), n_threads)

    cdef pack(self, filters_t* job, Py_ssize_t n, rows, int n_threads):
        """Read and pack the filters of some panels as they are."""
        cdef float[:, ::1] space
        cdef const float[:, :, :, ::1] filters
        job.faults = self.stored.descriptor < 0
        if not job.faults:
            space = np.empty((max(n_threads, 1), self.kernels.nr * 9 * self.channels), np.float32)
            job.space = &space[0, 0]
            with nogil:
                share_out(read_one, job, n, n_threads)
        if job.faults:
            filters = self.source[rows]
            job.source, job.columns = &filters[0, 0, 0, 0], filters.shape[0]
            with nogil:
                share_out(pack_one, job, n, n_threads)

    cdef bint read_stored(self, Py_ssize_t panel, float* space, float* taps) noexcept nogil:
        """Read the filters of one panel from their file, pack them, and tell whether it went well.
        """
        cdef Py_ssize_t nr = self.kernels.nr, start = panel * nr
        cdef Py_ssize_t count = min(nr, self.columns - start)
        if not read_rows(&self.stored, start, start + count, <char*> space):
            return False
        pack_taps(self.kernels, space, 9 * self.channels, count, taps)
        return True

    cdef int read_taps(self, Py_ssize_t panel, float* taps) except -1:
        """Read the filters of one panel as they are, and pack them."""
        cdef Py_ssize_t nr = self.kernels.nr, start = panel * nr
        cdef Py_ssize_t count = min(nr, self.columns - start)
        cdef const float[:, :, :, ::1] filters = self.source[start:start + count]
        with nogil:
            pack_taps(self.kernels, &filters[0, 0, 0, 0], 9 * self.channels, count, taps)
        return 0


cdef struct filters_t:           # what threads need to read, pack and transform some
    void* filters                # the WinogradFilters
    const kernels_t* kernels
    int tile
    int stride
    Py_ssize_t channels
    Py_ssize_t start             # the first panel
    const float* source          # its filters, where they are in memory
    Py_ssize_t columns           # how many there are
    float* space                 # for the filters of a panel, for each thread
    float* taps                  # the panels, packed as they are
    float* out                   # the weights, from the first panel on
    Py_ssize_t frequency         # from one to the next, in floats
    int faults                   # panels that could not be read


cdef void read_one(void* job, Py_ssize_t panel, Py_ssize_t rank) noexcept nogil:
    cdef filters_t* some = <filters_t*> job
    cdef Py_ssize_t nr = some.kernels.nr, terms = 9 * some.channels
    if not (<WinogradFilters> some.filters).read_stored(
        some.start + panel, some.space + rank * nr * terms, some.taps + panel * (1 + terms) * nr
    ):
        count_up(&some.faults)


cdef void pack_one(void* job, Py_ssize_t panel, Py_ssize_t rank) noexcept nogil:
    cdef filters_t* some = <filters_t*> job
    cdef Py_ssize_t nr = some.kernels.nr, terms = 9 * some.channels
    pack_taps(
        some.kernels, some.source + panel * nr * terms, terms,
        min(nr, some.columns - panel * nr), some.taps + panel * (1 + terms) * nr,
    )


cdef void transform_one(void* job, Py_ssize_t item, Py_ssize_t rank) noexcept nogil:
    """Write one row of points of one panel."""
    cdef filters_t* some = <filters_t*> job
    cdef Py_ssize_t nr = some.kernels.nr, points = some.tile + 2, i
    cdef Py_ssize_t panel = item // points, row = item % points
    cdef Py_ssize_t panel_size = (1 + some.channels) * nr
    cdef float* out = some.out + points * row * some.frequency + panel * panel_size
    for i in range(points):
        populate(<char*> (out + i * some.frequency), 4 * panel_size)
    transform_row(
        some.kernels, some.tile, some.stride, row, some.channels,
        some.taps + panel * (1 + 9 * some.channels) * nr, out, some.frequency,
    )


cdef void pack_taps(
    const kernels_t* kernels, const float* filters, Py_ssize_t terms, Py_ssize_t count,
    float* taps,
) noexcept nogil:
    """Pack up to nr filters as they are: behind a row for the biases, a row for each number."""
    cdef Py_ssize_t offset = 0
    pack_panel(kernels, filters, terms, 1, &offset, terms, 1, NULL, count, taps)


cdef void transform_row(
    const kernels_t* kernels, int tile, int stride, int row, Py_ssize_t channels,
    const float* taps, float* out, Py_ssize_t apart,
) noexcept nogil:
    """Write the weights of one row of points, of one panel.

    The biases are zeros: they are added once, after the transform back.
    """
    cdef Py_ssize_t nr = kernels.nr, i
    for i in range(tile + 2):
        memset(out + i * apart, 0, nr * sizeof(float))
    kernels.wino_filter[tile][stride](row, channels, taps + nr, out + nr, apart)
