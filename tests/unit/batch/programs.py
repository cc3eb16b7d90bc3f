"""Programs that start Ray or Spark; each runs in a network namespace with the loopback alone.

python -m tests.unit.batch.programs NAME ARGUMENT...

Ray and the page of Spark listen on every interface, so they are refused where there are others.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np

from .support import doubled, plugin, rows_of, write_model

STORE = 100_000_000  # bytes of the object store of a node; Ray's minimum is 75 MB


def alone_on_loopback() -> None:
    """Bring the loopback up, and refuse to go on if there are other interfaces."""
    import fcntl

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        set_flags, up_and_running = 0x8914, 0x1 | 0x40
        fcntl.ioctl(control, set_flags, struct.pack("16sH14s", b"lo", up_and_running, b""))
    others = [name for _, name in socket.if_nameindex() if name != "lo"]
    if others:
        sys.exit(f"not in a namespace of its own: there are {others}")
    os.environ.update(RAY_USAGE_STATS_ENABLED="0", RAY_AUTH_MODE="disabled")


def with_cluster(*command: str) -> int:
    """Run a program that connects to a Ray cluster, which has one machine."""
    from ray.cluster_utils import Cluster

    node = {"num_cpus": 2, "object_store_memory": STORE, "node_ip_address": "127.0.0.1"}
    machine = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
    environ = {**os.environ, "RAY_ADDRESS": machine.address}
    done = subprocess.run([sys.executable, *command], env=environ, check=False)
    machine.shutdown()
    return done.returncode


def spark_worker(folder: str) -> dict[str, object]:
    """Lose a worker of Spark in the middle."""
    from pyspark.sql import SparkSession

    from kuiper.batch import Predictor

    model, code = plugin(Path(folder))
    x = rows_of(200)
    os.environ.update(HARM="kill-worker 77", HARM_MARKER=f"{folder}/marker")
    spark = SparkSession.builder.getOrCreate()
    rows = [(n, row.tolist()) for n, row in enumerate(x)]
    frame = spark.createDataFrame(rows, "id bigint, x array<float>").repartition(8)
    stage = Predictor(model, plugins=[code], threads=1)
    found = frame.mapInArrow(stage.arrow, stage.ddl(frame.schema)).collect()
    spark.stop()
    z = np.float32([row.z for row in sorted(found, key=lambda row: row.id)])
    killed = os.path.exists(f"{folder}/marker")
    return {"rows": len(found), "killed": killed, "equal": bool(np.array_equal(z, x))}


def data(name: str) -> dict[str, object]:
    """Run stages in Ray Data, as functions and as classes, in every format of batches."""
    import ray

    from kuiper.batch import Predictor
    from kuiper.batch.stage import assigned_threads

    ray.init(
        num_cpus=2, object_store_memory=STORE, include_dashboard=False, log_to_driver=False,
        _node_ip_address="127.0.0.1", logging_level="error",
    )  # fmt: skip
    ray.data.DataContext.get_current().enable_progress_bars = False
    folder = Path(name)
    model = str(write_model(folder))
    x = rows_of(200)
    rows = [{"id": n, "x": row} for n, row in enumerate(x)]
    source = ray.data.from_items(rows, override_num_blocks=4)
    told: dict[str, object] = {}
    for format in ("numpy", "pyarrow", "pandas"):
        for name, stage, more in (
            ("function", Predictor(model), {}),
            (
                "class",
                Predictor,
                {
                    "fn_constructor_args": (model,),
                    "compute": ray.data.ActorPoolStrategy(size=1),
                },
            ),
        ):
            found = source.map_batches(stage, batch_format=format, batch_size=16, **more).take_all()
            order = np.argsort([row["id"] for row in found])
            y = np.stack([np.asarray(found[n]["y"], np.float32) for n in order])
            told[f"{format} {name}"] = [len(found), bool(np.array_equal(y, doubled(x)))]

    # One network per worker, whatever number of tasks it runs, and the threads that Ray assigns.
    def look(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        found = (os.getpid(), id(Predictor(model).network), assigned_threads())
        return {"found": np.array([found] * len(batch["id"]))}

    found = source.map_batches(look, batch_size=10, num_cpus=2).take_all()
    workers = {tuple(row["found"]) for row in found}
    told["networks per worker"] = len(workers) / len({worker[0] for worker in workers})
    told["threads"] = sorted({int(worker[2]) for worker in workers})
    # Parquet in and out.
    source.write_parquet(str(folder / "in"))
    ray.data.read_parquet(str(folder / "in")).map_batches(
        Predictor(model), batch_format="pyarrow"
    ).write_parquet(str(folder / "out"))
    table = ray.data.read_parquet(str(folder / "out")).to_pandas().sort_values("id")
    told["parquet"] = bool(np.array_equal(np.stack(table["y"].to_list()), doubled(x)))
    ray.shutdown()
    return told


def cluster(name: str) -> dict[str, object]:
    """Lose a worker, a machine and the driver of runs on a cluster of three machines."""
    import ray
    from ray.cluster_utils import Cluster

    from kuiper.batch import Predictor, run_dataset

    folder = Path(name)
    model, code = plugin(folder)
    x = rows_of(600)
    np.save(folder / "x.npy", x)
    # Workers inherit it from the machines.
    os.environ.update(HARM="kill-worker-slowly 77", HARM_MARKER=str(folder / "marker"))
    node = {"num_cpus": 1, "object_store_memory": STORE, "node_ip_address": "127.0.0.1"}
    machines = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
    others = [machines.add_node(**node) for _ in range(2)]
    machines.wait_for_nodes()
    ray.init(address=machines.address, log_to_driver=False, logging_level="error")
    stage = Predictor(model, plugins=[code])
    told: dict[str, object] = {"machines": len([n for n in ray.nodes() if n["Alive"]])}

    def lose_one(out: Path) -> None:
        while len(list(out.glob("part-*"))) < 10:
            time.sleep(0.05)
        machines.remove_node(others.pop(), allow_graceful=False)
        told["written when it was lost"] = len(list(out.glob("part-*")))

    out = folder / "out"
    thread = threading.Thread(target=lose_one, args=(out,))
    thread.start()
    summary = run_dataset(folder / "x.npy", out, stage, engine="ray", shard=10, format="npz")
    thread.join()
    told["worker killed"] = (folder / "marker").exists()
    told["left"], end = 3, time.monotonic() + 60
    while told["left"] == 3 and time.monotonic() < end:  # Ray takes a moment to notice
        told["left"] = len([n for n in ray.nodes() if n["Alive"]])
    told["rows"], told["failed"] = summary.rows, summary.failed
    told["exactly once"] = complete(out, x)
    ray.shutdown()
    # The driver: a process that connects to the cluster, killed without a chance to say so.
    command = [
        sys.executable, "-m", "kuiper", "run-dataset", str(folder / "x.npy"), "--out",
        str(folder / "two"), "--task", "predict", "--model", str(model), "--plugin", str(code),
        "--engine", "ray", "--address", machines.address, "--shard", "10", "--format", "npz",
    ]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        while len(list((folder / "two").glob("part-*"))) < 5 and process.poll() is None:
            time.sleep(0.05)
        process.kill()
    told["written by the first"] = len(list((folder / "two").glob("part-*")))
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    told["second"] = [done.returncode, done.stdout.split(";")[1:], done.stderr]
    told["exactly once after the driver"] = complete(folder / "two", x)
    machines.shutdown()
    # Without a cluster, it starts none.
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    told["without a cluster"] = [done.returncode, done.stderr]
    return told


def complete(out: Path, x: np.ndarray) -> bool:
    """Tell whether every row is there once, in order, with the right bits."""
    found = [dict(np.load(part)) for part in sorted(out.glob("part-*"))]
    rows = np.concatenate([one["row"] for one in found])
    values = np.concatenate([one["z"] for one in found])
    finished = (out / "_SUCCESS").exists()
    return finished and np.array_equal(rows, np.arange(len(x))) and np.array_equal(values, x)


if __name__ == "__main__":
    alone_on_loopback()
    program, *arguments = sys.argv[1:]
    if program == "python":  # Spark
        os.execv(sys.executable, [sys.executable, *arguments])
    if program == "with-cluster":
        sys.exit(with_cluster(*arguments))
    named = {"data": data, "cluster": cluster, "spark-worker": spark_worker}
    print(json.dumps(named[program](*arguments)))
