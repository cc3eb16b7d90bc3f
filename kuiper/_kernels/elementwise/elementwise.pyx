"""Elementwise programs: a whole expression in one pass over memory.

A program (:class:`kuiper.expression.ElementwiseProgram`) is a straight line of instructions.  Its
tensors share one loop nest: axes of extent 1 are dropped, axes that all tensors traverse with a
common stride are merged, and the rest is sorted by the strides of the result.  The two innermost
loops are tiled into *chunks* of rows and columns, whose temporaries fit the L1 cache.  Cheap
instructions form *chains*, which keep the running value in registers (chains.py).
Each chain, and each instruction outside of a chain, runs over a whole chunk before the next one.

A value that is constant along the columns of a chunk is computed once per row.  A value that is
constant along the rows is computed once and held until its inputs change: in
``mul(@0,sigmoid(@1))`` with one gate per channel, the sigmoid is almost free.  If rows are short,
such values are repeated to the size of a chunk, so that loops over full tensors stay long.
"""

from cpython.buffer cimport PyBUF_STRIDES, PyBuffer_Release, PyObject_GetBuffer
from cython.parallel cimport prange
from libc.stdint cimport uint8_t, uint16_t, uintptr_t
from libc.stdlib cimport calloc, free

from kuiper._kernels.data.strided cimport (
    MAX_LOOPS, advance, cursor_t, fill_strided, seek, strided_t,
)
from kuiper._kernels.micro cimport element_functions as typed
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
from kuiper.ir import dtypes

cdef enum:
    MAX_INPUTS = 64
    SCRATCH_FLOATS = 8192  # temporaries of one shard: 32 KB
    MAX_CHUNK = 8192       # elements; long runs help the hardware prefetcher
    MIN_CHUNK = 64
    SHORT_ROW = 32         # columns; inputs with shorter rows are first copied densely
    NARROW_ROW = 512       # columns; in shorter rows, values that rows share are repeated
    SHARD_COST = 16384     # additions per shard at least

include "chunks.pxi"


# Functions -------------------------------------------------------------------------------------

# UNARY and BINARY (indices in the micro-kernels' table), LINKS (codes), SWAPPED and COSTS:
# generated from kuiper/expression/functions.py.
include "function_tables.pxi"

_CODES = {name: code + N_LINKS for name, code in LINKS.items()}
_CODES |= {"load": LINK_LOAD, "store": LINK_STORE, "add_product": LINK_ADD_PRODUCT}


def unary_number(name):
    """Return the index of a function of one tensor in the micro-kernels' table.

    Parameters
    ----------
    name : str
        A function of one operand, or ``clamp``.

    Raises
    ------
    KeyError
        If there is no such kernel.  ``relu6`` is ``clamp`` with the parameters 0 and 6.
    """
    return UNARY[name]


# Preparing -------------------------------------------------------------------------------------

cdef class ElementwiseStep(Step):
    """One pass over memory that computes a program.

    Parameters
    ----------
    program : ElementwiseProgram
    inputs : sequence of (TensorView or numpy.ndarray)
        One tensor per source of the program, broadcastable to the result: float32, bfloat16, or
        bytes with a scale.  An array is a constant of float32; the step keeps a reference to it.
    output : TensorView
        Of the program's shape.  It overlaps no input, except one with the same address, strides
        and element type.
    scales : sequence of ((float, int) or None), optional
        A scale and a zero point for each input, then for the output, that is bytes; None for the
        others.  Bytes and bfloat16 are widened as a chunk is loaded, and narrowed as it is stored.

    Raises
    ------
    KuiperError
        If the program has too many inputs, loops or temporaries.
    """

    cdef program_t p

    def __init__(self, program, inputs, output, scales=None):
        if len(inputs) > MAX_INPUTS:
            raise KuiperError(f"a program reads {len(inputs)} tensors, at most {MAX_INPUTS} can be")
        self.p.kernels = active()
        self.p.n_inputs = len(inputs)
        self.p.inputs = <input_t*> allocated(len(inputs), sizeof(input_t))
        # Each instruction may be preceded by copies of both of its arguments.
        self.p.steps = <step_t*> allocated(3 * len(program.instructions), sizeof(step_t))
        # At most, every instruction is its own chain of three links: load, compute, store.
        self.p.operations = <operation_t*> allocated(
            3 * len(program.instructions), sizeof(operation_t)
        )
        self.keep = []
        self._set_elements([*inputs, output], scales)
        strides = [self._place(i, value, program.shape) for i, value in enumerate(inputs)]
        self.p.y = self.ref(output)
        outer = self._arrange(program.shape, output.strides, strides)
        n_blocks, is_transposed, repeats = self._place_chunks()
        n_blocks = self._schedule(program, n_blocks, repeats)
        if n_blocks * MIN_CHUNK > SCRATCH_FLOATS:
            raise KuiperError(
                f"a program keeps {n_blocks} temporaries at once, at most "
                f"{SCRATCH_FLOATS // MIN_CHUNK} can be"
            )
        self._cut(outer, SCRATCH_FLOATS // max(n_blocks, 1), is_transposed)
        self.run = elementwise_run
        self.params = &self.p
        self.kind = "elementwise" if scales is None else "quantized_elementwise"
        size = output.size
        cost = sum(COSTS[i.name] for i in program.instructions)
        self.max_shards = max(1, min(self.p.chunks.count, <Py_ssize_t> (size * cost) // SHARD_COST))
        self.flops = float(size * len(program.instructions))
        self.bytes = <double> size * item_size(&self.p.y_stored)
        for i, value in enumerate(inputs):
            self.bytes += <double> value.size * item_size(&self.p.inputs[<int> i].stored)

    def __dealloc__(self):
        free(self.p.inputs)
        free(self.p.steps)
        free(self.p.operations)

    cdef _set_elements(self, values, scales):
        """Record how the inputs, then the output, are stored."""
        cdef int i
        cdef stored_t* target
        for i, value in enumerate(values):
            is_result = i == self.p.n_inputs
            target = &self.p.y_stored if is_result else &self.p.inputs[i].stored
            if value.dtype == dtypes.BFLOAT16:
                target.element = BFLOAT16
            elif scales is not None and scales[i] is not None:
                scale, target.zero = scales[i]
                target.element = BYTE
                target.factor = np.float32(1) / np.float32(scale) if is_result else scale

    cdef _place(self, int i, value, shape):
        """Record the location of input `i`, and return its strides broadcast to `shape`."""
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
            Number of blocks that the copies take.
        bool
            Whether one of the copies is a transposition.
        bool
            Whether to repeat values that do not vary along the rows: if rows are short and all
            other operands are contiguous from row to row.
        """
        cdef int i, n_blocks = 0
        cdef input_t* x
        cdef bint is_short = self.p.n_columns < SHORT_ROW and self.p.n_rows > 1
        cdef bint is_transposed = False, is_flat = True
        for i in range(self.p.n_inputs):
            x = &self.p.inputs[i]
            x.block = -1
            if x.stored.element != FLOAT32:
                x.block = n_blocks
                if is_short and x.varies & ROWS:
                    x.varies = BOTH
            elif is_short and x.varies & ROWS and x.row != self.p.n_columns * x.column:
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

    cdef int _schedule(self, program, int n_blocks, bint repeats) except -1:
        """Create the steps and assign blocks, which are reused after the last read of their values.

        The result of a step never shares a block with an operand of the step, because it would
        overwrite a broadcast row before later rows read it.
        """
        cdef int i, n_operations = 0
        cdef step_t* step
        instructions, varies = program.instructions, []
        for instruction in instructions:
            varies.append(self._varies(instruction.arguments, varies))
        # Plans for other shapes, and equal layers, mostly find the same passes.
        along = [self.p.inputs[i].varies for i in range(self.p.n_inputs)]
        key = (tuple(varies), tuple(along), repeats, self.p.n_rows > 1)
        found = program.passes.get(key)
        if found is None:
            found = program.passes[key] = self._find_passes(instructions, varies, repeats)
        instructions, varies, held, passes, reads, last_use = found
        self.p.n_steps = len(passes)
        blocks = {}  # instruction -> block of its result
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
                # A held result keeps its block for later chunks.
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

    cdef tuple _find_passes(self, instructions, varies, bint repeats):
        """Return the passes, what each reads, and the last that reads each value.

        The instructions come first, with the copies that `repeats` asks for; then the axes along
        which each varies, and the numbers of those that hold their results for later chunks.
        """
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
        return instructions, varies, held, passes, reads, last_use

    cdef int _varies(self, arguments, known) except -1:
        """Return the axes along which a function of `arguments` varies."""
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
        """Tell whether a step can write to the result's memory directly."""
        return (
            self.p.y_column == 1
            and self.p.y_stored.element == FLOAT32
            and (varies & COLUMNS != 0 or self.p.n_columns == 1)
            and (varies & ROWS != 0 or self.p.n_rows == 1)
        )

    cdef _cut(self, outer, Py_ssize_t capacity, bint is_transposed):
        """Choose the extents of a chunk; a block holds up to `capacity` elements."""
        cdef Py_ssize_t total = self.p.n_rows * self.p.n_columns, chunk, pieces
        cdef int i
        for extent, _ in outer:
            total *= <Py_ssize_t> extent
        # At least 16 chunks balance the load, unless that makes them too small.
        chunk = min(capacity, MAX_CHUNK, max(4 * MIN_CHUNK, total // 16))
        chunk = chunk // MIN_CHUNK * MIN_CHUNK
        self.p.chunk = chunk
        self.p.column_step = max(self.p.n_columns, 1)
        if is_transposed:
            # A transposition uses whole cache lines of source and target.
            self.p.column_step = min(self.p.column_step, MIN_CHUNK)
        elif self.p.n_columns > chunk:
            pieces = ceil_div(self.p.n_columns, chunk)
            self.p.column_step = min(chunk, 16 * ceil_div(self.p.n_columns, 16 * pieces))
        self.p.row_step = max(1, min(self.p.n_rows, chunk // self.p.column_step))
        # If chunks advance along the rows first, held values remain valid longer.
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

cdef class _ArrayView:
    """An array with the attributes of a tensor view that a step reads."""

    cdef readonly Py_ssize_t slot, offset_bytes, size
    cdef readonly tuple shape, strides
    cdef readonly object dtype

    def __init__(self, Py_ssize_t slot, array):
        self.slot, self.offset_bytes = slot, 0
        self.shape, self.size, self.dtype = array.shape, array.size, array.dtype
        self.strides = tuple(stride // 4 for stride in array.strides)


cdef class PreparedProgram:
    """A program prepared for arrays of given shapes and strides, to run any number of times.

    Parameters
    ----------
    program : ElementwiseProgram
    operands : sequence of numpy.ndarray
        Indexed by the program's sources; float32, aligned, any strides.
    out : numpy.ndarray
        Of the program's shape; may be one of the operands of that shape.

    Raises
    ------
    KuiperError
        If an array is not aligned float32, or the program is too large for a step.
    """

    cdef ElementwiseStep step
    cdef tuple sources

    def __init__(self, program, operands, out):
        self.sources = program.sources
        arrays = [*self._arrays(operands), out]
        for i, array in enumerate(arrays):
            if array.dtype != np.float32 or not array.flags.aligned:
                raise KuiperError(f"operand {i} is {array.dtype}, expected aligned float32")
        *inputs, output = (_ArrayView(i, array) for i, array in enumerate(arrays))
        self.step = ElementwiseStep(program, inputs, output)

    cdef list _arrays(self, operands):
        return [
            np.asarray(operands[source] if isinstance(source, int) else source)
            for source in self.sources
        ]

    @property
    def max_shards(self):
        """The largest number of shards with enough work for a thread each."""
        return self.step.max_shards

    def run(self, operands, out, Py_ssize_t n_shards=1, int n_threads=1):
        """Run on arrays with the shapes and strides that the program was prepared for.

        Parameters
        ----------
        operands : sequence
        out : numpy.ndarray
        n_shards : int, default 1
            Number of shards; the result does not depend on it.
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
    """Return the address of an array's data, faster than by numpy's attributes."""
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
        Indexed by the program's sources; float32, aligned, any strides.
    out : numpy.ndarray, optional
        Receives the result; may be one of the operands of the result's shape.
    n_shards : int, default 1
        Number of shards, which run one after the other.

    Returns
    -------
    numpy.ndarray
    """
    if out is None:
        out = np.empty(program.shape, np.float32)
    return PreparedProgram(program, operands, out).run(operands, out, n_shards)
