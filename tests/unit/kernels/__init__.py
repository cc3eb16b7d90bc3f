"""Tests of the kernels alone, on every instruction set of this machine."""
