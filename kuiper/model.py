"""The public face: load a model, call it, look into it."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from kuiper._kernels.micro import dispatch
from kuiper._runtime.executor import ArenaPool
from kuiper._runtime.weights import WeightCache
from kuiper._support import log
from kuiper._support import threads as thread_settings
from kuiper._support.gc_pause import no_collection
from kuiper._support.memory import check_max_memory
from kuiper._version import __version__
from kuiper.errors import (
    GraphError,
    InputError,
    OperatorError,
    UnsupportedOperatorError,
)
from kuiper.ir import Graph, Operand
from kuiper.ir.dtypes import DTYPES, from_numpy
from kuiper.ir.view import TensorSpec
from kuiper.ops import find_record, registered_types
from kuiper.ops.core.schema import attribute_spec, resolve
from kuiper.passes import (
    NEEDED,
    PassReport,
    diagnose,
    optimize_graph,
    restore_exported,
    unfreeze_batch,
)
from kuiper.planning.infer import check_sizes, infer_known, infer_specs, leaf_operands
from kuiper.planning.plan import Plan
from kuiper.planning.planner import make_plan
from kuiper.pnnx import Source, Target, load_graph, save_graph
from kuiper.pnnx._messages import plural

if TYPE_CHECKING:
    from kuiper.planning.profile import Profile
    from kuiper.planning.stages import Staged

__all__ = [
    "Model",
    "TensorInfo",
    "load",
    "load_graph",
    "save",
    "show_config",
    "supported_operators",
]

# Lists inside lists are walked by functions that call themselves.
MAX_NESTING = 100

GRAPH_TYPES = ("pnnx.Input", "pnnx.Output")


class TensorInfo(NamedTuple):
    """Name, shape and dtype of an input or output.

    Attributes
    ----------
    name : str
        Of the operand in the ``.param`` file.
    shape : tuple of (int or None), or None
        As traced; None marks a dynamic extent, None alone an unknown shape.  Other extents than
        the traced ones work where the graph allows them.
    dtype : numpy.dtype
    """

    name: str
    shape: tuple[int | None, ...] | None
    dtype: np.dtype


@no_collection()
def load(
    param: Source,
    bin: Source | None = None,
    *,
    check_crc: bool = False,
    optimize: bool = True,
    threads: int | None = None,
    max_memory: int | None = None,
    custom_operators: Mapping[str, Callable[..., Any]] | None = None,
) -> Model:
    """Load a PNNX model and check that it can run.

    Parameters
    ----------
    param : str, os.PathLike, bytes-like or binary file object
        The ``.param`` text.
    bin : str, os.PathLike, bytes-like or binary file object, optional
        The archive of the weights; by default the path of `param` with ``.param`` replaced by
        ``.bin``.
    check_crc : bool, default=False
        Also compare the checksum of every weight.  The whole archive is read, and kept in memory;
        of a large one, weights are otherwise read from the open file when they are packed, the
        largest filters by the first runs themselves.
    optimize : bool, default=True
        Without it, no pass simplifies or fuses anything: operator by operator, as in the file.
    threads : int, optional
        How many threads a run of this model uses, whatever :func:`set_num_threads` says.
    max_memory : int, optional
        How many bytes a run may take for its operands (the weights apart); input shapes that want
        more are refused before anything is allocated, and so is a ``.param`` text whose graph might
        take more.  By default the memory of the machine, or of the container.
    custom_operators : mapping of str to callable, optional
        By operator type, functions for what kuiper does not have.  This is :func:`operator` for
        each of them, with as many results as the graph wants: the next models know them as well.

    Returns
    -------
    Model

    Raises
    ------
    ModelFormatError
        If a file is damaged or of another format.
    GraphError
        If an operator has no outputs, or an input or output of the graph is none; if the graph
        might take more than `max_memory`.
    UnsupportedOperatorError
        If the graph holds operators that kuiper does not know; all are listed.
    OperatorError
        If an operator's arguments are wrong.

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
    graph = load_graph(param, bin, check_crc=check_crc, max_memory=max_memory)
    if not isinstance(custom_operators, Mapping | None):
        raise InputError(f"custom_operators is {custom_operators!r}, expected a dict of functions")
    for type, function in (custom_operators or {}).items():
        if not callable(function):
            raise InputError(f"custom_operators[{type!r}] is {function!r}, expected a function")
        from kuiper.ops.core.custom import operator

        users = [op for op in graph if op.type == type]
        operator(type, len(users[0].outputs) if users else 1)(function)
    return Model(graph, optimize=optimize, threads=threads, max_memory=max_memory)


def save(model: Model | Graph, param: Target, bin: Target | None = None) -> None:
    """Write a model or graph as a ``.param`` and a ``.bin`` file.

    Parameters
    ----------
    model : Model or Graph
        A model is written as it was loaded.
    param, bin : str, os.PathLike or binary file object
        As for :func:`load`.
    """
    save_graph(model.graph if isinstance(model, Model) else model, param, bin)


def supported_operators() -> list[str]:
    """Return the types of all operators that kuiper can run, sorted."""
    return sorted([*registered_types(), *GRAPH_TYPES])


def show_config() -> dict[str, Any]:
    """Return version, instruction set, threads and build facts."""
    from kuiper._runtime import executor, thread_pool

    rows, columns = dispatch.tile()
    return {
        "version": __version__,
        "isa": dispatch.active_name(),
        "isa_available": dispatch.available(),
        "tile": f"{rows}x{columns}",
        "threads": thread_settings.get_num_threads(),
        "multithreaded": thread_pool.has_threads,
        "compiler": executor.compiler,
        "numpy": np.__version__,
    }


class Model:
    """A graph that can be run; made by :func:`load`.

    A model serves any number of threads at once.  Calling it with new input shapes makes a plan
    for them, which takes milliseconds; the last few plans are kept.

    Parameters
    ----------
    graph : Graph
    optimize : bool, default=True
        Whether passes may simplify and fuse.
    threads, max_memory : int, optional
        As for :func:`load`.

    Attributes
    ----------
    graph : Graph
        As loaded.
    threads : int or None
        How many threads a run uses; None for what :func:`get_num_threads` returns.
    max_memory : int
        How many bytes a run may take for its operands.
    passes : tuple of PassReport
        What each pass did when the last plan was made; empty before the first.
    """

    PLANS_KEPT = 8

    def __init__(
        self,
        graph: Graph,
        *,
        optimize: bool = True,
        threads: int | None = None,
        max_memory: int | None = None,
    ) -> None:
        self._options = {"optimize": optimize, "threads": threads, "max_memory": max_memory}
        self.threads = None if threads is None else thread_settings.check_num_threads(threads)
        self.max_memory = check_max_memory(max_memory)
        graph.verify()
        self.graph = graph
        self._check_ends()
        self._check_supported()
        self._check_arguments()
        self.passes: tuple[PassReport, ...] = ()
        self._only = None if optimize else NEEDED
        self._free = graph.copy()
        restore_exported(self._free)
        self._input_operands = graph.inputs
        self._input_infos = tuple(_info(operand) for operand in self._input_operands)
        # pnnx says nothing of the type of a 0-d input: float32 is taken for it, or whole numbers.
        self._undeclared = tuple(
            number for number, o in enumerate(self._input_operands) if o.dtype not in DTYPES
        )
        self._output_operands = [
            leaf for operand in graph.outputs for leaf in leaf_operands(operand)
        ]
        self._plans: OrderedDict[tuple[Any, ...], Plan | Staged] = OrderedDict()
        self._weights = WeightCache(
            sum(attribute.nbytes for op in graph for attribute in op.attributes.values())
        )
        self._arenas = ArenaPool()
        self._latest: Plan | Staged | None = None
        self._lock = thread_settings.ForkLock()

    # -- checks ----------------------------------------------------------------------------

    def _check_ends(self) -> None:
        """Compare the numbers of operands of all operators with what they must be."""
        depths: dict[Operand, int] = {}  # of lists inside lists
        for op in self.graph.topological_order():
            if op.type in ("prim::TupleConstruct", "prim::ListConstruct"):
                depth = 1 + max((depths.get(operand, 0) for operand in op.inputs), default=0)
                depths.update(dict.fromkeys(op.outputs, depth))
                if depth > MAX_NESTING:
                    raise GraphError(
                        f"{op.label}: makes a list of lists that is {depth} deep, "
                        f"expected up to {MAX_NESTING}"
                    )
            if op.type == "pnnx.Input":
                expected, fits = "no input and one output", not op.inputs and len(op.outputs) == 1
            elif op.type == "pnnx.Output":
                expected, fits = "no output", not op.outputs
            else:
                expected, fits = "an output", bool(op.outputs)
            if not fits:
                raise GraphError(
                    f"{op.label}: has {len(op.inputs)} inputs and {len(op.outputs)} outputs, "
                    f"expected {expected}"
                )

    def _check_supported(self) -> None:
        unknown = {
            type: count
            for type, count in self.graph.type_counts().items()
            if type not in GRAPH_TYPES and getattr(find_record(type), "internal", True)
        }
        if not unknown:
            return
        listed = ", ".join(
            f"{type} ({count} use{'s' if count > 1 else ''}, first "
            f"'{self.graph.find(type=_literal(type))[0].name}'{_advice(type)})"
            for type, count in unknown.items()
        )
        many = len(unknown) > 1
        raise UnsupportedOperatorError(
            f"{len(unknown)} operator{'s are' if many else ' is'} not supported: {listed}. "
            "See kuiper.supported_operators(); @kuiper.operator adds one of your own."
        )

    def _check_arguments(self) -> None:
        """Find wrong literal arguments now; what depends on shapes is checked by the plan."""
        for op in self.graph:
            if op.type not in GRAPH_TYPES:
                attributes = {key: attribute_spec(a) for key, a in op.attributes.items()}
                rule = find_record(op.type)
                assert rule is not None  # _check_supported has seen to it
                resolve(op, rule.arguments, {}, attributes)
                for key, spec in attributes.items():
                    if op.type.startswith("nn.") and spec.dtype.kind == "c":
                        raise OperatorError(
                            f"{op.label}: its weight '{key}' is {spec.dtype}, expected real numbers"
                        )

    # -- looking ---------------------------------------------------------------------------

    @property
    def inputs(self) -> tuple[TensorInfo, ...]:
        """What the model takes."""
        return self._input_infos

    @property
    def outputs(self) -> tuple[TensorInfo, ...]:
        """What the model returns."""
        return tuple(_info(operand) for operand in self._output_operands)

    def __repr__(self) -> str:
        def describe(infos: Sequence[TensorInfo]) -> str:
            return ", ".join(f"{i.name}{_shape_text(i.shape)}" for i in infos)

        return (
            f"<kuiper.Model: {len(self.graph)} operators, inputs {describe(self.inputs)}, "
            f"outputs {describe(self.outputs)}>"
        )

    # -- running ---------------------------------------------------------------------------

    def __call__(self, *inputs: Any, out: Any = None) -> Any:
        """Run the model.

        Parameters
        ----------
        *inputs : array_like
            One array per input, in order; or one mapping from input names to arrays.  The dtype
            must be the input's (float32 as a rule) and is never converted silently; where the
            file declares none, whole numbers and booleans will do as well.  A C-order array is
            used where it lies, any other is copied once.
        out : numpy.ndarray or sequence of numpy.ndarray, optional
            C-order arrays for the results; by default new ones are made.

        Returns
        -------
        numpy.ndarray or tuple of numpy.ndarray
            A tuple where the model has several outputs, in the order of PyTorch's (nested)
            results.

        Raises
        ------
        InputError
            If an array has the wrong name, count, dtype or rank.
        ShapeError
            If the graph cannot take these shapes; the message names the operator.
        ModelFormatError
            If weights are needed that are still in the file, and the file was changed since.
        """
        arrays = self._arrays(inputs)
        plan = self._plan(arrays)
        results = plan.run(arrays) if out is None else self._run_into(plan, arrays, out)
        return results[0] if len(results) == 1 else tuple(results)

    def trace(self, inputs: Any, names: Sequence[str]) -> dict[str, Any]:
        """Return intermediate operands.

        Parameters
        ----------
        inputs : array, sequence of arrays or mapping
            As for a call.
        names : sequence of str
            Operands, or operators (then their outputs, for those of the graph what they return),
            by their names in the ``.param`` file.

        Returns
        -------
        dict of str to numpy.ndarray
            In the order of `names`; an operator with several outputs, or an operand that is a list
            of tensors, yields a tuple.
        """
        arrays = self._arrays(inputs if isinstance(inputs, tuple | list) else (inputs,))
        wanted: dict[str, list[Operand]] = {}
        for name in names:
            if self.graph.has_operand(name):
                wanted[name] = [self.graph.operand(name)]
            else:
                try:
                    op = self.graph.operator(name)
                except KeyError as error:
                    raise InputError(f"nothing called '{name}' to trace: {error.args[0]}") from None
                wanted[name] = list(op.outputs or op.inputs)
        if not wanted:
            return {}
        keep = tuple(dict.fromkeys(o.name for group in wanted.values() for o in group))
        plan = self._plan(arrays, keep)
        found = dict(zip(keep, plan.run_grouped(arrays), strict=True))
        traced = {}
        for name, group in wanted.items():
            arrays = [array for operand in group for array in found[operand.name]]
            traced[name] = arrays[0] if len(arrays) == 1 else tuple(arrays)
        return traced

    def profile(self, *inputs: Any, runs: int = 20) -> Profile:
        """Measure each step of a run.

        Parameters
        ----------
        *inputs : array_like
            As for a call.
        runs : int, default=20
            How many runs are measured, after three that are not; medians are reported.

        Returns
        -------
        Profile
            Prints as a table.
        """
        from kuiper.planning.profile import Profile

        arrays = self._arrays(inputs)
        plan = self._settled_plan(arrays)
        for _ in range(3):
            plan.run(arrays)
        timed = [plan.profile(arrays) for _ in range(max(1, runs))]
        seconds = np.median([seconds for _, seconds in timed], axis=0)
        return Profile(plan, timed[0][0], seconds, {op.name: op.type for op in self.graph})

    def plan(self, *shapes: Sequence[int]) -> Plan:
        """Return the plan for inputs of the given shapes, making it if need be.

        What runs for these shapes would have to prepare is done here: weights are packed, large
        filters transformed, and all are moved to large pages. (For a model that is just called, the
        latter two happen little by little: the first calls read filters from the file and take up
        to three times as long, those until the last page is moved up to a tenth longer.)

        Parameters
        ----------
        *shapes : tuple of int
            One for each input.

        Returns
        -------
        kuiper.planning.plan.Plan
            For a model that is cut where shapes depend on data, the plan in front of the first
            cut.

        Raises
        ------
        ShapeError
            If the graph cannot take these shapes.
        ModelFormatError
            If weights cannot be read any more, since the file was changed.
        """
        arrays = [
            np.broadcast_to(np.zeros((), _info(o).dtype), shape)
            for o, shape in zip(self._input_operands, shapes, strict=True)
        ]
        plan = self._settled_plan(arrays)
        return plan if isinstance(plan, Plan) else plan.first_plan

    def planned_graph(self, *shapes: Sequence[int]) -> Graph:
        """Return the graph as it runs for inputs of the given shapes: after the passes.

        Parameters
        ----------
        *shapes : tuple of int
            One for each input.

        Returns
        -------
        kuiper.ir.Graph
            Its operands are annotated with the shapes that they have then.  A model that is cut
            where shapes depend on data is shown as it was loaded, with the shapes in front of the
            cut.

        Raises
        ------
        ShapeError
            If the graph cannot take these shapes.
        """
        infos = zip(self._input_infos, shapes, strict=True)
        graph, inputs = self._prepared([TensorSpec(s, info.dtype) for info, s in infos])
        specs, waiting = infer_known(graph, inputs)
        if waiting:
            for operand in graph.operands:
                operand.shape = operand.dtype = None
        else:
            self.passes = optimize_graph(graph, specs, _evaluate, self._only)
            specs = infer_specs(graph, inputs)
        for operand, spec in specs.items():
            if isinstance(spec, TensorSpec):
                operand.shape, operand.dtype = spec.shape, from_numpy(spec.dtype).name
        return graph

    # -- inside ----------------------------------------------------------------------------

    def _plan(self, arrays: Sequence[np.ndarray], keep: tuple[str, ...] = ()) -> Plan | Staged:
        n_threads = self.threads or thread_settings.get_num_threads()
        open_dtypes = tuple([arrays[number].dtype for number in self._undeclared])
        key = (
            tuple([a.shape for a in arrays]), n_threads, dispatch.active_name(), keep, open_dtypes
        )  # fmt: skip
        # A dictionary may be read while another thread changes it, so a known shape waits for none.
        plan = self._plans.get(key)
        runs_again = plan is not None
        if plan is None or plan is not self._latest:
            plan = self._find_plan(key, arrays)
        # Whoever holds the lock may be making a plan, for which no run of another waits.
        if runs_again and self._weights.finalizer.is_pending and self._lock.acquire(blocking=False):
            try:
                self._weights.finalizer.finalize(n_threads)
            finally:
                self._lock.release()
        return plan

    def _settled_plan(self, arrays: Sequence[np.ndarray]) -> Plan | Staged:
        """Return a plan for runs that shall be fast from the first one on."""
        plan = self._plan(arrays)
        with self._lock:
            self._weights.finalizer.finalize(
                self.threads or thread_settings.get_num_threads(), wholly=True
            )
        return plan

    def _find_plan(self, key: tuple[Any, ...], arrays: Sequence[np.ndarray]) -> Plan | Staged:
        """Look a plan up, or make it, and note that it was the last to be used."""
        shapes, n_threads, isa, keep, _ = key
        start: float | None = None
        dropped: list[tuple[Any, ...]] = []
        with self._lock:
            plan = self._plans.get(key)
            if plan is None:
                start = time.perf_counter()
                plan = self._plans[key] = self._compile(arrays, n_threads, keep)
                while len(self._plans) > self.PLANS_KEPT:
                    dropped.append(self._plans.popitem(last=False)[0][0])
                milliseconds, reports = (time.perf_counter() - start) * 1e3, self.passes
            else:
                self._plans.move_to_end(key)
            self._latest = plan
        if start is not None:  # told without the lock: nobody knows what a handler does
            what = "in stages, as shapes depend on values"
            if isinstance(plan, Plan):
                what = f"{len(plan.steps)} steps, {plan.arena_bytes} bytes of memory"
            log.debug(
                "kuiper.model", "planned for %s, %d threads, %s: %s; it took %.1f ms",
                " ".join(map(str, shapes)), n_threads, isa, what, milliseconds,
            )  # fmt: skip
            for report in reports:
                if any(report[1:]):
                    log.debug("kuiper.passes", "%s", report)
            for old in dropped:
                log.info(
                    "kuiper.model", "the plan for %s is dropped, as %d others are newer; the next "
                    "call with these shapes makes it again", " ".join(map(str, old)),
                    self.PLANS_KEPT,
                )  # fmt: skip
        return plan

    @no_collection()
    @np.errstate(all="ignore")  # arithmetic of weights gives no more warnings than that of a run
    def _compile(
        self, arrays: Sequence[np.ndarray], n_threads: int, keep: tuple[str, ...]
    ) -> Plan | Staged:
        graph, inputs = self._prepared([TensorSpec(a.shape, a.dtype) for a in arrays], keep)
        specs, waiting = infer_known(graph, inputs)
        diagnose(graph, specs)

        def compile(
            graph: Graph, inputs: dict[Operand, TensorSpec], specs: dict[Operand, Any]
        ) -> Plan:
            check_sizes(specs, self.max_memory)
            self.passes = optimize_graph(graph, specs, _evaluate, self._only)
            return make_plan(
                graph, inputs, n_threads, self._weights, self._arenas, self.max_memory, specs
            )

        if waiting:
            from kuiper.planning.stages import Staged

            return Staged(graph, inputs, compile, self._lock)
        return compile(graph, inputs, specs)

    def _prepared(
        self, specs: Sequence[TensorSpec], keep: tuple[str, ...] = ()
    ) -> tuple[Graph, dict[Operand, TensorSpec]]:
        """Return the graph to plan for inputs, and what these are."""
        graph = self._free.copy()
        unfreeze_batch(graph, [spec.shape for spec in specs], lambda *given: infer_known(*given)[0])
        if keep:
            for op in graph.find(type="pnnx.Output"):
                graph.remove_operator(op)
            for number, name in enumerate(keep):
                graph.add_operator("pnnx.Output", graph.unique_name(f"trace_{number}"), [name])
        return graph, dict(zip(graph.inputs, specs, strict=True))

    def _run_into(
        self, plan: Plan | Staged, arrays: Sequence[np.ndarray], out: Any
    ) -> list[np.ndarray]:
        """Run with the results in the caller's arrays."""
        if isinstance(plan, Plan):
            return plan.run(arrays, self._check_out(out, plan.outputs, arrays))
        results = plan.run(arrays)  # only now are their shapes known
        outs = self._check_out(out, results, arrays)
        for array, result in zip(outs, results, strict=True):
            array[...] = result
        return outs

    def _arrays(self, inputs: Sequence[Any]) -> list[np.ndarray]:
        """Check the caller's arrays against the inputs of the graph."""
        operands = self._input_operands
        if len(inputs) == 1 and isinstance(inputs[0], Mapping):
            inputs = self._by_name(inputs[0])
        if len(inputs) != len(operands):
            names = ", ".join(f"'{o.name}'" for o in operands) or "none"
            given = plural(len(inputs), "input")
            raise InputError(f"got {given}, expected {len(operands)}: {names}")
        arrays: list[np.ndarray] = []
        for info, value in zip(self._input_infos, inputs, strict=True):
            array = _as_array(info, value)
            if (
                array.dtype != info.dtype
                and not (len(arrays) in self._undeclared and array.dtype.kind in "biu")
            ) or (info.shape is not None and len(info.shape) != array.ndim):
                raise _input_error(info, array, value)
            if not (array.flags.c_contiguous and array.flags.aligned):
                array = np.require(array, requirements=["C", "A"])
            arrays.append(array)
        return arrays

    def _by_name(self, mapping: Mapping[Any, Any]) -> list[Any]:
        names = [operand.name for operand in self._input_operands]
        aliases = {
            operand.producer.name: operand.name
            for operand in self._input_operands
            if operand.producer is not None
        }
        given: dict[str, Any] = {}
        unknown, twice = [], []
        for key, value in mapping.items():
            name = key if key in names else aliases.get(key)
            if name is None:
                unknown.append(key)
            elif name in given:
                twice.append(name)
            else:
                given[name] = value
        missing = [name for name in names if name not in given]
        faults = {"missing": missing, "unknown": unknown, "given twice": twice}
        if any(faults.values()):
            raise InputError(
                f"got inputs {sorted(map(str, mapping))}, expected {names}"
                + "".join(f"; {word}: {found}" for word, found in faults.items() if found)
            )
        return [given[name] for name in names]

    def _check_out(
        self, out: Any, specs: Sequence[Any], arrays: Sequence[np.ndarray]
    ) -> list[np.ndarray]:
        """Check the caller's arrays for results against what they shall hold."""
        outs = [out] if isinstance(out, np.ndarray) else list(out)
        if len(outs) != len(specs):
            raise InputError(f"got {len(outs)} arrays for results, expected {len(specs)}")
        others = {f"input '{o.name}'": a for o, a in zip(self._input_operands, arrays, strict=True)}
        for number, (array, spec) in enumerate(zip(outs, specs, strict=True)):
            if not isinstance(spec, TensorSpec):
                spec = np.asarray(spec)
            if (
                not isinstance(array, np.ndarray)
                or array.shape != spec.shape
                or array.dtype != spec.dtype
                or not array.flags.c_contiguous
                or not array.flags.writeable
                or not array.flags.aligned
            ):
                got = (
                    f"{array.dtype} {array.shape}" if isinstance(array, np.ndarray) else repr(array)
                )
                raise InputError(
                    f"result {number}: got {got}, expected a writeable C-order array "
                    f"{spec.dtype} {spec.shape}"
                )
            for name, other in others.items():
                # All of them lie without gaps, so their bounds tell.
                if np.may_share_memory(array, other):
                    raise InputError(
                        f"result {number}: its array shares memory with {name}, which is read "
                        "while results are written; pass another array"
                    )
            others[f"result {number}"] = array
        return outs

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as the two files."""
        from io import BytesIO

        param, bin = BytesIO(), BytesIO()
        save_graph(self.graph, param, bin)
        return _reload, (param.getvalue(), bin.getvalue(), self._options)


def _reload(param: bytes, bin: bytes, options: Mapping[Any, Any]) -> Model:
    return load(param, bin, **options)


def _evaluate(graph: Graph) -> list[np.ndarray]:
    """Run a graph without inputs."""
    return make_plan(graph, {}, 1).run([])


def _as_array(info: TensorInfo, value: Any) -> np.ndarray:
    """Return what the caller gave as an array, without a copy wherever it offers its memory."""
    if isinstance(value, np.ndarray):
        return value
    try:
        # numpy knows __array__, the buffer protocol and lists; what has none of these, as an array
        # of another library's, hands over its memory by __dlpack__.
        by_dlpack = hasattr(value, "__dlpack__") and not hasattr(value, "__array__")
        return np.from_dlpack(value) if by_dlpack else np.asarray(value)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        kind = f"{type(value).__module__}.{type(value).__qualname__}"
        raise InputError(
            f"input '{info.name}': a {kind} that numpy cannot read ({error}); pass an array in the "
            "memory of the CPU, for a tensor of PyTorch x.detach().cpu() (.float() for bfloat16)"
        ) from error


def _input_error(info: TensorInfo, array: np.ndarray, value: Any) -> InputError:
    if array.dtype == object:  # what numpy makes of anything else
        return InputError(
            f"input '{info.name}': got a {type(value).__name__}, expected an array of "
            f"{info.dtype}{_shape_text(info.shape)}"
        )
    where = f"input '{info.name}': got {array.dtype} {array.shape}"
    if array.dtype != info.dtype:
        # Tensors of PyTorch and lists have no astype.
        how = f"x.astype(np.{info.dtype})"
        if not hasattr(value, "astype"):
            how = f"np.asarray(x, np.{info.dtype})"
        return InputError(f"{where}, expected {info.dtype}{_shape_text(info.shape)}; pass {how}")
    expected = info.shape or ()
    hint = ""
    if array.ndim == len(expected) - 1 and all(
        n is None or n == m for n, m in zip(expected[1:], array.shape, strict=True)
    ):
        hint = "; x[None] adds a batch axis"
    return InputError(
        f"{where}, expected rank {len(expected)}, like{_shape_text(info.shape)}{hint}"
    )


def _info(operand: Operand) -> TensorInfo:
    dtype = DTYPES[operand.dtype].value if operand.dtype in DTYPES else np.dtype(np.float32)
    return TensorInfo(operand.name, operand.shape, dtype)


def _shape_text(shape: tuple[int | None, ...] | None) -> str:
    if shape is None:
        return ""
    return " (" + ", ".join("?" if n is None else str(n) for n in shape) + ")"


def _advice(type: str) -> str:
    """Return what the error about an unknown operator says about it."""
    from kuiper.ops.core.advice import advice

    said = advice(type)
    return f"; {said}" if said else ""


def _literal(pattern: str) -> str:
    """Escape a text for `Graph.find`."""
    return "".join(f"[{c}]" if c in "*?[" else c for c in pattern)
