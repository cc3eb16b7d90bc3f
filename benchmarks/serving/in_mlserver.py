"""MLServer with kuiper in it: ``serving-mlserver NAME=FILE... HTTP GRPC``."""

from __future__ import annotations

import asyncio
import sys
from concurrent.futures import ThreadPoolExecutor

from mlserver import MLModel, MLServer, ModelSettings, Settings
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceRequest, InferenceResponse

import kuiper

POOL = ThreadPoolExecutor(2)


class Network(MLModel):
    """A network of kuiper as a model of MLServer."""

    async def load(self) -> bool:
        """Load the file that the settings name."""
        self.model = kuiper.load(self.settings.parameters.uri)
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        """Run in a thread, so that the event loop goes on."""
        x = NumpyCodec.decode_input(payload.inputs[0])
        result = await asyncio.get_running_loop().run_in_executor(POOL, self.model, x)
        output = NumpyCodec.encode_output(self.model.outputs[0].name, result)
        return InferenceResponse(model_name=self.name, outputs=[output])


async def serve(models: list[str], web: str, rpc: str) -> None:
    """Load the models and serve them."""
    # In this process: others would receive each tensor through a pipe.
    settings = Settings(
        host="127.0.0.1", http_port=int(web.split(":")[1]), grpc_port=int(rpc.split(":")[1]),
        metrics_port=0, metrics_endpoint=None, parallel_workers=0, debug=False,
        grpc_max_message_length=64 << 20, use_structured_logging=False,
    )  # fmt: skip
    server = MLServer(settings)
    found = [model.split("=", 1) for model in models]
    await server.start(
        [ModelSettings(name=name, implementation=Network, parameters={"uri": uri})
         for name, uri in found]
    )  # fmt: skip


def main() -> None:
    """Serve until a signal."""
    *models, web, rpc = sys.argv[1:]
    asyncio.run(serve(models, web, rpc))
