"""Unfreeze the batch: let one export run with any batch size."""
