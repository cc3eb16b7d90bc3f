"""Large archives stay open and are read on demand, even if the file is replaced or changes."""

from __future__ import annotations

import contextlib
import copy
import errno
import gc
import io
import os
import pickle
import sys
import threading
import weakref
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import kuiper
from kuiper._runtime.weights import Finalizer
from kuiper.errors import ModelFormatError
from kuiper.ir import Attribute
from kuiper.ops.product.algorithms import winograd
from kuiper.pnnx import archive as module
from kuiper.pnnx.archive import Archive
from kuiper.pnnx.archive_writer import write_archive

from ..support.process import output_of
from ..support.workbench import ISAS, isa, noise
from ..support.workgraph import model_of

PARAM = b"""7767517
5 4
pnnx.Input     in   0 1 x #x=(1,64,6,6)f32
nn.Conv2d      c    1 1 x y bias=True dilation=(1,1) groups=1 in_channels=64 kernel_size=(3,3) \
out_channels=512 padding=(1,1) padding_mode=zeros stride=(1,1) @bias=(512)f32 \
@weight=(512,64,3,3)f32
nn.BatchNorm2d n    1 1 y z affine=True eps=1e-5 num_features=512 @bias=(512)f32 \
@running_mean=(512)f32 @running_var=(512)f32 @weight=(512)f32
nn.Conv2d      d    1 1 z w bias=False dilation=(1,1) groups=1 in_channels=512 kernel_size=(1,1) \
out_channels=128 padding=(0,0) padding_mode=zeros stride=(1,1) @weight=(128,512,1,1)f16
pnnx.Output    out  1 0 w
"""
SMALL = np.ones((1, 64, 6, 6), np.float32)
LARGE = np.ones((1, 64, 14, 14), np.float32)  # packed in another layout than for SMALL
random = np.random.default_rng(5)
WEIGHTS = {
    "c.bias": random.standard_normal(512, np.float32),
    "c.weight": random.standard_normal((512, 64, 3, 3), np.float32),
    "n.bias": random.standard_normal(512, np.float32),
    "n.running_mean": random.standard_normal(512, np.float32),
    "n.running_var": random.uniform(0.5, 2, 512).astype(np.float32),
    "n.weight": random.standard_normal(512, np.float32),
    "d.weight": random.standard_normal((128, 512, 1, 1), np.float32).astype(np.float16),
}
posix = pytest.mark.skipif(not module.CAN_READ_AT, reason="files are read at once here")


def packed(weights=WEIGHTS) -> bytes:
    target = io.BytesIO()
    write_archive(target, ((name, array.reshape(-1)) for name, array in weights.items()))
    return target.getvalue()


BIN = packed()


def age(path: Path) -> None:
    """Set a file's time of modification to long ago."""
    os.utime(path, (1e9, 1e9))


@pytest.fixture
def param(tmp_path) -> Path:
    """Return the path of the .param file, with an archive of long ago beside it."""
    path = tmp_path / "m.pnnx.param"
    path.write_bytes(PARAM)
    path.with_suffix(".bin").write_bytes(BIN)
    age(path.with_suffix(".bin"))
    return path


@pytest.fixture(autouse=True)
def nothing_stays_open():
    gc.collect()
    before = len(module._open_files)
    yield
    gc.collect()
    assert len(module._open_files) == before


@pytest.fixture(scope="module")
def expected() -> dict[int, np.ndarray]:
    """Return the results of the model loaded from memory, by the height of the image."""
    model = kuiper.load(PARAM, BIN)
    return {x.shape[2]: model(x) for x in (SMALL, LARGE)}


def is_open(model: kuiper.Model) -> bool:
    return not isinstance(model.graph.operator("c").attributes["weight"]._source, np.ndarray)


def write_over(path: Path, change: str) -> None:
    if change == "truncate":
        os.truncate(path, 1000)
    elif change == "empty":
        os.truncate(path, 0)
    elif change == "longer":
        with open(path, "ab") as file:
            file.write(b"more")
        with open(path, "r+b") as file:
            file.write(b"\xff" * len(BIN))
    else:
        with open(path, "r+b") as file:
            file.write(b"\xff" * len(BIN))


def assert_fails_to_read(model: kuiper.Model, x: np.ndarray) -> None:
    for run in (model, partial(model.profile, runs=1)):
        with pytest.raises(ModelFormatError, match="load the model again"):
            run(x)


# -- what is read when -------------------------------------------------------------------------


@posix
def test_weights_are_in_memory_only_while_referenced(param, expected):
    model = kuiper.load(param)
    assert is_open(model)
    weight = model.graph.operator("c").attributes["weight"]
    raw = weight.raw
    assert raw is weight.raw
    assert np.shares_memory(raw, weight.numpy())
    assert not raw.flags.writeable
    np.testing.assert_array_equal(weight.numpy(), WEIGHTS["c.weight"])
    alive = weakref.ref(raw)
    del raw
    assert alive() is None
    values = weight.numpy()
    assert weight.raw is weight.raw  # kept alive by the view
    np.testing.assert_array_equal(values, WEIGHTS["c.weight"])
    # Small attributes were read with the structure.
    assert model.graph.operator("c").attributes["bias"].raw is not None
    assert isinstance(model.graph.operator("c").attributes["bias"]._source, np.ndarray)
    np.testing.assert_array_equal(model(SMALL), expected[6])


@posix
def test_loading_reads_no_weights(param, monkeypatch):
    sizes = []
    real = os.preadv

    def counted(descriptor, buffers, offset):
        sizes.append(sum(len(buffer) for buffer in buffers))
        return real(descriptor, buffers, offset)

    monkeypatch.setattr(os, "preadv", counted)
    model = kuiper.load(param)
    assert sum(sizes) < 120_000 < len(BIN) / 10
    sizes.clear()
    model(SMALL)
    assert WEIGHTS["c.weight"].nbytes <= sum(sizes) < len(BIN)
    model.plan(SMALL.shape)  # before planning, filters of that size are read in every run
    sizes.clear()
    model(SMALL)
    model(np.concatenate([SMALL, SMALL]))  # needs no new packing
    assert not sizes


@posix
@pytest.mark.parametrize("why", ["new", "small", "many", "windows", "future"])
def test_attributes_that_are_read_at_once(why, param, monkeypatch, expected):
    bin = param.with_suffix(".bin")
    if why == "new":
        os.utime(bin)
    elif why == "future":
        os.utime(bin, (4e9, 4e9))
    elif why == "small":
        monkeypatch.setattr(module, "MAX_OPEN", 10**6, raising=False)
        text = PARAM.replace(b"5 4", b"4 3").replace(b"pnnx.Output    out  1 0 w", b"")
        text = text[: text.index(b"nn.Conv2d      d")] + b"pnnx.Output    out  1 0 z\n"
        text = text.replace(b"512", b"128")
        param.write_bytes(text)
        small = {k: v[:128] for k, v in WEIGHTS.items() if k[0] != "d"}
        bin.write_bytes(packed(small))
        age(bin)
    elif why == "windows":
        monkeypatch.setattr(module, "CAN_READ_AT", False)
    others = [Archive(bin) for _ in range(70)] if why == "many" else []
    model = kuiper.load(param)
    assert not is_open(model)
    assert len(module._open_files) <= 64
    write_over(bin, "truncate")
    result = model(SMALL)
    if why != "small":
        np.testing.assert_array_equal(result, expected[6])
    del others


@posix
def test_more_models_than_the_limit_of_open_files(param, expected):
    models = [kuiper.load(param) for _ in range(80)]
    assert {is_open(model) for model in models} == {True, False}
    assert len(module._open_files) <= 64
    for model in (models[0], models[-1]):
        np.testing.assert_array_equal(model(SMALL), expected[6])
    del models, model
    gc.collect()
    assert is_open(kuiper.load(param))


# -- structural errors are raised by loading -----------------------------------------------------


@pytest.mark.parametrize("cut", [1, 22, 5000, len(BIN) // 2, len(BIN) - 1])
def test_a_truncated_archive_is_not_loaded(cut, param):
    bin = param.with_suffix(".bin")
    os.truncate(bin, len(BIN) - cut)
    age(bin)
    with pytest.raises(ModelFormatError, match=r"truncated|not a ZIP archive|end record"):
        kuiper.load(param)


def test_an_archive_of_another_model_is_not_loaded(param):
    bin = param.with_suffix(".bin")
    bin.write_bytes(packed({**WEIGHTS, "c.weight": WEIGHTS["c.weight"][1:]}))
    age(bin)
    with pytest.raises(ModelFormatError, match=r"'c.weight' \(line 4\) has 1177344 bytes"):
        kuiper.load(param)


def test_a_large_file_that_is_not_an_archive(param):
    bin = param.with_suffix(".bin")
    bin.write_bytes(b"<!DOCTYPE html>" + b" " * (3 << 20))
    age(bin)
    with pytest.raises(ModelFormatError, match="not an archive"):
        kuiper.load(param)


def test_headers_that_contradict_each_other(param):
    bin = param.with_suffix(".bin")
    data = bytearray(BIN)
    data[data.index(b"PK\3\4", 5000) + 14] ^= 1
    bin.write_bytes(data)
    age(bin)
    with pytest.raises(ModelFormatError, match="contradicts the directory"):
        kuiper.load(param)


def test_a_wrong_checksum(param):
    bin = param.with_suffix(".bin")
    data = bytearray(BIN)
    data[len(data) // 2] ^= 1
    bin.write_bytes(data)
    age(bin)
    assert kuiper.load(param)(SMALL).shape == (1, 128, 6, 6)
    with pytest.raises(ModelFormatError, match=r"'c.weight' .* CRC-32"):
        kuiper.load(param, check_crc=True)


@posix
def test_checksums_are_compared_in_parts_that_are_not_kept(param, monkeypatch, expected):
    sizes, read = [], module.File.read

    def counted(file, first, nbytes, entry=None):
        sizes.append(nbytes)
        return read(file, first, nbytes, entry)

    monkeypatch.setattr(module.File, "read", counted)
    model = kuiper.load(param, check_crc=True)
    assert max(sizes) <= 1 << 18
    assert sum(sizes) > sum(map(len, WEIGHTS.values()))
    assert is_open(model)
    np.testing.assert_array_equal(model(SMALL), expected[6])


@posix
def test_a_file_that_changes_while_checksums_are_compared(param):
    bin = param.with_suffix(".bin")
    archive = Archive(bin)
    os.utime(bin)
    with pytest.raises(ModelFormatError, match="was changed while it was in use"):
        archive.check_crc()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="has no pipes")
def test_a_large_archive_from_a_pipe(param, expected, tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=lambda: pipe.write_bytes(BIN))
    writer.start()
    model = kuiper.load(param, pipe)
    writer.join()
    np.testing.assert_array_equal(model(SMALL), expected[6])


def test_a_folder_is_no_archive(param, tmp_path):
    with pytest.raises(OSError, match=r"directory|Permission"):
        kuiper.load(param, tmp_path)


# -- files that change ---------------------------------------------------------------------------


@posix
@pytest.mark.parametrize("is_planned", [False, True])
@pytest.mark.parametrize("change", ["replace", "remove", "rename", "touch", "same"])
def test_harmless_changes(change, is_planned, param, expected):
    bin = param.with_suffix(".bin")
    model = kuiper.load(param)
    assert is_open(model)
    if is_planned:
        model.plan(SMALL.shape)
    if change == "replace":
        other = bin.with_name("other")
        other.write_bytes(b"\xff" * len(BIN))
        os.replace(other, bin)
    elif change == "remove":
        bin.unlink()
    elif change == "rename":
        bin.rename(bin.with_name("moved"))
    elif change == "touch":
        os.utime(bin)
    else:
        bin.write_bytes(BIN)
    np.testing.assert_array_equal(model(SMALL), expected[6])
    np.testing.assert_array_equal(model(LARGE), expected[14])
    target = io.BytesIO()
    kuiper.save(model, io.BytesIO(), target)
    assert target.getvalue() == BIN


@posix
@pytest.mark.parametrize("is_planned", [False, True])
@pytest.mark.parametrize("change", ["truncate", "empty", "overwrite", "longer"])
def test_detected_changes(change, is_planned, param, expected):
    bin = param.with_suffix(".bin")
    model = kuiper.load(param)
    if is_planned:
        small, large = ([s.kind for s in model.plan(x.shape).steps] for x in (SMALL, LARGE))
        if small == large:
            pytest.skip("both sizes have the same packed layout, as in plain C")
        model = kuiper.load(param)
        model.plan(SMALL.shape)
    write_over(bin, change)
    message = f"{bin}: the file was changed while it was in use.*load the model again"
    for _ in range(2):
        with pytest.raises(ModelFormatError, match=message):
            model(LARGE)
        with pytest.raises(ModelFormatError, match=message):
            pickle.dumps(model)
        if is_planned:  # everything is packed, so nothing is read
            np.testing.assert_array_equal(model(SMALL), expected[6])
        else:
            with pytest.raises(ModelFormatError, match=message):
                model(SMALL)
    bin.write_bytes(BIN)  # restore the original content
    np.testing.assert_array_equal(model(LARGE), expected[14])


@posix
def test_a_change_outside_the_entries_that_are_read(param):
    bin = param.with_suffix(".bin")
    model = kuiper.load(param)
    with open(bin, "r+b") as file:
        file.seek(BIN.index(WEIGHTS["d.weight"].tobytes()))
        file.write(b"\1")
    weight = model.graph.operator("c").attributes["weight"]
    np.testing.assert_array_equal(weight.numpy(), WEIGHTS["c.weight"])
    small = model.graph.operator("d").attributes["weight"]
    with pytest.raises(ModelFormatError, match="load the model again"):
        small.numpy()


@posix
def test_a_change_while_an_entry_is_read(param, monkeypatch):
    bin = param.with_suffix(".bin")
    model = kuiper.load(param)
    real = os.preadv

    def slow(descriptor, buffers, offset):
        count = real(descriptor, [buffers[0][:100_000]], offset)
        with open(bin, "r+b") as file:
            file.write(b"\xff" * len(BIN))
        return count

    monkeypatch.setattr(os, "preadv", slow)
    with pytest.raises(ModelFormatError, match="load the model again"):
        model(SMALL)


@posix
def test_short_reads(param, monkeypatch, expected):
    model = kuiper.load(param)
    real, counts = os.preadv, []

    def short(descriptor, buffers, offset):
        counts.append(real(descriptor, [buffers[0][:9_999]], offset))
        return counts[-1]

    monkeypatch.setattr(os, "preadv", short)
    np.testing.assert_array_equal(model(SMALL), expected[6])
    assert len(counts) > 100


@posix
def test_a_disk_error(param, monkeypatch):
    model = kuiper.load(param)

    def fail(*_):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(os, "preadv", fail)
        with pytest.raises(ModelFormatError, match=f"{os.strerror(errno.EIO)}.*load the model"):
            model(SMALL)
    assert model(SMALL).shape == (1, 128, 6, 6)


@posix
def test_a_descriptor_that_the_program_closed(param):
    """As daemons do; the next file that is opened may get the same number."""
    model = kuiper.load(param)
    file = next(iter(module._open_files))
    os.close(file._descriptor)
    with pytest.raises(ModelFormatError, match="load the model again"):
        model(SMALL)
    other = os.open(param, os.O_RDONLY)
    assert other == file._descriptor
    with pytest.raises(ModelFormatError, match="load the model again"):
        model(SMALL)
    del file, model
    gc.collect()
    with contextlib.suppress(OSError):
        os.close(other)


@posix
@pytest.mark.parametrize("threads", [1, 2])
def test_recomputed_tiles_read_their_filters(threads, param, expected):
    """Winograd keeps only transformed filters; tiles that are not finite need the originals."""
    bin = param.with_suffix(".bin")
    x = LARGE.copy()
    x[0, 5, 6, 7] = np.inf
    spoilt = kuiper.load(PARAM, BIN)(x)
    assert not np.isfinite(spoilt).all()
    model = kuiper.load(param, threads=threads)
    model.plan(LARGE.shape)
    np.testing.assert_array_equal(model(LARGE), expected[14])
    write_over(bin, "overwrite")
    for _ in range(2):
        assert_fails_to_read(model, x)
        np.testing.assert_array_equal(model(LARGE), expected[14])
    bin.write_bytes(BIN)
    np.testing.assert_array_equal(model(x), spoilt)
    write_over(bin, "empty")
    np.testing.assert_array_equal(model(x), spoilt)  # from memory now


@posix
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("x", [SMALL, LARGE], ids=["small", "large"])
def test_deferred_filters_are_read_in_every_run(x, threads, param, expected, monkeypatch):
    """A run fails if the file was changed, until the model has finalized its filters."""
    bin = param.with_suffix(".bin")
    monkeypatch.setattr(winograd, "MIN_DEFERRED_BYTES", 1 << 20)
    finalize = Finalizer.finalize
    monkeypatch.setattr(Finalizer, "finalize", lambda *_, **__: None)
    model = kuiper.load(param, threads=threads)
    np.testing.assert_array_equal(model(x), expected[x.shape[2]])
    write_over(bin, "overwrite")
    for _ in range(2):
        assert_fails_to_read(model, x)
    bin.write_bytes(BIN)
    np.testing.assert_array_equal(model(x), expected[x.shape[2]])
    monkeypatch.setattr(Finalizer, "finalize", finalize)
    write_over(bin, "empty")
    for _ in range(2):
        assert_fails_to_read(model, x)
        with pytest.raises(ModelFormatError, match="load the model again"):
            model.plan(x.shape)
    assert model._plans.weights.finalizer._deferred
    bin.write_bytes(BIN)
    for _ in range(100):
        model._plans.weights.finalizer._due = 0.0  # as if enough time had passed
        np.testing.assert_array_equal(model(x), expected[x.shape[2]])
    assert not model._plans.weights.finalizer.is_pending
    write_over(bin, "empty")
    np.testing.assert_array_equal(model(x), expected[x.shape[2]])


@posix
def test_a_touched_file_is_verified_once(param, monkeypatch):
    """The checksum is verified once, however many parts an entry is read in."""
    bin = param.with_suffix(".bin")
    model = kuiper.load(param)
    os.utime(bin, (1.1e9, 1.1e9))
    weight = model.graph.operator("c").attributes["weight"]
    real, counts = os.preadv, []
    monkeypatch.setattr(os, "preadv", lambda *a: counts.append(real(*a)) or counts[-1])
    for start in range(0, 512, 64):
        expected = WEIGHTS["c.weight"][start : start + 64]
        np.testing.assert_array_equal(weight.rows(start, start + 64), expected)
    assert sum(counts) <= 2.2 * weight.nbytes
    os.utime(bin)  # recent enough to be written again within the clock's resolution
    counts.clear()
    for start in (0, 256):
        weight.rows(start, start + 64)
    assert sum(counts) > 2 * weight.nbytes


@pytest.mark.skipif(sys.platform != "linux", reason="asks /proc")
def test_weights_are_in_memory_once(tmp_path):
    """Only packed weights are kept; the file's bytes pass through a buffer."""
    n = 4096
    text = (
        "7767517\n3 2\npnnx.Input in 0 1 x #x=(1,4096)f32\nnn.Linear f 1 1 x y bias=False "
        f"in_features={n} out_features={n} @weight=({n},{n})f32\npnnx.Output out 1 0 y\n"
    )
    path = tmp_path / "m.pnnx.param"
    path.write_text(text)
    with path.with_suffix(".bin").open("wb") as file:
        write_archive(file, [("f.weight", np.ones((n, n), np.float32).reshape(-1))])
    age(path.with_suffix(".bin"))
    code = (
        "import sys, kuiper, numpy as np\n"
        "def status(word):\n"
        "    lines = open('/proc/self/status').read().splitlines()\n"
        "    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(word))\n"
        "before = status('VmRSS')\n"
        "model = kuiper.load(sys.argv[1], threads=1)\n"
        f"assert model(np.ones((1, {n}), np.float32))[0, 0] == {n}\n"
        "print(status('VmHWM') - before)\n"
    )
    size = 4 * n * n
    assert size <= int(output_of(code, str(path))) < 1.25 * size


# -- copies, processes, threads --------------------------------------------------------------------


@pytest.mark.parametrize("copied", [lambda m: pickle.loads(pickle.dumps(m)), copy.deepcopy])
def test_copies_carry_their_weights(copied, param, expected):
    model = kuiper.load(param)
    model(SMALL)  # operators keep their converted literals from now on
    twin = copied(model)
    graph = copied(model.graph)
    del model
    write_over(param.with_suffix(".bin"), "empty")
    np.testing.assert_array_equal(twin(SMALL), expected[6])
    np.testing.assert_array_equal(kuiper.Model(graph)(LARGE), expected[14])


def test_an_attribute_that_a_user_assigns(param, expected):
    graph = kuiper.load_graph(param)
    doubled = graph.operator("d").attributes["weight"].numpy() * np.float16(2)
    graph.operator("d").attributes["weight"] = Attribute.from_array(doubled)
    np.testing.assert_array_equal(kuiper.Model(graph)(SMALL), expected[6] * 2)


@posix
def test_saving_over_the_open_file(param, expected):
    model = kuiper.load(param)
    assert is_open(model)
    kuiper.save(model, param)
    np.testing.assert_array_equal(model(SMALL), expected[6])
    assert param.with_suffix(".bin").read_bytes() == BIN


@pytest.mark.skipif(not hasattr(os, "fork"), reason="cannot fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_child_processes_read_the_same_descriptor(param, expected):
    """Concurrently: reads do not share a file position."""
    model = kuiper.load(param, threads=1)
    children = []
    for number in range(4):
        pid = os.fork()
        if pid == 0:
            status = 1
            with contextlib.suppress(Exception):
                x = (SMALL, LARGE)[number % 2]
                status = int(not np.array_equal(model(x), expected[x.shape[2]]))
            os._exit(status)
        children.append(pid)
    np.testing.assert_array_equal(model(LARGE), expected[14])
    assert [os.waitpid(pid, 0)[1] for pid in children] == [0] * 4


def test_threads_read_concurrently(param, expected):
    model = kuiper.load(param, threads=1)
    weight = model.graph.operator("c").attributes["weight"]
    failures = []

    def work(number):
        try:
            for _ in range(20):
                assert np.array_equal(weight.numpy(), WEIGHTS["c.weight"])
                x = (SMALL, LARGE)[number % 2]
                twin = kuiper.load(param, threads=1)
                assert np.array_equal(twin(x), expected[x.shape[2]])
                assert np.array_equal(model(x), expected[x.shape[2]])
        except Exception as error:  # an exception in a thread would be lost
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


PLAIN = b"""7767517
7 6
pnnx.Input  in  0 1 x #x=(1,64,6,6)f32
nn.Conv2d   c   1 1 x y bias=True dilation=(1,1) groups=1 in_channels=64 kernel_size=(3,3) \
out_channels=512 padding=(1,1) padding_mode=zeros stride=(1,1) @bias=(512)f32 \
@weight=(512,64,3,3)f32
nn.Conv2d   d   1 1 y z bias=False dilation=(1,1) groups=2 in_channels=512 kernel_size=(3,3) \
out_channels=256 padding=(0,0) padding_mode=zeros stride=(1,1) @weight=(256,256,3,3)f32
nn.Conv2d   e   1 1 z v bias=False dilation=(1,1) groups=1 in_channels=256 kernel_size=(1,1) \
out_channels=128 padding=(0,0) padding_mode=zeros stride=(1,1) @weight=(128,256,1,1)f32
nn.AdaptiveAvgPool2d p 1 1 v u output_size=(1,300)
nn.Linear   f   1 1 u w bias=False in_features=300 out_features=70 @weight=(70,300)f32
pnnx.Output out 1 0 w
"""
PLAIN_WEIGHTS = {
    "c.bias": WEIGHTS["c.bias"],
    "c.weight": WEIGHTS["c.weight"],
    "d.weight": random.standard_normal((256, 256, 3, 3), np.float32),
    "e.weight": random.standard_normal((128, 256, 1, 1), np.float32),
    "f.weight": random.standard_normal((70, 300), np.float32),
}


@pytest.fixture
def plain(tmp_path) -> Path:
    """Return the path of a model whose weights are packed in the order of the file."""
    path = tmp_path / "plain.pnnx.param"
    path.write_bytes(PLAIN)
    path.with_suffix(".bin").write_bytes(packed(PLAIN_WEIGHTS))
    age(path.with_suffix(".bin"))
    return path


@posix
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("least", [1 << 40, 1 << 18], ids=["at once", "in runs"])
def test_kernels_read_without_python(threads, least, plain, monkeypatch):
    monkeypatch.setattr(winograd, "MIN_DEFERRED_BYTES", least)
    from_memory = kuiper.load(PLAIN, packed(PLAIN_WEIGHTS), threads=threads)
    model = kuiper.load(plain, threads=threads)
    monkeypatch.delattr(os, "preadv")
    for x in (SMALL, LARGE):
        np.testing.assert_array_equal(model(x), from_memory(x))
    assert bool(model._plans.weights.finalizer._deferred) == (least < 1 << 20)
    model.plan(LARGE.shape)
    np.testing.assert_array_equal(model(LARGE), from_memory(LARGE))


def convolution(shape, filters, **others):
    axes = len(filters) - 2
    params = {
        "in_channels": filters[1], "out_channels": filters[0], "kernel_size": filters[2:],
        "stride": (1,) * axes, "padding": (1,) * axes, "dilation": (1,) * axes, "groups": 1,
        "bias": True, "padding_mode": "zeros",
    } | others  # fmt: skip
    return f"nn.Conv{axes}d", shape, filters, params


# Weights of a megabyte and more, in each layout that an algorithm reads.
LARGE_OPERATORS = {
    "winograd": convolution((1, 256, 14, 14), (256, 256, 3, 3)),
    "strided": convolution((1, 128, 28, 28), (256, 128, 3, 3), stride=(2, 2)),
    "small plane": convolution((1, 256, 3, 3), (256, 256, 3, 3), stride=(2, 2)),
    "pointwise": convolution((1, 512, 7, 7), (640, 512, 1, 1), padding=(0, 0)),
    "strassen": convolution((1, 512, 28, 28), (640, 512, 1, 1), padding=(0, 0)),
    "dilated": convolution((1, 256, 9, 9), (256, 256, 3, 3), padding=(8, 8), dilation=(8, 8)),
    "groups": convolution((1, 512, 9, 9), (512, 128, 3, 3), in_channels=512, groups=4),
    "narrow groups": convolution((1, 8192, 3, 3), (8192, 4, 3, 3), in_channels=8192, groups=2048),
    "depthwise": convolution((1, 30000, 3, 3), (30000, 1, 3, 3), in_channels=30000, groups=30000),
    "shallow": convolution((1, 3, 99, 9), (1000, 3, 11, 11), stride=(4, 4)),
    "sequence": convolution((1, 300, 40), (300, 300, 5)),
    "volume": convolution((1, 64, 4, 9, 9), (160, 64, 3, 3, 3)),
    "volume of planes": convolution((1, 192, 4, 9, 9), (192, 192, 1, 3, 3), padding=(0, 1, 1)),
    "volume of columns": convolution((1, 400, 7, 5, 5), (400, 400, 3, 1, 1), padding=(1, 0, 0)),
    "strided volume": convolution((1, 96, 5, 7, 7), (128, 96, 3, 3, 3), stride=(2, 2, 2)),
    "transposed": (
        "nn.ConvTranspose2d", (1, 160, 5, 5), (160, 130, 4, 4),
        {"in_channels": 160, "out_channels": 130, "kernel_size": (4, 4), "stride": (2, 2),
         "padding": (1, 1), "output_padding": (0, 0), "dilation": (1, 1), "groups": 1,
         "bias": False},
    ),
    "linear": (
        "nn.Linear", (7, 600), (700, 600),
        {"in_features": 600, "out_features": 700, "bias": False},
    ),
    "embedding": (
        "nn.Linear", (1, 30000), (17, 30000),
        {"in_features": 30000, "out_features": 17, "bias": False},
    ),
}  # fmt: skip


@posix
@pytest.mark.parametrize("name", ISAS)
@pytest.mark.parametrize("operator", LARGE_OPERATORS)
def test_results_from_a_file_equal_those_from_memory(operator, name, tmp_path):
    type, shape, filters, params = LARGE_OPERATORS[operator]
    weights = {"weight": noise(filters, 1)}
    if params["bias"]:
        weights["bias"] = noise(filters[:1], 2)
    x = noise(shape)
    with isa(name):
        model = model_of(type, [x], params, weights)
        kuiper.save(model, tmp_path / "m.param")
        age(tmp_path / "m.bin")
        stored = kuiper.load(tmp_path / "m.param", threads=2)
        assert stored.graph.operator("op").attributes["weight"].in_file is not None
        expected = model(x)
        np.testing.assert_array_equal(stored(x), expected)
        stored.plan(x.shape)
        np.testing.assert_array_equal(stored(x), expected)


@posix
@pytest.mark.parametrize("change", ["truncate", "empty", "longer", "overwrite"])
@pytest.mark.parametrize("least", [1 << 40, 1 << 18], ids=["at once", "in runs"])
def test_kernels_notice_changes(change, least, plain, monkeypatch):
    monkeypatch.setattr(winograd, "MIN_DEFERRED_BYTES", least)
    model = kuiper.load(plain, threads=2)
    bin = plain.with_suffix(".bin")
    write_over(bin, change)
    for _ in range(2):
        assert_fails_to_read(model, LARGE)
    bin.write_bytes(packed(PLAIN_WEIGHTS))
    expected = kuiper.load(PLAIN, packed(PLAIN_WEIGHTS), threads=2)(LARGE)
    np.testing.assert_array_equal(model(LARGE), expected)  # read by Python, which checks the CRC


@posix
def test_kernels_distinguish_a_file_from_its_twin(plain):
    """The twin has the same size, times and, once the original is closed, the same descriptor."""
    model = kuiper.load(plain)
    file = next(iter(module._open_files))
    twin = plain.with_name("twin")
    twin.write_bytes(b"\xff" * plain.with_suffix(".bin").stat().st_size)
    age(twin)
    other = os.open(twin, os.O_RDONLY)
    os.dup2(other, file._descriptor)
    with pytest.raises(ModelFormatError, match="load the model again"):
        model(SMALL)
    os.close(other)


def test_operators_without_optimization(param, expected):
    result = kuiper.load(param, optimize=False)(SMALL)
    np.testing.assert_allclose(result, expected[6], rtol=1e-4, atol=1e-3)
