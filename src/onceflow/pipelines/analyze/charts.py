"""Charts as inline SVG: no script, no request, readable without colour and by a screen reader."""

from __future__ import annotations

from collections.abc import Sequence
from math import cos, pi, sin

from onceflow.pipelines.analyze.report import verdict
from onceflow.pipelines.html import Html, tag


def ring(score: float | None, label: str) -> Html:
    """A score of 0 to 100 as a ring with its number inside."""
    shown = "?" if score is None else f"{score:.0f}"
    said = f"{label}: {'no assistant was asked' if score is None else f'{shown} of 100'}"
    parts = [tag("circle", cx=60, cy=60, r=50, class_="ring-back")]
    if score:
        parts.append(_arc(min(score, 100.0), verdict(score)))
    parts.append(tag("text", shown, x=60, y=70, text_anchor="middle", class_="ring-number"))
    return tag("svg", parts, viewBox="0 0 120 120", class_="ring", role="img", aria_label=said)


def _arc(score: float, mood: str) -> Html:
    if score >= 99.95:
        return tag("circle", cx=60, cy=60, r=50, class_=f"ring-front {mood}")
    angle = 2 * pi * score / 100
    x, y = 60 + 50 * sin(angle), 60 - 50 * cos(angle)
    large = 1 if score > 50 else 0
    path = f"M60 10A50 50 0 {large} 1 {x:.2f} {y:.2f}"
    return tag("path", d=path, class_=f"ring-front {mood}")


def bar(value: float | None, most: float, said: str, mood: str = "plain") -> Html:
    """One bar of a chart whose longest possible is `most`."""
    share = 0.0 if not value or most <= 0 else max(0.0, min(1.0, value / most))
    parts = [tag("rect", x=0, y=0, width=200, height=10, rx=3, class_="bar-back")]
    if share:
        width = max(3.0, share * 200)
        parts.append(tag("rect", x=0, y=0, width=f"{width:.1f}", height=10, rx=3,
                         class_=f"bar-front {mood}"))  # fmt: skip
    return tag(
        "svg", parts, viewBox="0 0 200 10", preserveAspectRatio="none", class_="bar", role="img",
        aria_label=said,
    )  # fmt: skip


def shares(parts: Sequence[tuple[str, float]], said: str) -> Html:
    """Parts of a whole, side by side in one bar."""
    x = 0.0
    drawn: list[Html] = []
    for number, (_, share) in enumerate(parts):
        width = max(0.0, min(share, 1.0)) * 200
        drawn.append(tag("rect", x=f"{x:.1f}", y=0, width=f"{width:.1f}", height=10,
                         class_=f"share-{number % 5}"))  # fmt: skip
        x += width
    return tag(
        "svg", drawn, viewBox="0 0 200 10", preserveAspectRatio="none", class_="bar", role="img",
        aria_label=said,
    )  # fmt: skip
