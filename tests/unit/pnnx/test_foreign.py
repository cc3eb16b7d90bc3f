"""Model files of other formats: the error says what to do next."""

from __future__ import annotations

import io
import zipfile

import pytest

import kuiper
from kuiper.cli import main

LARGE = bytes(20_000)  # the directory of the archive follows what is read first


def archive(*names: str) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as writer:
        for name in names:
            writer.writestr(name, LARGE)
    return file.getvalue()


# A version, a description of the inputs, a network.
CORE_ML = b"\x08\4\x12\5\x0a\3\x0a\1x" + b"\xa2\x1f\xa0\x9c\1" + LARGE

# Without a name, these formats are unknown or taken for others.
NAMED = ("x.pdmodel",)

FILES = {
    "x.pt": (archive("m/data.pkl", "m/code/__torch__.py"), "TorchScript.*export x.pt --shape 1x3"),
    "x.pth": (archive("m/data.pkl", "m/data/0"), "written by torch.save.*kuiper.from_torch"),
    "x.ckpt": (b"\x80\x02}q\0." + LARGE, "written by torch.save.*load_from_checkpoint"),
    "x.pt2": (archive("e/models/model.json", "e/archive_format"), r"export.load\('x.pt2'\).module"),
    "old.pt2": (archive("serialized_exported_program.json"), "a program of torch.export"),
    "x.safetensors": (b"\x40" + bytes(7) + b'{"w":{}}' + LARGE, "weights without a network"),
    "x.tflite": (b"\x1c\0\0\0TFL3" + LARGE, "TensorFlow Lite.*--tflite x.tflite --output x.onnx"),
    "x.gguf": (b"GGUF\3\0\0\0" + LARGE, "for llama.cpp.*from_torch"),
    "x.engine": (b"ftrt\xff\xfe" + LARGE, "a TensorRT engine.*an ONNX file, or the PyTorch mod"),
    "x.ort": (b"\x1c\0\0\0ORTM" + LARGE, "load the .onnx file"),
    "x.pdmodel": (b"\n\xaf\2" + LARGE, "PaddlePaddle.*model_filename x.pdmodel .*load.'x.onnx'"),
    "x.h5": (b"\x89HDF\r\n\x1a\n" + LARGE, "HDF5.*load_model.'x.h5'.*output_path='x.onnx'"),
    "x.keras": (archive("metadata.json", "config.json", "model.weights.h5"), "Keras.*'x.keras'"),
    "x.mlmodel": (CORE_ML, "Core ML.*an ONNX file, or the PyTorch module"),
    "saved_model.pb": (b"\x08\1\x12\xa0\x9c\1" + LARGE, "TensorFlow graph.*--saved-model"),
    "frozen.pb": (b"\n\x10" + LARGE, "TensorFlow graph.*tf2onnx"),
    "other.zip": (archive("readme.txt"), r"a ZIP archive; is it the \.bin"),
    "cut.pt": (archive("m/data.pkl")[:9000], r"a ZIP archive; is it the \.bin"),
}


@pytest.mark.parametrize("name", FILES)
def test_files_of_other_formats(name, tmp_path, capsys):
    content, message = FILES[name]
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(kuiper.ModelFormatError, match=f"not a PNNX .param file: it .*{message}"):
        kuiper.load(path)
    assert main(["info", str(path)]) == 3
    assert "not a PNNX .param file: it " in capsys.readouterr().err
    if name.startswith("x") and name not in NAMED:
        with pytest.raises(kuiper.ModelFormatError, match=r"not a PNNX .param file: it (is|was)"):
            kuiper.load(content)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "a git-lfs pointer"),
        (b"<!DOCTYPE html><html>", "a web page"),
        (b"", "it is empty"),
        (b"\x1c\0\0\0ORTM" + LARGE, "onnxruntime's own format"),
        (archive("m/data.pkl", "m/code/__torch__.py"), "a TorchScript model"),
    ],
)
def test_files_that_are_called_onnx(tmp_path, content, message):
    (tmp_path / "m.onnx").write_bytes(content)
    with pytest.raises(kuiper.ModelFormatError, match=f"m.onnx: not an ONNX file: .*{message}"):
        kuiper.load(tmp_path / "m.onnx")
