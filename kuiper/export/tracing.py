"""Trace a PyTorch module so that what it computes survives the conversion by pnnx.

pnnx recognises patterns in a trace, and for some of them it writes an operator that says less than
was there: nothing in the file tells any more what is missing, and its own runtime gives other
numbers than PyTorch as well.  While a module is traced here, such calls are made in another way
that gives the same numbers and that pnnx converts as it is::

    called                                   pnnx would                         traced
    nn.LayerNorm without bias                leave out the weight               with a bias of zeros
    x ** 3                                   write a written-out GELU of tanh   x * x * x
                                             as the GELU of erf
    nn.MultiheadAttention(is_causal=True)    leave out the mask                 with the mask alone
    nn.MultiheadAttention(q, q, v)           write (q, v), which is read as     with a clone of q
    and (q, k, q)                            (q, v, v)
    x.as_strided(size, stride) of a view     forget how the view lies           of x in memory order
    x[a:b].zero_(), .fill_(v)                write x[a:b] for x                 x[a:b].copy_(zeros)
    torch.div(x, y, rounding_mode="floor")   write x / y                        torch.floor_divide
    the same with "trunc", of floats         round down                         torch.trunc(x / y)
    zeros.scatter_(...), zeros[i] = v        store the zeros as they are        zeros.scatter(...)
    and the like                             when the trace has run
    torch.full_like(x, v) and the like, of   store as many numbers as in    (x != x) & (x == x) as
    as many as a mask selects                the trace                      numbers, plus v
    x[:n] of them, if they are fewer         leave the bound out            x[ones.cumsum(0) <= n]
    what is scripted where it is traced      keep its branches and loops    as Python runs it
    (torchvision's batched_nms)

What is written to places that depend on the data would be in the file as the trace wrote it, and
never be taken back.  Some of torchvision's own functions are traced as ones that hold for any
number of boxes, none among them; see `_of_any_number`.

"Same" padding in TensorFlow's style, which depends on the size of the image, becomes one operator
of kuiper's own, ``kuiper.SamePadding``: pnnx would write the amounts of the traced size.

Nothing here imports torch before it is asked to trace.
"""

from __future__ import annotations

import sys
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["kept_whole"]


@contextmanager
def kept_whole(module: Any, torch: Any) -> Iterator[tuple[str, ...]]:
    """Let what is traced in this context survive the conversion.

    Gives the classes, if any, that pnnx has to keep as one operator each.

    Parameters
    ----------
    module : torch.nn.Module
        Its layer norms without bias have one in the meantime.
    torch : module
    """
    bare = [
        part
        for part in module.modules()
        if type(part) is torch.nn.LayerNorm and part.weight is not None and part.bias is None
    ]
    for part in bare:
        zeros = torch.zeros_like(part.weight)
        part.bias = torch.nn.Parameter(zeros, requires_grad=part.weight.requires_grad)
    hooks = [
        part.register_forward_pre_hook(_three_inputs, with_kwargs=True)
        for part in module.modules()
        if type(part) is torch.nn.MultiheadAttention
    ]
    try:
        with (
            _unscripted(torch),
            _of_any_number(torch),
            _same_padding(module, torch) as kept,
            _mode(torch),
        ):
            yield kept
    finally:
        for part in bare:
            part.bias = None
        for hook in hooks:
            hook.remove()


def _three_inputs(
    part: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """Give an attention three tensors where its query comes again as either its key or its value.

    The tracer hands the same tensor to a module once, so the file would not tell which is missing.
    """
    names = ("query", "key", "value")
    given = dict(zip(names, args, strict=False)) | kwargs
    query, key, value = (given.get(name) for name in names)
    if query is None or (query is key) == (query is value):
        return None
    again = "key" if query is key else "value"
    place = names.index(again)
    if place < len(args):
        return (*args[:place], query.clone(), *args[place + 1 :]), kwargs
    return args, {**kwargs, again: query.clone()}


@contextmanager
def _unscripted(torch: Any) -> Iterator[None]:
    """Trace the Python of what ``torch.jit.script_if_tracing`` would compile."""
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
def _of_any_number(torch: Any) -> Iterator[None]:
    """Let torchvision's detectors be traced for any number of boxes, if they are imported."""

    def separate(boxes: Any, scores: Any, idxs: Any, iou_threshold: float) -> Any:
        """Suppress boxes of each class alone, which are moved to where no other class has any."""
        # With the zero there is a largest one even of no boxes; it changes nothing otherwise,
        # since boxes all of negative coordinates stay as far apart.
        largest = torch.cat((boxes, boxes.new_zeros(1, 4))).max()
        moved = boxes + (idxs.to(boxes) * (largest + 1))[:, None]
        return sys.modules["torchvision.ops"].nms(moved, scores, iou_threshold)

    def weights(first: Any, last: Any, extent: int, size: int) -> Any:
        """Return by how much each of `size` values counts at each pixel, by two neighbours."""
        pixels = torch.arange(extent)[None] - first[:, None]
        count = (last - first + 1).clamp(min=1)[:, None]
        places = ((pixels + 0.5) * size / count - 0.5).clamp(0, size - 1)
        near = (1 - (places[..., None] - torch.arange(size)).abs()).clamp(min=0)
        inside = (pixels >= 0) & (pixels < count)
        return near * inside[..., None]

    def paste(masks: Any, boxes: Any, im_h: Any, im_w: Any) -> Any:
        """Resize each mask to its box and put it there; all at once, as two products."""
        down = weights(boxes[:, 1], boxes[:, 3], int(im_h), masks.shape[2])
        across = weights(boxes[:, 0], boxes[:, 2], int(im_w), masks.shape[3])
        return down.matmul(masks[:, 0]).matmul(across.transpose(1, 2))

    def at_most(input: Any, orig_kval: int, axis: int) -> int:
        """Return how many of the best to keep; of a vector, whose extent the data decide, see
        `_best`.
        """
        return _AtMost(orig_kval) if input.dim() == 1 else min(orig_kval, input.shape[axis])

    def merged(levels: Any, unmerged_results: Any) -> Any:
        """Put what was pooled at each level of a pyramid back into the order of the boxes."""
        taken = [torch.where(levels == level)[0] for level in range(len(unmerged_results))]
        return torch.cat(list(unmerged_results))[torch.cat(taken).argsort()]

    def masks(x: Any, labels: Any) -> Any:
        """Take from the masks of each box that of its class."""
        if len(labels) != 1:
            return originals["maskrcnn_inference"](x, labels)
        places = labels[0].reshape(-1, 1, 1, 1).expand(-1, 1, *x.shape[2:])
        return [x.sigmoid().gather(1, places)]

    others: list[tuple[Any, str, Any]] = []
    originals: dict[str, Any] = {}
    for place, name, function in (
        ("torchvision.models.detection._utils", "_topk_min", at_most),
        ("torchvision.ops.boxes", "_batched_nms_coordinate_trick", separate),
        ("torchvision.models.detection.roi_heads", "_onnx_paste_masks_in_image_loop", paste),
        ("torchvision.models.detection.roi_heads", "maskrcnn_inference", masks),
        ("torchvision.ops.poolers", "_onnx_merge_levels", merged),
    ):
        part = sys.modules.get(place)
        if hasattr(part, name):
            originals[name] = getattr(part, name)
            others.append((part, name, originals[name]))
            setattr(part, name, function)
    try:
        yield
    finally:
        for part, name, function in others:
            setattr(part, name, function)


@contextmanager
def _same_padding(module: Any, torch: Any) -> Iterator[tuple[str, ...]]:
    """Let each layer of timm that pads by the size of its input do so in a module of its own."""
    places: list[Any] = [
        part
        for name, part in [*sys.modules.items()]
        if name.startswith("timm.layers.") and hasattr(part, "pad_same")
    ]
    names = {place.__name__ for place in places}
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
            # Kernel, stride and dilation, each down and across.
            self.pairs = [
                [*value] if isinstance(value, list | tuple) else [value, value]
                for value in (part.kernel_size, part.stride, getattr(part, "dilation", 1))
            ]
            self.register_buffer("window", torch.tensor(self.pairs))
            self.number = -float("inf") if isinstance(part, torch.nn.MaxPool2d) else 0.0
            self.register_buffer("value", torch.tensor([self.number]))
            self.pad = pad

        def forward(self, x: Any) -> Any:
            # pnnx keeps the buffers that are used.
            used = 0.0 * self.window.sum() + torch.clamp(self.value, 0.0, 0.0).sum()
            return self.pad(x, *self.pairs, self.number) + used

    SamePadding.__module__ = "kuiper"
    current: list[Any] = []
    originals = [(place, place.pad_same) for place in places]

    def pad_same(x: Any, *args: Any, **kwargs: Any) -> Any:
        return current.pop().kuiper_padding(x) if current else originals[0][1](x, *args, **kwargs)

    def enter(part: Any, args: tuple[Any, ...]) -> None:
        current[:] = [part]

    hooks = []
    for part in parts:
        part.add_module("kuiper_padding", SamePadding(part, originals[0][1]).eval())
        hooks.append(part.register_forward_pre_hook(enter))
    for place, _ in originals:
        place.pad_same = pad_same
    try:
        yield ("kuiper.SamePadding",)
    finally:
        for place, function in originals:
            place.pad_same = function
        for part in parts:
            del part.kuiper_padding
        for hook in hooks:
            hook.remove()


class _AtMost(int):
    """How many of the best values to keep, if there are so many."""


def _best(torch: Any, x: Any = None, k: Any = None, **others: Any) -> Any:
    """Sort all and keep the first: their number is then no more than a bound, as in a slice."""
    if type(k) is not _AtMost or others:
        return None
    values, places = x.sort(dim=-1, descending=True)
    return _first(torch, values, int(k)), _first(torch, places, int(k))


def _first(torch: Any, x: Any, count: int) -> Any:
    """Return the first rows, so that the bound stays where there are no more of them in the trace.

    A slice that takes all is nothing that pnnx keeps.
    """
    if count < x.shape[0]:
        return x[:count]
    rows = x if x.dim() == 1 else x[(slice(None), *[0] * (x.dim() - 1))]
    return x[_filled(torch, "ones_like", rows, dtype=torch.int64).cumsum(0) <= count]


def _at_most(torch: Any, x: Any, places: Any) -> Any:
    """Return ``x[:count]`` of as many rows as the data decide."""
    if not isinstance(places, slice) or type(places.stop) is not int or places.stop < 1:
        return None
    if places.start not in (None, 0) or places.step not in (None, 1) or 0 in x.shape[1:]:
        return None
    return _first(torch, x, places.stop)


# What makes a tensor of which pnnx makes a constant, and what makes another one of such.
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

# What writes to places that may depend on the data.
_WRITERS = {
    "scatter_", "scatter_add_", "scatter_reduce_", "index_add_", "index_copy_", "index_fill_",
    "index_put_", "masked_fill_", "masked_scatter_", "__setitem__",
}  # fmt: skip


# What gives as many as the data say; `where` of a condition alone and a mask as index do, too.
_COUNTERS = {"argwhere", "masked_select", "nms", "nonzero", "unique", "unique_consecutive"}

# What fills a tensor of another one's shape, and with what.
_FILLERS = {"full_like": None, "ones_like": 1, "zeros_like": 0}


class _Known:
    """Tensors of which something was found out in the trace, as long as they live."""

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
    """Return what sees each call of PyTorch's functions, and makes some of them another way."""
    attention = torch.nn.functional.multi_head_attention_forward
    makers: dict[str, Callable[..., Any]] = {
        "pow": _cube,
        "__pow__": _cube,
        "as_strided": _as_strided,
        "zero_": _fill,
        "fill_": _fill,
        "topk": _best,
        "div": _divide,
        "divide": _divide,
    }

    # Those that pnnx makes constants of, and those whose extents the data may decide.
    made, counted = _Known(), _Known()
    inside = {torch.overrides.__file__, torch._tensor.__file__}

    class Whole(torch.overrides.TorchFunctionMode):  # type: ignore[misc]
        def __torch_function__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            caller = sys._getframe(1)
            while caller.f_back and caller.f_code.co_filename in inside:
                caller = caller.f_back
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                result = self.call(function, args, kwargs or {})
            for one in said:
                # The tracer warns of the line that it was called from, which is not this one.
                here = one.filename == __file__
                place = caller.f_code.co_filename if here else one.filename
                line = caller.f_lineno if here else one.lineno
                warnings.warn_explicit(one.message, one.category, place, line)
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
    """Tell whether the data decide how many elements a call gives."""
    if name == "__getitem__":
        places = args[1] if isinstance(args[1], tuple) else (args[1],)
        return any(isinstance(i, torch.Tensor) and i.dtype is torch.bool for i in places)
    return name in _COUNTERS or (name == "where" and len(args) == 1)


def _among(known: _Known, value: Any) -> bool:
    """Tell whether one of the tensors in nested arguments is known."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return any(_among(known, part) for part in value)
    return value in known


def _filled(torch: Any, name: str, x: Any, *args: Any, **kwargs: Any) -> Any:
    """Return a filled tensor that is computed from another one, so that it has its extents."""
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
    """Return the third power as PyTorch computes it, as two products."""
    exponent = others.pop("exponent", exponent)
    if others or type(exponent) not in (int, float) or exponent != 3 or not _is_float(torch, x):
        return None
    return x * x * x


def _as_strided(
    torch: Any,
    x: Any = None,
    size: Any = None,
    stride: Any = None,
    storage_offset: int | None = None,
    **others: Any,
) -> Any:
    """Return the same elements by their places in a tensor that lies as it is written."""
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
    """Fill a part of a tensor by copying into it."""
    if others or x is None or not x._is_view():
        return None
    if isinstance(value, torch.Tensor):
        return x.copy_(value.expand(x.shape))
    return x.copy_(torch.full_like(x, value))


def _written(torch: Any, name: str, x: Any, *args: Any, **kwargs: Any) -> Any:
    """Trace what is written into a tensor as another tensor, which has its name from then on.

    So the trace never writes into the tensor that pnnx makes a constant of.
    """
    tracer = torch._C
    state = tracer._get_tracing_state()
    if state is None or x._is_view():
        return None
    if name == "__setitem__":
        places, value = args
        places = places if isinstance(places, tuple) else (places,)
        if not all(isinstance(place, torch.Tensor) for place in places):
            return None
        if not isinstance(value, torch.Tensor):
            value = torch.full((), value, dtype=x.dtype)
        result = x.index_put(places, value)
    else:
        # A bool for a number stops PyTorch's tracer.
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
    """Return a rounded quotient by functions of their own."""
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
