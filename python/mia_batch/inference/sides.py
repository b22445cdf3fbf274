"""Who is compared with whom: the rows of each side, and which of them belong together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from mia_batch.tables.numbers import read_numbers
from mia_batch.targets.clusters import cluster_names

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Sides", "read_sides"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sides:
    """Rows of a table of targets or scores by what they are for.

    Attributes
    ----------
    target_id
        Name of every row's target.
    n_words
        Words of every row's target; null = unknown.
    cluster
        Which cluster every row belongs to, int64: positions in ``clusters``.
    clusters
        The clusters, in the order of their names: ``level`` and ``key``, the two parts of
        ``cluster_name``; empty where names are not wanted and each row is a cluster.
    targets
        Rows whose membership is asked, rising.
    nulls
        Rows known to be outside the training data: role ``non_member``, or without any, rows of
        role ``target`` with ``member`` false, which are not among the targets then.
    calibration_members
        Rows of role ``calibration`` with ``member`` true.
    calibration_nonmembers
        Rows of role ``calibration`` with ``member`` false.
    published
        Rows of role ``canary`` with ``member`` true.
    twins
        Rows of role ``canary`` with ``member`` false.
    """

    target_id: pl.Series
    n_words: pl.Series
    cluster: NDArray[np.int64]
    clusters: pl.DataFrame
    targets: NDArray[np.int64]
    nulls: NDArray[np.int64]
    calibration_members: NDArray[np.int64]
    calibration_nonmembers: NDArray[np.int64]
    published: NDArray[np.int64]
    twins: NDArray[np.int64]

    def shares(self, *sides: NDArray[np.int64]) -> bool:
        """Whether two rows of one of these sides belong to one cluster."""
        return any(np.unique(self.cluster[rows]).size < rows.size for rows in sides)


def read_sides(table: pl.LazyFrame, *, named: bool = True) -> Sides:
    """Sort the rows of a table by what they are for.

    Parameters
    ----------
    table
        Targets, or scores with the targets' ``role``: without it every row has role ``target``.
        Other columns read are ``target_id``, ``document_id``, ``group``, ``member``,
        ``window_index`` and ``n_words``.
    named
        Whether the names of clusters are wanted even where no two rows share one.

    Returns
    -------
    Sides
        Rows are numbered in the table's order. Rows of role ``shot`` are on no side.
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
    return Sides(
        target_id=keys["target_id"],
        n_words=keys["n_words"],
        cluster=cluster,
        clusters=clusters,
        targets=rows("target", *asked),
        nulls=nulls,
        calibration_members=rows("calibration", True),
        calibration_nonmembers=rows("calibration", False),
        published=rows("canary", True),
        twins=rows("canary", False),
    )


def _clusters(
    names: pl.LazyFrame, size: int, *, named: bool
) -> tuple[NDArray[np.int64], pl.DataFrame]:
    """Find which cluster each row belongs to, and the clusters.

    Rows are told by hashes, for the names of all rows take much more room.
    """
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
