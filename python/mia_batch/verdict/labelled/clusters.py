"""Which targets' errors move together."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from mia_batch.verdict.clusters import cluster_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

__all__ = ["find_clusters"]


def find_clusters(
    scores: pl.LazyFrame, counts: pl.Expr, attacks: Sequence[str]
) -> NDArray[np.int32] | None:
    """Find the cluster of each target, as `cluster_name` says.

    Parameters
    ----------
    scores
        The scores table, in its order.
    counts
        Which targets count.
    attacks
        Names of the attacks' columns.

    Returns
    -------
    ndarray
        Int32, cluster of each target that counts, from 0, none left out; null where no cluster
        has two of them that any attack scored.
    """
    found = (
        scores.with_columns(cluster=cluster_name(scores.collect_schema().names()))
        .filter(counts)
        .select(
            "cluster", scored=pl.any_horizontal(pl.col(attacks).is_finite().fill_null(value=False))
        )
        .with_columns(cluster=pl.col("cluster").rank("dense").cast(pl.Int32) - 1)
        .collect()
    )
    if not found.filter("scored")["cluster"].is_duplicated().any():
        return None
    return found["cluster"].to_numpy()
