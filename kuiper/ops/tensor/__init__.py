"""Records of shapes, views and copies."""
