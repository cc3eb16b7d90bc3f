"""Pictures in, pictures out: what stands before and behind a vision network.

::

    images.py        read and write pictures, resize, presets of preprocessing
    classification   scores -> names
    detection        letterbox, decoders (NanoDet, YOLOv5/8/10/11), suppression of double boxes
    segmentation     masks, overlays, cut-outs
    drawing          boxes and labels on a picture
    video            frames of a file or camera, and a file of frames

The command line and the programs in ``examples/`` are built of these parts.  The package needs
OpenCV (``pip install opencv-python-headless``) and is imported by nothing else in kuiper.

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
        find_pictures,
        is_video,
        load_image,
        preprocess,
        resize_antialiased,
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
    "save_image",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "Classifier": "kuiper.vision.classification",
        "Detection": "kuiper.vision.detection",
        "Detector": "kuiper.vision.detection",
        "Guess": "kuiper.vision.classification",
        "Letterbox": "kuiper.vision.detection",
        "PRESETS": "kuiper.vision.images",
        "Preprocessing": "kuiper.vision.images",
        "Segmenter": "kuiper.vision.segmentation",
        "VideoReader": "kuiper.vision.video",
        "VideoWriter": "kuiper.vision.video",
        "best_guesses": "kuiper.vision.classification",
        "class_colour": "kuiper.vision.drawing",
        "cut_out": "kuiper.vision.segmentation",
        "draw_detections": "kuiper.vision.drawing",
        "draw_guesses": "kuiper.vision.classification",
        "find_labels": "kuiper.vision.model_zoo",
        "find_model": "kuiper.vision.model_zoo",
        "find_pictures": "kuiper.vision.images",
        "is_video": "kuiper.vision.images",
        "letterbox": "kuiper.vision.detection",
        "load_image": "kuiper.vision.images",
        "load_labels": "kuiper.vision.classification",
        "models_folder": "kuiper.vision.model_zoo",
        "non_maximum_suppression": "kuiper.vision.detection",
        "overlay": "kuiper.vision.segmentation",
        "preprocess": "kuiper.vision.images",
        "probabilities": "kuiper.vision.classification",
        "resize_antialiased": "kuiper.vision.images",
        "save_image": "kuiper.vision.images",
    },
)
