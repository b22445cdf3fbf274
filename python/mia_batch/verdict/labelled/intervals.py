"""Confidence intervals for the area under a ROC curve."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING

import numpy as np

from mia_batch.verdict.labelled.roc import n_beaten

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Interval", "auc_interval"]

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
    auc: float,
    *,
    confidence: float = 0.95,
) -> Interval:
    """Interval of a ROC AUC for independent texts; never of zero width.

    DeLong's variance on the logit scale where the AUC lies from 0.05 to 0.95, Newcombe's method 5
    beyond, and where DeLong's variance is 0 or undefined (constant scores, a single text).

    Parameters
    ----------
    members
        Scores of the members, at least one.
    nonmembers
        Scores of the non-members, at least one.
    auc
        Their ROC AUC.
    confidence
        Nominal coverage.

    Returns
    -------
    Interval
        Method ``delong_logit`` or ``newcombe_5``.

    References
    ----------
    DeLong, DeLong and Clarke-Pearson (1988), "Comparing the areas under two or more correlated
    receiver operating characteristic curves"; Newcombe (2006), "Confidence intervals for an effect
    size measure based on the Mann-Whitney statistic. Part 2", method 5.
    """
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    variance = _delong_variance(members, nonmembers)
    low_end, high_end = _DELONG_WITHIN
    if variance > 0 and low_end <= auc <= high_end:
        low, high = _logit_limits(auc, variance, z)
        method = "delong_logit"
    else:
        low, high = _newcombe_limits(auc, members.size, nonmembers.size, z)
        method = "newcombe_5"
    return Interval(low=low, high=high, confidence=confidence, method=method)


def _delong_variance(members: NDArray[np.float64], nonmembers: NDArray[np.float64]) -> float:
    """DeLong's variance of the AUC; 0 where undefined."""
    n1, n0 = members.size, nonmembers.size
    if min(n1, n0) < 2:
        return 0.0
    beaten = n_beaten(members, np.sort(nonmembers)) / n0
    beating = n_beaten(nonmembers, np.sort(members)) / n1
    return float(beaten.var(ddof=1) / n1 + beating.var(ddof=1) / n0)


def _logit_limits(auc: float, variance: float, z: float) -> tuple[float, float]:
    from scipy.special import expit, logit

    half = z * variance**0.5 / (auc * (1 - auc))
    return float(expit(logit(auc) - half)), float(expit(logit(auc) + half))


def _newcombe_limits(auc: float, n1: int, n0: int, z: float) -> tuple[float, float]:
    return _newcombe_low(auc, n1, n0, z), 1 - _newcombe_low(1 - auc, n1, n0, z)


def _newcombe_low(auc: float, n1: int, n0: int, z: float) -> float:
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
