"""Import OpenCV, or raise an error with the package to install."""

from __future__ import annotations

from kuiper.errors import MissingPackageError

try:
    import cv2
except ImportError as error:
    raise MissingPackageError(
        "kuiper.vision reads and writes pictures with OpenCV, which is not installed: "
        "pip install opencv-python-headless"
    ) from error

__all__ = ["cv2"]
