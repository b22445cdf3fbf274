"""Scores to verdicts where membership is unknown: tests and estimates, one attack at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl

from mia_batch.errors import RequestError, SettingsError
from mia_batch.inference.comparison import ComparisonSets, read_comparison_sets, tests_groups
from mia_batch.inference.e_values import RoundsTest
from mia_batch.inference.estimates import ContaminationEstimates
from mia_batch.inference.findings import (
    AttackScores,
    VerdictPlan,
    finding_rows,
    reported_findings,
    verdict_rows,
)
from mia_batch.inference.levels import GroupTest, Odds, TargetTest
from mia_batch.inference.power import weigh
from mia_batch.stats import Floats, Ints
from mia_batch.tables import read_finite

_Test = Callable[[AttackScores], Iterable[pl.DataFrame]]


# Canaries: published texts drawn by lot from committed sets, so that the null is exact.


def canary_p_value(published: float, controls: Floats) -> float:
    """p-value of one set: (1 + controls that score as high) / (1 + controls); NaN if unscored.

    The draw alone makes it valid: every text of the set could have been the published one. An
    unscored control (NaN) counts as higher.
    """
    if np.isnan(published):
        return float("nan")
    return float((1 + np.count_nonzero(~(controls < published))) / (1 + controls.size))


def canary_ranks(published: float, controls: Floats) -> Floats:
    """Rank the texts of one set from 1, the published one first; ties share their mean rank.

    An unscored published text has the lowest rank, unscored controls have the highest.
    """
    from scipy.stats import rankdata

    lost = np.isnan(controls)
    ranks = np.empty(controls.size + 1, np.float64)
    ranks[1:][lost] = controls.size + 1 - np.arange(np.count_nonzero(lost))
    known = np.concatenate(([True], ~lost))
    scores = np.concatenate(([np.nan_to_num(published, nan=-np.inf)], controls[~lost]))
    ranks[known] = rankdata(scores)
    return ranks


def rank_sum_p_value(sets: Sequence[Floats]) -> float:
    """p-value of all committed sets together: the sum of the published texts' ranks, exact.

    In each set the published text is equally likely to have any rank, whatever happens in other
    sets, so the distribution of the sum is the convolution of theirs. ``sets`` are the
    `canary_ranks` of every set, none left out.
    """
    distribution: Floats = np.ones(1)
    for ranks in sets:
        half_ranks = np.bincount((2 * ranks).astype(np.int64))
        distribution = np.convolve(distribution, half_ranks / ranks.size).astype(np.float64)
    observed = int(sum(2 * ranks[0] for ranks in sets))
    return float(min(1.0, distribution[observed:].sum()))


class CanaryTest:
    """Tests of every committed set of canaries, prepared once for all attacks."""

    def __init__(self, sets: ComparisonSets, plan: VerdictPlan) -> None:
        self._plan = plan
        rows = np.concatenate([sets.published, sets.controls])
        self._names: list[str] = []
        self._sets: list[tuple[int, Ints]] = []
        for cluster in np.unique(sets.cluster[rows]):
            published, controls = (
                rows[sets.cluster[rows] == cluster] for rows in (sets.published, sets.controls)
            )
            name = sets.clusters["key"][int(cluster)]
            if published.size != 1 or not controls.size:
                raise RequestError(
                    f"the canary set {name!r} has {published.size} published texts and "
                    f"{controls.size} unpublished controls; give one published text and all its "
                    "controls, each as one target"
                )
            self._names.append(name)
            self._sets.append((int(published[0]), controls))

    def rows(self, found: AttackScores) -> Iterator[pl.DataFrame]:
        """Yield a verdict on each set, by name, and one on the collection of several."""
        scores = [(found.scores[one], found.scores[controls]) for one, controls in self._sets]
        p = np.array([canary_p_value(*of_set) for of_set in scores])
        planned, n_null = found.planned(self._plan), [each.size for _, each in self._sets]
        yield verdict_rows(
            len(self._sets),
            attack=found.attack,
            level="group",
            key=self._names,
            versus="controls",
            planned=planned,
            score=np.array([published for published, _ in scores]),
            n_null=n_null,
            p_value=p,
            method="canary_rank",
            reason=["the published text has no score" if np.isnan(one) else None for one in p],
        )
        if len(self._sets) > 1:
            yield verdict_rows(
                1,
                attack=found.attack,
                level="collection",
                versus="controls",
                planned=planned,
                n_null=sum(n_null),
                p_value=rank_sum_p_value([canary_ranks(*of_set) for of_set in scores]),
                method=f"canary_rank_sum_of_{len(self._sets)}",
            )


_NO_PLACEBO = "the reference model has no answers that the primary attack can score"
NO_NULL = "no text is known to be outside the training data: give non-members"


def verdicts(
    scores: pl.LazyFrame,
    attacks: Sequence[str],
    plan: VerdictPlan,
    *,
    blind_warns: bool = False,
    blind: pl.DataFrame | None = None,
) -> Iterator[pl.DataFrame]:
    """Test every target, group, collection and set of canaries by every attack.

    Yields, for each attack, the targets; where texts share groups or documents, or the plan is
    about groups, the groups and the collection; the contamination rate; the canaries. At least one
    frame comes; memory holds the keys of all rows and the scores of one attack. ``blind_warns``:
    calibration labels can be told apart without the model. ``blind``: scores of classifiers by
    which the nulls are weighted then, and there is no contamination rate.
    """
    if plan.primary not in attacks:
        raise SettingsError(
            f"the primary attack {plan.primary!r} is not computed; name one of {list(attacks)}"
        )
    sets = read_comparison_sets(scores, named=plan.level != "target")
    tests = list(_tests(sets, plan, blind, blind_warns=blind_warns))
    yield verdict_rows(0)
    for attack in attacks:
        found = AttackScores(
            attack=attack, scores=read_finite(scores, attack, sets.target_id.len())
        )
        for test in tests:
            yield from test(found)


def placebo_findings(
    scores: pl.LazyFrame, plan: VerdictPlan, reported: pl.DataFrame, blind: pl.DataFrame | None
) -> pl.DataFrame:
    """Rows of check ``placebo``: what the planned test finds on the reference model's scores.

    Those of `reported_findings`, and ``collection`` with its p-value. Verdict of ``n_reported``, or
    of ``collection`` where the plan is about it: ``as_many`` if at least half as many are reported
    as ``reported`` says of the audited model, and any; or if p is at most q. Else ``fewer``.
    """
    name = f"placebo_of_{plan.primary}"
    if name not in scores.collect_schema():
        return finding_rows("placebo")
    if scores.select(pl.col(name).count()).collect().item() == 0:
        lost = {"subject": plan.level, "statistic": "n_reported", "reason": _NO_PLACEBO}
        return finding_rows("placebo", [lost])
    own = replace(plan, primary=name)
    made = pl.concat(verdicts(scores, [name], own, blind=blind)).lazy()
    of = made.filter(pl.col("estimate").is_null(), level="collection", versus="non_members")
    p = (of.select("p_value").collect()["p_value"].to_list() or [None])[0]
    found = reported_findings(made, own)
    counts = [
        dict(rows.select("statistic", "value").iter_rows()).get("n_reported", 0)
        for rows in (found, reported)
    ]
    many = counts[0] > 0 and 2 * counts[0] >= counts[1]
    if plan.level == "collection":
        many = p is not None and p <= plan.q
    row: dict[str, object] = {"subject": plan.level, "statistic": "collection", "p_value": p}
    main = pl.col("statistic") == ("collection" if plan.level == "collection" else "n_reported")
    return pl.concat([found, finding_rows("placebo", [row])]).with_columns(
        check=pl.lit("placebo"),
        verdict=pl.when(main).then(pl.lit("as_many" if many else "fewer")).otherwise("verdict"),
    )


def _tests(
    sets: ComparisonSets, plan: VerdictPlan, blind: pl.DataFrame | None, *, blind_warns: bool
) -> Iterator[_Test]:
    """Prepare the tests that there are texts for."""
    if plan.adjustment == "e-bh":  # whatever else there is was made for groups asked alike
        yield RoundsTest(sets, plan).rows
        return
    if sets.targets.size and sets.nulls.size:

        def odds(*, groups: bool) -> Odds | None:
            return None if blind is None else weigh(sets, blind, plan, groups=groups)

        yield TargetTest(sets, plan, odds(groups=False)).rows
        if tests_groups(sets, plan):
            yield GroupTest(sets, plan, odds(groups=True)).rows
        if blind is None:
            yield ContaminationEstimates(sets, plan, blind_warns=blind_warns).rows
    elif sets.targets.size:
        lack: dict[str, Any] = {"level": "collection", "planned": False, "n_null": 0}
        yield lambda found: [verdict_rows(1, attack=found.attack, reason=NO_NULL, **lack)]
    if sets.published.size + sets.controls.size:
        yield CanaryTest(sets, plan).rows
