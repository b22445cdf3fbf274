"""Several ROC AUCs: paired differences, bounds that hold all at once, adjusted p-values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mia_batch.stats import Flags, Floats
from mia_batch.stats.intervals import (
    CONFIDENCE,
    AucEstimate,
    Interval,
    auc_limits,
    estimate_auc,
    is_middling,
)

_NEAREST, _FARTHEST = 0.01, 8.0
"""Normal quantiles between which p-values are looked for: beyond, p is 1, or taken as 1e-15."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Difference of two areas, on the texts that have both scores."""

    # AUC of the first less AUC of the second, in [-1, 1]; None where a class has no text
    value: float | None
    interval: Interval | None  # its confidence interval; None where the data cannot support one
    # two-sided, of equal areas: above 1 - confidence where the interval holds 0; None without an
    # interval
    p_value: float | None = None
    reason: str | None  # why value or interval is None
    n_members: int  # members that have both scores
    n_nonmembers: int  # non-members that have both scores

    def row(self, n_texts: int) -> dict[str, Any]:
        """Return the columns of the metrics table."""
        return {
            "metric": "roc_auc_difference",
            "value": self.value,
            **(self.interval._asdict() if self.interval else {}),
            "reason": self.reason,
            "n_members": self.n_members,
            "n_nonmembers": self.n_nonmembers,
            "n_unscored": n_texts - self.n_members - self.n_nonmembers,
        }


def auc_difference(
    member: Flags,
    first: Floats,
    second: Floats,
    *,
    cluster: NDArray[np.int32] | None = None,
    confidence: float = CONFIDENCE,
) -> Difference:
    """Compare two scores of the same texts by their ROC AUC.

    Normal limits by the covariance of both areas where these lie from 0.05 to 0.95. Beyond, and
    where both scores rank the texts alike, from the limits of each area, which are joined as if
    their errors were independent: wide, but never of zero width. Texts without both scores, finite,
    are left out.

    DeLong, DeLong and Clarke-Pearson (1988), equation 7; Obuchowski (1997); Zou and Donner (2008),
    equation 7.
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
    gaps, value = influence_1 - influence_2, area_1.value - area_2.value
    if area_1.lack:
        return Difference(value=value, interval=None, reason=area_1.lack, **sizes)
    variance, z = float(gaps @ gaps), NormalDist().inv_cdf((1 + confidence) / 2)
    low, high, method = _limits(area_1, area_2, variance, z)
    return Difference(
        value=value,
        interval=Interval(max(-1.0, low), min(1.0, high), confidence, method),
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


# Lower bounds of many areas that hold all at once: what the best of many attacks is worth.

N_BLOCKS = 2_048
"""Sums that the errors of an area are kept in: correlations of two areas are known to 0.02."""

_N_DRAWN = 5_000
"""Draws of the largest error; the quantile, of which three digits are kept, is known to 0.03."""

_AT_ONCE = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class AucResult:
    """One area of many, an attack's on a slice."""

    estimate: AucEstimate  # the area and what is known of its error
    # influences of the texts or clusters, in sums over blocks of them that are the same for all
    errors: Floats
    counts: dict[str, int]  # numbers of targets, columns of the metrics table


def simultaneous_bounds(
    tried: Mapping[tuple[str, str], AucResult], *, seed: int = 0
) -> dict[tuple[str, str], Interval | None]:
    """Bound areas from below so that all bounds hold together; None below 4 groups of a class.

    The quantile of the largest studentised error over all areas (max-t), by a multiplier bootstrap
    of their influences, takes the place of the normal one in each area's own lower limit. Where an
    area has no estimated variance, the quantile is at least Bonferroni's.

    Chernozhukov, Chetverikov and Kato (2013), "Gaussian approximations and multiplier bootstrap for
    maxima of sums of high-dimensional random vectors"; Hothorn et al. (2008), section 3.
    """
    quantile = _quantile([one for one in tried.values() if not one.estimate.lack], len(tried), seed)
    method = f"max_t over {len(tried)}"
    bounds: dict[tuple[str, str], Interval | None] = dict.fromkeys(tried)
    for key, area in ((key, one.estimate) for key, one in tried.items()):
        if area.lack:
            continue
        widened = area.quantile(quantile)
        low = auc_limits(area.value, area.variance, area.sizes, widened)[0]
        bounds[key] = Interval(low, 1.0, CONFIDENCE, method)
    return bounds


def _quantile(tried: Sequence[AucResult], n_tried: int, seed: int) -> float:
    """Find how many standard errors the largest error of all areas keeps within."""
    bonferroni = NormalDist().inv_cdf(1 - (1 - CONFIDENCE) / max(n_tried, 1))
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
    quantile = round(float(np.quantile(np.concatenate(largest), CONFIDENCE)), 3)
    return quantile if len(varied) == len(tried) else max(quantile, bonferroni)


def holm(p: Floats) -> Floats:
    """Adjust p-values: if all adjusted up to a level are reported, one is false with that chance.

    A missing p-value (NaN) counts as 1 and stays in the number of tests.

    Holm (1979), "A simple sequentially rejective multiple test procedure".
    """
    order = np.argsort(np.where(np.isnan(p), 1.0, p), kind="stable")
    steps = np.where(np.isnan(p), 1.0, p)[order] * np.arange(p.size, 0, -1)
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(np.maximum.accumulate(steps), 1.0)
    return np.where(np.isnan(p), np.nan, adjusted)
