# Conversions between element types, and functions of two elements of one type, over dense runs.
# These are plain loops, which the compiler vectorizes.

from libc.math cimport INFINITY, fabs
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy

from kuiper._kernels.micro cimport element_functions as typed

ctypedef fused element_t:
    uint8_t
    int8_t
    int16_t
    int32_t
    int64_t
    float
    double

ctypedef fused target_t:
    uint8_t
    int8_t
    int16_t
    int32_t
    int64_t
    float
    double

ctypedef fused whole_t:
    uint8_t
    int8_t
    int16_t
    int32_t
    int64_t

cdef enum:
    MIN_INT32 = -0x80000000


cdef inline int64_t min_int64() noexcept nogil:
    return <int64_t> (<uint64_t> 1 << 63)


# -- conversions -------------------------------------------------------------------------------

cdef inline void put_whole(element_t x, target_t* y) noexcept nogil:
    """Store a float as an integer, truncated towards zero.

    For int32 and int64, NaN and numbers out of range give the minimum.  Smaller integers are the
    low bits of the conversion to int64.
    """
    if target_t is int32_t:
        if x >= -2147483648.0 and x < 2147483648.0:
            y[0] = <int32_t> x
        else:
            y[0] = MIN_INT32
    else:
        if x >= -9223372036854775808.0 and x < 9223372036854775808.0:
            y[0] = <target_t> <int64_t> x
        else:
            y[0] = <target_t> min_int64()


cdef inline void convert_whole(const element_t* x, target_t* y, Py_ssize_t n) noexcept nogil:
    cdef Py_ssize_t i
    cdef int fits = 1
    # If all elements are in range, a loop without branches converts them.
    if target_t is int64_t:
        for i in range(n):
            fits &= (x[i] >= -9223372036854775808.0) & (x[i] < 9223372036854775808.0)
        if fits:
            for i in range(n):
                y[i] = <int64_t> x[i]
            return
    else:
        for i in range(n):
            fits &= (x[i] >= -2147483648.0) & (x[i] < 2147483648.0)
        if fits:
            for i in range(n):
                y[i] = <target_t> <int32_t> x[i]
            return
    for i in range(n):
        put_whole(x[i], &y[i])


cdef inline void convert_items(const element_t* x, target_t* y, Py_ssize_t n) noexcept nogil:
    cdef Py_ssize_t i
    if (element_t is float or element_t is double) and not (
        target_t is float or target_t is double
    ):
        convert_whole(x, y, n)
    else:
        for i in range(n):
            y[i] = <target_t> x[i]


cdef inline void widen(const uint16_t* x, float* y, Py_ssize_t n) noexcept nogil:
    """bfloat16 to float32: the upper half of the bits."""
    cdef uint32_t word
    cdef Py_ssize_t i
    for i in range(n):
        word = <uint32_t> x[i] << 16
        memcpy(&y[i], &word, sizeof(float))


cdef inline void narrow(const float* x, uint16_t* y, Py_ssize_t n) noexcept nogil:
    """float32 to bfloat16, to the nearest, from halves to even; NaN stays NaN."""
    cdef uint32_t word, nearest
    cdef Py_ssize_t i
    for i in range(n):
        memcpy(&word, &x[i], sizeof(float))
        nearest = word + 0x7FFF + (word >> 16 & 1)
        y[i] = <uint16_t> ((nearest if x[i] == x[i] else word | 0x400000) >> 16)


cdef inline void convert_from(
    const element_t* x, int target, void* y, Py_ssize_t n
) noexcept nogil:
    cdef Py_ssize_t i
    if target == typed.BOOL:
        for i in range(n):
            (<uint8_t*> y)[i] = x[i] != 0
    elif target == typed.UINT8:
        convert_items(x, <uint8_t*> y, n)
    elif target == typed.INT8:
        convert_items(x, <int8_t*> y, n)
    elif target == typed.INT16:
        convert_items(x, <int16_t*> y, n)
    elif target == typed.INT32:
        convert_items(x, <int32_t*> y, n)
    elif target == typed.INT64:
        convert_items(x, <int64_t*> y, n)
    elif target == typed.FLOAT32:
        convert_items(x, <float*> y, n)
    else:
        convert_items(x, <double*> y, n)


cdef void typed_convert(
    int source, int target, Py_ssize_t n, const void* x, void* y
) noexcept nogil:
    if source == typed.BFLOAT16:
        widen(<const uint16_t*> x, <float*> y, n)
    elif target == typed.BFLOAT16:
        narrow(<const float*> x, <uint16_t*> y, n)
    elif source <= typed.UINT8:
        convert_from(<const uint8_t*> x, target, y, n)
    elif source == typed.INT8:
        convert_from(<const int8_t*> x, target, y, n)
    elif source == typed.INT16:
        convert_from(<const int16_t*> x, target, y, n)
    elif source == typed.INT32:
        convert_from(<const int32_t*> x, target, y, n)
    elif source == typed.INT64:
        convert_from(<const int64_t*> x, target, y, n)
    elif source == typed.FLOAT32:
        convert_from(<const float*> x, target, y, n)
    else:
        convert_from(<const double*> x, target, y, n)


# -- functions ---------------------------------------------------------------------------------

cdef inline void compare(
    int function, const element_t* a, const element_t* b, uint8_t* y, Py_ssize_t n
) noexcept nogil:
    """Functions whose result is a bool."""
    cdef Py_ssize_t i
    if function == typed.EQUAL:
        for i in range(n):
            y[i] = a[i] == b[i]
    elif function == typed.UNEQUAL:
        for i in range(n):
            y[i] = a[i] != b[i]
    elif function == typed.LESS:
        for i in range(n):
            y[i] = a[i] < b[i]
    elif function == typed.LESS_EQUAL:
        for i in range(n):
            y[i] = a[i] <= b[i]
    elif element_t is float or element_t is double:
        if function == typed.IS_INFINITE:
            for i in range(n):
                y[i] = fabs(a[i]) == INFINITY
        else:
            for i in range(n):
                y[i] = fabs(a[i]) < INFINITY
    else:
        for i in range(n):
            y[i] = function == typed.IS_FINITE


cdef inline element_t wrapped(int function, element_t a, element_t b) noexcept nogil:
    """A sum, difference or product.  Integers wrap, which C defines for unsigned ones only."""
    if element_t is float or element_t is double:
        return a + b if function == typed.ADD else a - b if function == typed.SUBTRACT else a * b
    elif element_t is int64_t:
        if function == typed.ADD:
            return <int64_t> (<uint64_t> a + <uint64_t> b)
        if function == typed.SUBTRACT:
            return <int64_t> (<uint64_t> a - <uint64_t> b)
        return <int64_t> (<uint64_t> a * <uint64_t> b)
    else:
        if function == typed.ADD:
            return <element_t> (<uint32_t> a + <uint32_t> b)
        if function == typed.SUBTRACT:
            return <element_t> (<uint32_t> a - <uint32_t> b)
        return <element_t> (<uint32_t> a * <uint32_t> b)


cdef inline whole_t divided(int function, whole_t a, whole_t b) noexcept nogil:
    """The quotient of integers rounded down, or its remainder; b is not 0."""
    cdef whole_t quotient, rest
    if whole_t is not uint8_t and b == -1:
        # The negative of the minimum overflows, and the CPU's division would trap.
        return wrapped(typed.SUBTRACT, b - b, a) if function == typed.FLOOR_DIVIDE else 0
    quotient, rest = a / b, a % b
    if rest != 0 and (rest < 0) != (b < 0):
        quotient, rest = quotient - 1, rest + b
    return quotient if function == typed.FLOOR_DIVIDE else rest


cdef inline whole_t shifted(int function, whole_t a, whole_t b) noexcept nogil:
    """A shift; by a negative count, or by the width and more, all bits are shifted out."""
    cdef int64_t width = 8 * sizeof(whole_t), wide = a
    if 0 <= b < width:
        if function == typed.SHIFT_LEFT:
            return <whole_t> (<uint64_t> wide << b)
        return <whole_t> (wide >> b)
    return -1 if function == typed.SHIFT_RIGHT and wide < 0 else 0


cdef inline void calculate_whole(
    int function, const whole_t* a, const whole_t* b, whole_t* y, Py_ssize_t n
) noexcept nogil:
    """Functions of integers, and of bools as their bits."""
    cdef Py_ssize_t i
    if function == typed.AND:
        for i in range(n):
            y[i] = a[i] & b[i]
    elif function == typed.OR:
        for i in range(n):
            y[i] = a[i] | b[i]
    elif function == typed.XOR:
        for i in range(n):
            y[i] = a[i] ^ b[i]
    elif function == typed.SHIFT_LEFT:
        for i in range(n):
            y[i] = shifted(typed.SHIFT_LEFT, a[i], b[i])
    elif function == typed.SHIFT_RIGHT:
        for i in range(n):
            y[i] = shifted(typed.SHIFT_RIGHT, a[i], b[i])
    elif function == typed.FLOOR_DIVIDE:
        for i in range(n):
            y[i] = divided(typed.FLOOR_DIVIDE, a[i], b[i])
    else:
        for i in range(n):
            y[i] = divided(typed.REMAINDER, a[i], b[i])


cdef inline void calculate(
    int function, const element_t* a, const element_t* b, element_t* y, Py_ssize_t n
) noexcept nogil:
    """Functions whose result has the type of the operands."""
    cdef Py_ssize_t i
    if function == typed.ADD:
        for i in range(n):
            y[i] = wrapped(typed.ADD, a[i], b[i])
    elif function == typed.SUBTRACT:
        for i in range(n):
            y[i] = wrapped(typed.SUBTRACT, a[i], b[i])
    elif function == typed.MULTIPLY:
        for i in range(n):
            y[i] = wrapped(typed.MULTIPLY, a[i], b[i])
    elif function == typed.MAXIMUM:
        # NaN if either element is.
        for i in range(n):
            y[i] = a[i] if (a[i] > b[i]) | (a[i] != a[i]) else b[i]
    elif function == typed.MINIMUM:
        for i in range(n):
            y[i] = a[i] if (a[i] < b[i]) | (a[i] != a[i]) else b[i]
    elif element_t is float or element_t is double:
        if function == typed.ABSOLUTE:
            for i in range(n):
                y[i] = <element_t> fabs(a[i])
        else:
            for i in range(n):
                y[i] = a[i] / b[i]
    elif function == typed.ABSOLUTE:
        for i in range(n):
            y[i] = a[i] if a[i] >= 0 else wrapped(typed.SUBTRACT, a[i] - a[i], a[i])
    else:
        calculate_whole(function, a, b, y, n)


cdef inline void apply(
    int function, const element_t* a, const element_t* b, void* y, Py_ssize_t n
) noexcept nogil:
    if function <= typed.IS_FINITE:
        compare(function, a, b, <uint8_t*> y, n)
    else:
        calculate(function, a, b, <element_t*> y, n)


cdef void typed_apply(
    int function, int type, Py_ssize_t n, const void* a, const void* b, void* y
) noexcept nogil:
    if type <= typed.UINT8:
        apply(function, <const uint8_t*> a, <const uint8_t*> b, y, n)
    elif type == typed.INT8:
        apply(function, <const int8_t*> a, <const int8_t*> b, y, n)
    elif type == typed.INT16:
        apply(function, <const int16_t*> a, <const int16_t*> b, y, n)
    elif type == typed.INT32:
        apply(function, <const int32_t*> a, <const int32_t*> b, y, n)
    elif type == typed.INT64:
        apply(function, <const int64_t*> a, <const int64_t*> b, y, n)
    elif type == typed.FLOAT32:
        apply(function, <const float*> a, <const float*> b, y, n)
    else:
        apply(function, <const double*> a, <const double*> b, y, n)


cdef void fill_typed(kernels_t* k) noexcept:
    k.typed_convert = typed_convert
    k.typed_apply = typed_apply
