"""Models on data of any size: columns in, columns out, on one machine or a cluster.

::

    predictor, pictures   the stages: Predictor, Classify, Detect, Segment
    stage                 what a stage is made of: loaded once per process, chunks on threads
    frames, fields        columns of numpy, Arrow and pandas; types of columns
    dataset               run_dataset: a folder or files in, shards out, resumable
    sources, sinks        Parquet, pictures, .npy, .npz, CSV -> columns -> Parquet, .npz, CSV, JSON
    plan                  the shards of a run, and which are written
    local, cluster        the engines: processes of this machine; tasks of Ray

A stage is a picklable callable without ties to an engine: Ray Data calls it by `map_batches`, Dask
by `map_partitions`, Spark by `mapInArrow`, and :func:`run_dataset` in a pool of processes.  None of
these packages is imported unless the caller uses it; Parquet needs pyarrow, and pictures need
OpenCV.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kuiper._support.lazy import lazy_names

if TYPE_CHECKING:
    from kuiper.batch.dataset import Summary, run_dataset
    from kuiper.batch.pictures import Classify, Detect, PictureStage, Segment
    from kuiper.batch.predictor import Predictor
    from kuiper.batch.stage import Stage

__all__ = [
    "Classify",
    "Detect",
    "PictureStage",
    "Predictor",
    "Segment",
    "Stage",
    "Summary",
    "run_dataset",
]

_HOMES = {
    "dataset": ("Summary", "run_dataset"),
    "pictures": ("Classify", "Detect", "PictureStage", "Segment"),
    "predictor": ("Predictor",),
    "stage": ("Stage",),
}
__getattr__, __dir__ = lazy_names(
    __name__, {name: f"{__name__}.{module}" for module, names in _HOMES.items() for name in names}
)
