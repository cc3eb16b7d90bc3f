"""Pre- and postprocessing of vision networks.

::

    images           read, write, resize and preprocess pictures
    classification   scores -> class names
    detection        letterbox, decoders (NanoDet, YOLOv5/8/10/11), non-maximum suppression
    segmentation     masks, overlays, cut-outs
    drawing          boxes and labels on a picture
    video            read frames from a file or camera, write a video
    model_zoo        find and load the bundled models

Only the command line and the programs in ``examples/`` import this package.  It needs OpenCV
(``pip install opencv-python-headless``).

A picture is an OpenCV image: uint8, (height, width, 3), blue first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kuiper._support.lazy import lazy_names

if TYPE_CHECKING:
    from kuiper.vision.classification import (
        Classifier,
        Guess,
        best_guesses,
        draw_guesses,
        load_labels,
        probabilities,
    )
    from kuiper.vision.detection import (
        Detection,
        Detector,
        Letterbox,
        letterbox,
        non_maximum_suppression,
    )
    from kuiper.vision.drawing import class_colour, draw_detections
    from kuiper.vision.images import (
        PRESETS,
        Preprocessing,
        as_image,
        find_pictures,
        is_video,
        load_image,
        preprocess,
        resize_antialiased,
        resize_bicubic,
        save_image,
    )
    from kuiper.vision.model_zoo import find_labels, find_model, models_folder
    from kuiper.vision.segmentation import Segmenter, cut_out, overlay
    from kuiper.vision.video import VideoReader, VideoWriter

__all__ = [
    "PRESETS",
    "Classifier",
    "Detection",
    "Detector",
    "Guess",
    "Letterbox",
    "Preprocessing",
    "Segmenter",
    "VideoReader",
    "VideoWriter",
    "as_image",
    "best_guesses",
    "class_colour",
    "cut_out",
    "draw_detections",
    "draw_guesses",
    "find_labels",
    "find_model",
    "find_pictures",
    "is_video",
    "letterbox",
    "load_image",
    "load_labels",
    "models_folder",
    "non_maximum_suppression",
    "overlay",
    "preprocess",
    "probabilities",
    "resize_antialiased",
    "resize_bicubic",
    "save_image",
]

_HOMES = {
    "classification": (
        "Classifier", "Guess", "best_guesses", "draw_guesses", "load_labels", "probabilities",
    ),
    "detection": ("Detection", "Detector", "Letterbox", "letterbox", "non_maximum_suppression"),
    "drawing": ("class_colour", "draw_detections"),
    "images": (
        "PRESETS", "Preprocessing", "as_image", "find_pictures", "is_video", "load_image",
        "preprocess", "resize_antialiased", "resize_bicubic", "save_image",
    ),
    "model_zoo": ("find_labels", "find_model", "models_folder"),
    "segmentation": ("Segmenter", "cut_out", "overlay"),
    "video": ("VideoReader", "VideoWriter"),
}  # fmt: skip
__getattr__, __dir__ = lazy_names(
    __name__, {name: f"{__name__}.{module}" for module, names in _HOMES.items() for name in names}
)
