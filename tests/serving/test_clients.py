"""tritonclient, an independent implementation of the protocol, against a real server."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import kuiper

from ..support.textgraph import values

pytest.importorskip("tritonclient")
pytest.importorskip("grpc")
pytest.importorskip("uvicorn")

import tritonclient.grpc as grpc_client
import tritonclient.grpc.aio as grpc_aio
import tritonclient.http as http_client
import tritonclient.http.aio as http_aio
from tritonclient.utils import InferenceServerException

pytestmark = pytest.mark.filterwarnings("default")  # of the client's packages

BOTH = pytest.mark.parametrize("kind", ["http", "grpc"])
MODULES = {"http": http_client, "grpc": grpc_client}
# Mixed shapes: the same model at four sizes and with up to three rows.
SHAPES = [(1, 3, 16, 16), (1, 3, 20, 12), (2, 3, 16, 16), (3, 3, 17, 17), (1, 3, 16, 16)]


@pytest.fixture
def client(request, server, kind):
    """Return a client for one of the protocols."""
    made = MODULES[kind].InferenceServerClient(getattr(server, kind))
    yield made
    made.close()


def tensor(module, name: str, array: np.ndarray, **more):
    made = module.InferInput(name, list(array.shape), MODULES_DTYPES[array.dtype.name])
    made.set_data_from_numpy(array, **more)
    return made


MODULES_DTYPES = {"float32": "FP32", "float64": "FP64", "int64": "INT64"}


def as_dict(kind: str, found):
    """Return an answer of either client as a dict; gRPC's has messages."""
    if kind == "http":
        return found
    from google.protobuf.json_format import MessageToDict

    return MessageToDict(found, preserving_proto_field_name=True)


@pytest.fixture(scope="module")
def expected(repository):
    """Return the models of the repository, called in this process."""
    return {
        version: kuiper.load(repository / "net" / version / "net.pnnx.param", threads=1)
        for version in ("1", "2")
    }


@BOTH
def test_health_and_metadata(client, kind):
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("net")
    assert client.is_model_ready("net", "1")
    assert not client.is_model_ready("net", "9")
    about = as_dict(kind, client.get_server_metadata())
    assert about["name"] == "kuiper"
    assert about["version"] == kuiper.__version__
    assert "binary_tensor_data" in about["extensions"]
    model = as_dict(kind, client.get_model_metadata("net"))
    assert model["versions"] == ["1", "2"]
    assert [t["name"] for t in model["outputs"]] == ["o", "v"]
    (x,) = model["inputs"]
    assert (x["name"], x["datatype"]) == ("x", "FP32")
    assert [int(n) for n in x["shape"]] == [-1, 3, 16, 16]
    config = as_dict(kind, client.get_model_config("net"))
    config = config.get("config", config)
    assert config["max_batch_size"] == 4
    assert [int(n) for n in config["input"][0]["dims"]] == [3, 16, 16]


@BOTH
def test_infer_by_names_with_any_subset_of_outputs(client, kind, expected):
    module, x = MODULES[kind], values(2, 3, 16, 16)
    for version in ("", "1", "2"):
        o, v = expected[version or "2"](x)
        for names in ([], ["o"], ["v", "o"]):
            outputs = [module.InferRequestedOutput(name) for name in names]
            found = client.infer(
                "net", [tensor(module, "x", x)], version, outputs=outputs, request_id="7"
            )
            response = as_dict(kind, found.get_response())
            assert response["id"] == "7"
            assert response["model_version"] == (version or "2")
            assert [t["name"] for t in response["outputs"]] == (names or ["o", "v"])
            for name, array in (("o", o), ("v", v)):
                got = found.as_numpy(name)
                assert (got is None) == (bool(names) and name not in names)
                if got is not None:
                    assert got.tobytes() == array.tobytes()
                    assert got.shape == array.shape


@BOTH
def test_two_inputs_in_any_order(client, kind):
    module, a, b = MODULES[kind], values(3, 4), values(3, 4, seed=1)
    found = client.infer("two", [tensor(module, "b", b), tensor(module, "a", a)])
    assert found.as_numpy("y").tobytes() == (a - b).tobytes()


def test_json_without_binary_data(server, expected):
    x = values(1, 3, 16, 16)
    with http_client.InferenceServerClient(server.http) as client:
        outputs = [http_client.InferRequestedOutput("o", binary_data=False)]
        inputs = [tensor(http_client, "x", x, binary_data=False)]
        found = client.infer("net", inputs, outputs=outputs).as_numpy("o")
        # JSON holds the shortest decimals that give the float32 back.
        assert found.tobytes() == expected["2"](x)[0].tobytes()


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
def test_compressed_requests(server, expected, algorithm):
    x = values(1, 3, 16, 16)
    with http_client.InferenceServerClient(server.http) as client:
        found = client.infer(
            "net", [tensor(http_client, "x", x)], request_compression_algorithm=algorithm
        )
    assert found.as_numpy("o").tobytes() == expected["2"](x)[0].tobytes()


@BOTH
def test_concurrent_requests_of_mixed_shapes_have_the_bits_of_a_call(server, kind, expected):
    module = MODULES[kind]
    inputs = [values(*SHAPES[n % len(SHAPES)], seed=n) for n in range(200)]

    def ask(rank: int) -> list[np.ndarray]:
        client = module.InferenceServerClient(getattr(server, kind))
        try:
            return [
                client.infer("net", [tensor(module, "x", x)]).as_numpy("o")
                for x in inputs[rank::16]
            ]
        finally:
            client.close()

    with ThreadPoolExecutor(16) as pool:
        found = list(pool.map(ask, range(16)))
    for rank in range(16):
        for x, got in zip(inputs[rank::16], found[rank], strict=True):
            assert got.tobytes() == expected["2"](x)[0].tobytes()


@BOTH
def test_the_async_clients(server, kind, expected):
    module = {"http": http_aio, "grpc": grpc_aio}[kind]
    inputs = [values(*SHAPES[n % len(SHAPES)], seed=n) for n in range(200)]

    async def ask() -> list:
        async with module.InferenceServerClient(getattr(server, kind)) as client:
            assert await client.is_model_ready("net")
            calls = [client.infer("net", [tensor(MODULES[kind], "x", x)]) for x in inputs]
            return await asyncio.gather(*calls)

    for x, found in zip(inputs, asyncio.run(ask()), strict=True):
        assert found.as_numpy("o").tobytes() == expected["2"](x)[0].tobytes()


def test_a_stream(server, expected):
    found: list = []
    inputs = [values(1, 3, 16, 16, seed=n) for n in range(5)]
    with grpc_client.InferenceServerClient(server.grpc) as client:
        client.start_stream(lambda result, error: found.append((result, error)))
        client.async_stream_infer("net", [tensor(grpc_client, "x", inputs[0])])
        client.async_stream_infer("net", [tensor(grpc_client, "y", inputs[0])])
        for x in inputs[1:]:
            client.async_stream_infer("net", [tensor(grpc_client, "x", x)])
        client.stop_stream()
    assert "unknown: ['y']" in str(found.pop(1)[1])
    for x, (result, error) in zip(inputs, found, strict=True):
        assert error is None
        assert result.as_numpy("o").tobytes() == expected["2"](x)[0].tobytes()


@BOTH
@pytest.mark.parametrize(
    ("model", "name", "array", "words"),
    [
        ("none", "x", values(1), "model 'none' does not exist; models: net, two"),
        ("net", "y", values(1, 3, 16, 16), "got inputs ['y'], expected ['x']; missing: ['x']"),
        ("net", "x", values(3, 16, 16), "expected rank 4"),
        ("net", "x", values(1, 3, 16, 16).astype(np.float64), "got float64 (1, 3, 16, 16)"),
        ("net", "x", values(1, 4, 16, 16), "channels"),
    ],
)
def test_errors_have_the_message_of_the_engine(client, kind, model, name, array, words):
    with pytest.raises(InferenceServerException) as caught:
        client.infer(model, [tensor(MODULES[kind], name, array)])
    assert words in caught.value.message()
    unknown = model == "none"
    codes = ("404", "StatusCode.NOT_FOUND") if unknown else ("400", "StatusCode.INVALID_ARGUMENT")
    assert caught.value.status() == codes[kind == "grpc"]


@BOTH
def test_an_unknown_output(client, kind):
    module = MODULES[kind]
    with pytest.raises(InferenceServerException, match="no output 'q', expected 'o', 'v'"):
        client.infer(
            "net", [tensor(module, "x", values(1, 3, 16, 16))],
            outputs=[module.InferRequestedOutput("q")],
        )  # fmt: skip


@BOTH
def test_a_request_that_is_too_large(client, kind):
    with pytest.raises(InferenceServerException) as caught:
        client.infer("net", [tensor(MODULES[kind], "x", values(40, 3, 64, 64))])
    assert caught.value.status() in ("413", "StatusCode.RESOURCE_EXHAUSTED")


@BOTH
def test_load_and_unload(client, kind):
    client.unload_model("two")
    assert not client.is_model_ready("two")
    with pytest.raises(InferenceServerException, match="not loaded"):
        client.infer("two", [tensor(MODULES[kind], "a", values(1, 4))])
    index = as_dict(kind, client.get_model_repository_index())
    index = index["models"] if kind == "grpc" else index
    states = {(m["name"], m["version"]): m["state"] for m in index}
    assert states["two", "1"] == "UNAVAILABLE"
    assert states["net", "2"] == "READY"
    client.load_model("two")
    assert client.is_model_ready("two")
    with pytest.raises(InferenceServerException, match="no model 'none'"):
        client.load_model("none")


@BOTH
def test_statistics(client, kind):
    def count() -> int:
        found = as_dict(kind, client.get_inference_statistics("two"))
        (stats,) = found["model_stats"]
        return int(stats["inference_stats"]["success"].get("count", 0))

    before = count()
    x = values(1, 4)
    client.infer("two", [tensor(MODULES[kind], n, x) for n in "ab"])
    assert count() == before + 1


def test_the_messages_are_those_of_the_protocol():
    """Numbers, types and multiplicity of all fields, compared with generated code."""
    from tritonclient.grpc import model_config_pb2, service_pb2

    from kuiper.serving.messages import messages

    theirs = {}
    for module in (service_pb2, model_config_pb2):
        stack = list(module.DESCRIPTOR.message_types_by_name.values())
        while stack:
            one = stack.pop()
            theirs[one.name] = one
            stack += one.nested_types
    count = 0
    for name, ours in vars(messages()).items():
        if name == "ModelVersionPolicyAll":  # called All, inside of ModelVersionPolicy
            continue
        fields = theirs[name].fields_by_name
        for field in ours.DESCRIPTOR.fields:
            other = fields[field.name]
            assert (field.number, field.type) == (other.number, other.type), (name, field.name)
            assert field.is_repeated == other.is_repeated
            count += 1
    assert count > 100
