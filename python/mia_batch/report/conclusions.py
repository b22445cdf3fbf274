"""What may be concluded from a run, in sentences: the first things that its user reads."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from mia_batch.diagnostics.exclusions import excluded

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mia_batch.inference.plan import VerdictPlan
    from mia_batch.metrics.measure import Measured

__all__ = ["conclude_labelled", "conclude_unlabelled"]

_ADJUSTMENTS = {"bh": "Benjamini-Hochberg", "by": "Benjamini-Yekutieli"}


def conclude_labelled(measured: Measured, primary: str) -> Iterator[str]:
    """Say what labels show, warnings first.

    Parameters
    ----------
    measured
        The figures.
    primary
        The attack that the answer rests on.

    Yields
    ------
    str
        One sentence at a time; none where the labels are not of both classes.
    """
    blind = measured.blind
    if blind is None:
        return
    yield blind.warning or (
        f"These labels could not be told apart without the model: {excluded(blind.upper)}."
    )
    if measured.unscored is not None:
        yield measured.unscored.warning
    figures = measured.metrics.filter(slice="all", attack=primary)
    for row in figures.filter(metric="roc_auc").iter_rows(named=True):
        if row["value"] is not None:
            yield f"{primary}: AUC {_figure(row)}."
    beside = figures.filter(
        pl.col("versus") == pl.lit(blind.strongest, pl.String), metric="roc_auc_difference"
    )
    for row in beside.iter_rows(named=True):
        if row["value"] is not None:
            yield f"{primary} less {blind.strongest}, which never sees the model: {_figure(row)}."
    fifths = measured.metrics.filter(
        pl.col("slice").str.starts_with("blind fifth"), metric="roc_auc", attack=primary
    )
    if blind.warning and fifths.height:
        values = ["-" if value is None else f"{value:.2f}" for value in fifths["value"]]
        yield (
            f"{primary}: AUC within fifths of the score of {blind.strongest}: {', '.join(values)}."
        )
    yield from _best_of_many(measured.metrics)
    duplicates = measured.duplicates
    if duplicates is not None and duplicates.first.n_concerned + duplicates.second.n_concerned:
        yield duplicates.sentence


def _figure(row: dict[str, float | None]) -> str:
    if row["low"] is None or row["high"] is None:
        return f"{row['value']:.3f}, without an interval ({row['reason']})"
    return f"{row['value']:.3f}, 95 % interval {row['low']:.3f} to {row['high']:.3f}"


def _best_of_many(metrics: pl.DataFrame) -> Iterator[str]:
    bounds = metrics.filter(pl.col("low").is_not_null(), metric="roc_auc_simultaneous")
    if bounds.height < 2:
        return
    best = bounds.sort("low", descending=True).row(0, named=True)
    where = "" if best["slice"] == "all" else f" on {best['slice']}"
    yield (
        f"Of {bounds.height:,} attacks and slices tried, {best['attack']}{where} has the highest "
        f"lower bound that holds for all at once: AUC at least {best['low']:.3f}."
    )


def conclude_unlabelled(verdicts: pl.LazyFrame, plan: VerdictPlan) -> Iterator[str]:
    """Say what p-values and estimates show of the attack that the answer rests on.

    Parameters
    ----------
    verdicts
        The verdicts table.
    plan
        How they were made.

    Yields
    ------
    str
        One sentence at a time.
    """
    own = verdicts.filter(attack=plan.primary)
    tests = own.filter(pl.col("estimate").is_null())
    canary = pl.col("method").str.starts_with("canary").fill_null(value=False)
    given = [] if plan.level == "collection" else [*_reported(tests.filter(~canary), plan)]
    of_all = tests.filter(pl.col("level") == "collection").collect()
    given += _of_all(of_all.filter(~canary), plan, "All groups together")
    yield from given
    compared = tests.filter(~canary).select((pl.col("n_null") > 0).any()).collect().item()
    if given and compared:
        yield f"The null: {plan.null_set.rstrip('.')}."
    yield from _of_all(of_all.filter(canary), plan, "All canaries")
    flips = own.filter(pl.col("estimate") == "flip_rate", pl.col("value").is_not_null()).collect()
    for row in flips.iter_rows(named=True):
        yield (
            f"Another draw of samples would put {row['value']:.1%} of the targets on the other "
            f"side of p = 0.05 ({row['method'].replace('_', ' ')})."
        )
    rates = own.filter(pl.col("estimate") == "contamination_rate").collect()
    for row in rates.iter_rows(named=True):
        yield from _contamination(row)


def _of_all(rows: pl.DataFrame, plan: VerdictPlan, what: str) -> Iterator[str]:
    """Give the answer about a whole collection, or say why there is none if it was asked for."""
    asked = plan.level == "collection" or what == "All canaries"
    later = "" if asked else f"; exploratory, the plan is about each {plan.level}"
    for row in rows.iter_rows(named=True):
        if row["p_value"] is not None:
            yield f"{what}, by {plan.primary}: p = {row['p_value']:.3g} ({row['method']}{later})."
        elif asked:
            yield f"{what}, by {plan.primary}: no p-value ({row['reason']})."


def _reported(tests: pl.LazyFrame, plan: VerdictPlan) -> Iterator[str]:
    """Count what is reported at the planned level; a document without a group is one."""
    levels = ["target"] if plan.level == "target" else ["group", "document"]
    counted = (
        tests.filter(pl.col("level").cast(pl.String).is_in(levels))
        .select(
            n=pl.len(),
            reported=(pl.col("q_value") <= plan.q).sum(),
            smallest=pl.col("q_value").min(),
            n_null=pl.col("n_null").max(),
            alone=(pl.col("n_null") == 0).sum(),
            method=pl.col("method").first(),
            lost=pl.col("p_value").null_count(),
            reason=pl.col("reason").drop_nulls().mode().sort().first(),
        )
        .collect(engine="streaming")
        .row(0, named=True)
    )
    if counted["n"] == 0:
        return
    adjusted = _ADJUSTMENTS[counted["method"].rpartition("+")[2]]
    kind = f"{plan.level}s"
    against = f"{counted['n_null']:,} independent units outside the training data"
    if counted["reported"]:
        yield (
            f"{counted['reported']:,} of {counted['n']:,} {kind} are reported at q = {plan.q:g} "
            f"({plan.primary}, {adjusted}, against {against}): lists made like this are on "
            f"average at most {100 * plan.q:g} % false."
        )
    else:
        least = f"; the smallest q is {counted['smallest']:.2g}" if counted["smallest"] else ""
        yield (
            f"None of {counted['n']:,} {kind} is reported at q = {plan.q:g} ({plan.primary}, "
            f"{adjusted}, against {against}){least}. That is no evidence of absence."
        )
    if counted["lost"]:
        yield f"Without a p-value: {counted['lost']:,} {kind} (mostly: {counted['reason']})."
    if counted["alone"]:
        yield f"Nothing to compare with, so never reported: {counted['alone']:,} {kind}."


def _contamination(row: dict[str, str | float | None]) -> Iterator[str]:
    if row["value"] is not None:
        yield (
            f"Share of members among the targets: {row['value']:.0%}, 95 % interval "
            f"{row['low']:.0%} to {row['high']:.0%} ({row['assumption']})."
        )
    elif row["low"]:
        yield (
            f"Share of members among the targets: at least {row['low']:.0%} at 95 % confidence "
            f"({row['assumption']})."
        )
