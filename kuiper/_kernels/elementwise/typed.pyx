"""Elementwise programs of any dtype: casts, comparisons, logic, bit operations, integer arithmetic.

A program is a straight line of instructions over *values*: first the inputs, each converted to the
dtype in which it is needed, then the result of each instruction.  It runs in one pass over memory,
by blocks of at most 512 elements of the innermost loops.  The values of a block are stored densely
in *registers* of 4 KB on the thread's stack, so micro-kernels need neither strides nor
broadcasting, and one loop serves all dtypes.
"""

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t

from kuiper._kernels.data.strided cimport advance, cursor_t, fill_strided, seek, strided_t
from kuiper._kernels.micro.dispatch cimport active
from kuiper._kernels.micro.element_functions cimport (
    ABSOLUTE, ADD, AND, BFLOAT16, BOOL, DIVIDE, EQUAL, FLOAT32, FLOAT64, FLOOR_DIVIDE, INT16, INT32,
    INT64, INT8, IS_FINITE, IS_INFINITE, LESS, LESS_EQUAL, MAXIMUM, MINIMUM, MULTIPLY, OR,
    REMAINDER, SHIFT_LEFT, SHIFT_RIGHT, SUBTRACT, UINT8, UNEQUAL, XOR,
)
from kuiper._kernels.micro.table cimport kernels_t, unary_fn
from kuiper._runtime.step cimport Step, at, ceil_div, ref_t, shard_start

from kuiper._kernels.data.loops import strided_loops
from kuiper._kernels.elementwise.elementwise import unary_number
from kuiper.ir import dtypes

cdef enum:
    BLOCK = 512           # elements computed at a time
    NARROW = 128          # columns; a block contains several rows if they are shorter
    REGISTERS = 12        # blocks of values
    REGISTER_BYTES = 4096  # 512 elements of 8 bytes
    ALL_WORDS = 6144      # words of 8 bytes in all registers
    MAX_INPUTS = 16
    MAX_INSTRUCTIONS = 48
    SHARD_BYTES = 16384   # bytes that a shard moves at least

ctypedef fused item_t:
    uint8_t
    uint16_t
    uint32_t
    uint64_t

TYPES = {
    "bool": BOOL,
    "uint8": UINT8,
    "int8": INT8,
    "int16": INT16,
    "int32": INT32,
    "int64": INT64,
    "float32": FLOAT32,
    "float64": FLOAT64,
}

FUNCTIONS = {
    "equal": EQUAL,
    "unequal": UNEQUAL,
    "less": LESS,
    "less_equal": LESS_EQUAL,
    "is_infinite": IS_INFINITE,
    "is_finite": IS_FINITE,
    "and": AND,
    "or": OR,
    "xor": XOR,
    "shift_left": SHIFT_LEFT,
    "shift_right": SHIFT_RIGHT,
    "add": ADD,
    "subtract": SUBTRACT,
    "multiply": MULTIPLY,
    "divide": DIVIDE,
    "floor_divide": FLOOR_DIVIDE,
    "remainder": REMAINDER,
    "maximum": MAXIMUM,
    "minimum": MINIMUM,
    "absolute": ABSOLUTE,
}

# The functions whose result is a bool.
TESTS = frozenset(name for name, number in FUNCTIONS.items() if number <= IS_FINITE)

# The location of a value.
cdef enum source_t:
    IN_MEMORY      # of the input
    IN_REGISTER
    IN_RESULT      # memory of the result

cdef struct tensor_t:
    ref_t ref
    int type
    Py_ssize_t itemsize
    Py_ssize_t row        # strides of the innermost loops, in elements
    Py_ssize_t column

cdef struct typed_input_t:
    tensor_t tensor
    int wanted            # the type to which it is converted
    source_t location
    int number            # its register

cdef struct instruction_t:
    int function          # -1: a conversion
    unary_fn unary        # a float32 function, or NULL
    float p0
    float p1
    int type              # type of the operands
    int wanted            # type of the result
    int a                 # indices of the operands among the values
    int b
    source_t location     # of the result
    int number            # its register

cdef struct typed_program_t:
    const kernels_t* kernels
    int n_inputs
    int n_instructions
    typed_input_t[MAX_INPUTS] inputs
    instruction_t[MAX_INSTRUCTIONS] instructions
    tensor_t y
    bint is_direct        # whether the last value is computed in the result's memory
    Py_ssize_t rows       # extents of the two innermost loops and of a block
    Py_ssize_t columns
    Py_ssize_t row_step
    Py_ssize_t column_step
    strided_t blocks      # offsets of inputs and y, in bytes; innermost: blocks of rows, columns


# Running ---------------------------------------------------------------------------------------

cdef inline void copy_items(
    const item_t* x, Py_ssize_t x_row, Py_ssize_t x_column, item_t* y, Py_ssize_t y_row,
    Py_ssize_t y_column, Py_ssize_t rows, Py_ssize_t columns,
) noexcept nogil:
    cdef Py_ssize_t i, j
    cdef item_t item
    if x_column == 0 and y_column == 1:
        for i in range(rows):
            item = x[i * x_row]
            for j in range(columns):
                y[i * y_row + j] = item
    elif x_column == 1 and y_column == 1:
        for i in range(rows):
            for j in range(columns):
                y[i * y_row + j] = x[i * x_row + j]
    else:
        for i in range(rows):
            for j in range(columns):
                y[i * y_row + j * y_column] = x[i * x_row + j * x_column]


cdef void copy_block(
    Py_ssize_t itemsize, const void* x, Py_ssize_t x_row, Py_ssize_t x_column, void* y,
    Py_ssize_t y_row, Py_ssize_t y_column, Py_ssize_t rows, Py_ssize_t columns,
) noexcept nogil:
    """Copy a block of elements of 1, 2, 4 or 8 bytes."""
    if itemsize == 1:
        copy_items(
            <const uint8_t*> x, x_row, x_column, <uint8_t*> y, y_row, y_column, rows, columns
        )
    elif itemsize == 2:
        copy_items(
            <const uint16_t*> x, x_row, x_column, <uint16_t*> y, y_row, y_column, rows, columns
        )
    elif itemsize == 4:
        copy_items(
            <const uint32_t*> x, x_row, x_column, <uint32_t*> y, y_row, y_column, rows, columns
        )
    else:
        copy_items(
            <const uint64_t*> x, x_row, x_column, <uint64_t*> y, y_row, y_column, rows, columns
        )


cdef void load(
    const typed_program_t* p, const typed_input_t* x, const char* data, Py_ssize_t rows,
    Py_ssize_t columns, void* block,
) noexcept nogil:
    """Load a block of an input into a register, converted to `x.wanted`."""
    cdef char[REGISTER_BYTES] raw
    cdef const tensor_t* t = &x.tensor
    cdef Py_ssize_t n = rows * columns
    if t.column == 1 and (rows == 1 or t.row == columns):
        p.kernels.typed_convert(t.type, x.wanted, n, data, block)
    elif t.column == 0 and (rows == 1 or t.row == 0):
        # The block is one element, broadcast.
        p.kernels.typed_convert(t.type, x.wanted, 1, data, raw)
        copy_block(type_bytes(x.wanted), raw, 0, 0, block, 0, 1, 1, n)
    elif t.type == x.wanted:
        copy_block(t.itemsize, data, t.row, t.column, block, columns, 1, rows, columns)
    else:
        copy_block(t.itemsize, data, t.row, t.column, raw, columns, 1, rows, columns)
        p.kernels.typed_convert(t.type, x.wanted, n, raw, block)


cdef inline Py_ssize_t type_bytes(int type) noexcept nogil:
    if type <= INT8:
        return 1
    return 2 if type == INT16 or type == BFLOAT16 else 4 if type == INT32 or type == FLOAT32 else 8


cdef void typed_run(
    const void* params, char* const* slots, Py_ssize_t shard, Py_ssize_t n_shards
) noexcept nogil:
    """Run a program over broadcast tensors of any types.

    Layout : any strides; inputs broadcast by strides of 0
    Needs  : the result overlaps no input; no integer divisor is 0
    Threads: over blocks of 512 elements
    Source : none; the functions are PyTorch's
    """
    cdef const typed_program_t* p = <const typed_program_t*> params
    cdef Py_ssize_t first = shard_start(p.blocks.count, shard, n_shards), _i
    cdef Py_ssize_t stop = shard_start(p.blocks.count, shard + 1, n_shards)
    cdef uint64_t[ALL_WORDS] registers
    cdef (char*)[MAX_INPUTS + MAX_INSTRUCTIONS] values
    cdef (const char*)[MAX_INPUTS] before
    cdef Py_ssize_t rows, columns, n, held = 0
    cdef cursor_t cursor
    cdef const typed_input_t* x
    cdef char* data
    cdef char* y
    cdef int last = p.blocks.rank - 1, i
    for i in range(p.n_inputs):
        before[i] = NULL
    if first >= stop:
        return
    seek(&p.blocks, p.n_inputs + 1, &cursor, first)
    for _i in range(first, stop):
        rows = min(p.row_step, p.rows - cursor.index[last - 1] * p.row_step)
        columns = min(p.column_step, p.columns - cursor.index[last] * p.column_step)
        n = rows * columns
        y = at(slots, p.y.ref) + cursor.offset[p.n_inputs]
        if n > held:
            # Held broadcast elements fill fewer than n elements: load them again.
            held = n
            for i in range(p.n_inputs):
                before[i] = NULL
        for i in range(p.n_inputs):
            x = &p.inputs[i]
            data = at(slots, x.tensor.ref) + cursor.offset[i]
            if x.location == IN_MEMORY:
                values[i] = data
            elif x.location == IN_RESULT:
                values[i] = y
                load(p, x, data, rows, columns, y)
            else:
                values[i] = <char*> registers + x.number * REGISTER_BYTES
                if x.tensor.column or x.tensor.row or data != before[i]:
                    load(p, x, data, rows, columns, values[i])
                    before[i] = data
        for i in range(p.n_instructions):
            run_instruction(
                p, &p.instructions[i], n, values, &values[p.n_inputs + i], <char*> registers, y
            )
        if not p.is_direct:
            copy_block(
                p.y.itemsize, values[p.n_inputs + p.n_instructions - 1], columns, 1, y, p.y.row,
                p.y.column, rows, columns,
            )
        advance(&p.blocks, p.n_inputs + 1, &cursor)


cdef inline void run_instruction(
    const typed_program_t* p, const instruction_t* one, Py_ssize_t n, char* const* values,
    char** result, char* registers, char* y,
) noexcept nogil:
    result[0] = y if one.location == IN_RESULT else registers + one.number * REGISTER_BYTES
    if one.unary != NULL:
        one.unary(n, <const float*> values[one.a], <float*> result[0], one.p0, one.p1)
    elif one.function < 0:
        p.kernels.typed_convert(one.type, one.wanted, n, values[one.a], result[0])
    else:
        p.kernels.typed_apply(one.function, one.type, n, values[one.a], values[one.b], result[0])


# Preparing -------------------------------------------------------------------------------------

cdef class TypedStep(Step):
    """One pass over memory that computes a program.

    Parameters
    ----------
    inputs : sequence of (TensorView, numpy.dtype)
        The tensors, and the dtypes to which they are converted.  They have y's shape; strides of 0
        broadcast.
    instructions : sequence of (name, dtype, arguments)
        The name is a key of `FUNCTIONS`, ``"convert"``, or a float32 function of one operand in
        elementwise.pyx.  The dtype is that of the operands, for a conversion that of the result.
        The arguments are indices of values.  No integer divisor is 0.
    y : TensorView
        Receives the last value, and has its dtype.

    Raises
    ------
    ValueError
        If the program is too long or has too many live values; see :func:`is_possible`.
    """

    cdef typed_program_t p

    def __init__(self, inputs, instructions, y):
        cdef int i
        if len(inputs) > MAX_INPUTS or len(instructions) > MAX_INSTRUCTIONS:
            raise ValueError(f"{len(instructions)} instructions of {len(inputs)} tensors")
        self.p.kernels = active()
        self.p.n_inputs, self.p.n_instructions = len(inputs), len(instructions)
        tensors = [value for value, _ in inputs] + [y]
        strides = [value.strides for value in tensors]
        self._arrange(strided_loops(y.shape, strides, order=y.strides), tensors)
        types = [dtype.name for _, dtype in inputs]
        for i, (_, dtype) in enumerate(inputs):
            self.p.inputs[i].wanted = type_number(dtype)
        for i, (name, dtype, arguments) in enumerate(instructions):
            types.append("bool" if name in TESTS else dtype.name)
            self._fill(&self.p.instructions[i], name, dtype.name, types, arguments)
        self._place(instructions)
        self.run = typed_run
        self.params = &self.p
        self.kind = "typed"
        self.bytes = float(y.n_bytes + sum(value.n_bytes for value, _ in inputs))
        self.flops = float(y.size * len(instructions))
        self.max_shards = max(1, min(self.p.blocks.count, <Py_ssize_t> self.bytes // SHARD_BYTES))

    cdef _arrange(self, loops, tensors):
        """Store the loops, and tile the innermost ones into blocks."""
        cdef int i
        cdef tensor_t* t
        *outer, (columns, column_strides) = loops
        rows, row_strides = 1, (0,) * len(tensors)
        self.p.column_step = max(1, min(columns, BLOCK))
        if columns < NARROW and outer:
            rows, row_strides = outer.pop()
        self.p.rows, self.p.columns = rows, columns
        self.p.row_step = max(1, min(rows, BLOCK // max(1, columns)))
        for extent, step, strides in (
            (rows, self.p.row_step, row_strides), (columns, self.p.column_step, column_strides)
        ):
            outer.append((ceil_div(extent, step), [step * stride for stride in strides]))
        outer = [
            (extent, [s * value.dtype.itemsize for s, value in zip(strides, tensors)])
            for extent, strides in outer
        ]
        self.keep = fill_strided(&self.p.blocks, outer, len(tensors))
        for i, value in enumerate(tensors):
            t = &self.p.y if i == self.p.n_inputs else &self.p.inputs[i].tensor
            t.ref = self.ref(value)
            t.type, t.itemsize = type_number(value.dtype), value.dtype.itemsize
            t.row, t.column = row_strides[i], column_strides[i]

    cdef bint _is_dense(self, const tensor_t* t):
        """Tell whether the blocks of a tensor are dense."""
        return (t.column == 1 or self.p.columns == 1) and (
            self.p.row_step == 1 or t.row == self.p.columns
        )

    cdef _fill(self, instruction_t* one, name, dtype, types, arguments):
        one.a = arguments[0]
        one.b = arguments[len(arguments) - 1]
        one.wanted = TYPES[types[len(types) - 1]]
        if name == "convert":
            one.function, one.type = -1, TYPES[types[one.a]]
        elif name in FUNCTIONS:
            one.function, one.type = FUNCTIONS[name], TYPES[dtype]
        else:
            one.unary, one.type = self.p.kernels.f32_unary[<int> unary_number(name)], FLOAT32

    cdef _place(self, instructions):
        """Assign each value a location: the tensor, a register or the result."""
        cdef int i, last = self.p.n_inputs + self.p.n_instructions - 1
        cdef typed_input_t* x
        cdef instruction_t* one
        free = list(range(REGISTERS))
        self.p.is_direct = self._is_dense(&self.p.y)
        for i in range(self.p.n_inputs):
            x = &self.p.inputs[i]
            if i == last and self.p.is_direct:
                x.location = IN_RESULT
            elif x.tensor.type == x.wanted and self._is_dense(&x.tensor):
                x.location = IN_MEMORY
            else:
                # Never released, so that a broadcast element is loaded only once.
                x.location, x.number = IN_REGISTER, taken(free)
        ends = last_uses(self.p.n_inputs, instructions)
        for i in range(self.p.n_instructions):
            one = &self.p.instructions[i]
            if i + self.p.n_inputs == last and self.p.is_direct:
                one.location = IN_RESULT
                continue
            one.location, one.number = IN_REGISTER, taken(free)
            for value in ends[i]:
                free.append(self.p.instructions[<int> value - self.p.n_inputs].number)


def type_number(dtype):
    """Return the number of an element type."""
    return BFLOAT16 if dtype == dtypes.BFLOAT16 else TYPES[dtype.name]


def is_possible(n_inputs, instructions):
    """Tell whether a program is short enough and has few enough live values.

    Parameters
    ----------
    n_inputs : int
    instructions : sequence of (name, dtype, arguments)
    """
    if n_inputs > MAX_INPUTS or len(instructions) > MAX_INSTRUCTIONS:
        return False
    kept = n_inputs
    for ended in last_uses(n_inputs, instructions):
        kept += 1
        if kept > REGISTERS:
            return False
        kept -= len(ended)
    return True


def taken(free):
    """Remove a register from the list of free ones, and return it."""
    if not free:
        raise ValueError(f"it keeps more than {REGISTERS} values at once")
    return free.pop()


def last_uses(n_inputs, instructions):
    """Return for each instruction the results that it is the last to read."""
    last = {}
    for i, (_, _, arguments) in enumerate(instructions):
        last.update((value, i) for value in arguments if value >= n_inputs)
    ends = [[] for _ in instructions]
    for value, i in last.items():
        ends[i].append(value)
    return ends
