# The elementwise functions of float32 vectors: arithmetic, maximum and minimum, activations.
#
# p and q are the parameters of a function in the order of kuiper/expression/functions.py.  A
# docstring states the error bound in ulp of the result, unless it names another quantity.

# One operand -----------------------------------------------------------------------------------

cdef inline vf32 vcopy(vf32 x) noexcept nogil:
    return x


cdef inline vf32 vneg(vf32 x) noexcept nogil:
    return -x


cdef inline vf32 vsign(vf32 x) noexcept nogil:
    """0 for NaN, as in PyTorch."""
    cdef vf32 zero = splat(0.0)
    return select(vlt(zero, x), splat(1.0), select(vlt(x, zero), splat(-1.0), zero))


cdef inline vf32 vsquare(vf32 x) noexcept nogil:
    return x * x


cdef inline vf32 vrsqrt(vf32 x) noexcept nogil:
    return splat(1.0) / vsqrt(x)


cdef inline vf32 vreciprocal(vf32 x) noexcept nogil:
    return splat(1.0) / x


cdef inline vf32 vrelu(vf32 x) noexcept nogil:
    return vmax(splat(0.0), x)


cdef inline vf32 vleaky_relu(vf32 x, vf32 p, vf32 q) noexcept nogil:
    return select(vlt(splat(0.0), x), x, x * p)


cdef inline vf32 vclamp(vf32 x, vf32 p, vf32 q) noexcept nogil:
    return vmin(q, vmax(p, x))


cdef inline vf32 vsigmoid(vf32 x) noexcept nogil:
    """4 ulp for x > -8, 30 ulp for x > -88, below which exp(-x) overflows."""
    return splat(1.0) / (splat(1.0) + exp_negative(x))


cdef inline vf32 vlogsigmoid(vf32 x) noexcept nogil:
    """3 ulp."""
    return vmin(splat(0.0), x) - vlog1p(vexp(-vabs(x)))


cdef inline vf32 vhardsigmoid(vf32 x) noexcept nogil:
    """2 ulp of x + 3."""
    return vmin(splat(6.0), vmax(splat(0.0), x + splat(3.0))) * splat(0.166666672)


cdef inline vf32 vsilu(vf32 x) noexcept nogil:
    """4 ulp for x > -8, 30 ulp for x > -88."""
    return x / (splat(1.0) + exp_negative(x))


cdef inline vf32 vhardswish(vf32 x) noexcept nogil:
    """2 ulp of x + 3."""
    return x * vhardsigmoid(x)


cdef inline vf32 vmish(vf32 x) noexcept nogil:
    """5 ulp for x > -87: tanh(log(1 + e)) = e (e + 2) / (e (e + 2) + 2)."""
    cdef vf32 e = vexp(vmin(splat(40.0), x))
    cdef vf32 top = e * (e + splat(2.0))
    return x * (top / (top + splat(2.0)))


cdef inline vf32 vgelu(vf32 x) noexcept nogil:
    """3e-7 absolute for x < 1, then 3 ulp.

    gelu(x) = relu(x) - bump(|x|), and one polynomial approximates the bump at half the cost of erf.
    Large negative x lose digits, as in PyTorch's formula x (1 + erf(x / sqrt(2))) / 2.
    """
    cdef vf32 a = vabs(x), t = a * splat(0.357142857) - splat(1.0)
    cdef vf32 p = splat(0.0022014591)
    p = p * t + splat(-0.00862423)
    p = p * t + splat(-0.0023606755)
    p = p * t + splat(0.043686435)
    p = p * t + splat(-0.035420123)
    p = p * t + splat(-0.07558239)
    p = p * t + splat(0.1402265)
    p = p * t + splat(-0.010503808)
    p = p * t + splat(-0.19035165)
    p = p * t + splat(0.21947725)
    p = p * t + splat(-0.028446741)
    p = p * t + splat(-0.19823046)
    p = p * t + splat(0.27471632)
    p = p * t + splat(-0.19805905)
    p = p * t + splat(0.08687982)
    p = p * t + splat(-0.022163786)
    p = p * t + splat(0.0025551347)
    # Beyond 5.6 the bump is 0, but NaN for x = -infinity, as in the formula.
    cdef vf32 bump = select(vlt(a, splat(5.6)), a * p, vmin(splat(0.0), x) * splat(0.0))
    return vmax(splat(0.0), x) - bump


cdef inline vf32 vgelu_tanh(vf32 x) noexcept nogil:
    """(1 + tanh(u)) / 2 = 1 / (1 + exp(-2 u)); 4 ulp for x > -1, 40 ulp down to -5."""
    cdef vf32 u = x + x * x * x * splat(0.044715)
    return x / (splat(1.0) + exp_negative(u * splat(1.59576912)))


cdef inline vf32 velu(vf32 x, vf32 p, vf32 q) noexcept nogil:
    """3 ulp."""
    return select(vlt(splat(0.0), x), x, vexpm1(x) * p)


cdef inline vf32 vcelu(vf32 x, vf32 p, vf32 q) noexcept nogil:
    """4 ulp."""
    return select(vlt(splat(0.0), x), x, vexpm1(x / p) * p)


cdef inline vf32 vselu(vf32 x) noexcept nogil:
    """3 ulp; scale, and scale * alpha, of self-normalising networks."""
    return select(
        vlt(splat(0.0), x), x * splat(1.05070102), vexpm1(x) * splat(1.75809932)
    )


cdef inline vf32 vsoftplus(vf32 x, vf32 p, vf32 q) noexcept nogil:
    """4 ulp."""
    cdef vf32 z = x * p
    return select(vlt(q, z), x, vlog1p(vexp(z)) / p)


cdef inline vf32 vsoftsign(vf32 x) noexcept nogil:
    return x / (splat(1.0) + vabs(x))


cdef inline vf32 vtanhshrink(vf32 x) noexcept nogil:
    """30 ulp; near 0, x - tanh(x) would cancel all bits."""
    cdef vf32 a = vabs(x)
    # Adding zero turns -0 into +0, the difference of two equal numbers.
    return select(vlt(a, splat(0.625)), with_sign(-tanh_tail(a), x) + splat(0.0), x - vtanh(x))


cdef inline vf32 vhardshrink(vf32 x, vf32 p, vf32 q) noexcept nogil:
    return select(vle(-p, x) & vle(x, p), splat(0.0), x)


cdef inline vf32 vsoftshrink(vf32 x, vf32 p, vf32 q) noexcept nogil:
    # x * 0 keeps NaN.
    return select(vlt(p, x), x - p, select(vlt(x, -p), x + p, x * splat(0.0)))


cdef inline vf32 vthreshold(vf32 x, vf32 p, vf32 q) noexcept nogil:
    return select(vle(x, p), q, x)


cdef inline vf32 vnan_to(vf32 x, vf32 p, vf32 q) noexcept nogil:
    return select(veq(x, x), x, p)


cdef inline vf32 vinf_to(vf32 x, vf32 p, vf32 q) noexcept nogil:
    return select(veq(x, splat(INFINITY)), p, select(veq(x, splat(-INFINITY)), q, x))


# Two operands ----------------------------------------------------------------------------------

cdef inline vf32 vadd(vf32 a, vf32 b) noexcept nogil:
    return a + b


cdef inline vf32 vsub(vf32 a, vf32 b) noexcept nogil:
    return a - b


cdef inline vf32 vmul(vf32 a, vf32 b) noexcept nogil:
    return a * b


cdef inline vf32 vdiv(vf32 a, vf32 b) noexcept nogil:
    return a / b


cdef inline vf32 vmaximum(vf32 a, vf32 b) noexcept nogil:
    """NaN where either is; vmax returns b if b is NaN."""
    return select(veq(a, a), vmax(a, b), a)


cdef inline vf32 vminimum(vf32 a, vf32 b) noexcept nogil:
    return select(veq(a, a), vmin(a, b), a)


cdef inline vf32 vfmax(vf32 a, vf32 b) noexcept nogil:
    """NaN where both are; vmax returns b if a is NaN."""
    return select(veq(b, b), vmax(a, b), a)


cdef inline vf32 vfmin(vf32 a, vf32 b) noexcept nogil:
    return select(veq(b, b), vmin(a, b), a)


cdef inline vf32 vhypot(vf32 a, vf32 b) noexcept nogil:
    """2 ulp; the square of low / high cannot overflow."""
    cdef vf32 x = vabs(a), y = vabs(b), high = vmaximum(x, y), low = vminimum(x, y), ratio
    ratio = low / select(veq(high, splat(0.0)), splat(1.0), high)
    high = high * vsqrt(splat(1.0) + ratio * ratio)
    # If one operand is infinite, so is the result, even if the other is NaN.
    return select(veq(x, splat(INFINITY)) | veq(y, splat(INFINITY)), splat(INFINITY), high)


cdef inline vf32 vcopysign(vf32 a, vf32 b) noexcept nogil:
    cdef vi32 sign = bits(splat(-0.0))
    return from_bits((bits(a) & ~sign) | (bits(b) & sign))


cdef inline vf32 vxlogy(vf32 a, vf32 b) noexcept nogil:
    """1 ulp of the logarithm; 0 if a is 0 and b is not NaN."""
    cdef vf32 y = select(veq(a, splat(0.0)), splat(0.0), a * vlog(b))
    return select(veq(b, b), y, b)


cdef inline vf32 vheaviside(vf32 a, vf32 b) noexcept nogil:
    cdef vf32 zero = splat(0.0)
    return select(veq(a, zero), b, select(vlt(zero, a), splat(1.0), zero))


cdef inline vf32 vnextafter(vf32 a, vf32 b) noexcept nogil:
    """The bit pattern of a, plus 1 away from 0 or minus 1 towards it."""
    cdef vf32 zero = splat(0.0)
    cdef vi32 is_inwards = vlt(a, b) ^ vlt(zero, a), one = splat_int(1)
    # 0 and NaN are handled below; their bit patterns could overflow.
    cdef vf32 start = select(veq(a, a) & ~veq(a, zero), a, splat(1.0))
    cdef vf32 y = from_bits(bits(start) + (one + is_inwards + is_inwards))
    y = select(veq(a, zero), vcopysign(from_bits(one), b), y)
    y = select(veq(a, b), b, y)
    return select(veq(a, a) & veq(b, b), y, a + b)


cdef inline vf32 vprelu(vf32 a, vf32 b) noexcept nogil:
    return select(vlt(splat(0.0), a), a, a * b)


cdef vf32 vlogaddexp(vf32 a, vf32 b) noexcept nogil:
    """2 ulp of the larger operand."""
    # Equal infinities have no difference.
    cdef vf32 gap = select(veq(a, b), splat(0.0), vabs(a - b))
    return vmaximum(a, b) + vlog1p(vexp(-gap))
