"""Conversion of PyTorch and ONNX models to PNNX files with the pnnx tool."""
