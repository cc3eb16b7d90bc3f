"""Build of kuiper's compiled modules; everything declarative is in pyproject.toml.

Environment
-----------
KUIPER_DEBUG_BUILD=1
    Compile with Cython's checks of indices and None, assertions and debug symbols.
KUIPER_SANITIZE=address,undefined
    Compile with these sanitizers of the compiler (any that -fsanitize= takes).
KUIPER_ISAS=baseline,avx2
    Compile these variants of the micro-kernels only; the baseline is always there.
KUIPER_NO_VECTORS=1
    Compile the micro-kernels as plain C, one float at a time, as a compiler without vectors would.
KUIPER_NO_OPENMP=1
    Compile without OpenMP (a compiler without it is detected by itself), which shares out kernels
    that are called without a plan; models have threads of their own.
"""

from __future__ import annotations

import filecmp
import hashlib
import logging
import os
import runpy
import shutil
import sys
import sysconfig
import tempfile
import threading
import time
from pathlib import Path

import Cython
from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools._distutils import ccompiler
from setuptools._distutils.sysconfig import customize_compiler
from setuptools.command.build_ext import build_ext

DEBUG = os.environ.get("KUIPER_DEBUG_BUILD") == "1"
MSVC = sys.platform == "win32"
SANITIZE = os.environ.get("KUIPER_SANITIZE", "")
NO_VECTORS = os.environ.get("KUIPER_NO_VECTORS") == "1"
CHOSEN_ISAS = os.environ.get("KUIPER_ISAS", "")

# Where code goes that is made from kuiper/expression/functions.py.
GENERATED = Path("build/generated")

# What Cython writes.
TRANSLATED = Path("build/cython")

# Compiled modules that later builds with the same settings take, see Build.
COMPILED = Path("build/compiled")

# Commands that read the sources and compile nothing: they need no compiler.
READING = {"egg_info", "dist_info", "sdist", "clean"}

NO_COMPILER = """
kuiper is compiled from source here, and {found}. Install a C compiler and
Python's headers, then repeat the command:

  Debian, Ubuntu   apt-get install gcc libc6-dev python3-dev
  Fedora, RHEL     dnf install gcc python3-devel
  Alpine           apk add gcc musl-dev python3-dev
  macOS            xcode-select --install
  Windows          winget install Microsoft.VisualStudio.2022.BuildTools, with the workload
                   "Desktop development with C++"

If a compiler is installed, let the environment variable CC name it, as in CC=gcc-12.
"""

DIRECTIVES = {
    "language_level": 3,
    "initializedcheck": DEBUG,
    "nonecheck": DEBUG,
    "cdivision": True,
    "freethreading_compatible": True,
    "embedsignature": True,
    "embedsignature.format": "python",
}

# Kernels index by sizes that were checked when they were bound; everything else stays checked,
# lists and tuples included.
KERNEL_DIRECTIVES = {"boundscheck": DEBUG, "wraparound": False}

AVX512 = [
    "-mavx512f", "-mavx512vl", "-mavx512bw", "-mavx512dq", "-mavx2", "-mfma", "-mf16c",
    "-mprefer-vector-width=512",
]  # fmt: skip

AMX = ["-mavx512vnni", "-mavx512bf16", "-mamx-tile", "-mamx-int8", "-mamx-bf16"]

# gcc would move loads ahead until the 31 vectors of a tile no longer fit the registers.
NEON = ["-DKUIPER_NEON", "-fno-schedule-insns"]

# One source, compiled once per instruction set; kuiper._kernels.micro.dispatch picks at run time.
# Each has the machine that the compiler makes code for, which in a cross build is not this one.
# The baseline variant keeps the compiler's default target, so it runs on every CPU.
ISAS = {
    "baseline": (None, []),
    "avx2": ("__x86_64__", ["-mavx2", "-mfma", "-mf16c"]),
    "avx_vnni": ("__x86_64__", ["-mavx2", "-mfma", "-mf16c", "-mavxvnni"]),  # extends avx2
    "avx512": ("__x86_64__", AVX512),
    "avx512_vnni": ("__x86_64__", [*AVX512, "-mavx512vnni"]),  # extends avx512
    "avx512_bf16": ("__x86_64__", [*AVX512, "-mavx512bf16"]),  # too
    "amx": ("__x86_64__", [*AVX512, *AMX]),  # extends avx512 with both
    "neon": ("__aarch64__", NEON),
    "neon_dot": ("__aarch64__", [*NEON, "-march=armv8.2-a+dotprod"]),  # extends neon
}  # fmt: skip

EMPTY_PROGRAM = "int main(void) { return 0; }\n"

# What the micro-kernels include besides .pxi files, and the drivers do not.
MICRO_HEADERS = (
    "amx.h",
    "amx_tile.h",
    "bfloat16.h",
    "bytes.h",
    "dot.h",
    "dot_depthwise.h",
    "dot_end.h",
    "dot_tile.h",
    "few_outputs.h",
    "heights.h",
    "keep_sums.h",
    "lanes.h",
    "narrow_depthwise.h",
    "pair_end.h",
    "pair_tile.h",
    "rough.h",
    "sizes.h",
    "tile.h",
    "transpose.h",
    "variant.h",
    "vec.h",
)

# A micro-kernel is one `cdef inline` body that many thin functions call with constants the compiler
# must see, such as the height of a tile.
ALWAYS_INLINE = ("CYTHON_INLINE", "__inline__ __attribute__((__always_inline__, __unused__))")


def _is_failure(error: Exception) -> bool:
    """Tell whether an error is that of a compiler or linker that failed.

    Its class exists twice, as ``distutils`` and as ``setuptools._distutils``; which of them is
    raised depends on who imported setuptools.
    """
    return type(error).__name__ in ("CompileError", "LinkError")


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
        except Exception as error:
            if not _is_failure(error):
                raise
            return False
    return True


def check_compiler() -> None:
    """End the build with what to install if there is no C compiler, or none of Python's headers."""
    compiler = ccompiler.new_compiler()
    customize_compiler(compiler)
    command = " ".join(getattr(compiler, "compiler_so", None) or ["cl.exe"])
    folders = {sysconfig.get_path(name) for name in ("include", "platinclude")}
    # What Debian and Fedora package apart from Python.
    headers = [Path(folder, "Python.h") for folder in folders if folder]
    if not compiles([], "#include <stdio.h>\nint main(void) { return 0; }\n"):
        found = f"the C compiler cannot build a program of one line:\n`{command}`"
    elif not any(header.exists() for header in headers):
        found = f"Python's header {headers[0]} is missing"
    else:
        return
    raise SystemExit(NO_COMPILER.format(found=found))


def preprocessed(source: str) -> str:
    """Return what the preprocessor makes of a source; nothing for several machines at once."""
    compiler = ccompiler.new_compiler()
    customize_compiler(compiler)
    with tempfile.TemporaryDirectory() as folder:
        path, result = Path(folder, "probe.c"), Path(folder, "probe.i")
        path.write_text(source)
        try:
            compiler.preprocess(str(path), str(result))
        except Exception as error:  # as on macOS
            if not _is_failure(error):
                raise
            return ""
        return result.read_text()


def openmp_flags() -> tuple[list[str], list[str]]:
    """Return the compile and link flags for OpenMP, empty without it."""
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
    return [], []


def contraction() -> list[str]:
    """Return the flag that joins a product and a sum within an expression, and nowhere else.

    gcc joins them across expressions too, if not told otherwise: from version 14 on in one copy of
    a loop and not in another, so that bits would depend on where a batch or a share starts.  For
    versions before, the flag means never.  clang needs none.
    """
    told = preprocessed("#if __GNUC__ >= 14 && !defined(__clang__)\nfound it\n#endif\n")
    return ["-ffp-contract=on"] if "found it" in told else []


def small_loops() -> list[str]:
    """Return the flags for drivers whose work is in micro-kernels: vectors, but no copies of loops.

    gcc vectorises loops of any length from -O3 on only, if not told otherwise.
    """
    is_gcc = "found it" in preprocessed(
        "#if defined(__GNUC__) && !defined(__clang__)\nfound it\n#endif\n"
    )
    return ["-O2", *(["-ftree-loop-vectorize", "-fvect-cost-model=dynamic"] if is_gcc else [])]


def variants() -> list[str]:
    """Return the instruction sets to compile for: those of the machine that code is made for.

    Old compilers do not know all of them.
    """
    if MSVC or NO_VECTORS:
        return ["baseline"]
    machines = {machine for machine, _ in ISAS.values() if machine}
    text = preprocessed("".join(f"#ifdef {m}\nfound {m[2:]}\n#endif\n" for m in machines))
    chosen = CHOSEN_ISAS.split(",") if CHOSEN_ISAS else list(ISAS)
    return [
        isa
        for isa, (machine, flags) in ISAS.items()
        if not machine
        or (isa in chosen and f"found {machine[2:]}" in text and compiles(flags, EMPTY_PROGRAM))
    ]


def generate_functions(folder: Path) -> None:
    """Write what the table of elementwise functions means to the kernels.

    ``function_numbers.pxi`` has the numbers of the functions in the micro-kernels' table,
    ``function_tables.pxi`` what programs need by name, and ``f32_functions.pxi`` the functions
    themselves: loops over rows, links of chains, and the entries of the table.
    """
    rows = runpy.run_path("kuiper/expression/functions.py")["FUNCTIONS"].values()
    rows = [row for row in rows if row.vector]
    binary = [row for row in rows if row.operands == 2]
    unary = [row for row in rows if row.operands != 2]  # that of clamp takes its bounds as numbers
    links = [row for row in rows if row.is_link]

    numbers = ["cdef enum:"]
    for group in (unary, binary):
        numbers += [f"    {row.name.upper()} = {i}" for i, row in enumerate(group)]

    codes = [name for row in links for name in dict.fromkeys((row.name, row.swapped or row.name))]
    tables = {
        "UNARY": {row.name: i for i, row in enumerate(unary)},
        "BINARY": {row.name: i for i, row in enumerate(binary)},
        "SWAPPED": {row.name: row.swapped for row in links},
        "LINKS": {name: i for i, name in enumerate(codes)},
        "COSTS": {row.name: row.cost for row in rows},
    }
    texts = [f"{name} = {table}" for name, table in tables.items()]

    code = []
    for row in rows:
        if row.operands == 2:
            arguments, call = "const rows_t* rows", f"map_2({row.vector[0]}, rows)"
        else:
            has_numbers = row.parameters or row.operands > 1
            loop = "map_circular" if len(row.vector) > 1 else "map_3" if has_numbers else "map_1"
            arguments = "Py_ssize_t n, const float* x, float* y, float p, float q"
            call = f"{loop}({', '.join(row.vector)}, n, x, y{', p, q' if has_numbers else ''})"
        code += [f"cdef void f32_{row.name}({arguments}) noexcept nogil:", f"    {call}"]
    code += [
        "cdef inline void run_link(int code, int m, vf32* r, const link_t* link, bint moves,",
        "                          const float* x, Py_ssize_t n) noexcept nogil:",
    ]
    rows_of = {name: row for row in links for name in (row.name, row.swapped or row.name)}
    for i, name in enumerate(codes):
        row = rows_of[name]
        vector = row.vector[0] if name == row.name else f"v{name}"
        call = f"link_1({vector}, m, r)"
        if row.operands == 2:
            call = f"link_x({vector}, m, r, moves, x, n)"
        elif row.parameters or row.operands > 1:
            call = f"link_3({vector}, m, r, link)"
        code += [f"    {'elif' if i else 'if'} code == {i}:", f"        {call}"]
    code += ["cdef void fill_functions(kernels_t* k) noexcept:"]
    code += [f"    k.f32_unary[{i}] = f32_{row.name}" for i, row in enumerate(unary)]
    code += [f"    k.f32_binary[{i}] = f32_{row.name}" for i, row in enumerate(binary)]

    folder.mkdir(parents=True, exist_ok=True)
    for name, lines in (
        ("function_numbers", numbers), ("function_tables", texts), ("f32_functions", code)
    ):  # fmt: skip
        path, text = folder / f"{name}.pxi", "\n".join(lines) + "\n"
        if not path.exists() or path.read_text("utf-8") != text:
            path.write_text(text, "utf-8")


def extensions() -> list[Extension]:
    """List the compiled modules: every .pyx of the package is one."""
    openmp_compile, openmp_link = openmp_flags()
    optimise = (
        ["/O2"]
        if MSVC
        else [
            "-O3",
            "-fno-math-errno",
            "-fno-trapping-math",
            "-Wno-unused-function",
            "-Wno-tautological-compare",
        ]
    )
    if DEBUG and not MSVC:
        optimise = ["-O1", "-g", "-Wno-unused-function", "-Wno-tautological-compare"]
    if not (DEBUG or SANITIZE or MSVC):
        # No C++ exception passes through these modules; the tables are 3 % of the wheel.
        optimise += ["-fno-asynchronous-unwind-tables", "-fno-unwind-tables"]
    if not MSVC:
        optimise += contraction()
    # Fully unrolled register tiles need a larger budget than gcc's default.
    unroll = ["--param=max-completely-peeled-insns=2000", "--param=max-completely-peel-times=64"]
    if MSVC or not compiles(unroll, EMPTY_PROGRAM):
        unroll = []
    link_all = [] if DEBUG or MSVC or sys.platform == "darwin" else ["-s"]
    if SANITIZE:
        link_all = [f"-fsanitize={SANITIZE}"]
        # Python itself is often built with -fwrapv, which would make overflows of integers none.
        # -Og and -g1, since -O1 -g takes gcc twice as long here; reports have lines and functions.
        optimise = [
            "-Og", "-g1", "-fno-wrapv", "-fno-omit-frame-pointer", "-Wno-unused-function",
            "-Wno-tautological-compare", *link_all,
        ]  # fmt: skip
    kernels = Path("kuiper/_kernels")
    headers = [str(p) for p in sorted(Path("kuiper").rglob("*.h")) if p.name not in MICRO_HEADERS]
    micro_sources = [str(p) for p in sorted(kernels.glob("simd/*.*"))]
    micro_sources += [str(p) for p in sorted(kernels.glob("micro/*.pxi"))]
    micro_sources += [str(p) for p in sorted(GENERATED.glob("*.pxi"))]
    isas = variants()
    for_all = [(f"KUIPER_HAS_{isa.upper()}", "1") for isa in isas]
    if NO_VECTORS:
        for_all.append(("KUIPER_NO_VECTORS", "1"))
    if (DEBUG or SANITIZE) and not MSVC:  # gcc joins products and sums from -O2 on
        for_all.append(("KUIPER_UNFUSED", "1"))
    modules = []
    for path in sorted(Path("kuiper").rglob("*.pyx")):
        name = ".".join(path.with_suffix("").parts)
        flags, link, macros = [*optimise], [], [*for_all]
        is_variant = path.parent == kernels / "micro" and path.stem in ISAS
        if is_variant:
            if path.stem not in isas:
                continue
            flags += ISAS[path.stem][1] + unroll
            if not MSVC:
                macros.append(ALWAYS_INLINE)
        elif "prange(" in path.read_text("utf-8"):
            flags += openmp_compile
            link += openmp_link
        elif path.stem == "thread_pool" and not MSVC:
            flags.append("-pthread")
            link.append("-pthread")
        module = Extension(
            name,
            [str(path)],
            extra_compile_args=flags,
            extra_link_args=link + link_all,
            include_dirs=["kuiper"],
            depends=micro_sources if is_variant else headers,
            define_macros=macros,
        )
        if path.parts[1] in ("_kernels", "_runtime"):
            module.cython_directives = KERNEL_DIRECTIVES
            if path.parent.name in ("conv", "linear") and not (DEBUG or SANITIZE or MSVC):
                module.extra_compile_args = [*flags, *small_loops()]
        elif not (DEBUG or SANITIZE or MSVC):
            # What reads files has no loops to gain by; the wheel has a limit.
            module.extra_compile_args = [*flags, "-Os"]
        modules.append(module)
    modules.append(
        Extension(
            "kuiper._cyutility",
            ["kuiper/_cyutility.c"],
            extra_compile_args=optimise if DEBUG or SANITIZE or MSVC else [*optimise, "-Os"],
            extra_link_args=link_all,
        )
    )
    return modules


def dependencies(source: str) -> set[str] | None:
    """Return all files that Cython reads for a source; None if this Cython cannot be asked."""
    try:
        from Cython.Build.Dependencies import create_dependency_tree
        from Cython.Compiler.Main import Context
        from Cython.Compiler.Options import CompilationOptions

        options = CompilationOptions(include_path=[str(GENERATED)])
        tree = create_dependency_tree(Context.from_options(options))  # cythonize takes it, too
        return set(tree.all_dependencies(source))
    except (ImportError, AttributeError, TypeError):
        # These names are not part of Cython's interface; without them, timestamps alone decide.
        return None


def translate(modules: list[Extension], jobs: int) -> list[Extension]:
    """Let Cython write the C files of modules whose sources or settings differ from last time.

    Cython compares timestamps alone.  Its own .pxd files count as sources, and they are new in each
    build by pip, which installs Cython into a new folder; and no timestamp knows the directives.
    """
    notes = {}
    for module in modules:
        (source,) = module.sources
        read = dependencies(source) if source.endswith(".pyx") else None
        if read is None:
            continue
        settings = [Cython.__version__, DIRECTIVES, getattr(module, "cython_directives", None)]
        contents = sorted(hashlib.sha256(Path(path).read_bytes()).hexdigest() for path in read)
        sources = hashlib.sha256(repr([settings, contents]).encode()).hexdigest()
        written = TRANSLATED / Path(source).with_suffix(".c")
        note = written.with_suffix(".sha256")
        notes[note] = written, sources
        if written.exists():
            if note.exists() and note.read_text() == _note(written, sources):
                os.utime(written)  # newer than all that it was made from
            else:
                written.unlink()
        note.unlink(missing_ok=True)
    modules = cythonize(
        modules,
        include_path=[str(GENERATED)],
        compiler_directives=DIRECTIVES,
        shared_utility_qualified_name="kuiper._cyutility",
        nthreads=jobs,
        build_dir=str(TRANSLATED),
    )
    for note, (written, sources) in notes.items():
        note.write_text(_note(written, sources))
    return modules


def _note(written: Path, sources: str) -> str:
    """Return what tells that Cython has written a file, unchanged since, from some sources."""
    return f"{sources} {hashlib.sha256(written.read_bytes()).hexdigest()}\n"


def use_compiler(compiler: ccompiler.CCompiler, name: str) -> None:
    """Compile on Windows with another compiler that takes cl's options: clang-cl.

    setuptools, which reads CC on other systems, always calls cl there.
    """
    path = shutil.which(name)
    if path is None:
        raise SystemExit(f"kuiper: the environment variable CC names {name}, which is not on PATH")
    if not compiler.initialized:
        compiler.initialize()
    compiler.cc = path
    # Objects for the whole-program optimiser of cl's linker, which clang-cl does not write.
    compiler.compile_options = [o for o in compiler.compile_options if o != "/GL"]


class Build(build_ext):
    """Shows how far it is, and compiles no module again whose sources and settings are the same.

    pip builds an editable installation in a new folder each time, and timestamps do not know the
    compiler and its flags.  So compiled modules are kept in a folder for each combination of these,
    with a digest of the sources.
    """

    def build_extensions(self) -> None:
        """Compile all modules, or take those that were kept."""
        self._lock, self._count, self._start = threading.Lock(), 0, time.monotonic()
        if MSVC and os.environ.get("CC"):
            use_compiler(self.compiler, os.environ["CC"])
        version = preprocessed("__VERSION__\n").splitlines()[-1:]  # without the name of the file
        self._settings = [sys.version, Cython.__version__, *version]
        for key, value in sorted(vars(self.compiler).items()):
            if key in ("compiler_so", "linker_so", "cc", "linker", "libraries", "library_dirs"):
                self._settings.append(f"{key}={value}")
        log = logging.getLogger()
        level = log.level
        if self.verbose == 1:  # the command lines, at INFO, are longer than the progress
            log.setLevel(logging.WARNING)
        try:
            super().build_extensions()
        finally:
            log.setLevel(level)

    def build_extension(self, extension: Extension) -> None:
        """Compile a module, or take the one that was kept."""
        target = Path(self.get_ext_fullpath(extension.name))
        settings, sources = self._digests(extension)
        kept = COMPILED / settings / f"{extension.name}{target.suffix}"
        note = kept.with_name(f"{extension.name}.sha256")
        reused = kept.exists() and note.exists() and note.read_text() == sources
        if not reused:
            target.unlink(missing_ok=True)  # otherwise timestamps would decide
            super().build_extension(extension)
            note.unlink(missing_ok=True)
            kept.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(target, kept)
            note.write_text(sources)
        elif not (target.exists() and filecmp.cmp(kept, target, shallow=False)):
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(kept, target)
        with self._lock:
            self._count += 1
            if self.verbose:
                print(
                    f"[{self._count:3d}/{len(self.extensions)}] "
                    f"{time.monotonic() - self._start:4.0f} s  {extension.name}"
                    f"{' (compiled before)' if reused else ''}",
                    flush=True,
                )

    def _digests(self, extension: Extension) -> tuple[str, str]:
        """Return digests of the settings and of the sources that a module is compiled with."""
        flags = [extension.extra_compile_args, extension.extra_link_args, extension.define_macros]
        settings = hashlib.sha256(repr([*self._settings, self.debug, flags]).encode())
        sources = hashlib.sha256()
        for path in sorted({*extension.sources, *extension.depends}):
            sources.update(Path(path).read_bytes())
        return settings.hexdigest()[:16], sources.hexdigest()


# Where processes are spawned or come from a server (macOS, Windows, Python 3.14), those that Cython
# starts import this file.
if __name__ == "__main__":
    jobs = int(os.environ.get("KUIPER_BUILD_JOBS", os.cpu_count() or 1))
    modules = []
    if not READING.intersection(sys.argv):
        check_compiler()
        generate_functions(GENERATED)
        modules = translate(extensions(), jobs)
    setup(
        ext_modules=modules,
        cmdclass={"build_ext": Build},
        options={"build_ext": {"parallel": jobs}},
    )
