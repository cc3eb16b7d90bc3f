"""ONNX models become graphs: inputs, nodes in order, functions and branches, outputs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from kuiper._support import log
from kuiper.errors import (
    GraphError,
    InputError,
    KuiperError,
    ModelFormatError,
    UnsupportedOperatorError,
    unforeseen,
)
from kuiper.ir import Graph
from kuiper.ir.dtypes import DTYPES
from kuiper.ir.view import TensorSpec
from kuiper.onnx import registry
from kuiper.onnx.builder import Builder
from kuiper.onnx.restore import rewrite
from kuiper.onnx.tensors import ELEMENTS, TensorReader, element_dtype
from kuiper.onnx.values import Known, Ref, Undecided
from kuiper.onnx.wire import (
    AttributeMessage,
    FunctionMessage,
    GraphMessage,
    ModelMessage,
    NodeMessage,
    ValueInfo,
)
from kuiper.planning.names import INPUT, OUTPUT, write_names

__all__ = ["Branch", "translated"]

MAX_OPERATORS = 1_000_000
MIN_OPERATORS = 10_000  # what any file may write out in half a second: a loop of 1000 iterations
MAX_GROWTH = 50  # operators per node of the file; few nodes become more than ten
MAX_DEPTH = 32  # of functions and branches inside each other
FOLD_BYTES = 1 << 20  # a larger result is folded only if it is not larger than the inputs
# Trial extents: two that networks take, multiples of their strides; a batch is small.  Tables of
# positions may be shorter: what is undecided then is tried again.
TRIALS = ((224, 448), (8, 16))
BATCHES = (2, 3)
HALF = 10  # the element type float16


def translated(
    model: ModelMessage, tensors: TensorReader, name: str, shapes: Mapping[str, Sequence[Any]]
) -> Graph:
    """Return the graph of a model; the arguments are those of :class:`Translator`."""
    translator = Translator(model, tensors, name, shapes)
    try:
        return translator.translate()
    except Undecided as error:
        if translator.is_open:
            try:
                return Translator(model, tensors, name, shapes, TRIALS[1]).translate()
            except KuiperError:
                pass
        raise error from None


class Branch:
    """A graph inside a node, with the values that it sees."""

    def __init__(self, translator: Translator, graph: GraphMessage, scope: Scope) -> None:
        self.graph = graph
        self._translator = translator
        self._scope = scope

    def run(self, inputs: Sequence[Any] = ()) -> list[Any]:
        """Translate its nodes; return its outputs."""
        t, graph = self._translator, self.graph
        scope = Scope(self._scope, self._scope.opsets)
        if len(inputs) > len(graph.inputs):
            raise t.builder.error(
                f"a graph has {len(graph.inputs)} inputs, but {len(inputs)} values are given"
            )
        for info, value in zip(graph.inputs, inputs, strict=False):
            scope.values[info.name] = value
        t.nodes(graph, scope)
        return [scope.get(info.name, t.builder) for info in graph.outputs]


class Scope:
    """The values that nodes see by name: those of a graph and of the graphs around it."""

    def __init__(self, outer: Scope | None, opsets: Mapping[str, int]) -> None:
        self.outer, self.opsets = outer, opsets
        self.values: dict[str, Any] = {}
        self.arguments: Mapping[str, AttributeMessage] = outer.arguments if outer else {}
        self.depth: int = outer.depth + 1 if outer else 0

    def get(self, name: str, builder: Builder) -> Any:
        """Return a value; None for an input that is left out."""
        if not name:
            return None
        scope: Scope | None = self
        while scope is not None:
            if name in scope.values:
                return scope.values[name]
            scope = scope.outer
        raise GraphError(
            f"{builder.where}: '{name}' is neither an input of the graph nor a result of an "
            "earlier node"
        )


class Translator:
    """Makes a graph of a model.

    Parameters
    ----------
    model : ModelMessage
    tensors : TensorReader
    name : str
        Of the file, in messages.
    shapes : mapping of str to sequence
        Shapes of inputs that replace those of the file; None or a name leaves an extent open.
    trials : tuple of int
        Two extents by which open ones are tried.
    """

    def __init__(
        self,
        model: ModelMessage,
        tensors: TensorReader,
        name: str,
        shapes: Mapping[str, Sequence[Any]],
        trials: tuple[int, int] = TRIALS[0],
    ) -> None:
        if model.graph is None or not model.graph.outputs:
            raise ModelFormatError(f"{name}: the file has no graph with outputs")
        self.model, self.tensors, self.name, self.shapes = model, tensors, name, shapes
        self.main: GraphMessage = model.graph
        self.functions: dict[tuple[str, str], FunctionMessage] = {
            (domain_of(f.domain), f.name): f for f in model.functions
        }
        self.given = {tensor.name for tensor in self.main.tensors}
        self.inputs = [info for info in self.main.inputs if info.name not in self.given]
        self.dims = {info.name: self._dims(info) for info in self.inputs}
        self.trials = trials
        self.is_open = any(isinstance(n, str) for dims in self.dims.values() for n in dims)
        self.limit = MIN_OPERATORS + min(MAX_OPERATORS, MAX_GROWTH * len(self.main.nodes))
        self.builder = Builder(Graph(), 2 if self.is_open else 1, self.limit)
        self.infos = {info.name: info for info in (*self.main.values, *self.main.outputs)}
        self.budget = self.limit  # of nodes: functions may call functions that call functions

    # -- the ends -------------------------------------------------------------------------------

    def _dims(self, info: ValueInfo) -> list[Any]:
        """Return the extents of an input: ints, or names of those that are open."""
        tensor = info.type.tensor if info.type else None
        if tensor is None:
            raise UnsupportedOperatorError(
                f"{self.name}: input '{info.name}' is a sequence, a map or an optional value, "
                "expected a tensor"
            )
        found: list[Any] | None = None
        if tensor.shape is not None:
            dims = tensor.shape.dims
            # Old exporters write 0 for an open batch; elsewhere it is an extent.
            least = [int(i == 0 and len(dims) > 1) for i in range(len(dims))]
            found = [
                d.value if d.value is not None and d.value >= low else d.name or f"{info.name}.{i}"
                for i, (d, low) in enumerate(zip(dims, least, strict=True))
            ]
        asked = self.shapes.get(info.name)
        if asked is None:
            if found is None:
                raise ModelFormatError(
                    f"{self.name}: input '{info.name}' has an unknown rank; pass "
                    f"shapes={{'{info.name}': (...)}}"
                )
            return found
        return self._asked(info.name, asked, found)

    def _asked(self, name: str, asked: Sequence[Any], found: list[Any] | None) -> list[Any]:
        if isinstance(asked, str) or not hasattr(asked, "__iter__"):
            raise InputError(f"shapes['{name}'] is {asked!r}, expected a tuple of extents")
        result: list[Any] = []
        for i, n in enumerate(asked):
            if n is None or n == -1:
                result.append(f"{name}.{i}")
            elif isinstance(n, str) or (isinstance(n, int | np.integer) and n >= 0):
                result.append(n if isinstance(n, str) else int(n))
            else:
                raise InputError(
                    f"shapes['{name}'] has the extent {n!r}, expected a number, a name or None"
                )
        fits = found is None or (
            len(found) == len(result)
            and all(
                isinstance(a, str) or a == b or i == 0
                for i, (a, b) in enumerate(zip(found, result, strict=True))
            )
        )
        if not fits:
            raise InputError(
                f"shapes['{name}'] is {tuple(asked)}, but the file has {tuple(found or ())}"
            )
        return result

    def _add_inputs(self, scope: Scope) -> None:
        unknown = [name for name in self.shapes if name not in self.dims]
        if unknown:
            raise InputError(
                f"shapes has '{unknown[0]}', but the inputs are called "
                f"{', '.join(self.dims) or '(none)'}"
            )
        graph, b = self.builder.graph, self.builder
        trials: dict[str, tuple[int, ...]] = {}
        for number, info in enumerate(self.inputs):
            assert info.type is not None
            assert info.type.tensor is not None
            element = info.type.tensor.element
            where = f"{self.name}: input '{info.name}'"
            dtype = element_dtype(element, where)
            kind = ELEMENTS[element]
            if kind not in DTYPES:
                raise UnsupportedOperatorError(f"{where}: has the element type {kind}")
            dims = self.dims[info.name]
            for axis, n in enumerate(dims):
                if isinstance(n, str):
                    trials.setdefault(n, self.trials if axis else BATCHES)
            shape = tuple(None if isinstance(n, str) else n for n in dims)
            b.enter(info.name, where, 0, (True,))
            operand = graph.add_operand(b._unique(), shape or None, kind)
            graph.add_operator(INPUT, graph.unique_name(f"input_{number}"), [], [operand])
            probes = []
            for trial, specs in enumerate(b.specs):
                concrete = tuple(trials[n][trial] if isinstance(n, str) else n for n in dims)
                specs[operand] = TensorSpec(concrete, DTYPES[kind].value)
                probes.append(concrete)
            ref: Any = Ref(operand, DTYPES[kind].value, shape, tuple(probes))
            scope.values[info.name] = b.cast(ref, dtype)

    def _add_outputs(self, scope: Scope) -> None:
        graph, b = self.builder.graph, self.builder
        names = []
        for number, info in enumerate(self.main.outputs):
            b.enter(info.name, f"{self.name}: output '{info.name}'", 0, (True,))
            value = scope.get(info.name, b)
            if not isinstance(value, Known | Ref):
                raise UnsupportedOperatorError(
                    f"{b.where}: is a sequence or an optional value, expected a tensor"
                )
            element = info.type.tensor.element if info.type and info.type.tensor else 0
            if element == HALF and value.dtype == np.float32:
                value = b.emit("Tensor.to", value, dtype="torch.half", copy=False)
            graph.add_operator(OUTPUT, graph.unique_name(f"output_{number}"), [b.operand(value)])
            names.append(info.name)
        write_names(graph, INPUT, unique([info.name for info in self.inputs]))
        write_names(graph, OUTPUT, unique(names))

    # -- nodes ----------------------------------------------------------------------------------

    def translate(self) -> Graph:
        """Return the graph.

        Raises
        ------
        UnsupportedOperatorError
            If it has operators without a translation; all are listed.
        """
        opsets = {domain_of(o.domain): o.version for o in self.model.opsets}
        opsets.setdefault(registry.ONNX, 1)
        scope = Scope(None, opsets)
        self._check_types(opsets)
        self._add_inputs(scope)
        self.nodes(self.main, scope)
        self._add_outputs(scope)
        rewrite(self.builder.graph)
        log.debug(
            "kuiper.onnx", "%s: %d nodes, %d operators",
            self.name, len(self.main.nodes), len(self.builder.graph),
        )  # fmt: skip
        return self.builder.graph

    def nodes(self, graph: GraphMessage, scope: Scope) -> None:
        """Translate the tensors and the nodes of a graph."""
        if graph.sparse:
            raise UnsupportedOperatorError(f"{self.name}: has sparse tensors")
        needed = needed_names(graph.nodes, [info.name for info in graph.outputs])
        for tensor in graph.tensors:
            if tensor.name in needed:
                scope.values[tensor.name] = self.tensors.known(tensor)
        self._run(graph.nodes, scope, needed)

    def _run(self, nodes: Sequence[NodeMessage], scope: Scope, needed: set[str]) -> None:
        if scope.depth > MAX_DEPTH:
            raise GraphError(f"{self.builder.where}: graphs are nested more than {MAX_DEPTH} deep")
        # The body of a loop may be empty, or have nothing but nodes that are not needed.
        self.budget -= 1 + len(nodes)
        if self.budget < 0:
            raise GraphError(
                f"{self.builder.where}: functions and loops write out more than {self.limit} nodes"
            )
        for number, node in enumerate(nodes):
            if any(name in needed for name in node.outputs):
                self._node(node, number, scope, needed)

    def _node(self, node: NodeMessage, number: int, scope: Scope, needed: set[str]) -> None:
        b = self.builder
        title = node.name or (node.outputs[0] if node.outputs else str(number))
        domain = domain_of(node.domain)
        where = f"{self.name}: node '{title}' ({node.type})"
        wanted = tuple(name in needed for name in node.outputs)
        name = node.outputs[0] if node.outputs else title
        b.enter(name, where, scope.opsets.get(domain, 1), wanted)
        inputs = [scope.get(name, b) for name in node.inputs]
        function = self.functions.get((domain, node.type))
        mapping = registry.find(domain, node.type, scope.opsets.get(domain, 1))
        try:
            if mapping is None and function is not None:
                results = self._call(function, node, inputs, scope)
            else:
                results = list(self._translated(node, mapping, inputs, scope))
        except Undecided as error:
            text = str(error)
            raise Undecided(text if text.startswith(self.name) else f"{where}: {text}") from None
        except KuiperError:
            raise
        except RecursionError:
            raise GraphError(f"{where}: is nested too deeply") from None
        except Exception as error:
            raise unforeseen(where, error) from error
        if len(results) < max((i + 1 for i, w in enumerate(wanted) if w), default=0):
            raise b.error(f"has {len(node.outputs)} outputs, expected {len(results)}")
        for name, value in zip(node.outputs, results, strict=False):
            if name:
                scope.values[name] = self._annotated(name, value)

    def _annotated(self, name: str, value: Any) -> Any:
        """Complete what is unknown of a tensor by what the file says."""
        if isinstance(value, Ref) and value.shape is None and name in self.infos:
            info = self.infos[name].type
            tensor = info.tensor if info else None
            if tensor is not None and tensor.shape is not None:
                shape = tuple(d.value if (d.value or 0) > 0 else None for d in tensor.shape.dims)
                dtype = element_dtype(tensor.element, self.builder.where)
                return self.builder.declared(value, dtype, shape)
        return value

    def _translated(
        self, node: NodeMessage, mapping: Any, inputs: list[Any], scope: Scope
    ) -> Sequence[Any]:
        b = self.builder
        if mapping is None:
            raise UnsupportedOperatorError(f"{b.where}: is not supported")
        arguments = self._arguments(node.attributes, scope)
        strange = [key for key in arguments if key not in mapping.names]
        if strange:
            raise b.error(f"has the attribute '{strange[0]}', which kuiper does not know")
        for key, kind in mapping.kinds.items():
            if key in arguments and not isinstance(arguments[key], kind):
                raise b.error(f"'{key}' is {arguments[key]!r:.80}, expected {kind.__name__}")
        while inputs and inputs[-1] is None:
            inputs.pop()
        if 0 <= mapping.inputs < len(inputs):
            raise b.error(f"has {len(inputs)} inputs, expected up to {mapping.inputs}")
        for number, key in enumerate(mapping.required):
            if key not in arguments and (number >= len(inputs) or inputs[number] is None):
                raise b.error(f"lacks the input '{key}'")
        for key in mapping.keywords:
            if key not in arguments:
                raise b.error(f"lacks the attribute '{key}'")
        folded = self._folded(node, inputs, arguments)
        if folded is None:
            result = mapping.function(b, *inputs, **arguments)
        else:
            result = folded
        return result if isinstance(result, tuple | list) else (result,)

    def _folded(self, node: NodeMessage, inputs: list[Any], arguments: Any) -> Any:
        """Return the outputs that numpy computes of known inputs, None if it does not."""
        function = registry.FOLDS.get(node.type)
        if function is None or not all(isinstance(v, Known) or v is None for v in inputs):
            return None
        if domain_of(node.domain) != registry.ONNX or not inputs:
            return None
        return function(self.builder, *inputs, **arguments)

    def _arguments(self, attributes: Iterable[AttributeMessage], scope: Scope) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for attribute in attributes:
            name = attribute.name
            if attribute.reference:
                given = scope.arguments.get(attribute.reference)
                if given is None:
                    continue  # the function is called without it: the operator's default
                attribute = given
            found[name] = self._argument(attribute, scope)
        return found

    def _argument(self, a: AttributeMessage, scope: Scope) -> Any:
        present = vars(a)
        read = self.tensors.file.read
        if a.kind == 1 or (not a.kind and "float" in present):
            return a.float
        if a.kind == 2 or (not a.kind and "int" in present):
            return a.int
        if a.kind == 3 or (not a.kind and "text" in present):
            return read(*a.text).tobytes().decode(errors="replace") if a.text else ""
        if a.kind == 4 or (not a.kind and "tensor" in present):
            if a.tensor is None:
                raise self.builder.error(f"the attribute '{a.name}' has no tensor")
            return self.tensors.known(a.tensor, a.name)
        if a.kind == 5 or (not a.kind and "graph" in present):
            if a.graph is None:
                raise self.builder.error(f"the attribute '{a.name}' has no graph")
            return Branch(self, a.graph, scope)
        if a.kind == 6 or (not a.kind and "floats" in present):
            return list(a.floats)
        if a.kind == 7 or not a.kind:
            return list(a.ints)
        if a.kind == 8:
            return [read(*blob).tobytes().decode(errors="replace") for blob in a.texts]
        raise self.builder.error(f"the attribute '{a.name}' has the kind {a.kind}")

    def _call(
        self, function: FunctionMessage, node: NodeMessage, inputs: list[Any], outer: Scope
    ) -> list[Any]:
        """Translate the nodes of a function."""
        opsets = {domain_of(o.domain): o.version for o in function.opsets} or dict(outer.opsets)
        scope = Scope(None, opsets)
        scope.depth = outer.depth + 1
        arguments = {a.name: a for a in function.defaults}
        for a in node.attributes:
            # An argument may be passed on from the caller's caller.
            given = outer.arguments.get(a.reference) if a.reference else a
            if given is not None:
                arguments[a.name] = given
        scope.arguments = arguments
        if len(inputs) > len(function.inputs):
            raise self.builder.error(
                f"has {len(inputs)} inputs, expected up to {len(function.inputs)}"
            )
        scope.values.update(dict.fromkeys(function.inputs))
        scope.values.update(zip(function.inputs, inputs, strict=False))
        self._run(function.nodes, scope, needed_names(function.nodes, function.outputs))
        return [scope.get(name, self.builder) for name in function.outputs]

    def _check_types(self, opsets: Mapping[str, int]) -> None:
        """Raise UnsupportedOperatorError if an operator is unknown; list all of them."""
        missing: dict[str, list[str]] = {}
        stack: list[tuple[Sequence[NodeMessage], Mapping[str, int]]] = [(self.main.nodes, opsets)]
        stack += [
            (f.nodes, {domain_of(o.domain): o.version for o in f.opsets} or opsets)
            for f in self.functions.values()
        ]
        while stack:
            nodes, versions = stack.pop()
            for node in nodes:
                domain = domain_of(node.domain)
                version = versions.get(domain, 1)
                for a in node.attributes:
                    if a.graph is not None:
                        stack.append((a.graph.nodes, versions))
                if (domain, node.type) in self.functions:
                    continue
                if registry.find(domain, node.type, version) is None:
                    type_ = f"{domain}::{node.type}" if domain else node.type
                    key = f"{type_} (opset {version})"
                    missing.setdefault(key, []).append(node.name or "".join(node.outputs[:1]))
        if missing:
            listed = ", ".join(
                f"{key}: {len(names)} use{'s' if len(names) > 1 else ''}, first '{names[0]}'"
                for key, names in list(missing.items())[:50]
            )
            many = len(missing) > 1
            raise UnsupportedOperatorError(
                f"{self.name}: {len(missing)} operator{'s are' if many else ' is'} not supported: "
                f"{listed}. docs/onnx.md lists the supported ones"
            )


def domain_of(name: str) -> str:
    """Return the name of a domain; ONNX's own has two."""
    return registry.ONNX if name == "ai.onnx" else name


def needed_names(nodes: Sequence[NodeMessage], outputs: Iterable[str]) -> set[str]:
    """Return the names on which outputs depend, also those that inner graphs read.

    The name of an input or output that is left out, which is empty, is none of them.
    """
    needed = set(outputs)
    for node in reversed(nodes):
        if any(name in needed for name in node.outputs):
            needed.update(node.inputs)
            stack = [a.graph for a in node.attributes if a.graph is not None]
            while stack:
                graph = stack.pop()
                needed.update(info.name for info in graph.outputs)
                for inner in graph.nodes:
                    needed.update(inner.inputs)
                    stack += [a.graph for a in inner.attributes if a.graph is not None]
        needed.discard("")
    return needed


def unique(names: Sequence[str]) -> list[str]:
    """Return names of which each occurs once: a graph may return a value twice."""
    found: dict[str, None] = {}
    for number, name in enumerate(names):
        text = name or f"value_{number}"
        while text in found:
            text += "_"
        found[text] = None
    return list(found)
