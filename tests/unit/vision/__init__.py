"""Tests of ``kuiper.vision``."""
