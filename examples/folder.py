"""Classify a folder of thousands of photos, on all cores: python examples/folder.py IN OUT.

Killed or interrupted, it goes on when it is run again.  `kuiper run-dataset` has more options, and
docs/batch.md describes other inputs, other models and clusters.
"""

import sys

from kuiper.batch import Classify, run_dataset

if __name__ == "__main__":  # the worker processes import this file, too
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    photos, classes = sys.argv[1:]
    print(run_dataset(photos, classes, Classify("mobilenet_v2"), format="jsonl"))
