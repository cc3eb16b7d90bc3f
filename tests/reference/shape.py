"""Views, joins and cuts."""

from __future__ import annotations

import numpy as np

from .registry import reference

# How PNNX writes "to the end" and, among selects, "a range here, not an index".
OPEN = 2**31 - 1


@reference("torch.flatten", "nn.Flatten")
def flatten(input, *, start_dim=1, end_dim=-1, **_):
    """Merge the axes from `start_dim` to `end_dim`, both included."""
    start, end = start_dim % input.ndim, end_dim % input.ndim
    return input.reshape(*input.shape[:start], -1, *input.shape[end + 1 :])


@reference("Tensor.reshape", "Tensor.view")
def reshape(input, *, shape, **_):
    """Give the elements, in their order, another shape."""
    extents = [int(n) for n in shape]
    return input.reshape([input.shape[i] if n == 0 else n for i, n in enumerate(extents)])


@reference("Tensor.permute", "torch.permute")
def permute(input, *, dims, **_):
    """Reorder the axes."""
    return input.transpose(dims)


@reference("torch.transpose")
def transpose(input, *, dim0, dim1, **_):
    """Swap two axes."""
    return np.swapaxes(input, dim0, dim1)


@reference("torch.squeeze")
def squeeze(input, *, dim=None, **_):
    """Drop axes of extent 1; an axis of another extent stays."""
    dims = range(input.ndim) if dim is None else dim if isinstance(dim, tuple) else (dim,)
    gone = {d % input.ndim for d in dims}
    return input.reshape([n for i, n in enumerate(input.shape) if not (i in gone and n == 1)])


@reference("torch.unsqueeze")
def unsqueeze(input, *, dim, **_):
    """Insert an axis of extent 1."""
    return np.expand_dims(input, dim)


@reference("torch.cat")
def cat(*tensors, dim, **_):
    """Join along an axis."""
    return np.concatenate(tensors, axis=dim)


@reference("torch.stack")
def stack(*tensors, dim, **_):
    """Join along a new axis."""
    return np.stack(tensors, axis=dim)


@reference("torch.chunk")
def chunk(input, *, chunks, dim, **_):
    """Cut into pieces of ceil(n / chunks); there may be fewer than `chunks`."""
    return split(input, split_size_or_sections=-(-input.shape[dim] // chunks), dim=dim)


@reference("torch.split")
def split(tensor, *, split_size_or_sections, dim, **_):
    """Cut into pieces of one size, or of the sizes given."""
    sizes = split_size_or_sections
    if isinstance(sizes, int):
        cuts = np.arange(sizes, tensor.shape[dim], sizes)
    else:
        cuts = np.cumsum(sizes)[:-1]
    return tuple(np.split(tensor, cuts, axis=dim))


@reference("Tensor.slice")
def slice_(input, **arguments):
    """Take a range, or several ranges and indices on different axes."""
    if "dims" in arguments:
        dims, count = arguments["dims"], len(arguments["dims"])
        starts, ends = arguments["starts"], arguments["ends"]
        steps = arguments.get("steps") or (1,) * count
        selects = arguments.get("selects") or (OPEN,) * count
    else:
        dims, starts = (arguments["dim"],), (arguments.get("start"),)
        ends, steps = (arguments.get("end"),), (arguments.get("step", 1),)
        select = arguments.get("select")
        selects = (OPEN if select is None else select,)
    index = [slice(None)] * input.ndim
    for dim, start, end, step, select in zip(dims, starts, ends, steps, selects, strict=True):
        if select == OPEN:
            index[dim] = slice(start, None if end == OPEN else end, step)
        else:
            index[dim] = int(select)
    return input[tuple(index)]


@reference("Tensor.select")
def select(input, *, dim, index, **_):
    """Take one place of an axis and drop the axis."""
    return np.take(input, int(index), axis=dim)


@reference("nn.ChannelShuffle")
def channel_shuffle(input, *, groups, **_):
    """Deal the channels: (g, c/g) -> (c/g, g)."""
    n, channels, *rest = input.shape
    y = input.reshape(n, groups, channels // groups, *rest)
    return np.swapaxes(y, 1, 2).reshape(input.shape)


@reference("nn.PixelShuffle", "F.pixel_shuffle")
def pixel_shuffle(input, *, upscale_factor, **_):
    """Turn r * r channels into an r times finer plane."""
    r = upscale_factor
    n, channels, height, width = input.shape
    y = input.reshape(n, channels // (r * r), r, r, height, width)
    y = y.transpose(0, 1, 4, 2, 5, 3)
    return y.reshape(n, channels // (r * r), height * r, width * r)
