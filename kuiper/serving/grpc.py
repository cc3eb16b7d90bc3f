"""The Open Inference Protocol over gRPC, with the extensions that tritonclient uses."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import grpc
import numpy as np

from kuiper.serving import tracing
from kuiper.serving.failures import Refusal, as_refusal
from kuiper.serving.messages import SERVICE, messages
from kuiper.serving.protocol import (
    InferRequest,
    WantedOutput,
    datatype_of,
    dtype_of,
    from_bytes,
    to_bytes,
)
from kuiper.serving.service import Outcome, Service

__all__ = ["GrpcServer", "decode_message", "encode_message"]

log = logging.getLogger("kuiper.serving.grpc")

# The field of typed contents for each datatype; FP16 has none.
_CONTENTS = {
    "BOOL": "bool_contents", "INT8": "int_contents", "INT16": "int_contents",
    "INT32": "int_contents", "INT64": "int64_contents", "UINT8": "uint_contents",
    "UINT16": "uint_contents", "UINT32": "uint_contents", "UINT64": "uint64_contents",
    "FP32": "fp32_contents", "FP64": "fp64_contents", "BYTES": "bytes_contents",
}  # fmt: skip


def decode_message(message: Any) -> InferRequest:
    """Return a ``ModelInferRequest`` as a request.

    Raises
    ------
    Refusal
        If it is invalid; the message names the tensor.
    """
    raw = message.raw_input_contents
    if raw and len(raw) != len(message.inputs):
        raise Refusal(
            "invalid", f"{len(raw)} raw_input_contents, expected {len(message.inputs)} or none"
        )
    parameters = _parameters(message.parameters)
    if parameters.get("sequence_id"):
        raise Refusal("unsupported", "sequences are not supported: each request stands alone")
    inputs: dict[str, np.ndarray] = {}
    for number, tensor in enumerate(message.inputs):
        where = f"input '{tensor.name}'"
        shape = list(tensor.shape)
        if min(shape, default=0) < 0 or len(shape) > 64:
            raise Refusal("invalid", f"{where}: shape {shape[:65]}, expected extents >= 0")
        if "shared_memory_region" in tensor.parameters:
            raise Refusal("unsupported", f"{where}: shared memory is not supported; send the data")
        if tensor.name in inputs:
            raise Refusal("invalid", f"{where} is given twice")
        data = raw[number] if raw else _typed(tensor, where)
        inputs[tensor.name] = from_bytes(data, tensor.datatype, shape, where)
    outputs = None
    if message.outputs:
        outputs = []
        for output in message.outputs:
            if output.parameters.keys() & {"classification", "shared_memory_region"}:
                raise Refusal(
                    "unsupported",
                    f"output '{output.name}': classification and shared memory are not supported",
                )
            outputs.append(WantedOutput(output.name, True))
    return InferRequest(inputs, outputs, message.id, parameters, True)


def _typed(tensor: Any, where: str) -> Any:
    """Return the bytes of a tensor whose values are in a field of its type."""
    dtype = dtype_of(tensor.datatype, where)
    field = _CONTENTS.get(tensor.datatype)
    if field is None:
        raise Refusal("invalid", f"{where}: {tensor.datatype} is sent in raw_input_contents")
    values = getattr(tensor.contents, field)
    if tensor.datatype == "BYTES":
        array = np.empty(len(values), np.object_)
        array[:] = list(values)
        return to_bytes(array)
    found = np.array(values)
    if dtype.kind in "iu" and found.size:
        info = np.iinfo(dtype)
        if int(found.min()) < info.min or int(found.max()) > info.max:
            raise Refusal("invalid", f"{where}: a value is outside of {tensor.datatype}")
    return to_bytes(found.astype(dtype))


def _parameters(given: Mapping[str, Any]) -> dict[str, Any]:
    found = {}
    for key, value in given.items():
        field = value.WhichOneof("choice")
        found[key] = None if field is None else getattr(value, field)
    return found


def encode_message(outcome: Outcome, request: InferRequest) -> Any:
    """Return the ``ModelInferResponse`` to a request."""
    response = messages().ModelInferResponse(
        model_name=outcome.model.name, model_version=outcome.model.version, id=request.id
    )
    for name, array, _ in outcome.outputs:
        response.outputs.add(name=name, datatype=datatype_of(array.dtype), shape=array.shape)
        response.raw_output_contents.append(bytes(to_bytes(array)))
    return response


class GrpcServer:
    """The gRPC service of a server, on the event loop that is running.

    Parameters
    ----------
    service : Service
    address : str
        ``host:port``.
    tls : tuple of bytes, optional
        The private key and the certificate chain, as PEM.
    shares_port : bool
        Whether other processes listen on the same port.

    Attributes
    ----------
    port : int
        The port that is bound.

    Raises
    ------
    OSError
        If the address cannot be bound.
    """

    def __init__(
        self,
        service: Service,
        address: str,
        tls: tuple[bytes, bytes] | None = None,
        shares_port: bool = False,
    ) -> None:
        self._service, self._n_open = service, 0
        limits = service.limits
        self._server = grpc.aio.server(
            options=[
                # The names and values of a request take more than its data.
                ("grpc.max_receive_message_length", limits.max_body + (1 << 16)),
                ("grpc.max_send_message_length", -1),
                ("grpc.so_reuseport", int(shares_port)),
            ],
            # gRPC reads a message before the scheduler can refuse it.
            maximum_concurrent_rpcs=max(64, 4 * max(1, service.repository.options.max_queue)),
        )
        self._server.add_generic_rpc_handlers((self._handlers(),))
        try:
            if tls is None:
                self.port = self._server.add_insecure_port(address)
            else:
                credentials = grpc.ssl_server_credentials([tls])
                self.port = self._server.add_secure_port(address, credentials)
        except RuntimeError as error:
            raise OSError(98, "cannot listen here: is the port in use?", address) from error
        if not self.port:
            raise OSError(98, "cannot listen here: is the port in use?", address)

    async def start(self) -> None:
        """Begin to serve."""
        await self._server.start()

    async def stop(self, seconds: float) -> None:
        """End: calls in progress are answered, new ones are refused as UNAVAILABLE.

        The service refuses requests before this is called.
        """
        end = time.monotonic() + seconds
        while self._n_open and time.monotonic() < end:
            await asyncio.sleep(0.01)
        # Calls that are on their way are still refused by a handler; a server that stops would
        # cancel them.
        await asyncio.sleep(0.1)
        await self._server.stop(max(0.1, min(1.0, end - time.monotonic())))

    def _handlers(self) -> grpc.GenericRpcHandler:
        kinds = messages()
        calls: dict[str, Callable[[Any], Any]] = {
            "ServerLive": self._live,
            "ServerReady": self._ready,
            "ModelReady": self._model_ready,
            "ServerMetadata": self._server_metadata,
            "ModelMetadata": self._model_metadata,
            "ModelConfig": self._config,
            "ModelStatistics": self._statistics,
            "RepositoryIndex": self._index,
            "RepositoryModelLoad": self._load,
            "RepositoryModelUnload": self._unload,
        }
        handlers = {
            name: grpc.unary_unary_rpc_method_handler(
                self._guarded(method, name),
                request_deserializer=getattr(kinds, f"{name}Request").FromString,
                response_serializer=getattr(kinds, f"{name}Response").SerializeToString,
            )
            for name, method in calls.items()
        }
        handlers["ModelInfer"] = grpc.unary_unary_rpc_method_handler(
            self._infer,
            request_deserializer=kinds.ModelInferRequest.FromString,
            response_serializer=kinds.ModelInferResponse.SerializeToString,
        )
        handlers["ModelStreamInfer"] = grpc.stream_stream_rpc_method_handler(
            self._stream,
            request_deserializer=kinds.ModelInferRequest.FromString,
            response_serializer=kinds.ModelStreamInferResponse.SerializeToString,
        )
        return grpc.method_handlers_generic_handler(SERVICE, handlers)

    # -- inference -------------------------------------------------------------------------

    async def _infer(self, message: Any, context: Any) -> Any:
        begin, status = time.monotonic(), "OK"
        self._n_open += 1
        try:
            metadata = self._authorize(context)
            with tracing.span(metadata, ["v2", "models", message.model_name, "infer"]):
                return await self._answer(message, context.time_remaining())
        except Exception as error:
            refusal = self._as_refusal(error)
            status = refusal.status.grpc
            await _abort(context, refusal)
        finally:
            self._n_open -= 1
            self._note(message.model_name, status, time.monotonic() - begin)

    async def _answer(self, message: Any, left: float | None) -> Any:
        service = self._service
        model = service.repository.get(message.model_name, message.model_version)
        begin = time.monotonic()
        try:
            request = decode_message(message)
            deadline = None if left is None else begin + left
            if request.has_pictures:
                from kuiper.serving.pictures import pictures_of

                request = await pictures_of(service).decoded(model, request)
            outcome = await service.infer(model, request, deadline)
            response = encode_message(outcome, request)
        except Exception as error:
            service.count(model, None, time.monotonic() - begin, as_refusal(error).reason)
            raise
        service.count(model, outcome.job, time.monotonic() - begin)
        return response

    async def _stream(self, requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        """Answer the requests of a stream one after the other; errors do not end it."""
        kinds = messages()
        try:
            self._authorize(context)
        except Refusal as refusal:
            await _abort(context, refusal)
        async for message in requests:
            self._n_open += 1
            try:
                answer = await self._answer(message, context.time_remaining())
                yield kinds.ModelStreamInferResponse(infer_response=answer)
            except Exception as error:
                text = str(self._as_refusal(error))
                empty = kinds.ModelInferResponse(model_name=message.model_name, id=message.id)
                yield kinds.ModelStreamInferResponse(error_message=text, infer_response=empty)
            finally:
                self._n_open -= 1

    # -- other calls -----------------------------------------------------------------------

    def _guarded(self, method: Callable[[Any], Any], name: str) -> Callable[[Any, Any], Any]:
        """Return a handler that turns exceptions into status codes."""

        async def call(message: Any, context: Any) -> Any:
            try:
                if name not in ("ServerLive", "ServerReady"):
                    self._authorize(context)
                return await method(message)
            except Exception as error:
                await _abort(context, self._as_refusal(error))

        return call

    async def _live(self, message: Any) -> Any:
        return messages().ServerLiveResponse(live=True)

    async def _ready(self, message: Any) -> Any:
        return messages().ServerReadyResponse(ready=self._service.is_ready)

    async def _model_ready(self, message: Any) -> Any:
        try:
            self._service.repository.get(message.name, message.version)
        except Refusal:
            return messages().ModelReadyResponse(ready=False)
        return messages().ModelReadyResponse(ready=True)

    async def _server_metadata(self, message: Any) -> Any:
        return messages().ServerMetadataResponse(**self._service.metadata())

    async def _model_metadata(self, message: Any) -> Any:
        repository = self._service.repository
        model = repository.get(message.name, message.version)
        versions = [message.version] if message.version else repository.versions(message.name)
        return messages().ModelMetadataResponse(**model.metadata(versions))

    async def _config(self, message: Any) -> Any:
        model = self._service.repository.get(message.name, message.version)
        return messages().ModelConfigResponse(config=model.config())

    async def _statistics(self, message: Any) -> Any:
        found = self._service.statistics(message.name, message.version)["model_stats"]
        kept = [{key: v for key, v in one.items() if key != "batch_stats"} for one in found]
        return messages().ModelStatisticsResponse(model_stats=kept)

    async def _index(self, message: Any) -> Any:
        found = self._service.repository.index()
        if message.ready:
            found = [model for model in found if model["state"] == "READY"]
        return messages().RepositoryIndexResponse(models=found)

    async def _load(self, message: Any) -> Any:
        if "config" in message.parameters:
            raise Refusal("unsupported", "models are configured by files, not by requests")
        await self._service.change("load", message.model_name)
        return messages().RepositoryModelLoadResponse()

    async def _unload(self, message: Any) -> Any:
        await self._service.change("unload", message.model_name)
        return messages().RepositoryModelUnloadResponse()

    # -- status ----------------------------------------------------------------------------

    def _authorize(self, context: Any) -> dict[str, Any]:
        metadata = dict(context.invocation_metadata() or ())
        self._service.authorize(metadata.get("authorization"))
        return metadata

    def _as_refusal(self, error: Exception) -> Refusal:
        refusal = as_refusal(error)
        if refusal.reason == "internal" and not isinstance(error, Refusal):
            log.error("a call failed", exc_info=error)
        message = self._service.repository.without_paths(str(refusal))
        return Refusal(refusal.reason, message, refusal.retry_after)

    def _note(self, model: str, status: str, seconds: float) -> None:
        if self._service.metrics is not None:
            self._service.metrics.observe_request(model, "grpc", status, seconds)


async def _abort(context: Any, refusal: Refusal) -> None:
    """End a call with the status of a refusal; raises."""
    trailing: tuple[tuple[str, str], ...] = ()
    if refusal.retry_after is not None:
        trailing = (("retry-after", str(max(1, round(refusal.retry_after)))),)
    await context.abort(getattr(grpc.StatusCode, refusal.status.grpc), str(refusal), trailing)
