"""A model: the face over its input checks and its plans."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from kuiper._support import threads as thread_settings
from kuiper._support.memory import check_max_memory
from kuiper.errors import InputError
from kuiper.ir import Graph, Operand
from kuiper.ir.view import TensorSpec
from kuiper.passes import PassReport
from kuiper.planning.infer import leaf_operands
from kuiper.planning.input_checker import InputChecker, TensorInfo, shape_text, tensor_info
from kuiper.planning.plan import Plan
from kuiper.planning.plan_cache import PlanCache
from kuiper.planning.verify import verify_operators
from kuiper.pnnx import load_graph, save_graph

if TYPE_CHECKING:
    from kuiper.planning.profile import Profile

__all__ = ["Model"]


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
        max_memory = check_max_memory(max_memory)
        graph.verify()
        verify_operators(graph)
        self.graph = graph
        self._output_operands = [
            leaf for operand in graph.outputs for leaf in leaf_operands(operand)
        ]
        self._checker = InputChecker(graph)
        self._plans = PlanCache(
            graph, self._checker.undeclared, optimize, max_memory, self.PLANS_KEPT
        )

    # -- looking ---------------------------------------------------------------------------

    @property
    def inputs(self) -> tuple[TensorInfo, ...]:
        """What the model takes."""
        return self._checker.infos

    @property
    def outputs(self) -> tuple[TensorInfo, ...]:
        """What the model returns."""
        return tuple(tensor_info(operand) for operand in self._output_operands)

    def __repr__(self) -> str:
        def describe(infos: Sequence[TensorInfo]) -> str:
            return ", ".join(f"{i.name}{shape_text(i.shape)}" for i in infos)

        return (
            f"<kuiper.Model: {len(self.graph)} operators, inputs {describe(self.inputs)}, "
            f"outputs {describe(self.outputs)}>"
        )

    @property
    def max_memory(self) -> int:
        """How many bytes a run may take for its operands."""
        return self._plans.max_memory

    @max_memory.setter
    def max_memory(self, n_bytes: int) -> None:
        self._plans.max_memory = n_bytes

    @property
    def passes(self) -> tuple[PassReport, ...]:
        """What each pass did when the last plan was made; empty before the first."""
        return self._plans.passes

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
        arrays = self._checker.check(inputs)
        plan = self._plans.find(arrays, self._n_threads)
        if out is None:
            results = plan.run(arrays)
        elif isinstance(plan, Plan):
            results = plan.run(arrays, self._checker.check_outputs(out, plan.outputs, arrays))
        else:  # the shapes of results are known only after the run
            computed = plan.run(arrays)
            results = self._checker.check_outputs(out, computed, arrays)
            for array, result in zip(results, computed, strict=True):
                array[...] = result
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
        arrays = self._checker.check(inputs if isinstance(inputs, tuple | list) else (inputs,))
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
        plan = self._plans.find(arrays, self._n_threads, keep)
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

        arrays = self._checker.check(inputs)
        plan = self._plans.find_finalized(arrays, self._n_threads)
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
            np.broadcast_to(np.zeros((), info.dtype), shape)
            for info, shape in zip(self.inputs, shapes, strict=True)
        ]
        plan = self._plans.find_finalized(arrays, self._n_threads)
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
        infos = zip(self.inputs, shapes, strict=True)
        return self._plans.planned_graph([TensorSpec(shape, info.dtype) for info, shape in infos])

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
