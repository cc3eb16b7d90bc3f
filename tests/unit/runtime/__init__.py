"""Tests of what runs a plan: executor, threads, packed weights."""
