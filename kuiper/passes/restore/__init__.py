"""Passes that bring back what the export of a model lost."""
