"""What the planned test can show at best, and what a design finds on average."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import count, repeat
from math import ceil
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
import polars as pl

from mia_batch.errors import SettingsError
from mia_batch.inference.comparison import (
    ComparisonSets,
    n_orders,
    permuted_sums,
    read_comparison_sets,
    windows_per_group,
)
from mia_batch.inference.conformal import Adjustment, p_values, q_values, shared_weights
from mia_batch.inference.e_values import plan_rounds
from mia_batch.inference.findings import VerdictPlan, finding_rows, number_rows
from mia_batch.inference.levels import Odds, TargetTest
from mia_batch.inference.sets import needed_for_bound, top_bound
from mia_batch.stats import Flags, Floats
from mia_batch.stats.clusters import Folds, deal_folds, effective_number, is_enough

LEVEL = 0.05  # of a collection's p-value
_BOOK = r"\.(txt|epub|x?html?)$"  # a book's group is the name of its file
_NAMED = 5  # as many as a user may hope for


@dataclass(frozen=True, slots=True, kw_only=True)
class Power:
    """What so many targets against so many nulls can show."""

    unit: str = "text"  # or document, group, book
    n_tests: int  # targets, or groups of them
    n_usable: int  # those that can be compared
    n_null: float  # that they can be compared with: non-members, or groups; the most of one length
    adjustment: Adjustment
    smallest_p: float | None
    needed: int | None  # fewest that can be reported, each beating every null; None: none can be
    together: float = 1.0  # smallest p-value of all groups together
    for_bound: int | None = None  # that beat every null for a lower bound of one member


def power(n_tests: int, n_null: float, q: float, adjustment: Adjustment) -> Power:
    """Say what m tests against n independent nulls can show at best; see `_power`."""
    return _power(np.full(n_tests, _least(n_null, q, adjustment)), n_null, q, adjustment)


def _power(smallest: Floats, n_null: float, q: float, adjustment: Adjustment) -> Power:
    """Say what tests can show whose smallest possible p-values are these (NaN = none).

    Under Benjamini-Hochberg r of m targets are reported where each p-value is at most r q / m, and
    none is below 1 / (n + 1): so r is at least ceil(m / (q (n + 1))). Benjamini-Yekutieli divides q
    by the sum of 1 / i up to m; of e-BH p is one over an e-value.
    """
    ordered, ranks = np.sort(smallest), np.arange(1, smallest.size + 1)  # NaN is last
    wanted = np.round(ordered * smallest.size / _share(q, adjustment, smallest.size), 9)
    enough = np.flatnonzero(wanted <= ranks)
    usable = int(np.sum(~np.isnan(smallest)))
    return Power(
        n_tests=smallest.size,
        n_usable=usable,
        n_null=n_null,
        adjustment=adjustment,
        smallest_p=float(ordered[0]) if usable else None,
        needed=int(ranks[enough[0]]) if enough.size else None,
    )


def _share(q: float, adjustment: Adjustment, n_tests: int) -> float:
    return q / float((1 / np.arange(1, n_tests + 1)).sum()) if adjustment == "by" else q


def _least(n_null: float, q: float, adjustment: Adjustment) -> float:
    """Return the smallest p-value, of e-BH one over the largest e-value."""
    e_values = adjustment == "e-bh"
    return 1 / (plan_rounds(1, int(n_null), q).values[0] if e_values else n_null + 1)


def nulls_to_name(n_named: int, n_tests: int, q: float, adjustment: Adjustment) -> int:
    """Return the fewest nulls with which so many of m targets that beat all of them are named."""
    least = _share(q, adjustment, n_tests) * n_named / n_tests
    fewest = ceil(round(1 / least, 9)) - 1
    return next(n for n in count(fewest) if round(_least(n, q, adjustment) / least, 9) <= 1)


def planned_power(targets: pl.LazyFrame, plan: VerdictPlan) -> Power | None:
    """Power of the planned test; None without targets or nulls."""
    sets = read_comparison_sets(targets, named=plan.level != "target")
    if not (sets.targets.size and sets.nulls.size):
        return None
    n_windows = windows_per_group(sets, plan)
    groups, nulls = (
        np.unique(sets.cluster[rows], return_counts=True)[1] >= n_windows
        for rows in (sets.targets, sets.nulls)
    )
    n_groups, n_null = int(groups.sum()), int(nulls.sum())
    unit = "text"
    if plan.level == "target":
        test = TargetTest(sets, plan)
        best = np.ones(sets.target_id.len())
        best[sets.nulls] = 0
        found = _power(test.p_values(best)[0], test.n_null, plan.q, test.adjustment)
        independent = not (plan.length_edges or sets.share_clusters(sets.targets, sets.nulls))
    else:
        names = sets.clusters[np.unique(sets.cluster[sets.targets])]
        unit = "book" if names["key"].str.contains(_BOOK).all() else "group"
        unit = "document" if (names["level"] != "group").all() else unit
        smallest = np.where(groups, _least(n_null, plan.q, plan.adjustment), np.nan)
        found = _power(smallest, n_null, plan.q, plan.adjustment)
        independent = n_null > 0
    return replace(
        found,
        unit=unit,
        together=1 / n_orders(n_groups, n_null),
        for_bound=needed_for_bound(found.n_tests, int(found.n_null)) if independent else None,
    )


def power_findings(targets: pl.LazyFrame, plan: VerdictPlan) -> pl.DataFrame:
    """Rows of check ``power`` about the planned level; none without targets or nulls.

    The verdict of ``n_tests`` says what they are; those of ``needed``, ``for_bound`` and
    ``together`` are ``possible`` or ``impossible``. With ``nulls_needed`` nulls ``n_named`` that
    beat all of them are reported, or a collection's p-value can be 0.05.
    """
    found = planned_power(targets, plan)
    if found is None:
        return finding_rows("power")
    bucketed = plan.level == "target" and plan.length_edges
    possible = {True: "possible", False: "impossible"}
    rows: list[tuple[str, float | None, str | None]] = [
        ("n_tests", found.n_tests, found.unit),
        ("n_usable", found.n_usable, None),
        ("n_null", found.n_null, "of_one_length" if bucketed else None),
        ("together", found.together, possible[found.together <= LEVEL]),
    ]
    wanted: int | None = None
    if plan.level == "collection":
        if found.n_usable:
            wanted = next(n for n in count(1) if n_orders(found.n_usable, n) * LEVEL >= 1)
    else:
        named = min(_NAMED, found.n_usable)
        named = 1 if found.needed and found.needed <= named else named
        if named:
            wanted = nulls_to_name(named, found.n_tests, plan.q, found.adjustment)
        rows += [
            ("smallest_p", found.smallest_p, None),
            ("q", plan.q, found.adjustment),
            ("needed", found.needed, possible[found.needed is not None]),
            ("for_bound", found.for_bound, possible[found.for_bound is not None]),
            ("n_named", named, None),
        ]
    rows.append(("nulls_needed", wanted, None))
    names = ("statistic", "value", "verdict")
    made = (dict(zip(names, row, strict=True)) for row in rows)
    return finding_rows("power", made, subject=plan.level)


# What a design finds on average: whole audits of made-up scores, by the tests of a real one.

_DRAWN = 1_000  # audits
_MOST_SCORES = 500_000  # of all audits together; large designs vary less


class AuditOutcome(NamedTuple):
    """What audits of one design find; averages unless another is named."""

    n_null: int
    named: float  # members on the list
    any_named: float  # share of audits with a member on the list
    false: float  # share of the list that is no member
    at_least: float  # lower bound for the members, its median
    together: float  # share of audits in which all together have p <= 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Design:
    """So many units (texts, or groups of them) are asked about, and some are members.

    Scores of units are normal with standard deviation 1, those of members ``effect`` higher.
    """

    asked: int
    members: int
    effect: float
    q: float = 0.05
    adjustment: Adjustment = "bh"

    def __post_init__(self) -> None:
        if not 1 <= self.members <= self.asked:
            raise SettingsError(
                f"{self.members:,} members cannot be among {self.asked:,} that are asked about; "
                "give 1 or more, and at most as many as are asked about"
            )

    def sizes(self) -> list[int]:
        """List numbers of nulls to try, doubled until they hardly limit a list of all members."""
        most = 4 * nulls_to_name(self.members, self.asked, self.q, self.adjustment)
        tried = [10]
        while tried[-1] < max(most, 160):
            tried.append(2 * tried[-1])
        return tried


def effect_of(area: float) -> float:
    """Return how many standard deviations apart scores have this AUC."""
    return 2**0.5 * NormalDist().inv_cdf(area)


def area_of(effect: float) -> float:
    """Return the AUC of normal scores so many standard deviations apart."""
    return NormalDist().cdf(effect / 2**0.5)


def simulate(design: Design, n_null: int, *, seed: int = 0) -> AuditOutcome:
    """Audit 1,000 sets of scores by the tests of `verdicts`; fewer of large designs."""
    asked, members = design.asked, design.members
    n_audits = min(_DRAWN, max(100, _MOST_SCORES // (asked + n_null)))
    rng = np.random.default_rng(seed)
    scores = rng.standard_normal((n_audits, asked))
    scores[:, :members] += design.effect
    nulls = np.sort(rng.standard_normal((n_audits, n_null)))
    p = np.array([p_values(*audit) for audit in zip(scores, nulls, strict=True)])
    listed = q_values(p, design.adjustment) <= design.q
    named, reported = listed[:, :members].sum(axis=1), listed.sum(axis=1)
    bounds = [top_bound(*audit).at_least for audit in zip(scores, repeat(asked), nulls)]
    ranks = np.arange(asked + n_null, dtype=np.float64)
    sums, method = permuted_sums(ranks[None], asked, seed)
    if method != "permutation_exact":
        sums[0] = np.inf  # the observed order, of whichever audit
    below = n_null + 1 - p * (n_null + 1)  # nulls that score lower
    observed = below.sum(axis=1).round() + ranks[:asked].sum()
    together = [(sums >= each).mean() <= LEVEL for each in observed]
    return AuditOutcome(
        n_null=n_null,
        named=float(named.mean()),
        any_named=float((named > 0).mean()),
        false=float(((reported - named) / np.maximum(reported, 1)).mean()),
        at_least=float(np.median(bounds)),
        together=float(np.mean(together)),
    )


# Nulls weighted by their odds of being audited, where texts alone tell them from the targets. The
# assumption: targets and nulls differ only in what the blind classifiers have learned to see.

_N_FOLDS = 5
_ALIKE_BELOW = 0.55
"""AUC up to which weighted sets count as alike; above it the blind baseline can be separable."""


def weigh(sets: ComparisonSets, blind: pl.DataFrame, plan: VerdictPlan, *, groups: bool) -> Odds:
    r"""Estimate the odds of texts, or of whole groups, from the blind classifiers' scores.

    ``blind`` has ``target_id`` and columns in (0, 1), cross-fitted by group. Their normal scores,
    of a group the means over its texts, go into a logistic regression, again cross-fitted by group.
    Nulls of these weights are worth \((\sum w)^2 / \sum w^2\) of equal weight (Kish 1965).

    There is no answer where so many could not report anything, or where sets are still not alike:
    where a second classifier, cross-fitted with squares and weights, has an AUC above 0.55.
    """
    from scipy.special import ndtri
    from sklearn.metrics import roc_auc_score

    keys = pl.DataFrame({"target_id": sets.target_id})
    shares = keys.join(blind, on="target_id", how="left", maintain_order="left").drop("target_id")
    rows = np.concatenate([sets.targets, sets.nulls])
    scores, audited = ndtri(shares.to_numpy()[rows].astype(np.float64)), np.isin(rows, sets.targets)
    key = 2 * sets.cluster[rows] + audited if groups else np.arange(rows.size)
    known = ~np.isnan(scores).any(axis=1)
    units, first, unit, sizes = np.unique(
        key[known], return_index=True, return_inverse=True, return_counts=True
    )
    seen = np.column_stack([np.bincount(unit, column) / sizes for column in scores[known].T])
    seen /= np.maximum(seen.std(axis=0), 1e-9)
    label = audited[known][first]
    _, began, cluster = np.unique(
        sets.cluster[rows][known][first], return_index=True, return_inverse=True
    )
    cluster = began.argsort().argsort()[cluster]  # folds must not depend on the clusters' names
    rng = np.random.default_rng(plan.seed)
    folds = deal_folds(label, cluster, n_folds=_N_FOLDS, generator=rng)
    odds = np.exp(_log_odds(seen, label, folds))
    odds /= odds[~label].mean()
    weight = np.where(label, (~label).sum() / label.sum(), odds)
    again = _log_odds(np.hstack([seen, seen**2]), label, folds, weight)
    auc = float(roc_auc_score(label, again, sample_weight=weight))
    of_nulls = np.bincount(cluster[~label], odds[~label] * shared_weights(cluster[~label]))
    n_effective = effective_number(of_nulls)
    place = np.minimum(units.searchsorted(key), units.size - 1)
    of_rows = np.full(sets.target_id.len(), np.nan)
    of_rows[rows] = np.where(units[place] == key, odds[place], np.nan)
    n_tests = np.unique(key[audited]).size
    by = not groups and sets.share_clusters(sets.targets, sets.nulls)
    lack = _lack(n_effective, auc, n_tests, plan, by=by)
    return Odds(of_rows, np.unique(cluster[~label]).size, n_effective, auc, lack)


def _log_odds(seen: Floats, label: Flags, folds: Folds, weight: Floats | None = None) -> Floats:
    """Log-odds of the label by a logistic regression on the other folds."""
    from sklearn import config_context
    from sklearn.linear_model import LogisticRegression

    odds, model = np.empty(label.size), LogisticRegression(solver="newton-cholesky")
    with config_context(assume_finite=True, skip_parameter_validation=True):
        for fold in range(folds.n_folds):
            test = folds.fold_of_text == fold
            of_train = None if weight is None else weight[~test]
            odds[test] = model.fit(seen[~test], label[~test], of_train).decision_function(
                seen[test]
            )
    return odds


def _lack(
    n_effective: float, auc: float, n_tests: int, plan: VerdictPlan, *, by: bool
) -> str | None:
    if plan.adjustment == "e-bh":
        return "groups that are asked in rounds cannot be weighted"
    if plan.level == "collection":
        can_report = bool(is_enough(n_effective))
    else:
        adjustment = "by" if by else plan.adjustment
        can_report = power(n_tests, n_effective, plan.q, adjustment).needed is not None
    if not can_report:
        return (
            f"too few non-members are like the targets: weighted, they count as {n_effective:.1f}, "
            "with which nothing can be reported"
        )
    if auc > _ALIKE_BELOW:
        return (
            f"weighted non-members can still be told from targets without the model (AUC {auc:.2f})"
        )
    return None


def weight_findings(
    targets: pl.LazyFrame, blind: pl.DataFrame, found: pl.DataFrame, plan: VerdictPlan
) -> pl.DataFrame:
    """Rows of check ``weights`` about the planned level; none without a blind baseline of targets.

    Verdict of ``n_effective``: ``not_needed`` unless the baseline ``found`` is separable, else
    ``used``, or ``no_overlap`` with a reason.
    """
    baseline = found.filter(check="blind_baseline", subject="targets", statistic="roc_auc")
    verdict = baseline["verdict"]
    if verdict.is_empty():
        return finding_rows("weights")
    if verdict[0] != "separable":
        row = {"statistic": "n_effective", "verdict": "not_needed"}
        return finding_rows("weights", [row], subject=plan.level)
    odds = weigh(read_comparison_sets(targets), blind, plan, groups=plan.level != "target")
    main = {
        "statistic": "n_effective",
        "value": odds.n_effective,
        "verdict": "no_overlap" if odds.lack else "used",
        "reason": odds.lack,
    }
    rows = [main, *number_rows({"n_null": odds.n_null, "roc_auc": odds.auc})]
    return finding_rows("weights", rows, subject=plan.level)
