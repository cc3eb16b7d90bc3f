"""The interface of the convolution algorithms: a convolution, an algorithm, a choice."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kuiper._kernels.conv import window as conv_window
from kuiper.ir.dtypes import BFLOAT16
from kuiper.ir.view import TensorView
from kuiper.ops.core.binder import Binder
from kuiper.ops.core.epilogue import Epilogue
from kuiper.ops.product.filters import Filters
from kuiper.ops.product.geometry import Geometry

__all__ = [
    "MAX_ERROR",
    "MAX_ERROR_DILUTED",
    "Choice",
    "ConvAlgorithm",
    "Convolution",
    "image_window",
    "planes_of",
    "voxel_rows",
]


# The errors of layers add up: a network of twelve convolutions of 4x4 tiles of Winograd's algorithm
# has half as much again as all that is rounded otherwise, one of 2x2 tiles a tenth.
MAX_ERROR = 5e-3
# Where little of it reaches the results, or the rounding to bytes is coarser anyway.
MAX_ERROR_DILUTED = 1.25e-2


class Convolution:
    """A convolution to be computed.

    Attributes
    ----------
    x, y : TensorView
        Input and output, (n, c, h, w) or (n, c, d, h, w); volumes are gapless channels-last.
    filters : Filters, shape (out_channels, in_channels / groups, *kernel)
    geometry : Geometry
    groups : int
    epilogue : Epilogue or None
    in_channels, out_channels : int
        Channels of one group.
    size : tuple of int
        Spatial extents of the output.
    is_volume : bool
    in_bfloat16 : bool
        Whether the input or the output is stored in bfloat16.
    max_error : float
        The relative error of the sums up to which an algorithm in bfloat16 may be chosen.
    """

    max_error = MAX_ERROR

    def __init__(
        self,
        x: TensorView,
        y: TensorView,
        filters: Filters,
        geometry: Geometry,
        groups: int,
        epilogue: Epilogue | None,
    ) -> None:
        self.x, self.y, self.filters, self.geometry = x, y, filters, geometry
        self.groups, self.epilogue = groups, epilogue
        self.in_channels, self.out_channels = filters.shape[1], filters.shape[0] // groups
        self.size = y.shape[2:]
        self.is_volume = len(self.size) == 3
        self.in_bfloat16 = BFLOAT16 in (x.dtype, y.dtype)

    def narrow(self, axis: int, start: int, length: int) -> Convolution:
        """Return the convolution of a range of images (axis 0) or of groups (axis 1)."""
        if axis == 0:
            x, y = self.x.narrow(0, start, length), self.y.narrow(0, start, length)
            filters, groups, outputs = self.filters, self.groups, (start, length)
        else:
            outputs = start * self.out_channels, length * self.out_channels
            x = self.x.narrow(1, start * self.in_channels, length * self.in_channels)
            y, filters, groups = self.y.narrow(1, *outputs), self.filters.some(*outputs), length
        epilogue = None if self.epilogue is None else self.epilogue.narrow(axis, *outputs)
        return Convolution(x, y, filters, self.geometry, groups, epilogue)

    def count(self, step: Any) -> Any:
        """Set a step's operation and byte counts to those of this convolution; return the step."""
        step.flops = self.flops
        step.bytes = float(self.x.n_bytes + self.y.n_bytes + self.filters.n_bytes)
        return step

    @property
    def flops(self) -> float:
        """Operations of the definition."""
        return 2.0 * self.y.size * self.filters.n_terms

    def count_saved(self, steps: Sequence[Any]) -> None:
        """Credit the last of steps that count what they do with the operations that all save."""
        steps[-1].saved_flops = self.flops - sum(step.flops for step in steps)


class Choice:
    """The algorithm chosen for a convolution, and the reasons against the others.

    Attributes
    ----------
    name : str
    left : dict of str to str
        The reason against each of the others, by name, in the order of trial.
    """

    __slots__ = ("left", "name")

    def __init__(self, name: str, left: dict[str, str]) -> None:
        self.name, self.left = name, left


class ConvAlgorithm:
    """One way to compute a convolution.

    :meth:`refusal`, :meth:`cost` and :meth:`bind` are called in this order; a refusal or a cost of
    1 or more ends the trial.

    Attributes
    ----------
    name : str
        The name in profiles and reports.
    c : Convolution
    takes_bfloat16 : bool
        Whether it computes convolutions that are `in_bfloat16`; others get float32.
    """

    name: str
    takes_bfloat16 = False

    def __init__(self, c: Convolution) -> None:
        self.c = c

    def refusal(self) -> str:
        """Return why the algorithm does not apply; an empty string if it does."""
        raise NotImplementedError

    def cost(self) -> float:
        """Estimate the time relative to implicit GEMM; 0 if it is always shorter."""
        return 0.0

    def pack(self, b: Binder) -> Any:
        """Return the packed filters, from the weight cache if they are in it."""
        raise NotImplementedError

    def bind(self, b: Binder) -> list[Any]:
        """Return the steps, which count their work.  Add the steps that copy the input."""
        raise NotImplementedError


def image_window(c: Convolution, x: TensorView, taps: Any) -> conv_window.Window:
    """Return the window of a convolution of images whose outputs all use the same taps."""
    return conv_window.Window(x, c.y, c.geometry.stride, (1, 1), [((0, 0), c.size, taps, 0)])


def voxel_rows(volumes: TensorView) -> TensorView:
    """View (n, c, d, h, w) as (n, d, h, w, c)."""
    return volumes.permute((0, 2, 3, 4, 1))


def planes_of(volumes: TensorView) -> TensorView:
    """View gapless channels-last (n, c, d, h, w) as images (n * d, c, h, w)."""
    n, channels, depth, height, width = volumes.shape
    row = width * channels
    return volumes.with_layout(
        (n * depth, channels, height, width), (height * row, 1, row, channels)
    )
