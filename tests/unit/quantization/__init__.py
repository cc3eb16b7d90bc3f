"""Tests of ``kuiper.quantization``."""
