"""Start, memory and installed size of each runtime."""
