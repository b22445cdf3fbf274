"""Lower bounds of many areas that hold all at once: what the best of many attacks is worth."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING

import numpy as np

from mia_batch.verdict.labelled.intervals import Interval, auc_limits

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from mia_batch.verdict.labelled.influence import AucEstimate

__all__ = ["Tried", "simultaneous_bounds"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """One area of many, an attack's on a slice.

    Attributes
    ----------
    estimate
        The area and what is known of its error.
    draws
        The area in resamples, the same resamples for all; NaN where a class was empty.
    counts
        Numbers of targets, columns of the metrics table.
    """

    estimate: AucEstimate
    draws: NDArray[np.float64]
    counts: dict[str, int]


def simultaneous_bounds(
    tried: Mapping[tuple[str, str], Tried], *, confidence: float = 0.95
) -> dict[tuple[str, str], Interval | None]:
    """Bound areas from below so that all bounds hold together.

    The largest studentised error over all areas (max-t) has a law, known from resamples; its
    quantile takes the place of the normal one in each area's own lower limit. Where an area has no
    estimated variance, the quantile is at least Bonferroni's.

    Parameters
    ----------
    tried
        Every area that was looked at, by attack and slice.
    confidence
        Chance that no bound is above its true area.

    Returns
    -------
    dict
        One-sided intervals up to 1; the method says over how many. Null below 5 groups of a class.

    References
    ----------
    Romano and Wolf (2005), "Exact and approximate stepdown methods for multiple hypothesis
    testing", section 4; Hothorn, Bretz and Westfall (2008), "Simultaneous inference in general
    parametric models".
    """
    quantile = _quantile(
        [one for one in tried.values() if not one.estimate.lack], len(tried), confidence
    )
    method = f"max_t over {len(tried)}"
    bounds: dict[tuple[str, str], Interval | None] = {}
    for key, one in tried.items():
        area = one.estimate
        widened = area.quantile(quantile)
        low = auc_limits(area.value, area.variance, area.sizes, widened)[0]
        bound = Interval(low=low, high=1.0, confidence=confidence, method=method)
        bounds[key] = None if area.lack else bound
    return bounds


def _quantile(tried: Sequence[Tried], n_tried: int, confidence: float) -> float:
    """Find how many standard errors the largest error of all areas keeps within."""
    varied = [one for one in tried if one.estimate.variance > 0]
    bonferroni = NormalDist().inv_cdf(1 - (1 - confidence) / max(n_tried, 1))
    if not varied:
        return bonferroni
    largest = np.full(varied[0].draws.size, -np.inf)
    for one in varied:
        error = (one.draws - one.estimate.value) / one.estimate.variance**0.5
        np.fmax(largest, error, out=largest)
    quantile = float(np.quantile(largest, confidence, method="higher"))
    return quantile if len(varied) == len(tried) else max(quantile, bonferroni)
