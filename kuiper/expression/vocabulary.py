"""The operators of expressions: one table row each.

:data:`PNNX` is what ``pnnx.Expression`` holds.  :data:`EXTENDED` adds the activations that graph
passes fuse into expressions; they never come from a file.
"""

from __future__ import annotations

from kuiper._support.struct import Fields
from kuiper.ir.dtypes import DTYPES

__all__ = ["CASTS", "EXTENDED", "PARAMETRIC", "PNNX", "Signature", "words"]


def words(text: str) -> list[str]:
    """Split a list of names that is written as one string."""
    return text.split()


class Signature(Fields):
    """How an operator is written.

    Attributes
    ----------
    min_arity, max_arity : int
        Number of arguments.  Where they differ, only the operator's own brackets tell.
    infix : str or None
        Python's operator for it, where there is one.
    """

    min_arity: int
    max_arity: int
    infix: str | None = None

    @property
    def arity(self) -> str:
        """The number of arguments in words, for messages."""
        if self.min_arity != self.max_arity:
            return f"{self.min_arity} to {self.max_arity} arguments"
        return "1 argument" if self.min_arity == 1 else f"{self.min_arity} arguments"


_INFIX = {
    "add": "+",
    "sub": "-",
    "mul": "*",
    "div": "/",
    "floor_divide": "//",
    "remainder": "%",
    "pow": "**",
    "and": "&",
    "or": "|",
    "xor": "^",
    "lshift": "<<",
    "rshift": ">>",
}

_BINARY = "fmod atan2 logaddexp max min maximum minimum"

_UNARY = """
    abs neg sign square sqrt rsqrt reciprocal exp expm1 log log10 log1p erf
    sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh floor ceil trunc round int
"""

# Casts are spelled as PyTorch's dtypes; without brackets the same word is a dtype's name.
CASTS: dict[str, str] = {
    name: dtype.name
    for dtype in DTYPES.values()
    if dtype.name not in ("bf16", "c32")
    for name in (dtype.torch, f"torch.{dtype.value.name}")
}

PNNX: dict[str, Signature] = (
    {name: Signature(2, 2, symbol) for name, symbol in _INFIX.items()}
    | {name: Signature(2, 2) for name in words(_BINARY)}
    | {name: Signature(1, 1, "-" if name == "neg" else None) for name in words(_UNARY)}
    | {"size": Signature(1, 2)}
    | {name: Signature(1, 1) for name in CASTS}
)

# Optional arguments default as in PyTorch.
EXTENDED: dict[str, Signature] = PNNX | {
    "relu": Signature(1, 1),
    "relu6": Signature(1, 1),
    "leaky_relu": Signature(1, 2),  # x, slope
    "prelu": Signature(2, 2),  # x, weight
    "clamp": Signature(3, 3),  # x, low, high
    "sigmoid": Signature(1, 1),
    "logsigmoid": Signature(1, 1),
    "hardsigmoid": Signature(1, 1),
    "silu": Signature(1, 1),
    "hardswish": Signature(1, 1),
    "mish": Signature(1, 1),
    "gelu": Signature(1, 1),
    "gelu_tanh": Signature(1, 1),
    "elu": Signature(1, 2),  # x, alpha
    "celu": Signature(1, 2),  # x, alpha
    "selu": Signature(1, 1),
    "softplus": Signature(1, 3),  # x, beta, threshold
    "softsign": Signature(1, 1),
    "tanhshrink": Signature(1, 1),
    "hardshrink": Signature(1, 2),  # x, lambda
    "softshrink": Signature(1, 2),  # x, lambda
    "threshold": Signature(3, 3),  # x, threshold, value
    "log2": Signature(1, 1),
    "exp2": Signature(1, 1),
    "nan_to": Signature(2, 2),  # x, value
    "inf_to": Signature(3, 3),  # x, value for infinity, for -infinity
    "fmax": Signature(2, 2),
    "fmin": Signature(2, 2),
    "hypot": Signature(2, 2),
    "copysign": Signature(2, 2),
    "xlogy": Signature(2, 2),
    "heaviside": Signature(2, 2),
    "nextafter": Signature(2, 2),
}

# Functions whose arguments behind the first are fixed numbers.
PARAMETRIC = frozenset(
    words("leaky_relu elu celu softplus hardshrink softshrink threshold nan_to inf_to")
)
