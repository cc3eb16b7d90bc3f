"""An inference server: the Open Inference Protocol (KServe v2) over HTTP and gRPC.

::

    protocol      requests and responses of HTTP: JSON and bytes
    failures      why a request is refused, and with which status
    scheduler     queues, batches, deadlines; threads that run
    served        a model with its queue; which batch sizes pay
    repository    names and versions on disk: load, reload, unload
    service       what HTTP and gRPC share
    http          the ASGI application
    pictures page classify, detect, segment; the page at /
    messages grpc the protobuf messages, and the gRPC service
    metrics logs tracing   Prometheus, log lines, OpenTelemetry
    server supervisor      the process of `kuiper serve`; several processes
    changes                what clients load and unload, in all of them

`kuiper serve` (``pip install "kuiper-runtime[serve]"``) is the server; :func:`asgi` is the
application for any other one.  Nothing else in kuiper imports this package.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import kuiper

if TYPE_CHECKING:
    from kuiper.serving.http import Application

__all__ = ["asgi"]


def asgi(
    models: Mapping[str, str | Path] | Iterable[str | Path],
    *,
    threads: int | None = None,
    instances: int | None = None,
    batch: int | None = None,
    max_queue: int = 64,
    max_body: int = 64 << 20,
    max_memory: int | None = None,
    timeout: float | None = None,
    token: str | None = None,
) -> Application:
    """Return the server as an ASGI application, to mount in a web application or to run.

    Parameters
    ----------
    models : mapping of str to path, or iterable of paths
        Names and ``.param`` files; or files, names of bundled models, and folders with
        ``NAME/VERSION/*.param``.
    threads : int, optional
        Threads that all runs share, and the number of runs at a time; by default that of
        :func:`kuiper.get_num_threads`.
    instances : int, optional
        Runs of one model at a time; by default as many as there are threads.
    batch : int, optional
        Largest batch that is made of waiting requests, 1 for none; by default chosen by measuring.
    max_queue : int, default=64
        Requests that may wait for one model.
    max_body : int
        Bytes of a request.
    max_memory : int, optional
        Bytes that the tensors of one run may use.
    timeout : float, optional
        Seconds after which a request is given up that names no timeout itself.
    token : str, optional
        The bearer token that requests must carry.

    Returns
    -------
    kuiper.serving.http.Application
        It loads the models when the ASGI server starts, or with the first request.

    Raises
    ------
    InputError, OSError
        If a path is no model.  Errors of loading are raised when the application starts.

    Examples
    --------
    >>> app = kuiper.serving.asgi({"resnet": "resnet18.pnnx.param"})      # doctest: +SKIP
    """
    from kuiper.serving.http import Application
    from kuiper.serving.repository import Repository
    from kuiper.serving.served import Options
    from kuiper.serving.service import Limits, Service

    options = Options(
        threads=threads or kuiper.get_num_threads(),
        instances=instances,
        batch=batch,
        max_queue=max_queue,
        max_memory=max_memory,
    )
    repository = Repository(models, options)
    limits = Limits(max_body=max_body, timeout=timeout, token=token)
    metrics: Any = None
    try:
        from kuiper.serving.metrics import Metrics
    except ImportError:  # prometheus-client is not installed
        pass
    else:
        metrics = Metrics()
    service = Service(repository, options, limits, metrics=metrics)
    return Application(service, lambda: service.report(repository.load_all()))
