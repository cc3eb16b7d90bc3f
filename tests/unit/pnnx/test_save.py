"""Both files together: loading from every kind of source, saving, and consistency checks."""

from __future__ import annotations

import base64
import contextlib
import io
import os
import re
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kuiper
from kuiper.errors import GraphError, ModelFormatError
from kuiper.ir import Attribute, Graph
from kuiper.ir.attribute import MissingWeights
from kuiper.pnnx import load_graph, save_graph
from kuiper.pnnx.archive_writer import write_archive

from ...support.process import output_of
from ...support.shipped import MODELS, SHIPPED
from ...support.textgraph import contents_of

# A small model as pnnx 20261020 wrote it: Linear, LeakyReLU(1e-5), an interpolation by
# 1.5, a concatenation, and a product plus a free parameter.
PARAM = b"""7767517
11 10
pnnx.Input               pnnx_input_0             0 1 0 #0=(1,3)f32
pnnx.Attribute           shift                    0 1 1 @data=(2)f32 #1=(2)f32
nn.Linear                fc                       1 1 0 2 bias=True in_features=3 out_features=2 \
@bias=(2)f32 @weight=(2,3)f32 #0=(1,3)f32 #2=(1,2)f32
nn.LeakyReLU             act                      1 1 2 3 negative_slope=1.000000e-5 \
#2=(1,2)f32 #3=(1,2)f32
torch.unsqueeze          torch.unsqueeze_1        1 1 3 4 dim=0 $input=3 #3=(1,2)f32 #4=(1,1,2)f32
F.upsample               F.upsample_3             1 1 4 5 mode=nearest scale_factor=(1.5) \
$input=4 #4=(1,1,2)f32 #5=(1,1,3)f32
torch.unbind             Tensor.select_2          1 1 5 6 dim=0 #5=(1,1,3)f32 #6=(1,3)f32
torch.cat                torch.cat_0              2 1 3 6 7 dim=1 #3=(1,2)f32 #6=(1,3)f32 \
#7=(1,5)f32
pnnx.Expression          pnnx_expr_0              2 1 3 1 8 expr=add(mul(@0,2.5),@1) #3=(1,2)f32 \
#1=(2)f32 #8=(1,2)f32
prim::TupleConstruct     pnnx_16                  2 1 7 8 9 #7=(1,5)f32 #8=(1,2)f32
pnnx.Output              pnnx_output_0            1 0 9
"""
BIN = zlib.decompress(
    base64.b64decode(
        "eNoL8GZmYYADA38frf9QwMWgwFCckZlWopeSWJLIyCDDwAFVxcGACf5qS9hP9kq2D0Axz0nn+HyYeexA89KS"
        "9ZIyE4sJGTZz1wK7RcIT7FANW9nHywgzjBNiWHlqZnpGCcg4CagiCSzGTesS2r/U4OU+ZsvafflXufeLOrLt"
        "/cbOtD/Am5EJWR267xkY/v+HyIBEiA8LdHPRQwHVXDxhEoDHUPTQwDAUd9jMRTGWjU0Hix+Y0WgWRgj9B6GP"
        "HcyAOooRLMbK9h8NMDAAAHKsiVY="
    )
)
# The form of 2022: exponents with a sign and leading zeros, and a 32-bit archive.
OLD_PARAM = b"""7767517
3 2
pnnx.Input               pnnx_input_0             0 1 0 #0=(1,4)f32
nn.LeakyReLU             act                      1 1 0 1 negative_slope=1.000000e-05 \
size=(2.000000e+00) dims=() #0=(1,4)f32 #1=(1,4)f32
pnnx.Output              pnnx_output_0            1 0 1 #1=(1,4)f32
"""
OLD_BIN = b"PK\5\6" + bytes(18)


@pytest.fixture
def files(tmp_path) -> Path:
    """Return the path of the .param file, with the .bin file beside it."""
    (tmp_path / "m.pnnx.param").write_bytes(PARAM)
    (tmp_path / "m.pnnx.bin").write_bytes(BIN)
    return tmp_path / "m.pnnx.param"


# -- loading ---------------------------------------------------------------------------------


def test_loaded_graph(files):
    graph = load_graph(files)
    graph.verify()
    assert [operand.name for operand in graph.inputs] == ["0"]
    assert [operand.name for operand in graph.outputs] == ["9"]
    linear = graph.operator("fc")
    assert linear.params == {"bias": True, "in_features": 3, "out_features": 2}
    assert linear.location == f"{files}:5"
    assert sorted(linear.attributes) == ["bias", "weight"]
    weight = linear.attributes["weight"]
    assert (weight.shape, weight.dtype) == ((2, 3), "f32")
    bound = 1 / np.sqrt(3)
    assert np.all(np.abs(weight.numpy()) <= bound)
    assert weight.numpy().std() > 0.1 * bound
    assert graph.operator("act").params == {"negative_slope": 1e-5}
    assert graph.operator("F.upsample_3").params["scale_factor"] == (1.5,)
    assert graph.operator("F.upsample_3").input_keys == ("input",)
    assert graph.operand("9").shape is None


@pytest.mark.parametrize(
    "sources",
    [
        lambda path: (str(path),),
        lambda path: (path,),
        lambda path: (path, path.with_suffix(".bin")),
        lambda path: (path, BIN),
        lambda path: (PARAM, BIN),
        lambda path: (bytearray(PARAM), memoryview(BIN)),
        lambda path: (io.BytesIO(PARAM), io.BytesIO(BIN)),
        lambda path: (PARAM, str(path.with_suffix(".bin"))),
        lambda path: (path.open("rb"), path.with_suffix(".bin").open("rb")),
    ],
)
def test_every_kind_of_source(files, sources):
    sources = sources(files)
    expected = contents_of(load_graph(PARAM, BIN))
    assert contents_of(load_graph(*sources, check_crc=True)) == expected
    for source in sources:
        if hasattr(source, "close"):
            source.close()


def test_weights_are_views_of_the_archive(files):
    data = bytearray(BIN)
    weight = load_graph(PARAM, data).operator("fc").attributes["weight"]
    assert np.shares_memory(weight.raw, np.frombuffer(data, np.uint8))
    mapped = load_graph(files).operator("fc").attributes["weight"]
    os.unlink(files.with_suffix(".bin"))
    assert mapped == weight
    assert not mapped.raw.flags.writeable


def test_messages_name_the_files(tmp_path):
    path = tmp_path / "bad.param"
    path.write_bytes(b"nothing")
    with pytest.raises(ModelFormatError, match=re.escape(f"{path}:1:1: not a PNNX file")):
        load_graph(path)
    with path.open("rb") as file, pytest.raises(ModelFormatError, match=re.escape(f"{path}:1:1")):
        load_graph(file)
    with pytest.raises(ModelFormatError, match="<param>:1:1: not a PNNX file"):
        load_graph(b"nothing")
    with pytest.raises(ModelFormatError, match="<bin>: not a ZIP archive"):
        load_graph(PARAM, b"nothing")


def test_swapped_files(files):
    with pytest.raises(ModelFormatError, match=r"it is a ZIP archive; is it the \.bin file"):
        load_graph(files.with_suffix(".bin"), files)


def test_missing_files(files, tmp_path):
    with pytest.raises(FileNotFoundError):
        load_graph(tmp_path / "nothing.param")
    with pytest.raises(FileNotFoundError):
        load_graph(files, tmp_path / "nothing.bin")
    files.with_suffix(".bin").unlink()
    with pytest.raises(FileNotFoundError) as caught:
        kuiper.load(files)
    assert caught.value.filename == str(files.with_suffix(".bin"))
    assert "has 3 attributes (first 'shift.data'), but their archive is missing" in str(
        caught.value
    )
    with pytest.raises(ValueError, match=r"<param> has 3 attributes .* pass the archive"):
        kuiper.load(PARAM)


def test_a_graph_without_its_archive(files, tmp_path):
    whole = load_graph(files)
    files.with_suffix(".bin").unlink()
    for graph, error in ((load_graph(files), FileNotFoundError), (load_graph(PARAM), ValueError)):
        assert str(graph) == str(whole)
        weight = graph.operator("fc").attributes["weight"]
        assert (weight.shape, weight.dtype, weight.nbytes) == ((2, 3), "f32", 24)
        assert isinstance(weight.missing, error)
        for use in (
            weight.numpy,
            lambda graph=graph: kuiper.Model(graph),
            lambda graph=graph: save_graph(graph, tmp_path / "new.param"),
        ):
            with pytest.raises(error, match="has 3 attributes"):
                use()
    assert not (tmp_path / "new.param").exists()
    with pytest.raises(FileNotFoundError):
        load_graph(files, check_crc=True)
    scalar = Attribute((), "f32", MissingWeights(ValueError("gone")))
    with pytest.raises(ValueError, match="gone"):
        scalar.numpy()


@pytest.mark.parametrize(
    ("text", "archive"), [("net.param", "net.pnnx.bin"), ("net.pnnx.param", "net.bin")]
)
def test_older_names_of_the_archive(tmp_path, text, archive):
    (tmp_path / text).write_bytes(PARAM)
    (tmp_path / archive).write_bytes(BIN)
    assert load_graph(tmp_path / text).operator("fc").attributes["weight"].missing is None
    # The usual name comes first; a model without weights needs no other file.
    (tmp_path / text).with_suffix(".bin").write_bytes(b"damaged")
    with pytest.raises(ModelFormatError, match="not a ZIP archive"):
        load_graph(tmp_path / text)
    (tmp_path / text).with_suffix(".bin").unlink()
    (tmp_path / archive).write_bytes(b"something else")
    (tmp_path / text).write_bytes(OLD_PARAM)
    assert len(load_graph(tmp_path / text)) == 3


def test_wrong_arguments(files):
    with files.open() as text, pytest.raises(TypeError, match="expected binary mode"):
        load_graph(text)
    for wrong in (5, None, [1]):
        with pytest.raises(TypeError):
            load_graph(wrong)
    with pytest.raises(TypeError):
        load_graph(PARAM, 5)


def test_a_model_without_attributes_needs_no_archive(tmp_path):
    path = tmp_path / "m.param"
    path.write_bytes(OLD_PARAM)
    assert len(load_graph(path)) == len(load_graph(OLD_PARAM)) == 3
    path.with_suffix(".bin").write_bytes(b"damaged")
    with pytest.raises(ModelFormatError, match="not a ZIP archive"):
        load_graph(path)


def archive(**changes) -> bytes:
    """Return the archive of PARAM with entries replaced, or removed if the value is None."""
    entries = {"shift.data": bytes(8), "fc.bias": bytes(8), "fc.weight": bytes(24)} | changes
    file = io.BytesIO()
    write_archive(file, [(k, v) for k, v in entries.items() if v is not None])
    return file.getvalue()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"fc.bias": None, "fc.weight": None},
            "2 attributes without entry: 'fc.bias' (line 5), 'fc.weight' (line 5)",
        ),
        (
            {"other": b"", "fc.bias.": b""},
            "2 entries without attribute: 'other', 'fc.bias.'",
        ),
        (
            {"fc.weight": bytes(20)},
            "1 entry of a wrong size: 'fc.weight' (line 5) has 20 bytes, its shape (2,3)f32 "
            "takes 24",
        ),
        (
            {"fc.bias": None, "fc.bia": b"", "shift.data": b""},
            "1 attribute without entry: 'fc.bias' (line 5); 1 entry without attribute: 'fc.bia'; "
            "1 entry of a wrong size: 'shift.data' (line 4) has 0 bytes, its shape (2)f32 takes 8",
        ),
    ],
    ids=["missing", "strangers", "size", "all three"],
)
def test_inconsistent_files(changes, message):
    with pytest.raises(ModelFormatError) as caught:
        load_graph(PARAM, archive(**changes))
    assert str(caught.value) == (
        f"<bin> does not belong to <param>\n{message}\nboth files must come from the same export; "
        "pass the right archive as the second argument, or export the model again"
    )


def test_a_long_list_is_shortened():
    strangers = {f"x{i}": b"" for i in range(30)}
    with pytest.raises(ModelFormatError, match=r"30 entries without .*'x2' and 27 more\nboth"):
        load_graph(PARAM, archive(**strangers))


def test_crc_is_checked_on_request():
    data = bytearray(BIN)
    data[data.index(b"fc.weight") + 9 + 32] ^= 1
    assert len(load_graph(PARAM, bytes(data))) == 11
    with pytest.raises(ModelFormatError, match=r"<bin>: the data of 1 of 3 entries .*'fc\.weight'"):
        load_graph(PARAM, bytes(data), check_crc=True)


@settings(max_examples=300, derandomize=True, database=None, deadline=None)
@given(st.data())
def test_damaged_files_give_one_kind_of_error(data):
    """A damaged model that still loads is a graph whose weights can be read."""
    files = [bytearray(PARAM), bytearray(BIN)]
    for _ in range(data.draw(st.integers(1, 3))):
        file = data.draw(st.sampled_from(files))
        position = data.draw(st.integers(0, len(file) - 1))
        new = data.draw(st.sampled_from([b"", b"0", b"(", b" ", b"\n", b"\xff", b"9" * 9, b"?"]))
        file[position : position + data.draw(st.integers(0, 2))] = new
    with contextlib.suppress(ModelFormatError):
        graph = load_graph(*files)
        graph.verify()
        for operator in graph:
            for attribute in operator.attributes.values():
                assert attribute.numpy().shape == attribute.shape


# -- saving ----------------------------------------------------------------------------------


def saved(graph: Graph) -> tuple[bytes, bytes]:
    param, bin = io.BytesIO(), io.BytesIO()
    save_graph(graph, param, bin)
    return param.getvalue(), bin.getvalue()


def test_files_of_current_pnnx_are_rewritten_byte_for_byte():
    assert saved(load_graph(PARAM, BIN)) == (PARAM, BIN)


def test_files_of_older_pnnx_are_updated():
    graph = load_graph(OLD_PARAM, OLD_BIN)
    param, bin = saved(graph)
    assert b"dims=None negative_slope=1.000000e-5 size=(2.0) #0" in param
    assert len(bin) == 98
    again = load_graph(param, bin)
    assert contents_of(again) == contents_of(graph)
    assert saved(again) == (param, bin)


def test_every_element_type_survives():
    graph = Graph()
    arrays = {
        "a": np.array([1.5, -2], np.float32),
        "b": np.array([[1.5], [np.nan]]),
        "c": np.array([0.1, 65504], np.float16),
        "d": np.array(3, np.int64),
        "e": np.zeros((0, 3), np.int8),
        "f": np.array([True, False]),
        "g": np.array([1 + 2j], np.complex64),
        "h": np.array([1 - 2j]),
        "i": np.arange(3, dtype=np.uint8),
        "j": np.array([-5], np.int16),
        "k": np.array([-5], np.int32),
    }
    attributes = {key: Attribute.from_array(array) for key, array in arrays.items()}
    attributes["l"] = Attribute.from_array(np.array([1.0, -3.0], np.float32), "bf16")
    attributes["m"] = Attribute.from_array(np.array([1 + 2j, -1j]), "c32")
    graph.add_operator("my.Constants", "all", outputs=["0"], attributes=attributes)
    again = load_graph(*saved(graph)).operator("all").attributes
    assert again == attributes
    for key, array in arrays.items():
        assert again[key].numpy().dtype == array.dtype
        np.testing.assert_array_equal(again[key].numpy(), array)
    np.testing.assert_array_equal(again["l"].numpy(), np.array([1.0, -3.0], np.float32))
    np.testing.assert_array_equal(again["m"].numpy(), np.array([1 + 2j, -1j], np.complex64))


def test_save_to_paths(files, tmp_path):
    graph = load_graph(files)
    for target in (tmp_path / "new.pnnx.param", str(tmp_path / "str.param")):
        save_graph(graph, target)
        assert Path(target).read_bytes() == PARAM
        assert Path(target).with_suffix(".bin").read_bytes() == BIN
    save_graph(graph, tmp_path / "x", tmp_path / "y")
    assert (tmp_path / "x").read_bytes() == PARAM
    assert (tmp_path / "y").read_bytes() == BIN
    assert not list(tmp_path.glob("*.tmp"))


def test_save_over_the_files_that_the_graph_was_read_from(files):
    graph = load_graph(files)
    weight = graph.operator("fc").attributes["weight"]
    before = weight.raw.tobytes()
    graph.operator("fc").attributes["bias"] = Attribute((2,), "f32", np.zeros(8, np.uint8))
    save_graph(graph, files)
    assert weight.raw.tobytes() == before
    assert contents_of(load_graph(files)) == contents_of(graph)
    assert files.with_suffix(".bin").read_bytes() != BIN


def test_a_failed_save_changes_nothing(files, monkeypatch):
    graph = load_graph(files)
    graph.add_operator("pnnx.Output", "a b", ["9"])
    with pytest.raises(GraphError, match="the name 'a b' cannot be written"):
        save_graph(graph, files)
    graph.remove_operator(graph.operator("a b"))

    def fail(file, members):
        file.write(b"half")
        raise OSError("disk full")

    monkeypatch.setattr("kuiper.pnnx.archive_writer.write_archive", fail)
    with pytest.raises(OSError, match="disk full"):
        save_graph(graph, files)
    assert files.read_bytes() == PARAM
    assert files.with_suffix(".bin").read_bytes() == BIN
    assert len(list(files.parent.iterdir())) == 2


def test_save_keeps_links(files, tmp_path):
    folder = tmp_path / "store"
    folder.mkdir()
    link = tmp_path / "link.param"
    link.symlink_to(folder / "real.param")
    save_graph(load_graph(files), link, folder / "real.bin")
    assert link.is_symlink()
    assert (folder / "real.param").read_bytes() == PARAM


def test_save_respects_the_umask(files, tmp_path):
    before = os.umask(0o027)
    try:
        save_graph(load_graph(files), tmp_path / "new.param")
    finally:
        os.umask(before)
    assert (tmp_path / "new.param").stat().st_mode & 0o777 == 0o640


def test_save_refuses(files, tmp_path):
    graph = load_graph(files)
    with pytest.raises(ValueError, match="the graph has 3 attributes; pass the archive's target"):
        save_graph(graph, io.BytesIO())
    with pytest.raises(ValueError, match="the graph has 3 attributes"):
        save_graph(graph, tmp_path / "name-without-suffix")
    with pytest.raises(ValueError, match="both files would be written to"):
        save_graph(graph, tmp_path / "x", tmp_path / "x")
    weight = graph.operator("fc").attributes
    graph.add_operator("x", "a", outputs=["u"], attributes={"b.c": weight["bias"]})
    graph.add_operator("x", "a.b", outputs=["v"], attributes={"c": weight["bias"]})
    with pytest.raises(GraphError, match=r"two attributes are called 'a\.b\.c'"):
        save_graph(graph, tmp_path / "m.param")
    assert not (tmp_path / "m.param").exists()


def test_save_without_attributes_needs_no_archive():
    file = io.BytesIO()
    graph = load_graph(OLD_PARAM)
    save_graph(graph, file)
    assert contents_of(load_graph(file.getvalue())) == contents_of(graph)


def test_save_refuses_names_that_cannot_be_encoded():
    graph = Graph()
    graph.add_operator("pnnx.Input", "\ud800", outputs=["0"])
    with pytest.raises(GraphError, match="a name that is no UTF-8 text"):
        save_graph(graph, io.BytesIO())


def test_import_is_lean():
    """Modules that only loading uses are imported by loading."""
    # A bare package named kuiper avoids the imports of its __init__.
    code = (
        "import numpy, sys, types\n"
        "before = set(sys.modules)\n"
        "sys.modules['kuiper'] = package = types.ModuleType('kuiper')\n"
        f"package.__path__ = {list(kuiper.__path__)!r}\n"
        "import kuiper.pnnx\n"
        "print(*sorted(set(sys.modules) - before))"
    )
    modules = output_of(code).split()
    assert "kuiper.pnnx.param" in modules
    heavy = {"zipfile", "mmap", "tempfile", "kuiper.pnnx.archive", "difflib", "fnmatch"}
    assert heavy.isdisjoint(modules)


# -- in another float type ---------------------------------------------------------------------


@pytest.mark.skipif(
    not (MODELS / "mobilenet_v2.f16.pnnx.bin").exists(),
    reason="the weights of the example models are in the repository, not in the sdist",
)
@pytest.mark.parametrize("name", SHIPPED)
def test_half_precision_equals_the_bundled_files(tmp_path, name):
    bundled = MODELS / f"{name}.f16.pnnx.param"
    wide, half = tmp_path / "wide.pnnx.param", tmp_path / "half.pnnx.param"
    kuiper.save(kuiper.load(bundled), wide, dtype="float32")
    widened = load_graph(wide)
    assert {a.dtype for op in widened for a in op.attributes.values()} == {"f32"}
    kuiper.save(kuiper.load(wide), half, dtype="float16")
    assert half.read_bytes() == bundled.read_bytes()
    assert half.with_suffix(".bin").read_bytes() == bundled.with_suffix(".bin").read_bytes()


@pytest.mark.parametrize(
    ("dtype", "name", "bits"), [("float16", "f16", 11), (np.float16, "f16", 11),
                                (np.dtype("float16"), "f16", 11), ("bfloat16", "bf16", 8)],
)  # fmt: skip
def test_weights_are_rounded_once_and_the_model_stays(files, tmp_path, dtype, name, bits):
    model, half = kuiper.load(files), tmp_path / "half.pnnx.param"
    before = contents_of(model.graph)
    kuiper.save(model, half, dtype=dtype)
    assert contents_of(model.graph) == before
    reloaded = kuiper.load(half, check_crc=True)
    for key in ("bias", "weight"):
        old, new = (g.operator("fc").attributes[key] for g in (model.graph, reloaded.graph))
        assert (old.dtype, new.dtype) == ("f32", name)
        np.testing.assert_allclose(new.float32(), old.float32(), rtol=2.0**-bits)
    typed = rb"\1" + name.encode()
    assert half.read_bytes() == re.sub(rb"(@\w+=\([\d,]*\))f32", typed, PARAM)
    x = np.float32([[1, -2, 3]])
    for a, b in zip(reloaded(x), model(x), strict=True):
        np.testing.assert_allclose(a, b, rtol=2.0 ** (2 - bits), atol=2.0 ** (2 - bits))
    # Saved again, nothing changes.
    again = tmp_path / "again.pnnx.param"
    kuiper.save(reloaded, again, dtype=dtype)
    assert again.read_bytes() == half.read_bytes()
    assert again.with_suffix(".bin").read_bytes() == half.with_suffix(".bin").read_bytes()


def test_weights_of_other_types_and_ranges_keep_their_type():
    values = {
        "big": np.float32([1, 1e5]), "infinite": np.float32([-np.inf]), "nan": np.float32([np.nan]),
        "double": np.float64([0.1]), "whole": np.int64([3]), "flags": np.array([True]),
        "one": np.float32(0.1), "none": np.zeros((0, 3), np.float32), "complex": np.complex64([1j]),
    }  # fmt: skip
    graph = Graph()
    for name, array in values.items():
        attributes = {"data": Attribute.from_array(array)}
        graph.add_operator("pnnx.Attribute", name, outputs=[name], attributes=attributes)
    param, bin = io.BytesIO(), io.BytesIO()
    kuiper.save(graph, param, bin, dtype="float16")
    half = load_graph(param.getvalue(), bin.getvalue(), check_crc=True)
    kept = {op.name: op.attributes["data"].dtype for op in half}
    assert kept == {
        "big": "f32", "infinite": "f16", "nan": "f16", "double": "f64", "whole": "i64",
        "flags": "bool", "one": "f16", "none": "f16", "complex": "c64",
    }  # fmt: skip
    for op in half:
        np.testing.assert_allclose(op.attributes["data"].numpy(), values[op.name], rtol=1e-3)


@pytest.mark.parametrize("dtype", ["half", "int8", np.float64, 16, ""])
def test_only_three_float_types(files, dtype):
    message = "expected one of 'float16', 'bfloat16', 'float32'"
    with pytest.raises(kuiper.InputError, match=message):
        kuiper.save(kuiper.load(files), io.BytesIO(), io.BytesIO(), dtype=dtype)
