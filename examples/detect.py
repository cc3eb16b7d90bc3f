"""Detect objects in photos and draw boxes around them.

    python examples/detect.py examples/photos/chelsea.png --save out
    python examples/detect.py --model yolov5s.pnnx.param --size 640 *.jpg
    python examples/detect.py --model yolo11n.pnnx.param --labels my_classes.txt --json *.jpg

The default model is the bundled NanoDet-m.  Any export of NanoDet, YOLOv5, v8, v9, v10 or 11 works,
whole or in the form of the KuiperInfer course, which keeps the head of YOLOv5 as one operator
`models.yolo.Detect`.  The shapes of the outputs determine the family.

The stages:

    letterbox    scaled to the network's input with its proportions kept, bars on two sides
    normalise    YOLO: RGB, 0..1;  NanoDet: BGR, minus mean, divided by deviation
    run          boxes and scores for several thousand positions
    decode       depends on the family of the network (kuiper/vision/detection.py)
    suppress     of boxes of one class that overlap by more than --iou, the highest score stays
    map back     from the network's pixels to the photo's, clipped at its border

The exit code is 0 if every image could be read, 1 otherwise.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import kuiper

try:
    from kuiper.vision import Detector, draw_detections, load_image, save_image
except kuiper.MissingPackageError as error:
    sys.exit(f"detect.py: {error}")


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="detect.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("images", nargs="+", metavar="IMAGE", help="pictures in any format that OpenCV reads")
    add("--model", default="nanodet_m", metavar="NAME|FILE", help="default: nanodet_m, bundled")
    add("--labels", metavar="FILE", help="class names, one a line (default: COCO's for 80 classes)")
    add("--threshold", type=float, metavar="X", help="minimum score (0.4 NanoDet, 0.25 YOLO)")
    add("--iou", type=float, default=0.5, metavar="X", help="overlap of boxes of one object (0.5)")
    add("--size", type=int, metavar="N", help="side of the network's input (default: as traced)")
    add("--save", type=Path, metavar="FOLDER", help="write the pictures with boxes on them")
    add("--json", action="store_true", help="print one JSON object a line for each image")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program; return its exit code."""
    options = parse_arguments(argv)
    size = (options.size, options.size) if options.size else None
    try:
        detector = Detector(
            options.model, options.labels, options.threshold, options.iou, size=size
        )
    except (OSError, ValueError, kuiper.KuiperError) as error:
        print(f"detect.py: {error}", file=sys.stderr)
        return 1
    failed = False
    for path in options.images:
        try:
            image = load_image(path)
        except (OSError, ValueError) as error:
            print(f"detect.py: {error}", file=sys.stderr)
            failed = True
            continue
        start = time.perf_counter()
        (found,) = detector([image])
        ms = (time.perf_counter() - start) * 1000
        if options.json:
            print(json.dumps({"file": path, "ms": ms, "detections": [vars(d) for d in found]}))
        else:
            print(f"{path}  {ms:.1f} ms")
            for thing in found:
                box = " ".join(f"{value:.0f}" for value in thing.box)
                print(f"  {thing.score:.4f}  {thing.label:<14} {box}")
        if options.save is not None:
            save_image(options.save / f"{Path(path).stem}_boxes.png", draw_detections(image, found))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
