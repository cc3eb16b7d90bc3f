"""Real processes of ``kuiper serve`` on free ports of the loopback interface."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

from ..support.paths import ROOT

__all__ = ["WAIT", "Server", "ask", "serving"]

WAIT = 60.0


class Server:
    """A server process, once it answers.

    Attributes
    ----------
    http, grpc : str
        The addresses, ``host:port``.
    lines : list of dict
        The log so far.
    """

    def __init__(self, *arguments: str, environment: dict[str, str] | None = None) -> None:
        command = [sys.executable, "-m", "kuiper", "serve", *map(str, arguments)]
        command += ["--log", "json"]
        if "--http" not in arguments:
            command += ["--http", "127.0.0.1:0"]
        variables = {**os.environ, "PYTHONPATH": str(ROOT), **(environment or {})}
        variables.pop("PROMETHEUS_MULTIPROC_DIR", None)
        self.process = subprocess.Popen(
            command, stderr=subprocess.PIPE, text=True, env=variables, cwd=ROOT
        )
        self.lines: list[dict] = []
        self._ready: queue.Queue[dict | None] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        found = self.next_ready()
        assert found is not None, self.text
        self.http = found.get("http", "").partition("//")[2]
        self.grpc = found.get("grpc", "")

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            try:
                entry = json.loads(line)
            except ValueError:
                entry = {"message": line.rstrip()}
            self.lines.append(entry)
            if entry["message"].startswith("ready"):
                self._ready.put(entry)
        self._ready.put(None)

    def next_ready(self) -> dict | None:
        """Wait until the server, or one more worker of it, answers; None if it has ended."""
        return self._ready.get(timeout=WAIT)

    @property
    def text(self) -> str:
        """The messages of the log."""
        return "\n".join(f"{e['message']} {e.get('exception', '')}" for e in self.lines)

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Send a signal; return the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        try:
            return self.process.wait(WAIT)
        finally:
            self.process.kill()
            self.process.wait()
            self._reader.join(WAIT)
            assert self.process.stderr is not None
            self.process.stderr.close()


@contextlib.contextmanager
def serving(*arguments: str | Path, **more) -> Iterator[Server]:
    """Run a server during a with block."""
    server = Server(*map(str, arguments), **more)
    try:
        yield server
    finally:
        server.stop()


def ask(
    address: str, method: str, path: str, body: bytes | None = None, headers=(), timeout=WAIT
) -> tuple[int, dict[str, str], bytes]:
    """Send one request; return status, headers in lower case, and body."""
    connection = http.client.HTTPConnection(address, timeout=timeout)
    try:
        connection.request(method, path, body, dict(headers))
        response = connection.getresponse()
        found = {key.lower(): value for key, value in response.getheaders()}
        return response.status, found, response.read()
    finally:
        connection.close()
