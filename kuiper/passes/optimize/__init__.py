"""Passes that make a graph faster: fewer operators, and fewer trips through memory."""
