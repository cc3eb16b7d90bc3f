# The filters of a Winograd convolution: reading, packing and transforming them, now or deferred.

cdef class WinogradFilters:
    """3x3 filters, transformed and packed now or later.

    Parameters
    ----------
    weight : array, shape (out_channels, in_channels, 3, 3), float32
        In C order.  May be an object with a `shape` whose slices are such arrays, and with an
        `in_file`, a :class:`~kuiper._runtime.stored_rows.StoredRows` of the filters.
    tile : int
        Side of a tile, 2 or 4.
    stride : int
        1, or 2 with a tile of 4.
    n_threads : int
    later : bool, default=False
        Defer the work to :meth:`advance`.  Until it has transformed all filters, each run reads and
        transforms slices of `weight` on use.
    pool : PagePool, optional
        Provides the memory of `weights`.

    Attributes
    ----------
    weights : numpy.ndarray or None, shape ((tile + 2) ** 2, panels, 1 + in_channels, nr), float32
        Incomplete while the filters are deferred.
    """

    cdef const char* transformed  # the weights; NULL until all are transformed
    cdef const kernels_t* kernels
    cdef int tile, stride
    cdef Py_ssize_t columns, channels, panels
    cdef Py_ssize_t done          # panels transformed
    cdef object source            # kept for runs that started before the last advance
    cdef stored_t stored          # its location in the file
    cdef readonly object weights
    cdef object pool
    cdef object failure           # the exception of a run that could not read the filters

    def __init__(
        self, weight, int tile, int stride=1, int n_threads=1, bint later=False, pool=None
    ):
        self.columns, self.channels = weight.shape[:2]
        self.kernels = active()
        self.tile, self.stride = tile, stride
        self.panels = n_panels(self.columns)
        self.pool = pool
        self.source = weight
        self.stored = where_stored(weight)
        if not later:
            self.allocate()
            for rows in parts(weight, n_threads):
                self.transform(rows, n_threads)
            self.publish()

    @property
    def is_deferred(self):
        """Whether a run that starts now has to read and transform the filters itself."""
        return self.transformed == NULL

    @property
    def scratch_bytes(self):
        """Bytes of scratch per thread to read and transform a panel; 0 if all are transformed."""
        if not self.is_deferred:
            return 0
        return 4 * self.kernels.nr * (
            1 + 2 * 9 * self.channels + (self.tile + 2) * (1 + self.channels)
        )

    cdef allocate(self):
        self.weights = aligned_empty(
            ((self.tile + 2) ** 2, self.panels, 1 + self.channels, self.kernels.nr), self.pool
        )

    cdef publish(self):
        publish(&self.transformed, <const char*> <uintptr_t> self.weights.ctypes.data)

    def advance(self, int n_threads=1):
        """Transform the next few megabytes of weights; call it until it returns False.

        Not thread-safe.

        Returns
        -------
        bool
            Whether any filters are left.

        Raises
        ------
        MemoryError
            If there is too little memory for the weights.  The filters remain usable.
        ModelFormatError
            If the filters cannot be read.
        """
        if not self.is_deferred:
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
        """Write the weights of the panels of `rows`, a slice of filters."""
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
            parallel_for(transform_one, &job, n * (self.tile + 2), n_threads)

    cdef pack(self, filters_t* job, Py_ssize_t n, rows, int n_threads):
        """Read and pack the filters of n panels without transforming them."""
        cdef float[:, ::1] space
        cdef const float[:, :, :, ::1] filters
        job.failures = self.stored.descriptor < 0
        if not job.failures:
            space = np.empty((max(n_threads, 1), self.kernels.nr * 9 * self.channels), np.float32)
            job.space = &space[0, 0]
            with nogil:
                parallel_for(read_one, job, n, n_threads)
        if job.failures:
            filters = self.source[rows]
            job.source, job.columns = &filters[0, 0, 0, 0], filters.shape[0]
            with nogil:
                parallel_for(pack_one, job, n, n_threads)

    cdef bint read_stored(self, Py_ssize_t panel, float* space, float* taps) noexcept nogil:
        """Read the filters of one panel from their file and pack them; return False on failure."""
        cdef Py_ssize_t nr = self.kernels.nr, start = panel * nr
        cdef Py_ssize_t count = min(nr, self.columns - start)
        if not read_rows(&self.stored, start, start + count, <char*> space):
            return False
        pack_taps(self.kernels, space, 9 * self.channels, count, taps)
        return True

    cdef int read_taps(self, Py_ssize_t panel, float* taps) except -1:
        """Read the filters of one panel from `source`, and pack them."""
        cdef Py_ssize_t nr = self.kernels.nr, start = panel * nr
        cdef Py_ssize_t count = min(nr, self.columns - start)
        cdef const float[:, :, :, ::1] filters = self.source[start:start + count]
        with nogil:
            pack_taps(self.kernels, &filters[0, 0, 0, 0], 9 * self.channels, count, taps)
        return 0


cdef struct filters_t:           # a job: panels to read, pack and transform
    void* filters                # the WinogradFilters
    const kernels_t* kernels
    int tile
    int stride
    Py_ssize_t channels
    Py_ssize_t start             # the first panel
    const float* source          # (columns, 9 * channels), filters in memory
    Py_ssize_t columns
    float* space                 # (threads, nr, 9 * channels), filters read from the file
    float* taps                  # (panels, 1 + 9 * channels, nr): packed, not transformed
    float* out                   # (points^2, panels, 1 + channels, nr), from the first panel on
    Py_ssize_t frequency         # stride of the first axis of `out`, in elements
    int failures                 # panels that could not be read


cdef void read_one(void* job, Py_ssize_t panel, Py_ssize_t rank) noexcept nogil:
    cdef filters_t* some = <filters_t*> job
    cdef Py_ssize_t nr = some.kernels.nr, terms = 9 * some.channels
    if not (<WinogradFilters> some.filters).read_stored(
        some.start + panel, some.space + rank * nr * terms, some.taps + panel * (1 + terms) * nr
    ):
        count_up(&some.failures)


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
    """Pack up to nr filters without transforming them: a row of biases, then a row per term."""
    cdef Py_ssize_t offset = 0
    pack_panel(kernels, filters, terms, 1, &offset, terms, 1, NULL, count, taps)


cdef void transform_row(
    const kernels_t* kernels, int tile, int stride, int row, Py_ssize_t channels,
    const float* taps, float* out, Py_ssize_t apart,
) noexcept nogil:
    """Write one panel of weights for one row of interpolation points.

    The biases are zeros: the output transform adds the real ones.
    """
    cdef Py_ssize_t nr = kernels.nr, i
    for i in range(tile + 2):
        memset(out + i * apart, 0, nr * sizeof(float))
    kernels.f32_wino_filter[tile][stride](row, channels, taps + nr, out + nr, apart)
