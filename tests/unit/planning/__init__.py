"""Tests of plans: memory, order, segments."""
