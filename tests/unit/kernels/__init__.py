"""Tests of the kernels in isolation, on every instruction set of this machine."""
