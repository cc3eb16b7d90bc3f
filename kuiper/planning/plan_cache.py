"""The plan cache of a model."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from kuiper._kernels.micro import dispatch
from kuiper._support import log
from kuiper._support.gc_pause import no_collection
from kuiper._support.threads import ForkLock
from kuiper.errors import ShapeError
from kuiper.ir import Graph, Operand
from kuiper.ir.dtypes import from_numpy
from kuiper.ir.view import TensorSpec
from kuiper.passes import (
    NEEDED,
    PassReport,
    batch_start,
    diagnose,
    optimize_graph,
    restore_exported,
    unfreeze_batch,
)
from kuiper.planning.infer import check_sizes, infer_known, infer_specs
from kuiper.planning.input_checker import shape_hint, tensor_infos

if TYPE_CHECKING:
    from kuiper.planning.kept_graph import KeptGraphs, Optimize
    from kuiper.planning.plan import Plan
    from kuiper.planning.segments import SegmentedPlan

__all__ = ["PlanCache"]


class PlanCache:
    """The most recently used plans of one graph.

    Any number of threads may call :meth:`find`.  One thread at a time makes a plan; threads whose
    plan exists do not wait for it.

    Parameters
    ----------
    graph : Graph
        As loaded; it is copied.
    undeclared : sequence of int
        Numbers of the inputs without a dtype in the graph.
    optimize : bool
        Whether passes may simplify and fuse.
    max_memory : int
        Maximum size of the operands of a run, in bytes.
    max_plans : int
        Maximum number of plans in the cache.
    precision : str, default="float32"
        ``"float32"`` or ``"bfloat16"``.

    Attributes
    ----------
    passes : tuple of PassReport
        The changes of each pass when the last plan was made.
    weights : WeightCache
    arenas : ArenaPool
    """

    def __init__(
        self,
        graph: Graph,
        undeclared: Sequence[int],
        optimize: bool,
        max_memory: int,
        max_plans: int,
        precision: str = "float32",
    ) -> None:
        # Imported with the first model: a program that only imports kuiper does not wait for them.
        from kuiper._runtime.executor import ArenaPool
        from kuiper._runtime.weights import WeightCache

        self.passes: tuple[PassReport, ...] = ()
        self.max_memory = max_memory
        self.max_plans = max_plans
        self.precision = precision
        self._undeclared = undeclared
        self._only = None if optimize else NEEDED
        self._graph = graph.copy()
        restore_exported(self._graph)
        self.weights = WeightCache(
            sum(attribute.nbytes for op in graph for attribute in op.attributes.values())
        )
        self.arenas = ArenaPool()
        self._plans: OrderedDict[tuple[Any, ...], Plan | SegmentedPlan] = OrderedDict()
        self._latest: Plan | SegmentedPlan | None = None
        self._kept = _KeptWork(self._optimize)
        self._lock = ForkLock()

    def __len__(self) -> int:
        return len(self._plans)

    def find(
        self, arrays: Sequence[np.ndarray], n_threads: int, keep: tuple[str, ...] = ()
    ) -> Plan | SegmentedPlan:
        """Return the plan for the shapes and dtypes of some inputs; make it if there is none.

        Parameters
        ----------
        arrays : sequence of numpy.ndarray
        n_threads : int
        keep : tuple of str
            Names of operands to return instead of the outputs of the graph.
        """
        open_dtypes = tuple([arrays[number].dtype for number in self._undeclared])
        key = (
            tuple([a.shape for a in arrays]), n_threads, dispatch.active_name(), keep, open_dtypes
        )  # fmt: skip
        # Reading a dictionary is safe while another thread changes it, so a hit needs no lock.
        plan = self._plans.get(key)
        runs_again = plan is not None
        if plan is None or plan is not self._latest:
            plan = self._look_up(key, arrays)
        # Do not block: another thread may hold the lock for as long as it makes a plan.
        finalizer = self.weights.finalizer
        if runs_again and finalizer.is_pending and self._lock.acquire(blocking=False):
            try:
                finalizer.finalize(n_threads)
            finally:
                self._lock.release()
        return plan

    def find_finalized(self, arrays: Sequence[np.ndarray], n_threads: int) -> Plan | SegmentedPlan:
        """Return the plan for some inputs, and complete the deferred packing of its weights."""
        plan = self.find(arrays, n_threads)
        with self._lock:
            self.weights.finalizer.finalize(n_threads, wholly=True)
        return plan

    def planned_graph(self, specs: Sequence[TensorSpec]) -> Graph:
        """Return the graph after the passes, annotated with the shapes for some inputs."""
        graph, _ = self._unfrozen(specs)
        inputs = dict(zip(graph.inputs, specs, strict=True))
        known, waiting = infer_known(graph, inputs)
        if waiting:
            for operand in graph.operands:
                operand.shape = operand.dtype = None
        else:
            self.passes = self._optimize(graph, known)
            known = infer_specs(graph, inputs)
        for operand, spec in known.items():
            if isinstance(spec, TensorSpec):
                operand.shape, operand.dtype = spec.shape, from_numpy(spec.dtype).name
        return graph

    def _look_up(self, key: tuple[Any, ...], arrays: Sequence[np.ndarray]) -> Plan | SegmentedPlan:
        """Find or make a plan, and mark it as the most recently used."""
        _, n_threads, _, keep, _ = key
        dropped: list[tuple[Any, ...]] = []
        seconds: float | None = None
        with self._lock:
            plan = self._plans.get(key)
            if plan is None:
                start = time.perf_counter()
                try:
                    plan = self._plans[key] = self._compile(arrays, n_threads, keep)
                except ShapeError as error:
                    infos = tensor_infos(self._graph, "pnnx.Input")
                    hint = shape_hint(infos, [a.shape for a in arrays])
                    if not hint:
                        raise
                    if "\n" in str(error):  # an expression with a caret below it
                        hint = hint.replace("; ", "\n", 1)
                    raise ShapeError(f"{error}{hint}") from error
                while len(self._plans) > self.max_plans:
                    dropped.append(self._plans.popitem(last=False)[0][0])
                seconds, reports = time.perf_counter() - start, self.passes
            else:
                self._plans.move_to_end(key)
            self._latest = plan
        if seconds is not None:  # log without the lock, because a handler may call the model
            self._log(key, plan, seconds, reports, dropped)
        return plan

    def _log(
        self,
        key: tuple[Any, ...],
        plan: Plan | SegmentedPlan,
        seconds: float,
        reports: Sequence[PassReport],
        dropped: Sequence[tuple[Any, ...]],
    ) -> None:
        shapes, n_threads, isa, _, _ = key
        if plan.is_segmented:
            what = "in segments, as shapes depend on values"
        else:
            what = f"{len(plan.steps)} steps, {plan.arena_bytes} bytes of memory"
        log.debug(
            "kuiper.model", "planned for %s, %d threads, %s: %s; it took %.1f ms",
            " ".join(map(str, shapes)), n_threads, isa, what, seconds * 1e3,
        )  # fmt: skip
        for report in reports:
            if any(report[1:]):
                log.debug("kuiper.passes", "%s", report)
        for old in dropped:
            log.info(
                "kuiper.model", "the plan for %s is dropped, as %d others are newer; the next "
                "call with these shapes makes it again; load(..., plans=) keeps more of them",
                " ".join(map(str, old)), self.max_plans,
            )  # fmt: skip

    @no_collection()
    @np.errstate(all="ignore")  # folding constants warns no more than a run does
    def _compile(
        self, arrays: Sequence[np.ndarray], n_threads: int, keep: tuple[str, ...]
    ) -> Plan | SegmentedPlan:
        from kuiper.planning.planner import make_plan

        specs = [TensorSpec(a.shape, a.dtype) for a in arrays]
        graph, inputs, kept = self._prepared(specs, keep)
        known = None if kept is None else kept.infer(inputs)
        waiting: Any = None
        if known is None:
            known, waiting = infer_known(graph, inputs)
        diagnose(graph, known)

        def compile(
            graph: Graph,
            inputs: dict[Operand, TensorSpec],
            specs: dict[Operand, Any],
            kept: KeptGraphs | None = None,
        ) -> Plan:
            check_sizes(specs, self.max_memory)
            attributes = None
            if kept is None:
                self.passes = self._optimize(graph, specs)
            else:
                (graph, specs, attributes), self.passes = kept.find(specs)
                inputs = {operand: specs[operand] for operand in graph.inputs}
            return make_plan(
                graph, inputs, n_threads, self.weights, self.arenas, self.max_memory, specs,
                attributes, self.precision,
            )  # fmt: skip

        if waiting:
            from kuiper.planning.segments import SegmentedPlan

            return SegmentedPlan(graph, inputs, compile, self._lock)
        return compile(graph, inputs, known, kept)

    def _optimize(self, graph: Graph, specs: dict[Operand, Any]) -> tuple[PassReport, ...]:
        return optimize_graph(graph, specs, _evaluate, self._only)

    def _prepared(
        self, specs: Sequence[TensorSpec], keep: tuple[str, ...]
    ) -> tuple[Graph, dict[Operand, TensorSpec], KeptGraphs | None]:
        """Return the graph before the passes, the specs of its inputs, and what is kept of it.

        The graph is for the passes to change if nothing is kept.
        """
        from kuiper.expression.functions import CUSTOM  # not needed before the first plan

        if CUSTOM:  # users add and replace functions at any time, which changes what passes may do
            graph, _ = self._unfrozen(specs, keep)
            return graph, dict(zip(graph.inputs, specs, strict=True)), None
        start, extent = batch_start(self._graph, [spec.shape for spec in specs])
        settings = (keep, dispatch.active_name())
        kept = self._kept.find(start, extent, settings)
        if kept is None:
            graph, written = self._unfrozen(specs, keep)
            kept = self._kept.keep(graph, written, start, extent, settings)
        else:
            graph = kept.prepared
        return graph, dict(zip(graph.inputs, specs, strict=True)), kept

    def _unfrozen(
        self, specs: Sequence[TensorSpec], keep: tuple[str, ...] = ()
    ) -> tuple[Graph, str]:
        """Return a copy of the graph for these inputs, and what the changes to it depend on."""
        graph = self._graph.copy()
        shapes = [spec.shape for spec in specs]
        written = unfreeze_batch(graph, shapes, lambda *given: infer_known(*given)[0])
        if keep:
            for op in graph.find(type="pnnx.Output"):
                graph.remove_operator(op)
            for number, name in enumerate(keep):
                graph.add_operator("pnnx.Output", graph.unique_name(f"trace_{number}"), [name])
        return graph, written


class _KeptWork:
    """What earlier plans have done and later ones need not, by what it depends on.

    The first plan keeps nothing, because most models have one plan.

    Parameters
    ----------
    optimize : callable
        ``optimize(graph, specs)`` runs the passes in place and returns their reports.
    """

    MAX_KEPT = 4
    MAX_STARTS = 64

    def __init__(self, optimize: Optimize) -> None:
        self._optimize = optimize
        # What `unfreeze_batch` has written, by the start of its search.
        self._written: dict[Hashable, str] = {None: "nothing"}
        self._kept: OrderedDict[Hashable, KeptGraphs | None] = OrderedDict()

    def find(self, start: Hashable, extent: int, settings: Hashable) -> KeptGraphs | None:
        """Return what is kept for a batch that :func:`batch_start` has found, if it is."""
        written = self._written.get(start)
        if written is None:
            return None
        key = _key(written, start, extent, settings)
        kept = self._kept.get(key)
        if kept is not None:
            self._kept.move_to_end(key)
        return kept

    def keep(
        self, graph: Graph, written: str, start: Hashable, extent: int, settings: Hashable
    ) -> KeptGraphs | None:
        """Keep a graph before the passes, from the second one on that is the same."""
        if len(self._written) < self.MAX_STARTS:
            self._written[start] = written
        key = _key(written, start, extent, settings)
        kept = None
        if key in self._kept:
            from kuiper.planning.kept_graph import KeptGraphs

            kept = KeptGraphs(graph, self._optimize)
        self._kept[key] = kept
        self._kept.move_to_end(key)
        if len(self._kept) > self.MAX_KEPT:
            self._kept.popitem(last=False)
        return kept


def _key(written: str, start: Hashable, extent: int, settings: Hashable) -> Hashable:
    """Return a key that is equal for equal graphs before the passes."""
    on = {"nothing": None, "axes": start, "extent": (start, extent)}[written]
    return on, settings


def _evaluate(graph: Graph) -> list[np.ndarray]:
    """Run a graph without inputs."""
    from kuiper.planning.planner import make_plan

    return make_plan(graph, {}, 1).run([])
