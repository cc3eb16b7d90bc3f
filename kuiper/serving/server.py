"""The process of ``kuiper serve``: HTTP by uvicorn and gRPC on one event loop, until a signal."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import ipaddress
import logging
import signal
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from kuiper.errors import InputError, MissingPackageError
from kuiper.serving import memory
from kuiper.serving.http import Application
from kuiper.serving.repository import Repository
from kuiper.serving.served import Options
from kuiper.serving.service import Limits, Service

__all__ = [
    "Address",
    "Settings",
    "check_packages",
    "listen",
    "load_models",
    "run",
    "warn_if_exposed",
    "within_memory",
]

log = logging.getLogger("kuiper.serving")

PACKAGES = 'pip install "kuiper-runtime[serve]"'


@dataclass(frozen=True)
class Address:
    """Where a server listens; port 0 is any free one."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Address:
        """Read ``HOST:PORT`` or ``PORT``; brackets around an IPv6 address."""
        host, _, port = text.rpartition(":")
        if not port.isdecimal() or int(port) > 65535:
            raise InputError(f"address {text!r}, expected HOST:PORT such as 127.0.0.1:8000")
        return cls(host.strip("[]") or "127.0.0.1", int(port))

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @property
    def is_local(self) -> bool:
        """Whether only this machine reaches it."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"


@dataclass(frozen=True)
class Settings:
    """The options of a server process.

    Attributes
    ----------
    models : list of str
        As for :class:`.repository.Repository`.
    http, grpc : Address or None
    runners : int or None
        Runs at a time; by default one per thread.
    drain : float
        Seconds to answer what is in the server after SIGTERM.
    poll : float
        Seconds between looks at the files of models; 0 for none.
    certificate, key : Path or None
        PEM files for TLS.
    log_requests : bool
    max_memory : int or None
        Bytes of the process.
    changes : Path or None
        The folder in which several processes share what clients load and unload.
    """

    models: list[str]
    options: Options
    limits: Limits
    http: Address | None = field(default_factory=lambda: Address("127.0.0.1", 8000))
    grpc: Address | None = None
    runners: int | None = None
    drain: float = 30.0
    poll: float = 2.0
    certificate: Path | None = None
    key: Path | None = None
    log_requests: bool = False
    max_memory: int | None = None
    changes: Path | None = None


def listen(address: Address) -> socket.socket:
    """Return a socket that listens.

    Raises
    ------
    OSError
        If the address cannot be bound; the message names it.
    """
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((address.host, address.port))
        made.listen(2048)
    except OSError as error:
        made.close()
        raise OSError(error.errno, f"cannot listen: {error.strerror}", str(address)) from error
    made.setblocking(False)
    return made


def within_memory(settings: Settings, max_memory: int | None) -> Settings:
    """Return settings for a process of limited memory; None is no limit."""
    limits = replace(settings.limits, max_bytes=memory.input_bytes(max_memory))
    options = replace(settings.options, max_memory=max_memory)
    return replace(settings, limits=limits, options=options, max_memory=max_memory)


def load_models(settings: Settings) -> Repository:
    """Load the models of a server, and log each.

    Raises
    ------
    KuiperError, OSError
        If one does not load, or they do not fit into the memory.
    """
    repository = Repository(settings.models, settings.options, settings.max_memory)
    for event in repository.load_all():
        served = repository.get(event.name, event.version)
        log.info(
            "model '%s' version %s loaded in %.2f s, batches of up to %d rows",
            event.name, event.version, event.seconds, served.queue.sizes[-1],
        )  # fmt: skip
    if settings.max_memory is not None:
        models = repository.loaded()
        runners = settings.runners or settings.options.threads
        repository.limit_runs(memory.run_bytes(settings.max_memory, runners, len(models)))
    return repository


def check_packages(settings: Settings) -> None:
    """Raise an error if a package is missing, before models are loaded."""
    _uvicorn()
    missing = [
        package
        for package, name in (("prometheus-client", "prometheus_client"), ("grpcio", "grpc"),
                              ("protobuf", "google.protobuf"))
        if (settings.grpc is not None or name == "prometheus_client") and not _is_installed(name)
    ]  # fmt: skip
    if missing:
        raise MissingPackageError(f"kuiper serve needs {', '.join(missing)}: {PACKAGES}")


def _is_installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # its parent
        return False


def warn_if_exposed(settings: Settings) -> None:
    """Log a warning if other machines reach the server without a token."""
    addresses = [a for a in (settings.http, settings.grpc) if a is not None]
    if settings.limits.token is None and not all(a.is_local for a in addresses):
        log.warning("other machines reach this server without a token; see --token-file")


def run(
    settings: Settings,
    repository: Repository,
    http: socket.socket | None = None,
    shares_port: bool = False,
    ready: Callable[[dict[str, str]], None] | None = None,
) -> int:
    """Serve until SIGTERM or SIGINT; return the exit code.

    Parameters
    ----------
    settings : Settings
    repository : Repository
        With its models loaded.
    http : socket, optional
        That listens; by default a new one.
    shares_port : bool
        Whether other processes serve gRPC on the same port.
    ready : callable, optional
        Called with the addresses once the server answers.

    Raises
    ------
    MissingPackageError
        If uvicorn, grpcio or protobuf is not installed.
    OSError
        If an address cannot be bound.
    """
    uvicorn = _uvicorn()
    main = _serve(settings, repository, http, shares_port, ready)
    config = uvicorn.Config("", loop="auto", log_config=None)
    loop = (config.get_loop_factory() or asyncio.new_event_loop)()
    try:
        return loop.run_until_complete(main)
    finally:
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


def _uvicorn() -> Any:
    try:
        import uvicorn
    except ImportError as error:
        raise MissingPackageError(f"kuiper serve needs uvicorn: {PACKAGES}") from error
    return uvicorn


async def _serve(
    settings: Settings,
    repository: Repository,
    http: socket.socket | None,
    shares_port: bool,
    ready: Callable[[dict[str, str]], None] | None,
) -> int:
    from kuiper.serving.metrics import Metrics

    service = Service(repository, settings.options, settings.limits, settings.runners, Metrics())
    app = Application(service)
    app.log_requests = settings.log_requests
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    addresses, grpc_server, web = {}, None, None
    tasks: list[asyncio.Task[Any]] = []
    try:
        following = await _follow_changes(service, settings)
        if settings.grpc is not None:
            grpc_server = _grpc_server(service, settings, shares_port)
            await grpc_server.start()
            addresses["grpc"] = str(replace(settings.grpc, port=grpc_server.port))
        made = http
        if made is None and settings.http is not None:
            made = listen(settings.http)
        if made is not None:
            scheme = "https" if settings.certificate else "http"
            host, port = made.getsockname()[:2]
            addresses["http"] = f"{scheme}://{Address(host, port)}"
            web = _web_server(app, settings)
            tasks.append(loop.create_task(web.serve([made])))
            while not web.started and not tasks[0].done():
                await asyncio.sleep(0.005)
        if settings.poll:
            tasks.append(loop.create_task(service.watch(settings.poll)))
        tasks += [loop.create_task(one) for one in (_measure(service), *following)]
        log.info("ready: %s", ", ".join(addresses.values()), extra=addresses)
        if ready is not None:
            ready(addresses)
        await stop.wait()
        return await _shut_down(service, settings, web, grpc_server, tasks[:1] if web else [])
    finally:
        for task in tasks:
            task.cancel()
        service.close()


def _grpc_server(service: Service, settings: Settings, shares_port: bool) -> Any:
    from kuiper.serving.grpc import GrpcServer

    tls = None
    if settings.certificate is not None and settings.key is not None:
        tls = (settings.key.read_bytes(), settings.certificate.read_bytes())
    return GrpcServer(service, str(settings.grpc), tls, shares_port)


def _web_server(app: Application, settings: Settings) -> Any:
    uvicorn = _uvicorn()

    @contextlib.contextmanager
    def no_signals() -> Iterator[None]:
        yield

    web = uvicorn.Server(
        uvicorn.Config(
            app,
            lifespan="off",
            ws="none",
            log_config=None,
            access_log=False,
            server_header=False,
            date_header=False,
            timeout_keep_alive=75,
            timeout_graceful_shutdown=max(1, round(settings.drain)),
            limit_concurrency=4096,
            ssl_certfile=settings.certificate,
            ssl_keyfile=settings.key,
        )
    )
    web.capture_signals = no_signals  # the process has handlers of its own
    return web


async def _follow_changes(service: Service, settings: Settings) -> list[Any]:
    """Make the models those of the other processes; return what keeps them so."""
    if settings.changes is None:
        return []
    from kuiper.serving.changes import Changes

    service.changes = Changes(settings.changes, service.apply)
    await service.changes.catch_up()
    return [service.changes.follow()]


async def _measure(service: Service) -> None:
    """Keep the gauges of this process current, which another process may report."""
    while True:
        service.metrics.update(service)  # type: ignore[union-attr]
        await asyncio.sleep(1.0)


async def _shut_down(
    service: Service, settings: Settings, web: Any, grpc_server: Any, web_task: list[Any]
) -> int:
    """Answer what is in the server, refuse the rest; return the exit code."""
    begin = time.monotonic()
    log.info("shutting down: %d requests wait", service.scheduler.n_waiting)
    service.is_draining = True
    if web is not None:
        web.should_exit = True
    stopping = [grpc_server.stop(settings.drain)] if grpc_server is not None else []
    drained, *_ = await asyncio.gather(service.drain(settings.drain), *stopping, *web_task)
    seconds = time.monotonic() - begin
    if drained:
        log.info("all requests were answered, in %.2f s", seconds)
    return 0 if drained else 1
