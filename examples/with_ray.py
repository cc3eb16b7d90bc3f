"""Classify JPEG files in a Parquet data set on a Ray cluster: python examples/with_ray.py IN OUT.

IN is a folder of Parquet files with the column `image` (bytes); OUT gets the other columns, and the
class of each.  The cluster is that of the environment variable RAY_ADDRESS.  Every machine needs
kuiper, the model under the same path, and IN and OUT, such as `s3://bucket/photos`.

A run that fails starts again from the beginning; `kuiper run-dataset --engine ray` goes on.
"""

import sys

import ray

from kuiper.batch import Classify

if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    source, out = sys.argv[1:]
    ray.init(address="auto")
    # An actor per machine: its threads, as many as num_cpus, share one copy of the weights.
    machines = [machine for machine in ray.nodes() if machine["Alive"]]
    # One processor of each machine reads and writes.
    cores = max(1, int(min(machine["Resources"].get("CPU", 1) for machine in machines)) - 1)
    (
        ray.data.read_parquet(source)
        # Parquet files become few blocks, and an actor without a block has nothing to do.
        .repartition(target_num_rows_per_block=256)
        .map_batches(
            Classify,
            fn_constructor_args=("mobilenet_v2",),
            batch_size=64,
            batch_format="pyarrow",
            num_cpus=cores,
            compute=ray.data.ActorPoolStrategy(size=len(machines)),
        )
        .write_parquet(out)
    )
