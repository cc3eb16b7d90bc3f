"""Where the checkout, or the unpacked sdist, and the stored data of the tests are."""

from pathlib import Path

__all__ = ["DATA", "ROOT"]

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "tests" / "data"
