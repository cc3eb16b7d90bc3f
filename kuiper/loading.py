"""Loading and saving of models; the operators and the configuration of this build."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from kuiper import pnnx
from kuiper._kernels.micro import dispatch
from kuiper._support import threads as thread_settings
from kuiper._support.gc_pause import no_collection
from kuiper._version import __version__
from kuiper.errors import InputError
from kuiper.ir import Graph
from kuiper.model import DEFAULT_PLANS, Model
from kuiper.ops import registered_types
from kuiper.planning.verify import GRAPH_TYPES
from kuiper.pnnx import Source, Target, save_graph

__all__ = ["load", "load_graph", "save", "show_config", "supported_operators"]

# Tags of the fields that may follow the version of an ONNX file.
HEAD_BYTES = 4096  # of a file whose format its name does not tell
ONNX_FIELDS = (b"\x12", b"\x1a", b"\x22", b"\x28", b"\x32", b"\x3a", b"\x42", b"\x72")


@no_collection()
def load(
    param: Source,
    bin: Source | None = None,
    *,
    shapes: Mapping[str, Sequence[int | str | None]] | None = None,
    check_crc: bool = False,
    optimize: bool = True,
    threads: int | None = None,
    max_memory: int | None = None,
    plans: int = DEFAULT_PLANS,
    precision: str | None = None,
    custom_operators: Mapping[str, Callable[..., Any]] | None = None,
) -> Model:
    """Load a PNNX or ONNX model and check that it can run.

    Parameters
    ----------
    param : str, os.PathLike, bytes-like or binary file object
        The ``.param`` text, or an ``.onnx`` file.
    bin : str, os.PathLike, bytes-like or binary file object, optional
        The archive of the weights; by default the path of `param` with ``.param`` replaced by
        ``.bin``.  An ONNX file has none.
    shapes : mapping of str to tuple, optional
        For an ONNX file: shapes of inputs by name, where the file leaves extents open, such as
        ``{"x": (1, 3, 640, 640)}``; None or a name inside keeps one open.
    check_crc : bool, default=False
        Compare the checksum of every weight with that of the archive.  This reads the archive once
        more, in about 0.4 ms per MB: 18 ms for ResNet-18.  By default damaged weights give wrong
        results silently, as the weights of a large archive are read from the open file only when
        they are packed, those of the largest filters during the first runs.
    optimize : bool, default=True
        Whether passes may simplify and fuse operators; without them they run one by one, as in the
        file.
    threads : int, optional
        Number of threads of a run of this model, instead of that of :func:`set_num_threads`.
    max_memory : int, optional
        Maximum size of the operands of a run, in bytes, without the weights.  Input shapes, and
        ``.param`` texts, that need more are refused before memory is allocated.  By default the
        memory of the machine or the container.
    plans : int, default=8
        How many plans are kept.  The first call with new input shapes makes a plan, which takes
        milliseconds; if calls alternate between more shapes than that, each call plans again.  A
        plan takes about 1 kB per operator; plans share the weights and the memory of runs.
    precision : str, optional
        ``"float32"``; ``"bfloat16"``, which stores activations and the weights of dense products in
        half the memory, multiplies pairs of them where the processor has instructions for that, and
        sums in float32; or ``"auto"``, which is bfloat16 where its products are faster, else
        float32.  Inputs and results are float32 arrays.  By default the environment variable
        ``KUIPER_PRECISION``, else float32.  See docs/precision.md.
    custom_operators : mapping of str to callable, optional
        Functions by operator type, for operators that kuiper does not have.  Each is registered by
        :func:`operator` with ``replace=True`` and the number of results in the graph; other models
        use it as well, from their next plan on.

    Returns
    -------
    Model

    Raises
    ------
    ModelFormatError
        If a file is damaged or of another format.
    GraphError
        If an operator has a wrong number of inputs or outputs, or the graph may exceed
        `max_memory`.
    UnsupportedOperatorError
        If the graph has operators that kuiper does not support; all are listed.
    OperatorError
        If an operator's arguments are wrong.
    InputError
        If an option is none of those above.

    Examples
    --------
    >>> import kuiper, numpy as np
    >>> param = b'''7767517
    ... 3 2
    ... pnnx.Input  in   0 1 0
    ... nn.ReLU     act  1 1 0 1
    ... pnnx.Output out  1 0 1
    ... '''
    >>> model = kuiper.load(param)
    >>> model(np.array([-1.0, 2.0], np.float32))
    array([0., 2.], dtype=float32)
    """
    graph = load_graph(param, bin, shapes=shapes, check_crc=check_crc, max_memory=max_memory)
    if not isinstance(custom_operators, Mapping | None):
        raise InputError(f"custom_operators is {custom_operators!r}, expected a dict of functions")
    for type, function in (custom_operators or {}).items():
        if not callable(function):
            raise InputError(f"custom_operators[{type!r}] is {function!r}, expected a function")
        from kuiper.ops.core.custom import operator

        users = [op for op in graph if op.type == type]
        operator(type, len(users[0].outputs) or 1 if users else 1, replace=True)(function)
    return Model(
        graph, optimize=optimize, threads=threads, max_memory=max_memory, plans=plans,
        precision=precision,
    )  # fmt: skip


def load_graph(
    param: Source,
    bin: Source | None = None,
    *,
    shapes: Mapping[str, Sequence[int | str | None]] | None = None,
    check_crc: bool = False,
    max_memory: int | None = None,
) -> Graph:
    """Load the graph of a PNNX or ONNX model.

    Parameters
    ----------
    param, bin, shapes, check_crc, max_memory
        As for :func:`load`; without `bin`, attributes of a PNNX model whose archive is missing have
        shapes and dtypes only: such a graph can be inspected but not run.

    Returns
    -------
    kuiper.ir.Graph

    Raises
    ------
    ModelFormatError
        If a file is damaged, truncated or of another format.
    GraphError
        If the graph might take more than `max_memory`.
    UnsupportedOperatorError, OperatorError
        If an ONNX model has operators or arguments that kuiper does not support.
    OSError
        If a file cannot be read.
    """
    if not _is_onnx(param):
        if shapes is not None:
            raise InputError("shapes is for ONNX models; a PNNX model runs with any shapes")
        return pnnx.load_graph(param, bin, check_crc=check_crc, max_memory=max_memory)
    if bin is not None:
        raise InputError(f"got the second file {bin!r}, but an ONNX model has its weights itself")
    from kuiper import onnx

    return onnx.load_graph(param, shapes=shapes, max_memory=max_memory)


def _is_onnx(source: Any) -> bool:
    """Tell whether a model is an ONNX file, by its name or its first bytes."""
    if isinstance(source, str | os.PathLike):
        suffix = os.path.splitext(os.fsdecode(source))[1].lower()
        if suffix in (".onnx", ".param", ".mlmodel") or not os.path.isfile(source):
            return suffix == ".onnx"
        with open(source, "rb") as file:
            head = file.read(HEAD_BYTES)
    elif hasattr(source, "seekable") and source.seekable():
        start = source.tell()
        head = source.read(HEAD_BYTES)
        source.seek(start)
    elif hasattr(source, "read"):
        return False  # a stream must not lose bytes
    else:
        try:
            head = bytes(memoryview(source)[:HEAD_BYTES])
        except TypeError:
            return False  # the reader of PNNX files says what it is
    # The version of the format, followed by another field; PNNX files begin with digits.
    if not isinstance(head, bytes) or head[:1] != b"\x08" or head[1:2] >= b"\x40":
        return False
    if head[2:3] not in ONNX_FIELDS:
        return False
    from kuiper.pnnx._foreign import other_message  # which formats of TensorFlow and Apple look so

    return other_message(head) is None


def save(
    model: Model | Graph, param: Target, bin: Target | None = None, *, dtype: Any = None
) -> None:
    """Write a model or graph as a ``.param`` and a ``.bin`` file.

    Parameters
    ----------
    model : Model or Graph
        A model is saved as it was loaded.
    param, bin : str, os.PathLike or binary file object
        As for :func:`load`.
    dtype : str or numpy.dtype, optional
        ``"float16"`` or ``"bfloat16"`` rounds float weights to half the size; ``"float32"`` widens
        such weights.  A weight with values beyond the range of the type keeps its own, and weights
        of other types, such as integers and float64, keep theirs.  The model still computes in
        float32.  By default all types stay.

    Raises
    ------
    InputError
        If `dtype` is another type.
    GraphError
        If the format cannot express the graph.
    """
    graph = model.graph if isinstance(model, Model) else model
    if dtype is not None:
        from kuiper.pnnx._precision import with_float_type

        graph = with_float_type(graph, dtype)
    save_graph(graph, param, bin)


def supported_operators() -> list[str]:
    """Return the types of all operators that kuiper can run, sorted."""
    return sorted([*registered_types(), *GRAPH_TYPES])


class Config(dict[str, Any]):
    """Settings of this build and process by name; prints one per line."""

    def __repr__(self) -> str:
        def text(value: Any) -> str:
            return ", ".join(map(str, value)) if isinstance(value, list) else str(value)

        width = max(map(len, self), default=0)
        return "\n".join(f"{name:{width}}  {text(value)}" for name, value in self.items())


def show_config() -> dict[str, Any]:
    """Return the version, the instruction set, the number of threads and the compiler.

    Returns
    -------
    dict of str to object
        Prints one setting per line.
    """
    from kuiper._runtime.executor import compiler
    from kuiper._runtime.thread_pool import has_threads

    rows, columns = dispatch.tile()
    return Config(
        version=__version__,
        isa=dispatch.active_name(),
        isa_available=dispatch.available(),
        tile=f"{rows}x{columns}",
        threads=thread_settings.get_num_threads(),
        multithreaded=has_threads,
        compiler=compiler,
        numpy=np.__version__,
    )
