"""Ten minutes of mixed clients: memory and descriptors of the server must stay as they are.

Half of the clients speak HTTP, half gRPC; inputs have several shapes, and one request in twenty is
given up half-way: the client hangs up while it sends, or while it waits. Usage::

    python benchmarks serving-soak mobilenet_v2 --minutes 10
"""

from __future__ import annotations

import argparse
import http.client
import random
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

from common import default_cache, machine, table
from serving.clients import SENDERS, Case, http_requests
from serving.compare import find
from serving.subjects import Server, Talker, kuiper_server, processor_seconds

MIB = 1 << 20
HANG_UPS = 0.05


class Client(threading.Thread):
    """A client with a connection of its own; a new one after 200 requests.

    Parameters
    ----------
    number : int
        Even ones speak HTTP, odd ones gRPC.
    server : Server
    case : Case
    counts : Counter
        Of what happened, by protocol and status.
    end : threading.Event
    """

    def __init__(
        self, number: int, server: Server, case: Case, counts: Counter[str], end: threading.Event
    ) -> None:
        super().__init__()
        self.protocol = ("http", "grpc")[number % 2]
        self.address = server.addresses[self.protocol]
        self.case, self.counts, self.end = case, counts, end
        self.random = random.Random(number)

    def run(self) -> None:
        """Send requests until the end."""
        sender, sent = None, 0
        while not self.end.is_set():
            if sender is None or sent % 200 == 0:
                sender = SENDERS[self.protocol](self.address, "net", self.case)
            sent += 1
            number = self.random.randrange(len(self.case.inputs))
            if self.random.random() < HANG_UPS:
                self.hang_up(number)
                continue
            status, outputs = sender(number)
            good = outputs == [self.case.results[number]]
            what = status if good or status not in ("200", "OK") else "wrong bits"
            self.counts[f"{self.protocol} {what}"] += 1

    def hang_up(self, number: int) -> None:
        """Give a request up, half sent or fully sent."""
        if self.protocol == "grpc":
            sender = SENDERS["grpc"](self.address, "net", self.case, timeout_us=2000)
            self.counts[f"grpc, 2 ms: {sender(number)[0]}"] += 1
            return
        body, headers = http_requests(self.case)[number]
        connection = http.client.HTTPConnection(self.address, timeout=30)
        connection.putrequest("POST", "/v2/models/net/infer")
        for name, value in (headers | {"Content-Length": str(len(body))}).items():
            connection.putheader(name, value)
        connection.endheaders(body if self.random.random() < 0.5 else body[: len(body) // 2])
        connection.close()
        self.counts["http, hung up"] += 1


def main() -> None:
    """Run the clients, and print memory and descriptors minute by minute."""
    parser = argparse.ArgumentParser(
        prog="benchmarks serving-soak", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    add = parser.add_argument
    add("model", help="a network of the cache, a bundled model or a file")
    add("--cache", type=Path, default=default_cache(), metavar="DIR", help="of `export`")
    add("--minutes", type=float, default=10.0, metavar="M")
    add("--clients", type=int, default=8, metavar="N")
    options = parser.parse_args()
    print(", ".join(machine().values()))
    (file,) = find(options.cache, [options.model]).values()
    with tempfile.TemporaryDirectory() as folder:
        engine, case = Talker("serving-engine"), f"{folder}/case.npz"
        engine.ask(do="load", name="net", path=str(file), case=case, mixed=True)
        engine.close()
        server = kuiper_server(f"net={file}", "--batch", "4")
        print(soak(server, Case(case), options))
        print("exit code and seconds of SIGTERM:", *server.stop())


def soak(server: Server, case: Case, options: argparse.Namespace) -> str:
    """Return a table of what the server uses, minute by minute."""
    counts: Counter[str] = Counter()
    end = threading.Event()
    lines = [state(server, 0.0, counts)]
    clients = [Client(n, server, case, counts, end) for n in range(options.clients)]
    for client in clients:
        client.start()
    begin, steps = time.monotonic(), max(4, round(options.minutes))
    for step in range(1, steps + 1):
        minutes = step * options.minutes / steps
        time.sleep(max(0.0, begin + 60 * minutes - time.monotonic()))
        lines.append(state(server, minutes, counts))
    end.set()
    for client in clients:
        client.join()
    time.sleep(3.0)  # connections of clients that are gone
    lines.append(["after", *state(server, 0.0, counts)[1:]])
    print("\n".join(f"{what}: {count}" for what, count in sorted(counts.items())))
    return table(["minute", "resident MiB", "descriptors", "threads", "CPU s", "requests"], lines)


def state(server: Server, minutes: float, counts: Counter[str]) -> list[str]:
    """Return a row of the table."""
    root = server.root
    numbers = (root.memory_info().rss // MIB, root.num_fds(), root.num_threads(),
               round(processor_seconds([root])), sum(counts.values()))  # fmt: skip
    return [f"{minutes:g}", *map(str, numbers)]
