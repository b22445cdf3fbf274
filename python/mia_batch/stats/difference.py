"""Paired difference of two scores' ROC AUC on the same texts."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import numpy as np

from mia_batch.stats.influence import AucEstimate, estimate_auc
from mia_batch.stats.intervals import Interval, auc_limits, is_middling

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Difference", "auc_difference"]

_NEAREST, _FARTHEST = 0.01, 8.0
"""Normal quantiles between which p-values are looked for: beyond, p is 1, or taken as 1e-15."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Difference of two areas, on the texts that have both scores.

    Attributes
    ----------
    value
        AUC of the first less AUC of the second, in [-1, 1]; None where a class has no text.
    interval
        Its confidence interval; None where the data cannot support one.
    p_value
        Two-sided, of equal areas: above 1 - confidence where the interval holds 0; None without an
        interval.
    reason
        Why value or interval is None.
    n_members
        Members that have both scores.
    n_nonmembers
        Non-members that have both scores.
    """

    value: float | None
    interval: Interval | None
    p_value: float | None = None
    reason: str | None
    n_members: int
    n_nonmembers: int

    def row(self, n_texts: int) -> dict[str, Any]:
        """Return the columns of the metrics table."""
        return {
            "metric": "roc_auc_difference",
            "value": self.value,
            **(asdict(self.interval) if self.interval else {}),
            "reason": self.reason,
            "n_members": self.n_members,
            "n_nonmembers": self.n_nonmembers,
            "n_unscored": n_texts - self.n_members - self.n_nonmembers,
        }


def auc_difference(
    member: NDArray[np.bool_],
    first: NDArray[np.float64],
    second: NDArray[np.float64],
    *,
    cluster: NDArray[np.int32] | None = None,
    confidence: float = 0.95,
) -> Difference:
    """Compare two scores of the same texts by their ROC AUC.

    Normal limits by the covariance of both areas where these lie from 0.05 to 0.95. Beyond, and
    where both scores rank the texts alike, from the limits of each area, which are joined as if
    their errors were independent: wide, but never of zero width.

    Texts without both scores, finite, are left out. The method is ``delong_paired``,
    ``cluster_paired_t`` or ``mover``.

    References
    ----------
    DeLong, DeLong and Clarke-Pearson (1988), equation 7; Obuchowski (1997); Zou and Donner (2008),
    "Construction of confidence limits about effect measures: a general approach", equation 7.
    """
    both = np.isfinite(first) & np.isfinite(second)
    member, first, second = member[both], first[both], second[both]
    cluster = None if cluster is None else cluster[both]
    n_members = int(member.sum())
    sizes = {"n_members": n_members, "n_nonmembers": member.size - n_members}
    if 0 in sizes.values():
        reason = "a class has no text that has both scores"
        return Difference(value=None, interval=None, reason=reason, **sizes)
    area_1, influence_1 = estimate_auc(member, first, cluster)
    area_2, influence_2 = estimate_auc(member, second, cluster)
    gaps = influence_1 - influence_2
    lack = area_1.lack
    value = area_1.value - area_2.value
    if lack:
        return Difference(value=value, interval=None, reason=lack, **sizes)
    variance = float(gaps @ gaps)
    return Difference(
        value=value,
        interval=_interval(area_1, area_2, variance, confidence),
        p_value=_p_value(area_1, area_2, variance),
        reason=None,
        **sizes,
    )


def _p_value(first: AucEstimate, second: AucEstimate, variance: float) -> float:
    """Two-sided p-value: the level at which a limit of the interval is 0."""
    from scipy.optimize import brentq

    def left(z: float) -> float:
        """Measure how far the nearer limit, at so many standard errors, is from 0."""
        low, high, _ = _limits(first, second, variance, z)
        return low if first.value > second.value else -high

    if left(_NEAREST) <= 0:
        return 1.0
    z = _FARTHEST if left(_FARTHEST) > 0 else float(brentq(left, _NEAREST, _FARTHEST, xtol=1e-9))
    return 2 * NormalDist().cdf(-z)


def _interval(
    first: AucEstimate, second: AucEstimate, variance: float, confidence: float
) -> Interval:
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    low, high, method = _limits(first, second, variance, z)
    return Interval(low=max(-1.0, low), high=min(1.0, high), confidence=confidence, method=method)


def _limits(
    first: AucEstimate, second: AucEstimate, variance: float, z: float
) -> tuple[float, float, str]:
    """Limits at a normal quantile, and how they were made; they may lie beyond -1 and 1."""
    quantile = first.quantile(z)
    value = first.value - second.value
    if variance > 0 and is_middling(first.value) and is_middling(second.value):
        half = quantile * variance**0.5
        method = "delong_paired" if first.n_groups is None else "cluster_paired_t"
        return value - half, value + half, method
    (low_1, high_1), (low_2, high_2) = (
        auc_limits(area.value, area.variance, area.sizes, quantile)[:2] for area in (first, second)
    )
    below = np.hypot(first.value - low_1, high_2 - second.value)
    above = np.hypot(high_1 - first.value, second.value - low_2)
    return value - float(below), value + float(above), "mover"
