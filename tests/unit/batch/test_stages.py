"""Stages: columns of numpy, Arrow and pandas in, the same kind out; one network per process."""

from __future__ import annotations

import pickle
import threading

import numpy as np
import pytest

import kuiper
from kuiper.batch import Classify, Detect, Predictor, Segment, Stage
from kuiper.batch import stage as stages

from ...support.process import output_of
from ...support.shipped import MODELS
from .support import ADD, doubled, rows_of, write_model

PHOTOS = MODELS.parent / "photos"
needs_weights = pytest.mark.skipif(
    not (MODELS / "nanodet_m.f16.pnnx.bin").exists(),
    reason="the weights of the example models are in the repository, not in the sdist",
)

TWO = """7767517
6 5
pnnx.Input a 0 1 a #a=(1,2)f32
pnnx.Input b 0 1 b #b=(1,2,3)i64
pnnx.Expression e 1 1 a c expr=mul(@0,3) #a=(1,2)f32 #c=(1,2)f32
pnnx.Expression f 1 1 b d expr=add(@0,1) #b=(1,2,3)i64 #d=(1,2,3)i64
pnnx.Output out0 1 0 c #c=(1,2)f32
pnnx.Output out1 1 0 d #d=(1,2,3)i64
"""


@pytest.fixture
def model(tmp_path):
    return write_model(tmp_path)


# -- columns -----------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [None, 1, 7, 100])
@pytest.mark.parametrize("threads", [1, 3])
def test_rows_of_numpy(model, batch, threads):
    x = rows_of(50)
    got = Predictor(model, batch=batch, threads=threads)({"id": np.arange(50), "x": x})
    assert list(got) == ["id", "y"]
    np.testing.assert_array_equal(got["id"], np.arange(50))
    np.testing.assert_array_equal(got["y"], doubled(x))


def test_a_column_of_another_name(model):
    x = rows_of(4)
    got = Predictor(model, "vector", keep=["vector"])({"vector": x, "other": x})
    assert list(got) == ["vector", "y"]
    np.testing.assert_array_equal(got["y"], doubled(x))


def test_several_inputs_and_outputs(tmp_path):
    model = write_model(tmp_path, TWO)
    columns = {"a": ("left", "right"), "b": "grid"}
    batch = {
        "left": np.float32([1, 2, 3]),
        "right": np.array(["4", "5.5", "6"], object),  # as CSV files have it
        "grid": np.arange(18).reshape(3, 6),  # in the order of its values
    }
    got = Predictor(model, columns)(batch)
    assert list(got) == ["c", "d"]
    np.testing.assert_array_equal(got["c"], np.float32([[3, 12], [6, 16.5], [9, 18]]))
    np.testing.assert_array_equal(got["d"], batch["grid"].reshape(3, 2, 3) + 1)
    assert list(Predictor(model, columns, outputs=["d"])(batch)) == ["d"]


def test_numbers_of_other_types_if_they_fit(model):
    for dtype in (np.float64, np.int64, np.uint8):
        x = np.arange(6).reshape(2, 3).astype(dtype)
        np.testing.assert_array_equal(Predictor(model)({"x": x})["y"], np.float32(x) * 2 + 1)
    lists = np.empty(2, object)
    lists[:] = [[0, 1, 2], np.array([3.0, 4.0, 5.0])]
    got = Predictor(model)({"x": lists})["y"]
    np.testing.assert_array_equal(got, np.float32([[1, 3, 5], [7, 9, 11]]))
    with pytest.raises(kuiper.InputError, match="column 'x' is int64, and input 'x' needs float32"):
        Predictor(model)({"x": np.full((1, 3), 2**40 + 1)})


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"z": rows_of(2)}, "the batch has no column 'x'; it has 'z'; columns= says"),
        ({}, "no column 'x'; it has none"),
        ({"x": rows_of(2), "id": [1]}, "differ in length: 'x' has 2, 'id' has 1"),
        ({"x": np.zeros((2, 2, 2), np.float32)}, r"shape \(2, 2\), input 'x' needs \(3,\)"),
        ({"x": np.array([[1, 2], [1, 2, 3]], object)}, r"its rows have the shapes .*one shape"),
        ({"x": np.array(["1", "none", "3"], object)}, "row 1: expected numbers for input 'x'"),
        ({"x": np.array([b"1"], object)}, "row 0: expected numbers"),
        ({"x": rows_of(2), "y": [1, 2]}, r"the results have the names \['y'\]"),
    ],
)
def test_columns_that_do_not_fit(model, columns, message):
    with pytest.raises(kuiper.InputError, match=message):
        Predictor(model)(columns)


def test_a_batch_of_another_kind(model):
    with pytest.raises(kuiper.InputError, match=r"got a batch of type builtins\.list, expected"):
        Predictor(model)([1, 2])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"columns": {"z": "x"}}, "columns names the inputs z, the model has x"),
        ({"outputs": ["z"]}, "there is no output z; the model has y"),
        ({"columns": 3}, "columns is 3"),
        ({"preprocess": "imagenet"}, r"preprocess makes one input \(batch, 3, height, width\)"),
        ({"preprocess": "none"}, "preprocess is 'none', expected one of imagenet"),
        ({"errors": "ignore"}, "errors is 'ignore'"),
        ({"batch": 0}, "batch is 0, expected an integer of at least 1"),
        ({"threads": 0}, "the number of threads is 0"),
        ({"keep": "id"}, "keep is 'id', expected a sequence"),
        ({"keep": ["id"]}, r"keep names \['id'\], the batch has the columns \['x'\]"),
    ],
)
def test_arguments_that_are_wrong(model, arguments, message):
    if "preprocess" in arguments:
        pytest.importorskip("cv2")
    with pytest.raises(kuiper.InputError, match=message):
        Predictor(model, **arguments)({"x": rows_of(1)})


def test_one_name_for_several_inputs(tmp_path):
    with pytest.raises(
        kuiper.InputError, match="columns is 'x', but the model has the inputs a, b"
    ):
        Predictor(write_model(tmp_path, TWO), "x").fields()


def test_a_model_that_is_no_path(model):
    with pytest.raises(kuiper.InputError, match="model is a Model, expected the path"):
        Predictor(kuiper.load(model))
    with pytest.raises(FileNotFoundError, match="no such model file"):
        Predictor("nosuch.pnnx.param")
    gone = Predictor(model)
    model.unlink()
    with pytest.raises(FileNotFoundError, match="on the machine "):
        gone({"x": rows_of(1)})


def test_results_without_an_axis_of_rows(tmp_path):
    text = ADD.replace("expr=add(mul(@0,2),1)", "expr=add(mul(@0,2),1)").replace(
        "pnnx.Expression e 1 1 x y expr=add(mul(@0,2),1)", "torch.sum e 1 1 x y"
    )
    path = write_model(tmp_path, text.replace("#y=(1,3)f32", "#y=()f32"))
    with pytest.raises(kuiper.InputError, match=r"output 'y' has shape \(\) for 3 rows"):
        Predictor(path, batch=3)({"x": rows_of(3)})


def test_arrow_tables(model):
    pa = pytest.importorskip("pyarrow")
    x = rows_of(40)
    table = pa.table({"id": [f"n{n}" for n in range(40)], "x": x.tolist()})
    got = Predictor(model, batch=3)(table)
    assert got.schema.names == ["id", "y"]
    assert got.schema.field("y").type == pa.list_(pa.float32())
    assert got["id"] == table["id"]
    np.testing.assert_array_equal(np.float32(got["y"].to_pylist()), doubled(x))
    # Slices, several chunks, lists of fixed size, tensors, and no rows.
    parts = pa.concat_tables([table.slice(7, 9), table.slice(30)])
    want = doubled(np.concatenate([x[7:16], x[30:]]))
    fixed = parts["x"].cast(pa.list_(pa.float32(), 3))
    tensor = pa.FixedShapeTensorArray.from_numpy_ndarray(want)
    for column in (parts["x"], fixed, tensor):
        expected = doubled(want) if column is tensor else want
        got = Predictor(model)(pa.table({"x": column}))
        np.testing.assert_array_equal(np.float32(got["y"].to_pylist()), expected)
    assert Predictor(model)(table.slice(0, 0)).schema == Predictor(model)(table).schema
    (batch,) = table.to_batches()
    (back,) = Predictor(model).arrow([batch])
    assert isinstance(back, pa.RecordBatch)
    assert back.num_rows == 40


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([[1.0, 2.0, 3.0], [1.0]], "its lists differ in length"),
        ([[1.0, 2.0, 3.0], None], "has missing values, expected a list in every row"),
        ([[1.0, 2.0, None]], "has 1 missing values; fill or filter"),
        ([["a", "b", "c"]], "holds lists of string, expected numbers"),
    ],
)
def test_arrow_columns_that_do_not_fit(model, values, message):
    pa = pytest.importorskip("pyarrow")
    with pytest.raises(kuiper.InputError, match=message):
        Predictor(model)(pa.table({"x": values}))


def test_data_frames(model):
    pd = pytest.importorskip("pandas")
    x = rows_of(6)
    frame = pd.DataFrame({"id": range(6), "x": list(x)}, index=range(10, 16))
    got = Predictor(model)(frame)
    assert list(got.columns) == ["id", "y"]
    assert list(got.index) == list(range(10, 16))
    np.testing.assert_array_equal(np.stack(got["y"]), doubled(x))
    assert list(Predictor(model)(frame.iloc[:0]).columns) == ["id", "y"]


def test_the_schema_for_spark(tmp_path):
    assert Predictor(write_model(tmp_path)).ddl() == "`y` array<float>"
    two = Predictor(write_model(tmp_path, TWO, "two"))
    assert two.ddl() == "`c` array<float>, `d` array<array<bigint>>"

    class Kind:
        def __init__(self, name, text):
            self.name, self.text, self.dataType = name, text, self

        def simpleString(self):
            return self.text

    class Schema:
        fields = (Kind("id", "bigint"), Kind("x", "array<float>"))

    assert Predictor(write_model(tmp_path)).ddl(Schema) == "`id` bigint, `y` array<float>"


# -- one network per process -------------------------------------------------------------------


def test_a_stage_is_small_when_pickled_and_shares_the_network(model):
    first, second = Predictor(model), Predictor(model, keep=[], batch=5)
    assert len(pickle.dumps(first)) < 500
    assert pickle.loads(pickle.dumps(first)).network is first.network is second.network
    assert first.network.threads == 1
    assert Predictor(model, outputs=["y"]).network is not first.network


def test_a_changed_file_is_loaded_again(model):
    stage = Predictor(model)
    before = stage.network
    model.write_text(ADD.replace("mul(@0,2)", "mul(@0,42)"))
    assert stage.network is not before
    np.testing.assert_array_equal(stage({"x": rows_of(1)})["y"], rows_of(1) * 42 + 1)


def test_few_networks_are_kept(tmp_path):
    paths = [write_model(tmp_path, name=f"m{n}") for n in range(stages.NETWORKS_KEPT + 1)]
    networks = [Predictor(path).network for path in paths]
    assert Predictor(paths[-1]).network is networks[-1]
    assert Predictor(paths[0]).network is not networks[0]


def test_threads_load_a_model_once(model, monkeypatch):
    loads, load = [], kuiper.load
    monkeypatch.setattr(kuiper, "load", lambda path: loads.append(path) or load(path))
    stage, found = Predictor(model, batch=1, threads=4), []
    callers = [
        threading.Thread(target=lambda: found.append(stage({"x": rows_of(20)}))) for _ in range(4)
    ]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert len(loads) == 1
    assert len(found) == 4
    for got in found:
        np.testing.assert_array_equal(got["y"], doubled(rows_of(20)))


def test_an_error_in_a_thread_reaches_the_caller(tmp_path):
    path = write_model(tmp_path, ADD.replace("#x=(1,3)f32", "#x=(1,?)f32", 1))
    with pytest.raises(kuiper.KuiperError):
        Predictor(path, batch=1, threads=4, outputs=["y"])({"x": np.zeros((9, 3, 3), np.float32)})


def test_the_settings_that_results_depend_on(model):
    told = Predictor(model).describe()
    assert told["stage"] == "Predictor"
    assert told["model"] == "add.pnnx.param"
    assert Predictor(model, batch=4, threads=2).describe() == told
    model.write_text(ADD.replace("mul(@0,2)", "mul(@0,3)"))
    assert Predictor(model).describe()["sha256"] != told["sha256"]


def test_importing_the_package_imports_no_engine(model):
    code = f"""
    import sys, numpy as np
    from kuiper.batch import Predictor, run_dataset
    Predictor({str(model)!r})({{"x": np.ones((2, 3), np.float32)}})
    names = ("ray", "pyspark", "dask", "pandas", "pyarrow", "cv2", "multiprocessing")
    print([name for name in names if name in sys.modules])
    """
    assert output_of(code).strip() == "[]"


def test_a_stage_is_defined_by_its_methods():
    for method in ("consumes", "fields"):
        with pytest.raises(NotImplementedError):
            getattr(object.__new__(Stage), method)()


# -- pictures ----------------------------------------------------------------------------------


@needs_weights
def test_classify_pictures_of_every_form():
    pytest.importorskip("cv2")
    from kuiper.vision import Classifier, load_image

    path = PHOTOS / "chelsea.png"
    image = load_image(path)
    values = np.empty(7, object)
    values[:] = [
        str(path), path.read_bytes(), image[:, :, ::-1], {"bytes": path.read_bytes(), "path": None},
        {"bytes": None, "path": str(path)}, b"no picture", None,
    ]  # fmt: skip
    got = Classify(keep=[])({"image": values})
    (guess,) = Classifier("mobilenet_v2")([image], 1)[0]
    assert list(got["label"][:5]) == ["Egyptian cat"] * 5
    assert list(got["index"]) == [285] * 5 + [-1, -1]
    np.testing.assert_array_equal(got["probability"][:5], np.float32([guess.probability] * 5))
    assert list(got["error"][:5]) == [None] * 5
    assert "not an image" in got["error"][5]
    assert got["error"][6] == "there is no picture: the value is missing"
    assert got["label"][6] is None
    assert np.isnan(got["probability"][6])


@needs_weights
def test_classify_with_several_guesses_and_other_arguments():
    pytest.importorskip("cv2")
    values = [str(PHOTOS / "chelsea.png"), str(PHOTOS / "coffee.png"), "nosuch.png"]
    got = Classify("squeezenet", "photo", topk=3, batch=1, threads=2)({"photo": values})
    assert got["label"].shape == got["index"].shape == got["probability"].shape == (3, 3)
    assert [row[0] for row in got["label"]] == ["Egyptian cat", "espresso", None]
    with pytest.raises(OSError, match="nosuch"):
        Classify(errors="raise")({"image": values})
    floats = np.zeros((1, 9, 9, 3), np.float32)
    with pytest.raises(kuiper.InputError, match=r"row 0: .*got float32"):
        Classify()({"image": floats})
    with pytest.raises(
        kuiper.InputError, match=r"no column 'image'.*column= names that of the pic"
    ):
        Classify()({"photo": values})
    for arguments in ({"column": 3}, {"channels": "cmyk"}, {"topk": 0}):
        with pytest.raises(kuiper.InputError):
            Classify(**arguments)


@needs_weights
def test_detect_and_segment():
    cv2 = pytest.importorskip("cv2")
    from kuiper.vision import Detector, Segmenter, load_image

    path = str(PHOTOS / "chelsea.png")
    image = load_image(path)
    got = Detect()({"image": [path, "nosuch.png"]})
    (found,) = Detector()([image])
    assert got["detections"][0] == [{**vars(d), "box": list(d.box)} for d in found]
    assert got["detections"][1] is None
    got = Segment("selfie")({"image": [path, "nosuch.png"]})
    (mask,) = Segmenter("selfie")([image])
    png = cv2.imdecode(np.frombuffer(got["mask"][0], np.uint8), cv2.IMREAD_UNCHANGED)
    np.testing.assert_array_equal(png, np.rint(mask * 255).astype(np.uint8))
    assert got["foreground"][0] == np.float32((mask > 0.5).mean())
    assert got["mask"][1] is None


@needs_weights
def test_pictures_in_arrow_have_the_same_types_with_and_without_results():
    pytest.importorskip("cv2")
    pa = pytest.importorskip("pyarrow")
    path = str(PHOTOS / "chelsea.png")
    for stage in (Classify(), Classify(topk=2), Detect(), Segment("selfie")):
        full = stage(pa.table({"image": [path]}))
        none = stage(pa.table({"image": ["nosuch.png"]}))
        assert full.schema == none.schema == stage(pa.table({"image": [path]}).slice(0, 0)).schema
        row = none.to_pylist()[0]
        assert row.pop("error")
        assert set(row.values()) == {None}


@needs_weights
def test_any_model_on_pictures():
    pytest.importorskip("cv2")
    from kuiper.vision import PRESETS, Classifier, load_image

    path = PHOTOS / "chelsea.png"
    model = MODELS / "mobilenet_v2.f16.pnnx.param"
    stage = Predictor(model, "photo", preprocess="imagenet")
    image = load_image(path)
    classifier = Classifier("mobilenet_v2")
    want = classifier.scores(classifier.preprocess(image)[None])[0]
    photos = [path.read_bytes(), b"none", str(path)]
    (name,) = [name for name in stage.fields() if name != "error"]
    for given in ({"photo": photos}, {"photo": photos[1:2]}):
        got = stage(given)
        for row, value in enumerate(given["photo"]):
            if value == b"none":
                assert np.isnan(got[name][row]).all()
                assert "not an image" in got["error"][row]
            else:
                np.testing.assert_array_equal(got[name][row], want)
    assert stage.describe()["preprocess"]["mean"] == PRESETS["imagenet"].mean
