"""Spans of OpenTelemetry, if the package is installed; otherwise nothing.

The application that mounts the server, or the environment (``OTEL_...``), configures where spans
go; this module only makes them, as children of the caller's ``traceparent``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

try:
    from opentelemetry import propagate, trace
except ImportError:
    trace = None  # type: ignore[assignment, unused-ignore]

__all__ = ["span"]


def span(headers: Mapping[Any, Any], path: Sequence[str]) -> AbstractContextManager[Any]:
    """Return a context for a request, with a span if the path runs a model.

    Parameters
    ----------
    headers : mapping
        Of the request, with names in lower case, as bytes or str.
    path : sequence of str
        Its parts, such as ``["v2", "models", "resnet", "infer"]``.
    """
    if trace is None or len(path) < 4 or path[1] != "models":
        return nullcontext()
    return _span(headers, path)


@contextmanager
def _span(headers: Mapping[Any, Any], path: Sequence[str]) -> Iterator[None]:
    carrier = {_text(key): _text(value) for key, value in headers.items()}
    tracer = trace.get_tracer("kuiper.serving")
    with tracer.start_as_current_span(
        f"{path[-1]} {path[2]}",
        context=propagate.extract(carrier),
        kind=trace.SpanKind.SERVER,
        attributes={"kuiper.model": path[2]},
    ):
        yield


def _text(value: Any) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)
