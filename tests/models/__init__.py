"""Whole networks against PyTorch's stored outputs."""
