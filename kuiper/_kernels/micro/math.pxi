# Elementary functions of a vector of floats.
#
# Each function reduces its argument exactly to a small interval and evaluates a short polynomial
# there, as Cephes and fdlibm do; docs/fit_polynomials.py computes the minimax coefficients.  The
# bound in each docstring is the worst error against float64, in ulp, over all floats whose result
# is not denormal; tests/unit/kernels/test_elementwise.py checks it on every instruction set.  Zeros
# keep their sign, NaN gives NaN, and infinities and domain errors follow C.
#
# The compiler may contract a product and a sum into an FMA.  Every function keeps its bound either
# way, but instruction sets differ in the last bit.

from libc.math cimport INFINITY, NAN, copysignf, cosf, fmod, rint, sinf, tanf

cdef enum:
    SIGN_BIT = -2147483648  # 0x80000000

ctypedef vf32 (*vector_1)(vf32) noexcept nogil


# Bits ------------------------------------------------------------------------------------------

cdef inline vf32 vabs(vf32 x) noexcept nogil:
    return from_bits(bits(x) & splat_int(0x7FFFFFFF))


cdef inline vf32 with_sign(vf32 magnitude, vf32 sign) noexcept nogil:
    """Return `magnitude`, which is not negative, with the sign bit of `sign`."""
    return from_bits(bits(magnitude) | (bits(sign) & splat_int(SIGN_BIT)))


cdef inline vf32 nearest(vf32 x, vf32 factor, vi32* n) noexcept nogil:
    """Return x factor rounded to an integer, also as n, for |x factor| < 2^22."""
    # Floats near 3 2^22 are 1 apart, so the sum rounds to an integer, and its low bits are n.
    cdef vf32 t = x * factor + splat(12582912.0)
    n[0] = bits(t) - splat_int(0x4B400000)
    return t - splat(12582912.0)


cdef inline vf32 small_to_float(vi32 n) noexcept nogil:
    """Return n for |n| < 2^22."""
    return from_bits(n + splat_int(0x4B400000)) - splat(12582912.0)


cdef inline vf32 power_of_two(vf32 n) noexcept nogil:
    """Return 2^n for whole n, -126 <= n <= 127."""
    return from_bits((bits(n + splat(12582912.0)) - splat_int(0x4B400000 - 127)) << 23)


cdef inline vf32 split_exponent(vf32 x, vf32* exponent) noexcept nogil:
    """Return m in [sqrt(1/2), sqrt(2)) and the exponent with x = m 2^exponent, for x > 0."""
    cdef vi32 is_denormal = vlt(x, splat(1.17549435e-38))
    cdef vi32 shifted
    x = select(is_denormal, x * splat(8388608.0), x)
    # Subtracting sqrt(1/2) makes the exponent field change at the limits of m.  The sign is masked
    # because the difference must not overflow for negative x, whose result is unused.
    shifted = (bits(x) & splat_int(0x7FFFFFFF)) - splat_int(0x3F3504F3)
    exponent[0] = small_to_float(shifted >> 23) - select(is_denormal, splat(23.0), splat(0.0))
    return from_bits((shifted & splat_int(0x007FFFFF)) + splat_int(0x3F3504F3))


# Exponentials ----------------------------------------------------------------------------------

cdef inline vf32 exp_reduce(vf32 x, vf32* n) noexcept nogil:
    """Return r and n with x = n log(2) + r, |r| <= log(2) / 2."""
    cdef vi32 whole
    n[0] = nearest(x, splat(1.44269504), &whole)
    # The high part of log(2) has so few bits that its product with n is exact.
    return x - n[0] * splat(0.693359375) - n[0] * splat(-2.12194440e-4)


cdef inline vf32 exp_tail(vf32 r) noexcept nogil:
    """Return (exp(r) - 1 - r) / r^2 for |r| <= log(2) / 2."""
    cdef vf32 p = splat(0.0013870982)
    p = p * r + splat(0.008366474)
    p = p * r + splat(0.041667435)
    p = p * r + splat(0.16666545)
    return p * r + splat(0.49999997)


cdef inline vf32 exp_scaled(vf32 x, int power) noexcept nogil:
    """Return exp(x) 2^power, which may be finite where exp(x) overflows."""
    cdef vf32 n
    # Beyond these bounds the result is 0 or infinity.  This order of arguments passes NaN on.
    cdef vf32 r = exp_reduce(vmin(splat(90.0), vmax(splat(-105.0), x)), &n)
    return scaled(exp_tail(r) * r * r + r + splat(1.0), n + splat(power))


cdef inline vf32 vexp(vf32 x) noexcept nogil:
    """1.5 ulp."""
    return exp_scaled(x, 0)


cdef inline vf32 vexp2(vf32 x) noexcept nogil:
    """2 ulp."""
    cdef vi32 whole
    cdef vf32 c = vmin(splat(130.0), vmax(splat(-152.0), x)), n = nearest(c, splat(1.0), &whole)
    cdef vf32 r = (c - n) * splat(0.693147181)
    return scaled(exp_tail(r) * r * r + r + splat(1.0), n)


cdef inline vf32 exp_negative(vf32 x) noexcept nogil:
    """Return exp(-x) for a divisor 1 + exp(-x): 3 ulp for |x| < 8, up to 30 beyond.

    It costs two thirds of vexp: an FMA reduces the argument in one product, which includes the
    sign.  Because the FMA does not round the product, no bits are lost.  No result is less than
    exp(-87), so none is denormal; see exp_term.
    """
    cdef vi32 whole
    cdef vf32 c = vmin(splat(87.0), vmax(splat(-90.0), x))
    if not FUSES:
        return vexp(-c)
    cdef vf32 n = nearest(c, splat(-1.44269504), &whole)
    cdef vf32 f = c * splat(-1.44269504) - n
    cdef vf32 p = splat(0.0013269555)
    p = p * f + splat(0.009671293)
    p = p * f + splat(0.05550711)
    p = p * f + splat(0.24022247)
    p = p * f + splat(0.693147)
    return scaled(p * f + splat(1.0), n)


cdef inline vf32 exp_term(vf32 x) noexcept nogil:
    """Return exp(-x) for x >= 0 as a term of a sum with 1; 0 for x > 87, instead of a denormal.

    Arithmetic on denormals is 100 times slower on Intel CPUs, and a mask can make all terms
    denormal.
    """
    return select(vlt(splat(87.0), x), splat(0.0), exp_negative(x))


cdef inline vf32 vexpm1(vf32 x) noexcept nogil:
    """2 ulp."""
    cdef vf32 n
    cdef vf32 r = exp_reduce(vmin(splat(88.75), vmax(splat(-25.0), x)), &n)
    cdef vf32 q = exp_tail(r) * r * r + r
    # Compute half of the result, since 2^128 overflows.
    cdef vf32 half = power_of_two(n - splat(1.0))
    cdef vf32 y = half * q + (half - splat(0.5))
    return select(vlt(vabs(x), splat(1e-9)), x, y + y)


# Logarithms ------------------------------------------------------------------------------------

cdef inline vf32 log_tail(vf32 f) noexcept nogil:
    """Return log(1 + f) - f for sqrt(1/2) <= 1 + f < sqrt(2)."""
    cdef vf32 p = splat(0.06749154)
    p = p * f + splat(-0.11670008)
    p = p * f + splat(0.118835405)
    p = p * f + splat(-0.12406241)
    p = p * f + splat(0.1422036)
    p = p * f + splat(-0.16667989)
    p = p * f + splat(0.20002072)
    p = p * f + splat(-0.2500001)
    p = p * f + splat(0.33333313)
    return f * f * (p * f - splat(0.5))


cdef inline vf32 log_domain(vf32 x, vf32 y) noexcept nogil:
    """Return y = log(x) for x > 0; -inf for 0, NaN for x < 0."""
    y = select(veq(x, splat(INFINITY)), x, y)
    y = select(vlt(splat(0.0), x), y, splat(NAN))
    return select(veq(x, splat(0.0)), splat(-INFINITY), y)


cdef inline vf32 vlog(vf32 x) noexcept nogil:
    """1 ulp."""
    cdef vf32 e
    cdef vf32 f = split_exponent(x, &e) - splat(1.0)
    cdef vf32 y = f + (log_tail(f) + e * splat(-2.12194440e-4))
    return log_domain(x, y + e * splat(0.693359375))


cdef inline vf32 vlog10(vf32 x) noexcept nogil:
    """2 ulp."""
    cdef vf32 e
    cdef vf32 f = split_exponent(x, &e) - splat(1.0)
    cdef vf32 y = (f + log_tail(f)) * splat(0.434294482)
    # The product with the high part of log10(2) is exact.
    return log_domain(x, y + e * splat(4.60503898e-6) + e * splat(0.301025390625))


cdef inline vf32 vlog2(vf32 x) noexcept nogil:
    """2 ulp; exact for powers of two."""
    cdef vf32 e
    cdef vf32 f = split_exponent(x, &e) - splat(1.0)
    # log2(e) = 1 + 0.44: a single product would lose the last bits where the exponent is 0.
    cdef vf32 y = f + log_tail(f)
    return log_domain(x, e + (y * splat(0.442695041) + y))


cdef inline vf32 vlog1p(vf32 x) noexcept nogil:
    """2 ulp."""
    cdef vf32 u = splat(1.0) + x
    cdef vf32 lost = x - (u - splat(1.0))
    cdef vf32 y = vlog(u) + lost / u
    y = select(veq(u, splat(INFINITY)), u, y)
    y = select(veq(u, splat(0.0)), splat(-INFINITY), y)
    return select(veq(u, splat(1.0)), x, y)


# Circular functions ----------------------------------------------------------------------------

cdef enum:
    CIRCULAR_LIMIT = 12800  # beyond, the reduction is not exact and libm takes over


cdef inline vf32 circular_reduce(vf32 x, vi32* quadrant) noexcept nogil:
    """Return r and the quadrant with x = quadrant pi / 2 + r, |r| <= pi / 4, for |x| <= LIMIT."""
    cdef vf32 n = nearest(x, splat(0.636619772), quadrant)
    # pi / 2 is split into parts of 11 bits; n has 13 bits, so the products are exact.
    x = x - n * splat(1.5703125)
    x = x - n * splat(4.837512969970703e-4)
    x = x - n * splat(7.549533620476723e-8)
    return x - n * splat(2.5633441515945189e-12)


cdef inline vf32 sin_core(vf32 r) noexcept nogil:
    cdef vf32 z = r * r
    cdef vf32 p = splat(-0.00019507877)
    p = p * z + splat(0.008332106)
    p = p * z + splat(-0.16666654)
    return p * z * r + r


cdef inline vf32 cos_core(vf32 r) noexcept nogil:
    cdef vf32 z = r * r
    cdef vf32 p = splat(2.4431425e-05)
    p = p * z + splat(-0.0013887305)
    p = p * z + splat(0.041666646)
    return p * z * z - splat(0.5) * z + splat(1.0)


cdef inline vf32 circular(vf32 r, vi32 quadrant) noexcept nogil:
    """Return sin(quadrant pi / 2 + r)."""
    cdef vi32 is_odd = -(quadrant & splat_int(1))
    cdef vi32 sign = (quadrant & splat_int(2)) << 30
    return from_bits(bits(select(is_odd, cos_core(r), sin_core(r))) ^ sign)


cdef inline vf32 vsin(vf32 x) noexcept nogil:
    """2.5 ulp."""
    cdef vi32 quadrant
    cdef vf32 r = circular_reduce(vabs(x), &quadrant)
    return from_bits(bits(circular(r, quadrant)) ^ (bits(x) & splat_int(SIGN_BIT)))


cdef inline vf32 vcos(vf32 x) noexcept nogil:
    """2.5 ulp."""
    cdef vi32 quadrant
    cdef vf32 r = circular_reduce(vabs(x), &quadrant)
    return circular(r, quadrant + splat_int(1))


cdef inline vf32 vtan(vf32 x) noexcept nogil:
    """3 ulp."""
    cdef vi32 quadrant, is_odd
    cdef vf32 r = circular_reduce(vabs(x), &quadrant), z = r * r
    cdef vf32 p = splat(0.009487472)
    p = p * z + splat(0.0029494117)
    p = p * z + splat(0.024535215)
    p = p * z + splat(0.053382177)
    p = p * z + splat(0.13339147)
    p = p * z + splat(0.33333144)
    p = p * z * r + r
    is_odd = -(quadrant & splat_int(1))
    p = select(is_odd, splat(-1.0) / p, p)
    return from_bits(bits(p) ^ (bits(x) & splat_int(SIGN_BIT)))


cdef inline vf32 beyond_limit(vf32 x, vf32 y, float (*f)(float) noexcept nogil) noexcept nogil:
    """Return y, except for lanes with |x| > CIRCULAR_LIMIT, which libm computes."""
    cdef float[MAX_LANES] xs, ys
    cdef int i
    store(xs, x)
    store(ys, y)
    for i in range(LANES):
        if not -CIRCULAR_LIMIT <= xs[i] <= CIRCULAR_LIMIT:
            ys[i] = f(xs[i])
    return load(ys)


cdef inline vf32 vsin_far(vf32 x) noexcept nogil:
    return beyond_limit(x, vsin(x), sinf)


cdef inline vf32 vcos_far(vf32 x) noexcept nogil:
    return beyond_limit(x, vcos(x), cosf)


cdef inline vf32 vtan_far(vf32 x) noexcept nogil:
    return beyond_limit(x, vtan(x), tanf)


# Inverse circular functions --------------------------------------------------------------------

cdef inline vf32 half_pi_minus(vf32 x) noexcept nogil:
    """Return pi / 2 - x, with pi / 2 as the sum of two floats."""
    return splat(1.57079637) - (x + splat(4.37113883e-8))


cdef inline vf32 asin_core(vf32 s, vf32 z) noexcept nogil:
    """Return asin(s) for 0 <= s <= 1/2, z = s^2."""
    cdef vf32 p = splat(0.042158388)
    p = p * z + splat(0.024184743)
    p = p * z + splat(0.045469154)
    p = p * z + splat(0.074953094)
    p = p * z + splat(0.16666752)
    return p * z * s + s


cdef inline vf32 vasin(vf32 x) noexcept nogil:
    """2.5 ulp."""
    cdef vf32 a = vabs(x)
    # For a > 1/2: asin(a) = pi / 2 - 2 asin(sqrt((1 - a) / 2)).
    cdef vi32 is_large = vlt(splat(0.5), a)
    cdef vf32 z = select(is_large, splat(0.5) - splat(0.5) * a, a * a)
    cdef vf32 y = asin_core(select(is_large, vsqrt(z), a), z)
    return with_sign(select(is_large, half_pi_minus(y + y), y), x)


cdef inline vf32 vacos(vf32 x) noexcept nogil:
    """2 ulp."""
    cdef vf32 a = vabs(x)
    cdef vi32 is_large = vlt(splat(0.5), a)
    cdef vf32 z = select(is_large, splat(0.5) - splat(0.5) * a, a * a)
    cdef vf32 y = asin_core(select(is_large, vsqrt(z), a), z)
    cdef vf32 near = half_pi_minus(from_bits(bits(y) ^ (bits(x) & splat_int(SIGN_BIT))))
    cdef vf32 far = y + y
    far = select(vlt(x, splat(0.0)), splat(3.14159274) - (far + splat(8.74227766e-8)), far)
    return select(is_large, far, near)


cdef inline vf32 atan_core(vf32 t, vf32 base, vf32 base_low) noexcept nogil:
    """Return base + atan(t) for |t| <= tan(pi / 8)."""
    cdef vf32 z = t * t
    cdef vf32 p = splat(0.08054285)
    p = p * z + splat(-0.13877878)
    p = p * z + splat(0.19977732)
    p = p * z + splat(-0.3333295)
    return base + ((p * z * t + base_low) + t)


cdef inline vf32 vatan(vf32 x) noexcept nogil:
    """2 ulp."""
    cdef vf32 a = vabs(x), zero = splat(0.0), one = splat(1.0)
    # atan(a) = pi / 4 + atan((a - 1) / (a + 1)) = pi / 2 + atan(-1 / a)
    cdef vi32 is_mid = vlt(splat(0.414213562), a), is_large = vlt(splat(2.41421356), a)
    cdef vf32 top = select(is_large, -one, select(is_mid, a - one, a))
    cdef vf32 bottom = select(is_large, a, select(is_mid, a + one, one))
    cdef vf32 base = select(is_large, splat(1.57079637), select(is_mid, splat(0.785398185), zero))
    cdef vf32 low = select(
        is_large, splat(-4.37113883e-8), select(is_mid, splat(-2.18556941e-8), zero)
    )
    return with_sign(atan_core(top / bottom, base, low), x)


cdef vf32 vatan2(vf32 y, vf32 x) noexcept nogil:
    """3 ulp."""
    cdef vf32 ax = vabs(x), ay = vabs(y), zero = splat(0.0), one = splat(1.0)
    cdef vi32 is_steep = vlt(ax, ay)
    cdef vf32 top = select(is_steep, ax, ay), bottom = select(is_steep, ay, ax)
    cdef vf32 t = top / bottom, r
    cdef vi32 is_mid
    t = select(veq(bottom, zero), zero, t)
    t = select(veq(top, splat(INFINITY)), one, t)
    is_mid = vlt(splat(0.414213562), t)
    r = atan_core(
        select(is_mid, (t - one) / (t + one), t),
        select(is_mid, splat(0.785398185), zero), select(is_mid, splat(-2.18556941e-8), zero),
    )
    r = select(is_steep, half_pi_minus(r), r)
    # A comparison would treat -0 as 0; the sign bit does not.
    r = select(bits(x) >> 31, splat(3.14159274) - (r + splat(8.74227766e-8)), r)
    r = with_sign(r, y)
    return select(veq(x, x) & veq(y, y), r, x + y)


# Hyperbolic functions --------------------------------------------------------------------------

cdef inline vf32 vsinh(vf32 x) noexcept nogil:
    """2 ulp."""
    cdef vf32 a = vabs(x), z = a * a
    cdef vf32 p = splat(2.7822132e-06)
    p = p * z + splat(0.00019842896)
    p = p * z + splat(0.0083333105)
    p = p * z + splat(0.16666667)
    p = p * z * a + a
    p = select(vlt(a, splat(1.0)), p, exp_scaled(a, -1) - exp_scaled(-vmin(splat(86.0), a), -1))
    return with_sign(p, x)


cdef inline vf32 vcosh(vf32 x) noexcept nogil:
    """2 ulp."""
    cdef vf32 a = vabs(x)
    return exp_scaled(a, -1) + exp_scaled(-vmin(splat(86.0), a), -1)


cdef inline vf32 tanh_tail(vf32 a) noexcept nogil:
    """Return tanh(a) - a for 0 <= a <= 5/8."""
    cdef vf32 z = a * a
    cdef vf32 p = splat(-0.005692296)
    p = p * z + splat(0.020628167)
    p = p * z + splat(-0.053736515)
    p = p * z + splat(0.13331406)
    p = p * z + splat(-0.3333328)
    return p * z * a


cdef inline vf32 vtanh(vf32 x) noexcept nogil:
    """2 ulp."""
    cdef vf32 a = vabs(x), one = splat(1.0)
    cdef vf32 far = one - splat(2.0) / (vexp(a + a) + one)
    return with_sign(select(vlt(a, splat(0.625)), tanh_tail(a) + a, far), x)


cdef inline vf32 vasinh(vf32 x) noexcept nogil:
    """3 ulp."""
    cdef vf32 a = vabs(x), one = splat(1.0)
    # asinh(a) = log(a + sqrt(a^2 + 1)); for a > 2^27 this is log(2 a), and a^2 may overflow.
    cdef vi32 is_large = vlt(splat(134217728.0), a)
    cdef vf32 t = a + a * a / (one + vsqrt(a * a + one))
    cdef vf32 y = vlog1p(select(is_large, a, t))
    return with_sign(y + select(is_large, splat(0.693147181), splat(0.0)), x)


cdef inline vf32 vacosh(vf32 x) noexcept nogil:
    """3 ulp."""
    cdef vf32 t = x - splat(1.0)
    cdef vi32 is_large = vlt(splat(134217728.0), x)
    cdef vf32 y = vlog1p(select(is_large, x, t + vsqrt(t * t + (t + t))))
    y = y + select(is_large, splat(0.693147181), splat(0.0))
    return select(vlt(x, splat(1.0)), splat(NAN), y)


cdef inline vf32 vatanh(vf32 x) noexcept nogil:
    """3 ulp."""
    cdef vf32 a = vabs(x), twice = a + a
    cdef vf32 y = vlog1p(twice + twice * a / (splat(1.0) - a)) * splat(0.5)
    y = select(veq(a, splat(1.0)), splat(INFINITY), y)
    return with_sign(select(vlt(splat(1.0), a), splat(NAN), y), x)


# Error function --------------------------------------------------------------------------------

cdef inline vf32 erf_near(vf32 x) noexcept nogil:
    """Return erf(x) for |x| <= 0.92."""
    cdef vf32 z = x * x
    cdef vf32 p = splat(7.991312e-05)
    p = p * z + splat(-0.00080489344)
    p = p * z + splat(0.005192365)
    p = p * z + splat(-0.026855726)
    p = p * z + splat(0.11283626)
    p = p * z + splat(-0.3761263)
    p = p * z + splat(0.12837917)
    return p * x + x


cdef inline vf32 erfc_far(vf32 t) noexcept nogil:
    """Return 1 - erf(t) for t >= 0.92; relative error 4e-7 up to t = 4."""
    cdef vf32 p = splat(-6.961982e-09)
    t = vmin(splat(8.0), t)
    p = p * t + splat(1.1670464e-06)
    p = p * t + splat(-3.5206664e-05)
    p = p * t + splat(0.0005015351)
    p = p * t + splat(-0.004308113)
    p = p * t + splat(0.025141433)
    p = p * t + splat(-0.107852295)
    p = p * t + splat(-0.63415265)
    p = p * t + splat(-0.12890126)
    return vexp(p * t - t)


cdef inline vf32 verf(vf32 x) noexcept nogil:
    """2 ulp."""
    cdef vf32 a = vabs(x)
    cdef vf32 y = select(vlt(a, splat(0.92)), erf_near(a), splat(1.0) - erfc_far(a))
    return with_sign(y, x)


# Powers and remainders -------------------------------------------------------------------------

cdef inline double log2_mantissa(double m) noexcept nogil:
    """Return log2(m) for sqrt(1/2) <= m < sqrt(2), to 1e-12: the series of atanh."""
    cdef double s = (m - 1) / (m + 1), z = s * s
    cdef double p = 1.0 / 13
    p = p * z + 1.0 / 11
    p = p * z + 1.0 / 9
    p = p * z + 1.0 / 7
    p = p * z + 1.0 / 5
    p = p * z + 1.0 / 3
    return (p * z + 1) * s * 2.8853900817779268


cdef inline double exp2_fraction(double f) noexcept nogil:
    """Return 2^f for |f| <= 1/2, to 1e-12: the series of exp."""
    cdef double x = f * 0.69314718055994531
    cdef double p = 1.0 / 3628800
    p = p * x + 1.0 / 362880
    p = p * x + 1.0 / 40320
    p = p * x + 1.0 / 5040
    p = p * x + 1.0 / 720
    p = p * x + 1.0 / 120
    p = p * x + 1.0 / 24
    p = p * x + 1.0 / 6
    p = p * x + 0.5
    p = p * x + 1
    return p * x + 1


cdef vf32 vpow(vf32 x, vf32 y) noexcept nogil:
    """1 ulp; computes y log2(x) in double precision."""
    cdef float[MAX_LANES] mantissas, exponents, ys, counts, results
    cdef double t, n
    cdef int i
    cdef vf32 a = vabs(x), zero = splat(0.0), one = splat(1.0), infinity = splat(INFINITY)
    cdef vf32 e, half = y * splat(0.5), r
    cdef vi32 is_whole = veq(vtrunc(y), y)
    cdef vi32 is_odd = is_whole & ~veq(vtrunc(half), half)
    cdef vi32 is_negative = bits(x) >> 31
    store(mantissas, split_exponent(a, &e))
    # log2 of 0 and infinity; the product with y decides between 0 and infinity.
    e = select(veq(a, zero), -infinity, select(veq(a, infinity), infinity, e))
    store(exponents, e)
    store(ys, y)
    for i in range(LANES):
        t = ys[i] * (exponents[i] + log2_mantissa(mantissas[i]))
        t = t if t < 200 else 200
        t = t if t > -200 else -200
        n = (t + 6755399441055744.0) - 6755399441055744.0  # to the next integer
        counts[i] = <float> n
        results[i] = <float> exp2_fraction(t - n)
    r = scaled(load(results), load(counts))
    r = from_bits(bits(r) ^ (is_negative & is_odd & splat_int(SIGN_BIT)))
    r = select(vlt(x, zero) & vlt(a, infinity) & ~is_whole, splat(NAN), r)
    r = select(veq(x, x) & veq(y, y), r, x + y)
    r = select(veq(a, one) & veq(vabs(y), infinity), one, r)
    return select(veq(y, zero) | veq(x, one), one, r)


cdef inline float fmod_lane(float x, float y) noexcept nogil:
    """Return the exact remainder with the sign of x."""
    cdef double a = x, b = y, quotient = a / b, rest
    # libm handles huge quotients, infinities and NaN.
    if not (-536870912.0 < quotient < 536870912.0 and b - b == 0):
        return <float> fmod(a, b)
    # A product of 24 by 29 bits is exact; the quotient may have been rounded up to an integer.
    rest = a - b * <double> <long long> quotient
    if rest != 0 and (rest < 0) != (a < 0):
        rest += b if (b < 0) == (a < 0) else -b
    return copysignf(<float> rest, x)


cdef inline float remainder_lane(float x, float y) noexcept nogil:
    """Return the remainder with the sign of y; 0 has the sign of x."""
    cdef float rest = fmod_lane(x, y)
    return rest + y if rest != 0 and (rest < 0) != (y < 0) else rest


cdef inline float floor_divide_lane(float x, float y) noexcept nogil:
    """Return x // y from the exact remainder, so that x = y * (x // y) + x % y."""
    cdef double rest, quotient
    if y == 0:
        return x / y
    rest = fmod_lane(x, y)
    # An integer, up to the rounding of large quotients.
    quotient = (x - rest) / y
    if rest != 0 and (rest < 0) != (y < 0):
        quotient -= 1
    return <float> rint(quotient) if quotient != 0 else copysignf(0, x / y)


cdef inline vf32 by_lane(
    vf32 x, vf32 y, float (*f)(float, float) noexcept nogil
) noexcept nogil:
    cdef float[MAX_LANES] xs, ys
    cdef int i
    store(xs, x)
    store(ys, y)
    for i in range(LANES):
        xs[i] = f(xs[i], ys[i])
    return load(xs)


cdef vf32 vfmod(vf32 x, vf32 y) noexcept nogil:
    """Exact."""
    return by_lane(x, y, fmod_lane)


cdef vf32 vremainder(vf32 x, vf32 y) noexcept nogil:
    """0.5 ulp."""
    return by_lane(x, y, remainder_lane)


cdef vf32 vfloor_divide(vf32 x, vf32 y) noexcept nogil:
    """As torch.floor_divide."""
    return by_lane(x, y, floor_divide_lane)
