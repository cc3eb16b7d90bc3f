"""Stored cases: a graph that pnnx exported, its inputs and PyTorch's outputs.

A zip file in ``tests/data/operators`` or ``tests/data/models`` holds one family.  Each case has
``<case>/graph.pnnx.param`` and ``<case>/graph.pnnx.bin`` as the exporter wrote them, and
``<case>/output_<k>``, the raw little-endian values of PyTorch's outputs; ``index.json`` has the
rest.  Inputs are not stored: they are noise seeded with the name of the case (see ``noise.py``),
and the index has their CRC, so that a change of the noise is detected.

Of outputs with more than `SAMPLE` elements, that many evenly spread ones are stored.  This loses
nothing: ``test_reference.py`` compares the numpy reference with those elements, and the engine is
compared with that reference everywhere.
"""

from __future__ import annotations

import io
import json
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ..reference import read_graph, run_graph
from .compare import assert_close
from .noise import integers, uniform
from .paths import DATA

__all__ = [
    "SAMPLE",
    "Case",
    "Golden",
    "InputSpec",
    "load_cases",
    "reference_outputs",
    "sample_positions",
]


SAMPLE = 1024


@dataclass(frozen=True)
class InputSpec:
    """Recipe of one input of a case.

    Attributes
    ----------
    shape : tuple of int
    low, high : float
        Range of the noise; of complex numbers, that of the real and the imaginary parts.
    dtype : str
        numpy's name of a float, integer, boolean or complex type.
    special : tuple of float
        Values put at evenly spaced indices, such as the corners of an activation.
    """

    shape: tuple[int, ...]
    low: float = -2.0
    high: float = 2.0
    dtype: str = "float32"
    special: tuple[float, ...] = ()

    def make(self, key: str) -> np.ndarray:
        """Return the array for the input called `key`."""
        kind = np.dtype(self.dtype).kind
        if kind == "c":
            parts = uniform(key, (*self.shape, 2), self.low, self.high)
            array = (parts[..., 0] + 1j * parts[..., 1]).astype(self.dtype)
        elif kind == "f":
            array = uniform(key, self.shape, self.low, self.high).astype(self.dtype)
        else:
            array = integers(key, self.shape, int(self.low), int(self.high))
            array = np.asarray(array, self.dtype)
        if self.special:
            step = max(1, array.size // len(self.special))
            indices = np.arange(len(self.special)) * step
            array.reshape(-1)[indices] = self.special
        return array


@dataclass(frozen=True)
class Golden:
    """PyTorch's value of one output, whole or sampled.

    Attributes
    ----------
    shape : tuple of int
    positions : numpy.ndarray or None
        Flat indices of `values`; None if all elements are stored.
    values : numpy.ndarray, 1-d
    """

    shape: tuple[int, ...]
    positions: np.ndarray | None
    values: np.ndarray = field(repr=False)

    def assert_matches(self, actual: np.ndarray, rtol: float, what: str) -> None:
        """Fail unless `actual` has the shape and the stored values."""
        __tracebackhide__ = True
        if tuple(actual.shape) != self.shape:
            raise AssertionError(f"{what}: shape {actual.shape}, expected {self.shape}")
        flat = np.ascontiguousarray(actual).reshape(-1)
        flat = flat if self.positions is None else flat[self.positions]
        assert_close(flat, self.values, rtol, what)


@dataclass(frozen=True, eq=False)
class Case:
    """One stored case; its files are read on first use."""

    path: Path
    family: str
    name: str
    index: Mapping[str, Any] = field(repr=False)

    @property
    def id(self) -> str:
        return f"{self.family}/{self.name}"

    @property
    def rtol(self) -> float:
        """Tolerance against PyTorch's float32 result."""
        return self.index["rtol"]

    @cached_property
    def param(self) -> bytes:
        return self._read("graph.pnnx.param")

    @cached_property
    def bin(self) -> bytes:
        return self._read("graph.pnnx.bin")

    @property
    def types(self) -> set[str]:
        """The operator types of the graph."""
        return {line.split()[0] for line in self.param.decode().splitlines()[2:] if line}

    @cached_property
    def inputs(self) -> tuple[np.ndarray, ...]:
        return tuple(self._inputs())

    @cached_property
    def goldens(self) -> tuple[Golden, ...]:
        return tuple(self._goldens())

    @cached_property
    def reference(self) -> list[np.ndarray]:
        """The results of the numpy references, in float64."""
        frozen = self.index.get("frozen_batch", False)
        return reference_outputs(self.param, self.bin, self.inputs, frozen)

    def assert_dtypes(self, outputs: Sequence[np.ndarray]) -> None:
        """Fail unless the outputs have PyTorch's dtypes."""
        __tracebackhide__ = True
        for number, (output, entry) in enumerate(zip(outputs, self.index["outputs"], strict=True)):
            if output.dtype != np.dtype(entry["dtype"]):
                expected = np.dtype(entry["dtype"])
                raise AssertionError(
                    f"{self.id}: output {number} is {output.dtype}, expected {expected}"
                )

    def assert_matches(self, outputs: Sequence[np.ndarray], rtol: float | None = None) -> None:
        """Compare outputs with PyTorch's."""
        __tracebackhide__ = True
        if len(outputs) != len(self.goldens):
            raise AssertionError(f"{self.id}: {len(outputs)} outputs, expected {len(self.goldens)}")
        for number, (output, golden) in enumerate(zip(outputs, self.goldens, strict=True)):
            what = f"{self.id}: output {number} against PyTorch"
            golden.assert_matches(output, self.rtol if rtol is None else rtol, what)

    def _read(self, member: str) -> bytes:
        return _archive(self.path).read(f"{self.name}/{member}")

    def _inputs(self) -> Iterator[np.ndarray]:
        for number, entry in enumerate(self.index["inputs"]):
            spec = InputSpec(**{k: _frozen(v) for k, v in entry.items() if k != "crc"})
            array = spec.make(f"{self.id}/{number}")
            if zlib.crc32(array.tobytes()) != entry["crc"]:
                raise AssertionError(
                    f"{self.id}: input {number} is not the one that PyTorch was given; "
                    "the noise has changed, make the fixtures again"
                )
            array.setflags(write=False)
            yield array

    def _goldens(self) -> Iterator[Golden]:
        for number, entry in enumerate(self.index["outputs"]):
            shape = tuple(entry["shape"])
            values = np.frombuffer(self._read(f"output_{number}"), entry["dtype"])
            size = int(np.prod(shape))
            positions = None if values.size == size else sample_positions(size)
            yield Golden(shape, positions, values)


def reference_outputs(
    param: bytes, archive: bytes, inputs: Sequence[np.ndarray], frozen_batch: bool = False
) -> list[np.ndarray]:
    """Evaluate a graph with the numpy references.

    With `frozen_batch` the graph contains the batch size 1 of its export, so it is evaluated image
    by image.
    """
    graph = read_graph(param, archive)
    if not frozen_batch:
        return run_graph(graph, inputs)
    images = [[x[i : i + 1] for x in inputs] for i in range(len(inputs[0]))]
    return [np.concatenate(ys) for ys in zip(*(run_graph(graph, i) for i in images), strict=True)]


@cache
def _archive(path: Path) -> zipfile.ZipFile:
    """Return a zip file held in memory, opened once for all of its cases."""
    return zipfile.ZipFile(io.BytesIO(path.read_bytes()))


def _frozen(value):
    return tuple(value) if isinstance(value, list) else value


def sample_positions(size: int, count: int = SAMPLE) -> np.ndarray:
    """Return sorted, evenly spread flat indices into `size` elements, including both ends."""
    drawn = integers(f"positions of {size}", (count - 2,), 0, size)
    return np.unique(np.concatenate([drawn, [0, size - 1]]))


@cache
def load_cases(kind: str) -> tuple[Case, ...]:
    """Return every case of ``tests/data/<kind>``, sorted by family, then by creation."""
    cases = []
    for path in sorted((DATA / kind).glob("*.zip")):
        index = json.loads(_archive(path).read("index.json"))
        cases += [Case(path, path.stem, name, entry) for name, entry in index.items()]
    return tuple(cases)
