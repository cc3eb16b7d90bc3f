"""Tests of ``kuiper.ops``: what records accept, refuse and compute."""
