"""Classify JPEG files in a Parquet data set with Dask: python examples/with_dask.py IN OUT.

IN is a folder of Parquet files with the column `image` (bytes); OUT gets the other columns, and the
class of each.  Without `dask.distributed`, Dask runs the partitions in processes of this machine.
"""

import sys

import dask
import dask.dataframe as dd

from kuiper.batch import Classify

if __name__ == "__main__":  # the worker processes import this file, too
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    source, out = sys.argv[1:]
    photos = dd.read_parquet(source, split_row_groups=True)
    stage = Classify("mobilenet_v2", threads=1)
    # The types of the results are those of no rows.
    classes = photos.map_partitions(stage, meta=stage(photos._meta))
    with dask.config.set(scheduler="processes"):
        classes.to_parquet(out)
