"""Features and attacks to scores, and to the reasons why scores are missing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from mia_batch.attacks.whole_targets import whole_targets
from mia_batch.errors import SchemaMismatchError
from mia_batch.schemas import Scores, Targets

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mia_batch.attacks.attack import Attack

__all__ = ["ScoredTables", "score"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredTables:
    """What scoring gives.

    Attributes
    ----------
    scores
        The scores table: one row per target, in the order of the targets table.
    unscored
        The unscored table: one row per missing score, in the same order.
    """

    scores: pl.LazyFrame
    unscored: pl.LazyFrame


def score(
    features: pl.LazyFrame,
    samples: pl.LazyFrame,
    targets: pl.LazyFrame,
    attacks: Sequence[Attack],
) -> ScoredTables:
    """Apply attacks to the features of every target.

    Features are read batch by batch and texts not at all; memory holds the scores, and the pairs
    of targets that are not complete yet.

    Parameters
    ----------
    features
        The features table, in any order; memory is least where targets come roughly in the order
        of ``targets``.
    samples
        The samples table, for its reasons.
    targets
        The targets table; columns that are not of its schema pass through to the scores.
    attacks
        What to compute.

    Returns
    -------
    ScoredTables
        Every target is in the scores; a missing score is null and has its reason in ``unscored``.

    Raises
    ------
    SchemaMismatchError
        If an attack needs a column that the features lack, if the targets have a column named
        like an attack, or if the features hold a sample twice.
    """
    for attack in attacks:
        attack.check(features)
    names = [attack.name for attack in attacks]
    passing = [name for name in targets.collect_schema() if name not in Targets.column_names()]
    for name in set(passing).intersection(names):
        msg = f"the input has a column {name!r}, the name of an attack; rename the column"
        raise SchemaMismatchError(msg)
    numbers = _numbers(features, targets, attacks).lazy()
    keyed = pl.concat([targets, numbers.drop("row")], how="horizontal")
    return ScoredTables(
        scores=keyed.select(*Scores.column_names(), *names, *passing),
        unscored=_unscored(numbers, samples, targets, attacks),
    )


def _numbers(
    features: pl.LazyFrame, targets: pl.LazyFrame, attacks: Sequence[Attack]
) -> pl.DataFrame:
    """``row``, ``n_samples``, ``n_short`` and the scores of every target, in order."""
    ids = targets.select("target_id").with_row_index("row")
    columns = {column for attack in attacks for column in attack.columns}
    pairs = (
        features.filter(pl.col("words_candidate").is_not_null())
        .select("target_id", *sorted({"sample_index", "short"} | columns))
        .join(ids, on="target_id", how="inner", maintain_order="left")
        .drop("target_id")
    )
    rows = ids.select("row").collect(engine="streaming")
    scored = [_aggregate(pairs.clear().collect(), attacks)]
    for batch in whole_targets(pairs, rows.height):
        _refuse_duplicates(batch, ids)
        scored.append(_aggregate(batch, attacks))
    return rows.join(pl.concat(scored), on="row", how="left", maintain_order="left").with_columns(
        pl.col("n_samples", "n_short").fill_null(0)
    )


def _aggregate(pairs: pl.DataFrame, attacks: Sequence[Attack]) -> pl.DataFrame:
    """One row per target of the sorted pairs; a value that is no finite number becomes null."""
    names = [attack.name for attack in attacks]
    value = pl.col(names).cast(pl.Float64)
    return (
        pairs.lazy()
        .set_sorted("row")
        .group_by("row")
        .agg(
            n_samples=pl.len(),
            n_short=pl.col("short").sum().cast(pl.UInt32),
            **{attack.name: attack.expr for attack in attacks},
        )
        .with_columns(pl.when(value.is_finite()).then(value))
        .collect(engine="streaming")
    )


def _refuse_duplicates(pairs: pl.DataFrame, ids: pl.LazyFrame) -> None:
    """Raise if the sorted pairs hold a sample twice: it would count twice in the mean."""
    key = pl.col("row", "sample_index")
    twice = pairs.filter(pl.all_horizontal(key == key.shift())).head(1)
    if twice.height:
        row, index = twice.select("row", "sample_index").row(0)
        target = ids.filter(pl.col("row") == row).collect().item(0, "target_id")
        msg = f"features hold sample {index} of target {target} twice; delete one of the two parts"
        raise SchemaMismatchError(msg)


def _unscored(
    numbers: pl.LazyFrame,
    samples: pl.LazyFrame,
    targets: pl.LazyFrame,
    attacks: Sequence[Attack],
) -> pl.LazyFrame:
    """One row per null score: the target's own reason, else its samples', else the attack's."""
    undefined = {attack.name: attack.undefined for attack in attacks}
    own = targets.select("target_id", own="reason").with_row_index("row")
    sampled = (
        samples.filter(pl.col("reason").is_not_null())
        .group_by("target_id")
        .agg(sampled=pl.col("reason").sort_by("sample_index").first())
    )
    nothing_sampled = pl.coalesce("sampled", pl.lit("no continuation was sampled"))
    reason = pl.coalesce(
        "own",
        pl.when(n_samples=0).then(nothing_sampled),
        pl.col("attack").replace_strict(undefined, return_dtype=pl.String),
    )
    return (
        numbers.unpivot(
            index=["row", "n_samples"],
            on=list(undefined),
            variable_name="attack",
            value_name="score",
        )
        .filter(pl.col("score").is_null())
        .sort("row", maintain_order=True)
        .join(own, on="row", how="left", maintain_order="left")
        .join(sampled, on="target_id", how="left", maintain_order="left")
        .select("target_id", "attack", reason=reason)
    )
