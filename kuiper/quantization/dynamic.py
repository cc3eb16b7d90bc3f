"""Dynamic quantization: Linear layers with weights of one byte.

The input of a layer is quantized row by row in each run, so no calibration data is needed::

    nn.Linear  fc  1 1 x y  bias=True @weight=(64,256)f32 @bias=(64)f32
    ->
    nn.quantized.dynamic.Linear  fc  1 1 x y  bias=True
        @weight=(64,256)i8 @weight_scale=(64)f32 @bias=(64)f32
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple

from kuiper.errors import InputError
from kuiper.ir import Graph, Operator
from kuiper.model import Model
from kuiper.ops.product.dynamic_linear import MAX_TERMS
from kuiper.quantization.weights import quantize_weight

__all__ = ["QuantizedLayer", "quantizable", "quantize", "quantize_layers"]

# Of a weight.  Smaller layers take little time, and are often the last of a network, whose errors
# nothing after them averages out.
MIN_ELEMENTS = 4096

FLOATS = ("f32", "f16", "bf16")

# By operator type: the name of the scale of each weight.
SCALES = {
    "nn.Linear": {"weight": "weight_scale"},
    "nn.MultiheadAttention": {
        "in_proj_weight": "in_proj_scale",
        "out_proj.weight": "out_proj_scale",
    },
}


class QuantizedLayer(NamedTuple):
    """What :func:`quantize` did to one operator.

    Attributes
    ----------
    name : str
    shape : tuple of int
        Of the weight, (out_features, in_features).
    sqnr : float
        Signal-to-noise ratio of the weight, in dB.
    """

    name: str
    shape: tuple[int, ...]
    sqnr: float


def quantizable(graph: Graph, keep: Iterable[str] = ()) -> list[Operator]:
    """Return the operators of a graph that :func:`quantize` would replace.

    Parameters
    ----------
    graph : Graph
    keep : iterable of str
        As for :func:`quantize`.

    Raises
    ------
    InputError
        If a pattern of `keep` matches none of these operators.
    """
    if isinstance(keep, str):
        raise InputError(f"keep is {keep!r}, expected a list of names")
    layers = [op for op in graph if _is_candidate(op)]
    for pattern in keep:
        matching = [op for op in layers if fnmatchcase(op.name, pattern)]
        if not matching:
            names = ", ".join(f"'{op.name}'" for op in layers[:5])
            raise InputError(
                f"keep={pattern!r} matches no layer that can be quantized; they are "
                f"{names or 'none'}{', ...' if len(layers) > 5 else ''}"
            )
        layers = [op for op in layers if op not in matching]
    return layers


def _is_candidate(op: Operator) -> bool:
    weights = [op.attributes.get(name) for name in SCALES.get(op.type, ())]
    return bool(weights) and all(
        weight is not None
        and weight.dtype in FLOATS
        and len(weight.shape) == 2
        and math.prod(weight.shape) >= MIN_ELEMENTS
        and weight.shape[1] <= MAX_TERMS
        for weight in weights
    )


def quantize(model: Model, *, keep: Iterable[str] = ()) -> Model:
    """Return a model whose Linear layers compute with bytes: dynamic quantization.

    Weights become signed bytes with a scale per output feature, a quarter of their size; those of
    ``nn.MultiheadAttention`` too.  In each run a layer divides each row of its input by 1/127 of
    the row's largest magnitude, rounds to integers, and sums the products exactly; its results have
    the same bits for any number of threads and any instruction set.  No calibration data is needed.
    Models whose time is in Linear layers gain most, such as those for text: on a processor with
    AVX-512 VNNI such a layer takes 0.27 of the time.  Without it a layer takes about as long as in
    float32, and less only if it has few rows, when reading the weights takes most of the time.

    Parameters
    ----------
    model : Model
        It is not changed.
    keep : iterable of str
        Names of operators to leave as they are; ``*``, ``?`` and ``[abc]`` are wildcards.
        Layers with fewer than 4,096 weights are left in any case.

    Returns
    -------
    Model
        With the settings of `model`.  :func:`save` writes its bytes and scales.

    Raises
    ------
    InputError
        If there is no Linear layer to quantize, a pattern of `keep` matches none, or a weight
        contains an infinity or NaN.

    Examples
    --------
    >>> import kuiper                                                      # doctest: +SKIP
    >>> model = kuiper.quantize(kuiper.load("bert.pnnx.param"))            # doctest: +SKIP
    >>> kuiper.save(model, "bert.int8.pnnx.param")                         # doctest: +SKIP
    """
    if not isinstance(model, Model):
        raise InputError(f"model is {type(model).__name__}, expected a kuiper.Model")
    graph = model.graph.copy()
    for _ in quantize_layers(graph, quantizable(graph, keep)):
        pass
    return model.with_graph(graph)


def quantize_layers(graph: Graph, layers: Sequence[Operator]) -> Iterator[QuantizedLayer]:
    """Quantize layers of a graph, which changes, one by one.

    Parameters
    ----------
    graph : Graph
    layers : sequence of Operator
        Some of those that :func:`quantizable` returns.

    Raises
    ------
    InputError
        As for :func:`quantize`.
    """
    if not layers:
        raise InputError(
            f"there is no layer to quantize among the {len(graph)} operators, expected nn.Linear "
            f"or nn.MultiheadAttention with constant weights of at least {MIN_ELEMENTS} elements"
        )
    for op in layers:
        yield from _quantize_layer(op)


def _quantize_layer(op: Operator) -> Iterator[QuantizedLayer]:
    attributes = dict(op.attributes)
    for name, scale in SCALES[op.type].items():
        weight = attributes[name]
        quantized = quantize_weight(weight, op.label)
        attributes[name], attributes[scale] = quantized.values, quantized.scale
        word = op.name if name == "weight" else f"{op.name}.{name.removesuffix('.weight')}"
        yield QuantizedLayer(word, weight.shape, quantized.sqnr)
    op.attributes = attributes
    op.type = op.type.replace("nn.", "nn.quantized.dynamic.", 1)
