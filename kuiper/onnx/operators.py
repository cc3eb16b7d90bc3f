"""All operators: importing this module fills the registry."""

from kuiper.onnx import (
    attention,
    control,
    elementwise,
    folds,
    microsoft,
    products,
    quantised,
    resizing,
    sequences,
    shapes,
    windows,
)

__all__ = [
    "attention", "control", "elementwise", "folds", "microsoft", "products", "quantised",
    "resizing", "sequences", "shapes", "windows",
]  # fmt: skip
