"""Records of the layers of torch.nn."""
