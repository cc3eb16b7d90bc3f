"""Records of arithmetic, reductions, sorting and linear algebra."""
