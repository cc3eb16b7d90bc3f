"""The code of the documentation and the example programs."""
