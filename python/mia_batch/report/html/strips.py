"""Heat strips: where in a document the model remembers, from its first page to its last."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from markupsafe import Markup

if TYPE_CHECKING:
    from mia_batch.report.html.contents import Contents

__all__ = ["LEVELS", "strips"]

LEVELS = 8
"""Shades of a strip; a point's is that of the eighth of [0, 1] in which it lies."""
_WIDTH = 1000
_SVG = Markup(
    '<svg class="strip" role="img" aria-label="{}" viewBox="0 0 {} 1" preserveAspectRatio="none">'
    "{}</svg>"
)


def strips(contents: Contents) -> dict[str, Markup]:
    """Draw the strip of each document that has one, of the primary attack."""
    points = contents.frame("curves", curve="strip", attack=contents.primary)
    if points.is_empty():
        return {}
    keys = ["subject", "x", "y"]
    whole = points.select(keys).sort("subject", "x").partition_by("subject", maintain_order=True)
    return {rows["subject"][0]: _strip(rows["x"].to_list(), rows["y"].to_list()) for rows in whole}


def _strip(starts: list[float], values: list[float | None]) -> Markup:
    """One path for each shade: stretches of the same shade that touch are one rectangle."""
    ends = [*starts[1:], 1.0]
    paths: dict[int, str] = {}
    stretches = zip(starts, ends, map(_level, values), strict=True)
    for level, run in groupby(stretches, key=lambda stretch: stretch[2]):
        if level is not None:
            first, *_, last = [*run] * 2
            left, right = round(first[0] * _WIDTH), round(last[1] * _WIDTH)
            paths[level] = f"{paths.get(level, '')}M{left} 0H{right}V1H{left}z"
    drawn = (Markup('<path class="h{}" d="{}"/>').format(*each) for each in sorted(paths.items()))
    return _SVG.format(_in_words(starts, values), _WIDTH, Markup().join(drawn))


def _level(value: float | None) -> int | None:
    return None if value is None else min(int(value * LEVELS), LEVELS - 1)


def _in_words(starts: list[float], values: list[float | None]) -> str:
    scored = [
        (value, start) for value, start in zip(values, starts, strict=True) if value is not None
    ]
    if not scored:
        return f"{len(starts)} stretches, none with a score"
    value, start = max(scored)
    return (
        f"{len(starts)} stretches, {len(scored)} with a score; "
        f"highest {value:.2f}, from {100 * start:.0f} % of the document on"
    )
