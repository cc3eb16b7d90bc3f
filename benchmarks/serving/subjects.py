"""The processes of the benchmark: clients, calls in process, and servers."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil

from common import HERE, REPOSITORY

WAIT = 180.0


def environment() -> dict[str, str]:
    """Return the variables for a process that imports kuiper as this one does."""
    import kuiper

    path = [str(Path(kuiper.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    found = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, path))}
    found.pop("PROMETHEUS_MULTIPROC_DIR", None)
    return found


class Talker:
    """A process of this folder that answers commands: `clients` or `engine`."""

    def __init__(self, name: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(HERE), name], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            text=True, env=environment(),
        )  # fmt: skip
        self.tree = [psutil.Process(self._process.pid)]

    def tell(self, **command: Any) -> None:
        """Send a command."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        """Wait for the answer to a command."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("a process of the benchmark has ended; its error is above")
        return json.loads(line)

    def ask(self, **command: Any) -> dict[str, Any]:
        """Send a command and wait for its answer."""
        self.tell(**command)
        return self.answer()

    def close(self) -> None:
        """End the process."""
        self._process.communicate()


class Server:
    """A server process that says on standard error, or output, where it answers.

    Parameters
    ----------
    command : sequence of str
    addresses : dict of str to str, optional
        By protocol, of a server that does not say them: it is ready once these ports accept.
    """

    def __init__(self, command: Sequence[Any], addresses: dict[str, str] | None = None) -> None:
        self.process = subprocess.Popen(
            list(map(str, command)), stderr=subprocess.STDOUT, stdout=subprocess.PIPE, text=True,
            env=environment(), cwd=REPOSITORY,
        )  # fmt: skip
        self.root = psutil.Process(self.process.pid)
        self.said: list[str] = []
        self._ready: queue.Queue[dict[str, str] | None] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()
        if addresses is None:
            found = self._ready.get(timeout=WAIT)
            if found is None:
                raise RuntimeError("".join(self.said))
            self.addresses = found
        else:
            self.addresses = addresses
            for address in addresses.values():
                self._until_open(address)

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said.append(line)
            found = re.search(r"ready: (.*)", line)
            if found:
                parts = [part.strip(' ",}') for part in found[1].split(", ")]
                web = [part.partition("//")[2] for part in parts if "//" in part]
                rpc = [part for part in parts if "//" not in part and re.search(r":\d+$", part)]
                self._ready.put({k: v[0] for k, v in (("http", web), ("grpc", rpc)) if v})
        self._ready.put(None)

    def _until_open(self, address: str) -> None:
        host, _, port = address.partition(":")
        end = time.monotonic() + WAIT
        while True:
            try:
                socket.create_connection((host, int(port)), 1.0).close()
                return
            except OSError:
                if time.monotonic() > end or self.process.poll() is not None:
                    raise RuntimeError("".join(self.said[-30:])) from None
                time.sleep(0.2)

    @property
    def tree(self) -> list[psutil.Process]:
        """The process and all that it has started."""
        return [self.root, *self.root.children(recursive=True)]

    def memory(self, kind: str = "pss") -> int:
        """Return the memory of all processes: what they share counts once."""
        return sum(getattr(one.memory_full_info(), kind) for one in self.tree)

    def stop(self, number: int = signal.SIGTERM) -> tuple[int, float]:
        """Send a signal; return the exit code and the seconds until the end."""
        begin, tree = time.monotonic(), self.tree
        self.process.send_signal(number)
        try:
            code = self.process.wait(60)
        except subprocess.TimeoutExpired:
            code = -9
        seconds = time.monotonic() - begin
        for one in tree:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()
        return code, seconds


def kuiper_server(*arguments: Any, python: str = sys.executable) -> Server:
    """Start ``kuiper serve`` with both protocols on free ports."""
    ports = ["--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0"]
    return Server([python, "-m", "kuiper", "serve", *arguments, *ports])


def free_port() -> int:
    """Return a port that is free now."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def processor_seconds(tree: Sequence[psutil.Process]) -> float:
    """Return the processor time that processes have used."""
    used = 0.0
    for one in tree:
        try:
            times = one.cpu_times()
        except psutil.NoSuchProcess:
            continue
        used += times.user + times.system
    return used


def busy_seconds() -> float:
    """Return the processor time of all programs of this machine."""
    times = psutil.cpu_times()
    return sum(times) - times.idle - times.iowait - getattr(times, "guest", 0.0)
