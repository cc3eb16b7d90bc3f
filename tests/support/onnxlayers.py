"""Layers of ONNX files, and the results that onnxruntime has for them.

``python -m tests.support.onnxlayers`` computes the results; it needs onnxruntime.  Models and
inputs are made again for each test, so ``tests/data/onnx_layers.npz`` has only what comes out.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from .noise import integers, uniform
from .onnxfile import graph, model, node, tensor, value

__all__ = ["Layer", "expected", "layers"]

DATA = Path(__file__).parents[1] / "data" / "onnx_layers.npz"
MICROSOFT = "com.microsoft"


class Layer(NamedTuple):
    """A model of one node.

    Attributes
    ----------
    type : str
        The operator.
    name : str
        Unique.
    file : bytes
    inputs : list of numpy.ndarray
    """

    type: str
    name: str
    file: bytes
    inputs: list[np.ndarray]


class _Maker:
    """Makes models of one operator."""

    def __init__(self, type: str, domain: str, opset: int = 20) -> None:
        self.type, self.domain, self.opset = type, domain, opset
        self.found: list[Layer] = []

    def add(
        self, name: str, inputs: dict[str, Any], outputs: str = "y", known: str = "",
        open: bool = False, **arguments: Any,
    ) -> None:  # fmt: skip
        """Add a model; shapes become noise, `known` inputs constants, None is left out."""
        key = f"{self.type} {name}"
        arrays = {
            part: uniform(f"{key} {part}", content) if isinstance(content, tuple) else content
            for part, content in inputs.items()
            if content is not None
        }
        constants = set(known.split())
        run = {part: array for part, array in arrays.items() if part not in constants}
        names = " ".join("-" if content is None else part for part, content in inputs.items())
        one = node(self.type, names, outputs, "n", domain=self.domain, **arguments)
        ends = [
            value(part, a.dtype, _opened(part, a.shape) if open and a.shape else a.shape)
            for part, a in run.items()
        ]
        kinds = {"count": np.int32}
        results = [
            value(part, kinds.get(part, np.float32)) for part in outputs.split() if part != "-"
        ]
        tensors = [tensor(part, arrays[part]) for part in arrays if part in constants]
        whole = graph([one], ends, results, tensors)
        file = model(whole, self.opset, domains={self.domain: 1} if self.domain else None)
        self.found.append(Layer(self.type, key, file, list(run.values())))


def _opened(name: str, shape: tuple[int, ...]) -> list[Any]:
    """Return a shape whose batch and length have names."""
    found: list[Any] = list(shape)
    batch, length = {1: (0, 0), 2: (0, 1), 3: (0, 1), 4: (0, 2), 5: (1, 3)}[len(shape)]
    found[length], found[batch] = f"length of {name}", "batch"
    return found


def _int32(content: Any) -> np.ndarray:
    return np.asarray(content, np.int32)


def _int64(content: Any) -> np.ndarray:
    return np.asarray(content, np.int64)


# -- com.microsoft --------------------------------------------------------------------------------


def _products() -> Iterator[_Maker]:
    m = _Maker("FusedMatMul", MICROSOFT)
    m.add("weight", {"a": (2, 5, 8), "b": (8, 6)}, known="b", alpha=0.5)
    m.add("turned weight", {"a": (2, 5, 8), "b": (6, 8)}, known="b", transB=1)
    m.add("turned", {"a": (3, 4, 5), "b": (3, 2, 4)}, transA=1, transB=1, alpha=2.0)
    m.add("batch of A", {"a": (4, 2, 3, 5), "b": (2, 3, 5, 6)}, transBatchA=1)
    m.add("batch of B", {"a": (2, 3, 4, 5), "b": (5, 2, 3, 6)}, transBatchB=1)
    m.add("all of A", {"a": (5, 2, 3, 4), "b": (2, 3, 5, 6)}, transBatchA=1, transA=1)
    m.add("all of B", {"a": (2, 3, 4, 5), "b": (6, 2, 3, 5)}, transBatchB=1, transB=1)
    yield m
    m = _Maker("FusedConv", MICROSOFT)
    x, w, b = (1, 2, 4, 5), (3, 2, 3, 3), (3,)
    for name, numbers in (
        ("Relu", None), ("Sigmoid", None), ("Tanh", None), ("LeakyRelu", [0.2]),
        ("Clip", [-0.3, 0.4]), ("HardSigmoid", [0.3, 0.4]),
    ):  # fmt: skip
        more = {"activation_params": numbers} if numbers else {}
        inputs = {"x": x, "w": w, "b": b}
        m.add(name, inputs, known="w b", pads=[1, 1, 1, 1], activation=name, **more)
    inputs = {"x": x, "w": w, "b": None, "z": (1, 3, 2, 3)}
    m.add("sum", inputs, known="w", pads=[1] * 4, strides=[2, 2], activation="Relu")
    m.add("computed", {"x": x, "w": w})
    yield m
    m = _Maker("FusedGemm", MICROSOFT)
    for name, numbers in (
        ("Relu", ()), ("Softplus", ()), ("Softsign", ()), ("Tanh", ()), ("Sigmoid", ()),
        ("LeakyRelu", (0.2,)), ("Elu", (0.5,)), ("ThresholdedRelu", (0.3,)),
        ("HardSigmoid", (0.3, 0.4)),
    ):  # fmt: skip
        more = dict(zip(("activation_alpha", "activation_beta"), numbers, strict=False))
        inputs = {"a": (3, 4), "b": (4, 2), "c": (2,)}
        m.add(name, inputs, known="b c", activation=name, alpha=0.5, beta=2.0, **more)
    m.add("turned", {"a": (4, 3), "b": (2, 4)}, known="b", transA=1, transB=1, activation="Relu")
    yield m


def _norms() -> Iterator[_Maker]:
    x = (2, 3, 8)
    for type_, key in (("BiasGelu", "b"), ("FastGelu", ""), ("FastGelu", "b")):
        m = _Maker(type_, MICROSOFT)
        m.add(f"{key}", {"x": x} | ({"b": (8,)} if key else {}), known=key)
        yield m
    m = _Maker("QuickGelu", MICROSOFT)
    for alpha in (1.702, 0.7, 1.0):
        m.add(f"{alpha}", {"x": (2, 5)}, alpha=alpha)
    yield m
    m = _Maker("SkipLayerNormalization", MICROSOFT)
    base = {"g": (8,), "beta": (8,), "bias": (8,)}
    m.add("all", {"x": x, "s": x, **base}, "y - - sum", known="g beta bias", epsilon=1e-3)
    m.add("rows", {"x": x, "s": (3, 8), **base}, known="g beta")
    m.add("one", {"x": x, "s": (1, 3, 8), "g": (8,)})
    m.add("no beta", {"x": x, "s": x, "g": (8,), "beta": None, "bias": (8,)}, known="g bias")
    yield m
    m = _Maker("SkipSimplifiedLayerNormalization", MICROSOFT)
    m.add("all", {"x": x, "s": x, "g": (8,), "bias": (8,)}, "y - - sum", known="g bias")
    m.add("rows", {"x": (3, 8), "s": (3, 8), "g": (8,)}, epsilon=1e-3)
    yield m
    m = _Maker("EmbedLayerNormalization", MICROSOFT)
    ids, kinds = _int32(integers("ids", (2, 4), 0, 6)), _int32(integers("kinds", (2, 4), 0, 2))
    tables = {"w": (6, 8), "p": (16, 8), "s": (2, 8), "g": (8,), "beta": (8,)}
    names = "w p s g beta"
    seen = _int32([[1, 1, 1, 0], [1, 0, 0, 0]])
    rows = _int32(integers("rows", (1, 4), 0, 16))
    m.add("plain", {"ids": ids, "kinds": kinds, **tables}, "y count", known=names)
    inputs = {"ids": ids, "kinds": kinds, **tables, "mask": seen}
    m.add("mask", inputs, "y count", known=names, epsilon=1e-3, open=True)
    inputs = {"ids": ids, "kinds": kinds, **tables, "mask": None, "rows": rows}
    m.add("positions", inputs, "y count sum", known=names)
    inputs = {"ids": ids, "kinds": None, **tables, "s": None}
    m.add("no segments", inputs, "y count", known="w p g beta")
    yield m


MASKS: dict[str, Any] = {
    "ends": _int32([2, 4]), "ends and starts": _int32([3, 4, 1, 2]),
    "keys": _int32([[1, 1, 0, 0], [1, 1, 1, 1]]), "nothing": _int32([[0] * 4, [0, 1, 1, 0]]),
    "pairs": _int32(integers("pairs", (2, 4, 4), 0, 2)), "none": None,
}  # fmt: skip


def _attention() -> Iterator[_Maker]:
    m = _Maker("Attention", MICROSOFT)
    base = {"x": (2, 4, 6), "w": (6, 12), "b": (12,)}
    for name, mask in MASKS.items():
        for one in (0, 1):
            inputs = {**base, "mask": mask}
            m.add(f"{name} {one}", inputs, known="w b", num_heads=2, unidirectional=one)
    keys = {**base, "mask": MASKS["keys"]}
    m.add("computed", base, num_heads=2)
    m.add("no bias", {**base, "b": None}, "y past", known="w", num_heads=2, scale=0.3)
    m.add("low", keys, known="w b", num_heads=2, mask_filter_value=-3.0)
    m.add("open", keys, known="w b", num_heads=2, open=True)
    m.add("open ends", {**base, "mask": MASKS["ends"]}, known="w b", num_heads=2, open=True)
    sizes = {**keys, "w": (6, 14), "b": (14,)}
    m.add("sizes", sizes, known="w b", num_heads=2, qkv_hidden_sizes=[4, 4, 6])
    more = {**keys, "past": None, "bias": (2, 2, 4, 4)}
    m.add("summand", more, known="w b", num_heads=2)
    for one in (0, 1):
        mask = _int32(integers("more keys", (2, 6), 0, 2))
        inputs = {**base, "mask": mask, "past": (2, 2, 2, 2, 2)}
        m.add(f"past {one}", inputs, "y k", known="w b", num_heads=2, unidirectional=one)
    inputs = {**base, "mask": None, "past": (2, 2, 2, 2, 2)}
    m.add("past open", inputs, "y k", known="w b", num_heads=2, unidirectional=1, open=True)
    yield m
    m = _Maker("MultiHeadAttention", MICROSOFT)
    base = {"q": (2, 4, 4), "k": (2, 4, 4), "v": (2, 4, 4)}
    m.add("plain", base, num_heads=2)
    m.add("open", base, num_heads=2, unidirectional=1, scale=0.3, open=True)
    m.add("cross", {"q": (2, 3, 4), "k": (2, 5, 4), "v": (2, 5, 6)}, num_heads=2)
    m.add("bias", {**base, "b": (12,)}, "y k2 v2", known="b", num_heads=2)
    m.add("computed bias", {**base, "b": (12,)}, num_heads=2)
    for name in ("ends", "keys", "nothing", "pairs"):
        for one in (0, 1):
            inputs = {**base, "b": None, "mask": MASKS[name]}
            m.add(f"{name} {one}", inputs, num_heads=2, unidirectional=one)
    inputs = {**base, "b": None, "mask": MASKS["keys"]}
    m.add("low", inputs, "y k2 v2 scores", num_heads=2, mask_filter_value=-2.0)
    m.add("summand", {**inputs, "s": (1, 2, 4, 4)}, num_heads=2)
    mask = _int32(integers("more keys", (2, 6), 0, 2))
    past = {"past_k": (2, 2, 2, 2), "past_v": (2, 2, 2, 2)}
    for one in (0, 1):
        inputs = {**base, "b": (12,), "mask": mask, "s": None, **past}
        m.add(f"past {one}", inputs, "y k2 v2", known="b", num_heads=2, unidirectional=one)
    heads = {"q": (2, 4, 4), "k": (2, 2, 5, 2), "v": (2, 2, 5, 2), "b": (12,)}
    m.add("heads", heads, num_heads=2)
    yield m


def _grouped() -> Iterator[_Maker]:
    m = _Maker("GroupQueryAttention", MICROSOFT)

    def add(name: str, length: int = 4, past: int | None = None, ends: Any = None, **more: Any):
        """Add a model for two sequences; `total` is left open if it is an input."""
        size, packed = (16 if "do_rotary" in more else 8), more.pop("packed", False)
        count, rest = more.pop("batch", 2), more.pop("rest", {})
        ends = ends or [length + (past or 0)] * count
        total = _int32(more.pop("total", max(ends)))
        heads = {"q": (count, length, 2 * size), "k": (count, length, size)}
        inputs: dict[str, Any] = {**heads, "v": heads["k"]}
        if packed:
            inputs = {"q": (count, length, 4 * size), "k": None, "v": None}
        cache = None if past is None else (count, 1, past, size)
        inputs |= {"past_k": cache, "past_v": cache, "ends": _int32(ends) - 1, "total": total}
        if "do_rotary" in more or rest:
            turns = _turns(size) if "do_rotary" in more else (None, None)
            inputs |= dict(zip(("cosines", "sines"), turns, strict=True)) | rest
        known = more.pop("known", "total cosines sines")
        m.add(name, inputs, "y k2 v2", known=known, num_heads=2, kv_num_heads=1, **more)

    add("prompt")
    add("prompt packed", packed=True, scale=0.2)
    add("prompt turned", length=3, do_rotary=1, rotary_interleaved=1, packed=True)
    add("step", length=1, past=3)
    add("step of a buffer", length=1, past=6, ends=[3, 5], do_rotary=1)
    add("step of unequal lengths", length=1, past=3, ends=[2, 4], known="")
    add("more", length=2, past=3, batch=1, do_rotary=1)
    add("prompt in a buffer", length=3, past=5, ends=[3, 3])
    add("window", local_window_size=2)
    add("window of a step", length=1, past=3, local_window_size=2)
    add("soft cap", softcap=0.7)
    add("smooth", length=1, past=3, smooth_softmax=1)
    add("sink", rest={"rows": None, "bias": None, "sink": (2,)})
    add("summand", rest={"rows": None, "bias": (1, 2, 4, 4)})
    add("positions", length=1, past=3, do_rotary=1, rest={"rows": _int64([[3], [2]])})
    add("all keys", causal=0)
    add("open", length=1, past=3, known="cosines sines", do_rotary=1, open=True)
    yield m


def _turns(size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return cosines and sines of nine positions."""
    angles = np.arange(9)[:, np.newaxis] / 10 ** (np.arange(size // 2) * 2 / size)
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


def _rotary() -> Iterator[_Maker]:
    m = _Maker("RotaryEmbedding", MICROSOFT)
    rows = _int64(integers("rows", (2, 3), 0, 9))
    for name, shape, at, more in (
        ("first", (2, 3, 8), _int64([2]), {}),
        ("rows", (2, 3, 8), rows, {"interleaved": 1}),
        ("heads", (2, 2, 3, 4), rows, {}),
        ("part", (2, 3, 12), _int64([1]), {"num_heads": 2, "rotary_embedding_dim": 4}),
        ("part of heads", (2, 2, 3, 6), rows, {"num_heads": 2, "rotary_embedding_dim": 4}),
    ):
        cosines, sines = _turns(4)
        inputs = {"x": shape, "at": at, "c": cosines, "s": sines}
        m.add(name, inputs, known="c s", **more)
    yield m


# -- ai.onnx --------------------------------------------------------------------------------------


def _standard() -> Iterator[_Maker]:
    m = _Maker("Attention", "", 23)
    heads = {"q": (2, 4, 3, 2), "k": (2, 2, 5, 2), "v": (2, 2, 5, 4)}
    flat = {"q": (2, 3, 8), "k": (2, 5, 4), "v": (2, 5, 4)}
    counts = {"q_num_heads": 4, "kv_num_heads": 2}
    m.add("heads", heads)
    m.add("flat", flat, **counts)
    m.add("open", heads, is_causal=1, open=True)
    m.add("soft cap", heads, softcap=0.5, scale=0.3)
    seen = integers("seen", (3, 5), 0, 2).astype(bool)
    seen[:, 0] = True
    m.add("mask", {**flat, "m": seen}, "y - - scores", qk_matmul_output_mode=3, **counts)
    m.add("summand", {**heads, "m": (2, 1, 3, 5)}, "y - - scores", qk_matmul_output_mode=1)
    past = {"past_k": (2, 2, 2, 2), "past_v": (2, 2, 2, 2)}
    m.add("past", {**flat, "m": None, **past}, "y k2 v2", is_causal=1, **counts)
    yield m
    m = _Maker("RotaryEmbedding", "", 23)
    rows = _int64(integers("rows", (2, 3), 0, 9))
    cosines, sines = _turns(4)
    caches = {"c": cosines, "s": sines, "rows": rows}
    m.add("heads", {"x": (2, 2, 3, 4), **caches}, known="c s")
    m.add("flat", {"x": (2, 3, 8), **caches}, known="c s", num_heads=2, interleaved=1)
    m.add("part", {"x": (2, 2, 3, 6), **caches}, known="c s", rotary_embedding_dim=4)
    m.add("no positions", {"x": (2, 2, 3, 4), "c": (2, 3, 2), "s": (2, 3, 2)})
    yield m
    for type_, gates in (("RNN", 1), ("GRU", 3), ("LSTM", 4)):
        yield _recurrent(type_, gates)


def _recurrent(type_: str, gates: int) -> _Maker:
    m = _Maker(type_, "", 14)
    length, batch, features, hidden = 3, 2, 2, 3
    functions = {
        "RNN": ["Affine"], "GRU": ["HardSigmoid", "Softsign"],
        "LSTM": ["HardSigmoid", "ScaledTanh", "Softsign"],
    }[type_]  # fmt: skip
    numbers = {"RNN": (0.5, 0.1), "GRU": (0.3, 0.4), "LSTM": (0.3, 0.7, 0.4, 0.6)}[type_]
    half = len(numbers) // 2
    variants: list[tuple[str, dict[str, Any]]] = [
        ("plain", {}), ("states", {}), ("lengths", {}), ("clip", {"clip": 0.3}), ("functions", {})
    ]  # fmt: skip
    if type_ == "GRU":
        variants.append(("before", {"linear_before_reset": 1}))
    if type_ == "LSTM":
        variants += [("peepholes", {}), ("forget", {"input_forget": 1})]
    for direction in ("forward", "reverse", "bidirectional"):
        n = 2 if direction == "bidirectional" else 1
        for name, more in variants:
            inputs: dict[str, Any] = {
                "x": (length, batch, features), "w": (n, gates * hidden, features),
                "r": (n, gates * hidden, hidden), "b": (n, 2 * gates * hidden),
            }  # fmt: skip
            if name == "lengths":
                inputs |= {"lengths": _int32([3, 1]), "h": (n, batch, hidden)}
            if name == "states":
                inputs |= {"lengths": None, "h": (n, batch, hidden)}
                inputs |= {"c": (n, batch, hidden)} if type_ == "LSTM" else {}
            if name == "peepholes":
                inputs |= {"lengths": None, "h": None, "c": None, "p": (n, 3 * hidden)}
            arguments = {"direction": direction, "hidden_size": hidden, **more}
            if name == "functions":
                arguments["activations"] = functions * n
                arguments["activation_alpha"] = list(numbers[:half]) * n
                arguments["activation_beta"] = list(numbers[half:]) * n
            # Constant weights become a module, computed ones are written out.
            for known in ("w r b p lengths", "") if name in ("plain", "states") else ("w r b p",):
                title = f"{direction} {name} {'known' if known else 'computed'}"
                outputs = "y h2 c2" if type_ == "LSTM" else "y h2"
                m.add(title, inputs, outputs, known=known, **arguments)
    return m


FAMILIES = (_products, _norms, _attention, _grouped, _rotary, _standard)


@cache
def layers() -> dict[str, list[Layer]]:
    """Return the layers by domain and operator."""
    found: dict[str, list[Layer]] = {}
    for family in FAMILIES:
        for maker in family():
            title = f"{maker.domain}::{maker.type}" if maker.domain else maker.type
            found.setdefault(title, []).extend(maker.found)
    return found


@cache
def expected() -> dict[tuple[str, str], list[np.ndarray]]:
    """Return the results of onnxruntime by operator and name of a layer."""
    with np.load(DATA) as file:
        values, shapes = file["values"], iter(file["shapes"].tolist())
    found, at = {}, 0
    for title, family in layers().items():
        for layer in family:
            results = []
            for _ in range(next(shapes)):
                shape = [next(shapes) for _ in range(next(shapes))]
                size = int(np.prod(shape))
                results.append(values[at : at + size].reshape(shape))
                at += size
            found[title, layer.name] = results
    return found


def _write() -> None:
    import onnxruntime

    onnxruntime.set_default_logger_severity(4)
    values, shapes = [], []
    for family in layers().values():
        for layer in family:
            try:
                run = onnxruntime.InferenceSession(layer.file)
                names = [each.name for each in run.get_inputs()]
                results = run.run(None, dict(zip(names, layer.inputs, strict=True)))
            except Exception as error:
                raise SystemExit(f"{layer.name}: {error}") from None
            shapes.append(len(results))
            for array in results:
                shapes += [array.ndim, *array.shape]
                values.append(array.astype(np.float32).reshape(-1))
    DATA.unlink(missing_ok=True)
    np.savez_compressed(
        DATA, values=np.concatenate(values), shapes=np.array(shapes, np.int16)
    )  # the numbers alone: names are in the functions above
    print(f"{DATA}: {sum(map(len, layers().values()))} layers, {DATA.stat().st_size} bytes")


if __name__ == "__main__":
    _write()
