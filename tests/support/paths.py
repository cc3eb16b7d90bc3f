"""Paths of the checkout or unpacked sdist, and of the stored test data."""

from pathlib import Path

__all__ = ["DATA", "ROOT"]

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "tests" / "data"
