"""Convert torchvision's detectors by `kuiper.from_torch` and compare their boxes with PyTorch's.

Their outputs are the boxes found, best first, and scores that differ only in their last bits change
the order.  So boxes are compared as sets: each of PyTorch's boxes must match a different box of
kuiper's with the same label, a score at most 1e-4 and corners at most 1e-3 of the image's extent
apart, and kuiper may find no more.  Results are kept in ``detectors.json`` of the cache;
``python benchmarks zoo --write`` puts them into docs/models.md.

Usage, with what ``survey.py`` needs::

    python benchmarks zoo-detectors
    python benchmarks zoo-detectors --models retinanet_resnet50_fpn
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

import numpy as np

from common import default_cache, split_names
from zoo import survey

MODELS = (
    "ssdlite320_mobilenet_v3_large",
    "retinanet_resnet50_fpn",
    "fcos_resnet50_fpn",
    "ssd300_vgg16",
    "fasterrcnn_mobilenet_v3_large_320_fpn",
    "maskrcnn_resnet50_fpn",
)
SCORE, CORNER = 1e-4, 1e-3
IMAGES = 3


def boxes_scores_labels(results) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return boxes, scores and labels of a detector, in whatever order it returns them."""
    (boxes,) = (array for array in results if array.ndim == 2)
    flat = [array for array in results if array.ndim == 1]
    (scores,) = (array for array in flat if array.dtype.kind == "f")
    (labels,) = (array for array in flat if array.dtype.kind == "i")
    return boxes, scores, labels


def matched(actual, wanted, extent: int) -> dict:
    """Return the numbers of boxes of PyTorch, of kuiper, and of matching ones."""
    boxes, scores, labels = boxes_scores_labels(actual)
    wanted_boxes, wanted_scores, wanted_labels = boxes_scores_labels(wanted)
    free = np.ones(len(boxes), dtype=bool)
    worst_score = worst_corner = 0.0
    same = 0
    for box, score, label in zip(wanted_boxes, wanted_scores, wanted_labels, strict=True):
        apart = abs(scores - score)
        distance = abs(boxes - box).max(1) / extent
        fits = free & (labels == label) & (apart <= SCORE) & (distance <= CORNER)
        if not fits.any():
            continue
        best = int(np.where(fits, distance, np.inf).argmin())
        free[best] = False
        same += 1
        worst_score = max(worst_score, float(apart[best]))
        worst_corner = max(worst_corner, float(distance[best]))
    return {
        "wanted": len(wanted_boxes),
        "found": len(boxes),
        "same": same,
        "score": worst_score,
        "corner": worst_corner,
    }


def examine(name: str) -> dict:
    """Return the results of a detector for pictures, and for a black one with equal scores."""
    import torch

    import kuiper
    from networks.weights import SEED, keep_alive

    network = survey.FAMILIES["vision"][2](name)
    torch.manual_seed(SEED)
    module = network.build().eval()

    def draw(seed: int):
        return torch.from_numpy(network.draw(1, seed)[0])

    # Without calm, nearly all anchors score above the threshold, or none.
    keep_alive(module, (draw(SEED),), SEED, calm=True)
    inputs = {f"picture {index}": draw(index) for index in range(1, IMAGES + 1)}
    inputs["black"] = torch.zeros_like(draw(1))
    model = kuiper.from_torch(module, inputs["picture 1"])
    facts = {}
    for label, x in inputs.items():
        with torch.no_grad():
            wanted = [array.numpy() for array in module(x)]
        try:
            facts[label] = matched(model(x.numpy()), wanted, x.shape[-1])
        except kuiper.KuiperError as error:
            facts[label] = {"failed": str(error)[:300]}
    return facts


def main() -> int:
    """Examine the models of the command line."""
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default=",".join(MODELS), help="%(default)s")
    parser.add_argument("--cache", type=Path, default=default_cache(), help="%(default)s")
    options = parser.parse_args()
    store = options.cache / "detectors.json"
    survey.names_of("vision")
    for name in split_names(options.models):
        found = survey._load(store) | {name: examine(name)}
        store.write_text(json.dumps(found, indent=1))
        print(name, found[name], flush=True)
    return 0
