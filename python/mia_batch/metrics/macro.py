"""Average of the figures of the length buckets, each bucket as heavy as any other."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from mia_batch.stats.intervals import Interval

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from mia_batch.metrics.metric_rows import MetricRow

__all__ = ["MACRO", "macro_averages"]

MACRO = "macro"
"""Slice of the averages."""


_NO_FIGURES = ("fpr_at_threshold",)
"""What is said beside a figure, and not averaged."""


def macro_averages(
    buckets: Sequence[tuple[Mapping[str, int], Sequence[MetricRow]]], *, clustered: bool
) -> Iterator[tuple[dict[str, int], MetricRow]]:
    """Average each metric over the length buckets that have it.

    Limits of independent buckets are joined by the method of variance estimates recovery. Clusters
    may lie across buckets, so theirs are joined as if all erred together: the average of the
    limits, which is conservative.

    References
    ----------
    Zou and Donner (2008), "Construction of confidence limits about effect measures: a general
    approach", equations 1 and 2; the average itself: Kaneko et al. (2024), arXiv:2404.11262v2,
    section 3.
    """
    metrics = dict.fromkeys((row.metric, row.fpr) for _, rows in buckets for row in rows)
    for metric in metrics:
        there = [
            (counts, row)
            for counts, rows in buckets
            for row in rows
            if (row.metric, row.fpr) == metric
            and row.metric not in _NO_FIGURES
            and row.value is not None
        ]
        if there:
            counts = {name: sum(one[name] for one, _ in there) for name in there[0][0]}
            yield counts, _average([row for _, row in there], clustered=clustered)


def _average(there: Sequence[MetricRow], *, clustered: bool) -> MetricRow:
    values = np.array([row.value for row in there], float)
    low = np.array([row.low for row in there], float)
    high = np.array([row.high for row in there], float)
    average = replace(there[0], value=float(values.mean()), low=None, high=None, reason=None)
    if np.isnan(low).any():
        reason = next(row.reason for row in there if row.low is None)
        return replace(average, confidence=None, method=None, reason=reason)
    if clustered:
        below, above = (values - low).mean(), (high - values).mean()
    else:
        below, above = (
            np.linalg.norm(gaps) / values.size for gaps in (values - low, high - values)
        )
    name = "average_conservative" if clustered else "mover"
    interval = Interval(
        low=float(values.mean() - below),
        high=float(values.mean() + above),
        confidence=there[0].confidence or 0.95,
        method=f"{name} over {values.size}",
    )
    return average.within(interval)
