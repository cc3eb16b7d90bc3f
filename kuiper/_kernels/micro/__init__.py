"""Micro-kernels, compiled once per instruction set, and the choice among them."""
