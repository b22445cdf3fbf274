"""From evidence to scores: attacks applied batch by batch, with all rows of a target together."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from heapq import merge
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from mia_batch.attacks.attack import CONTINUATION, Attack, matches_views
from mia_batch.attacks.from_logprobs import SERIES_COLUMNS, with_series, with_shadows
from mia_batch.attacks.from_samples import EXPECTED
from mia_batch.errors import SchemaMismatchError, SettingsError
from mia_batch.features import OTHER_GROUPS, feature_fields
from mia_batch.kernels import GROUPS
from mia_batch.schemas import Features, LogProbs, Scores, Targets
from mia_batch.tables import RowIndex, mapped_zeros

# Rows of evidence, batch by batch, with all of a target in the same batch.


def count_rows(batches: Iterable[pl.DataFrame], n_targets: int) -> NDArray[np.uint32]:
    """Count the rows of each target, whose index from 0 is in column ``row``."""
    counts = mapped_zeros(n_targets, np.uint32)
    for batch in batches:
        _add(counts, batch, 1)
    return counts


def whole_targets(
    batches: Iterable[pl.DataFrame],
    to_come: NDArray[np.uint32],
    number: tuple[str, ...],
) -> Iterator[pl.DataFrame]:
    """Regroup batches of rows so that none splits a target, sorted by ``row`` and ``number``."""
    # Rows of a target that is not complete yet wait in memory; ``to_come`` is counted
    # down to 0.
    waiting: list[pl.DataFrame] = []
    for batch in batches:
        _add(to_come, batch, -1)
        arrived = pl.concat([*waiting, batch])
        whole = pl.Series(to_come[arrived["row"].to_numpy()] == 0, dtype=pl.Boolean)
        yield arrived.filter(whole).sort("row", *number)
        waiting = [arrived.filter(~whole)]


def _add(counts: NDArray[np.uint32], batch: pl.DataFrame, sign: int) -> None:
    rows, numbers = np.unique(batch["row"].to_numpy(), return_counts=True)
    counts[rows] += (sign * numbers).astype(np.uint32)  # -1 wraps around, and back


# Evidence and attacks to scores, a chunk of targets at a time.

_TARGETS_AT_ONCE = 1024
_SAMPLES_AT_ONCE = 16384
_TEXTS_AT_ONCE = 512  # each has numbers of every token
_CONTINUATIONS = frozenset({CONTINUATION})
_IS_ANSWER = pl.col("words_candidate").is_not_null()
# What is not asked: not lost
_IS_READ = pl.col("reason").is_null() | pl.col("n_bytes").is_null()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Evidence:
    """Rows of targets, as attacks read them."""

    attacks: list[Attack]
    tables: tuple[pl.LazyFrame, ...]  # of the same columns, ``there`` among them
    number: tuple[str, ...]  # columns that tell a target's rows apart
    # Which rows formulas see
    seen: pl.Expr = field(default_factory=lambda: pl.lit(value=True))
    # What is counted of continuations
    counts: dict[str, pl.Expr] = field(default_factory=dict)
    at_once: int = _TEXTS_AT_ONCE  # rows

    def batches(self, index: RowIndex, columns: set[str]) -> Iterator[pl.DataFrame]:
        """Yield the rows of targets, some at a time, with the target's ``row``."""

        def of(table: pl.LazyFrame) -> Iterator[pl.DataFrame]:
            wanted = table.select("target_id", *sorted({*self.number} | columns))
            for batch in wanted.collect_batches(
                chunk_size=self.at_once, maintain_order=True
            ):
                which, found = index.find(batch["target_id"])
                rows = pl.Series(found, dtype=pl.UInt32)
                yield batch.drop("target_id")[which].with_columns(row=rows)

        return merge(*map(of, self.tables), key=lambda batch: batch["row"].min() or 0)


def _kinds(
    features: pl.LazyFrame, logprobs: pl.LazyFrame | None, attacks: Sequence[Attack]
) -> Iterator[_Evidence]:
    """Yield what attacks on samples read, then on log-probabilities, then on both tables."""
    both = [each for each in attacks if each.logprobs]
    alone = [each for each in attacks if not each.logprobs]
    samples, texts = (
        [a for a in alone if a.evidence == each] for each in ("samples", "logprobs")
    )
    answers = features.with_columns(there=_IS_ANSWER)
    rows, own = answers, pl.col("model") == "target"
    number: tuple[str, ...] = ("model", "view", "view_index", "sample_index")
    if {pair for attack in samples for pair in attack.reads} <= _CONTINUATIONS:
        # No batch has the columns that say so.
        rows, own = rows.filter(matches_views(_CONTINUATIONS)), pl.lit(value=True)
        number = number[2:]
    there = pl.col("there") & own
    yield _Evidence(
        attacks=samples,
        tables=(rows,),
        number=number,
        seen=pl.col("there"),
        counts={"n_samples": there.sum(), "n_short": (pl.col("short") & own).sum()},
        at_once=_SAMPLES_AT_ONCE,
    )
    if logprobs is None:
        return
    read = logprobs.with_columns(there=_IS_READ)
    number = ("model", "view", "view_index")
    if texts:
        yield _Evidence(attacks=texts, tables=(read,), number=number)
    if both:
        types = read.collect_schema() | answers.collect_schema()
        none = pl.LazyFrame(schema=types)  # each table gets the columns of both
        tables = tuple(
            pl.concat([none, each], how="diagonal") for each in (read, answers)
        )
        seen = pl.col("there") | pl.col("sample_index").is_null()
        yield _Evidence(
            attacks=both, tables=tables, number=(*number, "sample_index"), seen=seen
        )


def score(
    features: pl.LazyFrame,
    targets: pl.LazyFrame,
    attacks: Sequence[Attack],
    *,
    logprobs: pl.LazyFrame | None = None,
) -> Iterator[pl.DataFrame]:
    """Apply attacks to the evidence of every target.

    Evidence is read batch by batch, twice, and texts not at all. Memory holds 16 bytes
    a target, the scores of targets that come too early and the rows of targets that are
    not complete yet.

    Parameters
    ----------
    features
        The features table, in any order; memory is least where targets come roughly in
        the order of ``targets``. Empty where nothing was sampled.
    targets
        The targets table; columns that are not of its schema pass through to the
        scores.
    attacks
        What to compute.
    logprobs
        The logprobs table, likewise; None where no attack reads it.

    Yields
    ------
    DataFrame
        Rows of the scores table: one per target, in the order of ``targets``; a missing
        score is null, and so are those that are learned from these. At least one frame
        comes.

    Raises
    ------
    SchemaMismatchError
        If an attack needs a column that its evidence has not, if the targets have a
        column named like an attack, or if the evidence holds a row twice.
    """
    if logprobs is not None:
        logprobs = with_series(with_shadows(logprobs, attacks), attacks)
    kinds = [*_kinds(features, logprobs, attacks)]
    for evidence in kinds:
        for attack in evidence.attacks:
            attack.check(evidence.tables[0])
    names = [attack.name for attack in attacks]
    learned = [attack.name for attack in attacks if attack.evidence == "scores"]
    types = targets.collect_schema()
    passing = [name for name in types if name not in Targets.column_names()]
    for name in set(passing).intersection(names):
        raise SchemaMismatchError(
            f"the input has a column {name!r}, the name of an attack; rename the column"
        )
    columns = (*Scores.column_names(), *names, *passing)
    keys = targets.select(name for name in columns if name in types)
    index = RowIndex(keys.select("target_id"))
    none = [pl.lit(None, pl.Float64).alias(name) for name in learned]
    starts = range(0, max(index.height, 1), _TARGETS_AT_ONCE)
    numbers = [_numbers(evidence, keys, index, starts) for evidence in kinds]
    for start, *chunks in zip(starts, *numbers, strict=True):
        chunk = keys.slice(start, _TARGETS_AT_ONCE).collect()
        made = pl.concat([chunk, *chunks], how="horizontal")
        yield made.with_columns(none).select(columns)


def check_columns(attack: Attack) -> None:
    """Refuse an attack that no evidence could feed, before any is asked for."""
    if attack.evidence == "scores":
        return
    columns: dict[str, Any] = {}
    if attack.list_reads("samples"):
        columns |= Features.create_empty().schema
        columns |= pl.Struct(feature_fields([*GROUPS, *OTHER_GROUPS])).to_schema()
        columns |= {EXPECTED: pl.Float64}
    if attack.list_reads("logprobs"):
        columns |= LogProbs.create_empty().schema
        columns |= dict.fromkeys(SERIES_COLUMNS, pl.Float64)
    try:
        attack.check(pl.LazyFrame(schema=columns))
    except SchemaMismatchError as error:
        raise SettingsError(str(error)) from error


def _numbers(
    evidence: _Evidence, keys: pl.LazyFrame, index: RowIndex, starts: range
) -> Iterator[pl.DataFrame]:
    attacks = evidence.attacks
    types: dict[str, type[pl.DataType]] = dict.fromkeys(evidence.counts, pl.UInt32)
    types |= dict.fromkeys((attack.name for attack in attacks), pl.Float64)
    to_come = count_rows(evidence.batches(index, set()), index.height)
    used = {"there"}.union(*(attack.columns for attack in attacks))
    used.update(*(count.meta.root_names() for count in evidence.counts.values()))
    batches = whole_targets(evidence.batches(index, used), to_come, evidence.number)
    held = pl.DataFrame(schema={"row": pl.UInt32, **types})
    for start in starts:
        end = min(start + _TARGETS_AT_ONCE, index.height)
        while to_come[start:end].any():
            batch = next(batches)
            _refuse_duplicates(batch, evidence.number, keys)
            try:
                held = pl.concat([held, _aggregate(batch, evidence)])
            except pl.exceptions.PolarsError:
                for attack in attacks:  # which of them it is
                    try:
                        _aggregate(batch, replace(evidence, attacks=[attack]))
                    except pl.exceptions.PolarsError as error:
                        raise attack.build_error(error) from error
                raise
        rows = pl.select(row=pl.int_range(start, end, dtype=pl.UInt32))
        found = rows.join(held, on="row", how="left", maintain_order="left").drop("row")
        yield found.with_columns(pl.col(name).fill_null(0) for name in evidence.counts)
        held = held.filter(pl.col("row") >= end)


def _aggregate(rows: pl.DataFrame, evidence: _Evidence) -> pl.DataFrame:
    """One row per target of the sorted rows; a value that is no finite number becomes null."""
    groups: dict[frozenset[tuple[str, str]] | None, list[Attack]] = {}
    counted = None if "model" in evidence.number else _CONTINUATIONS
    if evidence.counts:
        groups[counted] = []
    for attack in evidence.attacks:
        # Together, they share what they compute
        picks = {"model", "view"} <= set(attack.columns)
        read = frozenset(attack.reads + attack.logprobs)
        groups.setdefault(None if picks else read, []).append(attack)
    frames = []
    complete, there = rows["there"].all(), pl.col("there")
    for pairs, attacks in groups.items():
        own = rows.lazy()
        if pairs is not None and "model" in evidence.number:
            own = own.filter(matches_views(pairs))
        wanted = {attack.name: attack.expr for attack in attacks}
        if pairs == counted:
            wanted |= {
                name: count.cast(pl.UInt32) for name, count in evidence.counts.items()
            }
        made = own.filter(evidence.seen).set_sorted("row").group_by("row").agg(**wanted)
        if not complete:  # an attack needs its share of what it reads
            reads = {
                a.name: matches_views(a.reads + a.logprobs)
                for a in attacks
                if "model" in rows
            }
            shares = own.group_by("row").agg(
                there.filter(reads.get(a.name, pl.lit(value=True)))
                .mean()
                .alias(f"{a.name} there")
                for a in attacks
            )
            made = made.join(shares, on="row").with_columns(
                pl.when(pl.col(f"{a.name} there") >= a.least).then(a.name).alias(a.name)
                for a in attacks
            )
        frames.append(made)
    found = reduce(
        lambda one, other: one.join(other, on="row", how="full", coalesce=True), frames
    )
    names = [attack.name for attack in evidence.attacks]
    value = pl.col(names).cast(pl.Float64)
    found = found.with_columns(pl.when(value.is_finite()).then(value))
    return found.select("row", *evidence.counts, *names).collect()


def _refuse_duplicates(
    rows: pl.DataFrame, number: tuple[str, ...], keys: pl.LazyFrame
) -> None:
    key = pl.col("row", *number)
    twice = rows.filter(pl.all_horizontal(key == key.shift())).head(1)
    if twice.height:
        row, *which = twice.select("row", *number).row(0)
        target = keys.select("target_id").slice(row, 1).collect().item()
        named = ", ".join(
            f"{name} {value}" for name, value in zip(number, which, strict=True)
        )
        raise SchemaMismatchError(
            f"the evidence holds {named} of target {target} twice; delete one of the"
            " two parts"
        )


# Why scores are missing.


def find_unscored(
    scores: pl.LazyFrame,
    samples: pl.LazyFrame,
    targets: pl.LazyFrame,
    attacks: Sequence[Attack],
    *,
    logprobs: pl.LazyFrame | None = None,
) -> pl.LazyFrame:
    """Say of each missing score why it is missing, in the order of ``scores``."""
    # That of the evidence which the attack reads counts, else the target's own, else
    # the attack's.
    read = {
        attack.name: tuple(
            frozenset(attack.list_reads(kind)) for kind in ("samples", "logprobs")
        )
        for attack in attacks
    }
    sets = list(dict.fromkeys(read.values()))
    which = {name: sets.index(pairs) for name, pairs in read.items()}
    sampled_sets = [number for number, (_, texts) in enumerate(sets) if not texts]
    without = [pl.when(pl.col(name).is_null()).then(pl.lit(name)) for name in read]
    missing = (
        pl.concat([scores, targets.select(own="reason")], how="horizontal")
        .select("target_id", "own", attack=pl.concat_list(without).list.drop_nulls())
        .filter(pl.col("attack").list.len() > 0)
        .explode("attack")
        .with_columns(
            reads=pl.col("attack").replace_strict(which, return_dtype=pl.UInt32)
        )
    )
    sampled = _rows_read(samples, [pairs for pairs, _ in sets], "sample_index")
    why = _first_reasons(sampled, "sample_index")
    if logprobs is not None:
        rows = _rows_read(with_shadows(logprobs, attacks), [pairs for _, pairs in sets])
        why = pl.concat([why, _first_reasons(rows)])
        why = why.unique(["target_id", "reads"], maintain_order=True)
    shares = (
        sampled.filter(pl.col("reads").is_in(sampled_sets))
        # Few: all are held. Not of the join with reasons, which samples would wait for.
        .join(missing.select("target_id"), on="target_id", how="semi")
        .group_by("target_id", "reads")
        .agg(there=pl.col("reason").is_null().mean())
    )
    key = ["target_id", "reads"]
    for further in (why, shares):
        missing = missing.join(further, on=key, how="left", maintain_order="left")
    of = pl.col("attack").replace_strict
    undefined = of(
        {attack.name: attack.undefined for attack in attacks}, return_dtype=pl.String
    )
    least = of(
        {attack.name: attack.least for attack in attacks}, return_dtype=pl.Float64
    )
    is_sampled = pl.col("reads").is_in(sampled_sets)
    continued = [number for number in sampled_sets if sets[number][0] == _CONTINUATIONS]
    none = pl.when(pl.col("reads").is_in(continued)).then(
        pl.lit("no continuation was sampled")
    )
    nothing = (pl.col("there") == 0).fill_null(value=True)
    reason = pl.coalesce(
        pl.when(~is_sampled).then("why"),
        "own",
        pl.when(is_sampled, nothing).then(pl.coalesce("why", none)),
        pl.when(pl.col("there") < least).then(
            pl.format("too few answers; the first: {}", "why")
        ),
        undefined,
    )
    return missing.select("target_id", "attack", reason=reason)


def _rows_read(
    rows: pl.LazyFrame, sets: Sequence[frozenset[tuple[str, str]]], *number: str
) -> pl.LazyFrame:
    """Rows of evidence with the number ``reads`` of each set of pairs that has them."""
    pairs = [(which, *pair) for which, own in enumerate(sets) for pair in own]
    schema = {"reads": pl.UInt32, "model": pl.String, "view": pl.String}
    reads = pl.LazyFrame(pairs, schema=schema, orient="row")
    keys = rows.select("target_id", "model", "view", "view_index", *number, "reason")
    return keys.join(reads, on=["model", "view"])


def _first_reasons(rows: pl.LazyFrame, *number: str) -> pl.LazyFrame:
    """First reason among the rows of each set of pairs: ``target_id``, ``reads``, ``why``."""
    first = pl.col("reason").sort_by("model", "view", "view_index", *number).first()
    failed = rows.filter(pl.col("reason").is_not_null())
    return failed.group_by("target_id", "reads").agg(why=first)


# An attack on each sample alone.


def score_by(features: pl.LazyFrame, attack: Attack, *key: str) -> pl.LazyFrame:
    """Apply an attack to the rows of each key: the key and Float64 ``value``, in any order."""
    value = pl.col("value").cast(pl.Float64)
    return (
        features.filter(
            pl.col("words_candidate").is_not_null(), matches_views(attack.reads)
        )
        .group_by(key)
        .agg(value=attack.expr)
        .with_columns(value=pl.when(value.is_finite()).then(value))
    )
