"""How many of the targets were in the training data: a rate with interval, or a lower bound."""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache, partial
from itertools import count
from math import floor
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
import polars as pl

from mia_batch.inference.comparison import (
    ComparisonSets,
    independent_units,
    windows_per_group,
)
from mia_batch.inference.findings import AttackScores, DecisionRule, verdict_rows
from mia_batch.stats import Floats, Ints
from mia_batch.stats.intervals import CONFIDENCE, design_effect

_SCORED = (
    "scored audited",
    "scored calibration non-member",
    "scored calibration member",
)
_ALIKE = (
    "assumes that the members among the targets score as high as the calibration"
    " members, and the others as the calibration non-members"
)
_ASSUMPTIONS = {
    "fieller": _ALIKE,
    "duci": (
        f"{_ALIKE}; at the threshold that tells one half of the calibration data best"
    ),
    "beta_binomial": (
        "assumes that the targets outside the training data are exchangeable with "
        "the non-members"
    ),
}


class Flagged(NamedTuple):
    """How many of ``total`` (at least 1) texts, or groups of texts, score above a threshold."""

    # Not whole where texts depend on each other: so many independent ones would be as
    # good.

    above: float
    total: float

    @property
    def rate(self) -> float:
        return self.above / self.total

    @property
    def spread(self) -> float:
        """Variance of one of them, smoothed by one more of each kind: never 0."""
        rate = (self.above + 1) / (self.total + 2)
        return rate * (1 - rate)


class Contamination(NamedTuple):
    """Share of members among the targets, in [0, 1], or the reason why it is withheld."""

    method: str
    value: float | None = None
    low: float | None = None
    high: float | None = None
    confidence: float = CONFIDENCE
    reason: str | None = None


def contamination_rate(
    targets: Flagged, nonmembers: Flagged, members: Flagged, *, blind_warns: bool
) -> Contamination:
    r"""Share of members among the targets, from the rates of labelled calibration data.

    With F, FPR and TPR the flagged shares of targets, calibration non-members and
    members, the estimate is (F - FPR) / (TPR - FPR): Rogan and Gladen (1978). The
    interval holds every share \(\pi\) with

    .. math:: (F - (1 - \pi) FPR - \pi TPR)^2 \le z^2 (\pi v_1 / m + (1 - \pi) v_0 / m
        + (1 - \pi)^2 v_0 / n_0 + \pi^2 v_1 / n_1)

    where v is `Flagged.spread` of members (1) and non-members (0), and \(\pi\) is held
    within [0, 1] in the first two terms: Fieller (1954). Withheld where the interval of
    TPR - FPR holds 0, and where no share agrees.
    """
    from scipy.optimize import brentq

    z = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
    gap = members.rate - nonmembers.rate
    gap_variance = nonmembers.spread / nonmembers.total + members.spread / members.total

    refuse = partial(Contamination, method="fieller")
    if blind_warns:
        return refuse(
            reason="the calibration labels can be distinguished without the model"
        )
    if gap <= z * gap_variance**0.5:
        return refuse(reason="calibration members do not score above non-members")
    estimate = (targets.rate - nonmembers.rate) / gap

    def excess(share: float) -> float:
        """Squared contradiction above what chance allows; at most 0 inside the interval."""
        inside = min(max(share, 0.0), 1.0)
        of_members = inside / targets.total + share**2 / members.total
        of_others = (1 - inside) / targets.total + (1 - share) ** 2 / nonmembers.total
        variance = of_members * members.spread + of_others * nonmembers.spread
        return (gap * (share - estimate)) ** 2 - z**2 * variance

    beyond = (
        next(share for n in count() if excess(share := estimate + sign * 2**n) > 0)
        for sign in (-1, 1)
    )
    low, high = (brentq(excess, estimate, outside, xtol=1e-12) for outside in beyond)
    if low > 1:
        return refuse(reason="more targets are flagged than calibration members")
    if high < 0:
        return refuse(reason="fewer targets are flagged than calibration non-members")
    value = min(max(estimate, 0.0), 1.0)
    return refuse(value=value, low=max(low, 0.0), high=min(high, 1.0))


def usage_share(
    targets: Floats,
    nonmembers: Floats,
    members: Floats,
    *,
    seed: int,
    blind_warns: bool,
) -> Contamination:
    r"""Share of members among the targets at the threshold that tells calibration data best.

    The mean over targets of \((m - FPR) / (TPR - FPR)\), m = 1 above the threshold at
    which TPR - FPR is largest, else 0: Tong, Ye, Zarifzadeh and Shokri (2025), "How
    much of my dataset did you use?" (DUCI). It is `contamination_rate` at another
    threshold. In the authors' code both rates are of reference models, a score at the
    threshold counts for the rates and not for m, and the threshold is chosen on what
    the rates are measured on: TPR - FPR is too large then, and of calibration data 95 %
    intervals cover 89 to 94 %. Here one half, by lot, chooses, and the other is
    measured.
    """
    rng, halves = np.random.default_rng(seed), []
    for scores in (nonmembers, members):
        mixed = rng.permutation(scores)
        halves.append((np.sort(mixed[: scores.size // 2]), mixed[scores.size // 2 :]))
    if (fewest := min(nonmembers.size, members.size)) < FEWEST_GROUPS:
        why = (
            f"{fewest} calibration units of a class are too few to halve,"
            f" {FEWEST_GROUPS} needed"
        )
        return Contamination(method="duci", reason=why)
    tried = np.unique(np.concatenate([chosen for chosen, _ in halves]))
    below = [chosen.searchsorted(tried, "right") / chosen.size for chosen, _ in halves]
    threshold = tried[np.argmax(below[0] - below[1])]
    rates = (
        Flagged(int((scores > threshold).sum()), scores.size)
        for scores in (targets, *(measured for _, measured in halves))
    )
    return contamination_rate(*rates, blind_warns=blind_warns)._replace(method="duci")


def contamination_bound(targets: Flagged, *, n_null: int, rank: int) -> Contamination:
    """Lower bound for the share of members among the targets, where only non-members are known.

    The threshold is the k-th largest of n null scores, k chosen before scores are seen.
    If M of m targets are members, at least f - M of the m - M others are flagged, so
    the bound is the smallest M with P(BetaBinomial(m - M, k, n + 1 - k) >= f - M) > 1 -
    confidence, divided by m: Gumbel and von Schelling (1950), "The distribution of the
    number of exceedances".
    """
    fewest = fewest_members(targets, n_null=n_null, rank=rank, confidence=CONFIDENCE)
    return Contamination(
        low=fewest / targets.total,
        high=1.0,
        method="beta_binomial",
        reason="without calibration data there is a lower bound alone",
    )


@lru_cache(4096)
def fewest_members(
    targets: Flagged, *, n_null: int, rank: int, confidence: float
) -> int:
    """M of `contamination_bound`: so many of the flagged targets at least are members."""
    # It bounds the members A among the flagged, too. M > A needs that f - A others, of
    # at most m - A, are flagged, which the same law allows with probability 1 -
    # confidence at most.
    from scipy.stats import betabinom

    def allowed(members: int) -> bool:
        others, beyond = targets.total - members, targets.above - members
        chance = betabinom.sf(beyond - 1, others, rank, n_null + 1 - rank)
        return bool(chance > 1 - confidence)

    return bisect_left(range(int(targets.above)), True, key=allowed)


FEWEST_GROUPS = 20  # of a set, where texts are grouped


def null_rank(n: int, fpr: float) -> int:
    """Return k: which of n nulls, the largest first, is the threshold."""
    return max(1, floor(round(fpr * (n + 1), 9)))


def null_threshold(nulls: Floats, fpr: float) -> tuple[int, float]:
    """Return k and the k-th largest null, k as of `null_rank`; NaN counts as above."""
    rank = null_rank(nulls.size, fpr)
    highest = np.sort(np.nan_to_num(nulls, nan=np.inf))
    return rank, float(highest[-rank]) if nulls.size else np.inf


def _too_few(
    sets: Iterable[tuple[str, int, bool]], groups: str = "groups"
) -> str | None:
    for name, n, grouped in sets:
        unit, fewest = (groups, FEWEST_GROUPS) if grouped else ("texts", 1)
        if n < fewest:
            return f"{n} {name} {unit} are too few, {fewest} are needed"
    return None


def contamination_test(
    sets: ComparisonSets, plan: DecisionRule, *, blind_warns: bool
) -> Callable[[AttackScores], Iterator[pl.DataFrame]]:
    # The units are clusters of texts, by their statistic over as many windows each;
    # where no texts share a cluster, they are texts. With fewer than 20 groups in a set
    # nothing is estimated.
    rows, calibration = (
        [sets.targets, sets.nulls],
        (sets.calibration_nonmembers, sets.calibration_members),
    )
    calibrated = any(of_set.size for of_set in calibration)
    rows += calibration if calibrated else ()
    grouped = sets.share_clusters(*rows)
    n_windows = windows_per_group(sets, plan) if grouped else 1
    together = independent_units(sets, rows, n_windows, plan.seed)
    units, grouped = together.units, grouped or together.by_author
    of_authors = (
        "; the share is one of authors, not of texts" if together.by_author else ""
    )

    def missing(*named: tuple[str, Floats]) -> str | None:
        sizes = ((name, of_set.size, grouped) for name, of_set in named)
        return _too_few(sizes, "authors" if together.by_author else "groups")

    def estimates(found: AttackScores) -> Iterator[pl.DataFrame]:
        """Yield the lower bound and, where there are calibration data, both point estimates."""
        # Unscored targets count as not flagged in the lower bound and are left out of
        # the point estimate, as unscored calibration units are.
        values = [of_set.statistics(found.scores, plan) for of_set in units]
        targets, nulls = values[:2]
        rank, threshold = null_threshold(nulls, plan.fpr)
        lack = together.reason or missing(("audited", targets), ("null", nulls))
        made = [Contamination(method="beta_binomial", reason=lack)]
        if not lack:
            flagged = Flagged(
                int(np.count_nonzero(targets > threshold)), units[0].sizes.size
            )
            made = [contamination_bound(flagged, n_null=nulls.size, rank=rank)]
        if calibrated:
            scored = [each[~np.isnan(each)] for each in (targets, *values[2:])]
            lack = lack or missing(*zip(_SCORED, scored, strict=True))
            if lack:
                made += (
                    Contamination(method=name, reason=lack)
                    for name in ("fieller", "duci")
                )
            else:
                made += _whatever_is_missing(
                    (targets, *values[2:]),
                    threshold,
                    seed=plan.seed,
                    blind_warns=blind_warns,
                )
        for one in made:
            yield verdict_rows(
                1,
                attack=found.attack,
                level="collection",
                planned=found.is_planned(plan),
                n_null=nulls.size,
                estimate="contamination_rate",
                assumption=_ASSUMPTIONS[one.method] + of_authors,
                **one._asdict(),
            )

    return estimates


# Scores that are missing: of three sets, targets, calibration non-members and members,
# the share of members rises with flagged targets and falls with flagged calibration
# texts of either kind.

_LOWEST, _HIGHEST = (-np.inf, np.inf, np.inf), (np.inf, -np.inf, -np.inf)
_FEW_MISSING = 0.01  # share of a set, above which there is no point estimate
MISSING = "limits hold whatever the scores would be that are missing ({} of {} units)"


def _whatever_is_missing(
    values: Sequence[Floats], threshold: float, *, seed: int, blind_warns: bool
) -> list[Contamination]:
    """Estimate by both methods, with limits that hold whichever scores are missing.

    Manski (1989), "Anatomy of the selection problem": a set without some of its scores,
    such as passages that a service refuses because it knows them, only says what lies
    between the two extremes of what they may be.
    """

    def both(sets: Sequence[Floats]) -> list[Contamination]:
        counts = (
            Flagged(int((scores > threshold).sum()), scores.size) for scores in sets
        )
        rate = contamination_rate(*counts, blind_warns=blind_warns)
        return [rate, usage_share(*sets, seed=seed, blind_warns=blind_warns)]

    estimates = both([scores[~np.isnan(scores)] for scores in values])
    n_missing = [int(np.isnan(scores).sum()) for scores in values]
    if not any(n_missing):
        return estimates
    extremes = [
        both(
            [
                np.where(np.isnan(of), filled, of)
                for of, filled in zip(values, fill, strict=True)
            ]
        )
        for fill in (_LOWEST, _HIGHEST)
    ]
    few = all(
        n <= _FEW_MISSING * of.size for n, of in zip(n_missing, values, strict=True)
    )
    n_units = sum(scores.size for scores in values)
    reason = MISSING.format(f"{sum(n_missing):,}", f"{n_units:,}")
    return [
        _between(*of_method, few_missing=few, reason=reason)
        for of_method in zip(estimates, *extremes, strict=True)
    ]


def _between(
    estimate: Contamination,
    lowest: Contamination,
    highest: Contamination,
    *,
    few_missing: bool,
    reason: str,
) -> Contamination:
    if estimate.low is None or estimate.high is None:
        return estimate
    low = 0.0 if lowest.low is None else min(lowest.low, estimate.low)
    high = 1.0 if highest.high is None else max(highest.high, estimate.high)
    value = estimate.value if few_missing else None
    return estimate._replace(
        value=value, low=low, high=high, reason=None if few_missing else reason
    )


class WindowShare:
    """Estimates of the share of windows, all with one threshold, as `contamination_test` makes."""

    # Windows of a document depend on each other, so that counts are divided by the
    # `design_effect` on being flagged in the known texts, the larger one for the
    # document.

    def __init__(
        self,
        sets: ComparisonSets,
        scores: Floats,
        fpr: float,
        *,
        blind_warns: bool,
        lack: str | None = None,
    ) -> None:
        nulls = scores[sets.nulls]
        self._blind_warns = blind_warns
        self.threshold = null_threshold(nulls, fpr)[1]
        calibration = (sets.calibration_nonmembers, sets.calibration_members)
        outside = np.concatenate([sets.nulls, sets.calibration_nonmembers])
        known, flagged = ~np.isnan(scores), (scores > self.threshold).astype(np.float64)
        effects = [
            design_effect(flagged[scored], sets.cluster[scored])
            for scored in (
                rows[known[rows]] for rows in (outside, sets.calibration_members)
            )
        ]
        self._most = max(effects)
        self._n_null = max(int(nulls.size / effects[0]), min(nulls.size, 1))
        self._rank = null_rank(self._n_null, fpr)
        above = [float(flagged[rows].sum()) for rows in calibration]
        missing = [int((~known[rows]).sum()) for rows in calibration]
        sizes = [rows.size for rows in calibration]
        n_known = [size - n for size, n in zip(sizes, missing, strict=True)]
        above_at_most = [n + lost for n, lost in zip(above, missing, strict=True)]
        # By the scores there are; by the most and the fewest that may be flagged of
        # all.
        self._known, self._known_low, self._known_high = (
            [
                Flagged(n / effect, size / effect)
                for n, size, effect in zip(counts, of, effects, strict=True)
            ]
            for counts, of in ((above, n_known), (above_at_most, sizes), (above, sizes))
        )
        self._any_missing = any(missing)
        self._lack = lack or _lack(sets, ("null", sets.nulls))
        names = ("calibration non-member", "calibration member")
        self._unusable = _lack(sets, *zip(names, calibration, strict=True))
        if not (self._unusable or all(of_set.total for of_set in self._known)):
            self._unusable = "a class of the calibration data has no score"
        self._calibrated = any(rows.size for rows in calibration)
        self.of = lru_cache(1 << 16)(self._estimate)

    def _estimate(self, above: int, scored: int, asked: int) -> Contamination:
        lack = self._lack or (None if scored else "no window has a score")
        if lack:
            return Contamination(method="beta_binomial", reason=lack)
        why = None
        if self._calibrated:
            rate = Contamination(method="fieller", reason=self._unusable)
            if not self._unusable:
                rate = self._rate(above, scored, asked)
            if rate.low is not None:
                return rate
            why = rate.reason
        counts = Flagged(int(above / self._most), max(int(asked / self._most), 1))
        bound = contamination_bound(counts, n_null=self._n_null, rank=self._rank)
        # Never all: one window stays open
        low = min(bound.low or 0.0, (asked - 1) / asked)
        return bound._replace(low=low, reason=why or bound.reason)

    def _rate(self, above: int, scored: int, asked: int) -> Contamination:
        def rate(above: int, total: int, known: Sequence[Flagged]) -> Contamination:
            flagged = Flagged(above / self._most, total / self._most)
            return contamination_rate(flagged, *known, blind_warns=self._blind_warns)

        estimate, n_missing = rate(above, scored, self._known), asked - scored
        if not (n_missing or self._any_missing):
            return estimate
        return _between(
            estimate,
            rate(above, asked, self._known_low),
            rate(above + n_missing, asked, self._known_high),
            few_missing=n_missing <= _FEW_MISSING * asked and not self._any_missing,
            reason=MISSING.format(f"{n_missing:,}", f"{asked:,}"),
        )


def _lack(sets: ComparisonSets, *named: tuple[str, Ints]) -> str | None:
    """Say which set has too few clusters for its windows to stand for others, if one has."""
    return _too_few(
        (name, np.unique(sets.cluster[rows]).size, sets.share_clusters(rows))
        for name, rows in named
    )
