"""PyTorch or ONNX -> PNNX files, by pnnx."""
