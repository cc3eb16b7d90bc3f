"""Tests of ``kuiper.pnnx``: reading and writing both files."""
