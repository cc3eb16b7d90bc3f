"""Metrics for Prometheus.

With several processes, ``PROMETHEUS_MULTIPROC_DIR`` names a folder in which they share their
counts; the supervisor sets it.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import prometheus_client as prometheus
from prometheus_client import multiprocess

from kuiper.serving.memory import resident_bytes
from kuiper.serving.scheduler import Job
from kuiper.serving.served import ServedModel

if TYPE_CHECKING:
    from kuiper.serving.service import Service

__all__ = ["Metrics"]

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_ROWS = (1, 2, 4, 8, 16, 32, 64)


class Metrics:
    """The metrics of a process, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = prometheus.CollectorRegistry()
        of = {"registry": self.registry, "namespace": "kuiper"}
        model = ("model", "version")
        self.requests = prometheus.Counter(
            "requests", "Requests, by status", ("model", "protocol", "status"), **of
        )
        self.latency = prometheus.Histogram(
            "request_seconds", "From the head of a request to its response",
            ("model", "protocol"), buckets=_SECONDS, **of,
        )  # fmt: skip
        self.queued = prometheus.Histogram(
            "queue_seconds", "Waiting for a runner", model, buckets=_SECONDS, **of
        )
        self.runs = prometheus.Histogram(
            "run_seconds", "Running a batch", model, buckets=_SECONDS, **of
        )
        self.batches = prometheus.Histogram(
            "batch_rows", "Rows that ran together", model, buckets=_ROWS, **of
        )
        self.changes = prometheus.Counter(
            "model_changes", "Models loaded, reloaded, unloaded, failed", ("kind",), **of
        )
        live = {"multiprocess_mode": "livesum", **of}
        self.waiting = prometheus.Gauge("queue_requests", "Requests that wait", **live)
        self.running = prometheus.Gauge("running", "Batches that run", **live)
        self.input_bytes = prometheus.Gauge("input_bytes", "Inputs in the server", **live)
        self.resident = prometheus.Gauge("resident_bytes", "Memory of the process", **live)
        self.loaded = prometheus.Gauge(
            "models_loaded", "Versions that are loaded", multiprocess_mode="livemax", **of
        )
        self._children: dict[Any, Any] = {}

    def _child(self, metric: Any, *labels: str) -> Any:
        key = (metric, *labels)
        child = self._children.get(key)
        if child is None:
            child = self._children[key] = metric.labels(*labels)
        return child

    def observe_request(self, model: str, protocol: str, status: Any, seconds: float) -> None:
        """Count a request that is over; those for unknown models share a label."""
        if str(status) in ("404", "NOT_FOUND"):
            model = ""
        self._child(self.requests, model, protocol, str(status)).inc()
        self._child(self.latency, model, protocol).observe(seconds)

    def observe_run(self, model: ServedModel, jobs: list[Job]) -> None:
        """Count a batch."""
        labels = (model.name, model.version)
        first = jobs[0]
        self._child(self.runs, *labels).observe(first.finished - first.started)
        self._child(self.batches, *labels).observe(first.batch)
        for job in jobs:
            self._child(self.queued, *labels).observe(job.started - job.queued)

    def update(self, service: Service) -> None:
        """Set the gauges."""
        scheduler = service.scheduler
        self.waiting.set(scheduler.n_waiting)
        self.running.set(scheduler.n_running)
        self.input_bytes.set(scheduler.n_bytes + service.received)
        self.resident.set(resident_bytes())
        self.loaded.set(len(service.repository.loaded()))

    def exposition(self, service: Service) -> tuple[bytes, str]:
        """Return the text of all metrics, of all processes, and its content type."""
        self.update(service)
        registry = self.registry
        if os.environ.get("PROMETHEUS_MULTIPROC_DIR"):
            registry = prometheus.CollectorRegistry()
            multiprocess.MultiProcessCollector(registry)
        return prometheus.generate_latest(registry), prometheus.CONTENT_TYPE_LATEST
