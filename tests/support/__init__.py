"""Helpers that several test modules share: comparison, reproducible noise, stored cases.

``cases``, ``compare``, ``noise``, ``special`` and ``weights`` do not import kuiper, so the scripts
that write the fixtures can use them.
"""

from .cases import Case, Golden, InputSpec, load_cases
from .compare import assert_close, assert_outputs, assert_same_bits
from .noise import integers, uniform

__all__ = [
    "Case",
    "Golden",
    "InputSpec",
    "assert_close",
    "assert_outputs",
    "assert_same_bits",
    "integers",
    "load_cases",
    "uniform",
]
