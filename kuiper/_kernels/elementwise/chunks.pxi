# The run of an elementwise program, chunk by chunk; included by elementwise.pyx.

# The axes of a chunk along which a value varies.
cdef enum:
    NOTHING = 0
    COLUMNS = 1
    ROWS = 2
    BOTH = COLUMNS | ROWS

cdef enum source_t:
    INPUT
    BLOCK      # a temporary
    CONSTANT

cdef struct argument_t:
    source_t source
    int number             # of the input or block
    int varies             # the axes along which a block varies
    float constant

# One link of a chain; see link_t.
cdef struct operation_t:
    int code
    float p0
    float p1
    argument_t x
    argument_t z

# One pass over a chunk: a function of one operand or of two, or a chain.
cdef struct step_t:
    unary_fn unary         # NULL except for a function of one operand
    binary_fn binary       # NULL except for a function of two
    argument_t a
    argument_t b
    float p0
    float p1
    int n_operations       # of the chain; 0 for a function
    operation_t* operations  # (n_operations,)
    int varies             # the axes along which the result varies
    int target             # the block of the result
    bint is_held           # whether the result remains valid for later chunks

cdef enum element_t:
    FLOAT32
    BFLOAT16
    BYTE

# How a tensor is stored.  A byte stands for the float (byte - zero) * factor.
cdef struct stored_t:
    element_t element
    float factor           # the scale; its inverse for a result
    int zero

ctypedef fused narrow_t:
    uint8_t
    uint16_t               # bfloat16

cdef struct input_t:
    ref_t ref
    stored_t stored
    const float* fixed     # the data of a constant array; NULL for an operand
    int varies
    int block              # the block that receives a copy of each chunk; -1: read in memory
    Py_ssize_t row         # strides of the two innermost loops, in elements
    Py_ssize_t column

cdef struct program_t:
    const kernels_t* kernels
    int n_inputs
    int n_steps
    input_t* inputs        # (n_inputs,)
    step_t* steps          # (n_steps,)
    operation_t* operations  # the links of all chains
    ref_t y                # any strides
    stored_t y_stored
    Py_ssize_t y_row       # strides of the two innermost loops, in elements
    Py_ssize_t y_column
    bint is_direct         # whether the last step writes to the result's memory
    Py_ssize_t n_rows      # extents of the two innermost loops
    Py_ssize_t n_columns
    Py_ssize_t row_step    # extents of a chunk
    Py_ssize_t column_step
    Py_ssize_t chunk       # floats per block
    strided_t chunks       # offsets of inputs and y, in elements; innermost: rows, columns
    int row_axis           # the loops of `chunks` over rows and over columns
    int column_axis

# The location and strides of a value in the current chunk.
cdef struct view_t:
    const float* data
    Py_ssize_t row
    Py_ssize_t column


# Running ---------------------------------------------------------------------------------------

cdef void elementwise_run(
    const void* params, char* const* slots, Py_ssize_t shard, Py_ssize_t n_shards
) noexcept nogil:
    """Run a program over broadcast tensors of float32, bfloat16 or bytes, in float32.

    Layout : any strides; inputs broadcast by strides of 0
    Needs  : the result overlaps no input, except one with the same address and strides
    Threads: over chunks; no shared writes
    Source : none; the functions are PyTorch's
    """
    cdef const program_t* p = <const program_t*> params
    cdef Py_ssize_t first = shard_start(p.chunks.count, shard, n_shards), _i
    cdef Py_ssize_t stop = shard_start(p.chunks.count, shard + 1, n_shards)
    cdef float[SCRATCH_FLOATS] scratch
    cdef view_t[MAX_INPUTS] views
    cdef (const char*)[MAX_INPUTS] before
    cdef Py_ssize_t rows, columns, columns_before = -1
    cdef cursor_t cursor
    cdef const char* data
    cdef const input_t* x
    cdef int i
    cdef bint is_fresh
    for i in range(p.n_inputs):
        before[i] = NULL
    if first >= stop:
        return
    seek(&p.chunks, p.n_inputs + 1, &cursor, first)
    for _i in range(first, stop):
        rows = min(p.row_step, p.n_rows - cursor.index[p.row_axis] * p.row_step)
        columns = min(p.column_step, p.n_columns - cursor.index[p.column_axis] * p.column_step)
        is_fresh = columns != columns_before
        for i in range(p.n_inputs):
            x = &p.inputs[i]
            data = <const char*> x.fixed
            if data == NULL:
                data = at(slots, x.ref)
            data += cursor.offset[i] * item_size(&x.stored)
            if x.block < 0:
                views[i].data, views[i].row, views[i].column = <const float*> data, x.row, x.column
            else:
                views[i] = without_gaps(scratch + x.block * p.chunk, x.varies, columns)
                if x.varies & ROWS or data != before[i] or columns != columns_before:
                    gather(p, x, data, rows, columns, scratch + x.block * p.chunk)
            is_fresh |= not x.varies & ROWS and data != before[i]
            before[i] = data
        columns_before = columns
        data = at(slots, p.y)
        data += cursor.offset[p.n_inputs] * item_size(&p.y_stored)
        run_chunk(p, views, scratch, is_fresh, rows, columns, <char*> data)
        advance(&p.chunks, p.n_inputs + 1, &cursor)


cdef inline Py_ssize_t item_size(const stored_t* stored) noexcept nogil:
    return 1 if stored.element == BYTE else 2 if stored.element == BFLOAT16 else 4


cdef inline view_t without_gaps(const float* data, int varies, Py_ssize_t columns) noexcept nogil:
    """Return the view of a value in a block, which is dense along the axes where it varies."""
    cdef view_t view
    view.data = data
    view.column = 1 if varies & COLUMNS else 0
    view.row = 0
    if varies & ROWS:
        view.row = columns if varies & COLUMNS else 1
    return view


cdef void gather(
    const program_t* p, const input_t* x, const char* source,
    Py_ssize_t rows, Py_ssize_t columns, float* block,
) noexcept nogil:
    """Copy a chunk of an input densely into a block."""
    cdef const float* data = <const float*> source
    cdef Py_ssize_t i, j
    if not x.varies & ROWS:
        rows = 1
    if not x.varies & COLUMNS:
        columns = 1
    if x.stored.element == BYTE:
        gather_narrow(p, x, <const uint8_t*> source, rows, columns, block)
        return
    if x.stored.element == BFLOAT16:
        gather_narrow(p, x, <const uint16_t*> source, rows, columns, block)
        return
    if x.row == 1 and x.column > 1:
        p.kernels.b32_transpose(data, x.column, block, columns, columns, rows)
        return
    for i in range(rows):
        for j in range(columns):
            block[i * columns + j] = data[i * x.row + j * x.column]


cdef inline void widen(
    const program_t* p, const input_t* x, Py_ssize_t n, const narrow_t* data, float* y
) noexcept nogil:
    if narrow_t is uint8_t:
        p.kernels.u8_to_f32(n, data, y, x.stored.factor, x.stored.zero)
    else:
        p.kernels.typed_convert(typed.BFLOAT16, typed.FLOAT32, n, data, y)


cdef inline void gather_narrow(
    const program_t* p, const input_t* x, const narrow_t* data,
    Py_ssize_t rows, Py_ssize_t columns, float* block,
) noexcept nogil:
    """Widen a chunk of bytes or bfloat16 into a block of floats."""
    cdef narrow_t[MAX_CHUNK] dense
    cdef Py_ssize_t i, j
    if columns == 1 or x.column == 1:
        if rows == 1 or (x.row == columns and columns > 1) or (x.row == 1 and columns == 1):
            columns *= rows
            rows = 1
        if rows == 1 or columns >= SHORT_ROW:
            for i in range(rows):
                widen(p, x, columns, data + i * x.row, block + i * columns)
            return
    for i in range(rows):
        for j in range(columns):
            dense[i * columns + j] = data[i * x.row + j * x.column]
    widen(p, x, rows * columns, <const narrow_t*> dense, block)


cdef void run_chunk(
    const program_t* p, const view_t* views, float* scratch, bint is_fresh,
    Py_ssize_t rows, Py_ssize_t columns, char* y,
) noexcept nogil:
    """Run the steps over one chunk; recompute held results only if `is_fresh`."""
    cdef const step_t* step = NULL
    cdef float* target = NULL
    cdef view_t result
    cdef int i, last = p.n_steps - 1
    for i in range(p.n_steps):
        step = &p.steps[i]
        target = scratch + step.target * p.chunk
        if step.is_held:
            if is_fresh:
                run_step(
                    p, step, views, scratch, columns, False,
                    p.row_step if step.varies == BOTH else 1,
                    1 if step.varies == NOTHING else columns, target, columns,
                )
        elif i == last and p.is_direct:
            run_step(p, step, views, scratch, columns, False, rows, columns, <float*> y, p.y_row)
        elif step.varies == BOTH:
            run_step(p, step, views, scratch, columns, False, rows, columns, target, columns)
        elif step.varies == ROWS:
            # The values, one per row, are stored contiguously.
            run_step(p, step, views, scratch, columns, True, 1, rows, target, rows)
        elif step.varies == COLUMNS:
            run_step(p, step, views, scratch, columns, False, 1, columns, target, columns)
        else:
            run_step(p, step, views, scratch, columns, False, 1, 1, target, 1)
    if not p.is_direct:
        result = without_gaps(target, step.varies, columns)
        if p.y_stored.element == BYTE:
            scatter_narrow(p, result, rows, columns, <uint8_t*> y)
        elif p.y_stored.element == BFLOAT16:
            scatter_narrow(p, result, rows, columns, <uint16_t*> y)
        else:
            scatter(result, rows, columns, <float*> y, p.y_row, p.y_column)


cdef inline view_t view_of(
    const program_t* p, const argument_t* argument, const view_t* views, const float* scratch,
    Py_ssize_t chunk_columns, bint turned,
) noexcept nogil:
    """Return the location of an argument; with `turned`, advance along rows instead of columns."""
    cdef view_t view
    if argument.source == INPUT:
        view = views[argument.number]
    elif argument.source == BLOCK:
        view = without_gaps(
            scratch + argument.number * p.chunk, argument.varies, chunk_columns
        )
    else:
        view = without_gaps(&argument.constant, NOTHING, chunk_columns)
    if turned:
        view.column = view.row
    return view


cdef void run_step(
    const program_t* p, const step_t* step, const view_t* views, const float* scratch,
    Py_ssize_t chunk_columns, bint turned,
    Py_ssize_t rows, Py_ssize_t columns, float* y, Py_ssize_t y_row,
) noexcept nogil:
    """Run one step over rows x columns elements."""
    cdef view_t a, b
    cdef rows_t r
    cdef chain_t chain
    cdef Py_ssize_t i
    cdef bint is_flat = y_row == columns
    if step.n_operations > 0:
        chain.n_links = step.n_operations
        for i in range(step.n_operations):
            a = view_of(p, &step.operations[i].x, views, scratch, chunk_columns, turned)
            chain.links[i].code = step.operations[i].code
            chain.links[i].p0, chain.links[i].p1 = step.operations[i].p0, step.operations[i].p1
            chain.links[i].x, chain.links[i].row = <float*> a.data, a.row
            chain.links[i].moves = a.column != 0
            is_flat &= is_one_run(a, columns)
            b = view_of(p, &step.operations[i].z, views, scratch, chunk_columns, turned)
            chain.links[i].z, chain.links[i].z_row = b.data, b.row
            chain.links[i].z_moves = b.column != 0
            is_flat &= is_one_run(b, columns)
        chain.n_rows, chain.n_columns = rows, columns
        if is_flat:
            chain.n_rows, chain.n_columns = 1, rows * columns
        chain.y, chain.y_row = y, y_row
        p.kernels.f32_chain(&chain)
        return
    a = view_of(p, &step.a, views, scratch, chunk_columns, turned)
    is_flat &= is_one_run(a, columns)
    if step.unary != NULL:
        if is_flat:
            columns *= rows
            rows = 1
        for i in range(rows):
            step.unary(columns, a.data + i * a.row, y + i * y_row, step.p0, step.p1)
        return
    b = view_of(p, &step.b, views, scratch, chunk_columns, turned)
    r.n_rows, r.n_columns = rows, columns
    if is_flat and is_one_run(b, columns):
        r.n_rows, r.n_columns = 1, rows * columns
    r.a, r.a_row, r.a_column = a.data, a.row, a.column
    r.b, r.b_row, r.b_column = b.data, b.row, b.column
    r.y, r.y_row = y, y_row
    step.binary(&r)


cdef inline bint is_one_run(view_t view, Py_ssize_t columns) noexcept nogil:
    """Tell whether all rows together are one run with a constant stride."""
    return view.row == columns * view.column


cdef void scatter(
    view_t x, Py_ssize_t rows, Py_ssize_t columns, float* y, Py_ssize_t y_row, Py_ssize_t y_column
) noexcept nogil:
    """Broadcast a value to a chunk of the result."""
    cdef Py_ssize_t i, j
    for i in range(rows):
        for j in range(columns):
            y[i * y_row + j * y_column] = x.data[i * x.row + j * x.column]


cdef inline void narrow(
    const program_t* p, Py_ssize_t n, const float* x, narrow_t* y
) noexcept nogil:
    if narrow_t is uint8_t:
        p.kernels.f32_to_u8(n, x, y, p.y_stored.factor, p.y_stored.zero)
    else:
        p.kernels.f32_to_bf16(n, x, y)


cdef inline void scatter_narrow(
    const program_t* p, view_t x, Py_ssize_t rows, Py_ssize_t columns, narrow_t* y
) noexcept nogil:
    """Narrow a value to bytes or bfloat16, and broadcast it to a chunk of the result."""
    cdef narrow_t[MAX_CHUNK] dense
    cdef Py_ssize_t i, j
    cdef Py_ssize_t x_rows = rows if x.row else 1, x_columns = columns if x.column else 1
    if x.row and x.column and p.y_column == 1:
        if p.y_row == columns:
            narrow(p, rows * columns, x.data, y)
            return
        if columns >= SHORT_ROW:
            for i in range(rows):
                narrow(p, columns, x.data + i * x.row, y + i * p.y_row)
            return
    narrow(p, x_rows * x_columns, x.data, <narrow_t*> dense)
    for i in range(rows):
        for j in range(columns):
            y[i * p.y_row + j * p.y_column] = dense[i * x.row + j * x.column]
