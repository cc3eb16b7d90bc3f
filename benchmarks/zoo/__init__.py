"""Families of networks, exported, run and compared with PyTorch."""
