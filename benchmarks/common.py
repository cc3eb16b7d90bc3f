"""Shared by all scripts of the benchmarks: cache layout, inputs, comparison, numbers.

Needs only numpy, so that the interpreter of any runtime can import it.
"""

from __future__ import annotations

import os
import platform
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parent


def default_cache() -> Path:
    """Return the folder for exported models: ``kuiper-benchmarks`` in the user's cache."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "kuiper-benchmarks"


def model_folder(cache: Path, model: str, batch: int) -> Path:
    """Return the folder with the exports of `model` at `batch`; the names inside are fixed.

    ``model.pnnx.param/.bin``, ``model.onnx``, ``model.ncnn.param/.bin`` and
    ``model.torchscript.pt``. The parent folder has ``weights.pt`` and ``input_shape.txt``.
    """
    return Path(cache) / model / f"b{batch}"


def read_input_shape(cache: Path, model: str) -> tuple[int, ...]:
    """Return the shape of one image, (channels, height, width), of an exported model."""
    text = (Path(cache) / model / "input_shape.txt").read_text()
    return tuple(int(extent) for extent in text.split())


def exported_models(cache: Path, batch: int) -> list[str]:
    """List the models whose export at `batch` is complete."""
    cache = Path(cache)
    if not cache.is_dir():
        return []
    return sorted(p.name for p in cache.iterdir() if (p / f"b{batch}" / "complete").exists())


def images(shape: tuple[int, ...], seed: int) -> np.ndarray:
    """Return random pictures: smooth blobs, edges and some noise, mean 0 and deviation 1.

    Shapes with another number of axes than a picture get similar content along their axes.

    White noise is not suitable: after a global average all such images are nearly the same, and an
    engine that confused its inputs would still agree with the reference.

    Parameters
    ----------
    shape : tuple of int
        (batch, channels, height, width), or with other axes after the first two.
    seed : int
        The same seed gives the same pictures everywhere.

    Returns
    -------
    ndarray of float32, C-contiguous
    """
    generator = np.random.default_rng(seed)
    batch, channels, *extents = shape
    picture = np.zeros(shape, np.float32)
    for cell, amplitude in ((64, 1.0), (32, 0.7), (8, 0.4), (1, 0.2)):
        cells = (batch, channels, *(-(-extent // cell) for extent in extents))
        fine = generator.standard_normal(cells, np.float32)
        for axis, extent in enumerate(extents, 2):
            fine = fine.repeat(cell, axis=axis).take(range(extent), axis=axis)
        picture += amplitude * fine
    axes = tuple(range(1, len(shape)))
    picture -= picture.mean(axis=axes, keepdims=True)
    picture /= picture.std(axis=axes, keepdims=True)
    return np.ascontiguousarray(picture)


def relative_error(actual: list[np.ndarray], expected: list[np.ndarray]) -> float:
    """Return max |actual - expected| / max |expected|, the largest over the outputs.

    Infinite if the number of outputs or a shape differs, or a value is not finite.
    """
    if len(actual) != len(expected):
        return float("inf")
    worst = 0.0
    for got, want in zip(actual, expected, strict=True):
        if got.shape != want.shape or not np.isfinite(got).all():
            return float("inf")
        error = np.abs(got.astype(np.float64) - want).max() / np.abs(want).max()
        worst = max(worst, float(error))
    return worst


def variation(first: list[np.ndarray], second: list[np.ndarray]) -> float:
    """Return how much the outputs for two inputs differ, relative to their size.

    The mean of |first - second| over the mean of |first|, the smallest over the outputs:
    0 for an engine that ignores its input.
    """
    return min(
        float(np.abs(a - b).mean() / max(np.abs(a).mean(), 1e-30))
        for a, b in zip(first, second, strict=True)
    )


def machine() -> dict[str, str]:
    """Describe the machine: processor, cores usable by this process, kernel, memory."""
    facts = {"system": f"{platform.system()} {platform.release()}", "machine": platform.machine()}
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                facts["processor"] = value.strip()
            elif key.strip() == "flags":
                known = ("avx2", "fma", "avx512f", "avx512_vnni", "avx512_bf16", "amx_tile")
                facts["features"] = " ".join(f for f in known if f in value.split())
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemTotal"):
                facts["memory"] = f"{int(line.split()[1]) / 2**20:.0f} GiB"
    except OSError:
        facts["processor"] = platform.processor()
    if hasattr(os, "sched_getaffinity"):
        facts["cores"] = f"{len(os.sched_getaffinity(0))} cores"
    else:
        facts["cores"] = f"{os.cpu_count()} cores"
    return facts


def table(header: list[str], rows: list[list[str]]) -> str:
    """Lay out a Markdown table; the first column is left-aligned, the others right-aligned."""
    cells = [header, *rows]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]

    def line(row: list[str]) -> str:
        padded = [row[0].ljust(widths[0])]
        padded += [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        return "| " + " | ".join(padded) + " |"

    rule = "| " + " | ".join(["-" * widths[0]] + ["-" * (w - 1) + ":" for w in widths[1:]]) + " |"
    return "\n".join([line(header), rule, *(line(row) for row in rows)])


def split_names(text: str) -> list[str]:
    """Split a comma-separated command-line value, dropping blanks."""
    return [part.strip() for part in text.split(",") if part.strip()]
