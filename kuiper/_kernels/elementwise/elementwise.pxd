# The elementwise functions, numbered: the one list that the micro-kernels' tables, the programs of
# elementwise.pyx and Python's names for them (elementwise.pyx lists the enumerators) share.

cpdef enum Unary:
    COPY
    ABS
    NEG
    SIGN
    SQUARE
    SQRT
    RSQRT
    RECIPROCAL
    FLOOR
    CEIL
    TRUNC
    ROUND
    EXP
    EXP2
    EXPM1
    LOG
    LOG10
    LOG2
    LOG1P
    ERF
    SIN
    COS
    TAN
    ASIN
    ACOS
    ATAN
    SINH
    COSH
    TANH
    ASINH
    ACOSH
    ATANH
    # activations; p0 and p1 as in the comment behind
    RELU
    LEAKY_RELU      # slope
    CLAMP           # low, high
    SIGMOID
    LOGSIGMOID
    HARDSIGMOID
    SILU
    HARDSWISH
    MISH
    GELU
    GELU_TANH
    ELU             # alpha
    CELU            # alpha
    SELU
    SOFTPLUS        # beta, threshold
    SOFTSIGN
    TANHSHRINK
    HARDSHRINK      # bound
    SOFTSHRINK      # bound
    THRESHOLD       # threshold, value
    NAN_TO          # value
    INF_TO          # value for infinity, for -infinity
    N_UNARY

# What a chain of cheap operations may do to its running value r, with an operand x or without.
cdef enum Link:
    LINK_LOAD            # x
    LINK_STORE           # r, which goes to x
    LINK_ADD             # r + x
    LINK_ADD_PRODUCT     # r + x * z, rounded twice
    LINK_SUB             # r - x
    LINK_SUB_FROM        # x - r
    LINK_MUL             # r * x
    LINK_DIV             # r / x
    LINK_DIV_INTO        # x / r
    LINK_MAX
    LINK_MIN
    LINK_PRELU           # r with the weight x
    LINK_NEG
    LINK_ABS
    LINK_FLOOR
    LINK_CEIL
    LINK_TRUNC
    LINK_ROUND
    LINK_SQUARE
    LINK_SQRT
    LINK_RSQRT
    LINK_RECIPROCAL
    LINK_RELU
    LINK_LEAKY_RELU
    LINK_CLAMP
    LINK_HARDSIGMOID
    LINK_HARDSWISH
    LINK_NAN_TO
    LINK_INF_TO

cpdef enum Binary:
    ADD
    SUB
    MUL
    DIV
    MAX
    MIN
    PRELU           # x, weight
    POW
    ATAN2
    LOGADDEXP
    FMOD
    REMAINDER
    FLOOR_DIVIDE
    FMAX            # NaN only where both are
    FMIN
    HYPOT
    COPYSIGN        # magnitude, sign
    XLOGY
    HEAVISIDE       # x, value at 0
    NEXTAFTER
    N_BINARY
