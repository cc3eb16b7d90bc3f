"""Expressions: the small languages inside PNNX and ncnn models.

::

    text --tokenizer--> tokens --parser--> tree --fold--> value | program | deferred tree
                                            |
                                            +-- infix text, listings, drawings, ncnn's dialect

::

    functions   one row per elementwise function: arguments, dtypes, meaning, kernel
    tokens, tree, syntax        text -> tokens -> tree (`syntax` is compiled)
    promotion, evaluation, scalars    dtypes of results; values of arrays and Python numbers
    folding, lowering           tree -> value, float32 program or deferred tree
    compiled    an expression as a function of arrays
    custom      functions that users define
    text, drawing               tree -> infix text, outline, Graphviz, SVG
    ncnn        the dialect of ncnn, and the translation in both directions

Nothing here depends on graphs or files.  The modules `folding` and `evaluation` do not have the
names of their functions, because `fold` and `evaluate` are public names of the package.
"""

from functools import lru_cache
from typing import TYPE_CHECKING

from kuiper._support.lazy import lazy_names
from kuiper.expression.evaluation import evaluate
from kuiper.expression.folding import Deferred, fold
from kuiper.expression.functions import CUSTOM, EXTENDED
from kuiper.expression.lowering import ElementwiseProgram
from kuiper.expression.syntax import MAX_DEPTH, ExpressionParser, Tokenizer
from kuiper.expression.tokens import Token, TokenType
from kuiper.expression.tree import Call, CustomCall, List, Literal, Node, Ref, compact, inline

if TYPE_CHECKING:
    from kuiper.expression.compiled import CompiledExpression, compile
    from kuiper.expression.custom import function
    from kuiper.expression.drawing import to_dot, to_svg
    from kuiper.expression.text import infix, outline

__all__ = [
    "MAX_DEPTH",
    "Call",
    "CompiledExpression",
    "CustomCall",
    "Deferred",
    "ElementwiseProgram",
    "ExpressionParser",
    "List",
    "Literal",
    "Node",
    "Ref",
    "Token",
    "TokenType",
    "Tokenizer",
    "compact",
    "compile",
    "evaluate",
    "fold",
    "function",
    "infix",
    "inline",
    "outline",
    "parse",
    "to_dot",
    "to_svg",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "CompiledExpression": "kuiper.expression.compiled",
        "compile": "kuiper.expression.compiled",
        "function": "kuiper.expression.custom",
        "infix": "kuiper.expression.text",
        "outline": "kuiper.expression.text",
        "to_dot": "kuiper.expression.drawing",
        "to_svg": "kuiper.expression.drawing",
    },
)


# Several passes and every plan parse each text, so its tree, which is immutable, is cached.  Those
# of longer texts are not, because they would occupy memory after their model is deleted.
LONGEST_KEPT = 200


def parse(
    text: str, n_operands: int | None = None, *, extended: bool = False, custom: bool = True
) -> Node:
    """Parse an expression of a file.

    Parameters
    ----------
    text : str
    n_operands : int, optional
        Number of operands of the operator; a reference beyond them is an error.  With 0, a text of
        one word is that word, even if it names a function (``expr=max`` is the key of a dict).
    extended : bool, default False
        Accept the activations that graph passes fuse into expressions.
    custom : bool, default True
        Accept the functions that users have defined, in the stead of built-in ones too.

    Returns
    -------
    Node

    Raises
    ------
    ExpressionError
        If the text is not an expression.
    """
    read = _kept if len(text) <= LONGEST_KEPT else _parse
    return read(text, n_operands, extended, custom)


def _parse(text: str, n_operands: int | None, extended: bool, custom: bool = True) -> Node:
    parser = ExpressionParser(text, extended=extended, custom=custom)
    if n_operands == 0 and len(parser.tokens) == 1 and parser.tokens[0].type is TokenType.NAME:
        return parser.leaf(parser.tokens[0])
    tree = parser.parse()
    if n_operands is not None:
        for node in tree.preorder():
            if isinstance(node, Ref) and node.index >= n_operands:
                raise node.error(f"@{node.index} refers to none of the {n_operands} operands")
    return tree


_kept = lru_cache(maxsize=100)(_parse)


def forget_parsed() -> None:
    """Empty the cache of trees, since the functions of users have changed."""
    _kept.cache_clear()


def built_in(text: str) -> str | Node:
    """Return an expression of a pass, whose functions are the built-in ones, for a parameter.

    Parameters
    ----------
    text : str

    Returns
    -------
    str or Node
        The text, unless users have replaced a built-in function, which it may name.
    """
    return text if CUSTOM.keys().isdisjoint(EXTENDED) else parse(text, custom=False)


def stored(tree: Node) -> str | Node:
    """Return a tree that a pass has changed, for a parameter.

    Parameters
    ----------
    tree : Node

    Returns
    -------
    str or Node
        Its text, unless users have replaced a built-in function: then it may mean another tree.
    """
    return str(tree) if CUSTOM.keys().isdisjoint(EXTENDED) else tree
