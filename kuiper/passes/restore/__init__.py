"""Passes that restore what the export of a model lost."""
