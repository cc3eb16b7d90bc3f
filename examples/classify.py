"""Classify photos: run an image classification model with kuiper.

    python examples/classify.py examples/photos/chelsea.png
    python examples/classify.py --model squeezenet --topk 3 --save out photo1.jpg photo2.jpg
    python examples/classify.py --model resnet18.pnnx.param --preset course --json *.jpg

Any classification model exported by pnnx works: one input of shape (batch, 3, height, width), one
output with a score per class. The file does not say how pixels are preprocessed, so choose a preset
or set each number:

    preset    photo -> network input    channels  value of a pixel p, 0..255  as in
    imagenet  short side 256, cut 224   RGB       (p / 255 - mean) / std      torchvision, timm
    course    squeezed into 224x224     RGB       (p / 255 - mean) / std      KuiperInfer's course
    caffe     squeezed into 227x227     BGR       p - (104, 117, 123)         Caffe, ncnn
    tf        short side 256, cut 224   RGB       p / 127.5 - 1               TensorFlow, Keras

If the model file has another input size, it is used: for 299x299, `imagenet` scales the short side
to 342 and crops 299. Every option below --preset changes one column of this table.

Scores become probabilities by softmax, unless they are all in 0..1 and add up to 1, that is, unless
the model ends in a softmax.

The exit code is 0 if every image was classified, 1 otherwise; an unreadable image does not stop the
others.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from argparse import BooleanOptionalAction
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

import kuiper

try:
    from kuiper.vision import (
        PRESETS,
        Classifier,
        Guess,
        Preprocessing,
        draw_guesses,
        load_image,
        save_image,
    )
    from kuiper.vision.images import PICTURE_SUFFIXES
except kuiper.MissingPackageError as error:
    sys.exit(f"classify.py: {error}")

MODEL_HELP = "mobilenet_v2 (default), squeezenet, or a .pnnx.param file with its .bin beside it"
BATCH_HELP = "images to run in one call; the time shown is per image (default: 1)"


# -- printing the result ------------------------------------------------------------------


def report(path: str, elapsed: float, guesses: Sequence[Guess], as_json: bool) -> str:
    """Return the text for one image: a few lines of text, or one line of JSON."""
    if as_json:
        top = [vars(guess) for guess in guesses]
        return json.dumps({"file": path, "ms": round(elapsed, 3), "top": top}, ensure_ascii=False)
    lines = [f"{path}  {elapsed:.1f} ms"]
    lines += [f"  {guess.probability:.4f}  {guess.label}" for guess in guesses]
    return "\n".join(lines)


def picture_path(target: Path, source: str, taken: set[Path]) -> Path:
    """Return the path for the annotated `source`: `target`, or a new name in that folder."""
    if target.suffix.lower() in PICTURE_SUFFIXES:
        return target
    stem = Path(source).stem
    path, number = target / f"{stem}_classified.png", 1
    while path in taken:
        number += 1
        path = target / f"{stem}_classified_{number}.png"
    taken.add(path)
    return path


# -- the command line ---------------------------------------------------------------------


def number(text: str) -> float:
    """Read a number, also as a fraction such as 1/255."""
    top, _, bottom = text.partition("/")
    try:
        return float(top) / float(bottom or 1)
    except (ValueError, ZeroDivisionError):
        raise argparse.ArgumentTypeError(f"'{text}' is not a number or fraction") from None


def positive(text: str) -> int:
    """Read a positive integer."""
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"'{text}' is not a whole number above zero")
    return int(text)


def per_channel(text: str) -> tuple[float, ...]:
    """Read three numbers, one per channel, as in 104,117,123, or one for all channels."""
    values = tuple(number(part) for part in text.split(","))
    if len(values) not in (1, 3):
        raise argparse.ArgumentTypeError(f"'{text}' is not one number, nor three with commas")
    return values * 3 if len(values) == 1 else values


def divisors(text: str) -> tuple[float, ...]:
    """Read numbers for three channels, none of which is zero."""
    values = per_channel(text)
    if 0 in values:
        raise argparse.ArgumentTypeError(f"'{text}' would divide by zero")
    return values


def height_width(text: str) -> tuple[int, int]:
    """Read a size, as in 224 or 480x640 (height first)."""
    values = tuple(positive(part) for part in text.lower().split("x"))
    if len(values) > 2:
        raise argparse.ArgumentTypeError(f"'{text}' is not a size such as 224 or 480x640")
    return values[0], values[-1]


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="classify.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("images", nargs="+", metavar="IMAGE", help="pictures in any format that OpenCV reads")
    add("--model", default="mobilenet_v2", metavar="NAME|FILE", help=MODEL_HELP)
    add("--labels", metavar="FILE", help="class names, one a line (default: ImageNet's for 1000)")
    add("--topk", type=positive, default=5, metavar="N", help="how many guesses (default: 5)")
    add("--json", action="store_true", help="print one JSON object a line for each image")
    add("--save", type=Path, metavar="FILE|FOLDER", help="write the picture with the guesses on it")
    add("--threads", type=positive, metavar="N", help="number of threads (default: the cores)")
    add("--batch", type=positive, default=1, metavar="N", help=BATCH_HELP)
    add, flag = parser.add_argument_group("preprocessing").add_argument, BooleanOptionalAction
    add("--preset", choices=PRESETS, help="default: the bundled model's; imagenet for others")
    add("--size", type=height_width, metavar="N|HxW", help="the network's input size")
    add("--crop", action=flag, help="keep the proportions and crop the centre, or squeeze")
    add("--resize", type=positive, metavar="N", help="short side before the crop")
    add("--filter", choices=["bilinear", "bicubic"], help="how pixels are interpolated")
    add("--antialias", action=flag, help="shrink like Pillow and torchvision, or like OpenCV")
    add("--scale", type=number, metavar="X", help="factor on pixels 0..255, as in 1/255")
    add("--mean", type=per_channel, metavar="A,B,C", help="subtracted after scaling, per channel")
    add("--std", type=divisors, metavar="A,B,C", help="divided by after that, per channel")
    add("--bgr", action=flag, help="channels blue first, or red first")
    return parser.parse_args(argv)


def choose_preprocessing(options: argparse.Namespace, base: Preprocessing) -> Preprocessing:
    """Return the chosen preset, by default the model's, with the changes of the command line."""
    names = ("size", "crop", "resize", "filter", "antialias", "scale", "mean", "std", "bgr")
    named = {name: getattr(options, name) for name in names}
    changes = {name: value for name, value in named.items() if value is not None}
    how = PRESETS[options.preset] if options.preset else base
    how = replace(how, **{"size": base.size, **changes})
    if how.resize is not None and not how.crop:
        raise ValueError("--resize is the short side before a cut; it needs --crop")
    return how


def explain(error: Exception) -> str:
    """Return an error as one readable line."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}"
    return str(error)


@dataclass(frozen=True)
class Item:
    """An image on its way through the network."""

    path: str
    image: np.ndarray
    x: np.ndarray


def in_batches(items: Iterable[Item], count: int) -> Iterator[list[Item]]:
    """Group items, in order, into groups of at most `count` items of one shape."""
    group: list[Item] = []
    for item in items:
        if group and (len(group) == count or item.x.shape != group[0].x.shape):
            yield group
            group = []
        group.append(item)
    if group:
        yield group


def classify(options: argparse.Namespace) -> bool:
    """Classify all images of the command line; return whether all could be read."""
    if (
        options.save is not None
        and options.save.suffix.lower() in PICTURE_SUFFIXES
        and len(options.images) > 1
    ):
        raise ValueError("--save: one file for several images; name a folder instead")
    if options.threads is not None:
        kuiper.set_num_threads(options.threads)
    classifier = Classifier(options.model, labels=options.labels)
    classifier.how = choose_preprocessing(options, classifier.how)
    unreadable: list[str] = []
    warm_shapes: set[tuple[int, ...]] = set()
    taken: set[Path] = set()

    def readable_items() -> Iterator[Item]:
        for path in options.images:
            try:
                image = load_image(path)
                yield Item(path, image, classifier.preprocess(image))
            except (OSError, ValueError) as error:
                print(f"classify.py: {explain(error)}", file=sys.stderr)
                unreadable.append(path)

    for group in in_batches(readable_items(), options.batch):
        x = np.stack([item.x for item in group])  # (n, 3, height, width)
        if x.shape not in warm_shapes:
            classifier.model.plan(x.shape)  # do not time the preparations of a first call
            classifier.scores(x)
            warm_shapes.add(x.shape)
        start = time.perf_counter()
        scores = classifier.scores(x)
        elapsed = (time.perf_counter() - start) * 1000
        for item, guesses in zip(group, classifier.guesses(scores, options.topk), strict=True):
            print(report(item.path, elapsed / len(group), guesses, options.json), flush=True)
            if options.save is not None:
                path = picture_path(options.save, item.path, taken)
                save_image(path, draw_guesses(item.image, guesses))
    return not unreadable


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program; return its exit code."""
    options = parse_arguments(argv)
    try:
        return 0 if classify(options) else 1
    except (OSError, ValueError, kuiper.KuiperError) as error:
        print(f"classify.py: {explain(error)}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
