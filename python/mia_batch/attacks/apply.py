"""Evidence and attacks to scores, a chunk of targets at a time, and why scores are missing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from mia_batch.attacks.whole_targets import count_rows, whole_targets
from mia_batch.errors import SchemaMismatchError
from mia_batch.schemas import Scores, Targets
from mia_batch.tables import RowIndex

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mia_batch.attacks.attack import Attack

__all__ = ["find_unscored", "score"]

_TARGETS_AT_ONCE = 1024
_SAMPLES_AT_ONCE = 16384
_TEXTS_AT_ONCE = 512  # each has numbers of every token


@dataclass(frozen=True, slots=True, kw_only=True)
class _Evidence:
    """Rows of targets, as attacks read them.

    Attributes
    ----------
    rows
        The table; rows of no evidence left out.
    number
        The columns that tell a target's rows apart.
    counts
        What is counted of each target.
    at_once
        Rows to read at a time.
    """

    rows: pl.LazyFrame
    number: tuple[str, ...]
    counts: dict[str, pl.Expr]
    at_once: int


def _samples(features: pl.LazyFrame) -> _Evidence:
    return _Evidence(
        rows=features.filter(pl.col("words_candidate").is_not_null()),
        number=("view_index", "sample_index"),
        counts={"n_samples": pl.len(), "n_short": pl.col("short").sum()},
        at_once=_SAMPLES_AT_ONCE,
    )


def _logprobs(logprobs: pl.LazyFrame) -> _Evidence:
    return _Evidence(
        rows=logprobs,
        number=("model", "view", "view_index"),
        counts={},
        at_once=_TEXTS_AT_ONCE,
    )


def score(
    features: pl.LazyFrame,
    targets: pl.LazyFrame,
    attacks: Sequence[Attack],
    *,
    logprobs: pl.LazyFrame | None = None,
) -> Iterator[pl.DataFrame]:
    """Apply attacks to the evidence of every target.

    Evidence is read batch by batch, twice, and texts not at all. Memory holds 16 bytes a target;
    beside them, the scores of targets that come too early and the rows of targets that are not
    complete yet.

    Parameters
    ----------
    features
        The features table, in any order; memory is least where targets come roughly in the order
        of ``targets``. Empty where nothing was sampled.
    targets
        The targets table; columns that are not of its schema pass through to the scores.
    attacks
        What to compute.
    logprobs
        The logprobs table, likewise; null where no attack reads it.

    Yields
    ------
    DataFrame
        Rows of the scores table: one per target, in the order of ``targets``; a missing score is
        null. At least one frame comes.

    Raises
    ------
    SchemaMismatchError
        If an attack needs a column that its evidence lacks, if the targets have a column named
        like an attack, or if the evidence holds a row twice.
    """
    kinds = [(_samples(features), [attack for attack in attacks if attack.evidence == "samples"])]
    if logprobs is not None:
        reading = [attack for attack in attacks if attack.evidence == "logprobs"]
        kinds.append((_logprobs(logprobs), reading))
    for evidence, reading in kinds:
        for attack in reading:
            attack.check(evidence.rows)
    names = [attack.name for attack in attacks]
    types = targets.collect_schema()
    passing = [name for name in types if name not in Targets.column_names()]
    for name in set(passing).intersection(names):
        msg = f"the input has a column {name!r}, the name of an attack; rename the column"
        raise SchemaMismatchError(msg)
    columns = (*Scores.column_names(), *names, *passing)
    keys = targets.select(name for name in columns if name in types)
    index = RowIndex(keys.select("target_id"))
    numbers = [_numbers(evidence, keys, index, reading) for evidence, reading in kinds]
    for start, *chunks in zip(_starts(index), *numbers, strict=True):
        chunk = keys.slice(start, _TARGETS_AT_ONCE).collect()
        yield pl.concat([chunk, *chunks], how="horizontal").select(columns)


def _starts(index: RowIndex) -> range:
    return range(0, max(index.height, 1), _TARGETS_AT_ONCE)


def _numbers(
    evidence: _Evidence, keys: pl.LazyFrame, index: RowIndex, attacks: Sequence[Attack]
) -> Iterator[pl.DataFrame]:
    """Yield the counts and scores of all targets, so many at a time."""
    types: dict[str, type[pl.DataType]] = dict.fromkeys(evidence.counts, pl.UInt32)
    types |= dict.fromkeys((attack.name for attack in attacks), pl.Float64)
    to_come = count_rows(_rows(evidence, index, set()), index.height)
    used = {column for attack in attacks for column in attack.columns}
    used.update(*(count.meta.root_names() for count in evidence.counts.values()))
    batches = whole_targets(_rows(evidence, index, used), to_come, evidence.number)
    held = pl.DataFrame(schema={"row": pl.UInt32, **types})
    for start in _starts(index):
        end = min(start + _TARGETS_AT_ONCE, index.height)
        while to_come[start:end].any():
            batch = next(batches)
            _refuse_duplicates(batch, evidence.number, keys)
            held = pl.concat([held, _aggregate(batch, evidence.counts, attacks)])
        rows = pl.select(row=pl.int_range(start, end, dtype=pl.UInt32))
        found = rows.join(held, on="row", how="left", maintain_order="left").drop("row")
        yield found.with_columns(pl.col(name).fill_null(0) for name in evidence.counts)
        held = held.filter(pl.col("row") >= end)


def _rows(evidence: _Evidence, index: RowIndex, columns: set[str]) -> Iterator[pl.DataFrame]:
    """Yield the rows of targets, some at a time, with the target's ``row``."""
    wanted = evidence.rows.select("target_id", *sorted({*evidence.number} | columns))
    for batch in wanted.collect_batches(chunk_size=evidence.at_once, maintain_order=True):
        which, rows = index.find(batch["target_id"])
        yield batch.drop("target_id")[which].with_columns(row=pl.Series(rows, dtype=pl.UInt32))


def _aggregate(
    rows: pl.DataFrame, counts: dict[str, pl.Expr], attacks: Sequence[Attack]
) -> pl.DataFrame:
    """One row per target of the sorted rows; a value that is no finite number becomes null."""
    value = pl.col([attack.name for attack in attacks]).cast(pl.Float64)
    return (
        rows.lazy()
        .set_sorted("row")
        .group_by("row")
        .agg(
            **{name: count.cast(pl.UInt32) for name, count in counts.items()},
            **{attack.name: attack.expr for attack in attacks},
        )
        .with_columns(pl.when(value.is_finite()).then(value))
        .collect()
    )


def _refuse_duplicates(rows: pl.DataFrame, number: tuple[str, ...], keys: pl.LazyFrame) -> None:
    """Raise if the sorted rows hold one twice: it would count twice."""
    key = pl.col("row", *number)
    twice = rows.filter(pl.all_horizontal(key == key.shift())).head(1)
    if twice.height:
        row, *which = twice.select("row", *number).row(0)
        target = keys.select("target_id").slice(row, 1).collect().item()
        named = ", ".join(f"{name} {value}" for name, value in zip(number, which, strict=True))
        msg = f"the evidence holds {named} of target {target} twice; delete one of the two parts"
        raise SchemaMismatchError(msg)


def find_unscored(
    scores: pl.LazyFrame,
    samples: pl.LazyFrame,
    targets: pl.LazyFrame,
    attacks: Sequence[Attack],
    *,
    logprobs: pl.LazyFrame | None = None,
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
    logprobs
        The logprobs table, for its reasons; null where no attack reads it.

    Returns
    -------
    LazyFrame
        The unscored table, in the order of ``scores``: of each null score the reason of the
        evidence that the attack reads, else the target's own, else the attack's.
    """
    undefined = {attack.name: attack.undefined for attack in attacks}
    lacking = [pl.when(pl.col(name).is_null()).then(pl.lit(name)) for name in undefined]
    missing = (
        pl.concat([scores, targets.select(own="reason")], how="horizontal")
        .select("target_id", "n_samples", "own", attack=pl.concat_list(lacking).list.drop_nulls())
        .filter(pl.col("attack").list.len() > 0)
        .explode("attack")
        .join(_why_no_sample(samples), on="target_id", how="left", maintain_order="left")
    )
    nothing_sampled = pl.coalesce("sampled", pl.lit("no continuation was sampled"))
    reads_logprobs = [attack for attack in attacks if attack.evidence == "logprobs"]
    if logprobs is not None and reads_logprobs:
        missing = missing.join(
            _why_no_logprobs(logprobs, reads_logprobs),
            on=["target_id", "attack"],
            how="left",
            maintain_order="left",
        )
    else:
        missing = missing.with_columns(scored=pl.lit(None, pl.String))
    of_samples = ~pl.col("attack").is_in([attack.name for attack in reads_logprobs])
    reason = pl.coalesce(
        "scored",
        "own",
        pl.when(of_samples, n_samples=0).then(nothing_sampled),
        pl.col("attack").replace_strict(undefined, return_dtype=pl.String),
    )
    return missing.select("target_id", "attack", reason=reason)


def _why_no_sample(samples: pl.LazyFrame) -> pl.LazyFrame:
    """First reason of each target's samples: ``target_id``, ``sampled``."""
    failed = samples.filter(pl.col("reason").is_not_null())
    first = pl.col("reason").sort_by("sample_index").first()
    return failed.group_by("target_id").agg(sampled=first)


def _why_no_logprobs(logprobs: pl.LazyFrame, attacks: Sequence[Attack]) -> pl.LazyFrame:
    """First reason among the rows that an attack reads: ``target_id``, ``attack``, ``scored``."""
    reads = pl.LazyFrame(
        [(attack.name, *view) for attack in attacks for view in attack.reads],
        schema={"attack": pl.String, "model": pl.String, "view": pl.String},
        orient="row",
    )
    failed = logprobs.filter(pl.col("reason").is_not_null())
    first = pl.col("reason").sort_by("model", "view", "view_index").first()
    return (
        failed.select("target_id", "model", "view", "view_index", "reason")
        .join(reads, on=["model", "view"])
        .group_by("target_id", "attack")
        .agg(scored=first)
    )
