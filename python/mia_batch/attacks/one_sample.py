"""Attacks on each sample alone, and on a second draw of samples."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

if TYPE_CHECKING:
    from mia_batch.attacks.attack import Attack

__all__ = ["score_by"]


def score_by(features: pl.LazyFrame, attack: Attack, *key: str) -> pl.LazyFrame:
    """Apply an attack to the rows of each key.

    Parameters
    ----------
    features
        Rows of the features table; rows of no sample are left out.
    attack
        An attack on samples.
    *key
        ``target_id``: to all of a target's rows together; and ``sample_index``: to each sample as
        if it were the only one.

    Returns
    -------
    LazyFrame
        The key and Float64 ``value``, null where undefined; in any order.
    """
    value = pl.col("value").cast(pl.Float64)
    return (
        features.filter(pl.col("words_candidate").is_not_null())
        .group_by(key)
        .agg(value=attack.expr)
        .with_columns(value=pl.when(value.is_finite()).then(value))
    )
