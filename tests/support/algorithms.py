"""Force the convolution algorithm that a test names."""

from __future__ import annotations

from kuiper.ops.product import algorithms
from kuiper.ops.product.algorithms import winograd

__all__ = ["always_winograd", "restrict_to"]

ALGORITHMS = algorithms.ALGORITHMS


def restrict_to(monkeypatch, *names: str) -> None:
    """Restrict the choice to the named algorithms and implicit GEMM, which is the last resort."""
    kinds = tuple(kind for kind in ALGORITHMS if kind.name in (*names, "gemm"))
    monkeypatch.setattr(algorithms, "ALGORITHMS", kinds)
    for kind in kinds[:-1]:
        if kind is not winograd.Winograd:  # its cost depends on its tiles
            monkeypatch.setattr(kind, "cost", lambda _: 0.0)


def always_winograd(monkeypatch, tile: int, is_blocked: bool | None = None, block: int = 0) -> None:
    """Compute every 3x3 convolution that Winograd supports with tiles of side `tile`."""
    refusal = winograd.Winograd.refusal

    def refused(self) -> str:
        if tile == 2 and self.c.geometry.stride[-2:] != (1, 1):
            return "no tiles of side 2"
        return refusal(self)

    monkeypatch.setattr(winograd.Winograd, "refusal", refused)
    monkeypatch.setattr(winograd, "estimate", lambda *_: (tile, 0.0))
    monkeypatch.setattr(winograd, "MIN_CHANNELS", {(1, 1): 0, (2, 2): 0})
    monkeypatch.setattr(winograd, "MIN_GROUP_PRODUCTS", 0)
    if is_blocked is not None:
        monkeypatch.setattr(winograd, "is_blocked", lambda *_: is_blocked)
    if block:
        monkeypatch.setattr(winograd, "tiles_of_a_block", lambda *_: block)
