"""The Open Inference Protocol over HTTP, as an ASGI application.

::

    GET  /v2/health/live  /v2/health/ready  /v2  /metrics  /
    GET  /v2/models/NAME[/versions/V][/ready|/config|/stats]    /v2/models/stats
    POST /v2/models/NAME[/versions/V]/infer
    POST /v2/models/NAME[/versions/V]/classify|detect|segment   a JPEG or PNG as the body
    POST /v2/repository/index   /v2/repository/models/NAME/load|unload

It needs no web framework; any ASGI server runs it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import time
import zlib
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import parse_qs

import numpy as np

from kuiper.serving import tracing
from kuiper.serving.failures import Refusal, as_refusal
from kuiper.serving.protocol import decode_request, encode_response
from kuiper.serving.service import Outcome, Service

__all__ = ["Application"]

log = logging.getLogger("kuiper.serving.http")

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

# JSON of more bytes is converted in a thread, so that the event loop goes on.
_SMALL = 1 << 16
_ID = re.compile(r"[\w.:/+=@-]{1,128}")
TASKS = ("classify", "detect", "segment")


class _Gone(Exception):
    """The client has hung up."""


class Request:
    """The head of a request, and how to read its body.

    Attributes
    ----------
    method : str
    path : list of str
        The parts of the path after the root.
    headers : dict of bytes to bytes
        Names in lower case.
    id : str
        Of the header ``x-request-id``, or new.
    """

    def __init__(self, scope: Scope, receive: Receive) -> None:
        self.method: str = scope["method"]
        path: str = scope["path"]
        root: str = scope.get("root_path", "")
        if root and path.startswith(root):
            path = path[len(root) :]
        self.path = [part for part in path.split("/") if part]
        self.query: bytes = scope.get("query_string", b"")
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        given = self.headers.get(b"x-request-id", b"").decode("latin-1")
        self.id = given if _ID.fullmatch(given) else os.urandom(8).hex()
        self._receive = receive
        self.begin = time.monotonic()
        self.model = ""
        self.outcome: Outcome | None = None

    def header(self, name: bytes) -> str | None:
        """Return a header, or None."""
        value = self.headers.get(name)
        return None if value is None else value.decode("latin-1")

    def number(self, name: bytes) -> int | None:
        """Return a header that is a number, or None."""
        text = self.header(name)
        if text is None:
            return None
        if not text.isdecimal() or len(text) > 18:
            raise Refusal("invalid", f"the header {name.decode()} is {text!r}, expected a number")
        return int(text)

    async def body(self, service: Service, head: int = 0) -> memoryview:
        """Read the body.

        Parameters
        ----------
        service : Service
            With its limits.
        head : int
            Bytes before the tensors, which then start at a multiple of 64 bytes in memory.

        Raises
        ------
        Refusal
            If it is too large, too slow, or ends early.
        """
        limits = service.limits
        length = self.number(b"content-length")
        if length is not None and length > limits.max_body:
            raise Refusal("too large", f"the body has {length} bytes, up to {limits.max_body}")
        reserved = length if length is not None else 0
        if service.received + service.scheduler.n_bytes + reserved > limits.max_bytes:
            raise Refusal("busy", "the requests in the server fill its memory for inputs", 1.0)
        service.received += reserved
        task, loop, late = asyncio.current_task(), asyncio.get_running_loop(), []

        def expire() -> None:
            late.append(True)
            if task is not None:
                task.cancel()

        timer = loop.call_later(limits.read_timeout, expire)
        try:
            if length is None:
                return await self._read_chunks(limits.max_body)
            return await self._read_known(length, head)
        except asyncio.CancelledError:
            if not late:
                raise
            raise Refusal(
                "slow", f"the body did not arrive within {limits.read_timeout:g} seconds"
            ) from None
        finally:
            timer.cancel()
            service.received -= reserved

    async def _read_known(self, length: int, head: int) -> memoryview:
        space = np.empty(length + 64, np.uint8)
        start = -(space.ctypes.data + head) % 64
        view = memoryview(space.data)[start : start + length]
        end, more = 0, True
        while more:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise _Gone
            chunk = message.get("body", b"")
            if end + len(chunk) > length:
                raise Refusal("invalid", f"the body has more than {length} bytes")
            view[end : end + len(chunk)] = chunk
            end += len(chunk)
            more = message.get("more_body", False)
        if end < length:
            raise Refusal("invalid", f"the body ended after {end} of {length} bytes")
        return view

    async def _read_chunks(self, limit: int) -> memoryview:
        chunks, size, more = [], 0, True
        while more:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise _Gone
            chunks.append(message.get("body", b""))
            size += len(chunks[-1])
            if size > limit:
                raise Refusal("too large", f"the body has more than {limit} bytes")
            more = message.get("more_body", False)
        return memoryview(b"".join(chunks))

    async def until_disconnect(self) -> None:
        """Return when the client has hung up."""
        while (await self._receive())["type"] != "http.disconnect":
            pass


class Application:
    """The ASGI application of a server.

    Parameters
    ----------
    service : Service
    start : callable, optional
        Called once before the first request, in a thread: loads the models.
    """

    def __init__(self, service: Service, start: Callable[[], None] | None = None) -> None:
        self.service = service
        self._start = start
        self._starting = asyncio.Lock() if start is not None else None
        self.log_requests = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1000})
            return
        await self._ensure_started()
        request = Request(scope, receive)
        try:
            with tracing.span(request.headers, request.path):
                await self._answer(request, send)
        except _Gone:
            self._note(request, 499)
        except Exception as error:
            await self._refuse(request, send, error)

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                try:
                    await self._ensure_started()
                except Exception as error:
                    await send({"type": "lifespan.startup.failed", "message": str(error)})
                    return
                await send({"type": "lifespan.startup.complete"})
            else:
                await self.service.drain(self.service.limits.read_timeout)
                self.service.close()
                await send({"type": "lifespan.shutdown.complete"})
                return

    async def _ensure_started(self) -> None:
        if self._starting is None:
            return
        async with self._starting:
            if self._start is not None:
                await self.service.in_thread(self._start)
                self._start = self._starting = None

    # -- answers ---------------------------------------------------------------------------

    async def _answer(self, request: Request, send: Send) -> None:
        path, service = request.path, self.service
        if path[:2] == ["v2", "health"] and len(path) == 3:
            _expect(request, "GET")
            if path[2] not in ("live", "ready"):
                raise _no_such(request)
            good = path[2] == "live" or service.is_ready
            await self._send(request, send, 200 if good else 503, b"", b"text/plain")
            return
        if not path:
            _expect(request, "GET")
            await self._page(request, send)
            return
        service.authorize(request.header(b"authorization"))
        if path == ["metrics"]:
            _expect(request, "GET")
            await self._metrics(request, send)
        elif path == ["v2"]:
            _expect(request, "GET")
            await self._json(request, send, service.metadata())
        elif path[:2] == ["v2", "models"] and len(path) > 2:
            await self._model(request, send, path[2:])
        elif path[:2] == ["v2", "repository"]:
            await self._repository(request, send, path[2:])
        else:
            raise _no_such(request)

    async def _model(self, request: Request, send: Send, path: list[str]) -> None:
        name, version, rest = path[0], "", path[1:]
        if rest[:1] == ["versions"] and len(rest) > 1:
            version, rest = rest[1], rest[2:]
        action = rest[0] if rest else ""
        if len(rest) > 1 or (name == "stats" and rest):
            raise _no_such(request)
        request.model = name
        if action in ("infer", *TASKS):
            _expect(request, "POST")
            if action == "infer":
                await self._infer(request, send, name, version)
            else:
                await self._picture(request, send, name, version, action)
            return
        _expect(request, "GET")
        if name == "stats" and not action:
            await self._json(request, send, self.service.statistics())
            return
        if action == "stats":
            await self._json(request, send, self.service.statistics(name, version))
            return
        model = self.service.repository.get(name, version)
        if action == "ready":
            await self._send(request, send, 200, b"", b"text/plain")
        elif action == "config":
            await self._json(request, send, model.config())
        elif not action:
            versions = self.service.repository.versions(name)
            await self._json(request, send, model.metadata([version] if version else versions))
        else:
            raise _no_such(request)

    async def _infer(self, request: Request, send: Send, name: str, version: str) -> None:
        service = self.service
        model = service.repository.get(name, version)
        try:
            if service.is_draining:
                raise Refusal("unavailable", "the server shuts down", 1.0)
            head = request.number(b"inference-header-content-length")
            body = await request.body(service, head or 0)
            if request.headers.get(b"content-encoding"):
                body = await service.in_thread(
                    _inflated, body, request.header(b"content-encoding"), service.limits.max_body
                )
            if (len(body) if head is None else head) > _SMALL:
                decoded = await service.in_thread(decode_request, body, head)
            else:
                decoded = decode_request(body, head)
            del body
            if decoded.has_pictures:
                from kuiper.serving.pictures import pictures_of

                decoded = await pictures_of(service).decoded(model, decoded)
            outcome = await self._unless_gone(request, service.infer(model, decoded))
            outputs = outcome.outputs
            arguments = (model.name, model.version, decoded, outputs)
            if sum(array.size for _, array, binary in outputs if not binary) > _SMALL // 8:
                document, data = await service.in_thread(encode_response, *arguments)
            else:
                document, data = encode_response(*arguments)
        except Exception as error:
            seconds = time.monotonic() - request.begin
            service.count(model, None, seconds, as_refusal(error).reason)
            raise
        request.outcome = outcome
        service.count(model, outcome.job, time.monotonic() - request.begin)
        if not data:
            await self._send(request, send, 200, document, b"application/json")
            return
        extra = [(b"inference-header-content-length", str(len(document)).encode())]
        await self._send(request, send, 200, document, b"application/octet-stream", extra, data)

    async def _unless_gone(self, request: Request, work: Any) -> Any:
        """Await the outcome of a request; cancel it if the client hangs up while it waits."""
        loop = asyncio.get_running_loop()
        task = asyncio.current_task()
        watcher: list[asyncio.Task[None]] = []
        gone: list[bool] = []

        async def watch() -> None:
            await request.until_disconnect()
            gone.append(True)
            if task is not None:
                task.cancel()

        # A request that is answered at once is not watched, which would cost as much as decoding.
        timer = loop.call_later(0.05, lambda: watcher.append(loop.create_task(watch())))
        try:
            return await work
        except asyncio.CancelledError:
            if gone:
                raise _Gone from None
            raise
        finally:
            timer.cancel()
            for one in watcher:
                one.cancel()

    async def _picture(
        self, request: Request, send: Send, name: str, version: str, task: str
    ) -> None:
        from kuiper.serving.pictures import pictures_of

        model = self.service.repository.get(name, version)
        try:
            body = await request.body(self.service)
            query = {key: values[-1] for key, values in parse_qs(request.query.decode()).items()}
            kind, content = await pictures_of(self.service).answer(model, task, bytes(body), query)
        except Exception as error:
            seconds = time.monotonic() - request.begin
            self.service.count(model, None, seconds, as_refusal(error).reason)
            raise
        self.service.count(model, None, time.monotonic() - request.begin)
        await self._send(request, send, 200, content, kind)

    async def _repository(self, request: Request, send: Send, path: list[str]) -> None:
        _expect(request, "POST")
        if path == ["index"]:
            await self._json(request, send, self.service.repository.index())
        elif len(path) == 3 and path[0] == "models" and path[2] in ("load", "unload"):
            body = await request.body(self.service)
            if path[2] == "load" and b'"config"' in bytes(body):
                raise Refusal("unsupported", "models are configured by files, not by requests")
            await self.service.change(path[2], path[1])
            await self._send(request, send, 200, b"{}", b"application/json")
        else:
            raise _no_such(request)

    async def _metrics(self, request: Request, send: Send) -> None:
        if self.service.metrics is None:
            raise Refusal("unsupported", "no metrics: prometheus-client is not installed")
        content, kind = self.service.metrics.exposition(self.service)
        await self._send(request, send, 200, content, kind.encode())

    async def _page(self, request: Request, send: Send) -> None:
        from kuiper.serving.page import page

        policy = b"default-src 'self' 'unsafe-inline'; img-src 'self' blob: data:"
        extra = [(b"content-security-policy", policy)]
        await self._send(request, send, 200, page(), b"text/html; charset=utf-8", extra)

    async def _json(self, request: Request, send: Send, document: Any) -> None:
        await self._send(request, send, 200, json.dumps(document).encode(), b"application/json")

    async def _send(
        self,
        request: Request,
        send: Send,
        status: int,
        content: bytes,
        kind: bytes,
        extra: list[tuple[bytes, bytes]] | None = None,
        data: list[Any] | None = None,
    ) -> None:
        """Send a response: the content, then the data of tensors."""
        length = len(content) + sum(map(len, data or ()))
        headers = [
            (b"content-type", kind),
            (b"content-length", str(length).encode()),
            (b"x-request-id", request.id.encode()),
            *(extra or ()),
        ]
        if self.service.is_draining:
            headers.append((b"connection", b"close"))
        await send({"type": "http.response.start", "status": status, "headers": headers})
        if length <= _SMALL:
            whole = b"".join((content, *data)) if data else content
            await send({"type": "http.response.body", "body": whole})
        else:  # a client that does not read must not keep the response for ever
            await asyncio.wait_for(
                _send_parts(send, [content, *(data or ())]), self.service.limits.read_timeout
            )
        self._note(request, status)

    async def _refuse(self, request: Request, send: Send, error: Exception) -> None:
        refusal = as_refusal(error)
        if refusal.reason == "internal" and not isinstance(error, Refusal):
            log.exception("request %s failed", request.id, exc_info=error)
        message = self.service.repository.without_paths(str(refusal))
        extra = []
        if refusal.retry_after is not None:
            extra.append((b"retry-after", str(max(1, round(refusal.retry_after))).encode()))
        if refusal.reason == "unauthenticated":
            extra.append((b"www-authenticate", b"Bearer"))
        if refusal.reason == "slow":
            extra.append((b"connection", b"close"))
        body = json.dumps({"error": message}).encode()
        try:
            await self._send(request, send, refusal.status.http, body, b"application/json", extra)
        except (OSError, RuntimeError, asyncio.TimeoutError):
            self._note(request, 499)  # the response had begun, or the client is gone

    def _note(self, request: Request, status: int) -> None:
        """Count a request that is over, and log it."""
        seconds = time.monotonic() - request.begin
        if self.service.metrics is not None and request.model:
            self.service.metrics.observe_request(request.model, "http", status, seconds)
        if self.log_requests:
            more: dict[str, Any] = {
                "request_id": request.id, "method": request.method,
                "path": "/" + "/".join(request.path), "status": status,
                "ms": round(seconds * 1e3, 3),
            }  # fmt: skip
            if request.outcome is not None:
                job = request.outcome.job
                more["batch"] = job.batch
                more["queue_ms"] = round((job.started - job.queued) * 1e3, 3)
                more["run_ms"] = round((job.finished - job.started) * 1e3, 3)
            log.info("%s %s %d", request.method, more["path"], status, extra=more)


async def _send_parts(send: Send, parts: list[Any]) -> None:
    for number, part in enumerate(parts):
        more = number + 1 < len(parts)
        await send({"type": "http.response.body", "body": part, "more_body": more})


def _inflated(body: memoryview, encoding: str | None, limit: int) -> memoryview:
    """Return the content of a compressed body."""
    windows = {"gzip": 31, "deflate": 15}
    if encoding not in windows:
        raise Refusal("media type", f"content-encoding {encoding}, expected gzip or deflate")
    engine = zlib.decompressobj(windows[encoding])
    try:
        content = engine.decompress(bytes(body), limit + 1)
    except zlib.error as error:
        raise Refusal("invalid", f"the body is not valid {encoding}: {error}") from None
    if len(content) > limit:
        raise Refusal("too large", f"the body inflates to more than {limit} bytes")
    if not engine.eof:
        raise Refusal("invalid", f"the {encoding} body ends early")
    return memoryview(content)


def _expect(request: Request, method: str) -> None:
    if request.method != method and not (method == "GET" and request.method == "HEAD"):
        raise Refusal("method", f"{request.method} /{'/'.join(request.path)}: expected {method}")


def _no_such(request: Request) -> Refusal:
    return Refusal("unknown", f"no such path: /{'/'.join(request.path)}")
