"""The model server compared with calls in process, and under load."""
