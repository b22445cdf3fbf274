"""Parts as one table: of a sample that was tried again, only what came of it last counts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from mia_batch import tables
from mia_batch.schemas import Features, LogProbs, Samples

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["scan_features", "scan_logprobs", "scan_samples"]

_SAMPLE = ("target_id", "sample_index")
_TEXT = ("target_id", "model_role", "view", "view_index")


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
    samples = tables.scan(folder, Samples)
    return _without_replaced(samples, pl.col("reason").is_not_null(), _SAMPLE)


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
    features = tables.scan(folder, Features)
    return _without_replaced(features, pl.col("words_candidate").is_null(), _SAMPLE)


def scan_logprobs(folder: Path) -> pl.LazyFrame:
    """Open the logprobs table of a folder of parts, less what a later attempt replaced.

    Parameters
    ----------
    folder
        The parts.

    Returns
    -------
    LazyFrame
        The rows block by block; which of several attempts counts is as in `scan_samples`.
    """
    logprobs = tables.scan(folder, LogProbs)
    return _without_replaced(logprobs, pl.col("reason").is_not_null(), _TEXT)


def _without_replaced(table: pl.LazyFrame, failed: pl.Expr, names: tuple[str, ...]) -> pl.LazyFrame:
    """Leave replaced rows out; where none failed, this reads one column and nothing else."""
    key = pl.col(names)
    if not table.select(failed.any()).collect(engine="streaming").item():
        return table
    rows = table.with_row_index("row").select("row", key, failed=failed)
    lost = rows.filter("failed").select(key).unique()
    replaced = (
        rows.join(lost, on=names, how="semi")
        .sort(key, ~pl.col("failed"), "row")
        .filter("failed", pl.all_horizontal(key.shift(-1) == key))
        .select("row")
        .collect(engine="streaming")
    )
    if replaced.is_empty():
        return table
    kept = table.with_row_index("row").join(
        replaced.lazy(), on="row", how="anti", maintain_order="left"
    )
    return kept.drop("row")
