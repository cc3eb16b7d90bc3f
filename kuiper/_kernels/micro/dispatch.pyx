"""Choice of the instruction-set variant that the CPU and the operating system support.

A step keeps the table that is active when it is created, so :func:`select` affects only steps that
are created later.  ``KUIPER_ISA`` forces a variant at import.  A variant may have extensions:
further instructions for a few kernels, which are used if the processor has them.  Virtual machines
sometimes hide instructions that the processor executes; an extension that is named is tried.
"""

import os
from importlib import import_module
from time import perf_counter

from cpython.pycapsule cimport PyCapsule_GetPointer

from kuiper._kernels.micro.table cimport kernels_t, multiply_adds_fn
from kuiper._runtime.thread_pool cimport parallel_for, set_after_work

from kuiper.errors import KuiperError

cdef extern from "_kernels/simd/cpu.h" nogil:
    int cpu_has_avx2 "kp_cpu_has_avx2"() noexcept
    int cpu_has_avx_vnni "kp_cpu_has_avx_vnni"() noexcept
    int cpu_has_avx512 "kp_cpu_has_avx512"() noexcept
    int cpu_has_avx512_vnni "kp_cpu_has_avx512_vnni"() noexcept
    int cpu_has_avx512_bf16 "kp_cpu_has_avx512_bf16"() noexcept
    int cpu_runs_avx512_bf16 "kp_cpu_runs_avx512_bf16"() noexcept
    int cpu_has_amx "kp_cpu_has_amx"() noexcept
    int cpu_has_neon "kp_cpu_has_neon"() noexcept
    int cpu_has_neon_dot "kp_cpu_has_neon_dot"() noexcept

cdef const kernels_t* _active = NULL
_active_name = None
_preferred = {}  # name -> whether products of bfloat16 are faster
# (variant, extensions...) -> capsule; keeps the modules that own the tables alive
_tables = {}

# The variants of the extensions that a processor may execute without saying so.
TRIED = {"avx512_bf16": "avx512"}


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


def extensions_of(name):
    """Return the names of a variant's extensions that this machine says it can run.

    Parameters
    ----------
    name : str
        A variant, or an extension: then those of its variant, and the extension itself even if the
        machine hides that it can run it, but none that replaces its kernels.

    Returns
    -------
    tuple of str
    """
    found = {
        "avx2": {"avx_vnni": cpu_has_avx_vnni()},
        "avx512": {
            "avx512_vnni": cpu_has_avx512_vnni(),
            "avx512_bf16": cpu_has_avx512_bf16() or name == "avx512_bf16",
            "amx": name != "avx512_bf16" and cpu_has_amx(),
        },
        "neon": {"neon_dot": cpu_has_neon_dot()},
    }
    extensions = found.get(TRIED.get(name, name), {})
    return tuple(key for key, is_there in extensions.items() if is_there)


def tried():
    """Return the names of the extensions that this machine runs, whether it says so or not."""
    return [name for name in TRIED if cpu_runs_avx512_bf16()]


def select(name, bint extended=True):
    """Activate a variant for all steps created from now on.

    Parameters
    ----------
    name : str
        One of :func:`available`; or an extension of one that the processor executes, which
        activates the variant with this extension too.
    extended : bool, default=True
        Use the variant's extensions, see :func:`extensions_of`.

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
    if name not in available() and name not in tried():
        raise KuiperError(
            f"instruction set {name!r} is not available here; choose one of "
            + ", ".join(available())
        )
    extensions = extensions_of(name) if extended else ()
    previous = _active_name
    variant = TRIED.get(name, name)
    _active = <const kernels_t*> PyCapsule_GetPointer(_table(variant, extensions), "kuiper.kernels")
    _active_name = name
    if _active.release_tiles != NULL:
        set_after_work(_active.release_tiles)
    return previous


def _table(name, extensions):
    """Return the table of a variant with some extensions; import them the first time."""
    key = name, *extensions
    if key not in _tables:
        module = import_module(f"kuiper._kernels.micro.{key[-1]}")
        if extensions:
            _tables[key] = module.extended(_table(name, extensions[:-1]))
        else:
            _tables[key] = module.table()
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


def has_bfloat16_products():
    """Tell whether one instruction of the active variant sums two products of bfloat16."""
    return _active.pairs_are_native


def pair_rate():
    """Return how many products of bfloat16 a lane does per cycle, roughly, for estimates."""
    return _active.pair_rate


def prefers_bfloat16():
    """Tell whether products of bfloat16 are faster than those of float32 in the active variant.

    There may be an instruction for them that is no faster; so it is measured, once.

    Returns
    -------
    bool
    """
    if not _active.pairs_are_native:
        return False
    if _active_name not in _preferred:
        _preferred[_active_name] = _seconds_per_product(True) < 0.9 * _seconds_per_product(False)
    return _preferred[_active_name]


def _seconds_per_product(bint in_bfloat16):
    """Return the shortest time of a multiply-add in registers, of a few trials of 50 us."""
    best = float("inf")
    for _ in range(8):
        start = perf_counter()
        count = multiply_adds(2000, 1, in_bfloat16)
        best = min(best, (perf_counter() - start) / count)
    return best


def lanes():
    """Return the number of floats in a vector of the active variant."""
    return _active.lanes


cdef struct multiply_adds_t:
    multiply_adds_fn run
    Py_ssize_t rounds
    double flops                 # of one thread


cdef void multiply_adds_of_a_thread(void* job, Py_ssize_t item, Py_ssize_t rank) noexcept nogil:
    cdef multiply_adds_t* given = <multiply_adds_t*> job
    cdef float sink = 0
    given.flops = given.run(given.rounds, &sink)


def multiply_adds(Py_ssize_t rounds, int n_threads, bint in_bfloat16=False):
    """Do multiply-adds in the registers of all threads at once: the ceiling of arithmetic.

    Parameters
    ----------
    rounds : int
        Each takes about 10 cycles.
    n_threads : int
    in_bfloat16 : bool, default=False
        Multiply numbers of bfloat16 as the tile does: by one instruction for two products, or
        widened.

    Returns
    -------
    float
        The number of operations of all threads; a multiply-add counts as 2.
    """
    cdef multiply_adds_t job
    job.run = _active.bf16_multiply_adds if in_bfloat16 else _active.f32_multiply_adds
    job.rounds = rounds
    with nogil:
        parallel_for(multiply_adds_of_a_thread, &job, n_threads, n_threads)
    return job.flops * n_threads


select(os.environ.get("KUIPER_ISA") or available()[-1])
