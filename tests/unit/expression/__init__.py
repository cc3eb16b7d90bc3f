"""Tests of ``kuiper.expression``."""
