"""Folding: sliding blocks are added into images, the adjoint of unfolding."""

from libc.string cimport memset

from kuiper._runtime.step cimport Step, at, ref_t, shard_start

cdef struct fold_t:
    ref_t x
    ref_t y
    Py_ssize_t planes            # images x channels
    Py_ssize_t rows              # of a plane
    Py_ssize_t columns
    Py_ssize_t block_rows        # number of blocks along each axis
    Py_ssize_t block_columns
    Py_ssize_t[2] taps           # of a block: rows, columns
    Py_ssize_t[2] dilation
    Py_ssize_t[2] stride
    Py_ssize_t[2] padding


cdef class FoldStep(Step):
    """Adds sliding blocks into images.

    Parameters
    ----------
    x : TensorView, shape (planes, taps, blocks), C order
        Taps and blocks are numbered row by row.
    y : TensorView, shape (planes, rows, columns), C order
    blocks, kernel_size, dilation, stride, padding : tuple of two int
    """

    cdef fold_t p

    def __init__(self, x, y, blocks, kernel_size, dilation, stride, padding):
        cdef int i
        self.p.x, self.p.y = self.ref(x), self.ref(y)
        self.p.planes, self.p.rows, self.p.columns = y.shape
        self.p.block_rows, self.p.block_columns = blocks
        for i in range(2):
            self.p.taps[i] = kernel_size[i]
            self.p.dilation[i] = dilation[i]
            self.p.stride[i] = stride[i]
            self.p.padding[i] = padding[i]
        self.run = fold_run
        self.params = &self.p
        self.kind = "fold"
        self.flops = float(x.size)
        self.bytes = float(x.n_bytes + y.n_bytes)
        self.max_shards = max(self.p.planes, 1)


cdef void fold_run(
    const void* params, char* const* slots, Py_ssize_t shard, Py_ssize_t n_shards
) noexcept nogil:
    """Sums of overlapping blocks.

    Layout : x (planes, kernel rows x columns, block rows x columns) -> y (planes, rows, columns)
    Needs  : both in C order
    Threads: over planes
    Source : torch.nn.Fold
    """
    cdef const fold_t* p = <const fold_t*> params
    cdef const float* x = <const float*> at(slots, p.x)
    cdef float* y = <float*> at(slots, p.y)
    cdef const float* source
    cdef float* plane
    cdef float* target
    cdef Py_ssize_t size = p.rows * p.columns, blocks = p.block_rows * p.block_columns
    cdef Py_ssize_t step = p.stride[1], q, i, j, row, column, first, last, r, c
    for q in range(
        shard_start(p.planes, shard, n_shards), shard_start(p.planes, shard + 1, n_shards)
    ):
        plane = y + q * size
        memset(plane, 0, size * sizeof(float))
        for i in range(p.taps[0]):
            for j in range(p.taps[1]):
                source = x + ((q * p.taps[0] + i) * p.taps[1] + j) * blocks
                column = j * p.dilation[1] - p.padding[1]
                # The range of c with this tap inside the row: 0 <= column + c * step < columns.
                first = 0 if column >= 0 else (step - 1 - column) // step
                last = p.block_columns
                if column + (last - 1) * step >= p.columns:
                    last = 0 if column >= p.columns else (p.columns - 1 - column) // step + 1
                for r in range(p.block_rows):
                    row = i * p.dilation[0] - p.padding[0] + r * p.stride[0]
                    if row < 0 or row >= p.rows:
                        continue
                    target = plane + row * p.columns + column
                    if step == 1:
                        for c in range(first, last):
                            target[c] += source[r * p.block_columns + c]
                    else:
                        for c in range(first, last):
                            target[c * step] += source[r * p.block_columns + c]
