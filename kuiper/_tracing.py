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

The last is for places that depend on the data: what the trace wrote into a tensor that was made in
the model would be in the file, and never be taken back.

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
def kept_whole(module: Any, torch: Any) -> Iterator[None]:
    """Let what is traced in this context survive the conversion.

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
        with _mode(torch):
            yield
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


class _Made:
    """The tensors that were made in the trace, as long as they live."""

    def __init__(self) -> None:
        self._known: dict[int, weakref.ref[Any]] = {}

    def add(self, tensor: Any) -> None:
        if hasattr(tensor, "is_floating_point"):
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
        "div": _divide,
        "divide": _divide,
    }

    made = _Made()
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
            if result is None:
                result = function(*args, **kwargs)
            if name in _CREATORS or (name in _KEEPERS and args and args[0] in made):
                made.add(result)
            return result

    return Whole()


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
