"""Utilities for all packages: thread counts, memory limits, logging, lazy names, structs."""
