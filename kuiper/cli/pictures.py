"""Commands on pictures and videos: classify, detect, segment."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kuiper.cli._arguments import (
    Commands,
    add_output,
    add_preprocessing,
    fraction,
    height_width,
    new_command,
    positive,
)
from kuiper.cli._console import Console
from kuiper.pnnx._messages import plural
from kuiper.vision.model_zoo import TASKS

__all__ = ["add_commands"]

_INPUT = """\
INPUT is a picture, a folder (searched recursively), a video, the number of a camera, or - for a
picture from standard input.
"""


def add_commands(commands: Commands) -> None:
    """Add the commands of this module to the parser."""
    parser = new_command(
        commands,
        classify,
        "classify pictures",
        f"{_INPUT}example: kuiper classify photo.jpg --topk 3 --save annotated/",
    )
    _add_common(parser, "classify")
    add = parser.add_argument
    add("--labels", metavar="FILE", help="class names, one per line")
    add("--topk", type=positive, default=5, metavar="N", help="number of guesses (default: 5)")
    add_preprocessing(parser)

    parser = new_command(
        commands,
        detect,
        "detect objects in pictures and draw their boxes",
        f"{_INPUT}MODEL is any export of NanoDet or YOLOv5, v8, v9, v10 or 11.\n"
        "example: kuiper detect holiday/ --save boxes/ --json",
    )
    _add_common(parser, "detect")
    add = parser.add_argument
    add("--labels", metavar="FILE", help="class names, one per line (default: COCO's for 80)")
    add("--threshold", type=fraction, metavar="X", help="minimum score (default: the decoder's)")
    add("--iou", type=fraction, default=0.5, metavar="X", help="overlap of duplicates (0.5)")
    add(
        "--decoder",
        choices=["nanodet", "yolov5", "yolov8", "end2end"],
        help="format of the outputs (default: derived from their shapes)",
    )
    add("--size", type=height_width, metavar="N|HxW", help="input size of the network")

    parser = new_command(
        commands,
        segment,
        "separate the foreground of pictures from the background",
        f"{_INPUT}--save writes _mask, _overlay and _cutout (transparent) for each picture.\n"
        "example: kuiper segment portrait.jpg --model selfie --save out/",
    )
    _add_common(parser, "segment")
    add = parser.add_argument
    add(
        "--kind",
        choices=["u2net", "selfie", "unet", "imagenet"],
        help="preprocessing and output (default: that of the bundled model; unet for others)",
    )
    add("--size", type=height_width, metavar="N|HxW", help="input size of the network")


def _add_common(parser: argparse.ArgumentParser, command: str) -> None:
    add, names = parser.add_argument, TASKS[command]
    add("inputs", nargs="+", metavar="INPUT", help="pictures, folders, videos, cameras")
    add(
        "--model",
        default=names[0],
        metavar="NAME|FILE",
        help=f"{', '.join(names)}, or a .pnnx.param or .onnx file (default: {names[0]})",
    )
    add("--save", type=Path, metavar="FOLDER", help="write the resulting pictures or videos")
    add("--batch", type=positive, default=1, metavar="N", help="pictures per call (default: 1)")
    add_output(parser)


@dataclass
class _Job:
    """The functions of a command on pictures.

    Attributes
    ----------
    plan : callable
        A number of pictures -> None; plans the network for them, so that times exclude it.
    compute : callable
        Pictures -> a result for each.
    record : callable
        A result -> its JSON fields.
    lines : callable
        A result -> lines of text.
    draw : callable
        A picture and its result -> (suffix of the name, picture) for each picture to save; videos
        use the first.
    seen : callable
        A result -> the contribution of a frame to the summary of a video, by name.
    """

    plan: Callable[[int], Any]
    compute: Callable[[list[np.ndarray]], list[Any]]
    record: Callable[[Any], dict[str, Any]]
    lines: Callable[[Any], list[str]]
    draw: Callable[[np.ndarray, Any], list[tuple[str, np.ndarray]]]
    seen: Callable[[Any], dict[str, float]]


def classify(options: argparse.Namespace, console: Console) -> int:
    """Classify pictures."""
    from kuiper.cli._inputs import preprocessing
    from kuiper.vision import Classifier, draw_guesses

    classifier = Classifier(options.model, labels=options.labels)
    classifier.how = preprocessing(options, classifier.how)
    size = classifier.how.size or ()
    job = _Job(
        lambda count: classifier.model.plan((count, 3, *size)),
        lambda images: classifier(images, options.topk),
        lambda guesses: {"top": [vars(guess) for guess in guesses]},
        lambda guesses: [f"  {guess.probability:.4f}  {guess.label}" for guess in guesses],
        lambda image, guesses: [("_classified", draw_guesses(image, guesses))],
        lambda guesses: {guesses[0].label: 1},
    )
    return _work(options, console, job)


def detect(options: argparse.Namespace, console: Console) -> int:
    """Detect objects in pictures."""
    from kuiper.vision import Detector, draw_detections

    detector = Detector(
        options.model, options.labels, options.threshold, options.iou, options.decoder, options.size
    )

    def record(found: Any) -> dict[str, Any]:
        return {
            "detections": [
                {**vars(d), "score": round(d.score, 6), "box": [round(v, 2) for v in d.box]}
                for d in found
            ]
        }

    def lines(found: Any) -> list[str]:
        return [
            f"  {d.score:.4f}  {d.label}  {' '.join(f'{v:.0f}' for v in d.box)}" for d in found
        ] or ["  nothing"]

    job = _Job(
        lambda count: detector.model.plan((count, 3, *detector.size)),
        detector,
        record,
        lines,
        lambda image, found: [("_boxes", draw_detections(image, found))],
        lambda found: {d.label: 1 for d in found},
    )
    return _work(options, console, job)


def segment(options: argparse.Namespace, console: Console) -> int:
    """Separate the foreground of pictures from the background."""
    from kuiper.vision import Segmenter, cut_out, overlay

    segmenter = Segmenter(options.model, options.kind, options.size)

    def draw(image: np.ndarray, mask: np.ndarray) -> list[tuple[str, np.ndarray]]:
        return [
            ("_overlay", overlay(image, mask)),
            ("_cutout", cut_out(image, mask)),
            ("_mask", np.rint(mask * 255).astype(np.uint8)),
        ]

    def share(mask: np.ndarray) -> float:
        return float((mask > 0.5).mean())

    job = _Job(
        lambda count: segmenter.model.plan((count, 3, *segmenter.size)),
        segmenter,
        lambda mask: {"foreground": round(share(mask), 6), "size": list(mask.shape)},
        lambda mask: [f"  foreground {share(mask):.1%}"],
        draw,
        lambda mask: {"foreground": share(mask)},
    )
    return _work(options, console, job)


# -- the loop --------------------------------------------------------------------------------


def _work(options: argparse.Namespace, console: Console, job: _Job) -> int:
    """Process all inputs; return 1 if any of them failed."""
    from kuiper.vision import find_pictures, is_video

    _quiet()
    failed = 0
    taken: set[Path] = set()
    paths = []
    for name in options.inputs:
        if "://" in name:
            failed += _refuse(
                options, console, name, f"a URL, not a file; try: curl {name} | kuiper "
                f"{options.command} -",
            )  # fmt: skip
            continue
        found = list(find_pictures([name])) if not name.isdecimal() else [Path(name)]
        if not found:
            failed += _refuse(options, console, Path(name), "no pictures in this folder")
        paths += found
    taken.update(path.resolve() for path in paths)  # results must not overwrite inputs
    pictures = [path for path in paths if not is_video(path)]
    for group, errors in _groups(
        console.progress(pictures, len(pictures), "pictures"), options.batch
    ):
        for path, error in errors:
            failed += _refuse(options, console, path, error)
        failed += _one_batch(group, options, console, job, taken) if group else 0
    for path in paths:
        if is_video(path):
            try:
                _video(path, options, console, job, taken)
            except (OSError, ValueError) as error:
                failed += _refuse(options, console, path, _explained(path, error))
    return 1 if failed else 0


def _quiet() -> None:
    """Silence the warnings of OpenCV and ffmpeg, unless the environment sets a log level."""
    import os

    from kuiper.vision._opencv import cv2

    os.environ.setdefault("OPENCV_FFMPEG_LOGLEVEL", "-8")
    if "OPENCV_LOG_LEVEL" not in os.environ:
        log = cv2.utils.logging
        log.setLogLevel(log.LOG_LEVEL_ERROR)


def _refuse(options: argparse.Namespace, console: Console, path: Path | str, error: str) -> int:
    """Report that an input failed, as JSON and on standard error; return 1."""
    console.data({"file": str(path), "error": error})
    console.error(f"kuiper {options.command}: {path}: {error}")
    return 1


def _explained(path: Path, error: Exception) -> str:
    """Return the message of an error without the name of the file."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error).removeprefix(f"{path}: ").removeprefix("<stdin>: ")


def _groups(
    paths: Iterator[Path], count: int
) -> Iterator[tuple[list[tuple[Path, np.ndarray]], list[tuple[Path, str]]]]:
    """Yield pictures in groups of `count`, each with the errors since the previous group."""
    from kuiper.vision import load_image

    group: list[tuple[Path, np.ndarray]] = []
    errors: list[tuple[Path, str]] = []
    for path in paths:
        try:
            source = sys.stdin.buffer if str(path) == "-" else path
            group.append((path, load_image(source)))
        except (OSError, ValueError) as error:
            errors.append((path, _explained(path, error)))
        if len(group) == count:
            yield group, errors
            group, errors = [], []
    if group or errors:
        yield group, errors


def _one_batch(
    group: Any, options: argparse.Namespace, console: Console, job: _Job, taken: set[Path]
) -> int:
    """Compute, print and save one group; return the number of pictures that failed."""
    from kuiper.vision import save_image

    try:
        job.plan(len(group))
        start = time.perf_counter()
        results = job.compute([image for _, image in group])
    except ValueError as error:
        if len(group) == 1:
            raise
        raise ValueError(f"{group[0][0]} and {len(group) - 1} more: {error}") from error
    ms = (time.perf_counter() - start) * 1e3 / len(group)
    for (path, image), result in zip(group, results, strict=True):
        saved: list[Path] = []
        try:
            for suffix, picture in job.draw(image, result) if options.save is not None else ():
                stem = "stdin" if str(path) == "-" else path.stem
                target = _free_name(options.save, stem + suffix, ".png", taken)
                save_image(target, picture)
                saved.append(target)
        finally:  # a result is printed even if it cannot be written
            record = {"file": str(path), "ms": round(ms, 3), **job.record(result)}
            console.data({**record, **_saved(options, saved)})
            lines = [f"{path}  {ms:.1f} ms", *job.lines(result)]
            console.text("\n".join([*lines, *(f"  {target}" for target in saved)]))
    return 0


def _saved(options: argparse.Namespace, paths: list[Path]) -> dict[str, Any]:
    """Return the JSON field of the files that --save has written."""
    return {} if options.save is None else {"saved": [str(path) for path in paths]}


def _free_name(folder: Path, stem: str, suffix: str, taken: set[Path]) -> Path:
    """Return a path that is neither an input nor a result of this run, and reserve it."""
    path, number = folder / f"{stem}{suffix}", 1
    while path.resolve() in taken:
        number += 1
        path = folder / f"{stem}_{number}{suffix}"
    taken.add(path.resolve())
    return path


def _video(
    path: Path, options: argparse.Namespace, console: Console, job: _Job, taken: set[Path]
) -> None:
    """Process every frame; write a video, and a line of JSON per frame."""
    from kuiper.vision import VideoReader, VideoWriter

    reader = VideoReader(path)
    writer = None
    total: dict[str, float] = {}
    job.plan(1)
    n_frames, start = 0, time.perf_counter()
    try:
        for frame in console.progress(reader, reader.n_frames, str(path)):
            before = time.perf_counter()
            (result,) = job.compute([frame])
            ms = (time.perf_counter() - before) * 1e3
            if options.save is not None:
                suffix, picture = job.draw(frame, result)[0]
                if writer is None:
                    target = _free_name(options.save, path.stem + suffix, ".avi", taken)
                    writer = VideoWriter(target, reader.fps)
                writer.write(picture)
            record = {"file": str(path), "frame": n_frames, "ms": round(ms, 3)}
            saved = _saved(options, [writer.path] if writer is not None else [])
            console.data({**record, **job.record(result), **saved})
            n_frames += 1
            for name, value in job.seen(result).items():
                total[name] = total.get(name, 0) + value
    finally:  # also after Ctrl-C, the only way to stop a camera
        if writer is not None:
            writer.close()
        if n_frames:
            rate = n_frames / (time.perf_counter() - start)
            console.text(f"{path}  {plural(n_frames, 'frame')}, {rate:.1f} per second")
            for name, value in sorted(total.items(), key=lambda item: -item[1])[:10]:
                console.text(f"  {value / n_frames:6.1%}  {name}")
            if writer is not None:
                console.text(f"  {writer.path}")
    if not n_frames:
        raise ValueError(f"{path}: OpenCV can read no frame of it")
