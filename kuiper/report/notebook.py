"""Pictures of models and profiles in a notebook, which asks an object for its HTML."""

from __future__ import annotations

from html import escape

from kuiper.model import Model
from kuiper.planning.profile import Profile
from kuiper.report.svg import svg, timeline_svg

__all__ = ["model_html", "profile_html"]

_FRAME = (
    '<div style="overflow:auto;max-height:{height}px;background:#fff;color:#222;'
    'border:1px solid #ddd">{picture}</div>'
)


def model_html(model: Model) -> str:
    """Return the graph of a model as HTML, after one line about it."""
    return (
        f"<code>{escape(repr(model))}</code>{_FRAME.format(height=600, picture=svg(model.graph))}"
    )


def profile_html(profile: Profile) -> str:
    """Return the timeline of a profile as HTML, and its table to unfold."""
    timeline = _FRAME.format(height=400, picture=timeline_svg(profile.rows, width=960, style=True))
    return (
        f"<code>{escape(repr(profile))}</code>{timeline}"
        f"<details><summary>steps</summary><pre>{escape(str(profile))}</pre></details>"
    )
