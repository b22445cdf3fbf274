"""Scores to verdicts where membership is unknown: p-values and estimates, one attack at a time."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import polars as pl

from mia_batch.errors import SettingsError
from mia_batch.inference.canaries import CanaryTest
from mia_batch.inference.comparison import read_comparison_sets
from mia_batch.inference.e_values import RoundsTest
from mia_batch.inference.estimates import ContaminationEstimates
from mia_batch.inference.findings import finding_rows, reported_findings
from mia_batch.inference.group_level import GroupTest
from mia_batch.inference.groups import tests_groups
from mia_batch.inference.rows import AttackScores, verdict_rows
from mia_batch.inference.target_level import TargetTest
from mia_batch.inference.weights import weigh
from mia_batch.tables.numbers import read_finite

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from mia_batch.inference.comparison import ComparisonSets
    from mia_batch.inference.plan import VerdictPlan
    from mia_batch.inference.weights import Odds

    _Test = Callable[[AttackScores], Iterable[pl.DataFrame]]

__all__ = ["NO_NULL", "placebo_findings", "verdicts"]

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
    about groups, the groups and the collection; the contamination rate; the canaries. What the plan
    does not name is computed as well, with ``planned`` false. At least one frame comes; memory
    holds the keys of all rows and the scores of one attack. A score that is no finite number counts
    as missing. ``blind_warns``: calibration labels can be told apart without the model. ``blind``:
    scores of classifiers that tell targets from nulls without the model; these are weighted then,
    and there is no contamination rate.
    """
    if plan.primary not in attacks:
        msg = f"the primary attack {plan.primary!r} is not computed; name one of {list(attacks)}"
        raise SettingsError(msg)
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
        return finding_rows("placebo", [])
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
        yield _no_null
    if sets.published.size + sets.controls.size:
        yield CanaryTest(sets, plan).rows


def _no_null(found: AttackScores) -> Iterator[pl.DataFrame]:
    yield verdict_rows(
        1,
        attack=found.attack,
        level="collection",
        versus="non_members",
        planned=False,
        n_null=0,
        reason=NO_NULL,
    )
