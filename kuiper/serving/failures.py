"""Why a request is refused, and the status that HTTP and gRPC give for it."""

from __future__ import annotations

from typing import NamedTuple

from kuiper.errors import KuiperError, ModelFormatError

__all__ = ["REASONS", "Reason", "Refusal", "as_refusal"]


class Reason(NamedTuple):
    """The status of a refusal in both protocols.

    Attributes
    ----------
    http : int
    grpc : str
        Name of a member of ``grpc.StatusCode``.
    """

    http: int
    grpc: str


REASONS = {
    "invalid": Reason(400, "INVALID_ARGUMENT"),
    "unauthenticated": Reason(401, "UNAUTHENTICATED"),
    "forbidden": Reason(403, "PERMISSION_DENIED"),
    "unknown": Reason(404, "NOT_FOUND"),
    "method": Reason(405, "UNIMPLEMENTED"),
    "slow": Reason(408, "DEADLINE_EXCEEDED"),
    "too large": Reason(413, "RESOURCE_EXHAUSTED"),
    "media type": Reason(415, "INVALID_ARGUMENT"),
    "busy": Reason(429, "RESOURCE_EXHAUSTED"),
    "cancelled": Reason(499, "CANCELLED"),
    "internal": Reason(500, "INTERNAL"),
    "unsupported": Reason(501, "UNIMPLEMENTED"),
    "unavailable": Reason(503, "UNAVAILABLE"),
    "deadline": Reason(504, "DEADLINE_EXCEEDED"),
}


class Refusal(KuiperError):
    """A request that the server does not answer with a result.

    Parameters
    ----------
    reason : str
        A key of :data:`REASONS`.
    message : str
        What the client is told.
    retry_after : float, optional
        Seconds after which the client may try again.
    """

    def __init__(self, reason: str, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.reason = reason
        self.retry_after = retry_after

    @property
    def status(self) -> Reason:
        """The status in both protocols."""
        return REASONS[self.reason]


def as_refusal(error: BaseException) -> Refusal:
    """Return an exception as a refusal: the engine's errors are the client's, others internal.

    The message of an unforeseen exception stays in the log of the server.
    """
    if isinstance(error, Refusal):
        return error
    if isinstance(error, ModelFormatError):  # the file has changed since it was loaded
        return Refusal("internal", str(error))
    if isinstance(error, KuiperError):
        return Refusal("invalid", str(error))
    if isinstance(error, MemoryError):
        return Refusal("unavailable", "the server has not enough memory for this request")
    return Refusal("internal", f"internal error ({type(error).__name__}); see the server's log")
