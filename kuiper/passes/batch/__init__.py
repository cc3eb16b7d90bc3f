"""The batch: one export runs with any number of members."""
