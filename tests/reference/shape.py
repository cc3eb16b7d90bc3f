"""Views, concatenation and splitting."""

from __future__ import annotations

import numpy as np

from .registry import reference

# What pnnx writes for an open end and, among selects, for "a range on this axis, not an index".
OPEN = 2**31 - 1


@reference("torch.flatten", "Tensor.flatten", "nn.Flatten")
def flatten(input, *, start_dim=1, end_dim=-1, **_):
    """Merge the axes from `start_dim` to `end_dim` inclusive."""
    start, end = start_dim % input.ndim, end_dim % input.ndim
    return input.reshape(*input.shape[:start], -1, *input.shape[end + 1 :])


@reference("Tensor.reshape", "Tensor.view", "torch.reshape", "aten::view_copy")
def reshape(input=None, shape=(), mask=None, attn_mask=None, **_):
    """Change the shape and keep the order of the elements.

    pnnx calls the input `attn_mask` if it replaced a function by ``nn.MultiheadAttention``,
    for which True in a bool mask has the opposite meaning.  Such a mask may differ between
    sequences or heads; then only the attention knows its shape.
    """
    if attn_mask is not None:
        input = ~attn_mask if attn_mask.dtype == bool else attn_mask
        if input.size != np.prod(shape):
            return input
    elif mask is not None:
        input = mask
    extents = [int(n) for n in shape]
    return input.reshape([input.shape[i] if n == 0 else n for i, n in enumerate(extents)])


@reference("Tensor.permute", "torch.permute", "aten::permute_copy")
def permute(input, dims, **_):
    """Reorder the axes."""
    return input.transpose(dims)


@reference("torch.transpose", "Tensor.transpose", "aten::transpose_copy")
def transpose(input, dim0, dim1, **_):
    """Swap two axes."""
    return np.swapaxes(input, dim0, dim1)


@reference("torch.squeeze", "Tensor.squeeze", "aten::squeeze_copy")
def squeeze(input, dim=None, **_):
    """Drop axes of extent 1; other axes stay."""
    dims = range(input.ndim) if dim is None else dim if isinstance(dim, tuple) else (dim,)
    gone = {d % input.ndim for d in dims}
    return input.reshape([n for i, n in enumerate(input.shape) if not (i in gone and n == 1)])


@reference("torch.unsqueeze", "Tensor.unsqueeze", "aten::unsqueeze_copy")
def unsqueeze(input, dim, **_):
    """Insert an axis of extent 1."""
    return np.expand_dims(input, dim)


@reference("torch.cat", "torch.concat")
def cat(*tensors, dim, **_):
    """Concatenate along an axis."""
    return np.concatenate(tensors, axis=dim)


@reference("torch.stack")
def stack(*tensors, dim, **_):
    """Concatenate along a new axis."""
    return np.stack(tensors, axis=dim)


@reference("torch.chunk", "Tensor.chunk")
def chunk(input, *, chunks, dim, **_):
    """Split into pieces of ceil(n / chunks); there may be fewer than `chunks`."""
    return split(input, split_size_or_sections=-(-input.shape[dim] // chunks), dim=dim)


@reference("torch.split", "Tensor.split")
def split(tensor, *, split_size_or_sections, dim, **_):
    """Split into pieces of one size or of the given sizes."""
    sizes = split_size_or_sections
    if isinstance(sizes, int):
        cuts = np.arange(sizes, tensor.shape[dim], sizes)
    else:
        cuts = np.cumsum(sizes)[:-1]
    return tuple(np.split(tensor, cuts, axis=dim))


@reference("Tensor.slice")
def slice_(input, **arguments):
    """Take a range, or ranges and indices on several axes."""
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


@reference("Tensor.select", "torch.select", "aten::select_copy")
def select(input, dim, index, **_):
    """Take one index of an axis and drop the axis."""
    return np.moveaxis(input, dim, 0)[int(index)]


@reference(
    "nn.ChannelShuffle",
    "F.channel_shuffle",
    "torch.channel_shuffle",
    "aten::native_channel_shuffle",
    "aten::channel_shuffle",
)
def channel_shuffle(input, groups, **_):
    """Transpose the channels: (g, c/g) -> (c/g, g)."""
    n, channels, *rest = input.shape
    y = input.reshape(n, groups, channels // groups, *rest)
    return np.swapaxes(y, 1, 2).reshape(input.shape)


@reference("nn.PixelShuffle", "F.pixel_shuffle", "torch.pixel_shuffle")
def pixel_shuffle(input, *, upscale_factor, **_):
    """Move r * r channels into a plane r times larger."""
    r = upscale_factor
    n, channels, height, width = input.shape
    y = input.reshape(n, channels // (r * r), r, r, height, width)
    y = y.transpose(0, 1, 4, 2, 5, 3)
    return y.reshape(n, channels // (r * r), height * r, width * r)


@reference("nn.PixelUnshuffle", "F.pixel_unshuffle", "torch.pixel_unshuffle")
def pixel_unshuffle(input, *, downscale_factor, **_):
    """Move a plane into r * r channels of a plane r times smaller."""
    r = downscale_factor
    n, channels, height, width = input.shape
    y = input.reshape(n, channels, height // r, r, width // r, r)
    y = y.transpose(0, 1, 3, 5, 2, 4)
    return y.reshape(n, channels * r * r, height // r, width // r)


@reference("Tensor.reshape_as", "Tensor.view_as", "aten::view_as")
def reshape_as(input, other, **_):
    """Reshape to the shape of another tensor."""
    return input.reshape(other.shape)


@reference("Tensor.unflatten", "torch.unflatten", "nn.Unflatten")
def unflatten(input, *, dim, sizes=None, unflattened_size=None, **_):
    """Split one axis into several."""
    dim %= input.ndim
    sizes = unflattened_size if sizes is None else sizes
    return input.reshape(*input.shape[:dim], *sizes, *input.shape[dim + 1 :])


@reference("torch.t", "Tensor.t", "aten::t_copy")
def t(input, **_):
    """Transpose a matrix; a vector stays."""
    return input.T


@reference("Tensor.expand", "aten::expand_copy")
def expand(input=None, sizes=(), implicit=False, mask=None, **_):
    """Repeat axes of extent 1 up to `sizes`; -1 keeps an axis."""
    input = mask if input is None else input
    extents = (1,) * (len(sizes) - input.ndim) + input.shape
    target = [old if new == -1 else int(new) for old, new in zip(extents, sizes, strict=True)]
    return np.broadcast_to(input, target)


@reference("Tensor.expand_as")
def expand_as(input, other, **_):
    """Repeat axes of extent 1 up to the shape of another tensor."""
    return np.broadcast_to(input, other.shape)


@reference("Tensor.repeat")
def repeat(input, *, sizes, **_):
    """Repeat the whole tensor along its axes, and along new leading ones."""
    return np.tile(input, [int(n) for n in sizes])


@reference("torch.tile", "Tensor.tile")
def tile(input, *, dims, **_):
    """As repeat, with missing counts of 1."""
    return np.tile(input, dims)


@reference("torch.repeat_interleave", "Tensor.repeat_interleave")
def repeat_interleave(input, *, repeats, dim=None, **_):
    """Repeat every element in place."""
    return np.repeat(input, repeats, axis=dim)


@reference("aten::unsafe_chunk")
def unsafe_chunk(input, chunks, dim):
    """torch.chunk."""
    return chunk(input, chunks=chunks, dim=dim)


@reference(
    "aten::unsafe_split",
    "aten::unsafe_split_with_sizes",
    "aten::split_copy",
    "aten::split_with_sizes_copy",
)
def unsafe_split(input, sizes, dim):
    """torch.split."""
    return split(input, split_size_or_sections=sizes, dim=dim)


@reference("torch.tensor_split", "Tensor.tensor_split")
def tensor_split(input, *, dim, sections=None, indices=None, **_):
    """Split into `sections` pieces, the longer ones first, or at `indices`."""
    cuts = sections if indices is None else indices
    return tuple(np.array_split(input, cuts, axis=dim))


@reference("torch.unbind", "Tensor.unbind", "aten::unbind_copy")
def unbind(input, dim, **_):
    """Split an axis into its slices."""
    return tuple(np.moveaxis(input, dim, 0))


@reference("torch.flip", "Tensor.flip")
def flip(input, *, dims, **_):
    """Reverse axes."""
    return np.flip(input, dims)


@reference("torch.roll", "Tensor.roll")
def roll(input, *, shifts, dims=None, **_):
    """Rotate along axes, or the flattened tensor where no axis is given."""
    return np.roll(input, shifts if dims is not None else shifts[0], axis=dims)


@reference("torch.narrow", "Tensor.narrow", "aten::narrow_copy")
def narrow(input, dim, start, length, **_):
    """Take `length` elements of an axis."""
    return np.take(input, np.arange(int(start), int(start) + int(length)), axis=dim)
