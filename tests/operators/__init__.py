"""Every operator against the references and PyTorch's stored results."""
