"""A server beyond its limits: overload, deadlines, oversize, SIGTERM, memory, mixed shapes.

Real processes and connections on the loopback interface. Usage::

    python benchmarks serving-limits mobilenet_v2
    python benchmarks serving-limits mobilenet_v2 --memory vgg16 --cache DIR
"""

from __future__ import annotations

import argparse
import http.client
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from common import default_cache, machine, table
from serving.compare import find, percentile
from serving.subjects import Server, Talker, kuiper_server

MODEL = "net"
MIB = 1 << 20


class Limits:
    """Clients and servers of one network.

    Parameters
    ----------
    file : Path
        The ``.param`` file.
    folder : Path
        For the inputs.
    seconds : float
        Of each burst.
    """

    def __init__(self, file: Path, folder: Path, seconds: float) -> None:
        self.file, self.seconds = file, seconds
        self.case, self.mixed = str(folder / "case.npz"), str(folder / "mixed.npz")
        self.clients = Talker("serving-clients")
        engine = Talker("serving-engine")
        for case, mixed in ((self.mixed, True), (self.case, False)):
            found = engine.ask(do="load", name=MODEL, path=str(file), case=case, mixed=mixed)
            self.input_bytes: int = found["input_bytes"]
        engine.close()

    def server(self, *options: Any) -> Server:
        """Start a server of the network."""
        return kuiper_server(f"{MODEL}={self.file}", *options)

    def command(
        self, server: Server, protocol: str, clients: int, **options: Any
    ) -> dict[str, Any]:
        """Return the command of a burst."""
        return {
            "address": server.addresses,
            "protocol": protocol,
            "model": MODEL,
            "case": self.case,
            "clients": clients,
            "seconds": self.seconds,
        } | options


def row(what: str, protocol: str, found: dict[str, Any], more: str = "") -> list[str]:
    """Return a row of the table."""
    counts = ", ".join(f"{n} {status}" for status, n in sorted(found["statuses"].items()))
    times = [f"{percentile(found['ms'], part):.0f}" if found["ms"] else "" for part in (0.5, 0.99)]
    return [what, protocol, counts, *times, str(found["wrong"]), more]


def mixed_shapes(limits: Limits) -> Iterator[list[str]]:
    """Send inputs of several shapes to a server that joins batches."""
    server = limits.server("--batch", "4")
    for protocol in ("http", "grpc"):
        found = limits.clients.ask(**limits.command(server, protocol, 16, case=limits.mixed))
        yield row("mixed shapes, batches of up to 4, 16 clients", protocol, found)
    server.stop()


def overload(limits: Limits) -> Iterator[list[str]]:
    """Let many clients send to a short queue."""
    server = limits.server("--max-queue", "8")
    for protocol in ("http", "grpc"):
        before = server.memory("rss")
        found = limits.clients.ask(**limits.command(server, protocol, 48, pause=0.02))
        memory = f"{before // MIB} to {server.memory('rss') // MIB} MiB"
        yield row("48 clients, queue of 8", protocol, found, memory)
    server.stop()


def deadlines(limits: Limits) -> Iterator[list[str]]:
    """Let clients wait for a short time only."""
    server = limits.server()
    for protocol in ("http", "grpc"):
        found = limits.clients.ask(**limits.command(server, protocol, 16, timeout_us=30_000))
        yield row("16 clients, 30 ms", protocol, found)
    server.stop()


def oversize(limits: Limits) -> Iterator[list[str]]:
    """Send requests that exceed the limit."""
    server = limits.server("--max-body", str(limits.input_bytes // 2))
    for protocol in ("http", "grpc"):
        found = limits.clients.ask(**limits.command(server, protocol, 1, seconds=0.2))
        yield row("oversize", protocol, found)
    connection = http.client.HTTPConnection(server.addresses["http"], timeout=30)
    chunks = (bytes(1 << 16) for _ in range(limits.input_bytes >> 16))
    try:
        connection.request("POST", f"/v2/models/{MODEL}/infer", chunks, encode_chunked=True,
                           headers={"Transfer-Encoding": "chunked"})  # fmt: skip
        status = str(connection.getresponse().status)
    except (OSError, http.client.HTTPException) as error:
        status = type(error).__name__
    connection.close()
    yield row("oversize, chunked", "http", {"statuses": {status: 1}, "ms": [], "wrong": 0})
    server.stop()


def shutdown(limits: Limits) -> Iterator[list[str]]:
    """Send SIGTERM under load."""
    for protocol in ("http", "grpc"):
        server = limits.server()
        limits.clients.tell(**limits.command(server, protocol, 16, pause=0.1))
        time.sleep(limits.seconds / 2)
        code, seconds = server.stop()
        found = limits.clients.answer()
        answered = [line.strip() for line in server.said if "were answered" in line]
        yield row("SIGTERM under 16 clients", protocol, found, f"exit {code} after {seconds:.2f} s")
        if not answered:
            print("".join(server.said[-5:]))


def memory(file: Path, folder: Path) -> str:
    """Return a table of the memory of a network for two runs at a time."""
    limits = Limits(file, folder, 2.0)
    lines = []
    for name, count, options in (
        ("a server with a model of 0.5 MB instead", 1, None),
        ("one run at a time", 1, ("--runners", "1")),
        ("two runs at a time: threads", 1, ("--runners", "2")),
        ("two processes, forked: --workers 2", 1, ("--workers", "2")),
        ("two servers", 2, ("--runners", "1")),
    ):
        if options is None:
            servers = [kuiper_server("selfie", "--batch", "1")]
        else:
            servers = [limits.server("--batch", "1", *options) for _ in range(count)]
            for server in servers:
                limits.clients.ask(**limits.command(server, "http", 8))
        lines.append([name, str(sum(server.memory() for server in servers) // MIB)])
        for server in servers:
            server.stop()
    limits.clients.close()
    return table(["", "PSS in MiB"], lines)


def main() -> None:
    """Run all of them and print tables."""
    parser = argparse.ArgumentParser(
        prog="benchmarks serving-limits", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    add = parser.add_argument
    add("model", help="a network of the cache, a bundled model or a file")
    add("--cache", type=Path, default=default_cache(), metavar="DIR", help="of `export`")
    add("--memory", metavar="NAME", help="also measure memory, of this network")
    add("--seconds", type=float, default=4.0, metavar="S", help="of a burst")
    options = parser.parse_args()
    print(", ".join(machine().values()))
    (file,) = find(options.cache, [options.model]).values()
    with tempfile.TemporaryDirectory() as folder:
        limits = Limits(file, Path(folder), options.seconds)
        lines = [line for part in (mixed_shapes, overload, deadlines, oversize, shutdown)
                 for line in part(limits)]  # fmt: skip
        limits.clients.close()
        print(table(["", "", "answers", "p50 ms", "p99 ms", "wrong bits", ""], lines))
        if options.memory:
            (file,) = find(options.cache, [options.memory]).values()
            print(memory(file, Path(folder)))
