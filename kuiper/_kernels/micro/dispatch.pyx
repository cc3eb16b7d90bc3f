"""Choice of the instruction-set variant that the CPU and the operating system support.

A step keeps the table that is active when it is created, so :func:`select` affects only steps that
are created later.  ``KUIPER_ISA`` forces a variant at import.  A variant may have an extension:
further instructions for a few kernels, which are used if the processor has them.
"""

import os
from importlib import import_module

from cpython.pycapsule cimport PyCapsule_GetPointer

from kuiper._kernels.micro.table cimport kernels_t
from kuiper._runtime.thread_pool cimport parallel_for

from kuiper.errors import KuiperError

cdef extern from "_kernels/simd/cpu.h" nogil:
    int cpu_has_avx2 "kp_cpu_has_avx2"() noexcept
    int cpu_has_avx512 "kp_cpu_has_avx512"() noexcept
    int cpu_has_avx512_vnni "kp_cpu_has_avx512_vnni"() noexcept
    int cpu_has_neon "kp_cpu_has_neon"() noexcept

cdef const kernels_t* _active = NULL
_active_name = None
_tables = {}  # name -> capsule; keeps the modules that own the tables alive


cdef const kernels_t* active() noexcept nogil:
    """Return the active table; never NULL once this module is imported."""
    return _active


def available():
    """Return the names of the variants in this build that this machine can run, best last.

    Returns
    -------
    list of str
    """
    names = ["baseline"]
    if cpu_has_avx2():
        names.append("avx2")
    if cpu_has_avx512():
        names.append("avx512")
    if cpu_has_neon():
        names.append("neon")
    return names


def extension_of(name):
    """Return the name of the extension of a variant that this machine can run, None without one."""
    return "avx512_vnni" if name == "avx512" and cpu_has_avx512_vnni() else None


def select(name, bint extended=True):
    """Activate a variant for all steps created from now on.

    Parameters
    ----------
    name : str
        One of :func:`available`.
    extended : bool, default=True
        Use the variant's extension, see :func:`extension_of`.

    Returns
    -------
    str
        The name of the variant that was active before.

    Raises
    ------
    KuiperError
        If the variant does not exist or this machine cannot run it.
    """
    global _active, _active_name
    if name not in available():
        raise KuiperError(
            f"instruction set {name!r} is not available here; choose one of "
            + ", ".join(available())
        )
    extension = extension_of(name) if extended else None
    previous = _active_name
    _active = <const kernels_t*> PyCapsule_GetPointer(_table(name, extension), "kuiper.kernels")
    _active_name = name
    return previous


def _table(name, extension):
    """Return the table of a variant, with or without an extension; import it the first time."""
    key = extension or name
    if key not in _tables:
        module = import_module(f"kuiper._kernels.micro.{key}")
        _tables[key] = module.extended(_table(name, None)) if extension else module.table()
    return _tables[key]


def active_name():
    """Return the name of the active variant."""
    return _active_name


def tile():
    """Return (rows, columns) of the active variant's GEMM tile."""
    return _active.mr, _active.nr


def has_byte_products():
    """Tell whether one instruction of the active variant sums four products of bytes."""
    return _active.dot_is_native


def prefers_bfloat16():
    """Tell whether products of bfloat16 are faster than those of float32 in the active variant."""
    return False  # no variant has instructions for them


def lanes():
    """Return the number of floats in a vector of the active variant."""
    return _active.lanes


cdef struct multiply_adds_t:
    const kernels_t* kernels
    Py_ssize_t rounds
    double flops                 # of one thread


cdef void multiply_adds_of_a_thread(void* job, Py_ssize_t item, Py_ssize_t rank) noexcept nogil:
    cdef multiply_adds_t* given = <multiply_adds_t*> job
    cdef float sink = 0
    given.flops = given.kernels.f32_multiply_adds(given.rounds, &sink)


def multiply_adds(Py_ssize_t rounds, int n_threads):
    """Do multiply-adds in the registers of all threads at once: the ceiling of arithmetic.

    Parameters
    ----------
    rounds : int
        Each takes about 10 cycles.
    n_threads : int

    Returns
    -------
    float
        The number of operations of all threads; a multiply-add counts as 2.
    """
    cdef multiply_adds_t job = multiply_adds_t(_active, rounds, 0.0)
    with nogil:
        parallel_for(multiply_adds_of_a_thread, &job, n_threads, n_threads)
    return job.flops * n_threads


select(os.environ.get("KUIPER_ISA") or available()[-1])
