"""Parts as one table: of a sample that was tried again, only what came of it last counts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from mia_batch import tables
from mia_batch.schemas import Features, Samples

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["scan_features", "scan_samples"]

_KEY = pl.col("target_id", "sample_index")


def scan_samples(folder: Path) -> pl.LazyFrame:
    """Open the samples table of a folder of parts, less what a later attempt replaced.

    Parameters
    ----------
    folder
        The parts.

    Returns
    -------
    LazyFrame
        The rows in the order of the parts' names. Of a sample that failed and was tried again
        the rows with a ``reason`` are left out where there is one without; among several with a
        ``reason`` the last stays.
    """
    return _without_replaced(tables.scan(folder, Samples), pl.col("reason").is_not_null())


def scan_features(folder: Path) -> pl.LazyFrame:
    """Open the features table of a folder of parts, less what a later attempt replaced.

    Parameters
    ----------
    folder
        The parts.

    Returns
    -------
    LazyFrame
        The rows of `scan_samples`, as features.
    """
    return _without_replaced(tables.scan(folder, Features), pl.col("words_candidate").is_null())


def _without_replaced(table: pl.LazyFrame, failed: pl.Expr) -> pl.LazyFrame:
    """Leave replaced rows out; where no sample failed, this reads one column and nothing else."""
    if not table.select(failed.any()).collect(engine="streaming").item():
        return table
    rows = table.with_row_index("row").select("row", _KEY, failed=failed)
    lost = rows.filter("failed").select(_KEY).unique()
    replaced = (
        rows.join(lost, on=_KEY, how="semi")
        .sort(_KEY, ~pl.col("failed"), "row")
        .filter("failed", pl.all_horizontal(_KEY.shift(-1) == _KEY))
        .select("row")
        .collect(engine="streaming")
    )
    if replaced.is_empty():
        return table
    kept = table.with_row_index("row").join(
        replaced.lazy(), on="row", how="anti", maintain_order="left"
    )
    return kept.drop("row")
