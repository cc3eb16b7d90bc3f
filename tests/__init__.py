"""The tests of kuiper.  They need kuiper, numpy and pytest, never PyTorch."""
