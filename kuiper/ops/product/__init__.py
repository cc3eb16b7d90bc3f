"""Records of matrix products and convolutions, and the algorithms that compute them."""
