"""Elementwise programs: a whole expression in one pass over memory.

A program (:class:`kuiper.expression.ElementwiseProgram`) is a straight line of instructions.  The
tensors it reads and the one it writes become a nest of loops: axes of extent 1 go, axes that all
tensors walk as one are merged, the rest is ordered by the result's strides.  The two innermost
loops are cut into *chunks* of rows and columns, small enough for the temporaries of a chunk to stay
in the L1 cache.  Cheap instructions form *chains* (see chains.py), which keep a
value in registers; chains, and every other instruction, run over a whole chunk before what
follows.

What does not vary along the columns of a chunk is computed once per row, and what does not vary
along its rows once for as long as it holds: in ``mul(@0,sigmoid(@1))`` with a gate per channel, the
sigmoid costs nothing.  Where rows are short, such values are repeated to the size of a chunk, so
that the loops over tensors of full size stay long.
"""

from cpython.buffer cimport PyBUF_STRIDES, PyBuffer_Release, PyObject_GetBuffer
from cython.parallel cimport prange
from libc.stdint cimport uintptr_t
from libc.stdlib cimport calloc, free

from kuiper._kernels.data.strided cimport (
    MAX_LOOPS, advance, cursor_t, fill_strided, seek, strided_t,
)
from kuiper._kernels.micro.dispatch cimport active
from kuiper._kernels.micro.table cimport (
    LINK_ADD_PRODUCT, LINK_LOAD, LINK_STORE, MAX_LINKS, N_LINKS, binary_fn, chain_t,
    kernels_t, rows_t, unary_fn,
)
from kuiper._runtime.step cimport Step, at, ceil_div, ref_t, shard_start

import numpy as np

from kuiper._kernels.data.loops import strided_loops
from kuiper._kernels.elementwise.chains import find_passes, insert_copies, reads_of
from kuiper.errors import KuiperError

cdef enum:
    MAX_INPUTS = 64
    SCRATCH_FLOATS = 8192  # temporaries of one shard: 32 KB
    MAX_CHUNK = 8192       # elements; the longer, the better memory is read ahead
    MIN_CHUNK = 64
    SHORT_ROW = 32         # columns; shorter rows are laid side by side before anything else
    NARROW_ROW = 512       # columns; up to here, what does not vary along the rows is repeated
    SHARD_COST = 16384     # additions that are worth another thread

# Along what a value varies within a chunk.
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
    int number
    int varies
    float constant

# One operation of a chain; see link_t.
cdef struct operation_t:
    int code
    float p0
    float p1
    argument_t x
    argument_t z

# What runs over a chunk: a function of one value or of two, or a chain.
cdef struct step_t:
    unary_fn unary         # NULL unless it is one
    binary_fn binary       # NULL unless it is one
    argument_t a
    argument_t b
    float p0
    float p1
    int n_operations       # of the chain, 0 for a function
    operation_t* operations
    int varies             # what it computes
    int target             # the block that takes it
    bint is_held           # whether the result holds for more than one chunk

cdef struct input_t:
    ref_t ref
    const float* fixed     # a constant array instead of an operand, or NULL
    int varies
    int block              # where a copy of its chunk goes, or -1 where it is read in place
    Py_ssize_t row         # strides of the two innermost loops, in elements
    Py_ssize_t column

cdef struct program_t:
    const kernels_t* kernels
    int n_inputs
    int n_steps
    input_t* inputs
    step_t* steps
    operation_t* operations  # of all chains
    ref_t y
    Py_ssize_t y_row
    Py_ssize_t y_column
    bint is_direct         # the last step writes the result itself
    Py_ssize_t n_rows      # the two innermost loops
    Py_ssize_t n_columns
    Py_ssize_t row_step    # a chunk of them
    Py_ssize_t column_step
    Py_ssize_t chunk       # floats in a block
    strided_t chunks       # inputs and y, in elements; the last two loops are over rows and columns
    int row_axis           # which of them is which
    int column_axis

# Where a value of the current chunk lies.
cdef struct view_t:
    const float* data
    Py_ssize_t row
    Py_ssize_t column


# Running ---------------------------------------------------------------------------------------

cdef void elementwise_run(
    const void* params, char* const* slots, Py_ssize_t shard, Py_ssize_t n_shards
) noexcept nogil:
    """Run a program over broadcast float32 tensors.

    Layout : any strides; inputs broadcast by strides of 0
    Needs  : the result overlaps no input but those that lie exactly as it does
    Threads: over chunks; no shared writes
    Source : none; the operators are PyTorch's
    """
    cdef const program_t* p = <const program_t*> params
    cdef Py_ssize_t first = shard_start(p.chunks.count, shard, n_shards), _i
    cdef Py_ssize_t stop = shard_start(p.chunks.count, shard + 1, n_shards)
    cdef float[SCRATCH_FLOATS] scratch
    cdef view_t[MAX_INPUTS] views
    cdef (const float*)[MAX_INPUTS] before
    cdef Py_ssize_t rows, columns, columns_before = -1
    cdef cursor_t cursor
    cdef const float* data
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
            data = <const float*> at(slots, x.ref) if x.fixed == NULL else x.fixed
            data += cursor.offset[i]
            if x.block < 0:
                views[i].data, views[i].row, views[i].column = data, x.row, x.column
            else:
                views[i] = without_gaps(scratch + x.block * p.chunk, x.varies, columns)
                if x.varies & ROWS or data != before[i] or columns != columns_before:
                    gather(p, x, data, rows, columns, scratch + x.block * p.chunk)
            is_fresh |= not x.varies & ROWS and data != before[i]
            before[i] = data
        columns_before = columns
        run_chunk(
            p, views, scratch, is_fresh, rows, columns,
            <float*> at(slots, p.y) + cursor.offset[p.n_inputs],
        )
        advance(&p.chunks, p.n_inputs + 1, &cursor)


cdef inline view_t without_gaps(const float* data, int varies, Py_ssize_t columns) noexcept nogil:
    """Return how a value in a block is walked; only what varies is stored."""
    cdef view_t view
    view.data = data
    view.column = 1 if varies & COLUMNS else 0
    view.row = 0
    if varies & ROWS:
        view.row = columns if varies & COLUMNS else 1
    return view


cdef void gather(
    const program_t* p, const input_t* x, const float* data,
    Py_ssize_t rows, Py_ssize_t columns, float* block,
) noexcept nogil:
    """Copy a chunk of an input into a block, without gaps."""
    cdef Py_ssize_t i, j
    if not x.varies & ROWS:
        rows = 1
    if not x.varies & COLUMNS:
        columns = 1
    if x.row == 1 and x.column > 1:
        p.kernels.b32_transpose(data, x.column, block, columns, columns, rows)
        return
    for i in range(rows):
        for j in range(columns):
            block[i * columns + j] = data[i * x.row + j * x.column]


cdef void run_chunk(
    const program_t* p, const view_t* views, float* scratch, bint is_fresh,
    Py_ssize_t rows, Py_ssize_t columns, float* y,
) noexcept nogil:
    """Run every step over one chunk; what is held from the last one only if it `is_fresh`."""
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
            run_step(p, step, views, scratch, columns, False, rows, columns, y, p.y_row)
        elif step.varies == BOTH:
            run_step(p, step, views, scratch, columns, False, rows, columns, target, columns)
        elif step.varies == ROWS:
            # A column of the chunk is stored as a row.
            run_step(p, step, views, scratch, columns, True, 1, rows, target, rows)
        elif step.varies == COLUMNS:
            run_step(p, step, views, scratch, columns, False, 1, columns, target, columns)
        else:
            run_step(p, step, views, scratch, columns, False, 1, 1, target, 1)
    if not p.is_direct:
        result = without_gaps(target, step.varies, columns)
        scatter(result, rows, columns, y, p.y_row, p.y_column)


cdef inline view_t view_of(
    const program_t* p, const argument_t* argument, const view_t* views, const float* scratch,
    Py_ssize_t chunk_columns, bint turned,
) noexcept nogil:
    """Return where an argument lies; `turned` walks its rows as columns."""
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
    """Tell whether rows follow each other so that they may be walked as one."""
    return view.row == columns * view.column


cdef void scatter(
    view_t x, Py_ssize_t rows, Py_ssize_t columns, float* y, Py_ssize_t y_row, Py_ssize_t y_column
) noexcept nogil:
    """Spread a value over a chunk of the result."""
    cdef Py_ssize_t i, j
    for i in range(rows):
        for j in range(columns):
            y[i * y_row + j * y_column] = x.data[i * x.row + j * x.column]


# Functions -------------------------------------------------------------------------------------

# UNARY, BINARY (numbers in the micro-kernels' table), LINKS (codes), SWAPPED and COSTS: generated
# from kuiper/expression/functions.py.
include "function_tables.pxi"

_CODES = {name: code + N_LINKS for name, code in LINKS.items()}
_CODES |= {"load": LINK_LOAD, "store": LINK_STORE, "add_product": LINK_ADD_PRODUCT}


def unary_number(name):
    """Return the number of a function of one tensor in the micro-kernels' table.

    Parameters
    ----------
    name : str
        A function of one operand, or ``clamp``.

    Raises
    ------
    KeyError
        If there is no such kernel; ``relu6`` is ``clamp`` with the parameters 0 and 6.
    """
    return UNARY[name]


# Preparing -------------------------------------------------------------------------------------

cdef class ElementwiseStep(Step):
    """One pass over memory that computes a program.

    Parameters
    ----------
    program : ElementwiseProgram
    inputs : sequence of (TensorView or numpy.ndarray)
        One float32 tensor per source of the program, of any shape that broadcasts to the result's.
        An array is a constant and is kept.
    output : TensorView
        Of the program's shape.  It may lie exactly where an input lies, but overlap none otherwise.

    Raises
    ------
    KuiperError
        If the program is larger than a chunk's temporaries may be.
    """

    cdef program_t p

    def __init__(self, program, inputs, output):
        if len(inputs) > MAX_INPUTS:
            raise KuiperError(f"a program reads {len(inputs)} tensors, at most {MAX_INPUTS} can be")
        self.p.kernels = active()
        self.p.n_inputs = len(inputs)
        self.p.inputs = <input_t*> allocated(len(inputs), sizeof(input_t))
        # Every argument of an instruction may need a copy.
        self.p.steps = <step_t*> allocated(3 * len(program.instructions), sizeof(step_t))
        # At the most, every instruction is a chain of its own: loaded, computed, stored.
        self.p.operations = <operation_t*> allocated(
            3 * len(program.instructions), sizeof(operation_t)
        )
        self.keep = []
        strides = [self._place(i, value, program.shape) for i, value in enumerate(inputs)]
        self.p.y = self.ref(output)
        outer = self._arrange(program.shape, output.strides, strides)
        n_blocks, is_transposed, repeats = self._place_chunks()
        n_blocks = self._schedule(program.instructions, n_blocks, repeats)
        if n_blocks * MIN_CHUNK > SCRATCH_FLOATS:
            raise KuiperError(
                f"a program keeps {n_blocks} temporaries at once, at most "
                f"{SCRATCH_FLOATS // MIN_CHUNK} can be"
            )
        self._cut(outer, SCRATCH_FLOATS // max(n_blocks, 1), is_transposed)
        self.run = elementwise_run
        self.params = &self.p
        self.kind = "elementwise"
        size = output.size
        cost = sum(COSTS[i.name] for i in program.instructions)
        self.max_shards = max(1, min(self.p.chunks.count, <Py_ssize_t> (size * cost) // SHARD_COST))
        self.flops = float(size * len(program.instructions))
        self.bytes = 4.0 * (size + sum(value.size for value in inputs))

    def __dealloc__(self):
        free(self.p.inputs)
        free(self.p.steps)
        free(self.p.operations)

    cdef _place(self, int i, value, shape):
        """Note where input `i` lies and return its strides, broadcast to `shape`."""
        if isinstance(value, np.ndarray):
            value = np.require(value, np.float32, "A")
            self.keep.append(value)
            self.p.inputs[i].fixed = <const float*> <uintptr_t> value.ctypes.data
            strides = [stride // 4 for stride in value.strides]
        else:
            self.p.inputs[i].ref = self.ref(value)
            strides = value.strides
        lead = len(shape) - len(value.shape)
        return [0] * lead + [
            0 if extent == 1 else stride
            for extent, stride in zip(value.shape, strides, strict=True)
        ]

    cdef _arrange(self, shape, y_strides, strides):
        """Choose rows and columns among the merged axes, and return the loops around them."""
        cdef int i
        cdef input_t* x
        loops = strided_loops(shape, [*strides, y_strides], order=y_strides)
        if len(loops) > MAX_LOOPS:
            raise KuiperError(f"{len(loops)} loops over tensors, at most {MAX_LOOPS} can be")
        if len(loops) < 2:
            loops.insert(0, (1, (0,) * (self.p.n_inputs + 1)))
        *outer, (self.p.n_rows, x_rows), (self.p.n_columns, x_columns) = loops
        self.p.y_row, self.p.y_column = x_rows[self.p.n_inputs], x_columns[self.p.n_inputs]
        for i in range(self.p.n_inputs):
            x = &self.p.inputs[i]
            x.row, x.column = x_rows[i], x_columns[i]
            x.varies = (COLUMNS if x.column else NOTHING) | (ROWS if x.row else NOTHING)
        return outer

    cdef tuple _place_chunks(self):
        """Decide which inputs are copied chunk by chunk.

        Returns
        -------
        int
            How many blocks these copies take.
        bool
            Whether one of them is a transposition.
        bool
            Whether what does not vary along the rows shall be repeated: where rows are short, and
            everything else lies row behind row.
        """
        cdef int i, n_blocks = 0
        cdef input_t* x
        cdef bint is_short = self.p.n_columns < SHORT_ROW and self.p.n_rows > 1
        cdef bint is_transposed = False, is_flat = True
        for i in range(self.p.n_inputs):
            x = &self.p.inputs[i]
            x.block = -1
            if is_short and x.varies & ROWS and x.row != self.p.n_columns * x.column:
                x.varies = BOTH
                x.block = n_blocks
            elif x.column not in (0, 1) or (x.varies == ROWS and x.row != 1):
                x.block = n_blocks
                is_transposed |= x.varies == BOTH and abs(x.row) < abs(x.column)
            elif x.varies & ROWS and x.row != self.p.n_columns * x.column:
                is_flat = False
            if x.block >= 0:
                n_blocks += 1
        is_flat &= is_short or (self.p.y_row == self.p.n_columns and self.p.y_column == 1)
        repeats = is_flat and self.p.n_rows > 1 and self.p.n_columns < NARROW_ROW
        return n_blocks, is_transposed, repeats

    cdef int _schedule(self, instructions, int n_blocks, bint repeats) except -1:
        """Make the steps and give each a block, used again when its value is no longer needed.

        What a step computes never shares a block with what it reads: a row that is read again and
        again would be overwritten by the first result.
        """
        cdef int i, n_operations = 0
        cdef step_t* step
        varies = []
        for instruction in instructions:
            varies.append(self._varies(instruction.arguments, varies))
        held = {i for i, along in enumerate(varies) if not along & ROWS and self.p.n_rows > 1}
        if repeats:
            columns = [
                [self._varies([argument], varies) == COLUMNS for argument in instruction.arguments]
                for instruction in instructions
            ]
            instructions, copies, number = insert_copies(
                instructions, [along == BOTH for along in varies], columns
            )
            old = {new: old for old, new in enumerate(number)}
            held = {number[i] for i in held} | copies
            varies = [BOTH if i in copies else varies[old[i]] for i in range(len(instructions))]
        passes = find_passes(instructions, varies, SWAPPED, MAX_LINKS)
        reads = [reads_of(one, instructions) for one in passes]
        last_use = {value: i for i, values in enumerate(reads) for value in values}
        self.p.n_steps = len(passes)
        blocks = {}  # of the results, by instruction
        free_blocks = []
        for i, (number, links) in enumerate(passes):
            step = &self.p.steps[i]
            step.varies = varies[number]
            step.is_held = number in held
            is_last = i == self.p.n_steps - 1
            if is_last and self._covers_chunk(step.varies):
                self.p.is_direct = True
            results = [link.operand.value for link in links if link.name == "store"]
            if not self.p.is_direct:
                results.append(number)
            for result in results:
                # What is held for later chunks has a block of its own.
                if result in held or not free_blocks:
                    free_blocks.append(n_blocks)
                    n_blocks += 1
                blocks[result] = free_blocks.pop()
            step.target = blocks.get(number, 0)
            if links:
                step.operations = self.p.operations + n_operations
                step.n_operations = len(links)
                n_operations += step.n_operations
                self._fill_chain(step, links, blocks, varies)
            else:
                self._fill_function(step, instructions[number], blocks, varies)
            free_blocks.extend(
                sorted(blocks[v] for v in reads[i] if last_use[v] == i and v not in held)
            )
        return n_blocks

    cdef int _varies(self, arguments, known) except -1:
        """Return along what a function of `arguments` varies."""
        cdef int varies = NOTHING
        for kind, value in arguments:
            if kind == "input":
                varies |= self.p.inputs[<int> value].varies
            elif kind == "register":
                varies |= <int> known[value]
        return varies

    cdef _fill_function(self, step_t* step, instruction, blocks, varies):
        name, arguments, parameters = instruction
        self._fill_argument(&step.a, arguments[0], blocks, varies)
        if len(arguments) == 1:
            step.unary = self.p.kernels.f32_unary[<int> UNARY[name]]
        else:
            step.binary = self.p.kernels.f32_binary[<int> BINARY[name]]
            self._fill_argument(&step.b, arguments[1], blocks, varies)
        step.p0, step.p1 = (*parameters, 0.0, 0.0)[:2]

    cdef _fill_chain(self, step_t* step, chain, blocks, varies):
        cdef operation_t* operation = step.operations
        nothing = ("constant", 0.0)
        for name, operand, parameters, factor in chain:
            operation.code = _CODES[name]
            operation.p0, operation.p1 = (*parameters, 0.0, 0.0)[:2]
            self._fill_argument(&operation.x, operand or nothing, blocks, varies)
            self._fill_argument(&operation.z, factor or nothing, blocks, varies)
            operation += 1

    cdef _fill_argument(self, argument_t* argument, source, blocks, varies):
        kind, value = source
        if kind == "input":
            argument.source, argument.number = INPUT, value
        elif kind == "register":
            argument.source, argument.number = BLOCK, blocks[value]
            argument.varies = varies[value]
        else:
            argument.source, argument.constant = CONSTANT, value

    cdef bint _covers_chunk(self, int varies):
        """Tell whether a step yields every element of the result, where it belongs."""
        return (
            self.p.y_column == 1
            and (varies & COLUMNS != 0 or self.p.n_columns == 1)
            and (varies & ROWS != 0 or self.p.n_rows == 1)
        )

    cdef _cut(self, outer, Py_ssize_t room, bint is_transposed):
        """Choose the chunks; a block has `room` for that many elements."""
        cdef Py_ssize_t total = self.p.n_rows * self.p.n_columns, chunk, pieces
        cdef int i
        for extent, _ in outer:
            total *= <Py_ssize_t> extent
        # Enough chunks to share them out evenly, unless they would become too small.
        chunk = min(room, MAX_CHUNK, max(4 * MIN_CHUNK, total // 16))
        chunk = chunk // MIN_CHUNK * MIN_CHUNK
        self.p.chunk = chunk
        self.p.column_step = max(self.p.n_columns, 1)
        if is_transposed:
            # Both sides of a transposition should meet whole cache lines.
            self.p.column_step = min(self.p.column_step, MIN_CHUNK)
        elif self.p.n_columns > chunk:
            pieces = ceil_div(self.p.n_columns, chunk)
            self.p.column_step = min(chunk, 16 * ceil_div(self.p.n_columns, 16 * pieces))
        self.p.row_step = max(1, min(self.p.n_rows, chunk // self.p.column_step))
        # With the rows fastest, what does not vary along them holds longer.
        holds = any(self.p.steps[i].is_held for i in range(self.p.n_steps))
        self.p.row_axis = len(outer) + (1 if holds else 0)
        self.p.column_axis = len(outer) + (0 if holds else 1)
        x = [(self.p.inputs[i].row, self.p.inputs[i].column) for i in range(self.p.n_inputs)]
        rows, columns = zip(*x, (self.p.y_row, self.p.y_column))
        for _, extent, step, strides in sorted([
            (self.p.row_axis, self.p.n_rows, self.p.row_step, rows),
            (self.p.column_axis, self.p.n_columns, self.p.column_step, columns),
        ]):
            outer.append((ceil_div(extent, step), [step * stride for stride in strides]))
        self.keep.append(fill_strided(&self.p.chunks, outer, self.p.n_inputs + 1))


cdef void* allocated(Py_ssize_t count, size_t size) except NULL:
    """Return zeroed memory for at least one item."""
    cdef void* memory = calloc(max(count, 1), size)
    if memory == NULL:
        raise MemoryError
    return memory


# Running without a plan ------------------------------------------------------------------------

cdef class _Place:
    """An array in the role of a plan's value."""

    cdef readonly Py_ssize_t slot, offset_bytes, size
    cdef readonly tuple shape, strides

    def __init__(self, Py_ssize_t slot, array):
        self.slot, self.offset_bytes = slot, 0
        self.shape, self.size = array.shape, array.size
        self.strides = tuple(stride // 4 for stride in array.strides)


cdef class PreparedProgram:
    """A program for arrays of certain shapes and strides, to run again and again.

    Parameters
    ----------
    program : ElementwiseProgram
    operands : sequence of numpy.ndarray
        What the program's sources number; float32, aligned, any strides.
    out : numpy.ndarray
        Of the program's shape; may be one of the operands of that shape.
    """

    cdef ElementwiseStep step
    cdef tuple sources

    def __init__(self, program, operands, out):
        self.sources = program.sources
        arrays = [*self._arrays(operands), out]
        for i, array in enumerate(arrays):
            if array.dtype != np.float32 or not array.flags.aligned:
                raise KuiperError(f"operand {i} is {array.dtype}, expected aligned float32")
        *inputs, output = (_Place(i, array) for i, array in enumerate(arrays))
        self.step = ElementwiseStep(program, inputs, output)

    cdef list _arrays(self, operands):
        return [
            np.asarray(operands[source] if isinstance(source, int) else source)
            for source in self.sources
        ]

    @property
    def max_shards(self):
        """How many shards are worth a thread each."""
        return self.step.max_shards

    def run(self, operands, out, Py_ssize_t n_shards=1, int n_threads=1):
        """Run on arrays that have the shapes and strides of those it was prepared for.

        Parameters
        ----------
        operands : sequence
        out : numpy.ndarray
        n_shards : int, default 1
            Into how many shards the work is cut; the result does not depend on it.
        n_threads : int, default 1

        Returns
        -------
        numpy.ndarray
            `out`.
        """
        cdef (char*)[MAX_INPUTS + 1] slots
        cdef char** all_slots = slots
        cdef Py_ssize_t shard, i
        cdef ElementwiseStep step = self.step
        arrays = self._arrays(operands)
        for i in range(len(arrays)):
            slots[i] = address_of(arrays[i])
        slots[len(arrays)] = address_of(out)
        if n_shards <= 1:
            with nogil:
                step.run(step.params, all_slots, 0, 1)
            return out
        for shard in prange(n_shards, nogil=True, num_threads=n_threads, schedule="static"):
            step.run(step.params, all_slots, shard, n_shards)
        return out


cdef char* address_of(array) except? NULL:
    """Return where an array starts; much faster than to ask numpy's attributes."""
    cdef Py_buffer view
    cdef char* address
    PyObject_GetBuffer(array, &view, PyBUF_STRIDES)
    address = <char*> view.buf
    PyBuffer_Release(&view)
    return address


def compute(program, operands, out=None, Py_ssize_t n_shards=1):
    """Run a program on arrays once.

    Parameters
    ----------
    program : ElementwiseProgram
    operands : sequence of numpy.ndarray
        What the program's sources number; float32, aligned, any strides.
    out : numpy.ndarray, optional
        Takes the result; may be one of the operands of the result's shape.
    n_shards : int, default 1
        Into how many shards the work is cut.  They run one after the other.

    Returns
    -------
    numpy.ndarray
    """
    if out is None:
        out = np.empty(program.shape, np.float32)
    return PreparedProgram(program, operands, out).run(operands, out, n_shards)
