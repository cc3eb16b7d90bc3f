"""Operators that only pass values on: tuples, and layers that are the identity at inference."""

from __future__ import annotations

from .registry import reference


@reference("prim::TupleConstruct", "prim::ListConstruct")
def construct(*items):
    """Build a tuple."""
    return items


@reference("prim::TupleUnpack", "prim::ListUnpack")
def unpack(bundle):
    """Return the elements of a tuple."""
    return bundle


@reference(
    "nn.Dropout",
    "nn.Dropout1d",
    "nn.Dropout2d",
    "nn.Dropout3d",
    "nn.AlphaDropout",
    "nn.FeatureAlphaDropout",
    "nn.Identity",
    "F.dropout",
    "F.dropout1d",
    "F.dropout2d",
    "F.dropout3d",
    "F.alpha_dropout",
    "F.feature_alpha_dropout",
    "Tensor.clone",
    "Tensor.contiguous",
    "Tensor.detach",
    "torch.clone",
    "torch.detach",
)
def identity(input, **_):
    """Return the value unchanged."""
    return input


@reference("pnnx.SliceIndexes")
def slice_indexes(*numbers, indexes, **_):
    """List integers, some of which are operands: ``@k`` is the k-th."""
    return tuple(
        int(numbers[int(index[1:])]) if isinstance(index, str) else index for index in indexes
    )
