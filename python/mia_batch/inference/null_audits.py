"""Null audits: how often the planned test reports texts that are known to be outside."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from mia_batch.inference.comparison import read_comparison_sets
from mia_batch.inference.conformal import TieDraws, p_values, q_values
from mia_batch.inference.findings import finding_rows, number_rows
from mia_batch.inference.levels import GroupTest, TargetTest
from mia_batch.inference.power import power
from mia_batch.stats.intervals import clopper_pearson
from mia_batch.tables import read_finite

if TYPE_CHECKING:
    import polars as pl
    from numpy.typing import NDArray

    from mia_batch.inference.comparison import ComparisonSets
    from mia_batch.inference.conformal import Adjustment
    from mia_batch.inference.findings import VerdictPlan

    Units = NDArray[np.int64]


_AUDITS = 200
_MOST = 10_000  # texts, or groups
_CHECK = "null_audits"
_SPLITS = "the interval is about the draw of the splits alone, which share their texts"


def null_audit_findings(scores: pl.LazyFrame, plan: VerdictPlan) -> pl.DataFrame:
    """Rows of check ``null_audits``: 200 audits of texts that are all known to be outside.

    Each takes some of the non-members at random, whole clusters of them, for the audited ones:
    as many as there are audited, but at most half, and only so many that something can be
    reported. ``share_reporting`` is the share of audits that report any, with its 95 % interval of
    Clopper and Pearson; the plan promises at most q: verdict ``as_promised``, or ``too_often``
    where the interval lies above. ``share_below_fpr``: of all their tests, those with a p-value of
    at most the plan's fpr. Of more than about 10,000 texts, or groups, so many are drawn. None
    without targets or non-members.
    """
    sets = read_comparison_sets(scores, named=plan.level != "target")
    if not (sets.targets.size and sets.nulls.size):
        return finding_rows(_CHECK)
    if plan.level == "collection":
        return _without(plan, "the plan is about all groups together, which have one p-value")
    score = read_finite(scores, plan.primary, sets.target_id.len())
    audit = (_OfTexts if plan.level == "target" else _OfGroups)(sets, score, plan)
    n_units = min(audit.n_units, max(2, _MOST // audit.size))
    n_tests = min(audit.n_audited, n_units // 2)
    while n_tests:
        n, n_null = n_tests * audit.size, n_units - n_tests
        if power(n, n_null, plan.q, audit.adjustment).needed is not None:
            break
        n_tests //= 2
    if not n_tests:
        return _without(
            plan,
            f"{n_units:,} independent units outside the training data are too few: with some of "
            f"them audited, none could be reported at q = {plan.q:g}",
        )
    rng, made = np.random.default_rng(plan.seed), []
    for _ in range(_AUDITS):
        units = rng.choice(audit.n_units, n_units, replace=False)
        p = audit.p_values(units[:n_tests], units[n_tests:])
        reported = q_values(p, audit.adjustment) <= plan.q
        made.append((bool(reported.any()), float((p <= plan.fpr).mean())))
    return _rows(plan, n_tests, n_units - n_tests, made)


def _rows(
    plan: VerdictPlan, n_tests: int, n_null: int, made: list[tuple[bool, float]]
) -> pl.DataFrame:
    """Of each audit ``made`` has whether it reports any, and its share of small p-values."""
    reporting = sum(any_reported for any_reported, _ in made)
    interval = clopper_pearson(reporting, len(made))
    before = {"n_audits": len(made), "n_tests": n_tests, "n_null": n_null, "q": plan.q}
    main = {
        "statistic": "share_reporting",
        "value": reporting / len(made),
        "low": interval.low,
        "high": interval.high,
        "verdict": "too_often" if interval.low > plan.q else "as_promised",
        "reason": _SPLITS,
    }
    after = {"fpr": plan.fpr, "share_below_fpr": sum(share for _, share in made) / len(made)}
    rows = [*number_rows(before), main, *number_rows(after)]
    return finding_rows(_CHECK, rows, subject=plan.level)


class _OfTexts:
    """Audits of single texts; units are their clusters."""

    def __init__(
        self, sets: ComparisonSets, scores: NDArray[np.float64], plan: VerdictPlan
    ) -> None:
        self._sets, self._scores, self.plan = sets, scores, plan
        self._units, self._which = np.unique(sets.cluster[sets.nulls], return_inverse=True)
        self.n_units = self._units.size
        self.size = max(1, self._which.size // self.n_units)  # texts of a unit
        self.n_audited = np.unique(sets.cluster[sets.targets]).size
        dependent = sets.share_clusters(sets.targets, sets.nulls)
        self.adjustment: Adjustment = "by" if dependent else plan.adjustment

    def p_values(self, audited: Units, nulls: Units) -> NDArray[np.float64]:
        sets = self._sets
        chosen = [sets.nulls[np.isin(self._which, units)] for units in (audited, nulls)]
        rows, n_audited = np.concatenate(chosen), chosen[0].size
        own = replace(
            sets,
            target_id=sets.target_id.gather(rows),
            n_words=sets.n_words.gather(rows),
            cluster=sets.cluster[rows],
            targets=np.arange(n_audited),
            nulls=np.arange(n_audited, rows.size),
        )
        return TargetTest(own, self.plan).p_values(self._scores[rows])[0]


class _OfGroups:
    """Audits of whole groups; units are the null groups that have enough windows."""

    def __init__(
        self, sets: ComparisonSets, scores: NDArray[np.float64], plan: VerdictPlan
    ) -> None:
        test = GroupTest(sets, plan)
        self.plan, self.adjustment, self.size = plan, plan.adjustment, 1
        self._statistics = test.nulls.statistics(scores, plan)
        self._ties = None if test.ties is None else test.ties.nulls
        self.n_units, self.n_audited = self._statistics.size, test.groups.sizes.size

    def p_values(self, audited: Units, nulls: Units) -> NDArray[np.float64]:
        of, draws = self._statistics, self._ties
        ties = None if draws is None else TieDraws(draws[audited], draws[nulls])
        return p_values(of[audited], of[nulls], ties=ties)


def _without(plan: VerdictPlan, reason: str) -> pl.DataFrame:
    return finding_rows(
        _CHECK, [{"statistic": "share_reporting", "reason": reason}], subject=plan.level
    )
