"""Spans of OpenTelemetry, of a real server with a tracer that writes to a file."""

from __future__ import annotations

import json

import pytest

from ..support.textgraph import values
from .conftest import has_packages
from .process import ask, serving
from .test_http import request_of

pytest.importorskip("opentelemetry.sdk")
if not has_packages():
    pytest.skip("needs the extra `serve`", allow_module_level=True)

# As an operator would do it, with a collector instead of a file.
PLUGIN = """
import os
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor

out = open(os.environ["SPANS"], "a", buffering=1)
exporter = ConsoleSpanExporter(out=out, formatter=lambda span: span.to_json(indent=None) + "\\n")
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(exporter))
trace.set_tracer_provider(provider)
"""
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


def test_each_inference_is_a_span_of_its_caller(repository, tmp_path):
    import tritonclient.grpc as grpc_client

    plugin, spans = tmp_path / "plugin.py", tmp_path / "spans"
    plugin.write_text(PLUGIN)
    arguments = ("--plugin", plugin, "--grpc", "127.0.0.1:0", "--poll", "0", "--batch", "1")
    context = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
    x = values(1, 3, 16, 16)
    with serving(repository, *arguments, environment={"SPANS": str(spans)}) as server:
        body, headers = request_of(x)
        path = "/v2/models/net/infer"
        assert ask(server.http, "POST", path, body, headers | context)[0] == 200
        assert ask(server.http, "POST", path, b"{", context)[0] == 400
        ask(server.http, "GET", "/v2/models/net", headers=context)
        with grpc_client.InferenceServerClient(server.grpc) as client:
            given = grpc_client.InferInput("x", list(x.shape), "FP32")
            given.set_data_from_numpy(x)
            client.infer("net", [given], headers=context)
        assert server.stop() == 0
    found = [json.loads(line) for line in spans.read_text().splitlines()]
    assert [span["name"] for span in found] == ["infer net"] * 3
    assert [span["status"]["status_code"] for span in found] == ["UNSET", "ERROR", "UNSET"]
    for span in found:
        assert span["kind"] == "SpanKind.SERVER"
        assert span["attributes"]["kuiper.model"] == "net"
        assert span["context"]["trace_id"] == f"0x{TRACE}"
        assert span["parent_id"] == f"0x{PARENT}"
