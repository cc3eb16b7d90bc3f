"""Operators that move elements: shapes, slices, gathers, constants."""

from __future__ import annotations

from typing import Any

import numpy as np

from kuiper.onnx import computed
from kuiper.onnx.bounds import is_count
from kuiper.onnx.builder import Builder, torch_name
from kuiper.onnx.registry import op
from kuiper.onnx.values import Known, Ref, Size, product

__all__: list[str] = []

FAR = 2**31 - 1  # an end at or beyond it is open


def axes_of(b: Builder, axes: Any, rank: int) -> list[int]:
    """Return axes without repetition, counted from the start."""
    found = [b.axis(axis, rank) for axis in b.ints(axes, "axes")]
    if len(set(found)) != len(found):
        raise b.error(f"axes are {found}, expected each once")
    return found


@op("Constant")
def constant(
    b: Builder, *, value: Any = None, value_float: Any = None, value_floats: Any = None,
    value_int: Any = None, value_ints: Any = None, value_string: Any = None,
    value_strings: Any = None, sparse_value: Any = None,
) -> Any:  # fmt: skip
    if value is not None:
        return value
    for found, dtype in (
        (value_float, np.float32), (value_floats, np.float32), (value_int, np.int64),
        (value_ints, np.int64),
    ):  # fmt: skip
        if found is not None:
            return Known(np.array(found, dtype))
    raise b.error("is a text or a sparse tensor, which kuiper does not support")


@op("Shape")
def shape(b: Builder, x: Any, *, start: int = 0, end: int | None = None) -> Any:
    extents = b.extents(x)[slice(start, end)]
    if any(isinstance(n, Size) for n in extents):
        array = np.empty(len(extents), object)
        array[:] = extents
        return Known(array, np.int64)
    return Known(np.array(extents, np.int64))


@op("Size")
def size(b: Builder, x: Any) -> Any:
    count = product(b.extents(x))
    if isinstance(count, Size):
        array = np.empty((), object)
        array[()] = count
        return Known(array, np.int64)
    return Known(np.array(count, np.int64))


@op("Reshape")
def reshape(
    b: Builder, x: Any, shape: Any = None, *, allowzero: int = 0, consumed_inputs: Any = None
) -> Any:
    target = b.numbers(shape, "shape")
    if not allowzero:
        target = [
            b.extents(x)[i] if isinstance(n, int) and n == 0 else n for i, n in enumerate(target)
        ]
    # One open extent follows from the others: a literal shape is simpler than an expression.
    opened = [i for i, n in enumerate(target) if isinstance(n, Size)]
    if len(opened) == 1 and not any(isinstance(n, int) and n == -1 for n in target):
        rest = [n for n in target if not isinstance(n, Size)]
        if 0 not in rest:
            target[opened[0]] = -1
    result = b.emit("Tensor.reshape", x, shape=target)
    found = [n if isinstance(n, int) and n > 0 else None for n in target]
    return result if result.shape is not None else b.declared(result, x.dtype, found)


@op("Flatten")
def flatten(b: Builder, x: Any, *, axis: int = 1) -> Any:
    rank = x.rank
    axis = axis + rank if axis < 0 else axis
    if axis == 1 and rank > 1:
        return b.emit("torch.flatten", x, start_dim=1, end_dim=-1)
    extents = b.extents(x)
    front, rest = product(extents[:axis]), product(extents[axis:])
    if isinstance(rest, int) and rest:
        return b.emit("Tensor.reshape", x, shape=[-1, rest])
    return b.emit("Tensor.reshape", x, shape=[front, rest])


@op("Squeeze")
def squeeze(b: Builder, x: Any, axes: Any = None) -> Any:
    if axes is None:
        if None in (x.shape or (None,)):
            raise b.error("drops all axes of extent 1 of an input whose extents are open")
        axes = [i for i, n in enumerate(x.shape) if n == 1]
    if isinstance(axes, Ref):
        return computed.squeezed(b, x, axes)
    drop = axes_of(b, axes, x.rank)
    extents = b.extents(x)
    for axis in drop:
        if isinstance(extents[axis], int) and extents[axis] != 1:
            raise b.error(f"drops axis {axis}, whose extent is {extents[axis]}")
    result = b.ref(x)
    for axis in sorted(drop, reverse=True):
        result = b.emit("torch.squeeze", result, dim=axis)
    return result


@op("Unsqueeze")
def unsqueeze(b: Builder, x: Any, axes: Any = None) -> Any:
    if isinstance(axes, Ref):
        return computed.unsqueezed(b, x, axes)
    rank = x.rank + len(b.ints(axes, "axes"))
    result = b.ref(x)
    for axis in sorted(axes_of(b, axes, rank)):
        result = b.emit("torch.unsqueeze", result, dim=axis)
    return result


@op("Transpose")
def transpose(b: Builder, x: Any, *, perm: Any = None) -> Any:
    order = list(range(x.rank))[::-1] if perm is None else list(perm)
    if sorted(order) != list(range(x.rank)):
        raise b.error(f"perm is {order}, expected an order of {x.rank} axes")
    if order == sorted(order):
        return x
    return b.emit("Tensor.permute", x, dims=order)


@op("Concat")
def concat(b: Builder, *values: Any, axis: int = 1) -> Any:
    if len(values) == 1:
        return values[0]
    return b.emit("torch.cat", *values, dim=axis)


@op("Split")
def split(
    b: Builder, x: Any, sizes: Any = None, *, split: Any = None, axis: int = 0,
    num_outputs: int = 0,
) -> Any:  # fmt: skip
    count = num_outputs or len(b.outputs)
    given = split if sizes is None else sizes
    if given is None:
        extent = x.extent(axis) if isinstance(x, Ref) else x.shape[axis]
        if isinstance(extent, int):
            part = -(-extent // count)
            given = [max(0, min(part, extent - i * part)) for i in range(count)]
        else:
            part = (extent + (count - 1)) // count
            given = [part] * (count - 1) + [extent - part * (count - 1)]
    lengths = b.numbers(given, "split")
    if len(lengths) == 1:
        return x
    return b.emit("torch.split", x, n=len(lengths), split_size_or_sections=lengths, dim=axis)


@op("Slice")
def slice_old(b: Builder, x: Any, *, starts: Any, ends: Any, axes: Any = None) -> Any:
    return _sliced(b, x, starts, ends, axes, None)


@op("Slice", since=10)
def slice_(b: Builder, x: Any, starts: Any, ends: Any, axes: Any = None, steps: Any = None) -> Any:
    return _sliced(b, x, starts, ends, axes, steps)


def _sliced(b: Builder, x: Any, starts: Any, ends: Any, axes: Any, steps: Any) -> Any:
    first, last = b.numbers(starts, "starts"), b.numbers(ends, "ends")
    if isinstance(axes, Ref) or isinstance(steps, Ref):
        return computed.sliced(b, x, first, last, axes, steps)
    along = axes_of(b, range(len(first)) if axes is None else axes, x.rank)
    by = [1] * len(first) if steps is None else b.ints(steps, "steps")
    if not len(first) == len(last) == len(along) == len(by):
        raise b.error("starts, ends, axes and steps differ in length")
    result = b.ref(x)
    for start, end, axis, step in zip(first, last, along, by, strict=True):
        if step == 0:
            raise b.error("steps has a 0")
        if step < 0:
            result, start, end = _reversed(b, result, axis, start, end)
        open_start = isinstance(start, int) and start <= -FAR
        open_end = isinstance(end, int) and end >= FAR
        start = 0 if open_start else start
        if open_end and isinstance(start, int) and start == 0 and step in (1, -1):
            continue
        result = b.emit(
            "Tensor.slice", result, dim=axis, start=start, end=None if open_end else end,
            step=abs(step),
        )  # fmt: skip
    return result


def _reversed(b: Builder, x: Ref, axis: int, start: Any, end: Any) -> tuple[Ref, Any, Any]:
    """Return a tensor flipped along an axis, and the bounds of the same range in it."""
    extent = x.extent(axis)
    if not (isinstance(start, int) and isinstance(end, int)):
        raise b.error("starts or ends are computed and steps are negative")
    flipped = b.emit("torch.flip", x, dims=(axis,))
    if start >= FAR:
        first: Any = 0
    elif start < 0:
        first = -start - 1
    else:
        low = start if isinstance(extent, Size) else min(start, extent - 1)
        first = extent - 1 - low
    if (isinstance(extent, int) and end < -extent) or end <= -FAR:
        last: Any = FAR
    elif end < 0:
        last = -end - 1
    else:
        last = extent - 1 - end
        last = last if isinstance(last, Size) else max(last, 0)
    return flipped, first, last


@op("Gather")
def gather(b: Builder, x: Any, indices: Any, *, axis: int = 0) -> Any:
    axis = b.axis(axis, x.rank)
    if isinstance(indices, Known) and indices.is_open and indices.size == 1:
        item = indices.array.reshape(-1)[0]
        picked = b.emit("Tensor.select", x, dim=axis, index=item)
        for _ in range(indices.rank):
            picked = b.emit("torch.unsqueeze", picked, dim=axis)
        return picked
    if isinstance(indices, Known) and not indices.is_open:
        return _gathered(b, x, indices.array, axis)
    return _indexed(b, x, [None] * axis + [b.cast(b.ref(indices), np.int64)])


def _gathered(b: Builder, x: Any, indices: np.ndarray, axis: int) -> Any:
    """Return slices at known indices."""
    extent = b.extents(x)[axis]
    if indices.ndim == 0:
        return b.emit("Tensor.select", x, dim=axis, index=int(indices))
    flat = indices.reshape(-1)
    if isinstance(extent, int):
        if flat.size and not (-extent <= flat.min() and flat.max() < extent):
            raise b.error(f"an index is outside of an axis of extent {extent}")
        indices = np.where(indices < 0, indices + extent, indices)
        flat = indices.reshape(-1)
    if x.shape and None not in x.shape and np.array_equal(flat, np.arange(x.shape[axis])):
        # torch's exporter writes `as_strided` so, after a reshape to one axis.
        shape = (*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :])
        return b.emit("Tensor.reshape", x, shape=shape)
    if flat.size and flat.min() >= 0 and indices.ndim == 1:
        if (np.diff(flat) == 1).all():
            return b.emit(
                "Tensor.slice", x, dim=axis, start=int(flat[0]), end=int(flat[-1]) + 1, step=1
            )
        return b.emit("torch.index_select", x, dim=axis, index=Known(flat.astype(np.int64)))
    return _indexed(b, x, [None] * axis + [Known(indices.astype(np.int64))])


def _indexed(b: Builder, x: Any, items: list[Any]) -> Any:
    """Return ``x[items]`` with None for a whole axis."""
    return b.emit("Tensor.index", x, index_list(b, items))


def index_list(b: Builder, items: list[Any]) -> Ref:
    """Return the operand of a list of indices, with None for a whole axis."""
    given = [b.ref(item) for item in items if item is not None]
    numbers = iter(range(len(given)))
    text = ",".join("None" if item is None else f"@{next(numbers)}" for item in items)
    return b.formula(f"[{text}]", *given)


@op("GatherElements")
def gather_elements(b: Builder, x: Any, indices: Any, *, axis: int = 0) -> Any:
    return b.emit("torch.gather", x, dim=axis, index=_wrapped(b, x, indices, axis))


def _wrapped(b: Builder, x: Any, indices: Any, axis: int) -> Any:
    """Return indices that count from the start of an axis."""
    extent = b.extents(x)[b.axis(axis, x.rank)]
    if isinstance(indices, Known) and not indices.is_open:
        array = indices.array.astype(np.int64)
        if array.size == 0 or array.min() >= 0:
            return Known(array)
        if isinstance(extent, int):
            return Known(np.where(array < 0, array + extent, array))
    if isinstance(indices, Ref) and is_count(indices.operand):
        return b.cast(indices, np.int64)
    indices = b.cast(b.ref(indices), np.int64)
    negative = b.emit("torch.lt", indices, b.ref(Known(np.zeros((), np.int64))))
    return b.emit("torch.where", negative, b.call("add", indices, extent), indices)


@op("GatherND")
def gather_nd(b: Builder, x: Any, indices: Any, *, batch_dims: int = 0) -> Any:
    depth = b.extents(indices)[-1]
    if not isinstance(depth, int):
        raise b.error("the last axis of the indices is open")
    indices = b.cast(b.ref(indices), np.int64)
    items: list[Any] = []
    for axis in range(batch_dims):
        extent = b.extents(x)[axis]
        ordinal = b.emit("torch.arange", start=0, end=extent, step=1, dtype="torch.long")
        lead = [1] * (indices.rank - 1)
        lead[axis] = extent
        items.append(b.emit("Tensor.reshape", ordinal, shape=lead) if len(lead) > 1 else ordinal)
    items += [b.emit("Tensor.select", indices, dim=-1, index=i) for i in range(depth)]
    return _indexed(b, x, items)


@op("ScatterElements", "Scatter")
def scatter_elements(
    b: Builder, x: Any, indices: Any, updates: Any, *, axis: int = 0, reduction: str = "none"
) -> Any:
    index = _wrapped(b, x, indices, axis)
    if reduction == "none":
        return b.emit("aten::scatter", x, b.number(axis), index, updates)
    names = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}
    return b.emit(
        "aten::scatter_reduce", x, dim=axis, index=index, src=updates, reduce=names[reduction]
    )


@op("ScatterND")
def scatter_nd(b: Builder, x: Any, indices: Any, updates: Any, *, reduction: str = "none") -> Any:
    depth = b.extents(indices)[-1]
    if not isinstance(depth, int):
        raise b.error("the last axis of the indices is open")
    if reduction not in ("none", "add"):
        return _scatter_nd_reduced(b, x, indices, updates, depth, reduction)
    indices = b.cast(b.ref(indices), np.int64)
    items = [b.emit("Tensor.select", indices, dim=-1, index=i) for i in range(depth)]
    return b.emit(
        "Tensor.index_put", x, indices=index_list(b, items), values=b.ref(updates),
        accumulate=reduction == "add",
    )  # fmt: skip


def _scatter_nd_reduced(
    b: Builder, x: Any, indices: Any, updates: Any, depth: int, reduction: str
) -> Any:
    """Reduce slices that are written more than once: on a matrix of slices."""
    names = {"mul": "prod", "max": "amax", "min": "amin"}
    extents = b.extents(x)
    inner = product(extents[depth:])
    rows = b.emit("Tensor.reshape", x, shape=[-1, inner])
    indices = b.cast(b.ref(indices), np.int64)
    flat: Any = None
    for i in range(depth):
        item = b.emit("Tensor.select", indices, dim=-1, index=i)
        item = (
            _wrapped(b, Known(np.zeros(extents[i])), item, 0)
            if isinstance(extents[i], int)
            else item
        )
        step = product(extents[i + 1 : depth])
        part = b.call("mul", item, step)
        flat = part if flat is None else b.call("add", flat, part)
    source = b.emit("Tensor.reshape", updates, shape=[-1, inner])
    index = b.emit("Tensor.reshape", flat, shape=[-1, 1])
    index = b.emit("Tensor.expand_as", index, source)
    done = b.emit(
        "aten::scatter_reduce", rows, dim=0, index=index, src=source, reduce=names[reduction]
    )
    return b.emit("Tensor.reshape", done, shape=extents)


@op("Expand")
def expand(b: Builder, x: Any, shape: Any) -> Any:
    target = b.numbers(shape, "shape")
    extents = b.extents(x)
    rank = max(len(target), len(extents))
    target = [1] * (rank - len(target)) + target
    extents = [1] * (rank - len(extents)) + extents
    sizes = []
    for n, wanted in zip(extents, target, strict=True):
        if isinstance(wanted, int):
            # An open extent is either 1 or equal to the wanted one.
            sizes.append(-1 if wanted in (1, n) else wanted)
        elif isinstance(n, int):
            sizes.append(wanted if n == 1 else -1)
        else:
            sizes.append(-1 if n._same(wanted) else wanted.apply("max", n))
    missing = rank - x.rank
    sizes[:missing] = [1 if isinstance(n, int) and n == -1 else n for n in sizes[:missing]]
    if all(isinstance(n, int) and n == -1 for n in sizes):
        return x
    return b.emit("Tensor.expand", x, sizes=sizes)


@op("Tile")
def tile_old(b: Builder, x: Any, tiles: Any, axis: Any) -> Any:
    repeats: list[Any] = [1] * x.rank
    repeats[b.axis(b.ints(axis, "axis")[0], x.rank)] = b.numbers(tiles, "tiles")[0]
    return b.emit("Tensor.repeat", x, sizes=repeats)


@op("Tile", since=6)
def tile(b: Builder, x: Any, repeats: Any) -> Any:
    return b.emit("Tensor.repeat", x, sizes=b.numbers(repeats, "repeats"))


@op("Range")
def arange(b: Builder, start: Any, limit: Any, delta: Any, *, stash_type: int = 1) -> Any:
    first, last, step = (b.numbers(v, "a bound")[0] for v in (start, limit, delta))
    return b.emit("torch.arange", start=first, end=last, step=step, dtype=torch_name(start.dtype))


@op("ConstantOfShape")
def constant_of_shape(b: Builder, shape: Any, *, value: Any = None) -> Any:
    item, dtype = 0.0, np.dtype(np.float32)
    if value is not None:
        item, dtype = value.array.reshape(-1)[0].item(), value.dtype
    return b.emit(
        "torch.full", size=b.numbers(shape, "shape"), fill_value=item, dtype=torch_name(dtype)
    )


@op("Pad")
def pad_old(
    b: Builder, x: Any, *, pads: Any = None, paddings: Any = None, mode: str = "constant",
    value: float = 0.0,
) -> Any:  # fmt: skip
    return padded(b, x, pads or paddings, mode, value)


@op("Pad", since=11)
def pad(
    b: Builder, x: Any, pads: Any, fill: Any = None, axes: Any = None, *,
    mode: str = "constant",
) -> Any:  # fmt: skip
    value: Any = 0.0
    if fill is not None and mode == "constant":
        (value,) = b.numbers(fill, "the value of the margins")
    amounts = b.numbers(pads, "pads")
    if isinstance(axes, Ref):
        amounts = computed.spread(amounts, computed.axes_of(b, axes), x.rank)
    elif axes is not None:
        along = axes_of(b, axes, x.rank)
        full: list[Any] = [0] * (2 * x.rank)
        for i, axis in enumerate(along):
            full[axis], full[axis + x.rank] = amounts[i], amounts[i + len(along)]
        amounts = full
    return padded(b, x, amounts, mode, value)


MODES = {"constant": "constant", "reflect": "reflect", "edge": "replicate", "wrap": "circular"}


def padded(b: Builder, x: Any, pads: Any, mode: str, value: Any) -> Any:
    """Return a tensor with margins: first all amounts before, then all after."""
    rank = x.rank
    if len(pads) != 2 * rank:
        raise b.error(f"pads has {len(pads)} numbers, expected {2 * rank}")
    if mode not in MODES:
        raise b.error(f"mode is '{mode}', expected one of {', '.join(MODES)}")
    pairs = [(pads[axis], pads[axis + rank]) for axis in range(rank)]
    moved = [a for a, pair in enumerate(pairs) if any(isinstance(n, Size) or n for n in pair)]
    if not moved:
        return x
    if mode == "constant":
        flat = [n for pair in reversed(pairs[moved[0] :]) for n in pair]
        fill = value if x.dtype.kind == "f" or isinstance(value, Size) else int(value)
        return b.emit("F.pad", x, pad=flat, mode="constant", value=fill)
    result = b.ref(x)
    # Other modes pad the last axes; one axis at a time is the same for all of them.
    for axis in moved:
        last = axis == rank - 1 and rank > 1
        order = [a for a in range(rank) if a != axis] + [axis]
        result = result if last else b.emit("Tensor.permute", result, dims=order)
        result = _padded_last(b, result, pairs[axis], MODES[mode])
        if not last:
            back = [order.index(a) for a in range(rank)]
            result = b.emit("Tensor.permute", result, dims=back)
    return result


def _padded_last(b: Builder, x: Ref, pair: Any, mode: str) -> Ref:
    """Return a tensor with margins of its last axis; PyTorch takes at least two axes."""
    lead = [] if x.rank > 1 else [1]
    wide = b.emit("torch.unsqueeze", x, dim=0) if lead else x
    done = b.emit("F.pad", wide, pad=list(pair), mode=mode)
    return b.emit("torch.squeeze", done, dim=0) if lead else done


@op("DepthToSpace")
def depth_to_space(b: Builder, x: Any, *, blocksize: int, mode: str = "DCR") -> Any:
    if mode == "CRD":
        return b.emit("F.pixel_shuffle", x, upscale_factor=blocksize)
    _n, c, h, w = b.extents(x)
    s = blocksize
    parts = b.emit("Tensor.reshape", x, shape=[-1, s, s, c // (s * s), h, w])
    moved = b.emit("Tensor.permute", parts, dims=(0, 3, 4, 1, 5, 2))
    return b.emit("Tensor.reshape", moved, shape=[-1, c // (s * s), h * s, w * s])


@op("SpaceToDepth")
def space_to_depth(b: Builder, x: Any, *, blocksize: int, mode: str = "DCR") -> Any:
    _n, c, h, w = b.extents(x)
    s = blocksize
    parts = b.emit("Tensor.reshape", x, shape=[-1, c, h // s, s, w // s, s])
    order = (0, 1, 3, 5, 2, 4) if mode == "CRD" else (0, 3, 5, 1, 2, 4)
    moved = b.emit("Tensor.permute", parts, dims=order)
    return b.emit("Tensor.reshape", moved, shape=[-1, c * s * s, h // s, w // s])


@op("Trilu")
def trilu(b: Builder, x: Any, k: Any = None, *, upper: int = 1) -> Any:
    offset = 0 if k is None else b.numbers(k, "k")[0]
    return b.emit("aten::triu" if upper else "aten::tril", x, diagonal=offset)


@op("EyeLike")
def eye_like(b: Builder, x: Any, *, dtype: int | None = None, k: int = 0) -> Any:
    from kuiper.onnx.tensors import element_dtype

    rows, columns = b.extents(x)
    if isinstance(rows, Size) or isinstance(columns, Size):
        raise b.error("makes a matrix of open extents; fix them with shapes={...}")
    target = x.dtype if dtype is None else element_dtype(dtype, b.where)
    return Known(np.eye(rows, columns, k, target))


@op("OneHot")
def one_hot(b: Builder, indices: Any, depth: Any, values: Any, *, axis: int = -1) -> Any:
    count = b.numbers(depth, "depth")[0]
    count = int(count) if isinstance(count, float) else count
    rank = indices.rank
    axis = b.axis(axis, rank + 1)
    indices = b.cast(b.ref(indices), np.int64)
    zero = b.ref(Known(np.zeros((), np.int64)))
    wrapped = b.emit(
        "torch.where", b.emit("torch.lt", indices, zero), b.call("add", indices, count), indices
    )
    classes = b.emit("torch.arange", start=0, end=count, step=1, dtype="torch.long")
    if axis < rank:
        classes = b.emit("Tensor.reshape", classes, shape=[-1, *[1] * (rank - axis)])
    hits = b.emit("torch.eq", b.emit("torch.unsqueeze", wrapped, dim=axis), classes)
    off, on = (b.emit("Tensor.select", values, dim=0, index=i) for i in range(2))
    return b.emit("torch.where", hits, on, off)


@op("NonZero")
def nonzero(b: Builder, x: Any) -> Any:
    found = b.emit("aten::nonzero", x)
    found = b.declared(found, np.int64, (None, max(x.rank, 1)))
    return b.declared(b.emit("torch.t", found), np.int64, (max(x.rank, 1), None))


@op("Compress")
def compress(b: Builder, x: Any, condition: Any, *, axis: int | None = None) -> Any:
    if axis is None:
        x, axis = b.emit("Tensor.reshape", x, shape=(-1,)), 0
    axis = b.axis(axis, x.rank)
    rows = b.emit("aten::nonzero", condition)
    rows = b.declared(rows, np.int64, (None, 1))
    index = b.declared(b.emit("Tensor.reshape", rows, shape=(-1,)), np.int64, (None,))
    extents = [n if isinstance(n, int) else None for n in b.extents(x)]
    extents[axis] = None
    return b.declared(b.emit("torch.index_select", x, dim=axis, index=index), x.dtype, extents)


@op("ReverseSequence")
def reverse_sequence(
    b: Builder, x: Any, lengths: Any, *, batch_axis: int = 1, time_axis: int = 0
) -> Any:
    steps = b.extents(x)[time_axis]
    rank = x.rank
    time = b.emit("torch.arange", start=0, end=steps, step=1, dtype="torch.long")
    shapes: list[list[int]] = [[1] * rank, [1] * rank]
    shapes[0][time_axis] = -1
    shapes[1][batch_axis] = -1
    time = b.emit("Tensor.reshape", time, shape=shapes[0])
    length = b.emit("Tensor.reshape", b.cast(b.ref(lengths), np.int64), shape=shapes[1])
    mirrored = b.formula("sub(sub(@0,1),@1)", length, time)
    index = b.emit("torch.where", b.emit("torch.lt", time, length), mirrored, time)
    return b.emit("torch.gather", x, dim=time_axis, index=b.emit("Tensor.expand_as", index, x))


@op("CenterCropPad")
def center_crop_pad(b: Builder, x: Any, shape: Any, *, axes: Any = None) -> Any:
    along = axes_of(b, range(x.rank) if axes is None else axes, x.rank)
    target = b.numbers(shape, "shape")
    if len(target) != len(along):
        raise b.error(f"shape has {len(target)} numbers for {len(along)} axes")
    extents, pads = b.extents(x), [0] * (2 * x.rank)
    for axis, n in zip(along, target, strict=True):
        pads[axis], pads[axis + x.rank] = computed.centred(extents[axis], n)
    return padded(b, x, pads, "constant", 0)


@op("Unique")
def unique(b: Builder, x: Any, *, axis: int | None = None, sorted: int = 1) -> Any:
    extents: list[Any] = [None]
    if axis is None:
        x, along = b.emit("Tensor.reshape", x, shape=(-1,)), 0
        count = b.extents(x)[0]
        found = b.emit("aten::_unique2", x, n=3, return_inverse=True, return_counts=True)
    else:
        along = b.axis(axis, x.rank)
        count = b.extents(x)[along]
        extents = [n if isinstance(n, int) else None for n in b.extents(x)]
        extents[along] = None
        found = b.emit("aten::unique_dim", x, n=3, dim=along)
    length = count if isinstance(count, int) else None
    values = b.declared(found[0], x.dtype, extents)
    inverse = b.declared(found[1], np.int64, (length,))
    counts = b.declared(found[2], np.int64, (None,))
    if sorted and not b.wants(1):
        return values, None, inverse, counts
    index = b.emit("torch.arange", start=0, end=count, step=1, dtype="torch.long")
    last = b.emit("torch.full_like", counts, fill_value=count)
    first = b.emit("aten::scatter_reduce", last, dim=0, index=inverse, src=index, reduce="amin")
    if sorted:
        return values, first, inverse, counts
    order = b.emit("aten::argsort", first)
    ranks = b.emit("aten::argsort", order)
    return (
        b.emit("torch.index_select", values, dim=along, index=order),
        b.emit("torch.index_select", first, dim=0, index=order),
        b.emit("torch.index_select", ranks, dim=0, index=inverse),
        b.emit("torch.index_select", counts, dim=0, index=order),
    )
