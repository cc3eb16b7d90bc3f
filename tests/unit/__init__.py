"""Tests of single modules, in the folders of the package."""
