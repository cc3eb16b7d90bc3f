"""What several tests share: comparing arrays, reproducible noise, stored cases."""

from .cases import Case, Golden, load_cases
from .compare import assert_close, assert_outputs
from .noise import integers, uniform

__all__ = [
    "Case",
    "Golden",
    "assert_close",
    "assert_outputs",
    "integers",
    "load_cases",
    "uniform",
]
