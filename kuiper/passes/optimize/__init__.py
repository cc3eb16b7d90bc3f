"""Passes that make a graph faster: fewer operators and fewer sweeps over memory."""
