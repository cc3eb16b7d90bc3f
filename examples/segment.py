"""Cut the foreground out of photos.

    python examples/segment.py examples/photos/chelsea.png --save out
    python examples/segment.py --model selfie --save out examples/photos/astronaut.png
    python examples/segment.py --model unet.pnnx.param --kind unet --size 512 --save out *.jpg

For photo.jpg it writes photo_mask.png, photo_overlay.png, and photo_cutout.png, which has a
transparent background.  If a network has several classes, the overlay shows each in another colour,
and the mask is everything but class 0.

    --model   segments                  preprocessing (--kind)
    u2netp    salient objects (default) u2net: 320x320 RGB, divided by its maximum, ImageNet's mean
    selfie    people                    selfie: 256x256 RGB, 0..1
    a file    as trained                unet: RGB, 0..1 (default); imagenet: minus ImageNet's mean

The exit code is 0 if every image could be read, 1 otherwise.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

import kuiper

try:
    from kuiper.vision import Segmenter, cut_out, load_image, overlay, save_image
    from kuiper.vision.segmentation import SEGMENTERS
except kuiper.MissingPackageError as error:
    sys.exit(f"segment.py: {error}")


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="segment.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("images", nargs="+", metavar="IMAGE", help="pictures in any format that OpenCV reads")
    add("--model", default="u2netp", metavar="NAME|FILE", help="default: u2netp, bundled")
    add("--kind", choices=SEGMENTERS, help="see above (default: the bundled model's, else unet)")
    add("--size", type=int, metavar="N", help="side of the network's input (default: as traced)")
    add("--save", type=Path, required=True, metavar="FOLDER", help="output folder")
    return parser.parse_args(argv)


def layers(segmenter: Segmenter, image: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the mask of a photo, and the photo with an overlay of every class."""
    (planes,) = segmenter.planes([image])  # (classes, height, width)
    mask, classes = 1 - planes[0], planes.argmax(axis=0)
    if len(planes) == 2:
        return mask, overlay(image, mask)
    laid = image
    for index in range(1, classes.max() + 1):
        laid = overlay(laid, (classes == index).astype(np.float32), index)
    return mask, laid


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program; return its exit code."""
    options = parse_arguments(argv)
    size = (options.size, options.size) if options.size else None
    try:
        segmenter = Segmenter(options.model, options.kind, size)
    except (OSError, ValueError, kuiper.KuiperError) as error:
        print(f"segment.py: {error}", file=sys.stderr)
        return 1
    failed = False
    for path in options.images:
        try:
            image = load_image(path)
        except (OSError, ValueError) as error:
            print(f"segment.py: {error}", file=sys.stderr)
            failed = True
            continue
        start = time.perf_counter()
        mask, laid = layers(segmenter, image)
        ms = (time.perf_counter() - start) * 1000
        print(f"{path}  {ms:.1f} ms, foreground {(mask > 0.5).mean():.1%}")
        stem = options.save / Path(path).stem
        save_image(f"{stem}_mask.png", np.rint(mask * 255).astype(np.uint8))
        save_image(f"{stem}_overlay.png", laid)
        save_image(f"{stem}_cutout.png", cut_out(image, mask))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
