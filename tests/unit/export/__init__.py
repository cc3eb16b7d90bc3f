"""Tests of the export from PyTorch and ONNX to PNNX."""
