"""Detect or segment on a video or a webcam, with the frames per second on the picture.

    python examples/video.py 0                                  # the first camera, in a window
    python examples/video.py street.mp4 --save boxes.avi        # a file, without a window
    python examples/video.py 0 --task segment --model selfie    # the person in front of the camera

Reading, computing and writing overlap: a thread reads frames ahead, and since kuiper releases the
GIL while it runs, decoding the next frame costs nothing.  Frames of a camera that arrive during the
computation of another are dropped, so the picture is current.

q, Esc or Ctrl-C ends the program.  A window needs a display and opencv-python; with
opencv-python-headless, use --save.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import queue
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path

import numpy as np

import kuiper

os.environ.setdefault("OPENCV_FFMPEG_LOGLEVEL", "-8")  # this program reports unreadable files
try:
    import cv2

    from kuiper.vision import (
        Detector,
        Segmenter,
        VideoReader,
        VideoWriter,
        draw_detections,
        overlay,
    )
    from kuiper.vision.drawing import draw_text
except (ImportError, kuiper.MissingPackageError) as error:
    sys.exit(f"video.py: {error}")


def read_ahead(
    frames: Iterator[np.ndarray], newest_only: bool
) -> Generator[np.ndarray, None, None]:
    """Yield frames that a thread reads ahead.

    Parameters
    ----------
    frames : iterator of numpy.ndarray
    newest_only : bool
        Drop frames that arrive before the previous one has been taken, as for a camera.
    """
    waiting: queue.Queue[np.ndarray | None] = queue.Queue(maxsize=2)
    stop = threading.Event()

    def put(frame: np.ndarray | None) -> None:
        dropping = newest_only and frame is not None
        while not stop.is_set():
            try:
                return waiting.put(frame, block=not dropping, timeout=0.1)
            except queue.Full:
                if dropping:
                    with contextlib.suppress(queue.Empty):
                        waiting.get_nowait()

    def read() -> None:
        try:
            for frame in frames:
                put(frame)
                if stop.is_set():
                    return
        finally:
            put(None)

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    try:
        while (frame := waiting.get()) is not None:
            yield frame
    finally:
        stop.set()
        thread.join()


class Meter:
    """Frames per second over the last `window` frames."""

    def __init__(self, window: int = 30):
        self.times: deque[float] = deque(maxlen=window)

    def tick(self) -> float:
        """Count a frame; return the frames per second."""
        self.times.append(time.perf_counter())
        span = self.times[-1] - self.times[0]
        return (len(self.times) - 1) / span if span > 0 else 0.0


def make_painter(task: str, model: str | None) -> Callable[[np.ndarray], np.ndarray]:
    """Return a function from a frame to the picture to show."""
    if task == "detect":
        detector = Detector(model or "nanodet_m")
        return lambda frame: draw_detections(frame, detector([frame])[0])
    segmenter = Segmenter(model or "selfie")
    return lambda frame: overlay(frame, segmenter([frame])[0])


def window_trouble() -> str:
    """Return why no window can be opened, or ""; OpenCV itself would end the process."""
    if sys.platform == "linux" and not (os.getenv("DISPLAY") or os.getenv("WAYLAND_DISPLAY")):
        return "there is no display for a window; --save FILE.avi writes a video"
    try:
        cv2.destroyAllWindows()
    except cv2.error:
        return (
            "this OpenCV has no windows; --save FILE.avi writes a video, or install opencv-python "
            "instead of opencv-python-headless"
        )
    return ""


def run(options: argparse.Namespace) -> int:
    """Paint frame by frame until the source or the user ends; return the number of frames."""
    trouble = "" if options.save else window_trouble()
    if trouble:
        raise ValueError(trouble)
    if options.save and options.save.resolve() == Path(options.source).resolve():
        raise ValueError(f"{options.save} cannot be read and written at the same time")
    reader = VideoReader(options.source)
    paint, meter = make_painter(options.task, options.model), Meter()
    count = 0
    with contextlib.ExitStack() as stack:
        if options.save:
            writer = stack.enter_context(VideoWriter(options.save, reader.fps))
        frames = read_ahead(iter(reader), newest_only=options.source.isdecimal())
        stack.enter_context(contextlib.closing(frames))
        try:
            for frame in frames:
                picture = paint(frame)
                count += 1
                draw_text(picture, f"{meter.tick():.1f} fps", 4, 24, (40, 40, 40))
                if options.save:
                    writer.write(picture)
                else:
                    cv2.imshow("kuiper", picture)
                    if cv2.waitKey(1) in (ord("q"), 27):
                        break
                if count == options.frames:
                    break
        except KeyboardInterrupt:  # a normal end
            print()
    if not count:
        raise ValueError(f"{options.source}: no frame in it that OpenCV can read")
    return count


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="video.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("source", metavar="VIDEO", help="a file, or the number of a camera")
    add("--task", choices=["detect", "segment"], default="detect")
    add("--model", metavar="NAME|FILE", help="default: nanodet_m to detect, selfie to segment")
    add(
        "--save",
        type=Path,
        metavar="FILE",
        help="write an .avi or .mp4 instead of showing a window",
    )
    add("--frames", type=int, metavar="N", help="stop after N frames")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program; return its exit code."""
    options = parse_arguments(argv)
    start = time.perf_counter()
    try:
        count = run(options)
    except (OSError, ValueError, kuiper.KuiperError, cv2.error) as error:
        print(f"video.py: {error}", file=sys.stderr)
        return 1
    seconds = time.perf_counter() - start
    frames = "frame" if count == 1 else "frames"
    print(f"{count} {frames} in {seconds:.1f} s, {count / seconds:.1f} per second")
    return 0


if __name__ == "__main__":
    sys.exit(main())
