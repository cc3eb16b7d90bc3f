"""Check the contents of an sdist and a wheel: all required files and no others.

python .ci/check_dist.py kuiper_runtime-0.1.0.tar.gz kuiper_runtime-0.1.0-*.whl
"""

import re
import sys
import tarfile
import zipfile
from pathlib import Path

WHEEL_LIMIT_BYTES = 4_000_000
WHEEL_FILES = re.compile(
    r"kuiper/([a-z_0-9]+/)*([A-Za-z_0-9]+\.pyi?|py\.typed|[A-Za-z_0-9.-]+\.(so|pyd))"
    r"|kuiper/report/page\.(css|js)|kuiper/serving/page\.html"
    r"|kuiper_runtime-[^/]+\.dist-info/"
    r"(METADATA|WHEEL|RECORD|top_level\.txt|entry_points\.txt|licenses/(LICENSE|NOTICE))"
)
WHEEL_NEEDS = (
    "kuiper/__init__.py",
    "kuiper/py.typed",
    "kuiper/report/page.js",
    "kuiper/serving/page.html",
    "licenses/LICENSE",
    "licenses/NOTICE",
)
SDIST_NEEDS = (
    "pyproject.toml", "setup.py", "README.md", "README.zh-CN.md", "LICENSE", "NOTICE",
    "CHANGELOG.md", "CONTRIBUTING.md", "CITATION.cff", "mkdocs.yml", "examples/detect.py",
    "docs/tutorial/01-tensors.md", "docs/tutorial/pictures/memory.svg",
    "kuiper/_kernels/simd/vec.h", "kuiper/_kernels/micro/all.pxi",
    "tests/unit/test_package.py", "tests/docs/test_examples.py",
    "docs/development.md", "docs/design.md", "docs/photo.jpg", "examples/classify.py",
    "examples/photos/chelsea.png", "examples/models/imagenet_classes.txt",
    "examples/models/mobilenet_v2.f16.pnnx.param", ".ci/run",
)  # fmt: skip
# Compiled or generated files, and the 14 MB of example weights.
SDIST_STRANGERS = re.compile(
    r"\.(so|pyd|py[co]|o|whl)$|^kuiper/.*\.c$|__pycache__|^build/|^\.venv/|^examples/models/.*\.bin$"
)


def faults_of_wheel(path: Path) -> list[str]:
    """Return what is wrong with the wheel."""
    faults = []
    if path.stat().st_size > WHEEL_LIMIT_BYTES:
        faults.append(f"{path.stat().st_size} bytes, the limit is {WHEEL_LIMIT_BYTES}")
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
        unpacked = sum(entry.file_size for entry in archive.infolist())
    faults += [
        f"does not belong there: {name}" for name in names if not WHEEL_FILES.fullmatch(name)
    ]
    faults += [f"lacks {need}" for need in WHEEL_NEEDS if not any(n.endswith(need) for n in names)]
    compiled = {name.split(".")[0] for name in names if name.endswith((".so", ".pyd"))}
    sources = {
        str(source.with_suffix("")) for source in Path("kuiper").rglob("*.pyx")
    }  # of the copy this runs in
    # The variants for one processor family are not built on another.
    foreign = {name for name in sources - compiled if "/_kernels/micro/" in name}
    faults += [f"{name} was not compiled" for name in sorted(sources - compiled - foreign)]
    print(f"{path.name}: {len(names)} files, {len(compiled)} compiled, {unpacked:,} bytes unpacked")
    return faults


def faults_of_sdist(path: Path) -> list[str]:
    """Return what is wrong with the sdist."""
    with tarfile.open(path) as archive:
        names = [name.partition("/")[2] for name in archive.getnames()]
    print(f"{path.name}: {len(names)} files")
    faults = [f"lacks {need}" for need in SDIST_NEEDS if need not in names]
    faults += [f"does not belong there: {name}" for name in names if SDIST_STRANGERS.search(name)]
    sources = {str(p) for pattern in ("*.py", "*.pyx", "*.pxd", "*.pxi", "*.h")
               for p in Path("kuiper").rglob(pattern)}  # fmt: skip
    return faults + [f"lacks {name}" for name in sorted(sources - set(names))]


def main(paths: list[str]) -> int:
    """Check every file; return the exit code."""
    bad = False
    for path in map(Path, paths):
        faults = faults_of_wheel(path) if path.suffix == ".whl" else faults_of_sdist(path)
        for fault in faults:
            print(f"{path.name}: {fault}", file=sys.stderr)
        bad = bad or bool(faults)
    return int(bad)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
