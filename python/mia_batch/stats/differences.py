"""Several ROC AUCs: paired differences, bounds that hold all at once, adjusted p-values."""

from collections.abc import Mapping, Sequence
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mia_batch.stats import Flags, Floats, intervals

# Normal quantiles between which p-values are looked for: beyond, p is 1, or taken as 1e-15.
_NEAREST, _FARTHEST = 0.01, 8.0


class Difference(NamedTuple):
    """AUC of one score less that of another, on the texts that have both."""

    n_members: int  # that have both scores
    n_nonmembers: int
    value: float | None = None  # in [-1, 1]; None where a class has no text
    interval: intervals.Interval | None = None  # None where the data cannot support one
    # two-sided, of equal areas: above 1 - confidence where the interval holds 0
    p_value: float | None = None
    reason: str | None = None  # why value or interval is None

    def row(self, n_texts: int) -> dict[str, Any]:
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
    confidence: float = intervals.CONFIDENCE,
) -> Difference:
    """Compare two scores of the same texts by their ROC AUC; texts without both are left out.

    Normal limits by the covariance of both areas where these lie from 0.05 to 0.95: DeLong, DeLong
    and Clarke-Pearson (1988), equation 7; Obuchowski (1997). Beyond, and where both rank alike, the
    limits of each area, joined as if their errors were independent: wide, but never of zero width,
    Zou and Donner (2008), equation 7.
    """
    both = np.isfinite(first) & np.isfinite(second)
    member, first, second = member[both], first[both], second[both]
    cluster = None if cluster is None else cluster[both]
    sizes = int(member.sum()), int(np.count_nonzero(~member))
    if 0 in sizes:
        return Difference(*sizes, reason="a class has no text that has both scores")
    area_1, influence_1 = intervals.estimate_auc(member, first, cluster)
    area_2, influence_2 = intervals.estimate_auc(member, second, cluster)
    gaps, value = influence_1 - influence_2, area_1.value - area_2.value
    if area_1.lack:
        return Difference(*sizes, value=value, reason=area_1.lack)
    variance = float(gaps @ gaps)
    low, high, method = _limits(
        area_1, area_2, variance, NormalDist().inv_cdf((1 + confidence) / 2)
    )
    interval = intervals.Interval(max(-1.0, low), min(1.0, high), confidence, method)
    return Difference(*sizes, value, interval, _p_value(area_1, area_2, variance))


def _p_value(first: intervals.AucEstimate, second: intervals.AucEstimate, variance: float) -> float:
    """Two-sided p-value: the level at which a limit of the interval is 0."""
    from scipy.optimize import brentq

    def left(z: float) -> float:
        """How far the nearer limit, at so many standard errors, is from 0."""
        low, high, _ = _limits(first, second, variance, z)
        return low if first.value > second.value else -high

    if left(_NEAREST) <= 0:
        return 1.0
    z = _FARTHEST if left(_FARTHEST) > 0 else float(brentq(left, _NEAREST, _FARTHEST, xtol=1e-9))
    return 2 * NormalDist().cdf(-z)


def _limits(
    first: intervals.AucEstimate, second: intervals.AucEstimate, variance: float, z: float
) -> tuple[float, float, str]:
    """Limits at a normal quantile, and how they were made; they may lie beyond -1 and 1."""
    quantile = first.quantile(z)
    value = first.value - second.value
    if variance > 0 and intervals.is_middling(first.value) and intervals.is_middling(second.value):
        half = quantile * variance**0.5
        method = "delong_paired" if first.n_groups is None else "cluster_paired_t"
        return value - half, value + half, method
    (low_1, high_1), (low_2, high_2) = (
        intervals.auc_limits(area.value, area.variance, area.sizes, quantile)[:2]
        for area in (first, second)
    )
    below = np.hypot(first.value - low_1, high_2 - second.value)
    above = np.hypot(high_1 - first.value, second.value - low_2)
    return value - float(below), value + float(above), "mover"


# Lower bounds of many areas that hold all at once: what the best of many attacks is worth.

N_BLOCKS = 2_048  # sums that the errors of an area are kept in: correlations are known to 0.02
# Draws of the largest error; the quantile, of which three digits are kept, is known to 0.03.
_N_DRAWN, _AT_ONCE = 5_000, 1_000


class AucResult(NamedTuple):
    """One area of many, an attack's on a slice."""

    estimate: intervals.AucEstimate
    # influences of the texts or clusters, in sums over blocks of them that are the same for all
    errors: Floats
    counts: dict[str, int]  # numbers of targets, columns of the metrics table


def simultaneous_bounds(
    tried: Mapping[tuple[str, str], AucResult], *, seed: int = 0
) -> dict[tuple[str, str], intervals.Interval | None]:
    """Bound areas from below so that all bounds hold together; None below 4 groups of a class.

    The quantile of the largest studentised error over all areas (max-t), by a multiplier bootstrap
    of their influences, takes the place of the normal one in each area's own limit; at least
    Bonferroni's where an area has no variance. Chernozhukov, Chetverikov and Kato (2013), "Gaussian
    approximations and multiplier bootstrap"; Hothorn et al. (2008), section 3.
    """
    quantile = _quantile([one for one in tried.values() if not one.estimate.lack], len(tried), seed)
    method = f"max_t over {len(tried)}"
    bounds: dict[tuple[str, str], intervals.Interval | None] = dict.fromkeys(tried)
    for key, one in tried.items():
        area = one.estimate
        if not area.lack:
            limits = intervals.auc_limits(
                area.value, area.variance, area.sizes, area.quantile(quantile)
            )
            bounds[key] = intervals.Interval(limits[0], 1.0, intervals.CONFIDENCE, method)
    return bounds


def _quantile(tried: Sequence[AucResult], n_tried: int, seed: int) -> float:
    """Find how many standard errors the largest error of all areas keeps within."""
    bonferroni = NormalDist().inv_cdf(1 - (1 - intervals.CONFIDENCE) / max(n_tried, 1))
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
    quantile = round(float(np.quantile(np.concatenate(largest), intervals.CONFIDENCE)), 3)
    return quantile if len(varied) == len(tried) else max(quantile, bonferroni)


def holm(p: Floats) -> Floats:
    """Adjust p-values by Holm (1979); a missing one (NaN) counts as 1, and as a test."""
    known = np.where(np.isnan(p), 1.0, p)
    order = np.argsort(known, kind="stable")
    adjusted = np.empty_like(p)
    steps = np.maximum.accumulate(known[order] * np.arange(p.size, 0, -1))
    adjusted[order] = np.minimum(steps, 1.0)
    return np.where(np.isnan(p), np.nan, adjusted)
