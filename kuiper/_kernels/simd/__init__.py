"""Vector types, and what is written over them; C headers only."""
