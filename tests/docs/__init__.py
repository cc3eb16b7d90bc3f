"""The documentation and the example programs do what they say."""
