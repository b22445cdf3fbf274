"""Paired difference of two scores' ROC AUC on the same texts."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import numpy as np

from mia_batch.stats.influence import AucEstimate, estimate_auc
from mia_batch.stats.intervals import Interval, auc_limits

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

    The limits of each area, joined by the correlation of their errors (method of variance estimates
    recovery). Where both scores rank the texts alike, or an area has no estimated variance, they
    are joined as if their errors were independent: wide, but never of zero width.

    Texts without both scores, finite, are left out. The method is ``mover``.

    References
    ----------
    Zou and Donner (2008), "Construction of confidence limits about effect measures: a general
    approach", equation 7; DeLong, DeLong and Clarke-Pearson (1988), equation 7, and Obuchowski
    (1997) for the correlation.
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
    lack = area_1.lack
    value = area_1.value - area_2.value
    if lack:
        return Difference(value=value, interval=None, reason=lack, **sizes)
    spread = (area_1.variance * area_2.variance) ** 0.5
    alike = np.allclose(influence_1, influence_2, rtol=0, atol=1e-12)
    correlation = float(influence_1 @ influence_2) / spread if spread and not alike else 0.0
    return Difference(
        value=value,
        interval=_interval(area_1, area_2, correlation, confidence),
        p_value=_p_value(area_1, area_2, correlation),
        reason=None,
        **sizes,
    )


def _p_value(first: AucEstimate, second: AucEstimate, correlation: float) -> float:
    """Two-sided p-value: the level at which a limit of the interval is 0."""
    from scipy.optimize import brentq

    def left(z: float) -> float:
        """Measure how far the nearer limit, at so many standard errors, is from 0."""
        low, high = _limits(first, second, correlation, z)
        return low if first.value > second.value else -high

    if left(_NEAREST) <= 0:
        return 1.0
    z = _FARTHEST if left(_FARTHEST) > 0 else float(brentq(left, _NEAREST, _FARTHEST, xtol=1e-9))
    return 2 * NormalDist().cdf(-z)


def _interval(
    first: AucEstimate, second: AucEstimate, correlation: float, confidence: float
) -> Interval:
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    low, high = _limits(first, second, correlation, z)
    return Interval(low=max(-1.0, low), high=min(1.0, high), confidence=confidence, method="mover")


def _limits(
    first: AucEstimate, second: AucEstimate, correlation: float, z: float
) -> tuple[float, float]:
    """Limits at a normal quantile; they may lie beyond -1 and 1."""
    quantile = first.quantile(z)
    (low_1, high_1), (low_2, high_2) = (
        auc_limits(area.value, area.variance, area.sizes, quantile)[:2] for area in (first, second)
    )
    value = first.value - second.value
    below = _joined(first.value - low_1, high_2 - second.value, correlation)
    return value - below, value + _joined(high_1 - first.value, second.value - low_2, correlation)


def _joined(one: float, other: float, correlation: float) -> float:
    return float(max(one**2 + other**2 - 2 * correlation * one * other, 0.0) ** 0.5)
