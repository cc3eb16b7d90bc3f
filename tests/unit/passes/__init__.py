"""Tests of ``kuiper.passes``."""
