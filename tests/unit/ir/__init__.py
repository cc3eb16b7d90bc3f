"""Tests of ``kuiper.ir``: the graph and strided views."""
