"""Hostile files, special values, stress, long runs, other libraries."""
