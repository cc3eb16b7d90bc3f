"""Example models for kuiper: weights by others, see README.md for authors and licences.

The package ``kuiper-models`` holds nothing but these files; ``kuiper classify``, ``detect`` and
``segment`` find them here by the package's place.
"""
