"""Tests of single modules; the folders are those of the package."""
