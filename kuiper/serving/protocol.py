"""The Open Inference Protocol (KServe v2): requests and responses of HTTP, in JSON and in bytes.

A request is a JSON object.  With the extension for binary tensor data, the values of some tensors
follow it as raw bytes, in the order of the inputs::

    POST /v2/models/NAME/infer                     ┌─ Inference-Header-Content-Length ─┐
    {"inputs": [{"name": "x", "shape": [1, 3], "datatype": "FP32",
                 "parameters": {"binary_data_size": 12}}]}  ............

Values are little-endian and in C order.  Nothing here does input or output.
"""

from __future__ import annotations

import json
import math
import reprlib
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np

from kuiper.serving.failures import Refusal

__all__ = [
    "DATATYPES",
    "InferRequest",
    "WantedOutput",
    "datatype_of",
    "decode_request",
    "dtype_of",
    "encode_response",
    "from_bytes",
    "to_bytes",
]

# Names of the protocol -> dtypes of numpy.
DATATYPES = {
    "BOOL": np.dtype(np.bool_),
    "UINT8": np.dtype(np.uint8),
    "UINT16": np.dtype(np.uint16),
    "UINT32": np.dtype(np.uint32),
    "UINT64": np.dtype(np.uint64),
    "INT8": np.dtype(np.int8),
    "INT16": np.dtype(np.int16),
    "INT32": np.dtype(np.int32),
    "INT64": np.dtype(np.int64),
    "FP16": np.dtype(np.float16),
    "FP32": np.dtype(np.float32),
    "FP64": np.dtype(np.float64),
    "BYTES": np.dtype(np.object_),
}
_NAMES = {dtype: name for name, dtype in DATATYPES.items()}
_MAX_RANK = 64  # numpy 1 allows 32
_SWAPPED = sys.byteorder == "big"


@dataclass(slots=True)
class WantedOutput:
    """An output that a request asks for.

    Attributes
    ----------
    name : str
    binary : bool
        Whether its values are returned as bytes.
    """

    name: str
    binary: bool = False


@dataclass(slots=True)
class InferRequest:
    """A request for inference.

    Attributes
    ----------
    inputs : dict of str to numpy.ndarray
        Arrays of a binary request are views of its body.
    outputs : list of WantedOutput or None
        None for all outputs.
    id : str
        Returned with the response.
    parameters : dict
    binary : bool
        Whether outputs that the request does not list are returned as bytes.
    """

    inputs: dict[str, np.ndarray]
    outputs: list[WantedOutput] | None = None
    id: str = ""
    parameters: dict[str, Any] = field(default_factory=dict)
    binary: bool = False

    @property
    def has_pictures(self) -> bool:
        """Whether an input is of BYTES, which no network computes with."""
        return any(array.dtype == np.object_ for array in self.inputs.values())

    @property
    def timeout(self) -> float | None:
        """Seconds after which the client no longer waits; the parameter is in microseconds."""
        given = self.parameters.get("timeout")
        if given is None:
            return None
        if isinstance(given, bool) or not isinstance(given, int) or given < 0:
            _refuse(f"parameter 'timeout' is {given!r}, expected microseconds as an integer")
        return given / 1e6 if given else None


def dtype_of(datatype: Any, where: str) -> np.dtype[Any]:
    """Return the dtype for a name of the protocol; refuse other names."""
    dtype = DATATYPES.get(datatype) if isinstance(datatype, str) else None
    if dtype is None:
        _refuse(f"{where}: datatype {_shown(datatype)}, expected one of {', '.join(DATATYPES)}")
    return dtype


def datatype_of(dtype: np.dtype[Any]) -> str:
    """Return the protocol's name of a dtype.

    Raises
    ------
    Refusal
        If the protocol has none, as for complex numbers.
    """
    name = _NAMES.get(dtype)
    if name is None:
        raise Refusal("unsupported", f"the protocol has no datatype for values of {dtype}")
    return name


def from_bytes(data: Any, datatype: str, shape: Sequence[int], where: str) -> np.ndarray:
    """Return the array of a tensor's bytes, without a copy.

    Parameters
    ----------
    data : bytes-like
    datatype : str
        A name of the protocol.
    shape : sequence of int
    where : str
        The tensor, for messages.

    Raises
    ------
    Refusal
        If the number of bytes does not fit the shape.
    """
    dtype = dtype_of(datatype, where)
    count = math.prod(shape)
    if datatype == "BYTES":
        return _texts(data, count, where).reshape(shape)
    if len(data) != count * dtype.itemsize:
        _refuse(
            f"{where}: {len(data)} bytes, expected {count * dtype.itemsize} for {datatype} of "
            f"shape {list(shape)}"
        )
    array = np.frombuffer(data, dtype.newbyteorder("<"))
    if _SWAPPED:
        array = array.astype(dtype)
    if dtype == np.bool_ and count and int(array.view(np.uint8).max()) > 1:
        _refuse(f"{where}: a byte of BOOL is neither 0 nor 1")
    return _reshaped(array, shape, where)


def to_bytes(array: np.ndarray) -> Any:
    """Return the bytes of an array in the order of the protocol; a view if possible."""
    if array.dtype == np.object_:
        texts = (t.encode() if isinstance(t, str) else bytes(t) for t in array.reshape(-1))
        return b"".join(len(t).to_bytes(4, "little") + t for t in texts)
    if _SWAPPED:
        array = array.astype(array.dtype.newbyteorder("<"))
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def decode_request(body: Any, header_length: int | None = None) -> InferRequest:
    """Decode the body of an inference request.

    Parameters
    ----------
    body : bytes-like
    header_length : int, optional
        Bytes of the JSON object; what follows is tensor data.  By default all of the body.

    Raises
    ------
    Refusal
        If the body is invalid; the message names the tensor.
    """
    body = memoryview(body)
    length = len(body) if header_length is None else header_length
    if not 0 <= length <= len(body):
        _refuse(
            f"Inference-Header-Content-Length is {length}, but the body has {len(body)} bytes; "
            "did it end early?"
        )
    document = _loads(bytes(body[:length]))
    parameters = _object(document.get("parameters", {}), "parameters")
    if parameters.get("sequence_id"):
        raise Refusal("unsupported", "sequences are not supported: each request stands alone")
    inputs: dict[str, np.ndarray] = {}
    offset = length
    for number, tensor in enumerate(_list(document.get("inputs"), "inputs")):
        name, array, offset = _decode_input(tensor, f"inputs[{number}]", body, offset)
        if name in inputs:
            _refuse(f"input '{name}' is given twice")
        inputs[name] = array
    if offset != len(body):
        _refuse(f"{len(body) - offset} bytes follow the data of the inputs")
    request_id = document.get("id", "")
    if not isinstance(request_id, str):
        _refuse(f"id is {_shown(request_id)}, expected a string")
    binary = _flag(parameters, "binary_data_output", "parameters")
    outputs = None
    if document.get("outputs"):
        outputs = [
            _decode_output(tensor, f"outputs[{number}]", binary)
            for number, tensor in enumerate(_list(document["outputs"], "outputs"))
        ]
    return InferRequest(inputs, outputs, request_id, parameters, binary)


def encode_response(
    model: str,
    version: str,
    request: InferRequest,
    outputs: Iterable[tuple[str, np.ndarray, bool]],
) -> tuple[bytes, list[Any]]:
    """Encode the response to a request.

    Parameters
    ----------
    model, version : str
    request : InferRequest
    outputs : iterable of (str, numpy.ndarray, bool)
        Name, value, and whether it is returned as bytes.

    Returns
    -------
    bytes
        The JSON object.
    list of bytes-like
        The data of the binary outputs, which follow it.

    Raises
    ------
    Refusal
        If a value is NaN or infinite and was asked for in JSON, which has neither.
    """
    described, data = [], []
    for name, array, binary in outputs:
        tensor: dict[str, Any] = {
            "name": name,
            "datatype": datatype_of(array.dtype),
            "shape": array.shape,
        }
        if binary:
            raw = to_bytes(array)
            data.append(raw)
            tensor["parameters"] = {"binary_data_size": len(raw)}
        else:
            tensor["data"] = _to_json(name, array)
        described.append(tensor)
    document: dict[str, Any] = {"model_name": model, "model_version": version}
    if request.id:
        document["id"] = request.id
    document["outputs"] = described
    return json.dumps(document, separators=(",", ":")).encode(), data


# -- the parts of a request ----------------------------------------------------------------------


def _decode_input(
    tensor: Any, where: str, body: memoryview, offset: int
) -> tuple[str, np.ndarray, int]:
    """Return name and value of an input, and the offset of the data of the next one."""
    tensor = _object(tensor, where)
    name = _name(tensor, where)
    where = f"input '{name}'"
    shape = tensor.get("shape")
    if not isinstance(shape, list) or not all(
        type(n) is int and 0 <= n <= sys.maxsize for n in shape
    ):
        _refuse(f"{where}: shape {_shown(shape)}, expected a list of integers >= 0")
    if len(shape) > _MAX_RANK:
        _refuse(f"{where}: rank {len(shape)}, expected up to {_MAX_RANK}")
    datatype = tensor.get("datatype")
    dtype = dtype_of(datatype, where)
    parameters = _object(tensor.get("parameters", {}), f"{where}: parameters")
    if "shared_memory_region" in parameters:
        raise Refusal("unsupported", f"{where}: shared memory is not supported; send the data")
    size = parameters.get("binary_data_size")
    if size is None:
        return name, _from_json(tensor, datatype, dtype, shape, where), offset
    if "data" in tensor:
        _refuse(f"{where}: has both data and binary_data_size, expected one of them")
    if type(size) is not int or size < 0:
        _refuse(f"{where}: binary_data_size is {_shown(size)}, expected an integer >= 0")
    if offset + size > len(body):
        _refuse(
            f"{where}: its data has {size} bytes, but only {len(body) - offset} bytes of the body "
            "are left; did the body end early?"
        )
    return name, from_bytes(body[offset : offset + size], datatype, shape, where), offset + size


def _decode_output(tensor: Any, where: str, binary: bool) -> WantedOutput:
    tensor = _object(tensor, where)
    name = _name(tensor, where)
    parameters = _object(tensor.get("parameters", {}), f"output '{name}': parameters")
    if parameters.get("classification"):
        raise Refusal(
            "unsupported",
            f"output '{name}': the classification extension is not supported; "
            "POST a picture to /v2/models/NAME/classify",
        )
    if "shared_memory_region" in parameters:
        raise Refusal("unsupported", f"output '{name}': shared memory is not supported")
    return WantedOutput(name, _flag(parameters, "binary_data", f"output '{name}'", binary))


def _from_json(
    tensor: Mapping[str, Any], datatype: str, dtype: np.dtype[Any], shape: list[int], where: str
) -> np.ndarray:
    """Return the value of a tensor whose data is a list, flat or nested."""
    data = tensor.get("data")
    if not isinstance(data, list):
        _refuse(f"{where}: data is {_shown(data)}, expected a list or binary_data_size")
    if datatype == "BYTES":
        texts = list(_flattened(data))
        if not all(isinstance(text, str) for text in texts):
            _refuse(f"{where}: BYTES in JSON are strings")
        array = np.empty(len(texts), np.object_)
        array[:] = [text.encode() for text in texts]
    elif datatype == "FP16":
        _refuse(f"{where}: JSON has no FP16; send binary tensor data")
    else:
        array = _numbers(data, datatype, dtype, where)
    count = math.prod(shape)
    if array.size != count:
        _refuse(f"{where}: {array.size} values, expected {count} for shape {shape}")
    return _reshaped(array, shape, where)


def _numbers(data: list[Any], datatype: str, dtype: np.dtype[Any], where: str) -> np.ndarray:
    """Return a list of numbers as an array; refuse values that the datatype does not hold."""
    try:
        found = np.array(data)
    except (ValueError, TypeError, OverflowError, RecursionError):
        _refuse(f"{where}: data is nested unevenly, expected numbers of {datatype}")
    if found.size == 0:
        return np.empty(0, dtype)
    if dtype == np.uint64 and found.dtype.kind in "fO":  # numpy has no type for 0 and 2**64 - 1
        flat = list(_flattened(data))
        if all(type(value) is int and 0 <= value < 2**64 for value in flat):
            return np.array(flat, np.uint64)
    kind = found.dtype.kind
    if dtype.kind == "b":
        fits = kind == "b"
    elif dtype.kind == "f":
        fits = kind in "fiu"
    else:
        fits = kind in "iu"
        info = np.iinfo(dtype)
        if fits and not (info.min <= int(found.min()) and int(found.max()) <= info.max):
            _refuse(f"{where}: a value is outside of {datatype}, {info.min} to {info.max}")
    if not fits:
        what = {"b": "booleans", "f": "numbers with fractions", "U": "strings"}.get(kind)
        _refuse(f"{where}: data holds {what or 'other values'}, expected {datatype}")
    with np.errstate(over="ignore"):
        array = found.astype(dtype)
    if dtype.kind == "f" and not np.isfinite(array).all():
        _refuse(f"{where}: a value is outside of {datatype}")
    return array


def _to_json(name: str, array: np.ndarray) -> list[Any]:
    if array.dtype == np.float16:
        raise Refusal("unsupported", f"output '{name}': JSON has no FP16; ask for binary_data")
    if array.dtype == np.object_:
        try:
            return [t if isinstance(t, str) else t.decode() for t in array.reshape(-1)]
        except UnicodeDecodeError:
            _refuse(f"output '{name}': its bytes are no text; ask for binary_data")
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        _refuse(
            f"output '{name}' has NaN or infinite values, which JSON does not have; "
            "ask for binary_data"
        )
    return array.reshape(-1).tolist()


def _texts(data: Any, count: int, where: str) -> np.ndarray:
    """Split BYTES: each element follows its length, which has four bytes."""
    data = memoryview(data)
    if 4 * count > len(data):
        _refuse(f"{where}: {len(data)} bytes, expected at least {4 * count} for {count} elements")
    found, offset = np.empty(count, np.object_), 0
    for number in range(count):
        size = int.from_bytes(data[offset : offset + 4], "little")
        end = offset + 4 + size
        if offset + 4 > len(data) or end > len(data):
            _refuse(f"{where}: element {number} ends after the data")
        found[number] = bytes(data[offset + 4 : end])
        offset = end
    if offset != len(data):
        _refuse(f"{where}: {len(data) - offset} bytes follow the {count} elements")
    return found


# -- JSON ----------------------------------------------------------------------------------------


def _no_constant(text: str) -> NoReturn:
    _refuse(f"the JSON has {text}, which is no value of JSON; send it as binary tensor data")


_DECODER = json.JSONDecoder(parse_constant=_no_constant)


def _loads(data: bytes) -> dict[str, Any]:
    try:
        document = _DECODER.decode(data.decode())
    except UnicodeDecodeError:
        _refuse("the JSON object is not UTF-8; for tensor data, send its length in the header")
    except json.JSONDecodeError as error:
        _refuse(f"the JSON object is invalid: {error}" + ("" if data.strip() else "; it is empty"))
    except (RecursionError, ValueError) as error:  # an integer of thousands of digits
        _refuse(f"the JSON object is invalid: {error}")
    return _object(document, "the request")


def _object(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        _refuse(f"{where} is {_shown(value)}, expected an object")
    return value


def _list(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list):
        _refuse(f"{where} is {_shown(value)}, expected a list")
    return value


def _name(tensor: Mapping[str, Any], where: str) -> str:
    name = tensor.get("name")
    if not isinstance(name, str):
        _refuse(f"{where}: name is {_shown(name)}, expected a string")
    return name


def _flag(parameters: Mapping[str, Any], key: str, where: str, default: bool = False) -> bool:
    value = parameters.get(key, default)
    if not isinstance(value, bool):
        _refuse(f"{where}: {key} is {_shown(value)}, expected true or false")
    return value


def _flattened(data: list[Any]) -> Iterable[Any]:
    stack = [iter(data)]
    while stack:
        for value in stack[-1]:
            if isinstance(value, list):
                stack.append(iter(value))
                break
            yield value
        else:
            stack.pop()


def _reshaped(array: np.ndarray, shape: Sequence[int], where: str) -> np.ndarray:
    try:
        return array.reshape(shape)
    except ValueError as error:  # numpy refuses extents and ranks that it cannot count
        _refuse(f"{where}: shape {list(shape)} is not possible: {error}")


def _shown(value: Any) -> str:
    """Return a value of the client in a few characters."""
    if value is None:
        return "missing"
    return reprlib.repr(value)


def _refuse(message: str) -> NoReturn:
    raise Refusal("invalid", message)
