"""Example models for kuiper: weights by others, see README.md for authors and licences.

The package ``kuiper-runtime-models`` contains only these files; ``kuiper classify``, ``detect`` and
``segment`` find them in the folder of the package.
"""
