"""Build of kuiper's compiled modules; everything declarative is in pyproject.toml.

Environment
-----------
KUIPER_DEBUG_BUILD=1
    Compile with Cython's bounds checks, assertions and debug symbols.
KUIPER_NO_OPENMP=1
    Compile without OpenMP (a compiler without it is detected by itself).
"""

from __future__ import annotations

import os
import platform
import sys
import tempfile
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools._distutils import ccompiler
from setuptools._distutils.errors import CompileError, LinkError
from setuptools._distutils.sysconfig import customize_compiler

DEBUG = os.environ.get("KUIPER_DEBUG_BUILD") == "1"
X86 = platform.machine().lower() in ("x86_64", "amd64")
MSVC = sys.platform == "win32"

DIRECTIVES = {
    "language_level": 3,
    "boundscheck": DEBUG,
    "wraparound": False,
    "initializedcheck": DEBUG,
    "nonecheck": DEBUG,
    "cdivision": True,
    "freethreading_compatible": True,
    "embedsignature": True,
    "embedsignature.format": "python",
}

# One source, compiled once per instruction set; kuiper._kernels._dispatch picks at run time.
# The baseline variant keeps the compiler's default target, so it runs on every CPU.
ISA_FLAGS = {
    "baseline": [],
    "avx2": ["-mavx2", "-mfma", "-mf16c"],
    "avx512": [
        "-mavx512f", "-mavx512vl", "-mavx512bw", "-mavx512dq", "-mavx2", "-mfma", "-mf16c",
        "-mprefer-vector-width=512",
    ],
}  # fmt: skip


def compiles(flags: list[str], source: str) -> bool:
    """Tell whether the compiler builds `source` with `flags`."""
    compiler = ccompiler.new_compiler()
    customize_compiler(compiler)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "probe.c")
        path.write_text(source)
        try:
            objects = compiler.compile([str(path)], output_dir=folder, extra_postargs=flags)
            compiler.link_executable(objects, str(Path(folder, "probe")), extra_postargs=flags)
        except (CompileError, LinkError):
            return False
    return True


def openmp_flags() -> tuple[list[str], list[str]]:
    """Return the compile and link flags for OpenMP, empty with a warning without it."""
    if os.environ.get("KUIPER_NO_OPENMP") == "1":
        return [], []
    if MSVC:
        return ["/openmp"], []
    source = "#include <omp.h>\nint main(void) { return omp_get_max_threads() < 1; }\n"
    candidates = [(["-fopenmp"], ["-fopenmp"])]
    if sys.platform == "darwin":
        candidates.append((["-Xpreprocessor", "-fopenmp"], ["-lomp"]))
    for compile_flags, link_flags in candidates:
        if compiles(compile_flags + link_flags, source):
            return compile_flags, link_flags
    print(
        "*" * 78,
        "kuiper: this compiler has no OpenMP; kuiper will run on one thread.",
        "  Debian/Ubuntu: use gcc, or install libomp-dev for clang.  macOS: brew install libomp.",
        "*" * 78,
        sep="\n",
        file=sys.stderr,
    )
    return [], []


def extensions() -> list[Extension]:
    """List the compiled modules: every .pyx of the package is one."""
    openmp_compile, openmp_link = openmp_flags()
    optimise = ["/O2"] if MSVC else ["-O3", "-fno-math-errno", "-fno-trapping-math", "-Wno-unused-function"]
    if DEBUG and not MSVC:
        optimise = ["-O1", "-g", "-Wno-unused-function"]
    # Fully unrolled register tiles need a larger budget than gcc's default.
    unroll = [
        f for f in (["--param=max-completely-peeled-insns=2000", "--param=max-completely-peel-times=64"],)
        if not MSVC and compiles(f, "int main(void) { return 0; }\n")
    ]  # fmt: skip
    micro_only = [flag for flags in unroll for flag in flags]
    depends = [str(p) for p in sorted(Path("kuiper").rglob("*.h"))]
    depends += [str(p) for p in sorted(Path("kuiper").rglob("*.pxi"))]
    modules = []
    for path in sorted(Path("kuiper").rglob("*.pyx")):
        name = ".".join(path.with_suffix("").parts)
        flags, link = [*optimise], []
        if path.stem.startswith("_micro_"):
            isa = path.stem.removeprefix("_micro_")
            if isa != "baseline" and (not X86 or MSVC):
                continue
            flags += ISA_FLAGS[isa] + micro_only
        else:
            flags += openmp_compile
            link += openmp_link
        modules.append(
            Extension(
                name,
                [str(path)],
                extra_compile_args=flags,
                extra_link_args=link if DEBUG or MSVC or sys.platform == "darwin" else [*link, "-s"],
                include_dirs=["kuiper/_kernels"],
                depends=depends,
                define_macros=[("CYTHON_NO_PYINIT_EXPORT", "0")] if False else [],
            )
        )
    modules.append(
        Extension(
            "kuiper._cyutility",
            ["kuiper/_cyutility.c"],
            extra_compile_args=optimise,
            extra_link_args=[] if DEBUG or MSVC or sys.platform == "darwin" else ["-s"],
        )
    )
    return modules


setup(
    ext_modules=cythonize(
        extensions(),
        compiler_directives=DIRECTIVES,
        shared_utility_qualified_name="kuiper._cyutility",
        nthreads=int(os.environ.get("KUIPER_BUILD_JOBS", os.cpu_count() or 1)),
        build_dir="build/cython",
    ),
    options={"build_ext": {"parallel": int(os.environ.get("KUIPER_BUILD_JOBS", os.cpu_count() or 1))}},
)
