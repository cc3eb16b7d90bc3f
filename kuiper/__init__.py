from kuiper._version import __version__
