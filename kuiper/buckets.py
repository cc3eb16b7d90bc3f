"""Any sequence length from a few plans: inputs are padded to the next of a few lengths.

A model plans once per input shape.  Calls with texts of all lengths would plan most of the time, so
:class:`Buckets` pads them::

    ids (2, 19) ──┐                              ┌──> hidden (2, 19, 768)
    mask (2, 19) ─┴─ pad to 32 ─> model ─> cut ──┴──> class  (2, 3)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from kuiper.errors import InputError

if TYPE_CHECKING:
    from kuiper.model import Model

__all__ = ["Buckets", "stack"]

Axes: TypeAlias = "int | Sequence[int] | None"


class Buckets:
    """Run a model on sequences of any length: pad the inputs, extend the mask, cut the outputs.

    The model must accept every length of `lengths` (export it with a second example of another
    length), and ignore what the mask excludes.  Then the results equal those without padding up to
    the rounding of sums.

    Parameters
    ----------
    model : Model
    lengths : iterable of int
        The lengths that are planned; a call is padded to the next one.  Load the model with at
        least as many `plans`.
    mask : str or None
        Name of the input that tells tokens from padding.  A call may omit it if it has the shape
        (batch, length): then all that is given counts as tokens.  None for a model whose results
        for the tokens do not depend on what follows them, such as a causal one.
    axes : int or mapping, default=1
        The axis of the length: of all inputs, or by name (an axis, or several, for a mask of shape
        (batch, heads, length, length)); inputs that a mapping leaves out are not padded.
    pad : number or mapping, default=0
        The value of the padding: of all inputs except the mask, or by name.
    mask_values : tuple of two numbers, default=(1, 0)
        The values of the mask for tokens and for padding: (0, 1) for a mask that is true for
        padding, (0, -1e9) for one that is added to the scores.
    cut : sequence of (int, tuple of int or None), optional
        For each output the axes of the length.  By default those whose extent is the length, for
        two different lengths.

    Attributes
    ----------
    model : Model
    lengths : tuple of int
        Sorted.

    Raises
    ------
    InputError
        If an input has no such name, or a length or an axis is invalid.

    Examples
    --------
    >>> model = kuiper.load("bert.pnnx.param", plans=16)              # doctest: +SKIP
    >>> encode = kuiper.Buckets(model, [16, 32, 64, 128], mask="attention_mask")  # doctest: +SKIP
    >>> encode(ids).shape                                             # doctest: +SKIP
    (1, 19, 768)
    """

    def __init__(
        self,
        model: Model,
        lengths: Iterable[int],
        *,
        mask: str | None,
        axes: int | Mapping[str, Axes] = 1,
        pad: float | Mapping[str, float] = 0,
        mask_values: tuple[float, float] = (1, 0),
        cut: Sequence[Axes] | None = None,
    ) -> None:
        self.model = model
        self.lengths = _checked_lengths(lengths)
        # The names of each input: that of the operand, and that of the operator.
        self._names = [(o.name, o.required_producer.name) for o in model.graph.inputs]
        self._mask = None if mask is None else self._number(mask, "mask")
        count = len(self._names)
        if isinstance(axes, Mapping):
            self._axes: list[tuple[int, ...]] = [()] * count
            for name, given in axes.items():
                self._axes[self._number(name, "axes")] = _as_axes(given)
        else:
            self._axes = [_as_axes(axes)] * count
        self._check_axes()
        self._pad: list[float] = [0 if isinstance(pad, Mapping) else pad] * count
        if isinstance(pad, Mapping):
            for name, value in pad.items():
                self._pad[self._number(name, "pad")] = value
        self._mask_values = mask_values
        if self._mask is not None:
            self._pad[self._mask] = mask_values[1]
        if cut is not None and len(cut) != len(model.outputs):
            raise InputError(f"cut has {len(cut)} items, expected {len(model.outputs)} (outputs)")
        self._cut = None if cut is None else [_as_axes(given) for given in cut]

    def __repr__(self) -> str:
        return f"<kuiper.Buckets: lengths {', '.join(map(str, self.lengths))} of {self.model!r}>"

    def __call__(self, *inputs: Any) -> Any:
        """Run the model on inputs of one length.

        Parameters
        ----------
        *inputs : array_like
            As for the model: one per input, in order, or one mapping from names to arrays.  The
            mask may be missing.

        Returns
        -------
        numpy.ndarray or tuple of numpy.ndarray
            As the model returns them, without what belongs to the padding.  An output that was cut
            is a view.

        Raises
        ------
        InputError
            As for the model; if the lengths of the inputs differ, or exceed the largest bucket.
        """
        arrays = self.model._checker.check(self._with_mask(inputs))
        length = self._length_of([array.shape for array in arrays])
        bucket = self._bucket(length)
        cut = self._cut
        if cut is None:
            cut = self._cut = self._find_cut([array.shape for array in arrays])
        if bucket > length:
            rows = zip(arrays, self._axes, self._pad, strict=True)
            arrays = [_padded(array, axes, bucket, value) for array, axes, value in rows]
        results = self.model(*arrays)
        many = results if isinstance(results, tuple) else (results,)
        many = tuple(_shortened(y, axes, length) for y, axes in zip(many, cut, strict=True))
        return many if isinstance(results, tuple) else many[0]

    def plan(self, *shapes: Sequence[int]) -> None:
        """Plan for all lengths in advance, for inputs of these shapes except for the length.

        Parameters
        ----------
        *shapes : tuple of int
            One per input, the mask included.
        """
        for length in self.lengths:
            self.model.plan(*self._shapes(shapes, length))

    def _number(self, name: str, option: str) -> int:
        for number, names in enumerate(self._names):
            if name in names:
                return number
        known = ", ".join(repr(names[0]) for names in self._names)
        raise InputError(f"{option} names the input {name!r}, expected one of {known}")

    def _check_axes(self) -> None:
        for info, axes in zip(self.model.inputs, self._axes, strict=True):
            rank = None if info.shape is None else len(info.shape)
            for axis in axes:
                if axis < 0 or (rank is not None and axis >= rank):
                    of = "" if rank is None else f" of rank {rank}"
                    raise InputError(
                        f"input '{info.name}'{of} has no axis {axis}; name the axis of the length "
                        "of each input that is padded: axes={name: axis}, counted from 0"
                    )
        if not any(self._axes):
            raise InputError("axes names no input to pad")

    def _with_mask(self, inputs: Sequence[Any]) -> Sequence[Any]:
        """Return the inputs of a call, with a mask if the caller left it out."""
        mask = self._mask
        if mask is None:
            return inputs
        by_name = len(inputs) == 1 and isinstance(inputs[0], Mapping)
        others = [n for n, axes in enumerate(self._axes) if axes and n != mask]
        if by_name:
            given = inputs[0]
            if any(name in given for name in self._names[mask]):
                return inputs
            found = [given[name] for n in others for name in self._names[n] if name in given]
        else:
            if len(inputs) != len(self._names) - 1:
                return inputs
            found = [inputs[n - (n > mask)] for n in others]
        if not found:
            return inputs  # the model's error says what is missing
        info = self.model.inputs[mask]
        if info.shape is None or len(info.shape) != 2 or self._axes[mask] != (1,):
            raise InputError(
                f"the mask '{info.name}' is missing; only a mask of shape (batch, length) is made"
            )
        axis = self._axes[others[0]][0]
        shape = np.shape(found[0])
        if axis == 0 or axis >= len(shape):
            raise InputError(
                f"the mask '{info.name}' is missing, and the first input, of shape {shape}, does "
                "not tell its shape (batch, length); pass the mask"
            )
        made = np.full((shape[0], shape[axis]), self._mask_values[0], info.dtype)
        if by_name:
            return ({**inputs[0], self._names[mask][0]: made},)
        return (*inputs[:mask], made, *inputs[mask:])

    def _length_of(self, shapes: Sequence[tuple[int, ...]]) -> int:
        found = {
            (names[0], axis): shape[axis]
            for names, shape, axes in zip(self._names, shapes, self._axes, strict=True)
            for axis in axes
        }
        if len(set(found.values())) > 1:
            listed = ", ".join(
                f"{n} (axis {axis} of '{name}')" for (name, axis), n in found.items()
            )
            raise InputError(f"the lengths of the inputs differ: {listed}")
        return next(iter(found.values()))

    def _bucket(self, length: int) -> int:
        if length < 1:
            raise InputError("the inputs have length 0, expected at least one token")
        for bucket in self.lengths:
            if bucket >= length:
                return bucket
        raise InputError(
            f"the inputs have length {length}, expected up to {self.lengths[-1]}; shorten them, "
            "or add a length to the buckets"
        )

    def _shapes(self, shapes: Sequence[Sequence[int]], length: int) -> list[tuple[int, ...]]:
        """Return shapes with the extents of the length's axes replaced."""
        return [
            tuple(length if axis in axes else n for axis, n in enumerate(shape))
            for shape, axes in zip(shapes, self._axes, strict=True)
        ]

    def _find_cut(self, shapes: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
        """Find the axes of the outputs that are as long as the inputs, for two lengths."""
        largest = self.lengths[-1]
        other = self.lengths[-2] if len(self.lengths) > 1 else largest - 1 or 2
        pair = []
        for length in (largest, other):
            graph = self.model.planned_graph(*self._shapes(shapes, length))
            pair.append([operand.shape for operand in graph.outputs])
        found: list[tuple[int, ...]] = []
        for info, long, short in zip(self.model.outputs, *pair, strict=False):
            sizes = None
            if long is not None and short is not None and len(long) == len(short):
                sizes = list(zip(long, short, strict=True))
            odd = sizes is None or any(a != b and (a, b) != (largest, other) for a, b in sizes)
            if sizes is None or odd:
                raise InputError(
                    f"output '{info.name}' has shape {long} for length {largest} and {short} for "
                    f"length {other}, so the part of the padding is unknown; say which axes of "
                    "each output to cut: cut=[axis, ...], None for an output that stays whole"
                )
            found.append(tuple(axis for axis, (a, b) in enumerate(sizes) if a != b))
        if len(found) != len(self.model.outputs):
            raise InputError("the model returns a list; say which axes to cut: cut=[axis, ...]")
        return found


def stack(sequences: Sequence[Any], pad: float = 0) -> tuple[np.ndarray, np.ndarray]:
    """Stack sequences of different lengths, padded to the longest one.

    Parameters
    ----------
    sequences : sequence of array_like
        One-dimensional, of any lengths.
    pad : number, default=0
        The value after the end of a sequence.

    Returns
    -------
    tokens : numpy.ndarray
        Of shape (number of sequences, longest length), in the dtype of the sequences.
    mask : numpy.ndarray
        int64, 1 for a token, 0 for padding.

    Raises
    ------
    InputError
        If there is no sequence, or one is not one-dimensional.

    Examples
    --------
    >>> from kuiper.buckets import stack
    >>> stack([[5, 6, 7], [8]])
    (array([[5, 6, 7],
           [8, 0, 0]]), array([[1, 1, 1],
           [1, 0, 0]]))
    """
    arrays = [np.asarray(sequence) for sequence in sequences]
    if not arrays:
        raise InputError("got no sequence, expected at least one")
    for number, array in enumerate(arrays):
        if array.ndim != 1:
            raise InputError(f"sequence {number} has shape {array.shape}, expected one axis")
    shape = (len(arrays), max(map(len, arrays)))
    tokens = np.full(shape, pad, np.result_type(*[a.dtype for a in arrays]))
    mask = np.zeros(shape, np.int64)
    for row, array in enumerate(arrays):
        tokens[row, : len(array)] = array
        mask[row, : len(array)] = 1
    return tokens, mask


def _checked_lengths(lengths: Iterable[int]) -> tuple[int, ...]:
    found = tuple(sorted(set(lengths)))
    if not found or not all(hasattr(n, "__index__") and n >= 1 for n in found):
        raise InputError(f"lengths are {list(found)}, expected integers of at least 1")
    return tuple(int(n) for n in found)


def _as_axes(axes: Axes) -> tuple[int, ...]:
    if axes is None:
        return ()
    return (axes,) if isinstance(axes, int) else tuple(axes)


def _padded(array: np.ndarray, axes: tuple[int, ...], length: int, value: float) -> np.ndarray:
    if not axes:
        return array
    shape = tuple(length if axis in axes else n for axis, n in enumerate(array.shape))
    padded = np.full(shape, value, array.dtype)
    padded[tuple(map(slice, array.shape))] = array
    return padded


def _shortened(array: np.ndarray, axes: tuple[int, ...], length: int) -> np.ndarray:
    index = [slice(None)] * array.ndim
    for axis in axes:
        index[axis] = slice(length)
    return array[tuple(index)]
