"""Which targets' errors move together."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from mia_batch.tables.numbers import read_numbers
from mia_batch.targets.clusters import cluster_names

if TYPE_CHECKING:
    from collections.abc import Sequence

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
        Int32, cluster of each target that counts, from 0, none left out; None where no cluster
        has two of them that any attack scored.
    """
    found = (
        scores.with_columns(cluster=cluster_names(scores))
        .filter(counts)
        .select(
            "cluster", scored=pl.any_horizontal(pl.col(attacks).is_finite().fill_null(value=False))
        )
    )
    # Names of all targets take much more room than their hashes.
    hashes = found.filter("scored").select(pl.col("cluster").hash()).collect(engine="streaming")
    ordered = np.sort(hashes.to_series().to_numpy())
    if not (ordered[1:] == ordered[:-1]).any():
        return None
    distinct = (
        found.select(pl.col("cluster").unique()).collect(engine="streaming").to_series().sort()
    )
    size = found.select(pl.len()).collect(engine="streaming").item()
    code = pl.col("cluster").cast(pl.Enum(distinct)).to_physical()
    return read_numbers(found, code, size, np.int32)
