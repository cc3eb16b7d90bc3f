# Element types and the functions of them, numbered: the one list that the micro-kernels and the
# programs of typed.pyx share.  typed.pyx has Python's names for them.

cdef enum Type:
    BOOL          # one byte, 0 or 1
    UINT8
    INT8
    INT16
    INT32
    INT64
    FLOAT32
    FLOAT64

# What may become of two elements of one type.  A function of one element takes it twice.
cdef enum Function:
    # Answered by a bool.
    EQUAL
    UNEQUAL
    LESS
    LESS_EQUAL
    IS_INFINITE
    IS_FINITE
    # Of bits; shifts take integers.
    AND
    OR
    XOR
    SHIFT_LEFT
    SHIFT_RIGHT
    # Of numbers; integers wrap.
    ADD
    SUBTRACT
    MULTIPLY
    DIVIDE              # floats
    FLOOR_DIVIDE        # integers, by anything but 0
    REMAINDER           # integers, by anything but 0
    MAXIMUM
    MINIMUM
    ABSOLUTE
