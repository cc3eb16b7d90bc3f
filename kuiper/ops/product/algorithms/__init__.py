"""The algorithms that compute a convolution, and the choice among them.

Each module holds one :class:`ConvAlgorithm`.  :func:`bind_convolution` tries them in the order of
:data:`ALGORITHMS` and takes the first that applies and is estimated to be faster than implicit
GEMM.  The choice, and so the result, depends neither on the batch nor on the number of threads.
"""

from __future__ import annotations

from kuiper.ops.core.binder import Binder
from kuiper.ops.product.algorithms.base import (
    MAX_ERROR_DILUTED,
    Choice,
    ConvAlgorithm,
    Convolution,
)
from kuiper.ops.product.algorithms.depthwise import Depthwise
from kuiper.ops.product.algorithms.few_inputs import FewInputs
from kuiper.ops.product.algorithms.few_outputs import FewOutputs
from kuiper.ops.product.algorithms.gemm import Gemm
from kuiper.ops.product.algorithms.grouped import Grouped
from kuiper.ops.product.algorithms.regions import Regions
from kuiper.ops.product.algorithms.strassen import Strassen
from kuiper.ops.product.algorithms.winograd import Winograd

__all__ = [
    "ALGORITHMS",
    "Choice",
    "ConvAlgorithm",
    "Convolution",
    "bind_convolution",
    "choose",
    "only_gemm",
]

# In the order of trial.  The last one computes every convolution.
ALGORITHMS: tuple[type[ConvAlgorithm], ...] = (
    Winograd,
    Depthwise,
    Grouped,
    FewInputs,
    FewOutputs,
    Regions,
    Strassen,
    Gemm,
)


def choose(c: Convolution) -> tuple[ConvAlgorithm, Choice]:
    """Return the algorithm for a convolution, with the reasons against the others."""
    left: dict[str, str] = {}
    chosen: ConvAlgorithm | None = None
    algorithms = ALGORITHMS
    if c.in_bfloat16:
        from kuiper.ops.product.algorithms.bfloat16 import ALGORITHMS as algorithms
    for kind in algorithms:
        if chosen is not None:
            left[kind.name] = f"{chosen.name} is tried first"
            continue
        algorithm = kind(c)
        if reason := algorithm.refusal():
            left[kind.name] = reason
        elif (cost := algorithm.cost()) < 1.0 or kind is algorithms[-1]:
            chosen = algorithm
        else:
            left[kind.name] = f"would take {cost:.2f} times as long as {algorithms[-1].name}"
    assert chosen is not None  # the last one computes every convolution
    return chosen, Choice(chosen.name, left)


def only_gemm(reason: str) -> Choice:
    """Return the choice of implicit GEMM, with one reason against all others."""
    names = [algorithm.name for algorithm in ALGORITHMS]
    return Choice(names[-1], dict.fromkeys(names[:-1], reason))


def bind_convolution(b: Binder, c: Convolution) -> None:
    """Add the steps of a convolution with constant filters."""
    if b.tolerates_errors:
        c.max_error = MAX_ERROR_DILUTED
    algorithm, choice = choose(c)
    if c.in_bfloat16 and not algorithm.takes_bfloat16:
        from kuiper.ops.product.algorithms.bfloat16 import bind_widened

        steps = bind_widened(b, algorithm)
    else:
        steps = algorithm.bind(b)
    for step in steps:
        step.algorithm = choice
        b.step(step)
    if algorithm.c.y is not c.y:
        b.copy(algorithm.c.y, c.y)
