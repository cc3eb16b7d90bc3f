"""A model as the server runs it: checks of requests, batches, and the sizes that pay.

The weights are in memory once.  Runs with all threads and runs with one thread are two views of
one :class:`kuiper.Model`, and any number of runners call them at the same time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import kuiper
from kuiper.errors import KuiperError
from kuiper.serving.failures import Refusal
from kuiper.serving.protocol import InferRequest, datatype_of
from kuiper.serving.scheduler import Queue, batch_key

__all__ = ["Options", "ServedModel", "choose_sizes", "example_inputs", "joins_batches"]

# Batch sizes that are tried, and the part of the time per row that a larger one has to save.
CANDIDATES = (2, 4, 8)
MIN_GAIN = 0.03


@dataclass(frozen=True)
class Options:
    """How models run in a server.

    Attributes
    ----------
    threads : int
        Threads that all runs share.
    instances : int or None
        Runs of one model at a time; None for as many as there are runners.
    batch : int or None
        Largest batch that is joined, 1 for none; None to choose it by measuring.
    delay : float
        Seconds that a request may wait for others to join it.
    max_queue : int
        Requests that may wait for one model.
    max_memory : int or None
        Bytes that the tensors of one run may use.
    plans : int
        Input shapes that stay planned.
    finite_only : bool
        Refuse inputs with NaN or infinite values.
    """

    threads: int = 1
    instances: int | None = None
    batch: int | None = None
    delay: float = 0.0
    max_queue: int = 64
    max_memory: int | None = None
    plans: int = 32
    finite_only: bool = False


class ServedModel:
    """A version of a model, loaded, with the queue of its jobs.

    Parameters
    ----------
    name, version : str
    path : str or Path
        The ``.param`` file.
    options : Options
    settings : mapping
        The configuration file of the model; see :class:`.repository.Source`.

    Attributes
    ----------
    model : Model
    queue : Queue
    joins : bool
        Whether jobs can be joined to batches, bit for bit.
    measured : dict of int to float
        Seconds of one thread per row, by batch size, if sizes were chosen by measuring.

    Raises
    ------
    KuiperError
        If the model cannot be loaded, or the protocol cannot describe it.
    """

    def __init__(
        self,
        name: str,
        version: str,
        path: str | Path,
        options: Options,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self.name, self.version, self.path = name, version, Path(path)
        self.options, self.settings = options, settings or {}
        # Two numbers of threads, and the batch sizes, share the plan cache.
        self.model = kuiper.load(
            path, threads=options.threads, plans=options.plans, max_memory=options.max_memory
        )
        self._views: dict[int, Callable[..., Any]] = {options.threads: self.model}
        self.inputs = [_describe(info) for info in self.model.inputs]
        self.outputs = [_describe(info) for info in self.model.outputs]
        self.joins = False
        self.measured: dict[int, float] = {}
        self.queue = Queue(
            self._run,
            limit=options.instances or 1 << 30,
            delay=options.delay,
            max_jobs=self.options.max_queue,
            owner=self,
        )
        self._prepare()

    def _prepare(self) -> None:
        """Plan for the shapes of the file, and choose the sizes of batches."""
        arrays = example_inputs(self.model)
        if arrays is None:
            return
        try:
            self.model.plan(*[a.shape for a in arrays])
            for n_threads in {1, self.options.threads}:
                self._run(arrays, n_threads)
        except KuiperError:
            return  # open extents that noise cannot stand for; requests have the right ones
        if self.options.batch == 1 or batch_key(arrays) is None:
            return
        self.joins = joins_batches(lambda x: self._run(x, 1), arrays)
        if not self.joins:
            return
        if self.options.batch is None:
            self.queue.sizes, self.measured = choose_sizes(lambda x: self._run(x, 1), arrays)
        else:
            powers = [1 << n for n in range(self.options.batch.bit_length())]
            self.queue.sizes = tuple(sorted({*powers, self.options.batch}))
        for size in self.queue.sizes:
            self._run([np.repeat(a, size, axis=0) for a in arrays], 1)

    def _run(self, arrays: list[np.ndarray], n_threads: int) -> list[np.ndarray]:
        view = self._views.get(n_threads)
        if view is None:
            view = self._views[n_threads] = self.model.with_threads(n_threads)
        results = view(*arrays)
        return list(results) if isinstance(results, tuple) else [results]

    # -- requests --------------------------------------------------------------------------

    def check(self, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """Return the inputs of a request in order.

        Raises
        ------
        KuiperError
            If a name, dtype or rank is wrong.
        """
        arrays = self.model._checker.check((inputs,))
        if self.options.finite_only:
            for info, array in zip(self.model.inputs, arrays, strict=True):
                if array.dtype.kind in "fc" and not np.isfinite(array).all():
                    raise Refusal("invalid", f"input '{info.name}' has NaN or infinite values")
        return arrays

    def check_outputs(self, request: InferRequest) -> None:
        """Refuse names of outputs that the model does not have, before it runs."""
        names = [output["name"] for output in self.outputs]
        for wanted in request.outputs or ():
            if wanted.name not in names and not self._returns_list:
                known = ", ".join(repr(name) for name in names)
                raise Refusal(
                    "invalid",
                    f"model '{self.name}' has no output '{wanted.name}', expected {known}",
                )

    @property
    def _returns_list(self) -> bool:
        """Whether the one output may be a list, whose length the file does not have to give."""
        return len(self.outputs) == 1

    def named(
        self, request: InferRequest, results: Sequence[np.ndarray]
    ) -> list[tuple[str, np.ndarray, bool]]:
        """Return the outputs that a request wants: name, value, whether it is sent as bytes."""
        by_name = self.model._by_name(results)
        if request.outputs is None:
            return [(name, array, request.binary) for name, array in by_name.items()]
        found = []
        for wanted in request.outputs:
            if wanted.name not in by_name:
                known = ", ".join(repr(name) for name in by_name)
                raise Refusal(
                    "invalid",
                    f"model '{self.name}' has no output '{wanted.name}', expected {known}",
                )
            found.append((wanted.name, by_name[wanted.name], wanted.binary))
        return found

    # -- description -----------------------------------------------------------------------

    def tensors(self, end: str) -> list[dict[str, Any]]:
        """Return names, datatypes and shapes of the ``inputs`` or ``outputs``; -1 is any extent."""
        described = []
        for tensor in self.inputs if end == "inputs" else self.outputs:
            shape = [-1 if n is None else n for n in tensor["shape"] or ()]
            if self.joins and shape:
                shape[0] = -1
            described.append({**tensor, "shape": shape})
        return described

    @property
    def platform(self) -> str:
        """The protocol's name for the engine and the format of the file."""
        return "kuiper_onnx" if self.path.suffix.lower() == ".onnx" else "kuiper_pnnx"

    def metadata(self, versions: Sequence[str]) -> dict[str, Any]:
        """Return the protocol's description of the model."""
        return {
            "name": self.name,
            "versions": list(versions),
            "platform": self.platform,
            "inputs": self.tensors("inputs"),
            "outputs": self.tensors("outputs"),
        }

    def config(self) -> dict[str, Any]:
        """Return the model's configuration in the form of Triton's extension."""
        largest = self.queue.sizes[-1] if self.joins else 0

        def entries(end: str) -> list[dict[str, Any]]:
            return [
                {
                    "name": tensor["name"],
                    "data_type": f"TYPE_{tensor['datatype']}",
                    # With a batch size, the axis of the batch is left out.
                    "dims": tensor["shape"][1:] if self.joins else tensor["shape"],
                }
                for tensor in self.tensors(end)
            ]

        return {
            "name": self.name,
            "platform": self.platform,
            "backend": "kuiper",
            "version_policy": {"all": {}},
            "max_batch_size": largest,
            "input": entries("inputs"),
            "output": entries("outputs"),
            "dynamic_batching": {
                "preferred_batch_size": [n for n in self.queue.sizes if n > 1],
                "max_queue_delay_microseconds": round(self.options.delay * 1e6),
            },
            "instance_group": [
                {"name": self.name, "kind": "KIND_CPU", "count": self.options.instances or 1}
            ],
            "parameters": {"tasks": {"string_value": ",".join(self.tasks)}},
        }

    @property
    def tasks(self) -> list[str]:
        """What the model can do with a photo, judged by the shapes of its input and outputs."""
        shapes = [tuple(tensor["shape"] or ()) for tensor in self.inputs]
        results = [tuple(tensor["shape"] or ()) for tensor in self.outputs]
        if not results or len(shapes) != 1 or len(shapes[0]) != 4 or shapes[0][1] not in (3, None):
            return []
        rank = len(results[0])
        if len(results) == 1 and (rank == 2 or results[0][2:] == (1, 1)):
            return ["classify"]
        return {3: ["detect"], 4: ["segment"]}.get(rank, [])


def _describe(info: kuiper.TensorInfo) -> dict[str, Any]:
    return {"name": info.name, "datatype": datatype_of(info.dtype), "shape": info.shape}


# -- batches -------------------------------------------------------------------------------------


def example_inputs(model: kuiper.Model) -> list[np.ndarray] | None:
    """Return noise of the shapes in the file, or None if it does not give them.

    Open extents are 1 for the batch, 224 for height and width, 16 otherwise; integers are 0 or 1.
    """
    generator = np.random.default_rng(0)
    arrays = []
    for info in model.inputs:
        if info.shape is None:
            return None
        usual = [1] + [16] * (len(info.shape) - 1)
        if len(info.shape) >= 4:
            usual[-2:] = [224, 224]
        shape = [n if k is None else k for k, n in zip(info.shape, usual, strict=False)]
        if info.dtype.kind in "fc":
            arrays.append(generator.standard_normal(shape).astype(info.dtype))
        else:
            arrays.append(generator.integers(0, 2, shape).astype(info.dtype))
    return arrays


def _other(array: np.ndarray) -> np.ndarray:
    """Return an array of the same kind with other values."""
    if array.dtype.kind in "fc":
        return array * array.dtype.type(-0.5) + array.dtype.type(0.25)
    return (1 - array).astype(array.dtype) if array.dtype.kind != "b" else ~array


def joins_batches(
    run: Callable[[list[np.ndarray]], list[np.ndarray]], arrays: list[np.ndarray]
) -> bool:
    """Tell whether two calls joined along axis 0 give the bits of each call alone."""
    others = [_other(a) for a in arrays]
    try:
        apart = [run(arrays), run(others)]
        joined = run([np.concatenate(pair) for pair in zip(arrays, others, strict=True)])
    except KuiperError:
        return False
    rows = len(arrays[0])
    for one, other, both in zip(*apart, joined, strict=True):
        if one.ndim == 0 or len(one) != rows or both.shape != (2 * rows, *one.shape[1:]):
            return False
        if both[:rows].tobytes() != one.tobytes() or both[rows:].tobytes() != other.tobytes():
            return False
    return True


def choose_sizes(
    run: Callable[[list[np.ndarray]], list[np.ndarray]],
    arrays: list[np.ndarray],
    clock: Callable[[], float] = time.thread_time,
    budget: float = 5.0,
) -> tuple[tuple[int, ...], dict[int, float]]:
    """Choose the batch sizes that save time per row, by measuring them with one thread.

    Parameters
    ----------
    run : callable
        Runs the model with one thread, in the calling thread.
    arrays : list of numpy.ndarray
        Inputs of one call.
    clock : callable
        Seconds of this thread, so that other programs do not count.
    budget : float
        Seconds for all measurements; a large model is measured less often.

    Returns
    -------
    sizes : tuple of int
        Ascending, with 1.
    measured : dict of int to float
        Seconds per row, by size.
    """
    rows, begin = len(arrays[0]), clock()
    measured: dict[int, float] = {}
    sizes = [rows]
    for size in (rows, *(rows * n for n in CANDIDATES)):
        batch = [np.repeat(a, size // rows, axis=0) for a in arrays]
        run(batch)  # plans, and packs what only this size needs
        times: list[float] = []
        while len(times) < 5 and (len(times) < 2 or clock() - begin < budget):
            start = clock()
            run(batch)
            times.append((clock() - start) / size)
        measured[size] = min(times)
        if size > rows and measured[size] <= (1 - MIN_GAIN) * measured[sizes[-1]]:
            sizes.append(size)
        elif size >= 4 * sizes[-1] or clock() - begin > budget:
            break
    return tuple(sorted({1, *sizes})), measured
