"""PyTorch's names of element types."""

from __future__ import annotations

import numpy as np

__all__ = ["dtype_of"]

# References compute in float64 whatever the precision of the model.
_WORDS = {
    "torch.float": np.float64,
    "torch.double": np.float64,
    "torch.half": np.float64,
    "torch.int8": np.int8,
    "torch.uint8": np.uint8,
    "torch.short": np.int16,
    "torch.int": np.int32,
    "torch.long": np.int64,
    "torch.bool": np.bool_,
    "torch.complex64": np.complex128,
}


def dtype_of(word, default=np.float64):
    """Return the dtype that a parameter ``dtype=...`` names; `default` for None."""
    return np.dtype(default if word is None else _WORDS[word])
