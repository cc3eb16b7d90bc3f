"""Tests of ``kuiper.report``."""
