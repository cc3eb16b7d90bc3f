"""Detect or segment on a video or a webcam, with the frames per second on the picture.

    python examples/video.py 0                                  # the first camera, in a window
    python examples/video.py street.mp4 --save boxes.avi        # a file, without a window
    python examples/video.py 0 --task segment --model selfie    # the person before the camera

Reading, computing and writing overlap: a thread of its own reads frames ahead, and as kuiper lets
go of the GIL while it runs, decoding the next frame costs nothing.  With a camera, frames that came
while the last one was computed are dropped, so that what you see is now.

q or Esc ends it.  A window needs opencv-python; opencv-python-headless can only --save.
"""

from __future__ import annotations

import argparse
import contextlib
import queue
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

import kuiper

try:
    import cv2

    from kuiper.vision import Detector, Segmenter, VideoReader, draw_detections, overlay
    from kuiper.vision.drawing import draw_text
except (ImportError, kuiper.MissingPackageError) as error:
    sys.exit(f"video.py: {error}")


def read_ahead(frames: Iterator[np.ndarray], newest_only: bool) -> Iterator[np.ndarray]:
    """Yield frames that a thread reads meanwhile.

    Parameters
    ----------
    frames : iterator of numpy.ndarray
    newest_only : bool
        Drop frames for which nobody had time, as a camera wants it.
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
    """Frames per second over the last second or so."""

    def __init__(self, window: int = 30):
        self.times: deque[float] = deque(maxlen=window)

    def tick(self) -> float:
        """Count a frame; return how many there are in a second."""
        self.times.append(time.perf_counter())
        span = self.times[-1] - self.times[0]
        return (len(self.times) - 1) / span if span > 0 else 0.0


def make_painter(task: str, model: str | None) -> Callable[[np.ndarray], np.ndarray]:
    """Return the function from a frame to the picture to show."""
    if task == "detect":
        detector = Detector(model or "nanodet_m")
        return lambda frame: draw_detections(frame, detector([frame])[0])
    segmenter = Segmenter(model or "selfie")
    return lambda frame: overlay(frame, segmenter([frame])[0])


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="video.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("source", metavar="VIDEO", help="a file, or the number of a camera")
    add("--task", choices=["detect", "segment"], default="detect")
    add("--model", metavar="NAME|FILE", help="default: nanodet_m to detect, selfie to segment")
    add("--save", type=Path, metavar="FILE.avi", help="write a video instead of showing a window")
    add("--frames", type=int, metavar="N", help="stop after N frames")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program; return its exit code."""
    options = parse_arguments(argv)
    writer = None
    count, start = 0, time.perf_counter()
    try:
        reader = VideoReader(options.source)
        paint, meter = make_painter(options.task, options.model), Meter()
        for frame in read_ahead(iter(reader), newest_only=options.source.isdecimal()):
            picture = paint(frame)
            count += 1
            draw_text(picture, f"{meter.tick():.1f} fps", 4, 24, (40, 40, 40))
            if options.save is not None:
                if writer is None:
                    size = (picture.shape[1], picture.shape[0])
                    codec = cv2.VideoWriter_fourcc(*"MJPG")
                    writer = cv2.VideoWriter(str(options.save), codec, reader.fps, size)
                writer.write(picture)
            else:
                cv2.imshow("kuiper", picture)
                if cv2.waitKey(1) in (ord("q"), 27):
                    break
            if count == options.frames:
                break
    except (OSError, ValueError, kuiper.KuiperError, cv2.error) as error:
        print(f"video.py: {error}", file=sys.stderr)
        return 1
    finally:
        if writer is not None:
            writer.release()
    seconds = time.perf_counter() - start
    print(f"{count} frames in {seconds:.1f} s, {count / seconds:.1f} per second")
    return 0


if __name__ == "__main__":
    sys.exit(main())
