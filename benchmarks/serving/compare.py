"""Compare the model server with calls in process, on the same inputs, in interleaved bursts.

Clients, calls in process and servers are processes of their own; those that are not measured sleep.
Each ratio is to the burst in process of the same round; a figure is the median over the rounds.
Every response is compared bit by bit with ``model(x)``. Usage::

    python benchmarks serving --cache DIR
    python benchmarks serving --cache DIR --models resnet18 --clients 16 --rounds 5
    python benchmarks serving --cache DIR --onnxruntime --kserve .venv-kserve/bin/python
    python benchmarks serving-limits mobilenet_v2 --cache DIR
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from common import HERE, default_cache, machine, model_folder, split_names, table
from serving.subjects import (
    Server,
    Talker,
    busy_seconds,
    free_port,
    kuiper_server,
    processor_seconds,
)

PEERS = ("kserve", "mlserver", "ray")
OTHER_BITS = "onnxruntime in it"


class Bench:
    """The processes of a run.

    Parameters
    ----------
    files : dict of str to Path
        Names of networks and their ``.param`` files.
    folder : Path
        For the inputs.
    """

    def __init__(self, files: dict[str, Path], folder: Path) -> None:
        self.files, self.folder = files, folder
        self.clients, self.engine = Talker("serving-clients"), Talker("serving-engine")
        self.servers: dict[str, Server] = {}
        for name, file in files.items():
            self.engine.ask(do="load", name=name, path=str(file), case=self.case(name), mixed=False)

    def case(self, name: str) -> str:
        """Return the file with the inputs of a network."""
        return str(self.folder / f"{name}.npz")

    def burst(self, who: str, protocol: str, model: str, **options: Any) -> dict[str, Any]:
        """Run one burst.

        Adds ``cpu``, of the engine or server, ``client cpu``, and ``others``, the processors that
        other programs have kept busy.
        """
        trees = [*self.clients.tree, *self.engine.tree]
        server = self.servers.get(who)
        tree = server.tree if server is not None else self.engine.tree
        others = busy_seconds() - processor_seconds({*trees, *tree})
        before, clients = processor_seconds(tree), processor_seconds(self.clients.tree)
        if server is None:
            found = self.engine.ask(do="burst", model=model, **options)
        else:
            found = self.clients.ask(
                address=server.addresses, protocol=protocol, model=model, case=self.case(model),
                **options,
            )  # fmt: skip
            found["cpu"] = processor_seconds(tree) - before
        found["client cpu"] = processor_seconds(self.clients.tree) - clients
        others = busy_seconds() - processor_seconds({*trees, *tree}) - others
        found["others"] = others / found["seconds"]
        return found

    def quiet_burst(
        self, quiet: float, retries: int, who: str, protocol: str, model: str, **options: Any
    ) -> dict[str, Any]:
        """Run a burst, again if other programs kept more than `quiet` processors busy."""
        found = self.burst(who, protocol, model, **options)
        while found["others"] > quiet and retries:
            found, retries = self.burst(who, protocol, model, **options), retries - 1
        return found

    def close(self) -> None:
        """End all processes."""
        for server in self.servers.values():
            server.stop()
        self.clients.close()
        self.engine.close()


def percentile(values: list[float], part: float) -> float:
    """Return the smallest value that is not below a part of all."""
    ordered = sorted(values) or [float("nan")]
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))]


def figures(found: dict[str, Any]) -> dict[str, float]:
    """Return the figures of a burst."""
    good = sum(n for status, n in found["statuses"].items() if status in ("200", "OK"))
    bad = sum(found["statuses"].values()) - good
    return {
        "CPU ms": 1e3 * found["cpu"] / max(1, good),
        "client ms": 1e3 * found["client cpu"] / max(1, good),
        "req/s": good / found["seconds"],
        "p50": percentile(found["ms"], 0.5),
        "p99": percentile(found["ms"], 0.99),
        "good": good,
        "bad": bad,
        "wrong": found["wrong"],
        "others": found["others"],
    }


def measure(bench: Bench, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return the figures of every burst."""
    kinds = [("in process", "")]
    kinds += [(who, p) for who, server in bench.servers.items() for p in server.addresses]
    rows = []
    for number in range(options.rounds + 1):
        for model in bench.files:
            for clients in options.clients:
                for who, protocol in kinds:
                    # The first round warms up: plans, connections, pages.
                    seconds = options.seconds if number else min(1.0, options.seconds)
                    found = bench.quiet_burst(
                        options.quiet if number else float("inf"), options.retries,
                        who, protocol, model, clients=clients, seconds=seconds,
                    )  # fmt: skip
                    if number:
                        row = {"round": number, "model": model, "clients": clients, "who": who,
                               "protocol": protocol}  # fmt: skip
                        rows.append(row | figures(found))
        print(f"round {number} of {options.rounds}", file=sys.stderr)
    return rows


def report(rows: list[dict[str, Any]], quiet: float) -> str:
    """Return a table with the medians."""
    names = ("CPU ms", "req/s", "p50", "p99")
    lines = []
    base = {
        (row["model"], row["clients"], row["round"]): row
        for row in rows
        if row["who"] == "in process"
    }
    seen: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        seen.setdefault((row["model"], row["clients"], row["who"], row["protocol"]), []).append(row)
    for (model, clients, who, protocol), found in sorted(seen.items(), key=lambda kv: kv[0][:2]):
        cells = [model, str(clients), f"{who} {protocol}".strip()]
        for name in names:
            value = statistics.median(row[name] for row in found)
            ratio = statistics.median(
                row[name] / base[model, clients, row["round"]][name] for row in found
            )
            cells.append(f"{value:.1f}" + (f" ({ratio:.2f})" if protocol else ""))
        cells.append(f"{statistics.median(row['client ms'] for row in found):.1f}")
        cells.append(str(sum(row["good"] for row in found)))
        wrong = sum(row["bad"] + row["wrong"] for row in found)
        cells.append("" if who == OTHER_BITS else str(wrong))
        disturbed = statistics.median(row["others"] for row in found) > quiet
        cells.append("~" if disturbed else "")
        lines.append(cells)
    return table(
        ["network", "clients", "", *names, "client ms", "answers", "wrong", "disturbed"], lines
    )


def start_servers(bench: Bench, options: argparse.Namespace) -> None:
    """Start all servers of a run."""
    models = [f"{name}={file}" for name, file in bench.files.items()]
    bench.servers["kuiper serve"] = kuiper_server(*models, "--batch", options.batch)
    if options.onnxruntime:
        ports = ["--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--batch", "1"]
        command = [sys.executable, HERE, "serving-onnxruntime", *models, *ports]
        bench.servers[OTHER_BITS] = Server(command)
    for peer in PEERS:
        python = getattr(options, peer)
        if python:
            addresses = {"http": f"127.0.0.1:{free_port()}", "grpc": f"127.0.0.1:{free_port()}"}
            command = [python, HERE, f"serving-{peer}", *models, *addresses.values()]
            if peer == "ray":
                del addresses["grpc"]
            server = bench.servers[peer] = Server(command, addresses)
            if peer == "mlserver":  # it refuses binary tensors over HTTP
                del server.addresses["http"]


def find(cache: Path, names: list[str]) -> dict[str, Path]:
    """Return the files of networks; names of files and of bundled models go as they are."""
    found = {}
    for name in names:
        file = model_folder(cache, name, 1) / "model.pnnx.param"
        if not file.exists():
            from kuiper.vision.model_zoo import find_model

            file = Path(name) if Path(name).exists() else Path(find_model(name))
        found[Path(name).name.removesuffix(".param").removesuffix(".pnnx")] = file.absolute()
    return found


def main() -> None:
    """Run the rounds and print the medians."""
    parser = argparse.ArgumentParser(
        prog="benchmarks serving", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    add = parser.add_argument
    add("--cache", type=Path, default=default_cache(), metavar="DIR", help="of `export`")
    add("--models", type=split_names, default="mobilenet_v2,resnet18", metavar="NAME,...",
        help="networks of the cache, bundled models or files")  # fmt: skip
    add("--clients", type=split_names, default="1,4,16", metavar="N,...")
    add("--rounds", type=int, default=3, metavar="N")
    add("--seconds", type=float, default=3.0, metavar="S", help="of a burst")
    add("--batch", default="auto", metavar="auto|N", help="of kuiper serve")
    add("--quiet", type=float, default=0.3, metavar="N", help="processors others may use")
    add("--retries", type=int, default=2, metavar="N", help="of a burst that was disturbed")
    add("--onnxruntime", action="store_true", help="in kuiper's server, on the same requests")
    for peer in PEERS:
        add(f"--{peer}", metavar="PYTHON", help=f"an interpreter with {peer}, with kuiper in it")
    add("--json", type=Path, metavar="FILE", help="write the figures of all bursts")
    options = parser.parse_args()
    if isinstance(options.models, str):
        options.models = split_names(options.models)
    given = options.clients if isinstance(options.clients, list) else split_names(options.clients)
    options.clients = [int(number) for number in given]
    print(", ".join(machine().values()))
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(find(options.cache, options.models), Path(folder))
        try:
            start_servers(bench, options)
            rows = measure(bench, options)
        finally:
            bench.close()
    print(report(rows, options.quiet))
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))
