"""Trace a PyTorch module in a form that pnnx converts without loss.

pnnx recognises patterns in a trace and replaces some of them by an operator that drops
information, so that even its own runtime differs from PyTorch.  While a module is traced here,
such calls are replaced by equivalent ones that pnnx converts exactly::

    call                                     conversion by pnnx                 traced as
    nn.LayerNorm without bias                drops the weight                   with zero bias
    x ** 3                                   turns a written-out tanh GELU      x.square() * x
                                             into the erf GELU
    x * x and x + x                          crashes at times after a reshape   x.square(), x * 2
                                             by sizes, if x is used once more
    nn.MultiheadAttention(is_causal=True)    drops the mask                     with the mask only
    nn.MultiheadAttention(q, q, v)           writes (q, v), which reads back    with a clone of q
    and (q, k, q)                            as (q, v, v)
    x.as_strided(size, stride) of a view     drops the strides of the view      on x in memory order
    x[a:b].zero_(), .fill_(v)                writes x[a:b] for x                x[a:b].copy_(zeros)
    torch.div(x, y, rounding_mode="floor")   writes x / y                       torch.floor_divide
    the same with "trunc", of floats         rounds down                        torch.trunc(x / y)
    zeros.scatter_(...), zeros[i] = v        stores the values at the end of    zeros.scatter(...)
    and other writes to a constant           the trace
    torch.full_like(x, v) etc. where the     stores the traced number of        (x != x) & (x == x)
    extent of x depends on data              elements                           as numbers, plus v
    x[:n] of such an x with fewer elements   drops the bound                    x[cumsum(ones) <= n]
    functions scripted during tracing        keeps branches and loops           as Python runs them
    (torchvision's batched_nms)

Without this, data-dependent writes would stay in the file with the indices of the trace.
Functions of torchvision's detectors are replaced by versions that hold for any number of boxes,
including none; see `_any_box_count`.

TensorFlow-style "same" padding depends on the image size; it becomes one operator of kuiper,
``kuiper.SamePadding``, since pnnx would store the amounts of the traced size.

This module does not import torch; its functions take the module as an argument.
"""

from __future__ import annotations

import sys
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

__all__ = ["kept_whole"]


@contextmanager
def kept_whole(module: Any, torch: Any) -> Iterator[tuple[str, ...]]:
    """Replace, within this context, all calls that pnnx would convert with loss.

    Parameters
    ----------
    module : torch.nn.Module
        Its layer norms without bias have a zero bias within the context.
    torch : module

    Yields
    ------
    tuple of str
        Classes that pnnx must keep as one operator each.
    """
    bare = [
        part
        for part in module.modules()
        if type(part) is torch.nn.LayerNorm and part.weight is not None and part.bias is None
    ]
    with ExitStack() as stack:
        for part in bare:
            zeros = torch.zeros_like(part.weight)
            part.bias = torch.nn.Parameter(zeros, requires_grad=part.weight.requires_grad)
            stack.callback(setattr, part, "bias", None)
        for part in module.modules():
            if type(part) is torch.nn.MultiheadAttention:
                hook = part.register_forward_pre_hook(_three_inputs, with_kwargs=True)
                stack.callback(hook.remove)
        stack.enter_context(_unscripted(torch))
        stack.enter_context(_any_box_count(torch))
        kept = stack.enter_context(_same_padding(module, torch))
        stack.enter_context(_mode(torch))
        yield kept


def _three_inputs(
    part: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """Clone the query of an attention where it is also the key or the value, but not both.

    The tracer passes equal tensors to a module once, so the file would not say which is missing.
    """
    names = ("query", "key", "value")
    given = dict(zip(names, args, strict=False)) | kwargs
    query, key, value = (given.get(name) for name in names)
    if query is None or (query is key) == (query is value):
        return None
    again = "key" if query is key else "value"
    index = names.index(again)
    if index < len(args):
        return (*args[:index], query.clone(), *args[index + 1 :]), kwargs
    return args, {**kwargs, again: query.clone()}


@contextmanager
def _unscripted(torch: Any) -> Iterator[None]:
    """Trace the Python code of functions that ``torch.jit.script_if_tracing`` would compile."""
    tracer = sys.modules.get("torch.jit._trace")
    compile_ = getattr(tracer, "script", None)
    if compile_ is None:
        yield
        return

    def script(obj: Any, *args: Any, **kwargs: Any) -> Any:
        plain = sys._getframe(1).f_globals is vars(tracer) and not isinstance(obj, torch.nn.Module)
        return obj if plain else compile_(obj, *args, **kwargs)

    tracer.script = script  # type: ignore[union-attr]
    try:
        yield
    finally:
        tracer.script = compile_  # type: ignore[union-attr]


@contextmanager
def _any_box_count(torch: Any) -> Iterator[None]:
    """Trace the detectors of torchvision, if imported, for any number of boxes."""

    def separate(boxes: Any, scores: Any, idxs: Any, iou_threshold: float) -> Any:
        """Suppress boxes per class: each class is shifted to coordinates without other boxes."""
        # The zero gives a maximum even without boxes.  If all coordinates are negative, it only
        # widens the distance between classes.
        largest = torch.cat((boxes, boxes.new_zeros(1, 4))).max()
        moved = boxes + (idxs.to(boxes) * (largest + 1))[:, None]
        return sys.modules["torchvision.ops"].nms(moved, scores, iou_threshold)

    def weights(first: Any, last: Any, extent: int, size: int) -> Any:
        """Return the bilinear weight of each of `size` mask values at each pixel."""
        pixels = torch.arange(extent)[None] - first[:, None]
        count = (last - first + 1).clamp(min=1)[:, None]
        positions = ((pixels + 0.5) * size / count - 0.5).clamp(0, size - 1)
        near = (1 - (positions[..., None] - torch.arange(size)).abs()).clamp(min=0)
        inside = (pixels >= 0) & (pixels < count)
        return near * inside[..., None]

    def paste(masks: Any, boxes: Any, im_h: Any, im_w: Any) -> Any:
        """Resize all masks to their boxes in the image with two matrix products."""
        down = weights(boxes[:, 1], boxes[:, 3], int(im_h), masks.shape[2])
        across = weights(boxes[:, 0], boxes[:, 2], int(im_w), masks.shape[3])
        return down.matmul(masks[:, 0]).matmul(across.transpose(1, 2))

    def at_most(input: Any, orig_kval: int, axis: int) -> int:
        """Return `k` of a topk; for a vector, whose extent depends on data, a bound of `_best`."""
        return _AtMost(orig_kval) if input.dim() == 1 else min(orig_kval, input.shape[axis])

    def merged(levels: Any, unmerged_results: Any) -> Any:
        """Restore the order of the boxes that were pooled per pyramid level."""
        taken = [torch.where(levels == level)[0] for level in range(len(unmerged_results))]
        return torch.cat(list(unmerged_results))[torch.cat(taken).argsort()]

    def masks(x: Any, labels: Any) -> Any:
        """Select the mask of each box's class."""
        if len(labels) != 1:
            return originals["maskrcnn_inference"](x, labels)
        indices = labels[0].reshape(-1, 1, 1, 1).expand(-1, 1, *x.shape[2:])
        return [x.sigmoid().gather(1, indices)]

    originals: dict[str, Any] = {}
    with ExitStack() as stack:
        for home, name, function in (
            ("torchvision.models.detection._utils", "_topk_min", at_most),
            ("torchvision.ops.boxes", "_batched_nms_coordinate_trick", separate),
            ("torchvision.models.detection.roi_heads", "_onnx_paste_masks_in_image_loop", paste),
            ("torchvision.models.detection.roi_heads", "maskrcnn_inference", masks),
            ("torchvision.ops.poolers", "_onnx_merge_levels", merged),
        ):
            part = sys.modules.get(home)
            if hasattr(part, name):
                originals[name] = getattr(part, name)
                stack.callback(setattr, part, name, originals[name])
                setattr(part, name, function)
        yield


@contextmanager
def _same_padding(module: Any, torch: Any) -> Iterator[tuple[str, ...]]:
    """Move the input-dependent padding of each timm layer into a submodule."""
    homes: list[Any] = [
        part
        for name, part in [*sys.modules.items()]
        if name.startswith("timm.layers.") and hasattr(part, "pad_same")
    ]
    names = {home.__name__ for home in homes}
    parts = [
        part
        for part in module.modules()
        if type(part).__module__ in names
        and type(part).__name__.endswith("Same")
        and getattr(part, "same_pad", True)
    ]
    if not parts:
        yield ()
        return

    class SamePadding(torch.nn.Module):  # type: ignore[misc]
        def __init__(self, part: Any, pad: Any) -> None:
            super().__init__()
            # Kernel, stride and dilation, each as (vertical, horizontal).
            self.pairs = [
                [*value] if isinstance(value, list | tuple) else [value, value]
                for value in (part.kernel_size, part.stride, getattr(part, "dilation", 1))
            ]
            self.register_buffer("window", torch.tensor(self.pairs))
            self.number = -float("inf") if isinstance(part, torch.nn.MaxPool2d) else 0.0
            self.register_buffer("value", torch.tensor([self.number]))
            self.pad = pad

        def forward(self, x: Any) -> Any:
            # pnnx only keeps buffers that are used.
            used = 0.0 * self.window.sum() + torch.clamp(self.value, 0.0, 0.0).sum()
            return self.pad(x, *self.pairs, self.number) + used

    SamePadding.__module__ = "kuiper"
    current: list[Any] = []
    original = homes[0].pad_same

    def pad_same(x: Any, *args: Any, **kwargs: Any) -> Any:
        return current.pop().kuiper_padding(x) if current else original(x, *args, **kwargs)

    def enter(part: Any, args: tuple[Any, ...]) -> None:
        current[:] = [part]

    with ExitStack() as stack:
        for part in parts:
            part.add_module("kuiper_padding", SamePadding(part, original).eval())
            stack.callback(delattr, part, "kuiper_padding")
            stack.callback(part.register_forward_pre_hook(enter).remove)
        for home in homes:
            stack.callback(setattr, home, "pad_same", home.pad_same)
            home.pad_same = pad_same
        yield ("kuiper.SamePadding",)


class _AtMost(int):
    """An upper bound on the number of values to keep."""


def _best(torch: Any, x: Any = None, k: Any = None, **others: Any) -> Any:
    """Replace topk by a sort and a slice, so that `k` becomes an upper bound."""
    if type(k) is not _AtMost or others:
        return None
    values, indices = x.sort(dim=-1, descending=True)
    return _first(torch, values, int(k)), _first(torch, indices, int(k))


def _first(torch: Any, x: Any, count: int) -> Any:
    """Return the first `count` rows, in a form that keeps the bound.

    pnnx drops a slice that takes all rows of the trace, so a mask replaces it.
    """
    if count < x.shape[0]:
        return x[:count]
    rows = x if x.dim() == 1 else x[(slice(None), *[0] * (x.dim() - 1))]
    return x[_filled(torch, "ones_like", rows, dtype=torch.int64).cumsum(0) <= count]


def _at_most(torch: Any, x: Any, index: Any) -> Any:
    """Return ``x[:count]`` of a data-dependent number of rows."""
    if not isinstance(index, slice) or type(index.stop) is not int or index.stop < 1:
        return None
    if index.start not in (None, 0) or index.step not in (None, 1) or 0 in x.shape[1:]:
        return None
    return _first(torch, x, index.stop)


# Functions whose results pnnx stores as constants, and those that keep a constant constant.
_CREATORS = {
    f"{prefix}{name}{suffix}"
    for name in ("zeros", "ones", "full", "empty")
    for prefix, suffix in (("", ""), ("", "_like"), ("new_", ""))
} | {"eye", "arange", "tensor", "new_tensor"}
_KEEPERS = {
    "clone", "to", "float", "long", "int", "bool", "type", "type_as", "contiguous", "expand",
    "repeat", "reshape", "view", "unsqueeze", "triu", "tril", "masked_fill", "copy_", "fill_",
    "zero_",
}  # fmt: skip

# Writes that may be data-dependent.
_WRITERS = {
    "scatter_", "scatter_add_", "scatter_reduce_", "index_add_", "index_copy_", "index_fill_",
    "index_put_", "masked_fill_", "masked_scatter_", "__setitem__",
}  # fmt: skip

# Functions with data-dependent extents; so have `where(condition)` and indexing by a mask.
_COUNTERS = {"argwhere", "masked_select", "nms", "nonzero", "unique", "unique_consecutive"}

# Functions that fill a tensor of the shape of another one -> the value (None: an argument).
_FILLERS = {"full_like": None, "ones_like": 1, "zeros_like": 0}


class _Known:
    """A set of live tensors, by identity."""

    def __init__(self) -> None:
        self._known: dict[int, weakref.ref[Any]] = {}

    def __bool__(self) -> bool:
        return bool(self._known)

    def add(self, tensor: Any) -> None:
        if isinstance(tensor, list | tuple):
            for part in tensor:
                self.add(part)
        elif hasattr(tensor, "data_ptr"):
            self._known[id(tensor)] = weakref.ref(tensor)

    def __contains__(self, tensor: Any) -> bool:
        known = self._known.get(id(tensor))
        return known is not None and known() is tensor


def _mode(torch: Any) -> Any:
    """Return the mode that intercepts calls of PyTorch functions and replaces some of them."""
    attention = torch.nn.functional.multi_head_attention_forward
    makers: dict[str, Callable[..., Any]] = {
        "pow": _cube,
        "__pow__": _cube,
        "mul": _square,
        "multiply": _square,
        "__mul__": _square,
        "add": _double,
        "__add__": _double,
        "as_strided": _as_strided,
        "zero_": _fill,
        "fill_": _fill,
        "topk": _best,
        "div": _divide,
        "divide": _divide,
    }

    # Tensors that pnnx stores as constants, and tensors with data-dependent extents.
    made, counted = _Known(), _Known()
    inside = {torch.overrides.__file__, torch._tensor.__file__}

    class Whole(torch.overrides.TorchFunctionMode):  # type: ignore[misc]
        def __torch_function__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            caller = sys._getframe(1)
            while caller.f_back and caller.f_code.co_filename in inside:
                caller = caller.f_back
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                result = self.call(function, args, kwargs or {})
            for one in caught:
                # The tracer blames the calling line; report the user's line instead of this file's.
                here = one.filename == __file__
                file = caller.f_code.co_filename if here else one.filename
                line = caller.f_lineno if here else one.lineno
                warnings.warn_explicit(one.message, one.category, file, line)
            return result

        def call(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            if function is attention:
                if kwargs.get("is_causal") and kwargs.get("attn_mask") is not None:
                    kwargs = {**kwargs, "is_causal": False}
                return function(*args, **kwargs)
            name = getattr(function, "__name__", "")
            result = None
            if make := makers.get(name):
                result = make(torch, *args, **kwargs)
            elif name in _WRITERS and args and args[0] in made:
                result = _written(torch, name, *args, **kwargs)
            elif name in _FILLERS and args and args[0] in counted:
                result = _filled(torch, name, *args, **kwargs)
            elif name == "__getitem__" and args[0] in counted:
                result = _at_most(torch, *args)
            if result is None:
                result = function(*args, **kwargs)
            if name in _CREATORS or (name in _KEEPERS and args and args[0] in made):
                made.add(result)
            if _counts(torch, name, args) or (counted and _among(counted, (args, kwargs))):
                counted.add(result)
            return result

    return Whole()


def _counts(torch: Any, name: str, args: tuple[Any, ...]) -> bool:
    """Tell whether the number of elements that a call returns depends on data."""
    if name == "__getitem__":
        indices = args[1] if isinstance(args[1], tuple) else (args[1],)
        return any(isinstance(i, torch.Tensor) and i.dtype is torch.bool for i in indices)
    return name in _COUNTERS or (name == "where" and len(args) == 1)


def _among(known: _Known, value: Any) -> bool:
    """Tell whether nested arguments contain a known tensor."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return any(_among(known, part) for part in value)
    return value in known


def _filled(torch: Any, name: str, x: Any, *args: Any, **kwargs: Any) -> Any:
    """Compute a filled tensor from another one, so that it follows its extents."""
    value = _FILLERS[name]
    if value is None:
        value = kwargs.pop("fill_value") if "fill_value" in kwargs else args[0]
    dtype = kwargs.pop("dtype", None) or x.dtype
    if isinstance(value, torch.Tensor) or dtype.is_complex or x.dim() == 0:
        return None
    never = (x != x) & (x == x)
    if dtype is torch.bool:
        return ~never if value else never
    return never.to(dtype) + (float(value) if dtype.is_floating_point else int(value))


def _cube(torch: Any, x: Any = None, exponent: Any = None, **others: Any) -> Any:
    """Return x**3 as two products, as PyTorch computes it; see `_square`."""
    exponent = others.pop("exponent", exponent)
    if others or type(exponent) not in (int, float) or exponent != 3 or not _is_float(torch, x):
        return None
    return torch.square(x) * x


def _square(torch: Any, x: Any = None, y: Any = None, **others: Any) -> Any:
    """Return the product of a tensor and itself as one function of it.

    When pnnx removes a reshape whose result is an operand of several operators of one expression,
    among them one that has it twice, it reads freed memory.
    """
    y = others.pop("other", y)
    return torch.square(x) if x is y and not others and _is_float(torch, x) else None


def _double(torch: Any, x: Any = None, y: Any = None, **others: Any) -> Any:
    """Return the sum of a tensor and itself as a product; see `_square`."""
    y = others.pop("other", y)
    return x * 2 if x is y and not others and _is_float(torch, x) else None


def _as_strided(
    torch: Any,
    x: Any = None,
    size: Any = None,
    stride: Any = None,
    storage_offset: int | None = None,
    **others: Any,
) -> Any:
    """Apply `as_strided` to a contiguous permutation of a view."""
    if others or x is None:
        return None
    order = sorted(range(x.dim()), key=lambda axis: (-x.stride(axis), -x.shape[axis]))
    if order == list(range(x.dim())) and x.is_contiguous():
        return None
    start = 0 if storage_offset is None else storage_offset - x.storage_offset()
    dense = x.permute(order)
    if start < 0 or not dense.is_contiguous():
        return None
    return dense.contiguous().as_strided(size, stride, start)


def _fill(torch: Any, x: Any = None, value: Any = 0, **others: Any) -> Any:
    """Fill a view by copying into it."""
    if others or x is None or not x._is_view():
        return None
    if isinstance(value, torch.Tensor):
        return x.copy_(value.expand(x.shape))
    return x.copy_(torch.full_like(x, value))


def _written(torch: Any, name: str, x: Any, *args: Any, **kwargs: Any) -> Any:
    """Trace an in-place write to a constant as a new tensor that takes over its trace value.

    The trace then never writes into the tensor that pnnx stores as a constant.
    """
    tracer = torch._C
    state = tracer._get_tracing_state()
    if state is None or x._is_view():
        return None
    if name == "__setitem__":
        indices, value = args
        indices = indices if isinstance(indices, tuple) else (indices,)
        if not all(isinstance(index, torch.Tensor) for index in indices):
            return None
        if not isinstance(value, torch.Tensor):
            value = torch.full((), value, dtype=x.dtype)
        result = x.index_put(indices, value)
    else:
        # The tracer of PyTorch fails on a bool where it expects a number.
        plain = [int(value) if type(value) is bool else value for value in args]
        result = getattr(x, name[:-1])(*plain, **kwargs)
    tracer._set_tracing_state(None)
    try:
        x.copy_(result)
    finally:
        tracer._set_tracing_state(state)
    tracer._set_value_trace(x, tracer._get_value_trace(result))
    return x


def _divide(torch: Any, x: Any = None, y: Any = None, **others: Any) -> Any:
    """Replace a rounding division by `floor_divide` or `trunc`."""
    y = others.pop("other", y)
    rounding = others.pop("rounding_mode", None)
    if others:
        return None
    if rounding == "floor":
        return torch.floor_divide(x, y)
    if rounding == "trunc" and (_is_float(torch, x) or _is_float(torch, y)):
        return torch.trunc(torch.div(x, y))
    return None


def _is_float(torch: Any, x: Any) -> bool:
    return isinstance(x, torch.Tensor) and x.is_floating_point()
