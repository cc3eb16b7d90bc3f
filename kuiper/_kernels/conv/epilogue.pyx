"""The epilogue of dense products; see epilogue.pxd."""

from libc.math cimport INFINITY, rintf
from libc.string cimport memset

from kuiper._kernels.micro.dispatch cimport active
from kuiper._kernels.micro.table cimport sums_end_t
from kuiper._runtime.step cimport Step

from kuiper.ir.dtypes import BFLOAT16


cdef epilogue_t make_epilogue(object step, object epilogue) except *:
    """Return the C form of a :class:`~kuiper.ops.core.epilogue.Epilogue`, for `step`."""
    cdef epilogue_t p
    cdef Step owner = step
    memset(&p, 0, sizeof(epilogue_t))
    p.lo, p.hi = -INFINITY, INFINITY
    if epilogue is None:
        return p
    if epilogue.clamp is not None:
        p.lo, p.hi = epilogue.clamp
    if epilogue.residual is not None:
        p.has_residual = True
        p.residual_in_tile = epilogue.residual_in_tile
        p.residual = owner.ref(epilogue.residual)
        p.ldr = epilogue.ldr
    if epilogue.pre_activation is not None:
        p.pre_activation = active().f32_unary[<int> epilogue.pre_activation[0]]
        p.pre_p0, p.pre_p1 = epilogue.pre_activation[1], epilogue.pre_activation[2]
    if epilogue.post_activation is not None:
        p.post_activation = active().f32_unary[<int> epilogue.post_activation[0]]
        p.post_p0, p.post_p1 = epilogue.post_activation[1], epilogue.post_activation[2]
    return p


cdef int byte_of(float value, float zero) noexcept:
    """Return the byte of a value over the scale."""
    return <int> (rintf(max(-zero, min(255 - zero, value))) + zero)


cdef sums_end_t make_sums_end(
    const epilogue_t* p, object epilogue, bint to_bfloat16=False
) except *:
    """Return what becomes of sums; `p` is the C form of `epilogue`, which may be None."""
    cdef sums_end_t end
    cdef float one = 1, scale
    cdef bint is_mixed
    memset(&end, 0, sizeof(sums_end_t))
    end.lo, end.hi = p.lo, p.hi
    end.residual_first = p.residual_in_tile
    end.pre, end.pre_p0, end.pre_p1 = p.pre_activation, p.pre_p0, p.pre_p1
    end.post, end.post_p0, end.post_p1 = p.post_activation, p.post_p0, p.post_p1
    end.to_bfloat16 = to_bfloat16
    is_mixed = epilogue is not None and epilogue.output is not None and epilogue.in_bfloat16
    if epilogue is not None and (to_bfloat16 or is_mixed):
        if epilogue.pre_activation is not None:
            end.pre = active().bf16_unary[<int> epilogue.pre_activation[0]]
        if epilogue.post_activation is not None:
            end.post = active().bf16_unary[<int> epilogue.post_activation[0]]
    if epilogue is not None and epilogue.residual_quantization is not None:
        end.residual_in_bytes = True
        end.residual_scale, end.residual_zero = epilogue.residual_quantization
    if epilogue is not None and epilogue.residual is not None:
        end.residual_in_bfloat16 = epilogue.residual.dtype == BFLOAT16
    if epilogue is not None and epilogue.output is not None:
        end.to_bytes = True
        scale, end.zero = epilogue.output
        end.inverse_scale = one / scale
        # A product with the inverse scale is monotone, so one clamp does for both.
        end.low = byte_of(end.lo * end.inverse_scale, end.zero)
        end.high = byte_of(end.hi * end.inverse_scale, end.zero)
        end.in_registers = is_in_tile(p)
    return end
