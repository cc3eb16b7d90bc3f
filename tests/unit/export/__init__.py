"""Tests of the way from PyTorch and ONNX to PNNX."""
