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


FILES = {
    "x.pt": (archive("m/data.pkl", "m/code/__torch__.py"), "TorchScript.*export x.pt --shape 1x3"),
    "x.pth": (archive("m/data.pkl", "m/data/0"), "written by torch.save.*kuiper.from_torch"),
    "x.ckpt": (b"\x80\x02}q\0." + LARGE, "written by torch.save.*load_from_checkpoint"),
    "x.pt2": (archive("e/models/model.json", "e/archive_format"), r"export.load\('x.pt2'\).module"),
    "old.pt2": (archive("serialized_exported_program.json"), "a program of torch.export"),
    "x.safetensors": (b"\x40" + bytes(7) + b'{"w":{}}' + LARGE, "weights without a network"),
    "x.tflite": (b"\x1c\0\0\0TFL3" + LARGE, "TensorFlow Lite"),
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
    if name.startswith("x") and path.suffix != ".safetensors":
        with pytest.raises(kuiper.ModelFormatError, match=r"torch|TensorFlow|TorchScript"):
            kuiper.load(content)
