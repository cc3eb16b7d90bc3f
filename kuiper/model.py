"""The public class of a loaded model, over its input checker and its plan cache."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from kuiper._support import threads as thread_settings
from kuiper._support.lazy import method_of
from kuiper._support.memory import check_max_memory
from kuiper.errors import InputError
from kuiper.ir import Graph, Operand
from kuiper.ir.view import TensorSpec
from kuiper.passes import PassReport
from kuiper.planning.input_checker import InputChecker, TensorInfo, shape_text, tensor_infos
from kuiper.planning.names import INPUT, OUTPUT, names_at, tensors_at
from kuiper.planning.plan_cache import PlanCache
from kuiper.planning.precision import chosen_precision
from kuiper.planning.verify import verify_operators
from kuiper.pnnx import load_graph, save_graph
from kuiper.pnnx._messages import plural

if TYPE_CHECKING:
    from kuiper.planning.plan import Plan
    from kuiper.planning.profile import Profile

__all__ = ["DEFAULT_PLANS", "Model"]

DEFAULT_PLANS = 8


class Model:
    """A model that can be run; made by :func:`load`.

    Any number of threads may call a model at once.  The first call with new input shapes makes a
    plan for them, which takes milliseconds; the most recently used plans are kept.

    Parameters
    ----------
    graph : Graph
    optimize : bool, default=True
        Whether passes may simplify and fuse.
    threads, max_memory : int, optional
    plans : int, default=8
    precision : str, optional
        As for :func:`load`.

    Attributes
    ----------
    graph : Graph
        As loaded.
    threads : int or None
        Number of threads of a run; None for that of :func:`get_num_threads`.
    precision : str
        ``"float32"`` or ``"bfloat16"``: the element type in which operands are stored.
    """

    def __init__(
        self,
        graph: Graph,
        *,
        optimize: bool = True,
        threads: int | None = None,
        max_memory: int | None = None,
        plans: int = DEFAULT_PLANS,
        precision: str | None = None,
    ) -> None:
        self._options = {
            "optimize": optimize, "threads": threads, "max_memory": max_memory, "plans": plans,
            "precision": precision,
        }  # fmt: skip
        self.precision = chosen_precision(precision)
        self.threads = None if threads is None else thread_settings.check_num_threads(threads)
        max_memory = check_max_memory(max_memory)
        if isinstance(plans, bool) or not hasattr(plans, "__index__") or plans < 1:
            raise InputError(f"plans is {plans!r}, expected an integer of at least 1")
        for op in graph:
            for attribute in op.attributes.values():
                if attribute.missing is not None:
                    raise attribute.missing.with_traceback(None)
        graph.verify()
        verify_operators(graph)
        self.graph = graph
        self._outputs = tensor_infos(graph, "pnnx.Output")
        self._checker = InputChecker(graph)
        self._plans = PlanCache(
            graph, self._checker.undeclared, optimize, max_memory, plans, self.precision
        )

    # -- description -----------------------------------------------------------------------

    @property
    def inputs(self) -> tuple[TensorInfo, ...]:
        """Name, shape and dtype of each input."""
        return self._checker.infos

    @property
    def outputs(self) -> tuple[TensorInfo, ...]:
        """Name, shape and dtype of each output."""
        return self._outputs

    def __repr__(self) -> str:
        def describe(infos: Sequence[TensorInfo]) -> str:
            return ", ".join(f"{i.name}{shape_text(i.shape)}" for i in infos)

        return (
            f"<kuiper.Model: {len(self.graph)} operators, inputs {describe(self.inputs)}, "
            f"outputs {describe(self.outputs)}>"
        )

    _repr_html_ = method_of("kuiper.report.notebook", "model_html")

    def __dir__(self) -> list[str]:
        return [name for name in super().__dir__() if name.startswith("__") or name[0] != "_"]

    @property
    def max_memory(self) -> int:
        """Maximum size of the operands of a run, in bytes."""
        return self._plans.max_memory

    @max_memory.setter
    def max_memory(self, n_bytes: int) -> None:
        self._plans.max_memory = n_bytes

    @property
    def max_plans(self) -> int:
        """Maximum number of plans that are kept, as given to :func:`load`."""
        return self._plans.max_plans

    @property
    def passes(self) -> tuple[PassReport, ...]:
        """The changes of each pass when the last plan was made; empty before the first plan."""
        return self._plans.passes

    def with_graph(self, graph: Graph) -> Model:
        """Return a model of another graph with the settings of this one.

        Parameters
        ----------
        graph : Graph
            Such as a changed copy of :attr:`graph`.

        Raises
        ------
        KuiperError
            If the graph cannot run; see :func:`load`.
        """
        options: dict[str, Any] = {**self._options, "threads": self.threads}
        return Model(graph, **{**options, "max_memory": self.max_memory})

    # -- running ---------------------------------------------------------------------------

    def __call__(self, *inputs: Any, out: Any = None, as_dict: bool = False, **named: Any) -> Any:
        """Run the model.

        Parameters
        ----------
        *inputs : array_like
            One array per input, in order; or one mapping from the names in :attr:`inputs` to
            arrays, which may also have the names of operands and ``pnnx.Input`` operators.  The
            dtype must be that of the input, usually float32; it is not converted.  An input without
            a dtype in the file accepts float32, integers and bools.  C-order arrays are not copied.
        out : numpy.ndarray or sequence of numpy.ndarray, optional
            C-order arrays for the results; by default new arrays.
        as_dict : bool, default=False
            Return the results by the names in :attr:`outputs`.
        **named : array_like
            Inputs by name, after those in order.

        Returns
        -------
        numpy.ndarray, tuple of numpy.ndarray, or dict of str to numpy.ndarray
            A tuple if the model has several outputs, in the order of PyTorch's (nested) results; a
            dict with `as_dict`, where the parts of a list are ``name.0``, ``name.1`` and so on.

        Raises
        ------
        InputError
            If the number of arrays, or the name, dtype or rank of one is wrong.
        ShapeError
            If the graph does not support these shapes; the message names the operator.
        ModelFormatError
            If weights must be read from the file, and the file has changed since it was loaded.
        """
        arrays = self._checker.check(inputs, named)
        plan = self._plans.find(arrays, self._n_threads)
        if out is None:
            results = plan.run(arrays)
        elif not plan.is_segmented:
            results = plan.run(arrays, self._checker.check_outputs(out, plan.outputs, arrays))
        else:  # a SegmentedPlan: the shapes of the results are known after the run
            computed = plan.run(arrays)
            results = self._checker.check_outputs(out, computed, arrays)
            for array, result in zip(results, computed, strict=True):
                array[...] = result
        if as_dict:
            return self._by_name(results)
        return results[0] if len(results) == 1 else tuple(results)

    def _by_name(self, results: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
        """Return results by the names of the outputs."""
        names = [info.name for info in self.outputs]
        if len(names) == 1 != len(results):  # a list, whose length the file does not have to give
            names = [f"{names[0]}.{number}" for number in range(len(results))]
        if len(names) != len(results):
            raise InputError(
                f"as_dict: the outputs {', '.join(names)} hold lists, {len(results)} tensors in "
                "all, which have no names of their own; call the model without as_dict"
            )
        return dict(zip(names, results, strict=True))

    def trace(self, inputs: Any, names: Sequence[str]) -> dict[str, Any]:
        """Return the values of intermediate operands.

        Parameters
        ----------
        inputs : array, sequence of arrays or mapping
            As for a call.
        names : sequence of str
            Names in the ``.param`` file: of operands, or of operators, for all their outputs (all
            inputs of a ``pnnx.Output``); or in :attr:`inputs` and :attr:`outputs`.

        Returns
        -------
        dict of str to numpy.ndarray
            In the order of `names`; a tuple of arrays for an operator with several outputs and for
            an operand that is a list of tensors.

        Raises
        ------
        InputError
            As for a call; if there is no operand or operator of a name.
        """
        arrays = self._checker.check(inputs if isinstance(inputs, tuple | list) else (inputs,))
        wanted: dict[str, list[Operand]] = {}
        for name in names:
            if self.graph.has_operand(name):
                wanted[name] = [self.graph.operand(name)]
            else:
                try:
                    op = self.graph.operator(name)
                except KeyError as error:
                    if operand := self._at_end(name):
                        wanted[name] = [operand]
                        continue
                    raise InputError(f"nothing called '{name}' to trace: {error.args[0]}") from None
                wanted[name] = list(op.outputs or op.inputs)
        if not wanted:
            return {}
        keep = tuple(dict.fromkeys(o.name for group in wanted.values() for o in group))
        plan = self._plans.find(arrays, self._n_threads, keep)
        found = dict(zip(keep, plan.run_grouped(arrays), strict=True))
        traced = {}
        for name, group in wanted.items():
            arrays = [array for operand in group for array in found[operand.name]]
            traced[name] = arrays[0] if len(arrays) == 1 else tuple(arrays)
        return traced

    def _at_end(self, name: str) -> Operand | None:
        """Return the input or output of a name."""
        for end in (INPUT, OUTPUT):
            operands = [o for _, tensors in tensors_at(self.graph, end) for o in tensors]
            for known, operand in zip(names_at(self.graph, end), operands, strict=True):
                if known == name:
                    return operand
        return None

    def profile(self, *inputs: Any, runs: int = 20, **named: Any) -> Profile:
        """Measure the time of each step of a run.

        Parameters
        ----------
        *inputs, **named : array_like
            As for a call.
        runs : int, default=20
            Number of runs to measure, after three warm-up runs; the profile has their medians.

        Returns
        -------
        Profile
            Prints as a table.
        """
        from kuiper.planning.profile import Profile

        arrays = self._checker.check(inputs, named)
        plan = self._plans.find_finalized(arrays, self._n_threads)
        for _ in range(3):
            plan.run(arrays)
        timed = [plan.profile(arrays) for _ in range(max(1, runs))]
        seconds = np.median([seconds for _, seconds in timed], axis=0)
        return Profile(plan, timed[0][0], seconds, {op.name: op.type for op in self.graph})

    def plan(self, *shapes: Sequence[int]) -> Plan:
        """Return the plan for inputs of the given shapes; make it if there is none.

        All preparation for runs of these shapes is done here: weights are packed, large filters
        transformed, and all weights moved to large pages.  Without this call, the latter two are
        spread over the runs: the first runs read filters from the file and take up to 3 times as
        long; runs until the last page is moved take up to 10 % longer.

        Parameters
        ----------
        *shapes : tuple of int
            One per input.

        Returns
        -------
        kuiper.planning.plan.Plan
            The plan of the first segment, if the graph has data-dependent operators.

        Raises
        ------
        InputError
            If `shapes` is not one shape per input.
        ShapeError
            If the graph does not support these shapes.
        ModelFormatError
            If weights must be read from the file, and the file has changed since it was loaded.
        """
        arrays = [
            np.broadcast_to(np.zeros((), spec.dtype), spec.shape) for spec in self._specs(shapes)
        ]
        plan = self._plans.find_finalized(arrays, self._n_threads)
        return plan.first_plan

    def planned_graph(self, *shapes: Sequence[int]) -> Graph:
        """Return the graph that runs for inputs of the given shapes: after the passes.

        Parameters
        ----------
        *shapes : tuple of int
            One per input.

        Returns
        -------
        kuiper.ir.Graph
            Annotated with the shapes of all operands.  A graph with data-dependent operators is
            returned as loaded, with the shapes of the operands of the first segment.

        Raises
        ------
        InputError
            If `shapes` is not one shape per input.
        ShapeError
            If the graph does not support these shapes.
        """
        return self._plans.planned_graph(self._specs(shapes))

    def _specs(self, shapes: Sequence[Any]) -> list[TensorSpec]:
        """Return the specs of inputs of these shapes; raise InputError if they are no shapes."""
        infos = self.inputs
        expected = ", ".join(f"'{info.name}'{shape_text(info.shape)}" for info in infos)
        if shapes and all(hasattr(shape, "__index__") for shape in shapes):
            numbers = ", ".join(map(str, shapes))
            raise InputError(
                f"got the numbers {numbers}, expected one tuple per input, such as "
                f"({numbers},): {expected}"
            )
        if len(shapes) != len(infos):
            raise InputError(
                f"got {plural(len(shapes), 'shape')}, expected one per input: {expected}"
            )
        specs = []
        for info, shape in zip(infos, shapes, strict=True):
            try:
                extents = tuple(operator.index(extent) for extent in shape)
            except TypeError:
                extents = (-1,)
            if min(extents, default=0) < 0:
                raise InputError(
                    f"input '{info.name}': got {shape!r}, expected a tuple of integers, "
                    f"like{shape_text(info.shape) or ' (1, 3)'}"
                )
            specs.append(TensorSpec(extents, info.dtype))
        return specs

    def with_threads(self, threads: int | None) -> Model:
        """Return the same model with another number of threads.

        Both share the graph, the packed weights, the plans and the memory of runs.

        Parameters
        ----------
        threads : int or None
            Number of threads of a run; None for that of :func:`get_num_threads`.

        Returns
        -------
        Model

        Raises
        ------
        InputError
            If `threads` is not an integer from 1 to 256.
        """
        threads = None if threads is None else thread_settings.check_num_threads(threads)
        other: Model = object.__new__(type(self))
        other.__dict__.update(self.__dict__, threads=threads)
        other._options = {**self._options, "threads": threads}
        return other

    @property
    def _n_threads(self) -> int:
        return self.threads or thread_settings.get_num_threads()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as the two files."""
        from io import BytesIO

        param, bin = BytesIO(), BytesIO()
        save_graph(self.graph, param, bin)
        return _reload, (param.getvalue(), bin.getvalue(), self._options)


def _reload(param: bytes, bin: bytes, options: Mapping[Any, Any]) -> Model:
    return Model(load_graph(param, bin), **options)
