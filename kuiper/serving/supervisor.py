"""Several processes for ``kuiper serve --workers N``: forked, replaced if they die.

::

    supervisor ── loads the models, listens ── fork ──> worker: HTTP and gRPC
               ── waits for the end of any  ── fork ──> worker

Workers share the weights that the supervisor has packed, and the socket.  A worker that is killed
takes its connections with it, so that its clients see an error at once; the others go on.
"""

from __future__ import annotations

import logging
import os
import shutil
import signal
import socket
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from kuiper.errors import InputError
from kuiper.serving import changes, server
from kuiper.serving.repository import Repository
from kuiper.serving.server import Settings

__all__ = ["run"]

log = logging.getLogger("kuiper.serving")

# A worker that ends sooner than that after its start is not replaced at once, and the supervisor
# gives up after so many in a row.
_SOON = 2.0
_MAX_FAILURES = 5


class Supervisor:
    """The parent of the workers.

    Parameters
    ----------
    settings : Settings
    count : int
        Number of workers.
    """

    def __init__(self, settings: Settings, count: int) -> None:
        if not hasattr(os, "fork"):
            raise InputError("--workers needs fork, which this system does not have")
        self._count, self._failures = count, 0
        self._workers: dict[int, float] = {}
        self._ends_at: float | None = None
        server.check_packages(settings)
        self._http = server.listen(settings.http) if settings.http is not None else None
        self._reserved = None
        if settings.grpc is not None:
            self._reserved = _reserve(settings.grpc)
            port = self._reserved.getsockname()[1]
            settings = replace(settings, grpc=replace(settings.grpc, port=port))
        self._folder = Path(tempfile.mkdtemp(prefix="kuiper-serve-"))
        self._settings = replace(settings, changes=self._folder)
        # Read by prometheus_client, which only workers import.
        os.environ["PROMETHEUS_MULTIPROC_DIR"] = str(self._folder)

    def run(self) -> int:
        """Run the workers until a signal; return the exit code."""
        try:
            repository = server.load_models(self._settings)
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, self._stop)
            for _ in range(self._count):
                self._fork(repository)
            return self._watch(repository)
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _fork(self, repository: Repository) -> None:
        pid = os.fork()
        if pid:
            self._workers[pid] = time.monotonic()
            log.info("worker %d started", pid, extra={"worker": pid})
            return
        code = 70
        try:
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, signal.SIG_DFL)
            if self._reserved is not None:
                self._reserved.close()
            code = server.run(self._settings, repository, self._http, shares_port=True)
        except BaseException:
            log.exception("worker %d failed", os.getpid())
        finally:
            logging.shutdown()
            os._exit(code)  # not the cleanup of the supervisor

    def _stop(self, number: int, frame: object) -> None:
        """Pass a signal on; workers answer what they have."""
        if self._ends_at is None:
            self._ends_at = time.monotonic() + self._settings.drain + 10.0
        for pid in list(self._workers):
            os.kill(pid, signal.SIGTERM)

    def _watch(self, repository: Repository) -> int:
        code = 0
        while self._workers:
            for pid, status in self._ended():
                lived = time.monotonic() - self._workers.pop(pid)
                if self._ends_at is not None:
                    code = max(code, abs(os.waitstatus_to_exitcode(status)))
                    continue
                how = os.waitstatus_to_exitcode(status)
                log.error("worker %d ended with %d; starting another", pid, how,
                          extra={"worker": pid, "status": how})  # fmt: skip
                self._forget(pid)
                self._failures = self._failures + 1 if lived < _SOON else 0
                if self._failures >= _MAX_FAILURES:
                    log.error("%d workers in a row ended at their start", self._failures)
                    self._stop(signal.SIGTERM, None)
                    code = 1
                    break
                if self._failures:
                    time.sleep(min(1.0, 0.1 * 2**self._failures))
                self._fork(repository)
            if self._ends_at is not None and time.monotonic() > self._ends_at:
                for pid in self._workers:
                    os.kill(pid, signal.SIGKILL)
                code = 1
            # A signal ends the sleep; the end of a worker is noticed within this time.
            time.sleep(0.05)
        return code

    def _ended(self) -> list[tuple[int, int]]:
        """Return the workers that have ended, with their status."""
        ended = []
        for pid in list(self._workers):
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                ended.append((pid, status))
        return ended

    def _forget(self, pid: int) -> None:
        """Remove the gauges and the mark of a process that is gone; its counts remain."""
        for file in self._folder.glob(f"gauge_live*_{pid}.db"):
            file.unlink(missing_ok=True)
        changes.forget(self._folder, pid)


def _reserve(address: server.Address) -> socket.socket:
    """Return a socket that holds a port which the workers share."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        made.bind((address.host, address.port))
    except OSError as error:
        made.close()
        raise OSError(error.errno, f"cannot listen: {error.strerror}", str(address)) from error
    return made


def run(settings: Settings, count: int) -> int:
    """Serve with several processes until SIGTERM or SIGINT; return the exit code.

    Raises
    ------
    InputError
        If the system cannot fork.
    OSError
        If an address cannot be bound.
    """
    return Supervisor(settings, count).run()
