"""Read the frames of a video or camera, and write videos frame by frame."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from kuiper.pnnx._messages import plural, recognise
from kuiper.vision._opencv import cv2

__all__ = ["VideoReader", "VideoWriter"]

# Codecs that every OpenCV can write: JPEG frames, or MPEG-4 in containers without these.
CODECS = {".avi": "MJPG", ".mkv": "MJPG", ".mp4": "mp4v", ".m4v": "mp4v", ".mov": "mp4v"}


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence OpenCV's log of attempts; this module raises one error instead."""
    log = cv2.utils.logging
    level = log.getLogLevel()
    log.setLogLevel(log.LOG_LEVEL_SILENT)
    try:
        yield
    finally:
        log.setLogLevel(level)


class VideoReader:
    """The frames of a video file, or of a camera.

    Parameters
    ----------
    source : str or Path
        A file, or the number of a camera (``"0"`` is the first).

    Attributes
    ----------
    fps : float
        Frames per second of the source, 25 if unknown.
    n_frames : int or None
        Number of frames according to the file; None if unknown, as for a camera.

    Raises
    ------
    OSError
        If the file cannot be read.
    ValueError
        If OpenCV cannot open the video, or there is no such camera.
    """

    def __init__(self, source: str | Path) -> None:
        text = str(source)
        self._capture: Any
        with _quiet():
            if text.isdecimal():
                self._capture = cv2.VideoCapture(int(text))
                what = "" if self._capture.isOpened() else _no_camera(int(text))
            else:
                with open(text, "rb") as file:  # raises OSError with the reason
                    head = file.read(256)
                self._capture = _open_file(text)
                what = "" if self._capture.isOpened() else _no_video(head)
        if what:
            raise ValueError(f"{text}: {what}")
        self.fps = self._capture.get(cv2.CAP_PROP_FPS) or 25.0
        count = int(self._capture.get(cv2.CAP_PROP_FRAME_COUNT))
        self.n_frames = count if count > 0 else None
        self._source = text

    def __repr__(self) -> str:
        count = "" if self.n_frames is None else f", {plural(self.n_frames, 'frame')}"
        return f"<kuiper.vision.VideoReader: {self._source}, {self.fps:g} per second{count}>"

    def __iter__(self) -> Iterator[np.ndarray]:
        try:
            while True:
                good, frame = self._capture.read()
                if not good:
                    return
                yield frame
        finally:
            self._capture.release()


def _open_file(path: str) -> Any:
    """Open a video file with a suitable backend of OpenCV.

    Without a choice OpenCV tries all backends, including some that print to the terminal and one
    that takes ``clip7.mp4`` for a sequence of pictures.
    """
    registry = cv2.videoio_registry
    backends = [b for b in registry.getStreamBackends() if b != cv2.CAP_IMAGES]
    if cv2.CAP_FFMPEG in backends:
        backends = [b for b in backends if b != cv2.CAP_OPENCV_MJPEG]
    capture = cv2.VideoCapture()
    for backend in backends or [cv2.CAP_ANY]:
        if capture.open(path, backend):
            break
    return capture


def _no_camera(number: int) -> str:
    """Return why a camera cannot be opened."""
    what = f"there is no camera {number} that OpenCV can open"
    if sys.platform == "linux":
        devices = sorted(map(str, Path("/dev").glob("video*")))
        if not devices:
            return f"{what}: this system has none (no /dev/video*)"
        if f"/dev/video{number}" not in devices:
            return f"{what}: this system has {', '.join(devices)}"
    return f"{what}; another program may use it, or this user may lack the permission"


def _no_video(head: bytes) -> str:
    """Return what the first bytes of an unreadable file tell about the cause."""
    if not head:
        return "not a video: it is empty"
    if head[4:8] == b"ftyp" or head.startswith((b"RIFF", b"\x1aE\xdf\xa3")):
        return (
            "OpenCV cannot open it, although it begins like a video: it is damaged, incomplete "
            "or has a codec that this OpenCV does not support"
        )
    what = recognise(head)
    return f"not a video that OpenCV can open{f': {what}' if what else ''}"


class VideoWriter:
    """A video file, written frame by frame.

    Parameters
    ----------
    path : str or Path
        The suffix selects the format: ``.avi`` and ``.mkv`` hold a JPEG per frame, which every
        OpenCV can write; ``.mp4``, ``.m4v`` and ``.mov`` hold MPEG-4, which is a quarter as large.
        A missing folder is created.
    fps : float, default=25
        Frames per second.

    Raises
    ------
    ValueError
        If the suffix is not one of these.

    Examples
    --------
    >>> from kuiper.vision import VideoReader, VideoWriter                # doctest: +SKIP
    >>> reader = VideoReader("street.mp4")                                # doctest: +SKIP
    >>> with VideoWriter("half.avi", reader.fps) as writer:               # doctest: +SKIP
    ...     for frame in reader:
    ...         writer.write(frame[::2, ::2])
    """

    def __init__(self, path: str | Path, fps: float = 25) -> None:
        self.path = Path(path)
        if self.path.suffix.lower() not in CODECS:
            raise ValueError(
                f"{path}: the name of a video must end in one of {', '.join(CODECS)}, "
                f"not in '{self.path.suffix}'"
            )
        self.fps = fps
        self._writer: Any = None
        self._shape: tuple[int, ...] = ()

    def __repr__(self) -> str:
        return f"<kuiper.vision.VideoWriter: {self.path}, {self.fps:g} per second>"

    def write(self, frame: np.ndarray) -> None:
        """Append a frame; the first one sets the size of the video.

        Parameters
        ----------
        frame : numpy.ndarray of uint8, shape (height, width, 3)
            Blue first.

        Raises
        ------
        OSError
            If the file cannot be written.
        ValueError
            If OpenCV cannot write the format, or the size of the frame differs from the first.
        """
        if self._writer is None:
            self._open(frame)
        if frame.shape != self._shape:
            raise ValueError(f"{self.path}: a frame of {frame.shape} after one of {self._shape}")
        self._writer.write(np.ascontiguousarray(frame))

    def _open(self, frame: np.ndarray) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with open(self.path, "wb"):  # raises OSError with the reason
            pass
        codec = CODECS[self.path.suffix.lower()]
        size = (frame.shape[1], frame.shape[0])
        with _quiet():
            writer = cv2.VideoWriter(str(self.path), cv2.VideoWriter.fourcc(*codec), self.fps, size)
        if not writer.isOpened():
            self.path.unlink()
            others = ", ".join(suffix for suffix in CODECS if CODECS[suffix] != codec)
            raise ValueError(
                f"{self.path}: this OpenCV cannot write {codec} of {size[0]}x{size[1]} pixels at "
                f"{self.fps:g} frames per second; try one of {others}"
            )
        self._writer, self._shape = writer, frame.shape

    def close(self) -> None:
        """Finish the file, which is unplayable otherwise; without frames there is no file."""
        if self._writer is not None:
            self._writer.release()

    def __enter__(self) -> VideoWriter:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
