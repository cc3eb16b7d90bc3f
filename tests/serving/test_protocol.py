"""Requests and responses of the Open Inference Protocol: JSON and bytes."""

from __future__ import annotations

import json

import numpy as np
import pytest

from kuiper.serving.failures import Refusal
from kuiper.serving.protocol import (
    DATATYPES,
    InferRequest,
    datatype_of,
    decode_request,
    encode_response,
    from_bytes,
    to_bytes,
)


def body_of(*inputs: dict, data: bytes = b"", **more) -> tuple[bytes, int]:
    head = json.dumps({"inputs": list(inputs), **more}).encode()
    return head + data, len(head)


def tensor(name="x", shape=(2,), datatype="FP32", **more) -> dict:
    return {"name": name, "shape": list(shape), "datatype": datatype, **more}


def refused(body: bytes, head: int | None = None) -> str:
    with pytest.raises(Refusal) as caught:
        decode_request(body, head)
    assert caught.value.status.http in (400, 501)
    return str(caught.value)


NUMBERS = {
    "BOOL": [True, False], "UINT8": [0, 255], "INT8": [-128, 127], "INT16": [-32768, 5],
    "UINT16": [65535, 0], "INT32": [-(2**31), 1], "UINT32": [2**32 - 1, 0],
    "INT64": [-(2**63), 2**63 - 1], "UINT64": [2**64 - 1, 0], "FP32": [0.5, -1.25],
    "FP64": [1e300, 0.1],
}  # fmt: skip


@pytest.mark.parametrize("datatype", NUMBERS)
def test_json_and_bytes_give_the_same_array(datatype):
    values = NUMBERS[datatype]
    expected = np.array(values, DATATYPES[datatype])
    body, _ = body_of(tensor(datatype=datatype, data=values))
    (found,) = decode_request(body).inputs.values()
    assert found.dtype == expected.dtype
    assert found.tobytes() == expected.tobytes()
    body, head = body_of(
        tensor(datatype=datatype, parameters={"binary_data_size": expected.nbytes}),
        data=expected.tobytes(),
    )
    (found,) = decode_request(body, head).inputs.values()
    assert found.dtype == expected.dtype
    assert found.tobytes() == expected.tobytes()


def test_binary_tensors_follow_each_other_and_mix_with_json():
    a, b = np.arange(6, dtype=np.float32).reshape(2, 3), np.array([[7]], np.int64)
    body, head = body_of(
        tensor("a", a.shape, parameters={"binary_data_size": 24}),
        tensor("c", (1,), "BOOL", data=[True]),
        tensor("b", b.shape, "INT64", parameters={"binary_data_size": 8}),
        data=a.tobytes() + b.tobytes(),
        id="7",
        outputs=[{"name": "y", "parameters": {"binary_data": True}}, {"name": "z"}],
    )
    request = decode_request(body, head)
    np.testing.assert_array_equal(request.inputs["a"], a)
    np.testing.assert_array_equal(request.inputs["b"], b)
    assert request.inputs["c"].tolist() == [True]
    assert [(o.name, o.binary) for o in request.outputs] == [("y", True), ("z", False)]
    assert request.id == "7"


def test_the_arrays_of_a_binary_request_are_views():
    body, head = body_of(
        tensor(parameters={"binary_data_size": 8}), data=np.float32([1, 2]).tobytes()
    )
    space = bytearray(body)
    (found,) = decode_request(space, head).inputs.values()
    space[-4:] = np.float32([9]).tobytes()
    assert found.tolist() == [1, 9]


def test_nested_data_and_the_default_for_outputs():
    body, _ = body_of(
        tensor(shape=(2, 2), data=[[1, 2], [3, 4.5]]), parameters={"binary_data_output": True}
    )
    request = decode_request(body)
    assert request.inputs["x"].tolist() == [[1, 2], [3, 4.5]]
    assert request.binary
    assert request.outputs is None


def test_texts():
    body, _ = body_of(tensor(datatype="BYTES", data=["é", ""]))
    assert decode_request(body).inputs["x"].tolist() == ["é".encode(), b""]
    raw = to_bytes(np.array([b"ab", "é"], object))
    assert raw == b"\x02\0\0\0ab\x02\0\0\0\xc3\xa9"
    body, head = body_of(
        tensor(datatype="BYTES", parameters={"binary_data_size": len(raw)}), data=raw
    )
    assert decode_request(body, head).inputs["x"].tolist() == [b"ab", "é".encode()]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "it is empty"),
        (b"{", "the JSON object is invalid"),
        (b"[]", "expected an object"),
        (b"\xff", "not UTF-8"),
        (b"[" * 100_000, "invalid"),
        (b'{"inputs": ' + b"9" * 5000 + b"}", "invalid"),
        (b"{}", "inputs is missing"),
        (b'{"inputs": {}}', "inputs is {}, expected a list"),
        (b'{"inputs": [7]}', "inputs[0] is 7"),
        (b'{"inputs": [{}]}', "name is missing"),
        (b'{"inputs": [{"name": "x"}]}', "input 'x': shape missing"),
        (b'{"inputs": [{"name": "x", "shape": [-1]}]}', "shape [-1]"),
        (b'{"inputs": [{"name": "x", "shape": [true]}]}', "shape [True]"),
        (b'{"inputs": [{"name": "x", "shape": [2]}]}', "datatype missing"),
        (body_of(tensor(datatype="FP8"))[0], "expected one of BOOL"),
        (body_of(tensor(datatype="FP16", data=[1, 2]))[0], "JSON has no FP16"),
        (body_of(tensor())[0], "data is missing"),
        (body_of(tensor(data=[1]))[0], "1 values, expected 2 for shape [2]"),
        (body_of(tensor(data=[[1], [2, 3]]))[0], "nested unevenly"),
        (body_of(tensor(data=["1", "2"]))[0], "data holds strings, expected FP32"),
        (body_of(tensor(data=[None, 1]))[0], "data holds other values"),
        (body_of(tensor(datatype="INT64", data=[1.5, 2]))[0], "numbers with fractions"),
        (body_of(tensor(datatype="UINT8", data=[256, 0]))[0], "outside of UINT8, 0 to 255"),
        (body_of(tensor(datatype="UINT8", data=[-1, 0]))[0], "outside of UINT8"),
        (body_of(tensor(datatype="BOOL", data=[1, 0]))[0], "expected BOOL"),
        (body_of(tensor(data=[1e40, 0]))[0], "outside of FP32"),
        (b'{"inputs": [{"name": "x", "shape": [1], "datatype": "FP32", "data": [NaN]}]}', "NaN"),
        (b'{"inputs": [{"name": "x", "shape": [1], "datatype": "FP32", "data": [1e999]}]}',
         "outside of FP32"),
        (body_of(tensor(shape=(0, 2**62), data=[]))[0], "not possible"),
        (body_of(tensor(shape=(1,) * 65, data=[1]))[0], "rank 65"),
        (body_of(tensor(data=[1, 2]), tensor(data=[1, 2]))[0], "given twice"),
        (body_of(tensor(data=[1, 2]), id=5)[0], "id is 5"),
        (body_of(tensor(data=[1, 2]), outputs=[{"name": 1}])[0], "outputs[0]: name is 1"),
        (body_of(tensor(data=[1, 2]), parameters=[])[0], "parameters is []"),
        (body_of(tensor(data=[1, 2]), parameters={"sequence_id": 3})[0], "sequences"),
        (body_of(tensor(data=[1, 2], parameters={"shared_memory_region": "r"}))[0], "shared"),
        (body_of(tensor(datatype="BYTES", data=[1, 2]))[0], "are strings"),
    ],
)  # fmt: skip
def test_a_bad_request_is_refused_with_a_reason(body, words):
    assert words in refused(body)


def test_bad_binary_data_is_refused():
    size = {"parameters": {"binary_data_size": 8}}
    body, head = body_of(tensor(**size), data=b"1234")
    assert "ended" not in refused(body, head)
    assert "did the body end early?" in refused(body, head)
    assert "did it end early?" in refused(body, len(body) + 1)
    body, head = body_of(tensor(**size), data=b"1" * 9)
    assert "1 bytes follow the data" in refused(body, head)
    body, head = body_of(tensor(shape=(3,), **size), data=b"1" * 8)
    assert "8 bytes, expected 12 for FP32 of shape [3]" in refused(body, head)
    body, head = body_of(tensor(data=[1, 2], **size), data=b"1" * 8)
    assert "both data and binary_data_size" in refused(body, head)
    body, head = body_of(tensor(parameters={"binary_data_size": -8}))
    assert "binary_data_size is -8" in refused(body, head)
    body, head = body_of(tensor(datatype="BOOL", parameters={"binary_data_size": 2}), data=b"\0\2")
    assert "neither 0 nor 1" in refused(body, head)
    for raw in (b"\1\0\0\0", b"\1\0\0\0a\1\0\0\0", b"\1\0\0\0a\0\0\0\0!", b""):
        body, head = body_of(
            tensor(datatype="BYTES", parameters={"binary_data_size": len(raw)}), data=raw
        )
        assert "input 'x'" in refused(body, head)


def test_a_timeout_is_in_microseconds():
    request = InferRequest({}, parameters={"timeout": 30_000})
    assert request.timeout == pytest.approx(0.03)
    assert InferRequest({}).timeout is None
    with pytest.raises(Refusal, match="microseconds"):
        _ = InferRequest({}, parameters={"timeout": "soon"}).timeout


def test_a_response_mixes_json_and_bytes():
    y, z = np.float32([[1, 2]]), np.array([3], np.int64)
    request = InferRequest({}, id="q")
    document, data = encode_response("m", "2", request, [("y", y, True), ("z", z, False)])
    assert json.loads(document) == {
        "model_name": "m", "model_version": "2", "id": "q",
        "outputs": [
            {"name": "y", "datatype": "FP32", "shape": [1, 2],
             "parameters": {"binary_data_size": 8}},
            {"name": "z", "datatype": "INT64", "shape": [1], "data": [3]},
        ],
    }  # fmt: skip
    assert b"".join(data) == y.tobytes()


@pytest.mark.parametrize(
    ("array", "words"),
    [
        (np.float32([np.nan]), "NaN or infinite"),
        (np.float16([1]), "JSON has no FP16"),
        (np.complex64([1]), "no datatype for values of complex64"),
        (np.array([b"\xff"], object), "no text"),
    ],
)
def test_what_json_cannot_say(array, words):
    with pytest.raises(Refusal, match=words):
        encode_response("m", "1", InferRequest({}), [("y", array, False)])


def test_every_datatype_has_a_name_and_survives():
    for name, dtype in DATATYPES.items():
        assert datatype_of(dtype) == name
        if name != "BYTES":
            array = np.arange(4).astype(dtype).reshape(2, 2)
            raw = bytes(to_bytes(array.T))
            np.testing.assert_array_equal(from_bytes(raw, name, (2, 2), "x"), array.T)
    assert bytes(to_bytes(np.empty((0, 3), np.float32))) == b""
