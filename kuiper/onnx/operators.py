"""All operators: importing this module fills the registry."""

from kuiper.onnx import (
    elementwise,
    folds,
    products,
    quantised,
    resizing,
    shapes,
    windows,
)

__all__ = ["elementwise", "folds", "products", "quantised", "resizing", "shapes", "windows"]
