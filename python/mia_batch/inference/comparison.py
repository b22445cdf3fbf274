"""Which rows of a table are compared with which, and which of them belong together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from mia_batch.tables.numbers import read_numbers
from mia_batch.targets.clusters import cluster_names

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["ComparisonSets", "read_comparison_sets"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonSets:
    """Rows of a table of targets or scores, in the table's order, by what they are for."""

    target_id: pl.Series
    n_words: pl.Series  # null = unknown
    cluster: NDArray[np.int64]  # of every row: its index in `clusters`
    clusters: pl.DataFrame  # `level` and `key`, in the order of names; empty where not wanted
    targets: NDArray[np.int64]
    nulls: NDArray[np.int64]  # known to be outside the training data
    calibration_members: NDArray[np.int64]
    calibration_nonmembers: NDArray[np.int64]
    published: NDArray[np.int64]  # canaries
    controls: NDArray[np.int64]  # canaries that stayed unpublished

    def share_clusters(self, *sets: NDArray[np.int64]) -> bool:
        """Whether two rows of one of these sets belong to one cluster."""
        return any(np.unique(self.cluster[rows]).size < rows.size for rows in sets)


def read_comparison_sets(table: pl.LazyFrame, *, named: bool = True) -> ComparisonSets:
    """Sort the rows of targets or scores by role; without ``role`` every row is a target.

    The nulls are the rows of role ``non_member``; without any, the targets with ``member`` false,
    which are not among the targets then. Rows of role ``shot`` are in no set. If not ``named``,
    clusters have names only where two rows share one, or where there are canaries.
    """
    columns = table.collect_schema().names()
    role = pl.col("role") if "role" in columns else pl.lit("target")
    keys = table.select("target_id", "n_words", "member", role=role).collect(engine="streaming")
    names = table.select(cluster_names(table).alias("name"))
    named = named or bool((keys["role"] == "canary").any())
    cluster, clusters = _clusters(names, keys.height, named=named)

    def rows(role: str, *members: bool | None) -> NDArray[np.int64]:
        wanted = (pl.col("role") == role) & pl.any_horizontal(
            pl.col("member").eq_missing(member) for member in members
        )
        return keys.select(wanted.arg_true().cast(pl.Int64)).to_series().to_numpy()

    nulls = rows("non_member", True, False, None)
    asked: tuple[bool | None, ...] = (True, False, None)
    if not nulls.size:
        nulls, asked = rows("target", False), (True, None)
    return ComparisonSets(
        target_id=keys["target_id"],
        n_words=keys["n_words"],
        cluster=cluster,
        clusters=clusters,
        targets=rows("target", *asked),
        nulls=nulls,
        calibration_members=rows("calibration", True),
        calibration_nonmembers=rows("calibration", False),
        published=rows("canary", True),
        controls=rows("canary", False),
    )


def _clusters(
    names: pl.LazyFrame, size: int, *, named: bool
) -> tuple[NDArray[np.int64], pl.DataFrame]:
    """Find the cluster of each row by hashes: the names of all rows take much more memory."""
    of_rows = read_numbers(names, pl.col("name").hash(), size, np.uint64)
    ordered = np.sort(of_rows)
    if not named and not (ordered[1:] == ordered[:-1]).any():
        return np.arange(size), pl.DataFrame(schema={"level": pl.String, "key": pl.String})
    distinct = names.unique().collect(engine="streaming").sort("name")
    hashes = distinct["name"].hash().to_numpy()
    order = hashes.argsort()
    cluster = order[hashes[order].searchsorted(of_rows)]
    parts = pl.col("name").str.splitn(" ", 2).struct.rename_fields(["level", "key"])
    return cluster, distinct.select(parts).unnest("name")
