"""Confidence intervals for the area under a ROC curve."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING

import numpy as np

from mia_batch.stats.influence import AucEstimate, estimate_auc

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Interval", "auc_interval", "auc_limits", "estimate_interval", "is_middling"]

_DELONG_WITHIN = (0.05, 0.95)
"""Outside, simulation gives DeLong too low a coverage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A confidence interval.

    Attributes
    ----------
    low
        Lower limit.
    high
        Upper limit, above ``low``.
    confidence
        Nominal coverage, in (0, 1).
    method
        How it was made.
    """

    low: float
    high: float
    confidence: float
    method: str


def auc_interval(
    members: NDArray[np.float64],
    nonmembers: NDArray[np.float64],
    *,
    confidence: float = 0.95,
) -> Interval:
    """Interval of a ROC AUC for independent texts; never of zero width.

    DeLong's variance on the logit scale where the AUC lies from 0.05 to 0.95, Newcombe's method 5
    beyond, and where DeLong's variance is 0 or undefined (constant scores, a single text).

    The method is ``delong_logit`` or ``newcombe_5``.

    References
    ----------
    DeLong, DeLong and Clarke-Pearson (1988), "Comparing the areas under two or more correlated
    receiver operating characteristic curves"; Newcombe (2006), "Confidence intervals for an effect
    size measure based on the Mann-Whitney statistic. Part 2", method 5.
    """
    score = np.concatenate([members, nonmembers])
    estimate, _ = estimate_auc(np.arange(score.size) < members.size, score)
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    low, high, method = auc_limits(estimate.value, estimate.variance, estimate.sizes, z)
    return Interval(low=low, high=high, confidence=confidence, method=method)


def estimate_interval(estimate: AucEstimate, *, confidence: float = 0.95) -> Interval | None:
    """Interval of an estimated ROC AUC, independent texts or clusters; never of zero width.

    Independent texts as in `auc_interval`. Clusters, whose number is the effective one of the class
    that has fewer: the variance of groups on the logit scale with Student's t of K - 1 degrees of
    freedom. Where the AUC lies below 0.05 or above 0.95, Newcombe's method 5 with the number of
    texts that there would be were those of a group equal.

    The method is ``delong_logit`` or ``newcombe_5``; of clusters ``group_logit_t`` or
    ``newcombe_5_groups``, and None below 4 groups of a class.

    References
    ----------
    Obuchowski (1997), "Nonparametric analysis of clustered ROC curve data"; Newcombe (2006), method
    5; Kish (1965), "Survey sampling", for the effective number.
    """
    if estimate.lack:
        return None
    quantile = estimate.quantile(NormalDist().inv_cdf((1 + confidence) / 2))
    low, high, method = auc_limits(estimate.value, estimate.variance, estimate.sizes, quantile)
    if estimate.n_groups is not None:
        method = {"delong_logit": "group_logit_t", "newcombe_5": "newcombe_5_groups"}[method]
    return Interval(low=low, high=high, confidence=confidence, method=method)


def auc_limits(
    auc: float, variance: float, sizes: tuple[float, float], quantile: float
) -> tuple[float, float, str]:
    """Limits of a ROC AUC from its variance, or from the number of texts; never of zero width.

    The variance is 0 where undefined; ``sizes`` are effective numbers where texts are clustered;
    ``quantile`` is in standard errors. Lower limit, upper limit, method: ``delong_logit`` where the
    AUC lies from 0.05 to 0.95 and its variance is above 0, else ``newcombe_5``.
    """
    if variance > 0 and is_middling(auc):
        return *_logit_limits(auc, variance, quantile), "delong_logit"
    return *_newcombe_limits(auc, *sizes, quantile), "newcombe_5"


def is_middling(auc: float) -> bool:
    """Whether an AUC is far enough from 0 and 1 for limits from its estimated variance."""
    low, high = _DELONG_WITHIN
    return low <= auc <= high


def _logit_limits(auc: float, variance: float, z: float) -> tuple[float, float]:
    from scipy.special import expit, logit

    half = z * variance**0.5 / (auc * (1 - auc))
    return float(expit(logit(auc) - half)), float(expit(logit(auc) + half))


def _newcombe_limits(auc: float, n1: float, n0: float, z: float) -> tuple[float, float]:
    return _newcombe_low(auc, n1, n0, z), 1 - _newcombe_low(1 - auc, n1, n0, z)


def _newcombe_low(auc: float, n1: float, n0: float, z: float) -> float:
    """Smallest AUC that is z standard errors below the one observed.

    The standard error is that of the tried AUC: Hanley and McNeil's, with the numbers of both
    classes replaced by their mean, so that the interval mirrors when the classes change places.
    """
    from scipy.optimize import brentq

    extra = (n1 + n0) / 2 - 1

    def gap(tried: float) -> float:
        spread = 1 + extra * ((1 - tried) / (2 - tried) + tried / (1 + tried))
        return (auc - tried) ** 2 - z**2 * tried * (1 - tried) * spread / (n1 * n0)

    if auc == 0:
        return 0.0
    return float(brentq(gap, 0.0, min(auc, 1 - 1e-12), xtol=1e-12))
