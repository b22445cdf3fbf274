"""Which targets' errors move together."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

__all__ = ["find_clusters"]


def find_clusters(
    scores: pl.LazyFrame, counts: pl.Expr, attacks: Sequence[str]
) -> NDArray[np.int32] | None:
    """Find the cluster of each target: the group, else the document, else the target itself.

    A document without an identifier is the targets from one ``window_index`` of 0 to the next.

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
    names = scores.collect_schema().names()
    windowed = "window_index" in names
    number = (pl.col("window_index") == 0).cum_sum() if windowed else pl.int_range(pl.len())
    known = [
        pl.format(name[0] + "{}", pl.col(name))
        for name in ("group", "document_id")
        if name in names
    ]
    found = (
        scores.with_columns(cluster=pl.coalesce(*known, pl.format("n{}", number)))
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
