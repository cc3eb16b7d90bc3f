# One column of the transforms of F(t x t, 3x3); winograd.pxi explains them.

cdef extern from *:
    """
    #define KP_A 0.625f
    #define KP_B 1.5f
    #define KP_A2 (KP_A * KP_A)
    #define KP_B2 (KP_B * KP_B)
    #define KP_AT_0 (1.0f / (KP_A2 * KP_B2))
    #define KP_AT_A (0.5f / (KP_A2 * (KP_A2 - KP_B2)))
    #define KP_AT_B (0.5f / (KP_B2 * (KP_B2 - KP_A2)))
    /* G: the factors of the three taps in the filter at each point. */
    static const float kp_filter_2[4][3] = {
        {1.0f, 0.0f, 0.0f},
        {0.5f, 0.5f, 0.5f},
        {0.5f, -0.5f, 0.5f},
        {0.0f, 0.0f, 1.0f},
    };
    static const float kp_filter_4[6][3] = {
        {KP_AT_0, 0.0f, 0.0f},
        {KP_AT_A, KP_AT_A * KP_A, KP_AT_A * KP_A2},
        {KP_AT_A, -KP_AT_A * KP_A, KP_AT_A * KP_A2},
        {KP_AT_B, KP_AT_B * KP_B, KP_AT_B * KP_B2},
        {KP_AT_B, -KP_AT_B * KP_B, KP_AT_B * KP_B2},
        {0.0f, 0.0f, 1.0f},
    };
    """
    const float A "KP_A", A2 "KP_A2", B "KP_B", B2 "KP_B2"
    const float AT_0 "KP_AT_0", AT_A "KP_AT_A", AT_B "KP_AT_B"
    const float[4][3] FILTER_2 "kp_filter_2"
    const float[6][3] FILTER_4 "kp_filter_4"


# Arguments are scalars and not an array, so that compilers keep them in registers.  Those beyond
# the patch of t = 2, or of a small edge, are not used.

cdef inline void wino_bt(
    int t, bint small, vf32 d0, vf32 d1, vf32 d2, vf32 d3, vf32 d4, vf32 d5, vf32* o
) noexcept nogil:
    """One column of B' d."""
    cdef vf32 p, q, r, s
    if small:
        p = splat(A2 - B2) * d2
        q = splat(A * (A2 - B2)) * d1
        o[0] = splat(A2 * B2) * d0 - splat(B2) * d2
        o[1] = p + q
        o[2] = p - q
        o[5] = d3 - splat(A2) * d1
        return
    if t == 2:
        o[0] = d0 - d2
        o[1] = d1 + d2
        o[2] = d2 - d1
        o[3] = d1 - d3
        return
    p = d4 - splat(B2) * d2
    q = d3 - splat(B2) * d1
    r = d4 - splat(A2) * d2
    s = d3 - splat(A2) * d1
    o[0] = splat(A2 * B2) * d0 - splat(A2 + B2) * d2 + d4
    o[1] = p + splat(A) * q
    o[2] = p - splat(A) * q
    o[3] = r + splat(B) * s
    o[4] = r - splat(B) * s
    o[5] = splat(A2 * B2) * d1 - splat(A2 + B2) * d3 + d5


cdef inline void wino_at(
    int t, bint small, vf32 m0, vf32 m1, vf32 m2, vf32 m3, vf32 m4, vf32 m5, vf32* o
) noexcept nogil:
    """One column of A' m."""
    cdef vf32 a = m1 + m2, b = m1 - m2, c, d
    if small:
        o[0] = m0 + a
        o[1] = splat(A) * b + m5
        return
    if t == 2:
        o[0] = m0 + a
        o[1] = b - m3
        return
    c = m3 + m4
    d = m3 - m4
    o[0] = m0 + a + c
    o[1] = splat(A) * b + splat(B) * d
    o[2] = splat(A2) * a + splat(B2) * c
    o[3] = m5 + splat(B * B2) * d + splat(A * A2) * b


cdef inline bint wino_has(int t, bint small, int point) noexcept nogil:
    """Whether the transform has a point; a constant where t, small and point are."""
    return point < 3 or point == t + 1 if small else point < t + 2


cdef inline vf32 wino_product(
    int t, bint small, const float* m, Py_ssize_t stride, int i, int j, Py_ssize_t c, long n
) noexcept nogil:
    """Load product (i, j) of a patch; zeros if the transform has none."""
    if not wino_has(t, small, i):
        return splat(0.0)
    return load_first(m + (i * (t + 2) + j) * stride + c, n)
