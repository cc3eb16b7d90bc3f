"""kuiper runs PyTorch models in the format of pnnx on the CPU; inputs and outputs are numpy arrays.

>>> import kuiper                                                         # doctest: +SKIP
>>> model = kuiper.load("resnet18.pnnx.param")                            # doctest: +SKIP
>>> y = model(x)                                                          # doctest: +SKIP

A module imports only from its own folder and from lower floors; docs/design.md draws them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kuiper import errors, ir
from kuiper._support.lazy import lazy_names
from kuiper._support.threads import get_num_threads, set_num_threads
from kuiper._version import __version__
from kuiper.errors import (
    DatasetError,
    ExpressionError,
    GraphError,
    InputError,
    KuiperError,
    MissingPackageError,
    ModelFormatError,
    OperatorError,
    ShapeError,
    UnsupportedOperatorError,
)
from kuiper.loading import load, load_graph, save, show_config, supported_operators
from kuiper.model import Model
from kuiper.planning.input_checker import TensorInfo

if TYPE_CHECKING:
    from kuiper import expression as expression
    from kuiper.buckets import Buckets
    from kuiper.export.pnnx_tool import from_torch
    from kuiper.ops.core.custom import operator
    from kuiper.planning.profile import Profile
    from kuiper.quantization import quantize

__all__ = [
    "Buckets",
    "DatasetError",
    "ExpressionError",
    "GraphError",
    "InputError",
    "KuiperError",
    "MissingPackageError",
    "Model",
    "ModelFormatError",
    "OperatorError",
    "Profile",
    "ShapeError",
    "TensorInfo",
    "UnsupportedOperatorError",
    "__version__",
    "errors",
    "from_torch",
    "get_num_threads",
    "ir",
    "load",
    "load_graph",
    "operator",
    "quantize",
    "save",
    "set_num_threads",
    "show_config",
    "supported_operators",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "Buckets": "kuiper.buckets",
        "Profile": "kuiper.planning.profile",
        "expression": "kuiper.expression",
        "from_torch": "kuiper.export.pnnx_tool",
        "operator": "kuiper.ops.core.custom",
        "quantize": "kuiper.quantization",
    },
)
