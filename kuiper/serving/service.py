"""What HTTP and gRPC share: a request becomes a job, the event loop waits for it."""

from __future__ import annotations

import asyncio
import concurrent.futures
import hmac
import logging
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

import kuiper
from kuiper.serving.failures import Refusal, as_refusal
from kuiper.serving.protocol import InferRequest
from kuiper.serving.repository import Event, Repository
from kuiper.serving.scheduler import Job, Queue, Scheduler
from kuiper.serving.served import Options, ServedModel

if TYPE_CHECKING:
    from kuiper.serving.changes import Changes
    from kuiper.serving.metrics import Metrics

__all__ = ["Limits", "Outcome", "Service"]

log = logging.getLogger("kuiper.serving")

EXTENSIONS = ("binary_tensor_data", "model_configuration", "model_repository", "statistics")


@dataclass(frozen=True)
class Limits:
    """What a server accepts.

    Attributes
    ----------
    max_body : int
        Bytes of a request.
    max_bytes : int
        Bytes of all requests that are in the server.
    timeout : float or None
        Seconds after which a request is given up that names no timeout itself.
    read_timeout : float
        Seconds in which a client must send a request, or read a response.
    token : str or None
        The bearer token that requests must carry, except for those about health.
    control : bool
        Whether clients may load and unload models.
    """

    max_body: int = 64 << 20
    max_bytes: int = 1 << 30
    timeout: float | None = None
    read_timeout: float = 30.0
    token: str | None = None
    control: bool = False


@dataclass(eq=False, slots=True)
class Statistics:
    """Counts of one version of a model, for the protocol's extension."""

    requests: int = 0
    failures: int = 0
    runs: int = 0
    rows: int = 0
    queue_ns: int = 0
    run_ns: int = 0
    success_ns: int = 0
    failure_ns: int = 0
    last_ms: int = 0


@dataclass(eq=False, slots=True)
class Outcome:
    """The result of a request.

    Attributes
    ----------
    model : ServedModel
        The version that answered.
    outputs : list of (str, numpy.ndarray, bool)
        Name, value, and whether it is to be sent as bytes.
    job : Job
        With the times.
    """

    model: ServedModel
    outputs: list[tuple[str, np.ndarray, bool]]
    job: Job


class Service:
    """The models of a server and their runners.

    Parameters
    ----------
    repository : Repository
    options : Options
    limits : Limits
    runners : int, optional
        Runs at a time; by default one per thread.
    metrics : Metrics, optional
    """

    def __init__(
        self,
        repository: Repository,
        options: Options,
        limits: Limits,
        runners: int | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        self.repository, self.limits, self.metrics = repository, limits, metrics
        self.scheduler = Scheduler(
            runners or options.threads, options.threads, limits.max_bytes, self._observe
        )
        self.is_draining = False
        self.received = 0  # bytes of bodies that are being received
        self.pictures: Any = None  # once a photo has come
        self.changes: Changes | None = None  # of several processes
        self._counting = threading.Lock()
        self._statistics: dict[tuple[str, str], Statistics] = {}
        self._pool = concurrent.futures.ThreadPoolExecutor(
            self.scheduler.runners + 1, thread_name_prefix="kuiper-codec"
        )

    # -- requests --------------------------------------------------------------------------

    async def infer(
        self, model: ServedModel, request: InferRequest, deadline: float | None = None
    ) -> Outcome:
        """Run a request.

        Parameters
        ----------
        model : ServedModel
        request : InferRequest
        deadline : float, optional
            In the time of :func:`time.monotonic`; the earlier of this and the request's counts.

        Raises
        ------
        Refusal
            If it is invalid, refused or too late.
        """
        if self.is_draining:
            raise Refusal("unavailable", "the server shuts down", 1.0)
        model.check_outputs(request)
        arrays = model.check(request.inputs)
        timeout = request.timeout or self.limits.timeout
        if timeout is not None:
            own = time.monotonic() + timeout
            deadline = own if deadline is None else min(deadline, own)
        job = await self._run(model, arrays, deadline)
        assert job.result is not None
        return Outcome(model, model.named(request, job.result), job)

    async def _run(
        self, model: ServedModel, arrays: list[np.ndarray], deadline: float | None
    ) -> Job:
        loop = asyncio.get_running_loop()
        waiting: asyncio.Future[Job] = loop.create_future()

        def settle(job: Job) -> None:
            if not waiting.done():
                if job.error is not None:
                    waiting.set_exception(self._as_error(model, job.error))
                else:
                    waiting.set_result(job)

        def done(job: Job) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(settle, job)

        job = Job(arrays, done, deadline)
        self.submit(model, job)
        timer = None
        if deadline is not None:
            late = Refusal("deadline", "the deadline passed before the result was there")
            left = deadline - time.monotonic()
            timer = loop.call_later(left, self.scheduler.cancel, model.queue, job, late)
        try:
            return await waiting
        except asyncio.CancelledError:
            self.scheduler.cancel(model.queue, job, Refusal("cancelled", "the client hung up"))
            raise
        finally:
            if timer is not None:
                timer.cancel()

    def submit(self, model: ServedModel, job: Job) -> None:
        """Queue a job for a model; from any thread."""
        self.scheduler.submit(model.queue, job)

    def call(
        self, model: ServedModel, arrays: list[np.ndarray], deadline: float | None = None
    ) -> list[np.ndarray]:
        """Run a model through its queue and wait; for threads other than the event loop's."""
        found: concurrent.futures.Future[Job] = concurrent.futures.Future()
        job = Job(model.check({i.name: a for i, a in zip(model.model.inputs, arrays, strict=True)}),
                  found.set_result, deadline)  # fmt: skip
        self.submit(model, job)
        found.result()
        if job.error is not None:
            raise self._as_error(model, job.error)
        assert job.result is not None
        return job.result

    async def in_thread(self, function: Any, *arguments: Any) -> Any:
        """Call a function in a thread of the server, so that the event loop goes on."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, function, *arguments)

    def _as_error(self, model: ServedModel, error: BaseException) -> Refusal:
        refusal = as_refusal(error)
        if refusal.reason == "internal":
            log.error("model '%s' version %s failed", model.name, model.version, exc_info=error)
        if refusal.args:
            refusal.args = (self.repository.without_paths(str(refusal)),)
        return refusal

    def authorize(self, given: str | None) -> None:
        """Check the ``Authorization`` of a request.

        Raises
        ------
        Refusal
            If the server has a token and this is another one.
        """
        token = self.limits.token
        if token is None:
            return
        expected = f"Bearer {token}".encode()
        if given is None or not hmac.compare_digest(given.encode(), expected):
            raise Refusal("unauthenticated", "expected the header Authorization: Bearer TOKEN")

    # -- models ----------------------------------------------------------------------------

    async def change(self, what: str, name: str) -> None:
        """Load or unload a model at a client's request.

        Raises
        ------
        Refusal
            If the server does not allow it, or there is no such model.
        """
        if not self.limits.control:
            raise Refusal("forbidden", "clients may not load or unload models; see --control")
        if self.changes is not None:
            await self.changes.ask(what, name)
        else:
            await self.apply(what, name)

    async def apply(self, what: str, name: str) -> None:
        """Load or unload a model in this process.

        Raises
        ------
        Refusal
            If there is no such model, or it does not load.
        """
        method = self.repository.load if what == "load" else self.repository.unload
        self.report(await self.in_thread(method, name))

    async def watch(self, seconds: float) -> None:
        """Follow the changes on disk until the task is cancelled."""
        while True:
            await asyncio.sleep(seconds)
            try:
                self.report(await self.in_thread(self.repository.refresh))
            except (kuiper.KuiperError, OSError) as error:
                log.error("the repository cannot be read: %s", error)

    def report(self, events: list[Event]) -> None:
        """Log changes of models."""
        for event in events:
            level = logging.ERROR if event.kind == "failed" else logging.INFO
            more = f": {event.message}" if event.message else ""
            took = f" in {event.seconds:.2f} s" if event.seconds else ""
            log.log(level, "model '%s' version %s %s%s%s", event.name, event.version, event.kind,
                    took, more, extra={"model": event.name, "version": event.version})  # fmt: skip
            if self.metrics is not None:
                self.metrics.changes.labels(event.kind).inc()

    # -- counts ----------------------------------------------------------------------------

    def _observe(self, queue: Queue, jobs: list[Job]) -> None:
        """Count a run; called by runners."""
        model: ServedModel = queue.owner
        counts = self.statistics_of(model)
        first = jobs[0]
        with self._counting:
            counts.runs += 1
            counts.rows += first.batch
            counts.run_ns += int((first.finished - first.started) * 1e9)
        if self.metrics is not None:
            self.metrics.observe_run(model, jobs)

    def statistics_of(self, model: ServedModel) -> Statistics:
        """Return the counts of a version."""
        return self._statistics.setdefault((model.name, model.version), Statistics())

    def count(self, model: ServedModel, job: Job | None, seconds: float, reason: str = "") -> None:
        """Count a request that is over; `reason` is empty if it succeeded."""
        counts = self.statistics_of(model)
        counts.requests += 1
        counts.last_ms = int(time.time() * 1e3)
        if reason:
            counts.failures += 1
            counts.failure_ns += int(seconds * 1e9)
        else:
            counts.success_ns += int(seconds * 1e9)
        if job is not None:
            counts.queue_ns += int((job.started - job.queued) * 1e9)

    def statistics(self, name: str = "", version: str = "") -> dict[str, Any]:
        """Return the counts in the form of the protocol's extension."""
        models = [
            model
            for model in self.repository.loaded()
            if name in ("", model.name) and version in ("", model.version)
        ]
        if not models:
            self.repository.get(name, version)
        return {"model_stats": [_statistics(m, self.statistics_of(m)) for m in models]}

    # -- descriptions ----------------------------------------------------------------------

    @property
    def is_ready(self) -> bool:
        """Whether requests are accepted."""
        return not self.is_draining and bool(self.repository.loaded())

    def metadata(self) -> dict[str, Any]:
        """Return the protocol's description of the server."""
        return {
            "name": "kuiper",
            "version": kuiper.__version__,
            "extensions": list(EXTENSIONS),
        }

    # -- end -------------------------------------------------------------------------------

    async def drain(self, seconds: float) -> bool:
        """Refuse requests, wait for those in the server; return whether all were answered."""
        self.is_draining = True
        loop = asyncio.get_running_loop()
        if await loop.run_in_executor(None, self.scheduler.drain, seconds):
            return True
        left = self.scheduler.abandon()
        log.error("%d requests were not answered within %g seconds", left, seconds)
        return False

    def close(self) -> None:
        """End the threads."""
        self.scheduler.close()
        self._pool.shutdown(wait=False, cancel_futures=True)


def _statistics(model: ServedModel, counts: Statistics) -> Mapping[str, Any]:
    good = counts.requests - counts.failures
    return {
        "name": model.name,
        "version": model.version,
        "last_inference": counts.last_ms,
        "inference_count": counts.rows,
        "execution_count": counts.runs,
        "inference_stats": {
            "success": {"count": good, "ns": counts.success_ns},
            "fail": {"count": counts.failures, "ns": counts.failure_ns},
            "queue": {"count": good, "ns": counts.queue_ns},
            "compute_input": {"count": good, "ns": 0},
            "compute_infer": {"count": good, "ns": counts.run_ns},
            "compute_output": {"count": good, "ns": 0},
        },
        "batch_stats": [],
    }
