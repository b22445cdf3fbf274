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


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Difference of two areas, on the texts that have both scores.

    Attributes
    ----------
    value
        AUC of the first less AUC of the second, in [-1, 1]; None where a class has no text.
    interval
        Its confidence interval; None where the data cannot support one.
    reason
        Why value or interval is None.
    n_members
        Members that have both scores.
    n_nonmembers
        Non-members that have both scores.
    """

    value: float | None
    interval: Interval | None
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
    interval = None if lack else _interval(area_1, area_2, float(gaps @ gaps), confidence)
    value = area_1.value - area_2.value
    return Difference(value=value, interval=interval, reason=lack, **sizes)


def _interval(
    first: AucEstimate, second: AucEstimate, variance: float, confidence: float
) -> Interval:
    quantile = first.quantile(NormalDist().inv_cdf((1 + confidence) / 2))
    value = first.value - second.value
    if variance > 0 and is_middling(first.value) and is_middling(second.value):
        below = above = quantile * variance**0.5
        method = "delong_paired" if first.n_groups is None else "cluster_paired_t"
    else:
        (low_1, high_1), (low_2, high_2) = (
            auc_limits(area.value, area.variance, area.sizes, quantile)[:2]
            for area in (first, second)
        )
        below = np.hypot(first.value - low_1, high_2 - second.value)
        above = np.hypot(high_1 - first.value, second.value - low_2)
        method = "mover"
    return Interval(
        low=max(-1.0, value - float(below)),
        high=min(1.0, value + float(above)),
        confidence=confidence,
        method=method,
    )
