"""Random and damaged requests: decoded or refused, never another exception."""

from __future__ import annotations

import contextlib
import json

import numpy as np
import pytest

from kuiper.serving.failures import Refusal
from kuiper.serving.protocol import DATATYPES, InferRequest, decode_request, encode_response

pytest.importorskip("hypothesis")

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=12,
)
KEYS = st.sampled_from(["name", "shape", "datatype", "data", "parameters"])
TENSOR = st.dictionaries(KEYS, JSON) | st.fixed_dictionaries(
    {
        "name": st.just("x") | JSON,
        "shape": st.lists(st.integers(-1, 5) | st.integers(), max_size=4) | JSON,
        "datatype": st.sampled_from(list(DATATYPES)) | JSON,
    },
    optional={
        "data": JSON,
        "parameters": st.fixed_dictionaries({"binary_data_size": st.integers(-2, 40) | JSON})
        | JSON,
    },
)
NUMERIC = [name for name in DATATYPES if name != "BYTES"]


@settings(max_examples=400, deadline=None)
@given(
    st.lists(TENSOR, max_size=3),
    st.dictionaries(st.sampled_from(["id", "outputs", "parameters"]), JSON),
    st.binary(max_size=40),
    st.integers(-3, 3),
)
def test_any_request_is_decoded_or_refused(tensors, more, data, shift):
    head = json.dumps({"inputs": tensors, **more}).encode()
    with contextlib.suppress(Refusal):
        decode_request(head + data, len(head) + shift)
    with contextlib.suppress(Refusal):
        decode_request(head)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200), st.none() | st.integers(-1, 210))
def test_any_bytes_are_refused(data, head):
    with contextlib.suppress(Refusal):
        decode_request(data, head)


@settings(max_examples=200, deadline=None)
@given(st.data(), st.booleans())
def test_what_is_encoded_is_decoded(data, binary):
    """A response has the form of a request's inputs, so it can be read back."""
    names = data.draw(st.lists(st.sampled_from(NUMERIC), min_size=1, max_size=3))
    values = [
        data.draw(
            arrays.arrays(DATATYPES[n], arrays.array_shapes(min_dims=0, max_dims=3, min_side=0))
        )
        for n in names
    ]
    outputs = [(f"t{k}", value, binary) for k, value in enumerate(values)]
    try:
        document, raw = encode_response("m", "1", InferRequest({}), outputs)
    except Refusal:  # JSON has no NaN, no infinity and no FP16
        assert not binary
        return
    described = json.loads(document)
    head = json.dumps({"inputs": described["outputs"]}).encode()
    found = decode_request(head + b"".join(raw), len(head)).inputs
    for (name, value, _), got in zip(outputs, found.values(), strict=True):
        assert got.dtype == value.dtype, name
        assert got.shape == value.shape
        if binary or value.dtype.kind != "f":
            assert got.tobytes() == value.tobytes()
        else:
            np.testing.assert_array_equal(got, value)
