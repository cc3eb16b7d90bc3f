"""The backend tests of ONNX itself: models of one or few nodes, inputs, and expected outputs.

The `onnx` package makes the tests; the small ones are in an archive of the repository, so that they
run without the package as well.  ``python -m tests.conformance.suite`` writes the archive; it needs
`onnx`.

The code of the tests is from https://github.com/onnx/onnx (Apache License 2.0).
"""

from __future__ import annotations

import glob
import importlib.util
import io
import itertools
import json
import lzma
import os
import sys
import tarfile
import warnings
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

__all__ = ["ARCHIVE", "Case", "archived", "cases"]

ARCHIVE = Path(__file__).parents[1] / "data" / "onnx_suite.tar.xz"
MAX_BYTES = 6000  # of the model and the arrays of a test in the archive

# What is not computed: operators without a defined result or without tensors, and those newer than
# opset 24.
OTHERS = frozenset({
    "Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform",
    "RandomUniformLike", "NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss", "Gradient",
    "Optional", "OptionalGetElement", "OptionalHasElement", "SequenceAt", "SequenceConstruct",
    "SequenceEmpty", "SequenceErase", "SequenceInsert", "SequenceLength", "SequenceMap",
    "SplitToSequence", "ConcatFromSequence", "ImageDecoder", "RegexFullMatch", "StringConcat",
    "StringNormalizer", "StringSplit", "TfIdfVectorizer", "BitCast", "CausalConvWithState",
    "CumProd", "FlexAttention", "LinearAttention", "SwiGLU",
})  # fmt: skip
# Tests of such operators as compositions of others are named after them.
OTHER_NAMES = (
    "_flexattention_", "_linear_attention_", "_causal_conv_with_state_", "_swiglu", "_sce_",
    "_nllloss_", "_training_", "_gradient_", "_cumprod",
)  # fmt: skip
# Strings, bfloat16 and smaller, unsigned integers of more than 8 bits.
OTHER_ELEMENTS = frozenset({4, 8, 12, 13, 16, *range(17, 40)})


class Case(NamedTuple):
    """One test.

    Attributes
    ----------
    name : str
    model : bytes
    names : list of str
        Of the inputs.
    data : list of (list of numpy.ndarray, list of numpy.ndarray)
        Inputs and expected outputs.
    rtol, atol : float
    """

    name: str
    model: bytes
    names: list[str]
    data: list[tuple[list[Any], list[Any]]]
    rtol: float
    atol: float

    @property
    def nbytes(self) -> int:
        """Size of the model and the arrays."""
        return len(self.model) + sum(a.nbytes for pair in self.data for a in itertools.chain(*pair))


@cache
def cases() -> list[Case]:
    """Return all tests if `onnx` is installed, else those of the archive."""
    if importlib.util.find_spec("onnx") is not None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return sorted(_generated())
    return list(archived())


def archived() -> Iterator[Case]:
    """Yield the tests of the archive."""
    with tarfile.open(ARCHIVE) as archive:
        contents = {item.name: archive.extractfile(item).read() for item in archive}
    for name, facts in json.loads(contents.pop("index.json")).items():
        data = [
            tuple(
                [np.load(io.BytesIO(contents[f"{name}/{number}.{key}{i}.npy"])) for i in range(n)]
                for key, n in zip(("in", "out"), counts, strict=True)
            )
            for number, counts in enumerate(facts["data"])
        ]
        model = contents[f"{name}/model.onnx"]
        yield Case(name, model, facts["names"], data, facts["rtol"], facts["atol"])


def write_archive() -> None:
    """Write the small tests to the archive; equal tests give equal bytes."""
    index, files = {}, {}
    for case in sorted(_generated()):
        if case.nbytes > MAX_BYTES:
            continue
        index[case.name] = {
            "names": case.names, "rtol": case.rtol, "atol": case.atol,
            "data": [[len(inputs), len(outputs)] for inputs, outputs in case.data],
        }  # fmt: skip
        files[f"{case.name}/model.onnx"] = case.model
        for number, pair in enumerate(case.data):
            for key, arrays in zip(("in", "out"), pair, strict=True):
                for i, array in enumerate(arrays):
                    buffer = io.BytesIO()
                    np.save(buffer, array)
                    files[f"{case.name}/{number}.{key}{i}.npy"] = buffer.getvalue()
    files["index.json"] = json.dumps(index).encode()
    with (
        lzma.open(ARCHIVE, "wb", preset=9 | lzma.PRESET_EXTREME) as stream,
        tarfile.open(fileobj=stream, mode="w", format=tarfile.USTAR_FORMAT) as archive,
    ):
        for name, content in sorted(files.items()):
            item = tarfile.TarInfo(name)
            item.size = len(content)
            archive.addfile(item, io.BytesIO(content))
    print(f"{ARCHIVE}: {len(index)} tests, {ARCHIVE.stat().st_size} bytes")


def _generated() -> Iterator[Case]:
    """Yield the tests of the package that are in scope."""
    import onnx
    from onnx.backend.test import loader
    from onnx.backend.test.case.node import collect_testcases

    for test in collect_testcases(""):
        data = [tuple(map(list, pair)) for pair in test.data_sets or ()]
        yield from _in_scope(test.name, test.model, data, test.rtol, test.atol)
    for kind in ("simple", "pytorch-converted", "pytorch-operator", "light"):
        for test in loader.load_model_tests(kind=kind):
            if test.model_dir is None or not os.path.isdir(test.model_dir):
                continue  # the package does not have the files
            model = onnx.load(os.path.join(test.model_dir, "model.onnx"))
            folders = sorted(glob.glob(os.path.join(test.model_dir, "test_data_set_*")))
            data = [
                tuple(_stored(folder, key) for key in ("input", "output")) for folder in folders
            ]
            name = f"{kind.replace('pytorch-', '')}:{test.name}"
            yield from _in_scope(name, model, data, test.rtol, test.atol)


def _stored(folder: str, key: str) -> list[Any]:
    import onnx
    from onnx import numpy_helper

    found = []
    for number in range(len(glob.glob(os.path.join(folder, f"{key}_*.pb")))):
        message = onnx.TensorProto()
        with open(os.path.join(folder, f"{key}_{number}.pb"), "rb") as file:
            message.ParseFromString(file.read())
        found.append(numpy_helper.to_array(message) if message.data_type else None)
    return found


def _in_scope(name: str, model: Any, data: Any, rtol: Any, atol: Any) -> Iterator[Case]:
    given = {tensor.name for tensor in model.graph.initializer}
    names = [info.name for info in model.graph.input if info.name not in given]
    if not data or any(key in f"{name}_" for key in OTHER_NAMES) or _has_others(model):
        return
    if any(not _is_plain(array) for pair in data for arrays in pair for array in arrays):
        return
    data = [([*map(np.asarray, i)], [*map(np.asarray, o)]) for i, o in data]
    yield Case(name, model.SerializeToString(), names, data, float(rtol or 0), float(atol or 0))


def _has_others(model: Any) -> bool:
    """Tell whether a model has operators or element types that are out of scope."""
    infos = [*model.graph.input, *model.graph.output]
    if any(not info.type.HasField("tensor_type") for info in infos):
        return True
    if any(info.type.tensor_type.elem_type in OTHER_ELEMENTS for info in infos):
        return True
    nodes = [*model.graph.node, *(node for f in model.functions for node in f.node)]
    for node in nodes:
        nodes += [inner for a in node.attribute if a.HasField("g") for inner in a.g.node]
        if node.op_type in OTHERS or node.domain not in ("", "ai.onnx"):
            return True
        for a in node.attribute:
            if (node.op_type, a.name) == ("Cast", "to") and a.i in OTHER_ELEMENTS:
                return True
            if a.HasField("t") and a.t.data_type in OTHER_ELEMENTS:
                return True
            if a.name == "training_mode" and a.i:
                return True
    return False


def _is_plain(value: Any) -> bool:
    return (
        isinstance(value, np.ndarray | np.generic)
        and value.dtype.kind in "biufc"
        and value.dtype.isbuiltin == 1
    )


if __name__ == "__main__":
    sys.exit(write_archive())
