"""From evidence to scores: attacks applied batch by batch, with all rows of a target together."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from heapq import merge
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from mia_batch.attacks.attack import (
    CONTINUATION,
    Attack,
    ModelView,
    check_attacks,
    matches_views,
)
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
    n_missing: NDArray[np.uint32],
    order: tuple[str, ...],
) -> Iterator[pl.DataFrame]:
    """Regroup batches of rows so that none splits a target, sorted by ``row`` and ``order``."""
    # Rows of a target that is not complete yet wait in memory; ``n_missing`` of each
    # target is counted down to 0.
    waiting: list[pl.DataFrame] = []
    for batch in batches:
        _add(n_missing, batch, -1)
        rows = pl.concat([*waiting, batch])
        is_whole = pl.Series(n_missing[rows["row"].to_numpy()] == 0, dtype=pl.Boolean)
        yield rows.filter(is_whole).sort("row", *order)
        waiting = [rows.filter(~is_whole)]


def _add(
    counts: NDArray[np.uint32],
    batch: pl.DataFrame,
    sign: int,
) -> None:
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
    row_key: tuple[str, ...]  # columns that distinguish the rows of a target
    # Which rows formulas see
    is_seen: pl.Expr = field(default_factory=lambda: pl.lit(value=True))
    # What is counted of continuations
    counts: dict[str, pl.Expr] = field(default_factory=dict)
    chunk_size: int = _TEXTS_AT_ONCE  # rows

    def read_batches(
        self, index: RowIndex, columns: set[str]
    ) -> Iterator[pl.DataFrame]:
        """Read the rows of targets, some at a time, with the target's ``row``."""
        names = sorted({*self.row_key} | columns)
        streams = [
            _read_table(table.select("target_id", *names), index, self.chunk_size)
            for table in self.tables
        ]
        return merge(*streams, key=lambda batch: batch["row"].min() or 0)


def _read_table(
    table: pl.LazyFrame,
    index: RowIndex,
    chunk_size: int,
) -> Iterator[pl.DataFrame]:
    batches = table.collect_batches(chunk_size=chunk_size, maintain_order=True)
    for batch in batches:
        places, rows = index.find(batch["target_id"])
        row = pl.Series(rows, dtype=pl.UInt32)
        yield batch.drop("target_id")[places].with_columns(row=row)


def _list_evidence(
    features: pl.LazyFrame,
    logprobs: pl.LazyFrame | None,
    attacks: Sequence[Attack],
) -> Iterator[_Evidence]:
    """Iterate over what attacks read: samples, log-probabilities, then both tables."""
    on_both = [attack for attack in attacks if attack.logprobs]
    on_one = [attack for attack in attacks if not attack.logprobs]
    on_samples = [attack for attack in on_one if attack.evidence == "samples"]
    on_texts = [attack for attack in on_one if attack.evidence == "logprobs"]
    answers = features.with_columns(there=_IS_ANSWER)
    yield _build_sample_evidence(answers, on_samples)
    if logprobs is None:
        return
    texts = logprobs.with_columns(there=_IS_READ)
    row_key = ("model", "view", "view_index")
    if on_texts:
        yield _Evidence(
            attacks=on_texts,
            tables=(texts,),
            row_key=row_key,
        )
    if on_both:
        types = texts.collect_schema() | answers.collect_schema()
        no_rows = pl.LazyFrame(schema=types)  # each table gets the columns of both
        yield _Evidence(
            attacks=on_both,
            tables=(
                pl.concat([no_rows, texts], how="diagonal"),
                pl.concat([no_rows, answers], how="diagonal"),
            ),
            row_key=(*row_key, "sample_index"),
            is_seen=pl.col("there") | pl.col("sample_index").is_null(),
        )


def _build_sample_evidence(answers: pl.LazyFrame, attacks: list[Attack]) -> _Evidence:
    reads = set[ModelView]().union(*(attack.reads for attack in attacks))
    row_key: tuple[str, ...] = ("model", "view", "view_index", "sample_index")
    is_continuation = pl.col("model") == "target"
    if reads <= _CONTINUATIONS:
        # No batch has the columns that say so.
        answers = answers.filter(matches_views(_CONTINUATIONS))
        row_key = ("view_index", "sample_index")
        is_continuation = pl.lit(value=True)
    return _Evidence(
        attacks=attacks,
        tables=(answers,),
        row_key=row_key,
        is_seen=pl.col("there"),
        counts={
            "n_samples": (pl.col("there") & is_continuation).sum(),
            "n_short": (pl.col("short") & is_continuation).sum(),
        },
        chunk_size=_SAMPLES_AT_ONCE,
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
    kinds = [*_list_evidence(features, logprobs, attacks)]
    for evidence in kinds:
        check_attacks(evidence.attacks, evidence.tables[0])
    names = [attack.name for attack in attacks]
    learned = [attack.name for attack in attacks if attack.evidence == "scores"]
    types = targets.collect_schema()
    further = [name for name in types if name not in Targets.column_names()]
    for name in set(further).intersection(names):
        raise SchemaMismatchError(
            f"the input has a column {name!r}, the name of an attack; rename the column"
        )
    columns = (*Scores.column_names(), *names, *further)
    keys = targets.select(name for name in columns if name in types)
    index = RowIndex(keys.select("target_id"))
    learned_later = [pl.lit(None, pl.Float64).alias(name) for name in learned]
    starts = range(0, max(index.height, 1), _TARGETS_AT_ONCE)
    scores = [_compute_scores(evidence, keys, index, starts) for evidence in kinds]
    for start, *chunks in zip(starts, *scores, strict=True):
        chunk = keys.slice(start, _TARGETS_AT_ONCE).collect()
        table = pl.concat([chunk, *chunks], how="horizontal")
        yield table.with_columns(learned_later).select(columns)


def check_columns(attack: Attack) -> None:
    """Refuse an attack whose columns no evidence has, before any is asked for."""
    if attack.evidence == "scores":
        return
    columns: dict[str, Any] = {}
    if attack.list_reads("samples"):
        fields = feature_fields([*GROUPS, *OTHER_GROUPS])
        columns |= Features.create_empty().schema
        columns |= pl.Struct(fields).to_schema()
        columns |= {EXPECTED: pl.Float64}
    if attack.list_reads("logprobs"):
        columns |= LogProbs.create_empty().schema
        columns |= dict.fromkeys(SERIES_COLUMNS, pl.Float64)
    try:
        attack.check(pl.LazyFrame(schema=columns))
    except SchemaMismatchError as error:
        raise SettingsError(str(error)) from error


def _compute_scores(
    evidence: _Evidence,
    keys: pl.LazyFrame,
    index: RowIndex,
    starts: range,
) -> Iterator[pl.DataFrame]:
    """Iterate over counts and scores of targets, from each start to the next."""
    types: dict[str, type[pl.DataType]] = {"row": pl.UInt32}
    types |= dict.fromkeys(evidence.counts, pl.UInt32)
    types |= dict.fromkeys((attack.name for attack in evidence.attacks), pl.Float64)
    n_missing = count_rows(evidence.read_batches(index, set()), index.height)
    columns = {"there"}.union(*(attack.columns for attack in evidence.attacks))
    for count in evidence.counts.values():
        columns.update(count.meta.root_names())
    batches = whole_targets(
        evidence.read_batches(index, columns), n_missing, evidence.row_key
    )
    scores = pl.DataFrame(schema=types)  # of targets from ``start`` on
    for start in starts:
        end = min(start + _TARGETS_AT_ONCE, index.height)
        while n_missing[start:end].any():
            batch = next(batches)
            _refuse_duplicates(batch, evidence.row_key, keys)
            try:
                scores = pl.concat([scores, _aggregate(batch, evidence)])
            except pl.exceptions.PolarsError:
                _raise_for_attack(batch, evidence)
                raise
        rows = pl.select(row=pl.int_range(start, end, dtype=pl.UInt32))
        chunk = rows.join(
            scores,
            on="row",
            how="left",
            maintain_order="left",
        )
        yield chunk.drop("row").with_columns(
            pl.col(name).fill_null(0) for name in evidence.counts
        )
        scores = scores.filter(pl.col("row") >= end)


def _raise_for_attack(batch: pl.DataFrame, evidence: _Evidence) -> None:
    """Raise the error of the first attack that cannot be computed, if it is one alone."""
    for attack in evidence.attacks:
        try:
            _aggregate(batch, replace(evidence, attacks=[attack]))
        except pl.exceptions.PolarsError as error:
            raise attack.build_error(error) from error


def _aggregate(rows: pl.DataFrame, evidence: _Evidence) -> pl.DataFrame:
    """Return a row per target of sorted rows; a value that is no finite number is null."""
    has_views = "model" in evidence.row_key
    counted_views = None if has_views else _CONTINUATIONS
    groups: dict[frozenset[ModelView] | None, list[Attack]] = {}
    if evidence.counts:
        groups[counted_views] = []
    for attack in evidence.attacks:
        # Together, they share what they compute
        picks_rows = {"model", "view"} <= set(attack.columns)
        views = None if picks_rows else frozenset(attack.reads + attack.logprobs)
        groups.setdefault(views, []).append(attack)
    is_complete = rows["there"].all()
    frames = []
    for views, attacks in groups.items():
        group_rows = rows.lazy()
        if views is not None and has_views:
            group_rows = group_rows.filter(matches_views(views))
        columns = {attack.name: attack.expr for attack in attacks}
        if views == counted_views:
            for name, count in evidence.counts.items():
                columns[name] = count.cast(pl.UInt32)
        seen_rows = group_rows.filter(evidence.is_seen).set_sorted("row")
        scores = seen_rows.group_by("row").agg(**columns)
        if not is_complete:
            scores = _drop_incomplete(
                scores, group_rows, attacks, by_view="model" in rows.columns
            )
        frames.append(scores)
    join = partial(
        pl.LazyFrame.join,
        on="row",
        how="full",
        coalesce=True,
    )
    names = [attack.name for attack in evidence.attacks]
    value = pl.col(names).cast(pl.Float64)
    finite = pl.when(value.is_finite()).then(value)
    scores = reduce(join, frames).with_columns(finite)
    return scores.select("row", *evidence.counts, *names).collect()


def _drop_incomplete(
    scores: pl.LazyFrame,
    rows: pl.LazyFrame,
    attacks: list[Attack],
    *,
    by_view: bool,
) -> pl.LazyFrame:
    """Return scores with null where too little is there of what an attack reads."""
    shares = []
    complete_scores = []
    for attack in attacks:
        is_read = pl.lit(value=True)
        if by_view:
            is_read = matches_views(attack.reads + attack.logprobs)
        name = f"{attack.name} there"
        shares.append(pl.col("there").filter(is_read).mean().alias(name))
        complete_score = pl.when(pl.col(name) >= attack.least).then(attack.name)
        complete_scores.append(complete_score.alias(attack.name))
    table = rows.group_by("row").agg(shares)
    return scores.join(table, on="row").with_columns(complete_scores)


def _refuse_duplicates(
    rows: pl.DataFrame,
    row_key: tuple[str, ...],
    keys: pl.LazyFrame,
) -> None:
    key = pl.col("row", *row_key)
    repeated = rows.filter(pl.all_horizontal(key == key.shift())).head(1)
    if repeated.is_empty():
        return
    row, *values = repeated.select("row", *row_key).row(0)
    target_id = keys.select("target_id").slice(row, 1).collect().item()
    place = ", ".join(
        f"{name} {value}" for name, value in zip(row_key, values, strict=True)
    )
    raise SchemaMismatchError(
        f"the evidence holds {place} of target {target_id} twice; delete one of the"
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
    """Find the reason of each missing score, in the order of ``scores``."""
    # That of the evidence which the attack reads counts, else the target's own, else
    # the attack's. Attacks that read the same have one set of pairs, by its number.
    reads = {
        attack.name: (
            frozenset(attack.list_reads("samples")),
            frozenset(attack.list_reads("logprobs")),
        )
        for attack in attacks
    }
    sets = list(dict.fromkeys(reads.values()))
    set_numbers = {name: sets.index(pairs) for name, pairs in reads.items()}
    sampled_sets = [number for number, (_, texts) in enumerate(sets) if not texts]
    missing = _list_missing(scores, targets, set_numbers)
    sampled = _join_sets(samples, [pairs for pairs, _ in sets], "sample_index")
    reasons = _find_first_reasons(sampled, "sample_index")
    if logprobs is not None:
        texts = _join_sets(
            with_shadows(logprobs, attacks), [pairs for _, pairs in sets]
        )
        reasons = pl.concat([reasons, _find_first_reasons(texts)])
        reasons = reasons.unique(["target_id", "set"], maintain_order=True)
    shares = (
        sampled.filter(pl.col("set").is_in(sampled_sets))
        # Few: all are held. Not of the join with reasons, which samples would wait for.
        .join(
            missing.select("target_id"),
            on="target_id",
            how="semi",
        )
        .group_by("target_id", "set")
        .agg(share=pl.col("reason").is_null().mean())
    )
    key = ["target_id", "set"]
    missing = missing.join(
        reasons,
        on=key,
        how="left",
        maintain_order="left",
    )
    missing = missing.join(
        shares,
        on=key,
        how="left",
        maintain_order="left",
    )
    continued_sets = [n for n in sampled_sets if sets[n][0] == _CONTINUATIONS]
    reason = _choose_reason(attacks, sampled_sets, continued_sets)
    return missing.select("target_id", "attack", reason=reason)


def _list_missing(
    scores: pl.LazyFrame,
    targets: pl.LazyFrame,
    set_numbers: dict[str, int],
) -> pl.LazyFrame:
    """Return a row per missing score, with the number of the ``set`` that its attack reads."""
    missing_names = [
        pl.when(pl.col(name).is_null()).then(pl.lit(name)) for name in set_numbers
    ]
    attack = pl.col("attack")
    return (
        pl.concat([scores, targets.select(target_reason="reason")], how="horizontal")
        .select(
            "target_id",
            "target_reason",
            attack=pl.concat_list(missing_names).list.drop_nulls(),
        )
        .filter(attack.list.len() > 0)
        .explode("attack")
        .with_columns(set=attack.replace_strict(set_numbers, return_dtype=pl.UInt32))
    )


def _choose_reason(
    attacks: Sequence[Attack],
    sampled_sets: list[int],
    continued_sets: list[int],
) -> pl.Expr:
    """Choose why a score is missing by ``first_reason``, ``target_reason`` and ``share``."""
    undefined = {attack.name: attack.undefined for attack in attacks}
    least_shares = {attack.name: attack.least for attack in attacks}
    name = pl.col("attack")
    share = pl.col("share")
    is_sampled = pl.col("set").is_in(sampled_sets)
    is_continued = pl.col("set").is_in(continued_sets)
    not_continued = pl.when(is_continued).then(pl.lit("no continuation was sampled"))
    has_nothing = (share == 0).fill_null(value=True)
    least_share = name.replace_strict(least_shares, return_dtype=pl.Float64)
    too_few = pl.format("too few answers; the first: {}", "first_reason")
    return pl.coalesce(
        pl.when(~is_sampled).then("first_reason"),
        "target_reason",
        pl.when(is_sampled, has_nothing).then(
            pl.coalesce("first_reason", not_continued)
        ),
        pl.when(share < least_share).then(too_few),
        name.replace_strict(undefined, return_dtype=pl.String),
    )


def _join_sets(
    rows: pl.LazyFrame,
    sets: Sequence[frozenset[ModelView]],
    *sample_key: str,
) -> pl.LazyFrame:
    """Return rows of evidence with the number of each ``set`` of pairs that has them."""
    numbered_pairs: list[tuple[int, str, str]] = []
    for number, pairs in enumerate(sets):
        numbered_pairs += [(number, model, view) for model, view in pairs]
    schema = {
        "set": pl.UInt32,
        "model": pl.String,
        "view": pl.String,
    }
    table = pl.LazyFrame(
        numbered_pairs,
        schema=schema,
        orient="row",
    )
    columns = ("target_id", "model", "view", "view_index", *sample_key, "reason")
    return rows.select(columns).join(table, on=["model", "view"])


def _find_first_reasons(rows: pl.LazyFrame, *sample_key: str) -> pl.LazyFrame:
    """Return the first reason among the rows of each set of pairs."""
    order = ("model", "view", "view_index", *sample_key)
    first_reason = pl.col("reason").sort_by(*order).first()
    failed = rows.filter(pl.col("reason").is_not_null())
    return failed.group_by("target_id", "set").agg(first_reason=first_reason)


# An attack on each sample alone.


def score_by(
    features: pl.LazyFrame,
    attack: Attack,
    *key: str,
) -> pl.LazyFrame:
    """Apply an attack to the rows of each key: the key and Float64 ``value``, in any order."""
    value = pl.col("value").cast(pl.Float64)
    answers = features.filter(_IS_ANSWER, matches_views(attack.reads))
    scores = answers.group_by(key).agg(value=attack.expr)
    return scores.with_columns(value=pl.when(value.is_finite()).then(value))
