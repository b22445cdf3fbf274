"""Attacks on each sample alone, and on a second draw of samples."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

if TYPE_CHECKING:
    from mia_batch.attacks.attack import Attack

__all__ = ["score_draw", "score_samples"]


def score_samples(features: pl.LazyFrame, attack: Attack) -> pl.LazyFrame:
    """Apply an attack to each sample as if it were the only one.

    Parameters
    ----------
    features
        Rows of the features table; rows of no sample are left out.
    attack
        An attack on samples.

    Returns
    -------
    LazyFrame
        ``target_id``, ``sample_index`` and Float64 ``value``, null where undefined; in any order.
    """
    return _values(features, attack, "target_id", "sample_index")


def score_draw(features: pl.LazyFrame, attack: Attack) -> pl.LazyFrame:
    """Apply an attack to some samples of each target.

    Parameters
    ----------
    features
        Rows of the features table; rows of no sample are left out.
    attack
        An attack on samples.

    Returns
    -------
    LazyFrame
        ``target_id`` and Float64 ``value``, null where undefined; in any order.
    """
    return _values(features, attack, "target_id")


def _values(features: pl.LazyFrame, attack: Attack, *key: str) -> pl.LazyFrame:
    value = pl.col("value").cast(pl.Float64)
    return (
        features.filter(pl.col("words_candidate").is_not_null())
        .group_by(key)
        .agg(value=attack.expr)
        .with_columns(value=pl.when(value.is_finite()).then(value))
    )
