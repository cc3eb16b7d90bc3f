"""Records of gathering, scattering and selecting by index."""
