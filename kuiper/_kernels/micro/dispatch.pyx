"""Choice of the instruction-set variant that the CPU and the operating system support.

A step keeps the table that is active when it is created, so :func:`select` affects only steps that
are created later.  ``KUIPER_ISA`` forces a variant at import.
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


def select(name):
    """Activate a variant for all steps created from now on.

    Parameters
    ----------
    name : str
        One of :func:`available`.

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
    if name not in _tables:
        _tables[name] = import_module(f"kuiper._kernels.micro.{name}").table()
    previous = _active_name
    _active = <const kernels_t*> PyCapsule_GetPointer(_tables[name], "kuiper.kernels")
    _active_name = name
    return previous


def active_name():
    """Return the name of the active variant."""
    return _active_name


def tile():
    """Return (rows, columns) of the active variant's GEMM tile."""
    return _active.mr, _active.nr


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
