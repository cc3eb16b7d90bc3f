"""The nodes and edges of a graph: operators, operands, fused post-ops."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from kuiper._support.struct import Struct
from kuiper.ir.attribute import Attribute, Shape, signature

__all__ = ["Operand", "Operator", "PostOp", "Use"]


class Use(NamedTuple):
    """One reader of an operand: input number `slot` of `operator`."""

    operator: Operator
    slot: int


class PostOp(Struct):
    """An elementwise operator that a pass has fused into its producer (oneDNN's term).

    Attributes
    ----------
    type : str
        ``"add"`` for a residual sum, else the type of an activation such as ``"nn.ReLU"``.
    params : dict
        The parameters of the activation.
    slot : int or None
        For ``"add"``: the input slot of the other summand.
    """

    type: str
    params: Mapping[str, Any]
    slot: int | None = None


class Operand:
    """An edge of the graph: a tensor with one producer and any number of consumers.

    Attributes
    ----------
    name : str
        Unique in the graph.
    shape : tuple of (int or None), or None
        As annotated in the file when the model was traced; None inside marks a dynamic extent
        (``?``), None alone an unknown or 0-d shape.  Runs do not need it.
    dtype : str or None
        PNNX name of the annotated element type.
    producer : Operator or None
    uses : tuple of Use
        In the order in which they were added.
    """

    __slots__ = ("_uses", "dtype", "name", "producer", "shape")

    def __init__(self, name: str, shape: Shape | None = None, dtype: str | None = None) -> None:
        self.name = name
        self.shape = shape
        self.dtype = dtype
        self.producer: Operator | None = None
        # An ordered set: a dict whose values are unused, for removal in O(1).
        self._uses: dict[Use, None] = {}

    @property
    def required_producer(self) -> Operator:
        """The producer; every operand of a verified graph has one."""
        assert self.producer is not None, self.name
        return self.producer

    @property
    def required_shape(self) -> tuple[int, ...]:
        """The annotated shape, which the caller knows to have no dynamic extent."""
        return tuple(n for n in self.shape or () if n is not None)

    @property
    def uses(self) -> tuple[Use, ...]:
        """The readers of the operand, in the order in which they were added."""
        return tuple(self._uses)

    @property
    def consumers(self) -> tuple[Operator, ...]:
        """The operators that read the operand, each once."""
        return tuple(dict.fromkeys(use.operator for use in self._uses))

    def __repr__(self) -> str:
        return f"%{self.name}"


class Operator:
    """A node of the graph.

    Attributes
    ----------
    type : str
        PyTorch's name as PNNX writes it: ``nn.Conv2d``, ``F.relu``, ``torch.cat``.
    name : str
        Unique in the graph.
    inputs, outputs : tuple of Operand
    input_keys : tuple of (str or None)
        The keyword of each input slot (``$weight=3``), None where it is positional.
    params : dict
        Literal arguments: None, bool, int, float, complex, str, or tuples of these.
    attributes : dict of str to Attribute
    post_ops : tuple of PostOp
        Applied to the first output; made by passes, never by files.
    location : str or None
        ``file:line``, for messages.
    template : object
        Kept by :func:`kuiper.ops.core.resolve.resolve`, which checks that it is up to date.
    """

    __slots__ = (
        "_inputs",
        "_outputs",
        "attributes",
        "input_keys",
        "location",
        "name",
        "params",
        "post_ops",
        "template",
        "type",
    )

    def __init__(self, type: str, name: str) -> None:
        self.type = type
        self.name = name
        self._inputs: list[Operand] = []
        self._outputs: list[Operand] = []
        self.input_keys: tuple[str | None, ...] = ()
        self.params: dict[str, Any] = {}
        self.attributes: dict[str, Attribute] = {}
        self.post_ops: tuple[PostOp, ...] = ()
        self.template: Any = None
        self.location: str | None = None

    def __getstate__(self) -> tuple[None, dict[str, Any]]:
        """Return what copies and pickles hold: all but the template, which compares by identity."""
        state = {slot: getattr(self, slot) for slot in self.__slots__}
        return None, state | {"template": None}

    @property
    def inputs(self) -> tuple[Operand, ...]:
        """The operands that it reads, by slot."""
        return tuple(self._inputs)

    @property
    def outputs(self) -> tuple[Operand, ...]:
        """The operands that it produces."""
        return tuple(self._outputs)

    @property
    def label(self) -> str:
        """The name in messages: ``file:line: operator 'conv1' (nn.Conv2d)``."""
        where = f"{self.location}: " if self.location else ""
        return f"{where}operator '{self.name}' ({self.type})"

    def __repr__(self) -> str:
        return f"<{self.type} '{self.name}'>"

    def __str__(self) -> str:
        arguments = [
            f"{key}={operand!r}" if key else repr(operand)
            for operand, key in zip(self._inputs, self.input_keys, strict=True)
        ]
        arguments += [f"{key}={value}" for key, value in self.params.items()]
        arguments += [f"{key}={signature(a.shape, a.dtype)}" for key, a in self.attributes.items()]
        outputs = ", ".join(_describe(operand) for operand in self._outputs)
        text = f"{self.type}({', '.join(arguments)})"
        for post in self.post_ops:
            text += f" -> {post.type}"
            text += f"({self._inputs[post.slot]!r})" if post.slot is not None else ""
        return f"{outputs} = {text}" if outputs else text


def _describe(operand: Operand) -> str:
    if operand.shape is None:
        return repr(operand)
    return f"{operand!r}:{signature(operand.shape, operand.dtype)}"
