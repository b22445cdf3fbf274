"""Why scores are missing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from mia_batch.attacks.attack import CONTINUATION
from mia_batch.attacks.shadows import with_shadows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mia_batch.attacks.attack import Attack

__all__ = ["find_unscored"]


def find_unscored(
    scores: pl.LazyFrame,
    samples: pl.LazyFrame,
    targets: pl.LazyFrame,
    attacks: Sequence[Attack],
    *,
    logprobs: pl.LazyFrame | None = None,
) -> pl.LazyFrame:
    """Say of each missing score why it is missing, in the order of ``scores``.

    The reason is that of the evidence which the attack reads, else the target's own, else the
    attack's. ``scores`` and ``targets`` have the same order; of ``samples`` and ``logprobs`` only
    keys and reasons are read; ``logprobs`` is None where no attack reads it.
    """
    undefined = {attack.name: attack.undefined for attack in attacks}
    read = {
        attack.name: tuple(frozenset(attack.reads_of(kind)) for kind in ("samples", "logprobs"))
        for attack in attacks
    }
    sets = list(dict.fromkeys(read.values()))
    which = {name: sets.index(pairs) for name, pairs in read.items()}
    of_samples = [number for number, (_, of_tokens) in enumerate(sets) if not of_tokens]
    lacking = [pl.when(pl.col(name).is_null()).then(pl.lit(name)) for name in undefined]
    missing = (
        pl.concat([scores, targets.select(own="reason")], how="horizontal")
        .select("target_id", "own", attack=pl.concat_list(lacking).list.drop_nulls())
        .filter(pl.col("attack").list.len() > 0)
        .explode("attack")
        .with_columns(reads=pl.col("attack").replace_strict(which, return_dtype=pl.UInt32))
    )
    sampled = _rows_read(samples, [pairs for pairs, _ in sets], "sample_index")
    why = _first_reasons(sampled, "sample_index")
    if logprobs is not None:
        rows = with_shadows(logprobs, attacks)
        of_tokens = _first_reasons(_rows_read(rows, [pairs for _, pairs in sets]))
        why = pl.concat([why, of_tokens]).unique(["target_id", "reads"], maintain_order=True)
    lacking_targets = missing.select("target_id")  # without the join: samples would wait for it
    missing = missing.join(why, on=["target_id", "reads"], how="left", maintain_order="left")
    shares = (
        sampled.filter(pl.col("reads").is_in(of_samples))
        .join(lacking_targets, on="target_id", how="semi")  # few: all are held
        .group_by("target_id", "reads")
        .agg(there=pl.col("reason").is_null().mean())
    )
    missing = missing.join(shares, on=["target_id", "reads"], how="left", maintain_order="left")
    nothing = pl.col("there") == 0
    least = pl.col("attack").replace_strict(
        {attack.name: attack.least for attack in attacks}, return_dtype=pl.Float64
    )
    is_sampled = pl.col("reads").is_in(of_samples)
    continued = [number for number in of_samples if sets[number][0] == {CONTINUATION}]
    none = pl.when(pl.col("reads").is_in(continued)).then(pl.lit("no continuation was sampled"))
    reason = pl.coalesce(
        pl.when(~is_sampled).then("why"),
        "own",
        pl.when(is_sampled, nothing.fill_null(value=True)).then(pl.coalesce("why", none)),
        pl.when(pl.col("there") < least).then(pl.format("too few answers; the first: {}", "why")),
        pl.col("attack").replace_strict(undefined, return_dtype=pl.String),
    )
    return missing.select("target_id", "attack", reason=reason)


def _rows_read(
    rows: pl.LazyFrame, sets: Sequence[frozenset[tuple[str, str]]], *number: str
) -> pl.LazyFrame:
    """Rows of evidence with the number ``reads`` of each set of pairs that has them."""
    reads = pl.LazyFrame(
        [(which, *pair) for which, pairs in enumerate(sets) for pair in pairs],
        schema={"reads": pl.UInt32, "model": pl.String, "view": pl.String},
        orient="row",
    )
    keys = rows.select("target_id", "model", "view", "view_index", *number, "reason")
    return keys.join(reads, on=["model", "view"])


def _first_reasons(rows: pl.LazyFrame, *number: str) -> pl.LazyFrame:
    """First reason among the rows of each set of pairs: ``target_id``, ``reads``, ``why``."""
    first = pl.col("reason").sort_by("model", "view", "view_index", *number).first()
    failed = rows.filter(pl.col("reason").is_not_null())
    return failed.group_by("target_id", "reads").agg(why=first)
