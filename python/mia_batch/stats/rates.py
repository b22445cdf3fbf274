"""Confidence intervals for rates: at a false-positive budget, and at a threshold fixed before."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mia_batch.stats.bootstrap import N_RESAMPLES, n_allowed
from mia_batch.stats.intervals import Interval

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mia_batch.stats.influence import AucEstimate
    from mia_batch.stats.roc import RocCurve

__all__ = [
    "balanced_accuracy_interval",
    "clopper_pearson",
    "conservative_interval",
    "grouped_tpr_interval",
    "threshold_fpr_interval",
    "tpr_interval",
]

_ENOUGH_FLAGGED = 20
"""Flagged non-members from which the bootstrap keeps its coverage."""

_ENOUGH_GROUPS = 15
"""Groups that the flagged non-members must come from; half of the groups where these are fewer."""


def tpr_interval(
    curve: RocCurve, budget: float, rng: np.random.Generator, *, confidence: float = 0.95
) -> Interval:
    """Interval of the TPR at a false-positive budget, for independent texts; never of zero width.

    Percentiles of the bootstrap of members and non-members where the budget allows at least 20
    non-members to be flagged, else `conservative_interval`. The bootstrap's distribution is drawn
    from directly: the rank, among the non-members, of a resample's highest one that is not flagged
    is an order statistic of uniform numbers, and how many members are above it is binomial.

    The method is ``bootstrap`` or ``order_statistics_conservative``.

    References
    ----------
    Efron and Tibshirani (1993), "An introduction to the bootstrap", sections 8.3 and 13.3.
    """
    n_members, n = curve.members.size, curve.nonmembers.size
    allowed = int(n_allowed(n, budget))
    if allowed >= _ENOUGH_FLAGGED:
        uniform = rng.beta(n - allowed, allowed + 1, N_RESAMPLES)
        spared = curve.nonmembers[np.minimum((n * uniform).astype(np.intp), n - 1)]
        share = 1 - curve.members.searchsorted(spared, side="right") / n_members
        drawn = rng.binomial(n_members, share) / n_members
        low, high = np.quantile(drawn, [(1 - confidence) / 2, (1 + confidence) / 2]).tolist()
        if low < high:
            return Interval(low=low, high=high, confidence=confidence, method="bootstrap")
    return conservative_interval(curve, budget, (n_members, n), confidence=confidence)


def grouped_tpr_interval(
    curve: RocCurve,
    budget: float,
    estimate: AucEstimate,
    draws: NDArray[np.float64] | None,
    n_flagged_groups: int,
    *,
    confidence: float = 0.95,
) -> Interval | None:
    """Interval of the TPR at a false-positive budget, for clustered texts; never of zero width.

    The spread over a bootstrap of groups, on the logit scale with Student's t, where the budget
    allows at least 20 non-members to be flagged and they come from at least 15 groups, or half of
    the groups; else `conservative_interval` with the number of texts that there would be were
    those of a group equal.

    ``draws`` are the TPR in resamples of groups, NaN where a class was empty; without them the
    interval is the conservative one. The method is ``group_bootstrap_logit_t`` or
    ``order_statistics_groups_conservative``; None below 4 effective groups of a class.

    References
    ----------
    Field and Welsh (2007), "Bootstrapping clustered data"; Kish (1965), "Survey sampling".
    """
    if estimate.n_groups is None or estimate.lack:
        return None
    from scipy.special import expit, logit
    from scipy.stats import t

    value = curve.at_fpr(budget).tpr
    spread = 0.0 if draws is None else float(np.nanstd(draws, ddof=1))
    few = n_allowed(curve.nonmembers.size, budget) < _ENOUGH_FLAGGED or n_flagged_groups < min(
        _ENOUGH_GROUPS, estimate.n_groups / 2
    )
    if few or spread == 0 or value in (0, 1):
        made = conservative_interval(curve, budget, estimate.sizes, confidence=confidence)
        method = made.method.replace("_conservative", "_groups_conservative")
        return Interval(low=made.low, high=made.high, confidence=confidence, method=method)
    n = estimate.n_groups
    quantile = float(t.ppf((1 + confidence) / 2, n - 1))
    half = quantile * spread * (n / (n - 1)) ** 0.5 / (value * (1 - value))
    return Interval(
        low=float(expit(logit(value) - half)),
        high=float(expit(logit(value) + half)),
        confidence=confidence,
        method="group_bootstrap_logit_t",
    )


def conservative_interval(
    curve: RocCurve, budget: float, sizes: tuple[float, float], *, confidence: float = 0.95
) -> Interval:
    """Interval of the TPR at a false-positive budget for any distribution of scores.

    Two order statistics of the non-members enclose the threshold whose FPR is the budget;
    Clopper-Pearson limits of the TPR at the one and at the other enclose the TPR. A quarter of the
    error goes to each of the four (Bonferroni).

    ``sizes`` (members, non-members) are effective numbers where texts are clustered, and then ranks
    are stretched to the texts that there are.

    References
    ----------
    David and Nagaraja (2003), "Order statistics", section 7.1 (limits of a quantile); Clopper and
    Pearson (1934), "The use of confidence or fiducial limits illustrated in the case of the
    binomial".
    """
    from scipy.stats import binom

    n_members, n = (int(size) for size in sizes)
    error = (1 - confidence) / 4
    stretched = curve.nonmembers.size / n
    above = int(binom.isf(error, n, 1 - budget)) + 1
    below = int(binom.ppf(error, n, 1 - budget))
    shares: list[float] = []
    for rank in (np.ceil(above * stretched), np.floor(below * stretched)):
        if above > n and not shares:
            shares.append(0.0)
        elif rank < 1:
            shares.append(1.0)
        else:
            spared = curve.nonmembers[int(rank) - 1]
            missed = curve.members.searchsorted(spared, side="right")
            shares.append(1 - missed / curve.members.size)
    within = 1 - 2 * error
    fewest = int(np.floor(shares[0] * n_members + 1e-9))
    most = int(np.ceil(shares[1] * n_members - 1e-9))
    return Interval(
        low=clopper_pearson(fewest, n_members, confidence=within).low,
        high=clopper_pearson(most, n_members, confidence=within).high,
        confidence=confidence,
        method="order_statistics_conservative",
    )


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

    k = int(n_allowed(int(n), budget))
    low, high = (
        float(beta.ppf(share, k + 1, int(n) - k))
        for share in ((1 - confidence) / 2, (1 + confidence) / 2)
    )
    return Interval(low=low, high=high, confidence=confidence, method="beta")


def balanced_accuracy_interval(
    hits: tuple[int, int], sizes: tuple[int, int], *, confidence: float = 0.95
) -> Interval:
    """Interval of the mean of two rates at a threshold fixed on other data, independent texts.

    Clopper-Pearson limits of both rates, joined by the method of variance estimates recovery.

    ``hits`` are members flagged and non-members not flagged.

    References
    ----------
    Clopper and Pearson (1934); Zou and Donner (2008), "Construction of confidence limits about
    effect measures: a general approach", equations 1 and 2.
    """
    rates = np.array(hits, np.float64) / np.array(sizes, np.float64)
    limits = [
        clopper_pearson(right, n, confidence=confidence)
        for right, n in zip(hits, sizes, strict=True)
    ]
    below = rates - np.array([limit.low for limit in limits])
    above = np.array([limit.high for limit in limits]) - rates
    value = float(rates.mean())
    return Interval(
        low=value - float(np.linalg.norm(below)) / 2,
        high=value + float(np.linalg.norm(above)) / 2,
        confidence=confidence,
        method="clopper_pearson_mover",
    )


def clopper_pearson(hits: int, n: int, *, confidence: float = 0.95) -> Interval:
    """Interval of a rate at a threshold that was fixed on other data, for independent texts.

    References
    ----------
    Clopper and Pearson (1934).
    """
    from scipy.stats import binomtest

    limits = binomtest(hits, n).proportion_ci(confidence, method="exact")
    return Interval(
        low=float(limits.low),
        high=float(limits.high),
        confidence=confidence,
        method="clopper_pearson",
    )
