"""Tests of ``kuiper.cli``."""
