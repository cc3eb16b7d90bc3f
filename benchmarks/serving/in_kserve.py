"""KServe's SDK with kuiper in it: ``serving-kserve NAME=FILE... HTTP GRPC``."""

from __future__ import annotations

import logging
import sys
from typing import Any

import kserve

import kuiper


class Network(kserve.Model):
    """A network of kuiper as a model of KServe."""

    def __init__(self, name: str, path: str) -> None:
        super().__init__(name)
        self.model = kuiper.load(path)
        self.ready = True

    def predict(self, payload: Any, headers: Any = None, response_headers: Any = None) -> Any:
        """Answer a request; the server calls this in its event loop."""
        result = self.model(payload.inputs[0].as_numpy())
        output = kserve.InferOutput(self.model.outputs[0].name, list(result.shape), "FP32")
        output.set_data_from_numpy(result, binary_data=True)
        return kserve.InferResponse(payload.id or "0", self.name, [output])


def main() -> None:
    """Serve until a signal."""
    *models, web, rpc = sys.argv[1:]
    logging.getLogger("kserve.trace").setLevel(logging.WARNING)
    server = kserve.ModelServer(
        http_port=int(web.split(":")[1]), grpc_port=int(rpc.split(":")[1]), enable_grpc=True,
        access_log_format=None, max_threads=2,
    )  # fmt: skip
    server.start([Network(*model.split("=", 1)) for model in models])
