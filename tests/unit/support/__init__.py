"""Tests of ``kuiper.support``, which all other packages use."""
