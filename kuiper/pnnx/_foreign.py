"""Model files of other formats: what they are, and how to get from them to a PNNX model."""

from __future__ import annotations

import io
import os
import zipfile

__all__ = ["next_step"]


def next_step(data: bytes, name: str) -> str | None:
    """Describe the model of another format that a file holds, and say what to do; None if unknown.

    Parameters
    ----------
    data : bytes
        The file or its beginning.
    name : str
        Its path, or a name in brackets.
    """
    stem, suffix = os.path.splitext(os.path.basename(name))
    suffix = suffix.lower()
    result = f"kuiper.load('{stem}.pnnx.param')"
    export = f"pip install pnnx, kuiper export {os.path.basename(name)}"
    if data.startswith(b"PK"):
        return _archived(data, name, f"{export} --shape 1x3x224x224 (that of each input)", result)
    if data.startswith(b"\x80"):
        return _PICKLED
    if suffix == ".safetensors" and data[8:9] == b"{":
        return (
            "it holds weights without a network; make the module in Python, load them into it, "
            "then kuiper.from_torch(module, example_input)"
        )
    if data[4:8] == b"TFL3":
        return "it is a TensorFlow Lite model; kuiper reads exports from PyTorch and ONNX"
    return None


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
            inner = {entry.partition("/")[2]: entry for entry in archive.namelist()}
    except (OSError, ValueError, zipfile.BadZipFile):
        return None
    if any(entry.startswith("code/") for entry in inner):
        return f"it is a TorchScript model; convert it: {export}, then {result}"
    if "data.pkl" in inner:
        return _PICKLED
    if "archive_format" in inner or "serialized_exported_program.json" in inner.values():
        file = os.path.basename(name)
        return (
            "it is a program of torch.export; convert it in Python: pip install torch pnnx, "
            f"kuiper.from_torch(torch.export.load('{file}').module(), example_input)"
        )
    return None
