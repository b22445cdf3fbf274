"""Lower bounds of many areas that hold all at once: what the best of many attacks is worth."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING

import numpy as np

from mia_batch.stats.intervals import Interval, auc_limits

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from mia_batch.stats.influence import AucEstimate

__all__ = ["N_BLOCKS", "AucResult", "simultaneous_bounds"]

N_BLOCKS = 2_048
"""Sums that the errors of an area are kept in: correlations of two areas are known to 0.02."""

_N_DRAWN = 5_000
"""Draws of the largest error; the quantile, of which three digits are kept, is known to 0.03."""

_AT_ONCE = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class AucResult:
    """One area of many, an attack's on a slice.

    Attributes
    ----------
    estimate
        The area and what is known of its error.
    errors
        Influences of the texts or clusters, in sums over blocks of them that are the same for all.
    counts
        Numbers of targets, columns of the metrics table.
    """

    estimate: AucEstimate
    errors: NDArray[np.float64]
    counts: dict[str, int]


def simultaneous_bounds(
    tried: Mapping[tuple[str, str], AucResult], *, seed: int = 0, confidence: float = 0.95
) -> dict[tuple[str, str], Interval | None]:
    """Bound areas from below so that all bounds hold together.

    The quantile of the largest studentised error over all areas (max-t) takes the place of the
    normal one in each area's own lower limit. It is that of the sums of influences, each times a
    normal number of its own (multiplier bootstrap): jointly normal errors with the correlations of
    the areas. Where an area has no estimated variance, the quantile is at least Bonferroni's.

    Intervals are one-sided, up to 1; None below 4 effective groups of a class.

    References
    ----------
    Chernozhukov, Chetverikov and Kato (2013), "Gaussian approximations and multiplier bootstrap
    for maxima of sums of high-dimensional random vectors"; Hothorn, Bretz and Westfall (2008),
    "Simultaneous inference in general parametric models", section 3.
    """
    quantile = _quantile(
        [one for one in tried.values() if not one.estimate.lack], len(tried), seed, confidence
    )
    method = f"max_t over {len(tried)}"
    bounds: dict[tuple[str, str], Interval | None] = dict.fromkeys(tried)
    for key, area in ((key, one.estimate) for key, one in tried.items()):
        if area.lack:
            continue
        widened = area.quantile(quantile)
        low = auc_limits(area.value, area.variance, area.sizes, widened)[0]
        bounds[key] = Interval(low=low, high=1.0, confidence=confidence, method=method)
    return bounds


def _quantile(tried: Sequence[AucResult], n_tried: int, seed: int, confidence: float) -> float:
    """Find how many standard errors the largest error of all areas keeps within."""
    bonferroni = NormalDist().inv_cdf(1 - (1 - confidence) / max(n_tried, 1))
    varied = [one.errors for one in tried if one.estimate.variance > 0 and one.errors.any()]
    if not varied:
        return bonferroni
    errors = np.stack(varied)
    errors /= np.linalg.norm(errors, axis=1, keepdims=True)
    errors = np.linalg.qr(errors.T).R.T  # the same products in no more columns than rows
    rng = np.random.default_rng(seed)
    largest = [
        (errors @ rng.normal(size=(errors.shape[1], _AT_ONCE))).max(axis=0)
        for _ in range(_N_DRAWN // _AT_ONCE)
    ]
    quantile = round(float(np.quantile(np.concatenate(largest), confidence)), 3)
    return quantile if len(varied) == len(tried) else max(quantile, bonferroni)
