"""Padding and cropping by strided copies.

The kept part of the input is copied into the middle of the output.  A constant is written around
it; the other modes copy strips of the output itself, one axis after the other, so each strip
includes the margins of the axes before it and the corners need no steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from kuiper._kernels.data.move import FillStep
from kuiper.errors import ShapeError
from kuiper.ir.view import Layout, TensorSpec, TensorView
from kuiper.ops.core.binder import Binder
from kuiper.ops.core.record import FOLLOWS, Record, T, record
from kuiper.ops.core.schema import Argument, Float, Ints, Known, Str, Tensor, schema

if TYPE_CHECKING:
    from kuiper.ops.core.batch import BatchAxis, TracedCall

__all__ = ["ModulePad", "Pad", "SamePadding", "pad_spatial"]

MAX_WINDOW = 1 << 16  # extents of a window over images

MODES = ("constant", "reflect", "replicate", "circular")


class _Margin:
    """The margins of one axis, and the range of the input that cropping keeps.

    Attributes
    ----------
    axis : int
    start, extent : int
        The part of the input that is kept.
    before, after : int
        The number of elements added.
    """

    __slots__ = ("after", "axis", "before", "extent", "start")

    def __init__(self, axis: int, extent: int, before: int, after: int) -> None:
        self.axis = axis
        self.start = max(-before, 0)
        self.extent = extent - self.start - max(-after, 0)
        self.before = max(before, 0)
        self.after = max(after, 0)

    @property
    def total(self) -> int:
        return self.before + self.extent + self.after


def _margins(shape: Sequence[int], pad: Sequence[int], mode: str) -> list[_Margin]:
    """Return the margins of the padded axes; `pad` holds (before, after) pairs, last axis first."""
    if len(pad) % 2 or len(pad) > 2 * len(shape):
        raise ShapeError(
            f"'pad' is {tuple(pad)}, expected pairs of amounts for at most {len(shape)} axes of an "
            f"input of shape {tuple(shape)}"
        )
    margins = []
    for number in range(len(pad) // 2):
        axis = len(shape) - 1 - number
        margin = _Margin(axis, shape[axis], pad[2 * number], pad[2 * number + 1])
        most = max(margin.before, margin.after)
        # A reflection excludes the edge itself; a circular margin is at most the whole axis.
        limit = {"reflect": margin.extent - 1, "circular": margin.extent}.get(mode)
        if margin.extent < 0 or margin.total < 0:
            raise ShapeError(
                f"'pad' is {tuple(pad)}, which crops axis {axis} of extent {shape[axis]} away"
            )
        if limit is not None and most > limit:
            raise ShapeError(
                f"'pad' is {tuple(pad)}, expected at most {max(limit, 0)} on axis {axis} of extent "
                f"{shape[axis]} for mode '{mode}'"
            )
        if mode == "replicate" and most and not margin.extent:
            raise ShapeError(f"axis {axis} of the input is empty, there is no edge to repeat")
        margins.append(margin)
    return margins


def _padded_shape(shape: Sequence[int], margins: Sequence[_Margin]) -> tuple[int, ...]:
    padded = list(shape)
    for margin in margins:
        padded[margin.axis] = margin.total
    return tuple(padded)


def _crop(value: TensorView, margins: Sequence[_Margin]) -> TensorView:
    for margin in margins:
        value = value.narrow(margin.axis, margin.start, margin.extent)
    return value


def _bind_margins(
    b: Binder, y: TensorView, kept: TensorView, margins: Sequence[_Margin], mode: str, fill: Any
) -> None:
    """Add the steps that copy `kept` into `y` and fill its margins."""
    if y.size == 0:
        return
    inner = y
    for margin in margins:
        inner = inner.narrow(margin.axis, margin.before, margin.extent)
    if kept.size:
        b.copy(kept, inner)
    # The range written so far: whole axes that are done, and the kept range of the others.
    done = inner
    for margin in margins:
        axis, before, extent, after = margin.axis, margin.before, margin.extent, margin.after
        first = done.with_layout(done.shape, done.strides, -before * done.strides[axis])
        whole = first.with_layout(
            (*done.shape[:axis], margin.total, *done.shape[axis + 1 :]), done.strides
        )
        end = before + extent
        strips: list[tuple[int, int, tuple[int, int] | None]]
        if mode == "constant":
            strips = [(0, before, None), (end, after, None)]
        elif mode == "reflect":
            strips = [(0, before, (2 * before, -1)), (end, after, (end - 2, -1))]
        elif mode == "replicate":
            strips = [(0, before, (before, 0)), (end, after, (end - 1, 0))]
        else:
            strips = [(0, before, (extent, 1)), (end, after, (before, 1))]
        for start, length, source in strips:
            strip = whole.narrow(axis, start, length)
            if strip.size == 0:
                continue
            if source is None:
                b.step(FillStep(strip, fill))
            else:
                b.copy(whole.narrow(axis, source[0], length, source[1]), strip)
        done = whole


def pad_spatial(
    b: Binder, value: TensorView, pad: Sequence[int], mode: str, fill: float = 0.0
) -> TensorView:
    """Return a padded image for the operator being bound.

    Parameters
    ----------
    b : Binder
    value : TensorView, shape (n, c, h, w)
    pad : (int, int, int, int)
        Left, right, top and bottom; negative amounts crop.
    mode : str
        ``"constant"``, ``"reflect"``, ``"replicate"`` or ``"circular"``.
    fill : float, default=0
        The value that ``"constant"`` writes.

    Returns
    -------
    TensorView
        Channels-last if `value` is; it lives during the operator only.

    Raises
    ------
    ShapeError
        If a margin exceeds what the mode allows.
    """
    margins = _margins(value.shape, pad, mode)
    kept = _crop(value, margins)
    if not any(margin.before or margin.after for margin in margins):
        return kept
    layout = Layout.CHANNELS_LAST if value.is_channels_last else Layout.CONTIGUOUS
    y = b.temporary(_padded_shape(value.shape, margins), value.dtype, layout)
    _bind_margins(b, y, kept, margins, mode, fill)
    return y


def same_margins(extent: int, kernel: int, stride: int, dilation: int) -> tuple[int, int]:
    """Return the margins (before, after) that let windows cover a whole axis."""
    steps = -(-extent // stride) - 1
    total = max(steps * stride + (kernel - 1) * dilation + 1 - extent, 0)
    return total // 2, total - total // 2


@record("F.pad")
class Pad(Record[T]):
    """The input with margins: constant, reflected, replicated or circular.

    `pad` holds pairs (before, after), the last axis first; negative amounts crop.
    Source: torch.nn.functional.pad.

    Raises
    ------
    ShapeError
        If `pad` has too many pairs, removes an axis, or exceeds what its mode allows.
    """

    input: T = Tensor()
    pad: tuple[int, ...] = Ints()
    mode: str = Str(MODES, "constant")
    value: float | None = Float(None, nullable=True)
    layout = Layout.LIKE
    bfloat16 = FOLLOWS

    def infer(self: Pad[Any]) -> TensorSpec:
        margins = _margins(self.input.shape, self.pad, self.mode)
        if self.mode != "constant" and len(margins) >= self.input.rank:
            raise ShapeError(
                f"'pad' is {self.pad}, expected amounts for at most {self.input.rank - 1} axes of "
                f"an input of shape {self.input.shape} for mode '{self.mode}'"
            )
        return TensorSpec(_padded_shape(self.input.shape, margins), self.input.dtype)

    def bind(self: Pad[Any], b: Binder) -> None:
        margins = _margins(self.input.shape, self.pad, self.mode)
        kept = _crop(self.input, margins)
        if not any(margin.before or margin.after for margin in margins):
            b.alias(kept)
            return
        fill = 0.0 if self.value is None else self.value
        if self.input.dtype.itemsize > 8 and self.mode == "constant":
            pairs = [(0, 0)] * kept.rank
            for margin in margins:
                pairs[margin.axis] = (margin.before, margin.after)
            b.python(lambda x: np.pad(x, pairs, constant_values=fill), [kept], [b.output()])
            return
        _bind_margins(b, b.output(layout=self.input), kept, margins, self.mode, fill)

    @staticmethod
    def batch(c: TracedCall) -> BatchAxis:
        batch = c.first_batch(c.a.input)
        # `pad` holds (before, after) pairs, last axis first.
        from_end = c.a.input.rank - 1 - batch.axis
        c.require(not any(c.a.pad[2 * from_end : 2 * from_end + 2]))
        return batch


@record("kuiper.SamePadding")
class SamePadding(Record[T]):
    """The margins that let the windows of a convolution or pool cover the whole image.

    An odd margin is larger at the end, as in TensorFlow.  `window` holds kernel, stride and
    dilation for h and w.  `kuiper.from_torch` and `kuiper export` write it for timm's `Conv2dSame`
    and similar modules, because pnnx would write the margins of the traced size.
    Source: timm.layers.pad_same.

    Raises
    ------
    ShapeError
        If the input is no image, or `window` or `value` is no constant of the expected form.
    """

    batch = "last_two_axes"
    input: T = Tensor()
    window: T = Tensor()
    value: T = Tensor()
    layout = Layout.LIKE
    bfloat16 = FOLLOWS

    def infer(self: SamePadding[TensorSpec]) -> Any:
        return self.as_function().infer()

    def bind(self: SamePadding[TensorView], b: Binder) -> None:
        self.as_function().bind(b)

    def as_function(self: SamePadding[Known]) -> Pad[Known]:
        """Return the arguments of the equivalent F.pad for this input."""
        shape = self.input.shape
        window, value = self.window, self.value
        if not (window.is_constant and window.shape == (3, 2) and window.dtype.kind in "iu"):
            raise ShapeError("'window' is no constant of integers of shape (3, 2)")
        if not (value.is_constant and value.shape == (1,) and value.dtype.kind == "f"):
            raise ShapeError("'value' is no constant number of shape (1,)")
        if len(shape) < 3:
            raise ShapeError(f"the input has shape {shape}, expected an image: 3 or 4 axes")
        pad: list[int] = []
        for axis, column in enumerate(zip(*np.asarray(window.constant).tolist(), strict=True)):
            kernel, stride, dilation = column
            if min(column) < 1 or max(column) > MAX_WINDOW:
                raise ShapeError(
                    f"'window' has kernel {kernel}, stride {stride} and dilation {dilation}, "
                    f"expected numbers from 1 to {MAX_WINDOW}"
                )
            pad[:0] = same_margins(shape[axis - 2], kernel, stride, dilation)
        number = float(np.asarray(value.constant)[0])
        return Pad(input=self.input, pad=tuple(pad), mode="constant", value=number)


class ModulePad(Record[T]):
    """The input with margins along its spatial axes.

    `padding` holds (before, after) pairs, last axis first; a single number applies to all sides.
    Source: torch.nn.ZeroPad2d, ConstantPad2d, ReflectionPad2d, ReplicationPad2d.

    Raises
    ------
    ShapeError
        If `padding` removes an axis, or exceeds what the mode allows.
    """

    layout = Layout.LIKE
    bfloat16 = FOLLOWS
    mode: ClassVar[str] = "constant"
    input: T
    padding: tuple[int, ...]

    def infer(self: ModulePad[TensorSpec]) -> Any:
        return self._as_function().infer()

    def bind(self: ModulePad[TensorView], b: Binder) -> None:
        self._as_function().bind(b)

    def _as_function(self) -> Pad[T]:
        value = getattr(self, "value", None)
        return Pad(input=self.input, pad=self.padding, mode=self.mode, value=value)

    @staticmethod
    def batch(c: TracedCall) -> list[BatchAxis]:
        spatial = len(c.a.padding) // 2
        # Images may lack channels.
        return c.samples(is_batched=c.a.input.rank in (spatial + 1, spatial + 2))


def _register(mode: str, *names: str) -> None:
    """Register modules whose names end in their number of spatial axes, as in ``2d``."""
    for name in names:
        arguments: tuple[Argument, ...] = schema(
            input=Tensor(), padding=Ints(length=2 * int(name[-2]))
        )
        if name.startswith("nn.Constant"):
            arguments += schema(value=Float())
        members = {
            "arguments": arguments,
            "mode": mode,
            "__doc__": ModulePad.__doc__,
            "__module__": __name__,
        }
        record(name)(type(name.removeprefix("nn."), (ModulePad,), members))


_register("constant", "nn.ZeroPad2d", "nn.ConstantPad1d", "nn.ConstantPad2d", "nn.ConstantPad3d")
_register("reflect", "nn.ReflectionPad1d", "nn.ReflectionPad2d")
_register("replicate", "nn.ReplicationPad1d", "nn.ReplicationPad2d", "nn.ReplicationPad3d")
