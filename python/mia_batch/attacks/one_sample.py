"""An attack on each sample alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from mia_batch.attacks.terms import among

if TYPE_CHECKING:
    from mia_batch.attacks.attack import Attack

__all__ = ["score_by"]


def score_by(features: pl.LazyFrame, attack: Attack, *key: str) -> pl.LazyFrame:
    """Apply an attack to the rows of each key: the key and Float64 ``value``, in any order.

    With ``target_id`` alone an attack on samples sees all rows of a target together; with
    ``sample_index`` as well it sees each sample as if it were the only one.
    """
    value = pl.col("value").cast(pl.Float64)
    return (
        features.filter(pl.col("words_candidate").is_not_null(), among(attack.reads))
        .group_by(key)
        .agg(value=attack.expr)
        .with_columns(value=pl.when(value.is_finite()).then(value))
    )
