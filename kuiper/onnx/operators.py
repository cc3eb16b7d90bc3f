"""All operators: importing this module fills the registry."""

from kuiper.onnx import (
    attention,
    control,
    detection,
    elementwise,
    folds,
    microsoft,
    products,
    quantised,
    resizing,
    sequences,
    shapes,
    signals,
    windows,
)

__all__ = [
    "attention", "control", "detection", "elementwise", "folds", "microsoft", "products",
    "quantised", "resizing", "sequences", "shapes", "signals", "windows",
]  # fmt: skip
