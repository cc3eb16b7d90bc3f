"""Vector types and register tiles; C headers only."""
