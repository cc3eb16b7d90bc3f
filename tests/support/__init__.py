"""What several tests share: comparing arrays, reproducible noise, stored cases.

Only ``engine.py`` needs kuiper; the rest also serves the tool that makes the fixtures.
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
