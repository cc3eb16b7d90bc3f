"""Raw HTTP: errors in the protocol's form, limits, tokens, metrics, photos."""

from __future__ import annotations

import importlib
import io
import json
import socket
import time

import numpy as np
import pytest

import kuiper
from kuiper.serving.failures import Refusal

from ..support import onnxfile
from ..support.paths import ROOT
from ..support.shipped import MODELS
from ..support.textgraph import values
from .conftest import has_packages
from .process import WAIT, Server, ask, serving

needs_packages = pytest.mark.skipif(not has_packages(), reason="needs the extra `serve`")
PHOTO = ROOT / "examples" / "photos" / "chelsea.png"


def infer(server: Server, body: bytes, path="/v2/models/net/infer", **headers):
    named = {key.replace("_", "-"): value for key, value in headers.items()}
    status, found, content = ask(server.http, "POST", path, body, named)
    return status, found, json.loads(content)


def request_of(array: np.ndarray) -> tuple[bytes, dict[str, str]]:
    """Return the body of a binary request, and its headers."""
    tensor = {
        "name": "x", "shape": array.shape, "datatype": "FP32",
        "parameters": {"binary_data_size": array.nbytes},
    }  # fmt: skip
    head = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    return head + array.tobytes(), {"Inference-Header-Content-Length": str(len(head))}


@needs_packages
@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v2/nothing", 404),
        ("GET", "/v2/health/ill", 404),
        ("GET", "/v2/models/none", 404),
        ("GET", "/v2/models/net/versions/7", 404),
        ("GET", "/v2/models/net/infer", 405),
        ("POST", "/v2/models/net", 405),
        ("POST", "/v2/models/net/ready/now", 404),
        ("POST", "/v2/repository/models/none/load", 404),
        ("DELETE", "/v2", 405),
        ("GET", "/v2/systemsharedmemory/status", 404),
    ],
)
def test_errors_have_the_form_of_the_protocol(server, method, path, status):
    found, headers, body = ask(server.http, method, path)
    assert found == status
    assert headers["content-type"] == "application/json"
    assert isinstance(json.loads(body)["error"], str)


@needs_packages
@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "it is empty"),
        (b"{", "invalid"),
        (b'{"inputs": [{"name": "x", "shape": [1], "datatype": "FP32", "data": [NaN]}]}', "NaN"),
        (b'{"inputs": []}', "missing: ['x']"),
    ],
)
def test_a_bad_body(server, body, words):
    status, _, answer = infer(server, body)
    assert status == 400
    assert words in answer["error"]


@needs_packages
def test_request_ids_come_back(server):
    status, headers, _ = ask(server.http, "GET", "/v2", headers={"X-Request-Id": "abc-7"})
    assert (status, headers["x-request-id"]) == (200, "abc-7")
    _, headers, _ = ask(server.http, "GET", "/v2", headers={"X-Request-Id": 'bad "id" \\'})
    assert len(headers["x-request-id"]) == 16
    deadline = time.monotonic() + WAIT
    while not any(e.get("request_id") == "abc-7" for e in server.lines):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    (entry,) = (e for e in server.lines if e.get("request_id") == "abc-7")
    assert (entry["method"], entry["path"], entry["status"]) == ("GET", "/v2", 200)


@needs_packages
def test_bodies_that_are_too_large(server):
    status, _, answer = infer(server, b" " * (1 << 20) + b"!")
    assert status == 413
    assert "up to 1048576" in answer["error"]
    with socket.create_connection(server.http.split(":"), timeout=WAIT) as chunked:
        chunked.sendall(
            b"POST /v2/models/net/infer HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        for _ in range(18):
            chunked.sendall(b"10000\r\n" + b" " * 65536 + b"\r\n")
        assert b" 413 " in chunked.recv(4096)
    import gzip

    bomb = gzip.compress(b" " * (2 << 20))
    status, _, answer = infer(server, bomb, Content_Encoding="gzip")
    assert status == 413
    status, _, answer = infer(server, b"x", Content_Encoding="br")
    assert status == 415
    status, _, answer = infer(server, b"x", Content_Encoding="gzip")
    assert status == 400


@needs_packages
def test_a_client_that_hangs_up_in_its_body(server):
    for _ in range(20):
        with socket.create_connection(server.http.split(":"), timeout=WAIT) as client:
            client.sendall(
                b"POST /v2/models/net/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 90\r\n\r\nx"
            )
    assert ask(server.http, "GET", "/v2/health/ready")[0] == 200


@needs_packages
def test_metrics(server):
    body, headers = request_of(values(1, 3, 16, 16))
    assert ask(server.http, "POST", "/v2/models/net/infer", body, headers)[0] == 200
    ask(server.http, "GET", "/v2/models/made-up-name")
    status, found, text = ask(server.http, "GET", "/metrics")
    assert status == 200
    assert found["content-type"].startswith("text/plain")
    assert b'kuiper_requests_total{model="net",protocol="http",status="200"}' in text
    for name in (
        b"kuiper_request_seconds_bucket",
        b"kuiper_batch_rows_bucket",
        b"kuiper_queue_seconds_sum",
        b"kuiper_resident_bytes ",
        b"kuiper_models_loaded 3",
    ):
        assert name in text  # fmt: skip
    assert b"made-up-name" not in text  # a client cannot make labels


@pytest.fixture(scope="module")
def photos():
    if not has_packages():
        pytest.skip("needs the extra `serve`")
    pytest.importorskip("cv2")
    if not (MODELS / "nanodet_m.f16.pnnx.bin").exists():
        pytest.skip("the weights of the example models are in the repository, not in the sdist")
    with serving("mobilenet_v2", "squeezenet", "nanodet_m", "selfie", "--batch", "1",
                 "--grpc", "127.0.0.1:0") as running:  # fmt: skip
        yield running


def test_classify_and_detect_a_photo(photos):
    from kuiper.vision import Classifier, Detector

    for name in ("mobilenet_v2", "squeezenet"):
        path = f"/v2/models/{name}/classify?count=3"
        status, _, body = ask(photos.http, "POST", path, PHOTO.read_bytes())
        assert status == 200
        expected = Classifier(name)(PHOTO, 3)
        found = json.loads(body)
        assert (found["width"], found["height"]) == (451, 300)
        assert found["guesses"] == [vars(guess) for guess in expected]
    status, _, body = ask(photos.http, "POST", "/v2/models/nanodet_m/detect", PHOTO.read_bytes())
    (cat,) = json.loads(body)["detections"]
    (expected,) = Detector()(PHOTO)
    assert cat == {**vars(expected), "box": list(expected.box)}


def test_segment_a_photo(photos):
    import cv2

    from kuiper.vision import Segmenter

    expected = np.rint(Segmenter("selfie")(PHOTO) * 255).astype(np.uint8)
    for form, channels in (("mask", 1), ("overlay", 3), ("cutout", 4)):
        path = f"/v2/models/selfie/segment?form={form}"
        status, headers, body = ask(photos.http, "POST", path, PHOTO.read_bytes())
        assert (status, headers["content-type"]) == (200, "image/png")
        picture = cv2.imdecode(np.frombuffer(body, np.uint8), cv2.IMREAD_UNCHANGED)
        assert picture.shape[:2] == (300, 451)
        assert picture.size == 300 * 451 * channels
        if form == "mask":
            np.testing.assert_array_equal(picture, expected)


@pytest.mark.parametrize("kind", ["http", "grpc"])
def test_pictures_as_tensors(photos, kind):
    """An input of BYTES: each JPEG or PNG is a row, prepared as for the model's task."""
    from tritonclient.utils import InferenceServerException

    from kuiper.vision import Classifier, Detector, Segmenter, load_image

    module = importlib.import_module(f"tritonclient.{kind}")
    client = module.InferenceServerClient(getattr(photos, kind))

    def infer(model: str, name: str, pictures: list[bytes]):
        given = module.InferInput(name, [len(pictures)], "BYTES")
        given.set_data_from_numpy(np.array(pictures, object))
        return client.infer(model, [given])

    pictures = [p.read_bytes() for p in sorted(PHOTO.parent.glob("*.*g"))[:2]] + [
        PHOTO.read_bytes()
    ]
    images = [load_image(io.BytesIO(picture)) for picture in pictures]
    for model, tool in (("squeezenet", Classifier("squeezenet")), ("nanodet_m", Detector()),
                        ("selfie", Segmenter("selfie"))):  # fmt: skip
        rows = [tool.preprocess(image) for image in images]
        x = np.stack([row[0] if model == "nanodet_m" else row for row in rows])
        found = infer(model, tool.model.inputs[0].name, pictures)
        expected = tool.model(x)
        name = tool.model.outputs[0].name
        np.testing.assert_array_equal(found.as_numpy(name), expected)
    name = tool.model.inputs[0].name
    for picture, words in ((b"GIF89a", "no JPEG or PNG"), (pictures[0][:999], "damaged")):
        with pytest.raises(InferenceServerException, match=words):
            infer("selfie", name, [picture])
    with pytest.raises(InferenceServerException, match=f"expected '{name}' alone"):
        infer("selfie", "q", pictures)
    with pytest.raises(InferenceServerException, match="has no picture"):
        infer("selfie", name, [])
    client.close()


@needs_packages
def test_an_onnx_file(tmp_path):
    weight = onnxfile.tensor("w", values(4, 3, 3, 3))
    images = onnxfile.value("images", np.float32, ("n", 3, 8, 8))
    content = onnxfile.graph(
        [onnxfile.node("Conv", "images w", "scores")],
        [images],
        [onnxfile.value("scores")],
        [weight],
    )
    path = tmp_path / "net.onnx"
    path.write_bytes(onnxfile.model(content))
    x = values(2, 3, 8, 8)
    with serving(path) as server:
        status, _, found = ask(server.http, "GET", "/v2/models/net")
        described = json.loads(found)
        data = [
            {"name": "images", "shape": x.shape, "datatype": "FP32", "data": x.ravel().tolist()}
        ]
        _, _, answer = infer(server, json.dumps({"inputs": data}).encode())
    assert (status, described["platform"]) == (200, "kuiper_onnx")
    assert described["inputs"] == [{"name": "images", "datatype": "FP32", "shape": [-1, 3, 8, 8]}]
    scores = np.array(answer["outputs"][0]["data"], np.float32)
    np.testing.assert_array_equal(scores, kuiper.load(path)(x).ravel())


@needs_packages
def test_a_model_that_takes_no_pictures(server):
    tensor = {"name": "a", "shape": [1], "datatype": "BYTES", "data": ["x"]}
    body = json.dumps({"inputs": [tensor]}).encode()
    status, _, answer = infer(server, body, "/v2/models/two/infer")
    assert status == 400
    assert "has no input for pictures" in answer["error"]


@pytest.mark.parametrize(
    ("path", "body", "status", "words"),
    [
        ("mobilenet_v2/classify", b"", 415, "it is empty"),
        ("mobilenet_v2/classify", b"GIF89a", 415, "no JPEG or PNG"),
        ("mobilenet_v2/classify", b"\xff\xd8\xff", 400, "damaged or incomplete"),
        ("mobilenet_v2/classify", None, 400, "damaged or incomplete"),
        ("mobilenet_v2/classify?count=0", PHOTO, 400, "count is '0'"),
        ("selfie/segment?form=hole", PHOTO, 400, "form is 'hole'"),
        ("selfie/classify", PHOTO, 400, "one row of scores"),
        ("mobilenet_v2/detect", PHOTO, 400, "do not fit a known detector"),
    ],
)
def test_photos_that_do_not_work(photos, path, body, status, words):
    content = PHOTO.read_bytes() if body is PHOTO else body
    if body is None:
        content = PHOTO.read_bytes()[:1000]
    found, _, answer = ask(photos.http, "POST", f"/v2/models/{path}", content)
    assert found == status
    assert words in json.loads(answer)["error"]


def test_a_small_file_with_a_huge_picture(photos):
    png = bytearray(PHOTO.read_bytes())
    png[16:24] = (60_000).to_bytes(4, "big") * 2
    found, _, answer = ask(photos.http, "POST", "/v2/models/selfie/segment", bytes(png))
    assert found == 413
    assert "60000 x 60000 pixels" in json.loads(answer)["error"]


def test_the_size_of_a_picture():
    cv2 = pytest.importorskip("cv2")
    from kuiper.serving.pictures import picture_size

    image = np.zeros((37, 53, 3), np.uint8)
    reasons = set()
    for suffix in (".jpg", ".png"):
        data = cv2.imencode(suffix, image)[1].tobytes()
        assert picture_size(data) == (53, 37)
        for end in range(0, len(data), 7):
            try:
                picture_size(data[:end])
            except Refusal as refusal:
                reasons.add(refusal.reason)
    assert reasons == {"invalid", "media type"}


@needs_packages
def test_a_token(repository, tmp_path):
    (tmp_path / "token").write_text("secret\n")
    arguments = ("--token-file", tmp_path / "token", "--poll", "0", "--grpc", "127.0.0.1:0")
    with serving(repository, *arguments) as running:
        assert ask(running.http, "GET", "/v2/health/ready")[0] == 200
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "secret"}):
            for path in ("/v2", "/metrics", "/v2/models/net"):
                status, found, _ = ask(running.http, "GET", path, headers=headers)
                assert status == 401
                assert found["www-authenticate"] == "Bearer"
        good = {"Authorization": "Bearer secret"}
        assert ask(running.http, "GET", "/v2", headers=good)[0] == 200
        # Clients may not change models, unless the server says so.
        path = "/v2/repository/models/net/unload"
        assert ask(running.http, "POST", path, b"{}", good)[0] == 403
        import tritonclient.grpc as client
        from tritonclient.utils import InferenceServerException

        with client.InferenceServerClient(running.grpc) as grpc:
            assert grpc.is_server_ready()
            with pytest.raises(InferenceServerException) as caught:
                grpc.get_server_metadata()
            assert caught.value.status() == "StatusCode.UNAUTHENTICATED"
            named = {"authorization": "Bearer secret"}
            assert grpc.get_server_metadata(headers=named).name == "kuiper"
