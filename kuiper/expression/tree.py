"""The syntax tree of an expression.

A tree is immutable.  Every traversal is a loop with an explicit stack, so that depth is not limited
by Python's recursion limit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from kuiper.errors import ExpressionError, KuiperError
from kuiper.expression.functions import CUSTOM

__all__ = [
    "Call",
    "CustomCall",
    "List",
    "Literal",
    "Node",
    "Ref",
    "compact",
    "format_literal",
    "inline",
]

T = TypeVar("T")


class Node:
    """A node of the syntax tree.

    Attributes
    ----------
    children : tuple of Node
        Arguments or items, in the order of the text.
    size : int
        Number of nodes in the subtree.
    depth : int
        Number of nodes on the longest path to a leaf; 1 for a leaf.
    source : str or None
        The text from which the node was parsed; None for a node made by hand.
    start, end : int or None
        The node is ``source[start:end]``.
    folded : dict
        Results of :func:`kuiper.expression.folding.fold` for tensors, without shapes.
    """

    __slots__ = ("children", "depth", "end", "folded", "size", "source", "start")

    children: tuple[Node, ...]
    size: int
    depth: int

    def __init__(
        self,
        children: Sequence[Node] = (),
        source: str | None = None,
        start: int | None = None,
        end: int | None = None,
    ) -> None:
        self.children = tuple(children)
        self.size = 1 + sum(child.size for child in self.children)
        self.depth = 1 + max((child.depth for child in self.children), default=0)
        self.source = source
        self.start = start
        self.end = end
        self.folded: dict[Any, Any] | None = None

    @property
    def text(self) -> str:
        """The node without its children: ``add``, ``@0``, ``2.5``, ``[]``."""
        raise NotImplementedError

    def with_children(self, children: Sequence[Node]) -> Node:
        """Return the same node with other children; a leaf returns itself.

        Parameters
        ----------
        children : sequence of Node
            As many as the node has.

        Returns
        -------
        Node
        """
        return self

    def error(self, message: str) -> ExpressionError:
        """Return an error that points at this node.

        Parameters
        ----------
        message : str

        Returns
        -------
        ExpressionError
            The caller raises it.
        """
        if self.source is None:
            return ExpressionError(message, str(self) if self.size <= 1000 else None)
        return ExpressionError(message, self.source, self.start)

    def preorder(self) -> Iterator[Node]:
        """Yield each node before its children."""
        stack = [self]
        while stack:
            node = stack.pop()
            yield node
            stack.extend(reversed(node.children))

    def postorder(self) -> Iterator[Node]:
        """Yield each node after its children: the order of evaluation."""
        stack = [(self, False)]
        while stack:
            node, is_open = stack.pop()
            if is_open or not node.children:
                yield node
            else:
                stack.append((node, True))
                stack.extend((child, False) for child in reversed(node.children))

    def inorder(self) -> Iterator[Node]:
        """Yield the first child, the node, then the other children."""
        stack = [(self, False)]
        while stack:
            node, is_open = stack.pop()
            if is_open or not node.children:
                yield node
            else:
                stack.extend((child, False) for child in reversed(node.children[1:]))
                stack.append((node, True))
                stack.append((node.children[0], False))

    def transform(self, visit: Callable[[Node, list[T]], T]) -> T:
        """Compute a result for each node bottom-up, for example a new tree.

        Parameters
        ----------
        visit : callable
            ``visit(node, results)`` takes the results of the node's children.

        Returns
        -------
        object
            The result of this node.
        """
        results: list[T] = []
        for node in self.postorder():
            count = len(node.children)
            children = results[len(results) - count :]
            del results[len(results) - count :]
            results.append(visit(node, children))
        return results[0]

    def substitute(self, replacements: Mapping[int, Node]) -> Node:
        """Return the tree with references replaced.

        Parameters
        ----------
        replacements : mapping of int to Node
            The replacement of each ``@k``; other references stay.
        """
        changed = {
            k: new
            for k, new in replacements.items()
            if not (isinstance(new, Ref) and new.index == k)
        }
        if not changed:
            return self

        def visit(node: Node, children: Sequence[Node]) -> Node:
            if isinstance(node, Ref):
                return changed.get(node.index, node)
            return _rebuilt(node, children)

        return self.transform(visit)

    def references(self) -> tuple[int, ...]:
        """Return the indices of the operands that the tree reads, by first appearance."""
        return tuple(dict.fromkeys(n.index for n in self.preorder() if isinstance(n, Ref)))

    def __str__(self) -> str:
        """Return the expression in PNNX's language."""
        out: list[str] = []
        stack: list[Node | str] = [self]
        while stack:
            item = stack.pop()
            if isinstance(item, str):
                out.append(item)
                continue
            if not isinstance(item, (Call, CustomCall, List)):
                out.append(item.text)
                continue
            opening, closing = ("[", "]") if isinstance(item, List) else (item.text + "(", ")")
            out.append(opening)
            stack.append(closing)
            for i in range(len(item.children) - 1, -1, -1):
                stack.append(item.children[i])
                if i:
                    stack.append(",")
        return "".join(out)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self)!r})"

    def _key(self) -> tuple[Any, ...]:
        """Return what identifies the node apart from its children."""
        raise NotImplementedError

    def __eq__(self, other: object) -> bool:
        """Compare structure and values; positions and the spelling of literals do not count."""
        if not isinstance(other, Node):
            return NotImplemented
        if self.size != other.size or self.depth != other.depth:
            return False
        return all(
            a is b or a._key() == b._key()
            for a, b in zip(self.preorder(), other.preorder(), strict=True)
        )

    def __hash__(self) -> int:
        return hash(tuple(node._key() for node in self.preorder()))


class Ref(Node):
    """``@k``, the k-th operand.

    Parameters
    ----------
    index : int
        k.
    source : str, optional
        The text from which it was parsed.
    start, end : int, optional
        Its position in `source`.
    """

    __slots__ = ("index",)

    def __init__(
        self,
        index: int,
        source: str | None = None,
        start: int | None = None,
        end: int | None = None,
    ) -> None:
        super().__init__((), source, start, end)
        self.index = index

    @property
    def text(self) -> str:
        return f"@{self.index}"

    def _key(self) -> tuple[Any, ...]:
        return (Ref, self.index)


class Literal(Node):
    """A constant: int, float, complex, bool, None or a bare word.

    Parameters
    ----------
    value : int, float, complex, bool, None or str
    text : str, optional
        The spelling; by default PNNX's.
    source : str, optional
        The text from which it was parsed.
    start, end : int, optional
        Its position in `source`.
    """

    __slots__ = ("_text", "value")

    def __init__(
        self,
        value: Any,
        text: str | None = None,
        source: str | None = None,
        start: int | None = None,
        end: int | None = None,
    ) -> None:
        super().__init__((), source, start, end)
        self.value = value
        self._text = text

    @property
    def text(self) -> str:
        return format_literal(self.value) if self._text is None else self._text

    def _key(self) -> tuple[Any, ...]:
        # repr distinguishes 1 from 1.0 and True, and 0.0 from -0.0, and makes NaN equal NaN.
        return (Literal, repr(self.value))


class Call(Node):
    """A function and its arguments.

    Parameters
    ----------
    name : str
        For example ``"add"``.
    arguments : sequence of Node
    source : str, optional
        The text from which it was parsed.
    start, end : int, optional
        Its position in `source`.
    """

    __slots__ = ("name",)

    def __init__(
        self,
        name: str,
        arguments: Sequence[Node],
        source: str | None = None,
        start: int | None = None,
        end: int | None = None,
    ) -> None:
        super().__init__(arguments, source, start, end)
        self.name = name

    @property
    def text(self) -> str:
        return self.name

    def with_children(self, children: Sequence[Node]) -> Node:
        return Call(self.name, children, self.source, self.start, self.end)

    def _key(self) -> tuple[Any, ...]:
        return (Call, self.name, len(self.children))


class CustomCall(Node):
    """A function that a user has defined, and its arguments.

    It is no :class:`Call`, even if its name is that of a built-in function, so that no pass takes
    it for one.

    Parameters
    ----------
    function : kuiper.expression.custom.CustomFunction
        As it was when the text was parsed.
    arguments : sequence of Node
    source : str, optional
        The text from which it was parsed.
    start, end : int, optional
        Its position in `source`.
    planned : (tuple of int, numpy.dtype), optional
        Shape and dtype of the result, if folding has found them.
    """

    __slots__ = ("function", "planned")

    def __init__(
        self,
        function: Any,
        arguments: Sequence[Node],
        source: str | None = None,
        start: int | None = None,
        end: int | None = None,
        planned: tuple[tuple[int, ...], Any] | None = None,
    ) -> None:
        super().__init__(arguments, source, start, end)
        self.function = function
        self.planned = planned

    @property
    def text(self) -> str:
        return str(self.function.name)

    def with_children(self, children: Sequence[Node]) -> Node:
        return CustomCall(self.function, children, self.source, self.start, self.end, self.planned)

    def with_plan(self, children: Sequence[Node], shape: tuple[int, ...], dtype: Any) -> Node:
        """Return the call of other children, whose result must have this shape and dtype."""
        return CustomCall(
            self.function, children, self.source, self.start, self.end, (shape, dtype)
        )

    def _key(self) -> tuple[Any, ...]:
        return (CustomCall, id(self.function), len(self.children))

    def __reduce__(self) -> Any:
        # Pickled by name, as functions are.
        rest = (self.source, self.start, self.end, self.planned)
        return _custom_call, (self.text, self.children, *rest)


def _custom_call(name: str, *arguments: Any) -> CustomCall:
    """Return a call of the user's function that has a name in this process."""
    if name not in CUSTOM:
        raise KuiperError(
            f"the expression function {name!r} is not defined in this process; run the module "
            f"that has @kuiper.expression.function({name!r}) before"
        )
    return CustomCall(CUSTOM[name], *arguments)


class List(Node):
    """``[a,b,...]``.

    Parameters
    ----------
    items : sequence of Node
    source : str, optional
        The text from which it was parsed.
    start, end : int, optional
        Its position in `source`.
    """

    __slots__ = ()

    def __init__(
        self,
        items: Sequence[Node],
        source: str | None = None,
        start: int | None = None,
        end: int | None = None,
    ) -> None:
        super().__init__(items, source, start, end)

    @property
    def text(self) -> str:
        return "[]"

    def with_children(self, children: Sequence[Node]) -> Node:
        return List(children, self.source, self.start, self.end)

    def _key(self) -> tuple[Any, ...]:
        return (List, len(self.children))


def _rebuilt(node: Node, children: Sequence[Node]) -> Node:
    """Return `node` with other children, or itself if no child changed."""
    if all(a is b for a, b in zip(node.children, children, strict=True)):
        return node
    return node.with_children(children)


def format_literal(value: Any) -> str:
    """Write a constant as PNNX does: a float always has a point or an exponent.

    Examples
    --------
    >>> format_literal(2.0), format_literal(1e-07), format_literal(float("nan"))
    ('2.0', '1e-07', 'nan.0')
    """
    if isinstance(value, complex):
        real, imag = (repr(float(part)) for part in (value.real, value.imag))
        return f"{real}{imag if imag.startswith('-') else '+' + imag}j"
    if isinstance(value, float):
        return "nan.0" if value != value else repr(value)
    return str(value)


def compact(tree: Node, operands: Sequence[Any]) -> tuple[Node, list[Any]]:
    """Renumber references: each operand once, by first appearance, unused ones dropped.

    Parameters
    ----------
    tree : Node
    operands : sequence
        The operands of ``@k``, compared by identity.

    Returns
    -------
    tree : Node
    operands : list
    """
    order = tree.references()
    kept = {id(operands[k]): operands[k] for k in order}
    number = {key: new for new, key in enumerate(kept)}
    renumbered = tree.substitute({k: Ref(number[id(operands[k])]) for k in order})
    return renumbered, list(kept.values())


def inline(
    tree: Node, operands: Sequence[Any], target: Any, inner: Node, inner_operands: Sequence[Any]
) -> tuple[Node, list[Any]]:
    """Replace every reference to `target` by the expression that computes it.

    Parameters
    ----------
    tree : Node
        The expression that reads `target`.
    operands : sequence
        Its operands.
    target
        The operand to replace, compared by identity.
    inner : Node
        The expression that computes `target`.
    inner_operands : sequence
        The operands of `inner`.

    Returns
    -------
    tree : Node
        Large if `target` is read often: check `size` before keeping it.
    operands : list
        The operands of the result, each once.
    """
    outer, within = tree.references(), inner.references()
    kept: dict[int, Any] = {}
    for k in outer:
        sources = [inner_operands[j] for j in within] if operands[k] is target else [operands[k]]
        kept.update((id(operand), operand) for operand in sources)
    number = {key: new for new, key in enumerate(kept)}
    inner = inner.substitute({k: Ref(number[id(inner_operands[k])]) for k in within})
    joined = tree.substitute(
        {k: inner if operands[k] is target else Ref(number[id(operands[k])]) for k in outer}
    )
    return joined, list(kept.values())
