"""Name what is on a photo: run an image classification model with kuiper.

    python examples/classify.py examples/photos/chelsea.png
    python examples/classify.py --model squeezenet --topk 3 --save out photo1.jpg photo2.jpg
    python examples/classify.py --model resnet18.pnnx.param --preset course --json *.jpg

Any classification model that pnnx exported will do: one input of shape (batch, 3, height, width),
one output with a score for each class. What a network expects its pixels to look like is not
in the file, so it has to be said, by a preset or number by number:

    preset    photo -> network input    channels  value of a pixel p, 0..255  as in
    imagenet  short side 256, cut 224   RGB       (p / 255 - mean) / std      torchvision, timm
    course    squeezed into 224x224     RGB       (p / 255 - mean) / std      KuiperInfer's course
    caffe     squeezed into 227x227     BGR       p - (104, 117, 123)         Caffe, ncnn
    tf        short side 256, cut 224   RGB       p / 127.5 - 1               TensorFlow, Keras

The sizes follow the model file: for one with a 299x299 input, `imagenet` scales the short side to
342 and cuts out 299. Every option below --preset changes one column of this table.

Scores become probabilities by softmax, except where the model did that itself: scores that are
all in 0..1 and add up to 1 are printed as they are.

The exit code is 0 where every image was classified, 1 otherwise; a bad image does not keep the
others from their turn.
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
    import cv2
except ImportError:
    sys.exit("classify.py reads pictures with OpenCV: pip install opencv-python-headless")

FOLDER = Path(__file__).resolve().parent / "models"
IMAGENET_LABELS = FOLDER / "imagenet_classes.txt"

# The models beside this file, each with the preset it was trained with.
BUNDLED = {
    "mobilenet_v2": ("mobilenet_v2.f16.pnnx.param", "imagenet"),
    "squeezenet": ("squeezenet_v1.1.f16.pnnx.param", "caffe"),
}

MODEL_HELP = "mobilenet_v2 (default), squeezenet, or a .pnnx.param file with its .bin beside it"
BATCH_HELP = "images to run in one call; the time shown is then the share of one (default: 1)"
PICTURE_SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".webp"}


# -- from a photo to the network's input ---------------------------------------------------


@dataclass(frozen=True)
class Preprocessing:
    """How pixels become the numbers a network was trained on.

    Attributes
    ----------
    mean, std : tuple of float
        One number per channel, in the order the network takes the channels;
        value = (pixel * scale - mean) / std.
    scale : float
        Factor on the pixels 0..255.
    bgr : bool
        Channel order blue, green, red, instead of red, green, blue.
    crop : bool
        Keep the photo's proportions and cut out the centre; otherwise squeeze all of it in.
    antialias : bool
        Average over all pixels when shrinking, as Pillow and torchvision do, instead of
        looking at the four nearest ones, as OpenCV's bilinear resize does.
    size : tuple of int, optional
        Height and width of the network's input; from the model file where None.
    resize : int, optional
        Pixels of the short side before the cut; size / 0.875 where None (256 for 224).
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]
    scale: float = 1 / 255
    bgr: bool = False
    crop: bool = True
    antialias: bool = True
    size: tuple[int, int] | None = None
    resize: int | None = None


_IMAGENET = Preprocessing(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))

PRESETS = {
    "imagenet": _IMAGENET,
    "course": replace(_IMAGENET, crop=False, antialias=False),
    "caffe": Preprocessing(
        mean=(104, 117, 123), std=(1, 1, 1), scale=1, bgr=True, crop=False, antialias=False
    ),
    "tf": Preprocessing(mean=(1, 1, 1), std=(1, 1, 1), scale=1 / 127.5),
}


def load_image(path: str | Path) -> np.ndarray:
    """Read a picture as uint8 (height, width, 3), blue first, turned upright by its EXIF tag."""
    # Not cv2.imread: that one cannot open every file name on Windows, and never says why.
    data = np.fromfile(path, np.uint8)
    image = cv2.imdecode(data, cv2.IMREAD_COLOR) if data.size else None
    if image is None:
        raise ValueError(f"{path}: not an image in a format that OpenCV can read")
    return image


def triangle_weights(length: int, new_length: int) -> np.ndarray:
    """Return the (new_length, length) matrix that resizes one axis by antialiased bilinear."""
    step = length / new_length
    centres = (np.arange(new_length) + 0.5) * step
    distances = np.abs(np.arange(length) + 0.5 - centres[:, None])
    weights = np.maximum(0, 1 - distances / max(step, 1))
    return (weights / weights.sum(axis=1, keepdims=True)).astype(np.float32)


def resize_antialiased(image: np.ndarray, height: int, width: int) -> np.ndarray:
    """Resize as Pillow's BILINEAR and torchvision's antialias=True; OpenCV has no such filter."""
    # A photo many times larger is first averaged down by a whole factor, which loses nothing
    # that the filter would keep and spares it most of the work.
    factor = int(min(image.shape[0] / height, image.shape[1] / width) / 3)
    if factor > 1:
        smaller = (image.shape[1] // factor, image.shape[0] // factor)
        image = cv2.resize(image, smaller, interpolation=cv2.INTER_AREA)
    rows = triangle_weights(image.shape[0], height)
    columns = triangle_weights(image.shape[1], width)
    half = np.tensordot(rows, image.astype(np.float32), axes=1)  # (height, old width, 3)
    return np.rint(columns @ half).astype(np.uint8)  # (height, width, 3)


def preprocess(image: np.ndarray, how: Preprocessing) -> np.ndarray:
    """Turn a picture into float32 (3, height, width), the input of the network for one image."""
    old_height, old_width = image.shape[:2]
    height, width = how.size
    if not how.crop:
        new_height, new_width = height, width
    else:
        if how.resize is None:
            ratio = max(height / old_height, width / old_width) / 0.875
        else:
            ratio = how.resize / min(old_height, old_width)
        # As torchvision: the short side rounded, the long one cut to whole pixels.
        new_height, new_width = (
            round(n * ratio) if n == min(old_height, old_width) else int(n * ratio)
            for n in (old_height, old_width)
        )
    if new_height < height or new_width < width:
        raise ValueError(
            f"cannot cut {height}x{width} pixels out of {new_height}x{new_width}; "
            f"let --resize be {max(height, width)} or more"
        )
    if how.antialias:
        image = resize_antialiased(image, new_height, new_width)
    else:
        image = cv2.resize(image, (new_width, new_height), interpolation=cv2.INTER_LINEAR)
    top, left = round((new_height - height) / 2), round((new_width - width) / 2)
    image = image[top : top + height, left : left + width]
    if not how.bgr:
        image = image[:, :, ::-1]
    values = (image * np.float32(how.scale) - np.float32(how.mean)) / np.float32(how.std)
    return np.ascontiguousarray(values.transpose(2, 0, 1), dtype=np.float32)


# -- the network --------------------------------------------------------------------------


def load_model(name: str) -> tuple[kuiper.Model, str]:
    """Load a bundled model by name, or any other by path; return it with its preset's name."""
    if name in BUNDLED:
        file, preset = BUNDLED[name]
        path = FOLDER / file
    else:
        path, preset = Path(name), "imagenet"
    if not path.exists():
        known = ", ".join(BUNDLED)
        raise FileNotFoundError(2, f"no such model file, and not one of {known}", name)
    model = kuiper.load(path)
    if len(model.inputs) != 1 or len(input_shape(model)) != 4 or len(model.outputs) != 1:
        raise ValueError(
            f"{path}: not an image classification model: inputs {shapes(model.inputs)}, outputs "
            f"{shapes(model.outputs)}, expected one input (batch, 3, height, width) and one output"
        )
    return model, preset


def shapes(tensors: Sequence[kuiper.TensorInfo]) -> str:
    """List the shapes of a model's inputs or outputs."""
    return ", ".join(str(tensor.shape) for tensor in tensors)


def input_shape(model: kuiper.Model) -> tuple[int | None, ...]:
    """Return the shape of the first input, with None where the model file leaves it open."""
    return model.inputs[0].shape or (None, 3, None, None)


def input_size(model: kuiper.Model) -> tuple[int, int]:
    """Return height and width of the input, 224 where the model file leaves it open."""
    height, width = input_shape(model)[2:]
    return height or 224, width or 224


def probabilities(scores: np.ndarray) -> np.ndarray:
    """Return scores (n, classes) as probabilities; softmax only where they are none yet."""
    if (scores >= 0).all() and np.allclose(scores.sum(axis=1), 1, atol=1e-3):
        return scores
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def run(model: kuiper.Model, x: np.ndarray) -> tuple[np.ndarray, float]:
    """Run the network on x (n, 3, height, width); return scores (n, classes) and milliseconds."""
    start = time.perf_counter()
    y = model(x)
    elapsed = (time.perf_counter() - start) * 1000
    if y.shape[0] != len(x) or y.size != y.shape[0] * y.shape[1]:
        raise ValueError(
            f"the model's output has shape {y.shape}; a classification model gives one row of "
            f"scores for each of the {len(x)} images"
        )
    return y.reshape(len(x), -1), elapsed


def load_labels(path: str | Path | None, n_classes: int) -> list[str]:
    """Return the classes' names: a file's lines, ImageNet's for 1000 classes, or numbers."""
    if path is None:
        if n_classes != 1000 or not IMAGENET_LABELS.exists():
            return [f"class {number}" for number in range(n_classes)]
        path = IMAGENET_LABELS
    labels = Path(path).read_text(encoding="utf-8").splitlines()
    if len(labels) != n_classes:
        raise ValueError(f"{path}: {len(labels)} lines, but the model knows {n_classes} classes")
    return labels


# -- telling the result -------------------------------------------------------------------


@dataclass(frozen=True)
class Guess:
    """One class that may be on the picture."""

    index: int
    label: str
    probability: float


def best_guesses(row: np.ndarray, labels: Sequence[str], count: int) -> list[Guess]:
    """Return the `count` most probable classes, the best first."""
    order = np.argsort(-row, kind="stable")[:count]
    return [Guess(int(i), labels[i], float(row[i])) for i in order]


def report(path: str, elapsed: float, guesses: Sequence[Guess], as_json: bool) -> str:
    """Return the text for one image: a few lines to read, or one line of JSON."""
    if as_json:
        top = [vars(guess) for guess in guesses]
        return json.dumps({"file": path, "ms": round(elapsed, 3), "top": top}, ensure_ascii=False)
    lines = [f"{path}  {elapsed:.1f} ms"]
    lines += [f"  {guess.probability:.4f}  {guess.label}" for guess in guesses]
    return "\n".join(lines)


def annotate(image: np.ndarray, guesses: Sequence[Guess]) -> np.ndarray:
    """Return a copy of the picture with the guesses on it, their probabilities as bars."""
    if image.shape[1] < 320:
        image = cv2.resize(image, (320, round(image.shape[0] * 320 / image.shape[1])))
    picture = image.copy()
    width = picture.shape[1]
    size = width / 900  # of the letters; everything else follows it
    line, margin, thickness = round(44 * size), round(16 * size), max(1, round(2 * size))
    panel = picture[: 2 * margin + line * len(guesses)]
    panel //= 3
    white, blue = (255, 255, 255), (160, 110, 30)
    for number, guess in enumerate(guesses):
        top = margin + line * number
        end = margin + round((width - 2 * margin) * guess.probability)
        cv2.rectangle(picture, (margin, top), (end, top + line - margin // 2), blue, cv2.FILLED)
        text, at = f"{guess.probability:.1%}  {guess.label}", (2 * margin, top + line * 5 // 8)
        cv2.putText(
            picture, text, at, cv2.FONT_HERSHEY_SIMPLEX, size, white, thickness, cv2.LINE_AA
        )
    return picture


def save_image(path: Path, image: np.ndarray) -> None:
    """Write a picture in the format that the path's suffix names."""
    good, data = cv2.imencode(path.suffix, image)
    if not good:
        raise ValueError(f"{path}: OpenCV could not encode the picture")
    path.parent.mkdir(parents=True, exist_ok=True)
    data.tofile(path)


def picture_path(target: Path, source: str, taken: set[Path]) -> Path:
    """Return where the annotated `source` goes: `target` itself, or a new name in that folder."""
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
    """Read a whole number above zero."""
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"'{text}' is not a whole number above zero")
    return int(text)


def per_channel(text: str) -> tuple[float, ...]:
    """Read one number for each of three channels, as in 104,117,123; one alone is for all."""
    values = tuple(number(part) for part in text.split(","))
    if len(values) not in (1, 3):
        raise argparse.ArgumentTypeError(f"'{text}' is not one number, nor three with commas")
    return values * 3 if len(values) == 1 else values


def divisors(text: str) -> tuple[float, ...]:
    """Read numbers for three channels, none of them zero."""
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
    add("--threads", type=positive, metavar="N", help="threads to use (default: what the CPU has)")
    add("--batch", type=positive, default=1, metavar="N", help=BATCH_HELP)
    add, flag = parser.add_argument_group("preprocessing").add_argument, BooleanOptionalAction
    add("--preset", choices=PRESETS, help="default: the bundled model's; imagenet for others")
    add("--size", type=height_width, metavar="N|HxW", help="the network's input size")
    add("--crop", action=flag, help="keep the proportions and cut the centre, or squeeze all in")
    add("--resize", type=positive, metavar="N", help="short side before the cut")
    add("--antialias", action=flag, help="shrink as Pillow and torchvision do, or as OpenCV does")
    add("--scale", type=number, metavar="X", help="factor on pixels 0..255, as in 1/255")
    add("--mean", type=per_channel, metavar="A,B,C", help="subtracted after scaling, per channel")
    add("--std", type=divisors, metavar="A,B,C", help="divided by after that, per channel")
    add("--bgr", action=flag, help="channels blue first, or red first")
    return parser.parse_args(argv)


def choose_preprocessing(
    options: argparse.Namespace, preset: str, size: tuple[int, int]
) -> Preprocessing:
    """Take a preset and change what the command line names."""
    names = ("size", "crop", "resize", "antialias", "scale", "mean", "std", "bgr")
    named = {name: getattr(options, name) for name in names}
    changes = {name: value for name, value in named.items() if value is not None}
    how = replace(PRESETS[options.preset or preset], **{"size": size, **changes})
    if how.resize is not None and not how.crop:
        raise ValueError("--resize is the short side before a cut; it needs --crop")
    return how


def explain(error: Exception) -> str:
    """Return an error as a line for people."""
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
    """Group items, in order, by `count` at most and such that all in a group have one shape."""
    group: list[Item] = []
    for item in items:
        if group and (len(group) == count or item.x.shape != group[0].x.shape):
            yield group
            group = []
        group.append(item)
    if group:
        yield group


def classify(options: argparse.Namespace) -> bool:
    """Classify all images of the command line; tell whether every one could be read."""
    if (
        options.save is not None
        and options.save.suffix.lower() in PICTURE_SUFFIXES
        and len(options.images) > 1
    ):
        raise ValueError("--save: one file for several images; name a folder instead")
    if options.threads is not None:
        kuiper.set_num_threads(options.threads)
    model, preset = load_model(options.model)
    how = choose_preprocessing(options, preset, input_size(model))
    unreadable: list[str] = []
    warm_shapes: set[tuple[int, ...]] = set()
    taken: set[Path] = set()
    labels: list[str] | None = None

    def readable_items() -> Iterator[Item]:
        for path in options.images:
            try:
                image = load_image(path)
                yield Item(path, image, preprocess(image, how))
            except (OSError, ValueError) as error:
                print(f"classify.py: {explain(error)}", file=sys.stderr)
                unreadable.append(path)

    for group in in_batches(readable_items(), options.batch):
        x = np.stack([item.x for item in group])  # (n, 3, height, width)
        if x.shape not in warm_shapes:
            run(model, x)  # the first call at a new shape also plans memory; do not time that
            warm_shapes.add(x.shape)
        scores, elapsed = run(model, x)
        labels = load_labels(options.labels, scores.shape[1]) if labels is None else labels
        for item, row in zip(group, probabilities(scores), strict=True):
            guesses = best_guesses(row, labels, options.topk)
            print(report(item.path, elapsed / len(group), guesses, options.json), flush=True)
            if options.save is not None:
                path = picture_path(options.save, item.path, taken)
                save_image(path, annotate(item.image, guesses))
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
