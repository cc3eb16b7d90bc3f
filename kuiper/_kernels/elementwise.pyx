"""Elementwise programs: a whole expression in one pass over memory.

A program (:class:`kuiper.expression.ElementwiseProgram`) is a straight line of instructions.  The
tensors it reads and the one it writes become a nest of loops: axes of extent 1 go, axes that all
tensors walk as one are merged, the rest is ordered by the result's strides.  The two innermost
loops are cut into *chunks* of rows and columns, small enough for the temporaries of a chunk to stay
in the L1 cache; every instruction runs over a whole chunk before the next one does.

What does not change along the rows, or along the columns, of a chunk is computed once for all of
them: in ``mul(@0,sigmoid(@1))`` with a gate per channel, the sigmoid costs next to nothing.
"""

from libc.stdint cimport uintptr_t
from libc.stdlib cimport calloc, free

from kuiper._kernels._dispatch cimport active
from kuiper._kernels._step cimport Step, at, ref_t, share_start
from kuiper._kernels._table cimport binary_fn, kernels_t, rows_t, unary_fn

import numpy as np

from kuiper.errors import KuiperError

cdef enum:
    MAX_INPUTS = 64
    MAX_AXES = 16          # loops left after merging
    SCRATCH_FLOATS = 8192  # temporaries of one share: 32 KB
    MAX_CHUNK = 2048       # elements; large enough to hide the cost of a call
    MIN_CHUNK = 64
    SHORT_ROW = 32         # columns; shorter rows are laid side by side before anything else
    SHARE_COST = 16384     # additions that are worth another thread

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

cdef struct instruction_t:
    unary_fn unary         # one of the two is NULL
    binary_fn binary
    float p0
    float p1
    argument_t a
    argument_t b
    int varies             # what it computes
    int target             # the block that takes it

cdef struct input_t:
    ref_t ref
    const float* fixed     # a constant array instead of an operand, or NULL
    int varies
    int block              # where a copy of its chunk goes, or -1 where it is read in place
    Py_ssize_t row         # strides of the two innermost loops, in elements
    Py_ssize_t column
    Py_ssize_t[MAX_AXES] stride

cdef struct program_t:
    const kernels_t* kernels
    int n_inputs
    int n_instructions
    input_t* inputs
    instruction_t* instructions
    ref_t y
    Py_ssize_t y_row
    Py_ssize_t y_column
    bint is_direct         # the last instruction writes the result itself
    Py_ssize_t n_rows      # the two innermost loops
    Py_ssize_t n_columns
    Py_ssize_t row_step    # a chunk of them
    Py_ssize_t column_step
    Py_ssize_t chunk       # floats in a block
    Py_ssize_t n_chunks
    # The loops over chunks: the outer axes, then blocks of rows, then blocks of columns.
    int rank
    Py_ssize_t[MAX_AXES] extent
    Py_ssize_t[MAX_AXES] y_stride

# Where a value of the current chunk lies.
cdef struct view_t:
    const float* data
    Py_ssize_t row
    Py_ssize_t column


# Running ---------------------------------------------------------------------------------------

cdef void elementwise_run(
    const void* params, char* const* slots, Py_ssize_t part, Py_ssize_t n_parts
) noexcept nogil:
    """Run a program over broadcast float32 tensors.

    Layout : any strides; inputs broadcast by strides of 0
    Needs  : the result overlaps no input but those that lie exactly as it does
    Threads: over chunks; no shared writes
    Source : none; the operators are PyTorch's
    """
    cdef const program_t* p = <const program_t*> params
    cdef Py_ssize_t number = share_start(p.n_chunks, part, n_parts)
    cdef Py_ssize_t stop = share_start(p.n_chunks, part + 1, n_parts)
    cdef float[SCRATCH_FLOATS] scratch
    cdef view_t[MAX_INPUTS] views
    cdef (const float*)[MAX_INPUTS] held
    cdef Py_ssize_t[MAX_AXES] index
    cdef Py_ssize_t rest, row, column, rows, columns, offset, held_rows = 0, held_columns = 0
    cdef const float* data
    cdef const input_t* x
    cdef int axis, i
    for i in range(p.n_inputs):
        held[i] = NULL
    while number < stop:
        rest = number
        for axis in range(p.rank - 1, -1, -1):
            index[axis] = rest % p.extent[axis]
            rest //= p.extent[axis]
        row = index[p.rank - 2] * p.row_step
        column = index[p.rank - 1] * p.column_step
        rows = least(p.row_step, p.n_rows - row)
        columns = least(p.column_step, p.n_columns - column)
        for i in range(p.n_inputs):
            x = &p.inputs[i]
            offset = row * x.row + column * x.column
            for axis in range(p.rank - 2):
                offset += index[axis] * x.stride[axis]
            data = (<const float*> at(slots, x.ref) if x.fixed == NULL else x.fixed) + offset
            if x.block < 0:
                views[i].data, views[i].row, views[i].column = data, x.row, x.column
                continue
            # The copy still holds where neither its place nor its size changed.
            if held[i] != data or held_rows < rows or held_columns != columns:
                gather(p, x, data, rows, columns, scratch + x.block * p.chunk)
                held[i] = data
            views[i] = without_gaps(scratch + x.block * p.chunk, x.varies, columns)
        held_rows, held_columns = rows, columns
        offset = row * p.y_row + column * p.y_column
        for axis in range(p.rank - 2):
            offset += index[axis] * p.y_stride[axis]
        run_chunk(p, views, scratch, rows, columns, <float*> at(slots, p.y) + offset)
        number += 1


cdef inline Py_ssize_t least(Py_ssize_t a, Py_ssize_t b) noexcept nogil:
    return a if a < b else b


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
        p.kernels.transpose(data, x.column, block, columns, columns, rows)
        return
    for i in range(rows):
        for j in range(columns):
            block[i * columns + j] = data[i * x.row + j * x.column]


cdef void run_chunk(
    const program_t* p, const view_t* views, float* scratch,
    Py_ssize_t rows, Py_ssize_t columns, float* y,
) noexcept nogil:
    """Run every instruction over one chunk."""
    cdef const instruction_t* step
    cdef int i
    cdef view_t result
    for i in range(p.n_instructions - (1 if p.is_direct else 0)):
        run_step(p, &p.instructions[i], views, scratch, rows, columns)
    step = &p.instructions[p.n_instructions - 1]
    if p.is_direct:
        apply(
            step, view_of(p, &step.a, views, scratch, columns),
            view_of(p, &step.b, views, scratch, columns), rows, columns, y, p.y_row,
        )
        return
    result = without_gaps(scratch + step.target * p.chunk, step.varies, columns)
    scatter(result, rows, columns, y, p.y_row, p.y_column)


cdef void run_step(
    const program_t* p, const instruction_t* step, const view_t* views, float* scratch,
    Py_ssize_t rows, Py_ssize_t columns,
) noexcept nogil:
    """Compute a temporary, in one direction only where it varies in one only."""
    cdef view_t a = view_of(p, &step.a, views, scratch, columns)
    cdef view_t b = view_of(p, &step.b, views, scratch, columns)
    cdef float* target = scratch + step.target * p.chunk
    if step.varies == BOTH:
        apply(step, a, b, rows, columns, target, columns)
    elif step.varies == ROWS:
        # A column of the chunk is stored as a row.
        a.column, b.column = a.row, b.row
        apply(step, a, b, 1, rows, target, rows)
    else:
        apply(step, a, b, 1, columns if step.varies == COLUMNS else 1, target, columns)


cdef inline view_t view_of(
    const program_t* p, const argument_t* argument, const view_t* views, const float* scratch,
    Py_ssize_t columns,
) noexcept nogil:
    """Return where an argument lies."""
    if argument.source == INPUT:
        return views[argument.number]
    if argument.source == BLOCK:
        return without_gaps(scratch + argument.number * p.chunk, argument.varies, columns)
    return without_gaps(&argument.constant, NOTHING, columns)


cdef void apply(
    const instruction_t* step, view_t a, view_t b, Py_ssize_t rows, Py_ssize_t columns,
    float* y, Py_ssize_t y_row,
) noexcept nogil:
    """Run one instruction over rows x columns elements."""
    cdef Py_ssize_t i
    cdef rows_t r
    cdef bint is_flat = y_row == columns and is_one_run(a, columns)
    if step.unary != NULL:
        if is_flat:
            columns *= rows
            rows = 1
        for i in range(rows):
            step.unary(columns, a.data + i * a.row, y + i * y_row, step.p0, step.p1)
        return
    if is_flat and is_one_run(b, columns):
        columns *= rows
        rows = 1
    r.n_rows, r.n_columns = rows, columns
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


# Names -----------------------------------------------------------------------------------------

def unary_number(name):
    """Return the number of a function of one tensor in the micro-kernels' table.

    Parameters
    ----------
    name : str
        An operator of :data:`kuiper.expression.vocabulary.EXTENDED`, or ``copy``.
    """
    if name == "relu6":
        raise KuiperError("relu6 is clamp with the parameters 0 and 6")
    return int(Unary[name.upper()])


cdef _CHEAP = frozenset([
    "COPY", "ABS", "NEG", "SIGN", "SQUARE", "SQRT", "RSQRT", "RECIPROCAL", "FLOOR", "CEIL", "TRUNC",
    "ROUND", "RELU", "LEAKY_RELU", "CLAMP", "HARDSIGMOID", "HARDSWISH", "SOFTSIGN", "HARDSHRINK",
    "SOFTSHRINK", "THRESHOLD", "ADD", "SUB", "MUL", "DIV", "MAX", "MIN", "PRELU",
])


# Preparing -------------------------------------------------------------------------------------

cdef class ElementwiseStep(Step):
    """One pass over memory that computes a program.

    Parameters
    ----------
    program : ElementwiseProgram
    inputs : sequence of (Value or numpy.ndarray)
        One float32 tensor per source of the program, of any shape that broadcasts to the result's.
        An array is a constant and is kept.
    output : Value
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
        self.p.n_instructions = len(program.instructions)
        self.p.inputs = <input_t*> calloc(max(self.p.n_inputs, 1), sizeof(input_t))
        self.p.instructions = <instruction_t*> calloc(
            max(self.p.n_instructions, 1), sizeof(instruction_t)
        )
        if self.p.inputs == NULL or self.p.instructions == NULL:
            raise MemoryError
        self.keep = []
        strides = [self._place(i, value, program.shape) for i, value in enumerate(inputs)]
        self.p.y = self.ref(output)
        cost = self._translate(program)
        self._arrange(program.shape, output.strides, strides)
        self._allocate()
        self.run = elementwise_run
        self.params = &self.p
        self.kind = "elementwise"
        size = output.size
        self.max_parts = max(1, min(self.p.n_chunks, <Py_ssize_t> (size * cost) // SHARE_COST))
        self.flops = float(size * len(program.instructions))
        self.bytes = 4.0 * (size + sum(value.size for value in inputs))

    def __dealloc__(self):
        free(self.p.inputs)
        free(self.p.instructions)

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

    cdef _translate(self, program):
        """Fill in functions, parameters and arguments; return the cost of an element."""
        cdef instruction_t* step
        cost = 0
        for i, (name, arguments, parameters) in enumerate(program.instructions):
            step = &self.p.instructions[i]
            enumerator = name.upper()
            set_argument(&step.a, arguments[0])
            if len(arguments) == 1:
                step.unary = self.p.kernels.unary[<int> Unary[enumerator]]
                set_argument(&step.b, ("constant", 0.0))
            else:
                step.binary = self.p.kernels.binary[<int> Binary[enumerator]]
                set_argument(&step.b, arguments[1])
            step.p0, step.p1 = (*parameters, 0.0, 0.0)[:2]
            cost += 1 if enumerator in _CHEAP else 8
        return cost

    cdef _arrange(self, shape, y_strides, strides):
        """Make the loops: merge axes, choose rows, columns and chunks."""
        cdef int axis, i
        cdef input_t* x
        axes = merged_axes(shape, y_strides, strides)
        while len(axes) < 2:
            axes.insert(0, (1, 0, (0,) * self.p.n_inputs))
        if len(axes) > MAX_AXES:
            raise KuiperError(f"{len(axes)} loops over tensors, at most {MAX_AXES} can be")
        *outer, rows, columns = axes
        self.p.n_rows, self.p.y_row, x_rows = rows
        self.p.n_columns, self.p.y_column, x_columns = columns
        self.p.rank = len(axes)
        for axis, (extent, y_stride, x_strides) in enumerate(outer):
            self.p.extent[axis], self.p.y_stride[axis] = extent, y_stride
            for i in range(self.p.n_inputs):
                self.p.inputs[i].stride[axis] = x_strides[i]
        for i in range(self.p.n_inputs):
            x = &self.p.inputs[i]
            x.row, x.column = x_rows[i], x_columns[i]
            x.varies = (COLUMNS if x.column else NOTHING) | (ROWS if x.row else NOTHING)

    cdef _allocate(self):
        """Give out blocks and choose the size of a chunk."""
        cdef int i, n_blocks = 0
        cdef input_t* x
        cdef bint is_short = self.p.n_columns < SHORT_ROW and self.p.n_rows > 1
        cdef bint is_transposed = False
        for i in range(self.p.n_inputs):
            x = &self.p.inputs[i]
            x.block = -1
            if is_short and x.varies != NOTHING and x.row != self.p.n_columns * x.column:
                x.varies = BOTH
                x.block = n_blocks
            elif x.column not in (0, 1) or (x.varies == ROWS and x.row != 1):
                x.block = n_blocks
                is_transposed |= x.varies == BOTH and abs(x.row) < abs(x.column)
            if x.block >= 0:
                n_blocks += 1
        n_blocks = self._give_out_blocks(n_blocks)
        if n_blocks * MIN_CHUNK > SCRATCH_FLOATS:
            raise KuiperError(
                f"a program keeps {n_blocks} temporaries at once, at most "
                f"{SCRATCH_FLOATS // MIN_CHUNK} can be"
            )
        self._cut(SCRATCH_FLOATS // max(n_blocks, 1), is_transposed)

    cdef int _give_out_blocks(self, int n_blocks) except -1:
        """Give each instruction a block, used again when its value is no longer needed.

        What an instruction computes never shares a block with what it reads: a row that is read
        again and again would be overwritten by the first result.
        """
        cdef int i, number, last = self.p.n_instructions - 1
        cdef instruction_t* step
        last_use = {}
        for i in range(self.p.n_instructions):
            step = &self.p.instructions[i]
            if step.a.source == BLOCK:
                last_use[step.a.number] = i
            if step.b.source == BLOCK:
                last_use[step.b.number] = i
        free_blocks = []
        for i in range(self.p.n_instructions):
            step = &self.p.instructions[i]
            dying = {
                number for number in (step.a.number, step.b.number) if last_use.get(number) == i
            }
            self._resolve(&step.a)
            self._resolve(&step.b)
            step.varies = step.a.varies | step.b.varies
            if i == last and self._covers_chunk(step.varies):
                self.p.is_direct = True
                break
            if not free_blocks:
                free_blocks.append(n_blocks)
                n_blocks += 1
            step.target = free_blocks.pop()
            for number in sorted(dying):
                free_blocks.append(self.p.instructions[number].target)
        return n_blocks

    cdef void _resolve(self, argument_t* argument):
        """Turn the number of an instruction into that of its block; note what varies."""
        cdef instruction_t* origin
        if argument.source == INPUT:
            argument.varies = self.p.inputs[argument.number].varies
        elif argument.source == BLOCK:
            origin = &self.p.instructions[argument.number]
            argument.number, argument.varies = origin.target, origin.varies

    cdef bint _covers_chunk(self, int varies):
        """Tell whether an instruction yields every element of the result, where it belongs."""
        return (
            self.p.y_column == 1
            and (varies & COLUMNS != 0 or self.p.n_columns == 1)
            and (varies & ROWS != 0 or self.p.n_rows == 1)
        )

    cdef _cut(self, Py_ssize_t room, bint is_transposed):
        """Choose the chunks; a block has `room` for that many elements."""
        cdef Py_ssize_t total = self.p.n_rows * self.p.n_columns, chunk, axis, pieces
        for axis in range(self.p.rank - 2):
            total *= self.p.extent[axis]
        # Enough chunks to share them out evenly, unless they would become too small.
        chunk = min(room, MAX_CHUNK, max(4 * MIN_CHUNK, total // 16))
        chunk = chunk // MIN_CHUNK * MIN_CHUNK
        self.p.chunk = chunk
        self.p.column_step = max(self.p.n_columns, 1)
        if is_transposed:
            # Both sides of a transposition should meet whole cache lines.
            self.p.column_step = min(self.p.column_step, MIN_CHUNK)
        elif self.p.n_columns > chunk:
            pieces = pieces_of(self.p.n_columns, chunk)
            self.p.column_step = min(chunk, 16 * pieces_of(self.p.n_columns, 16 * pieces))
        self.p.row_step = max(1, min(self.p.n_rows, chunk // self.p.column_step))
        self.p.extent[self.p.rank - 2] = pieces_of(self.p.n_rows, self.p.row_step)
        self.p.extent[self.p.rank - 1] = pieces_of(self.p.n_columns, self.p.column_step)
        self.p.n_chunks = 1
        for axis in range(self.p.rank):
            self.p.n_chunks *= self.p.extent[axis]


cdef inline Py_ssize_t pieces_of(Py_ssize_t total, Py_ssize_t step) noexcept:
    """Return how many pieces of `step` cover `total`."""
    return (total + step - 1) // step


cdef set_argument(argument_t* argument, source):
    """Take over an argument of an instruction; registers are numbered by instruction."""
    kind, value = source
    argument.varies = NOTHING
    if kind == "constant":
        argument.source, argument.number, argument.constant = CONSTANT, -1, value
    else:
        argument.source, argument.number = INPUT if kind == "input" else BLOCK, value


def merged_axes(shape, y_strides, strides):
    """Return the loops over tensors of one shape: as few as possible, the result's fastest last.

    Parameters
    ----------
    shape : sequence of int
    y_strides : sequence of int
        Of the result, none of them 0.
    strides : sequence of sequence of int
        Of the inputs, 0 along axes on which they are broadcast.

    Returns
    -------
    list of (int, int, tuple of int)
        Extent, stride of the result, strides of the inputs.
    """
    axes = [
        (extent, y_stride, tuple(x[axis] for x in strides))
        for axis, (extent, y_stride) in enumerate(zip(shape, y_strides, strict=True))
        if extent != 1
    ]
    axes.sort(key=lambda axis: -axis[1])
    merged = []
    for extent, y_stride, x_strides in axes:
        if merged:
            outer_extent, outer_y, outer_x = merged[-1]
            if outer_y == extent * y_stride and all(
                outer == extent * inner for outer, inner in zip(outer_x, x_strides)
            ):
                merged[-1] = (outer_extent * extent, y_stride, x_strides)
                continue
        merged.append((extent, y_stride, x_strides))
    return merged


# Running without a plan ------------------------------------------------------------------------

cdef class _Place:
    """An array in the role of a plan's value."""

    cdef readonly Py_ssize_t slot, offset_bytes, size
    cdef readonly tuple shape, strides

    def __init__(self, Py_ssize_t slot, array):
        self.slot, self.offset_bytes = slot, 0
        self.shape, self.size = array.shape, array.size
        self.strides = tuple(stride // 4 for stride in array.strides)


def compute(program, operands, out=None, Py_ssize_t n_parts=1):
    """Run a program on arrays.

    Parameters
    ----------
    program : ElementwiseProgram
    operands : sequence of numpy.ndarray
        What the program's sources number; float32, aligned, any strides.
    out : numpy.ndarray, optional
        Takes the result; may be one of the operands of the result's shape.
    n_parts : int, default 1
        Into how many shares the work is cut.  They run one after the other.

    Returns
    -------
    numpy.ndarray
    """
    cdef ElementwiseStep step
    cdef Py_ssize_t part
    cdef (char*)[MAX_INPUTS + 1] slots
    if out is None:
        out = np.empty(program.shape, np.float32)
    places = []
    for i, source in enumerate(program.sources):
        array = operands[source] if isinstance(source, int) else source
        if array.dtype != np.float32 or not array.flags.aligned:
            raise KuiperError(f"operand {i} is {array.dtype}, expected aligned float32")
        places.append(_Place(i, array))
        slots[i % MAX_INPUTS] = <char*> <uintptr_t> array.ctypes.data
    step = ElementwiseStep(program, places, _Place(len(places), out))
    slots[len(places)] = <char*> <uintptr_t> out.ctypes.data
    n_parts = min(n_parts, max(step.p.n_chunks, 1))
    with nogil:
        for part in range(n_parts):
            step.run(step.params, slots, part, n_parts)
    return out
