"""What the roll-up says of its rows, from their sums."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from mia_batch.inference.controls import VERBATIM_WORDS
from mia_batch.inference.verdicts import NO_NULL
from mia_batch.schemas import Rollup

if TYPE_CHECKING:
    from mia_batch.inference.plan import VerdictPlan
    from mia_batch.inference.window_share import WindowShare

__all__ = ["with_answer", "with_claim", "with_mean", "with_share"]

_TYPES = Rollup.create_empty().schema
_BEST = 1.5  # times the smallest p-value there can be: no comparison text scores as high
_NOT_LISTED = "it is not on the list that is reported, so that no share above 0 is claimed"
_OUTSIDE = "known to be outside the training data: others are compared with it"


def with_mean(rows: pl.DataFrame) -> pl.DataFrame:
    """Give the mean Student's interval; both are null below two scores."""
    from scipy.stats import t

    n = pl.col("n_scored")
    quantile = pl.Series("t", t.ppf(0.975, np.maximum(rows["n_scored"].to_numpy(), 2) - 1))
    half = quantile * (pl.col("squares") / (n - 1.0) / n).sqrt()
    mean = pl.col("mean")
    low, high = mean - half, mean + half
    wide = pl.when(n > 1, "varies", low < mean, mean < high)
    return rows.with_columns(
        mean=pl.when(n > 1).then(mean), mean_low=wide.then(low), mean_high=wide.then(high)
    )


def with_share(rows: pl.DataFrame, share: WindowShare, withheld: str | None = None) -> pl.DataFrame:
    """Give each row the share of its windows that were in the training data."""
    made: list[tuple[float | None, float | None, float | None, str | None]] = []
    for *counts, outside in rows.select("n_above", "n_scored", "n_asked", "outside").iter_rows():
        if reason := _OUTSIDE if outside else withheld:
            made.append((None, None, None, reason))
        else:
            found = share.of(*counts)
            made.append((found.value, found.low, found.high, found.reason))
    names = ("contamination", "contamination_low", "contamination_high", "contamination_reason")
    columns = pl.DataFrame(made, schema={name: _TYPES[name] for name in names}, orient="row")
    return pl.concat([rows, columns], how="horizontal")


def with_answer(
    rows: pl.DataFrame,
    verdicts: pl.LazyFrame,
    plan: VerdictPlan,
    *,
    any_null: bool,
    exploratory: bool,
) -> pl.DataFrame:
    """Give each row the p-value of its cluster, or why there is none, and the verdict."""
    level = pl.col("level").cast(pl.String)
    answers = (
        verdicts.filter(level.is_in(["document", "group"]), pl.col("estimate").is_null())
        .filter(attack=plan.primary, versus="non_members")
        .select("p_value", "q_value", "n_null", "reason", tested=level + " " + pl.col("key"))
        .collect(engine="streaming")
    )
    without = (
        pl.when("outside")
        .then(pl.lit(_OUTSIDE))
        .when(not any_null)
        .then(pl.lit(NO_NULL))
        .when(pl.col("tested").is_null())
        .then(pl.lit("its group is tested as a whole"))
        .otherwise(pl.lit("no document has two windows, so that texts are tested alone"))
    )
    verdict = (
        pl.when(pl.max_horizontal("longest_words", "extracted_words") >= VERBATIM_WORDS)
        .then(pl.lit("comes_out"))
        .when(pl.col("p_value").is_null() | exploratory)
        .then(pl.lit("cannot_tell"))
        .when(pl.col("q_value") <= plan.q)
        .then(pl.lit("known_better"))
        .when(pl.col("p_value") * (pl.col("n_null") + 1) < _BEST)
        .then(pl.lit("above_all"))
        .otherwise(pl.lit("nothing_found"))
    )
    return rows.join(answers, on="tested", how="left", maintain_order="left").with_columns(
        reason=pl.when(pl.col("p_value").is_null()).then(pl.coalesce("reason", without)),
        verdict=verdict,
    )


def with_claim(rows: pl.DataFrame, plan: VerdictPlan) -> pl.DataFrame:
    """Claim a share above 0 of those on the list alone; others keep the bound of one row alone.

    A bound holds for a row that was named before. Among fifty rows of which none was trained on,
    some bound is above 0 more often than not; a list at level q names any of them in at most a
    share q of audits. So the lower end that is claimed is 0 off the list. That only widens an
    interval, so its estimate and upper end stay.
    """
    listed, low = pl.col("q_value") <= plan.q, pl.col("contamination_low")
    claimed = pl.when(low.is_not_null()).then(pl.when(listed).then(low).otherwise(0.0))
    bound_alone = low.is_not_null() & pl.col("contamination").is_null() & ~listed.fill_null(False)
    return rows.with_columns(
        contamination_low=claimed,
        contamination_low_alone=low,
        contamination_reason=pl.when(bound_alone)
        .then(pl.lit(_NOT_LISTED))
        .otherwise("contamination_reason"),
    )
