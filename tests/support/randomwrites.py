"""Random programs of views and in-place writes, and graphs that compute the same.

numpy runs each program directly: views share memory, and a write changes every overlapping tensor.
The graph is in the form that pnnx exports, where operands are immutable: a write into a view of a
view becomes one operator per view that puts the slice back, and a later read takes the slice again.
The final state of numpy's memory is therefore the expected result of kuiper's plans, which reuse
the buffers of dead operands.

All functions are exact on the values used, so results must be equal.
"""

from __future__ import annotations

import itertools
import math

import numpy as np

from kuiper.ir import Graph

__all__ = ["RandomWrites"]

MAX_ELEMENTS = 2000

# Functions of one and of two tensors.
FUNCTIONS = {
    "neg(@0)": lambda a: -a,
    "add(@0,3)": lambda a: a + 3,
    "mul(@0,2)": lambda a: a * 2,
    "max(@0,1)": lambda a: np.maximum(a, 1),
    "add(@0,@1)": lambda a, b: a + b,
    "sub(@0,@1)": lambda a, b: a - b,
    "sub(@1,@0)": lambda a, b: b - a,
    "min(@0,@1)": np.minimum,
}


# Types whose output has its own memory; a copy into a slice of it is exported as a whole copy.
OWN = ("pnnx.Expression", "F.relu", "F.max_pool2d", "torch.flip", "torch.cat", "Tensor.slice_copy")


class Tensor:
    """An array of the program that owns its memory."""

    writable = True

    def __init__(self, array: np.ndarray, name: str):
        self.array, self.operand, self.version = array, name, 0

    @property
    def root(self) -> Tensor:
        return self

    def name(self, graph: RandomWrites) -> str:
        """Return the operand that holds the current content of the array."""
        return self.operand

    def assign(self, graph: RandomWrites, name: str) -> None:
        """Record that operand `name` holds the current content of the array."""
        self.operand = name
        self.version += 1


class View:
    """A view of another tensor: one of the outputs of the operator `take`."""

    def __init__(self, array, parent, take, put, number=0, siblings=None):
        self.array, self.parent, self.take, self.put = array, parent, take, put
        self.number, self.known = number, siblings if siblings is not None else {}

    writable = True

    @property
    def root(self) -> Tensor:
        return self.parent.root

    def name(self, graph: RandomWrites) -> str:
        version = self.root.version
        if version not in self.known:
            self.known[version] = self.take(self.parent.name(graph))
        return self.known[version][self.number]

    def assign(self, graph: RandomWrites, name: str) -> None:
        self.parent.assign(graph, self.put(self.parent.name(graph), name))


class RandomWrites:
    """A random program.

    Parameters
    ----------
    seed : int
    length : int
        Number of statements.

    Attributes
    ----------
    graph : Graph
    inputs, expected : list of numpy.ndarray
    """

    def __init__(self, seed: int, length: int):
        self.random = np.random.default_rng(seed)
        self.graph = Graph()
        self.tensors: list[Tensor | View] = []
        self.inputs: list[np.ndarray] = []
        for _ in range(self.pick([1, 1, 2, 3])):
            self.make_input()
        views = [getattr(self, name) for name in sorted(dir(self)) if name.startswith("view_")]
        results: list[tuple[str, np.ndarray]] = []
        for _ in range(length):
            chance = self.random.random()
            if chance < 0.3:
                self.pick(views)(self.tensor())
            elif chance < 0.65:
                self.write()
            elif chance < 0.85:
                self.compute()
            else:
                tensor = self.tensor()
                name = tensor.name(self)
                # A result that is a view would change with its tensor.
                name = self.clone(name) if isinstance(tensor, View) else name
                results.append((name, tensor.array.copy()))
        results = results[-3:]
        for tensor in [self.tensor() for _ in range(self.pick([1, 2, 3]))]:
            results.append((tensor.name(self), tensor.array))
        for number, (name, _) in enumerate(results):
            self.graph.add_operator("pnnx.Output", f"output{number}", [name], [])
        self.expected = [array for _, array in results]

    # -- random choices

    def pick(self, items):
        return items[int(self.random.integers(0, len(items)))]

    def number(self, first: int, last: int) -> int:
        """Return an integer of [first, last]."""
        return int(self.random.integers(first, last + 1))

    def tensor(self, test=lambda tensor: True, near=None):
        """Return a tensor that passes `test`, preferably recent or overlapping `near`."""
        fitting = [tensor for tensor in self.tensors if test(tensor)]
        if near is not None and self.random.random() < 0.5:
            fitting = [tensor for tensor in fitting if tensor.root is near.root]
        return self.pick(fitting[-4:]) if self.random.random() < 0.7 else self.pick(fitting)

    # -- graph construction

    def make_input(self) -> None:
        shape = tuple(self.pick([1, 2, 3, 3, 3, 5]) for _ in range(self.pick([1, 2, 3, 4, 4])))
        dtype, kind = self.pick([(np.float32, "f32")] * 3 + [(np.int64, "i64")])
        name = f"x{len(self.inputs)}"
        self.graph.add_operand(name, shape, kind)
        self.graph.add_operator("pnnx.Input", f"in_{name}", [], [name])
        self.inputs.append(self.random.integers(-8, 9, shape).astype(dtype))
        self.tensors.append(Tensor(self.inputs[-1].copy(), name))

    def add(self, type: str, inputs, n_outputs: int = 1, keys=None, **params) -> list[str]:
        """Add an operator and return the names of its outputs."""
        number = len(self.graph)
        outputs = [f"v{number}_{i}" for i in range(n_outputs)]
        self.graph.add_operator(
            type, f"op{number}", list(inputs), outputs, params=params, input_keys=keys
        )
        return outputs

    def put_slices(self, shape, base: str, source: str, **cuts) -> str:
        """Put `source` back where a slice was taken from, in one of the forms that pnnx writes."""
        if self.graph.operand(base).producer.type in OWN and self.random.random() < 0.7:
            (part,) = self.add("Tensor.slice", [base], **cuts)
            (whole,) = self.add("Tensor.copy", [part, source], keys=["self", "src"])
            for name in (base, whole):  # the shapes prove that it writes a part
                self.graph.operand(name).shape = shape
            return whole
        return self.add("Tensor.slice_copy", [base, source], keys=["self", "src"], **cuts)[0]

    # -- views

    def view(self, tensor, array, take, put) -> None:
        self.tensors.append(View(array, tensor, take, put))

    def axis(self, tensor) -> int:
        return self.number(0, tensor.array.ndim - 1)

    def view_range(self, tensor) -> None:
        if tensor.array.ndim == 0:
            return
        axis = self.axis(tensor)
        extent = tensor.array.shape[axis]
        start, step = self.number(0, extent - 1) if extent else 0, self.pick([1, 1, 1, 2, 3])
        end = self.pick([extent, self.number(start, extent), 2147483647])
        index = (slice(None),) * axis + (slice(start, end, step),)
        cuts = {"dim": (axis,), "start": (start,), "end": (end,), "step": (step,)}
        plain = {"dim": axis, "start": start, "end": end, "step": step}

        def put(base, source):
            if self.random.random() < 0.5:
                return self.add("torch.slice_scatter", [base, source], **plain)[0]
            return self.put_slices(tensor.array.shape, base, source, **cuts)

        self.view(
            tensor, tensor.array[index], lambda base: self.add("Tensor.slice", [base], **cuts), put
        )

    def view_ranges(self, tensor) -> None:
        """View ranges and indices of several axes."""
        rank = tensor.array.ndim
        if rank < 2 or 0 in tensor.array.shape:
            return
        axes = sorted(self.random.permutation(rank)[: self.number(2, rank)].tolist())
        index: list[slice | int] = [slice(None)] * rank
        starts, ends, steps, selects = [], [], [], []
        for axis in axes:
            extent = tensor.array.shape[axis]
            start = self.number(0, extent - 1)
            end, step, select = self.number(start + 1, extent), self.pick([1, 1, 2]), 2147483647
            index[axis] = slice(start, end, step)
            if self.random.random() < 0.3:
                start, end, step = 0, 0, 0
                select = index[axis] = self.number(0, extent - 1)
            starts.append(start), ends.append(end), steps.append(step), selects.append(select)
        cuts = {
            "dims": tuple(axes), "starts": tuple(starts), "ends": tuple(ends),
            "steps": tuple(steps), "selects": tuple(selects),
        }  # fmt: skip
        self.view(
            tensor, tensor.array[(*index, ...)],
            lambda base: self.add("Tensor.slice", [base], **cuts),
            lambda base, source: self.put_slices(tensor.array.shape, base, source, **cuts),
        )  # fmt: skip

    def view_select(self, tensor) -> None:
        if tensor.array.ndim == 0 or 0 in tensor.array.shape:
            return
        axis = self.axis(tensor)
        where = {"dim": axis, "index": self.number(0, tensor.array.shape[axis] - 1)}
        self.view(
            tensor, tensor.array[(slice(None),) * axis + (where["index"], ...)],
            lambda base: self.add("Tensor.select", [base], **where),
            lambda base, source: self.add("aten::select_scatter", [base, source], **where)[0],
        )  # fmt: skip

    def view_order(self, tensor) -> None:
        dims = tuple(self.random.permutation(tensor.array.ndim).tolist())
        back = tuple(np.argsort(dims).tolist())
        self.view(
            tensor, tensor.array.transpose(dims),
            lambda base: self.add("Tensor.permute", [base], dims=dims),
            lambda base, source: self.add("Tensor.permute", [source], dims=back)[0],
        )  # fmt: skip

    def view_axis(self, tensor) -> None:
        axis = self.number(0, tensor.array.ndim)
        if tensor.array.ndim > 4:
            return
        self.view(
            tensor, np.expand_dims(tensor.array, axis),
            lambda base: self.add("torch.unsqueeze", [base], dim=axis),
            lambda base, source: self.add("torch.squeeze", [source], dim=axis)[0],
        )  # fmt: skip

    def view_shape(self, tensor) -> None:
        rest, shape = tensor.array.size, []
        if rest == 0:
            return
        for _ in range(self.number(0, 2)):
            shape.append(self.pick([d for d in range(1, rest + 1) if rest % d == 0]))
            rest //= shape[-1]
        array = tensor.array.reshape(*shape, rest)
        if not np.shares_memory(array, tensor.array):
            return
        before = tensor.array.shape
        self.view(
            tensor, array,
            lambda base: self.add("Tensor.reshape", [base], shape=array.shape),
            lambda base, source: self.add("Tensor.reshape", [source], shape=before)[0],
        )  # fmt: skip

    def view_diagonal(self, tensor) -> None:
        if tensor.array.ndim < 2 or 0 in tensor.array.shape:
            return
        first, second = self.random.permutation(tensor.array.ndim)[:2].tolist()
        rows, columns = tensor.array.shape[first], tensor.array.shape[second]
        where = {"offset": self.number(1 - rows, columns - 1), "dim1": first, "dim2": second}
        array = np.diagonal(tensor.array, where["offset"], first, second)
        array.flags.writeable = True
        self.view(
            tensor, array,
            lambda base: self.add("aten::diagonal", [base], **where),
            lambda base, source: self.add("aten::diagonal_scatter", [base, source], **where)[0],
        )  # fmt: skip

    def view_pieces(self, tensor) -> None:
        """View all pieces of an axis, or all its slices."""
        if tensor.array.ndim == 0 or 0 in tensor.array.shape:
            return
        axis = self.axis(tensor)
        extent = tensor.array.shape[axis]
        before = (slice(None),) * axis
        kind = self.pick(["torch.chunk", "torch.split", "torch.tensor_split", "torch.unbind"])
        if kind == "torch.unbind":
            params = {"dim": axis}
            indices = [(*before, i, ...) for i in range(extent)]
        else:
            length = self.number(1, extent)
            cuts = [*range(0, extent, length), extent]
            if kind == "torch.chunk":
                length = -(-extent // self.number(1, 3))
                cuts = [*range(0, extent, length), extent]
                params = {"chunks": len(cuts) - 1, "dim": axis}
            elif kind == "torch.split":
                params = {"split_size_or_sections": length, "dim": axis}
            else:
                params = {"indices": tuple(cuts[1:-1]), "dim": axis}
                if len(cuts) == 2:
                    return
            indices = [(*before, slice(*pair), ...) for pair in itertools.pairwise(cuts)]
        known: dict[int, list[str]] = {}
        pieces: list[View] = []
        for number, index in enumerate(indices):

            def put(base, source, number=number, taken=index[-2]):
                if self.random.random() < 0.5:  # concatenate again, with one piece replaced
                    parts = [piece.name(self) for piece in pieces]
                    parts[number] = source
                    join = "torch.stack" if kind == "torch.unbind" else "torch.cat"
                    return self.add(join, parts, dim=axis)[0]
                if kind == "torch.unbind":
                    where = {"dim": axis, "index": taken}
                    return self.add("aten::select_scatter", [base, source], **where)[0]
                cut = {"dim": axis, "start": taken.start, "end": taken.stop, "step": 1}
                return self.add("torch.slice_scatter", [base, source], **cut)[0]

            pieces.append(
                View(
                    tensor.array[index],
                    tensor,
                    lambda base: self.add(kind, [base], len(indices), **params),
                    put,
                    number,
                    known,
                )
            )
        self.tensors += pieces[-4:]

    # -- statements

    def compute(self) -> None:
        """Make a tensor that owns its memory."""
        x = self.tensor()
        what = self.pick(["function", "function", "relu", "cat", "clone", "same", "flip", "pool"])
        if what == "function":
            array, name = self.function(x)
        elif what == "relu" and x.array.dtype == np.float32:
            array, (name,) = np.maximum(x.array, 0), self.add("F.relu", [x.name(self)])
        elif what == "cat" and x.array.ndim:
            axis = self.axis(x)
            others = [
                self.tensor(
                    lambda y: (
                        y.array.dtype == x.array.dtype
                        and y.array.ndim == x.array.ndim
                        and np.delete(y.array.shape, axis).tolist()
                        == np.delete(x.array.shape, axis).tolist()
                    )
                )
                for _ in range(self.number(1, 2))
            ]
            array = np.concatenate([x.array, *(y.array for y in others)], axis)
            (name,) = self.add("torch.cat", [y.name(self) for y in [x, *others]], dim=axis)
        elif what == "flip" and x.array.ndim:
            axis = self.axis(x)
            array, (name,) = (
                np.flip(x.array, axis).copy(),
                self.add("torch.flip", [x.name(self)], dims=(axis,)),
            )
        elif (
            what == "pool"
            and x.array.ndim == 4
            and x.array.dtype == np.float32
            and min(x.array.shape[2:]) > 1
            and x.array.size
        ):
            array = np.maximum(x.array[:, :, 1:, 1:], x.array[:, :, :-1, :-1])
            array = np.maximum(array, np.maximum(x.array[:, :, 1:, :-1], x.array[:, :, :-1, 1:]))
            (name,) = self.add(
                "F.max_pool2d", [x.name(self)], kernel_size=(2, 2), stride=(1, 1),
                padding=(0, 0), dilation=(1, 1), ceil_mode=False, return_indices=False,
            )  # fmt: skip
        elif what == "same":
            array, name = x.array.copy(), x.name(self)
        else:
            array, (name,) = x.array.copy(), self.add("Tensor.clone", [x.name(self)])
        if array.size <= MAX_ELEMENTS:
            self.tensors.append(Tensor(np.array(array, order="C"), name))

    def function(self, x, shape=None) -> tuple[np.ndarray, str]:
        """Apply a function to `x` and perhaps a second tensor; the result has `shape` if given."""
        text = self.pick(list(FUNCTIONS))
        tensors = [x]
        if "@1" in text:
            tensors.append(self.tensor(lambda y: fits(y.array, x.array, shape), x))
        array = FUNCTIONS[text](*(y.array for y in tensors))
        (name,) = self.add("pnnx.Expression", [y.name(self) for y in tensors], expr=text)
        return array, name

    def write(self) -> None:
        """Write a function of a tensor, or another tensor, into the tensor."""
        x = self.tensor()
        if self.random.random() < 0.5:
            array, name = self.function(x, x.array.shape)
        else:
            source = self.tensor(lambda y: y.array.shape == x.array.shape, x)
            array, name = source.array.copy(), source.name(self)
            if array.dtype != x.array.dtype:
                own = x.name(self)
                (name,) = self.add("Tensor.copy", [self.clone(own), name], keys=["self", "src"])
            elif self.random.random() < 0.3:
                name = self.clone(name)
        x.assign(self, name)
        x.array[...] = array

    def clone(self, name: str) -> str:
        return self.add("Tensor.clone", [name])[0]


def fits(other: np.ndarray, array: np.ndarray, shape) -> bool:
    """Tell whether both arrays broadcast to `shape`, or to few elements if it is None."""
    if other.dtype != array.dtype:
        return False
    try:
        common = np.broadcast_shapes(other.shape, array.shape)
    except ValueError:
        return False
    return common == shape if shape is not None else math.prod(common) <= MAX_ELEMENTS
