"""Tests of the runtime: executor, threads, packed weights."""
