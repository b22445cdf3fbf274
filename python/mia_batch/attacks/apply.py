"""Features and attacks to scores, a chunk of targets at a time, and why scores are missing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from mia_batch.attacks.whole_targets import count_pairs, whole_targets
from mia_batch.errors import SchemaMismatchError
from mia_batch.schemas import Scores, Targets
from mia_batch.targets import RowIndex

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mia_batch.attacks.attack import Attack

__all__ = ["find_unscored", "score"]

_PAIRS_AT_ONCE = 16384
_TARGETS_AT_ONCE = 1024


def score(
    features: pl.LazyFrame, targets: pl.LazyFrame, attacks: Sequence[Attack]
) -> Iterator[pl.DataFrame]:
    """Apply attacks to the features of every target.

    Features are read batch by batch, twice, and texts not at all. Memory holds 16 bytes a target;
    beside them, the scores of targets that come too early and the pairs of targets that are not
    complete yet.

    Parameters
    ----------
    features
        The features table, in any order; memory is least where targets come roughly in the order
        of ``targets``.
    targets
        The targets table; columns that are not of its schema pass through to the scores.
    attacks
        What to compute.

    Yields
    ------
    DataFrame
        Rows of the scores table: one per target, in the order of ``targets``; a missing score is
        null. At least one frame comes.

    Raises
    ------
    SchemaMismatchError
        If an attack needs a column that the features lack, if the targets have a column named
        like an attack, or if the features hold a sample twice.
    """
    for attack in attacks:
        attack.check(features)
    names = [attack.name for attack in attacks]
    types = targets.collect_schema()
    passing = [name for name in types if name not in Targets.column_names()]
    for name in set(passing).intersection(names):
        msg = f"the input has a column {name!r}, the name of an attack; rename the column"
        raise SchemaMismatchError(msg)
    numbers = dict.fromkeys(("n_samples", "n_short"), pl.UInt32) | dict.fromkeys(names, pl.Float64)
    columns = (*Scores.column_names(), *names, *passing)
    keys = targets.select(name for name in columns if name in types)
    index = RowIndex(keys.select("target_id"))
    to_come = count_pairs(_pairs(features, index, set()), index.height)
    used = {column for attack in attacks for column in attack.columns}
    batches = whole_targets(_pairs(features, index, used), to_come)
    held = pl.DataFrame(schema={"row": pl.UInt32, **numbers})
    for start in range(0, max(index.height, 1), _TARGETS_AT_ONCE):
        end = start + _TARGETS_AT_ONCE
        while to_come[start:end].any():
            batch = next(batches)
            _refuse_duplicates(batch, keys)
            held = pl.concat([held, _aggregate(batch, attacks)])
        chunk = keys.slice(start, _TARGETS_AT_ONCE).collect()
        rows = pl.select(row=pl.int_range(start, start + chunk.height, dtype=pl.UInt32))
        found = rows.join(held, on="row", how="left", maintain_order="left").drop("row")
        counted = found.with_columns(pl.col("n_samples", "n_short").fill_null(0))
        yield pl.concat([chunk, counted], how="horizontal").select(columns)
        held = held.filter(pl.col("row") >= end)


def _pairs(features: pl.LazyFrame, index: RowIndex, columns: set[str]) -> Iterator[pl.DataFrame]:
    """Yield the pairs of targets, some at a time, with the target's ``row``."""
    there = features.filter(pl.col("words_candidate").is_not_null())
    wanted = there.select("target_id", *sorted({"sample_index", "short"} | columns))
    for batch in wanted.collect_batches(chunk_size=_PAIRS_AT_ONCE, maintain_order=True):
        which, rows = index.find(batch["target_id"])
        yield batch.drop("target_id")[which].with_columns(row=pl.Series(rows, dtype=pl.UInt32))


def _aggregate(pairs: pl.DataFrame, attacks: Sequence[Attack]) -> pl.DataFrame:
    """One row per target of the sorted pairs; a value that is no finite number becomes null."""
    value = pl.col([attack.name for attack in attacks]).cast(pl.Float64)
    return (
        pairs.lazy()
        .set_sorted("row")
        .group_by("row")
        .agg(
            n_samples=pl.len().cast(pl.UInt32),
            n_short=pl.col("short").sum().cast(pl.UInt32),
            **{attack.name: attack.expr for attack in attacks},
        )
        .with_columns(pl.when(value.is_finite()).then(value))
        .collect()
    )


def _refuse_duplicates(pairs: pl.DataFrame, keys: pl.LazyFrame) -> None:
    """Raise if the sorted pairs hold a sample twice: it would count twice in the mean."""
    key = pl.col("row", "sample_index")
    twice = pairs.filter(pl.all_horizontal(key == key.shift())).head(1)
    if twice.height:
        row, index = twice.select("row", "sample_index").row(0)
        target = keys.select("target_id").slice(row, 1).collect().item()
        msg = f"features hold sample {index} of target {target} twice; delete one of the two parts"
        raise SchemaMismatchError(msg)


def find_unscored(
    scores: pl.LazyFrame,
    samples: pl.LazyFrame,
    targets: pl.LazyFrame,
    attacks: Sequence[Attack],
) -> pl.LazyFrame:
    """Say of each missing score why it is missing.

    Parameters
    ----------
    scores
        The scores table.
    samples
        The samples table, for its reasons.
    targets
        The targets table, in the order of ``scores``.
    attacks
        What was computed.

    Returns
    -------
    LazyFrame
        The unscored table, in the order of ``scores``: of each null score the target's own
        reason, else its samples', else the attack's.
    """
    undefined = {attack.name: attack.undefined for attack in attacks}
    lacking = [pl.when(pl.col(name).is_null()).then(pl.lit(name)) for name in undefined]
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
        pl.concat([scores, targets.select(own="reason")], how="horizontal")
        .select("target_id", "n_samples", "own", attack=pl.concat_list(lacking).list.drop_nulls())
        .filter(pl.col("attack").list.len() > 0)
        .explode("attack")
        .join(sampled, on="target_id", how="left", maintain_order="left")
        .select("target_id", "attack", reason=reason)
    )
