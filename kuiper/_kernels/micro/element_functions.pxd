# The numbers of element types and functions, for the micro-kernels and for the programs of
# elementwise/typed.pyx, which maps Python names to them.

cdef enum Type:
    BOOL          # one byte, 0 or 1
    UINT8
    INT8
    INT16
    INT32
    INT64
    FLOAT32
    FLOAT64
    BFLOAT16      # converts from and to FLOAT32 only

# Functions of two elements of one type.  A function of one element takes the element twice.
cdef enum Function:
    # The result is a bool.
    EQUAL
    UNEQUAL
    LESS
    LESS_EQUAL
    IS_INFINITE
    IS_FINITE
    # Bitwise; shifts take integers only.
    AND
    OR
    XOR
    SHIFT_LEFT
    SHIFT_RIGHT
    # Arithmetic; integers wrap.
    ADD
    SUBTRACT
    MULTIPLY
    DIVIDE              # floats only
    FLOOR_DIVIDE        # integers only; the divisor is not 0
    REMAINDER           # integers only; the divisor is not 0
    MAXIMUM
    MINIMUM
    ABSOLUTE
