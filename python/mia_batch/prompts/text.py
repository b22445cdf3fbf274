"""Prompts that are about the whole target."""

from __future__ import annotations

import polars as pl

from mia_batch.prompts.shots import BETWEEN

__all__ = ["lowercase", "pairs", "repeated", "text"]


def text(targets: pl.DataFrame) -> pl.DataFrame:
    """Take the target as it is."""
    return targets.select("target_id", cut=pl.lit(0))


def repeated(targets: pl.DataFrame) -> pl.DataFrame:
    """Take the target behind itself, a blank line between; its tokens stay what they are."""
    return targets.select("target_id", cut=pl.lit(0), context=pl.col("target") + BETWEEN)


def lowercase(targets: pl.DataFrame) -> pl.DataFrame:
    """Put the target in Unicode's lower case: Carlini et al. (2021), arXiv:2012.07805, 5.2."""
    lower = pl.Series([target.lower() for target in targets["target"]], dtype=pl.String)
    return targets.select("target_id", context=pl.lit(""), text=lower)


def pairs(targets: pl.DataFrame, *, n: int) -> pl.DataFrame:
    """Take the target as it is, twice for each of ``n`` pairs, which differ in how it is read."""
    index = pl.lit(list(range(2 * n)), dtype=pl.List(pl.UInt32))
    return targets.select("target_id", cut=pl.lit(0), view_index=index).explode("view_index")
