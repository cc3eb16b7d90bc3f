"""Model files of other formats: what they are, and how to get a PNNX or ONNX model of them."""

from __future__ import annotations

import io
import os
import zipfile
from collections.abc import Iterator

__all__ = ["HEAD_BYTES", "next_step", "other_message"]

HEAD_BYTES = 4096  # of a file, enough to tell formats apart

_ORIGINAL = (
    "use what it was made of: an ONNX file, or the PyTorch module with "
    "kuiper.from_torch(module, example_input)"
)
_TENSORFLOW = (
    "convert it in Python: pip install tf2onnx, then kuiper.load of the ONNX file that it writes: "
)


def next_step(data: bytes, name: str) -> str | None:
    """Describe the model of another format that a file holds, and say what to do; None if unknown.

    Parameters
    ----------
    data : bytes
        The file or its beginning.
    name : str
        Its path, or a name in brackets.
    """
    file = os.path.basename(name)
    stem, suffix = os.path.splitext(file)
    suffix = suffix.lower()
    result = f"kuiper.load('{stem}.pnnx.param')"
    export = f"pip install pnnx, kuiper export {file}"
    if data.startswith(b"PK"):
        return _archived(data, name, f"{export} --shape 1x3x224x224 (that of each input)", result)
    if data.startswith(b"\x80"):
        return _PICKLED
    size = int.from_bytes(data[:8], "little")
    if data[8:9] == b"{" and (suffix == ".safetensors" or 2 <= size < 100_000_000):
        return (
            "it is a safetensors file, weights without a network; make the module in Python, load "
            "them into it, then kuiper.from_torch(module, example_input)"
        )
    if data.startswith(b"GGUF"):
        return (
            "it is a GGUF file, the weights of a language model for llama.cpp without a network; "
            "load the original model in PyTorch, then kuiper.from_torch(module, example_input)"
        )
    if data.startswith((b"ftrt", b"ptrt")) or suffix in (".engine", ".plan", ".trt"):
        return f"it is a TensorRT engine, compiled for one kind of GPU; {_ORIGINAL}"
    if data[4:8] == b"ORTM":
        return "it is a model in onnxruntime's own format; load the .onnx file that it was made of"
    if suffix in (".pdmodel", ".pdiparams"):
        stem = "model" if stem.startswith("<") else stem
        return (
            "it is a PaddlePaddle model; convert it: pip install paddle2onnx, paddle2onnx "
            f"--model_dir . --model_filename {stem}.pdmodel --params_filename {stem}.pdiparams "
            f"--save_file {stem}.onnx, then kuiper.load('{stem}.onnx')"
        )
    if data[4:8] == b"TFL3":
        return (
            "it is a TensorFlow Lite model; convert it: pip install tf2onnx, python -m "
            f"tf2onnx.convert --tflite {file} --output {stem}.onnx, then kuiper.load of that file"
        )
    if data.startswith(b"\x89HDF\r\n"):
        return (
            "it is an HDF5 file, as Keras writes; "
            f"{_TENSORFLOW}tf2onnx.convert.from_keras(keras.models.load_model('{file}'), "
            f"output_path='{stem}.onnx')"
        )
    return other_message(data, suffix)


def other_message(data: bytes, suffix: str = "") -> str | None:
    """Describe a protobuf message that begins like an ONNX file, with a version; None if it is one.

    Parameters
    ----------
    data : bytes
        The file or its beginning.
    suffix : str
        Of its name, which decides if the beginning does not.
    """
    core_ml = f"it is a Core ML model, which has no converter to ONNX; {_ORIGINAL}"
    tensorflow = (
        f"it is a TensorFlow graph; {_TENSORFLOW}python -m tf2onnx.convert --saved-model FOLDER "
        "--output model.onnx"
    )
    if suffix == ".mlmodel":
        return core_ml
    if data[:1] != b"\x08":
        return tensorflow if suffix == ".pb" and data[:1] == b"\n" else None
    for number, size in _fields(data):
        # The second field is the name of ONNX's producer, which is short, a description of Core
        # ML's inputs, or all of a TensorFlow graph.
        if number == 2 and size > HEAD_BYTES:
            return tensorflow
        if number >= 200:
            return core_ml
        if number == 7:
            break  # ONNX's graph
    return None


def _fields(data: bytes) -> Iterator[tuple[int, int]]:
    """Yield the number and the size of the fields at the beginning of a message."""
    at = 0

    def number() -> int:
        nonlocal at
        value = shift = 0
        while shift < 64:
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                break
        return value

    try:
        while at < len(data):
            tag = number()
            size = {1: 8, 5: 4}.get(tag & 7, 0)
            if tag & 7 == 0:
                number()
            elif tag & 7 == 2:
                size = number()
            yield tag >> 3, size
            at += size
    except IndexError:
        return  # the end of the beginning


_PICKLED = (
    "it was written by torch.save: weights without a network, or a pickled module; make the module "
    "in Python, load the weights (module.load_state_dict, for Lightning load_from_checkpoint), "
    "then kuiper.from_torch(module, example_input)"
)


def _archived(data: bytes, name: str, export: str, result: str) -> str | None:
    """Describe a ZIP archive by the names of its entries."""
    try:
        # Only the beginning of a large file has been read.
        with zipfile.ZipFile(name if os.path.isfile(name) else io.BytesIO(data)) as archive:
            names = archive.namelist()
    except (OSError, ValueError, zipfile.BadZipFile):
        return None
    inner = {entry.partition("/")[2] for entry in names}
    if {"config.json", "metadata.json"} <= set(names):
        file = os.path.basename(name)
        return (
            f"it is a Keras model; {_TENSORFLOW}tf2onnx.convert.from_keras("
            f"keras.models.load_model('{file}'), output_path='model.onnx')"
        )
    if any(entry.startswith("code/") for entry in inner):
        return f"it is a TorchScript model; convert it: {export}, then {result}"
    if "data.pkl" in inner:
        return _PICKLED
    if "archive_format" in inner or "serialized_exported_program.json" in names:
        file = os.path.basename(name)
        return (
            "it is a program of torch.export; convert it in Python: pip install torch pnnx, "
            f"kuiper.from_torch(torch.export.load('{file}').module(), example_input)"
        )
    return None
