"""How many of the targets were in the training data: a rate with interval, or a lower bound."""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache, partial
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
    targets: Flagged,
    nonmembers: Flagged,
    members: Flagged,
    *,
    blind_warns: bool,
    drawing_variance: float = 0.0,
) -> Contamination:
    r"""Share of members among the targets, from the rates of labelled calibration data.

    With F, FPR and TPR the flagged shares of targets, calibration non-members and
    members, the estimate is (F - FPR) / (TPR - FPR): Rogan and Gladen (1978). The
    interval holds every share \(\pi\) with

    .. math:: (F - (1 - \pi) FPR - \pi TPR)^2 \le z^2 (\pi v_1 / m + (1 - \pi) v_0 / m
        + (1 - \pi)^2 v_0 / n_0 + \pi^2 v_1 / n_1)

    where v is `Flagged.spread` of members (1) and non-members (0), and \(\pi\) is held
    within [0, 1] in the first two terms: Fieller (1954). Withheld where the interval of
    TPR - FPR holds 0, and where no share agrees. Where the targets are a population of
    which some were drawn, ``drawing_variance`` is that of F over draws, and is added.
    """
    from scipy.optimize import brentq

    z = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
    gap = members.rate - nonmembers.rate
    gap_variance = nonmembers.spread / nonmembers.total + members.spread / members.total

    fieller = partial(Contamination, method="fieller")
    if blind_warns:
        reason = "the calibration labels can be distinguished without the model"
        return fieller(reason=reason)
    if gap <= z * gap_variance**0.5:
        return fieller(reason="calibration members do not score above non-members")
    estimate = (targets.rate - nonmembers.rate) / gap

    def excess(share: float) -> float:
        """Squared contradiction above what chance allows; at most 0 inside the interval."""
        inside = min(max(share, 0.0), 1.0)
        of_members = inside / targets.total + share**2 / members.total
        of_others = (1 - inside) / targets.total + (1 - share) ** 2 / nonmembers.total
        variance = of_members * members.spread + of_others * nonmembers.spread
        variance += drawing_variance
        return (gap * (share - estimate)) ** 2 - z**2 * variance

    def find_limit(sign: int) -> float:
        """Find the end of the interval below (-1) or above (1) the estimate."""
        step = 1
        while not excess(estimate + sign * step) > 0:
            step *= 2
        outside = estimate + sign * step
        return float(brentq(excess, estimate, outside, xtol=1e-12))

    low = find_limit(-1)
    high = find_limit(1)
    if low > 1:
        return fieller(reason="more targets are flagged than calibration members")
    if high < 0:
        return fieller(reason="fewer targets are flagged than calibration non-members")
    value = min(max(estimate, 0.0), 1.0)
    return fieller(value=value, low=max(low, 0.0), high=min(high, 1.0))


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
    n_units = min(nonmembers.size, members.size)
    if n_units < FEWEST_GROUPS:
        reason = (
            f"{n_units} calibration units of a class are too few to halve,"
            f" {FEWEST_GROUPS} needed"
        )
        return Contamination(method="duci", reason=reason)
    rng = np.random.default_rng(seed)
    choosing = []
    measured = []
    for scores in (nonmembers, members):
        shuffled = rng.permutation(scores)
        half = scores.size // 2
        choosing.append(np.sort(shuffled[:half]))
        measured.append(shuffled[half:])
    thresholds = np.unique(np.concatenate(choosing))
    below = [half.searchsorted(thresholds, "right") / half.size for half in choosing]
    threshold = thresholds[np.argmax(below[0] - below[1])]
    counts = [_count_flagged(scores, threshold) for scores in (targets, *measured)]
    rate = contamination_rate(*counts, blind_warns=blind_warns)
    return rate._replace(method="duci")


def _count_flagged(scores: Floats, threshold: float) -> Flagged:
    return Flagged(int((scores > threshold).sum()), scores.size)


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
    targets: Flagged,
    *,
    n_null: int,
    rank: int,
    confidence: float,
) -> int:
    """M of `contamination_bound`: so many of the flagged targets at least are members."""
    # It bounds the members A among the flagged, too. M > A needs that f - A others, of
    # at most m - A, are flagged, which the same law allows with probability 1 -
    # confidence at most.
    from scipy.stats import betabinom

    def is_allowed(members: int) -> bool:
        n_others = targets.total - members
        n_flagged = targets.above - members
        chance = betabinom.sf(n_flagged - 1, n_others, rank, n_null + 1 - rank)
        return bool(chance > 1 - confidence)

    return bisect_left(range(int(targets.above)), True, key=is_allowed)


FEWEST_GROUPS = 20  # of a set, where texts are grouped


def null_rank(n: int, fpr: float) -> int:
    """Return k: which of n nulls, the largest first, is the threshold."""
    return max(1, floor(round(fpr * (n + 1), 9)))


def null_threshold(nulls: Floats, fpr: float) -> tuple[int, float]:
    """Return k and the k-th largest null, k as of `null_rank`; NaN counts as above."""
    rank = null_rank(nulls.size, fpr)
    ascending = np.sort(np.nan_to_num(nulls, nan=np.inf))
    return rank, float(ascending[-rank]) if nulls.size else np.inf


def _why_too_few(
    sizes: Iterable[tuple[str, int, bool]],
    groups: str = "groups",
) -> str | None:
    """Return which set is too small, of names, sizes and whether texts are grouped."""
    for name, size, has_groups in sizes:
        unit, fewest = (groups, FEWEST_GROUPS) if has_groups else ("texts", 1)
        if size < fewest:
            return f"{size} {name} {unit} are too few, {fewest} are needed"
    return None


class ContaminationTest:
    """Estimates of the share of members among the targets, prepared once for all attacks."""

    # The units are clusters of texts, by their statistic over as many windows each;
    # where no texts share a cluster, they are texts. With fewer than 20 groups in a set
    # nothing is estimated.

    def __init__(
        self,
        sets: ComparisonSets,
        rule: DecisionRule,
        *,
        blind_warns: bool,
    ) -> None:
        self._rule = rule
        self._blind_warns = blind_warns
        calibration = (sets.calibration_nonmembers, sets.calibration_members)
        self._is_calibrated = any(rows.size for rows in calibration)
        row_sets = [sets.targets, sets.nulls]
        if self._is_calibrated:
            row_sets += calibration
        has_groups = sets.share_clusters(*row_sets)
        n_windows = windows_per_group(sets, rule) if has_groups else 1
        self._independent = independent_units(sets, row_sets, n_windows, rule.seed)
        self._has_groups = has_groups or self._independent.by_author

    def rows(self, attack_scores: AttackScores) -> Iterator[pl.DataFrame]:
        """Iterate over the lower bound and, with calibration data, both point estimates."""
        values = [
            units.statistics(attack_scores.scores, self._rule)
            for units in self._independent.units
        ]
        caveat = ""
        if self._independent.by_author:
            caveat = "; the share is one of authors, not of texts"
        for estimate in self._estimates(values):
            yield verdict_rows(
                1,
                attack=attack_scores.attack,
                level="collection",
                planned=attack_scores.is_planned(self._rule),
                n_null=values[1].size,
                estimate="contamination_rate",
                assumption=_ASSUMPTIONS[estimate.method] + caveat,
                **estimate._asdict(),
            )

    def _estimates(self, values: Sequence[Floats]) -> list[Contamination]:
        # Unscored targets count as not flagged in the lower bound and are left out of
        # the point estimate, as unscored calibration units are.
        targets, nulls, *calibration = values
        rank, threshold = null_threshold(nulls, self._rule.fpr)
        reason = self._independent.reason or self._why_too_few(
            ("audited", targets), ("null", nulls)
        )
        bound = Contamination(method="beta_binomial", reason=reason)
        if not reason:
            n_flagged = int(np.count_nonzero(targets > threshold))
            flagged = Flagged(n_flagged, self._independent.units[0].sizes.size)
            bound = contamination_bound(flagged, n_null=nulls.size, rank=rank)
        if not self._is_calibrated:
            return [bound]
        sets = (targets, *calibration)
        scored = [scores[~np.isnan(scores)] for scores in sets]
        reason = reason or self._why_too_few(*zip(_SCORED, scored, strict=True))
        if reason:
            withheld = [
                Contamination(method=method, reason=reason)
                for method in ("fieller", "duci")
            ]
            return [bound, *withheld]
        estimates = _estimate_despite_missing(
            sets,
            threshold,
            seed=self._rule.seed,
            blind_warns=self._blind_warns,
        )
        return [bound, *estimates]

    def _why_too_few(self, *sets: tuple[str, Floats]) -> str | None:
        sizes = ((name, scores.size, self._has_groups) for name, scores in sets)
        return _why_too_few(
            sizes, "authors" if self._independent.by_author else "groups"
        )


# Scores that are missing: of three sets, targets, calibration non-members and members,
# the share of members rises with flagged targets and falls with flagged calibration
# texts of either kind.

_LOWEST = (-np.inf, np.inf, np.inf)
_HIGHEST = (np.inf, -np.inf, -np.inf)
FEW_MISSING = 0.01  # share of a set, above which there is no point estimate
MISSING = "limits hold whatever the scores would be that are missing ({} of {} units)"


def _estimate_despite_missing(
    sets: Sequence[Floats],
    threshold: float,
    *,
    seed: int,
    blind_warns: bool,
) -> list[Contamination]:
    """Estimate by both methods, with limits that hold whichever scores are missing.

    Manski (1989), "Anatomy of the selection problem": a set without some of its scores,
    such as passages that a service refuses because it knows them, only says what lies
    between the two extremes of what they may be.
    """

    def estimate_both(sets: Sequence[Floats]) -> list[Contamination]:
        counts = [_count_flagged(scores, threshold) for scores in sets]
        rate = contamination_rate(*counts, blind_warns=blind_warns)
        return [rate, usage_share(*sets, seed=seed, blind_warns=blind_warns)]

    estimates = estimate_both([scores[~np.isnan(scores)] for scores in sets])
    n_missing = [int(np.isnan(scores).sum()) for scores in sets]
    if not any(n_missing):
        return estimates
    extremes = []
    for extreme in (_LOWEST, _HIGHEST):
        filled = [
            np.where(np.isnan(scores), value, scores)
            for scores, value in zip(sets, extreme, strict=True)
        ]
        extremes.append(estimate_both(filled))
    sizes = [scores.size for scores in sets]
    return [
        widen_for_missing(*of_method, n_missing=n_missing, sizes=sizes)
        for of_method in zip(estimates, *extremes, strict=True)
    ]


def widen_for_missing(
    estimate: Contamination,
    lowest: Contamination,
    highest: Contamination,
    *,
    n_missing: Sequence[int],
    sizes: Sequence[int],
) -> Contamination:
    """Widen the limits of an estimate to those of both extremes, given what sets lack."""
    few_missing = all(
        n <= FEW_MISSING * size for n, size in zip(n_missing, sizes, strict=True)
    )
    reason = MISSING.format(f"{sum(n_missing):,}", f"{sum(sizes):,}")
    return _widen(estimate, lowest, highest, few_missing=few_missing, reason=reason)


def _widen(
    estimate: Contamination,
    lowest: Contamination,
    highest: Contamination,
    *,
    few_missing: bool,
    reason: str,
) -> Contamination:
    """Widen the limits of an estimate to those of both extremes."""
    if estimate.low is None or estimate.high is None:
        return estimate
    low = 0.0 if lowest.low is None else min(lowest.low, estimate.low)
    high = 1.0 if highest.high is None else max(highest.high, estimate.high)
    return estimate._replace(
        value=estimate.value if few_missing else None,
        low=low,
        high=high,
        reason=None if few_missing else reason,
    )


class WindowShare:
    """Estimates of the share of windows, all with one threshold, as of `ContaminationTest`."""

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
        withheld: str | None = None,
    ) -> None:
        nulls = scores[sets.nulls]
        self._blind_warns = blind_warns
        self.threshold = null_threshold(nulls, fpr)[1]
        is_scored = ~np.isnan(scores)
        is_above = (scores > self.threshold).astype(np.float64)
        outside = np.concatenate([sets.nulls, sets.calibration_nonmembers])
        effects = []
        for rows in (outside, sets.calibration_members):
            scored = rows[is_scored[rows]]
            effects.append(design_effect(is_above[scored], sets.cluster[scored]))
        self._largest_effect = max(effects)
        self._n_null = max(int(nulls.size / effects[0]), min(nulls.size, 1))
        self._rank = null_rank(self._n_null, fpr)
        # Calibration non-members and members: by the scores there are, and by the most
        # and the fewest that may be flagged of all
        calibration = (sets.calibration_nonmembers, sets.calibration_members)
        self._scored = list[Flagged]()
        self._most_flagged = list[Flagged]()
        self._fewest_flagged = list[Flagged]()
        self._any_missing = False
        for rows, effect in zip(calibration, effects, strict=True):
            above = float(is_above[rows].sum())
            n_missing = int((~is_scored[rows]).sum())
            n_scored = rows.size - n_missing
            total = rows.size / effect
            self._scored.append(Flagged(above / effect, n_scored / effect))
            self._most_flagged.append(Flagged((above + n_missing) / effect, total))
            self._fewest_flagged.append(Flagged(above / effect, total))
            self._any_missing |= n_missing > 0
        self._reason = withheld or _why_few_clusters(sets, ("null", sets.nulls))
        names = ("calibration non-member", "calibration member")
        classes = zip(names, calibration, strict=True)
        self._why_no_rate = _why_few_clusters(sets, *classes)
        has_scores = all(flagged.total for flagged in self._scored)
        if not (self._why_no_rate or has_scores):
            self._why_no_rate = "a class of the calibration data has no score"
        self._is_calibrated = any(rows.size for rows in calibration)
        self.estimate = lru_cache(1 << 16)(self._estimate)

    def _estimate(self, n_above: int, n_scored: int, n_asked: int) -> Contamination:
        reason = self._reason
        if not n_scored:
            reason = reason or "no window has a score"
        if reason:
            return Contamination(method="beta_binomial", reason=reason)
        why_no_rate = None
        if self._is_calibrated:
            rate = Contamination(method="fieller", reason=self._why_no_rate)
            if not self._why_no_rate:
                rate = self._estimate_rate(n_above, n_scored, n_asked)
            if rate.low is not None:
                return rate
            why_no_rate = rate.reason
        effect = self._largest_effect
        counts = Flagged(int(n_above / effect), max(int(n_asked / effect), 1))
        bound = contamination_bound(counts, n_null=self._n_null, rank=self._rank)
        # Never all: one window stays open
        low = min(bound.low or 0.0, (n_asked - 1) / n_asked)
        return bound._replace(low=low, reason=why_no_rate or bound.reason)

    def _estimate_rate(
        self, n_above: int, n_scored: int, n_asked: int
    ) -> Contamination:
        def rate(above: int, total: int, calibration: list[Flagged]) -> Contamination:
            effect = self._largest_effect
            targets = Flagged(above / effect, total / effect)
            return contamination_rate(
                targets,
                *calibration,
                blind_warns=self._blind_warns,
            )

        estimate = rate(n_above, n_scored, self._scored)
        n_missing = n_asked - n_scored
        if not (n_missing or self._any_missing):
            return estimate
        few_missing = n_missing <= FEW_MISSING * n_asked and not self._any_missing
        return _widen(
            estimate,
            rate(n_above, n_asked, self._most_flagged),
            rate(n_above + n_missing, n_asked, self._fewest_flagged),
            few_missing=few_missing,
            reason=MISSING.format(f"{n_missing:,}", f"{n_asked:,}"),
        )


def _why_few_clusters(sets: ComparisonSets, *row_sets: tuple[str, Ints]) -> str | None:
    """Return which set has too few clusters for its windows to stand for others."""
    return _why_too_few(
        (name, np.unique(sets.cluster[rows]).size, sets.share_clusters(rows))
        for name, rows in row_sets
    )
