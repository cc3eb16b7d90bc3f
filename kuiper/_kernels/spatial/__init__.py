"""Drivers of kernels on pixels: pooling, resizing, grid sampling, folding, boxes."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:

    def __getattr__(name: str) -> Any: ...  # the compiled modules have no stubs
