"""Confidence intervals for rates: at a false-positive budget, and at a threshold fixed before."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from mia_batch.stats.clusters import design_effect, effective_number
from mia_batch.stats.intervals import Interval

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mia_batch.stats.roc import RocCurve

__all__ = [
    "clopper_pearson",
    "independent_number",
    "threshold_fpr_interval",
    "tpr_interval",
]

_FEWEST_GROUPS = 5
"""Where fewer groups have flagged texts, or others, these do not tell how much groups differ."""


def independent_number(flagged: NDArray[np.bool_], cluster: NDArray[np.integer[Any]]) -> float:
    """Count the independent texts of which a share would be as well known as of these clusters.

    Texts by the `design_effect` on being flagged, and by the square of how much wider Student's t
    is than the normal, with as many degrees of freedom as the clusters are worth of one size, less
    1. Where fewer than 5 clusters, of fewer not all, have flagged texts, or texts that are not, at
    most the clusters' `effective_number`.

    Korn and Graubard (1998), "Confidence intervals for proportions with small expected number of
    positive counts estimated from survey data", section 2.
    """
    from scipy.stats import norm, t

    _, codes, sizes = np.unique(cluster, return_inverse=True, return_counts=True)
    if sizes.size == flagged.size:
        return float(flagged.size)
    effective = effective_number(sizes)
    n = flagged.size / design_effect(flagged.astype(np.float64), codes)
    n_flagged = np.bincount(codes, flagged)
    if min((n_flagged > 0).sum(), (n_flagged < sizes).sum()) < min(_FEWEST_GROUPS, sizes.size):
        n = min(n, effective)
    wider = float(t.isf(0.025, effective - 1) / norm.isf(0.025))
    return float(max(n / wider**2, 1.0))


def tpr_interval(
    curve: RocCurve,
    budget: float,
    tpr: float,
    sizes: tuple[float, float],
    *,
    confidence: float = 0.95,
) -> Interval:
    """Interval of the TPR at a false-positive budget, for any distribution of scores.

    The TPR errs because the members are few, within Clopper-Pearson limits, and because the
    threshold is estimated: two order statistics of the non-members enclose the one whose FPR is the
    budget, and have TPRs of their own. Both are joined by the method of variance estimates
    recovery. Never of zero width.

    ``sizes`` are members and non-members, where texts are clustered by `independent_number`, and
    then ranks are stretched to the texts that there are.

    References
    ----------
    David and Nagaraja (2003), "Order statistics", section 7.1 (limits of a quantile); Zou and
    Donner (2008), "Construction of confidence limits about effect measures: a general approach",
    equations 1 and 2.
    """
    from scipy.stats import binom

    error, n = (1 - confidence) / 2, int(sizes[1])
    there = curve.nonmembers.size
    above = int(binom.isf(error, n, 1 - budget)) + 1
    below = int(binom.ppf(error, n, 1 - budget))
    least = 0.0 if above > n else _share_above(curve, -(-above * there // n))
    most = _share_above(curve, below * there // n)
    of_members = clopper_pearson(tpr * sizes[0], sizes[0], confidence=confidence)
    low = tpr - float(np.hypot(tpr - of_members.low, max(tpr - least, 0.0)))
    high = tpr + float(np.hypot(of_members.high - tpr, max(most - tpr, 0.0)))
    return Interval(
        low=max(low, 0.0), high=min(high, 1.0), confidence=confidence, method="order_statistics"
    )


def _share_above(curve: RocCurve, rank: int) -> float:
    """Share of members above the non-member of a rank, counted from the lowest."""
    if rank < 1:
        return 1.0
    spared = curve.nonmembers[rank - 1]
    return float(1 - curve.members.searchsorted(spared, side="right") / curve.members.size)


def threshold_fpr_interval(n: float, budget: float, *, confidence: float = 0.95) -> Interval:
    """Range of the true FPR of a threshold that spends a budget on so many non-members.

    With k = floor(n FPR) flagged, it is distributed as Beta(k + 1, n - k) for scores without ties.

    ``n`` is the effective number where texts are clustered.

    References
    ----------
    David and Nagaraja (2003), "Order statistics", section 2.3; Vovk (2012), "Conditional validity
    of inductive conformal predictors", section 2.
    """
    from scipy.stats import beta

    k = int(int(n) * budget * (1 + 1e-12))
    low, high = beta.interval(confidence, k + 1, int(n) - k)
    return Interval(low=float(low), high=float(high), confidence=confidence, method="beta")


def clopper_pearson(hits: float, n: float, *, confidence: float = 0.95) -> Interval:
    """Interval of a rate at a threshold that was fixed on other data; numbers need not be whole.

    References
    ----------
    Clopper and Pearson (1934).
    """
    from scipy.stats import beta

    error = (1 - confidence) / 2  # a parameter of 0 gives NaN, where the limit is 0 or 1
    low = float(np.nan_to_num(beta.ppf(error, hits, n - hits + 1), nan=0.0))
    high = float(np.nan_to_num(beta.isf(error, hits + 1, n - hits), nan=1.0))
    return Interval(low=low, high=high, confidence=confidence, method="clopper_pearson")
