"""How many of the targets were in the training data: a rate with interval, or a lower bound."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "Contamination",
    "Flagged",
    "contamination_bound",
    "contamination_rate",
    "fewest_members",
    "withheld",
]

_ASSUMPTIONS = {
    "fieller": "assumes that the members among the targets score as high as the calibration "
    "members, and the others as the calibration non-members",
    "beta_binomial": "assumes that the targets outside the training data are exchangeable with "
    "the non-members",
}


class Flagged(NamedTuple):
    """How many of ``total`` (at least 1) texts, or groups of texts, score above a threshold.

    Not whole where texts depend on each other: so many independent ones would tell as much.
    """

    above: float
    total: float

    @property
    def rate(self) -> float:
        """Their share."""
        return self.above / self.total

    @property
    def spread(self) -> float:
        """Variance of one of them, smoothed by one more of each kind: never 0."""
        rate = (self.above + 1) / (self.total + 2)
        return rate * (1 - rate)


@dataclass(frozen=True, slots=True, kw_only=True)
class Contamination:
    """Share of members among the targets, in [0, 1], or the reason why it is withheld."""

    value: float | None = None
    low: float | None = None
    high: float | None = None
    confidence: float
    method: str
    assumption: str
    reason: str | None = None


def withheld(method: str, reason: str, confidence: float) -> Contamination:
    """No numbers, and why."""
    assumption = _ASSUMPTIONS[method]
    return Contamination(confidence=confidence, method=method, assumption=assumption, reason=reason)


def contamination_rate(
    targets: Flagged,
    nonmembers: Flagged,
    members: Flagged,
    *,
    blind_warns: bool,
    confidence: float = 0.95,
) -> Contamination:
    r"""Share of members among the targets, from the rates of labelled calibration data.

    With F, FPR and TPR the flagged shares of targets, calibration non-members and members, the
    estimate is (F - FPR) / (TPR - FPR). The interval holds every share \(\pi\) that these rates do
    not contradict:

    .. math:: (F - (1 - \pi) FPR - \pi TPR)^2 \le z^2 (\pi v_1 / m + (1 - \pi) v_0 / m
        + (1 - \pi)^2 v_0 / n_0 + \pi^2 v_1 / n_1)

    where v = r (1 - r) with r = (flagged + 1) / (total + 2), of members (1) and non-members (0).
    The first two terms are the variance of F among m targets of which a share \(\pi\) are members;
    there \(\pi\) is held within [0, 1]. The limits are clipped to [0, 1] last.

    Unscored units are left out, and calibration data must not have set the threshold. Withheld
    where ``blind_warns`` (calibration labels can be told apart without the model), where the
    interval of TPR - FPR holds 0, and where no share agrees with the rates.

    Fieller (1954), "Some problems in interval estimation"; Rogan and Gladen (1978), "Estimating
    prevalence from the results of a screening test", for the estimate.
    """
    from scipy.optimize import brentq

    z = NormalDist().inv_cdf((1 + confidence) / 2)
    gap = members.rate - nonmembers.rate
    gap_variance = nonmembers.spread / nonmembers.total + members.spread / members.total

    def refuse(reason: str) -> Contamination:
        return withheld("fieller", reason, confidence)

    if blind_warns:
        return refuse("the calibration labels can be told apart without the model")
    if gap <= z * gap_variance**0.5:
        return refuse("calibration members do not score above non-members")
    estimate = (targets.rate - nonmembers.rate) / gap

    def excess(share: float) -> float:
        """Squared contradiction above what chance allows; at most 0 inside the interval."""
        inside = min(max(share, 0.0), 1.0)
        of_members = inside / targets.total + share**2 / members.total
        of_others = (1 - inside) / targets.total + (1 - share) ** 2 / nonmembers.total
        variance = of_members * members.spread + of_others * nonmembers.spread
        return (gap * (share - estimate)) ** 2 - z**2 * variance

    low, high = (
        brentq(excess, estimate, _beyond(excess, estimate, step), xtol=1e-12) for step in (-1, 1)
    )
    if low > 1:
        return refuse("more targets are flagged than calibration members")
    if high < 0:
        return refuse("fewer targets are flagged than calibration non-members")
    return Contamination(
        value=min(max(estimate, 0.0), 1.0),
        low=max(low, 0.0),
        high=min(high, 1.0),
        confidence=confidence,
        method="fieller",
        assumption=_ASSUMPTIONS["fieller"],
    )


def contamination_bound(
    targets: Flagged, *, n_null: int, rank: int, confidence: float = 0.95
) -> Contamination:
    """Lower bound for the share of members among the targets, where only non-members are known.

    The threshold is the k-th largest of n null scores, k chosen before scores are seen; unscored
    nulls lie above it, unscored targets are not flagged. If M of m targets are members, at least
    f - M of the m - M others are flagged; a null target lies above the threshold with a
    probability that is Beta(k, n + 1 - k), so the bound is the smallest M with
    P(BetaBinomial(m - M, k, n + 1 - k) >= f - M) > 1 - confidence, divided by m.

    The distribution of exceedances: Gumbel and von Schelling (1950), "The distribution of the
    number of exceedances".
    """
    fewest = fewest_members(targets, n_null=n_null, rank=rank, confidence=confidence)
    return Contamination(
        low=fewest / targets.total,
        high=1.0,
        confidence=confidence,
        method="beta_binomial",
        assumption=_ASSUMPTIONS["beta_binomial"],
        reason="without calibration data there is a lower bound alone",
    )


@lru_cache(4096)
def fewest_members(targets: Flagged, *, n_null: int, rank: int, confidence: float) -> int:
    """Return the M of `contamination_bound`: so many of the flagged targets at least are members.

    It bounds the members A among the flagged, too. M > A needs that f - A others, of at most m - A,
    are flagged, which the same law allows with probability 1 - confidence at most.
    """
    from scipy.stats import betabinom

    def allowed(members: int) -> bool:
        others, beyond = targets.total - members, targets.above - members
        chance = betabinom.sf(beyond - 1, others, rank, n_null + 1 - rank)
        return bool(chance > 1 - confidence)

    return bisect_left(range(int(targets.above)), True, key=allowed)


def _beyond(excess: Callable[[float], float], start: float, step: float) -> float:
    """Find a point on one side at which the excess is positive."""
    while excess(start + step) <= 0:
        step *= 2
    return start + step
