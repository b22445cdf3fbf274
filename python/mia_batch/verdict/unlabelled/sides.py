"""Who is compared with whom: the rows of each side, and which of them belong together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from mia_batch.verdict.clusters import cluster_name

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
        ``cluster_name``.
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


def read_sides(table: pl.LazyFrame) -> Sides:
    """Sort the rows of a table by what they are for.

    Parameters
    ----------
    table
        Targets, or scores with the targets' ``role``: without it every row has role ``target``.
        Other columns read are ``target_id``, ``document_id``, ``group``, ``member``,
        ``window_index`` and ``n_words``.

    Returns
    -------
    Sides
        Rows are numbered in the table's order. Rows of role ``shot`` are on no side.
    """
    columns = table.collect_schema().names()
    role = pl.col("role").cast(pl.String) if "role" in columns else pl.lit("target")
    keys = table.select(
        "target_id", "n_words", "member", role=role, name=cluster_name(columns)
    ).collect(engine="streaming")

    def rows(role: str, *members: bool | None) -> NDArray[np.int64]:
        wanted = (pl.col("role") == role) & pl.any_horizontal(
            pl.col("member").eq_missing(member) for member in members
        )
        return keys.select(wanted.arg_true().cast(pl.Int64)).to_series().to_numpy()

    nulls = rows("non_member", True, False, None)
    asked: tuple[bool | None, ...] = (True, False, None)
    if not nulls.size:
        nulls, asked = rows("target", False), (True, None)
    parts = keys["name"].unique().sort().str.splitn(" ", 2).struct.rename_fields(["level", "key"])
    return Sides(
        target_id=keys["target_id"],
        n_words=keys["n_words"],
        cluster=keys["name"].rank("dense").to_numpy().astype(np.int64) - 1,
        clusters=parts.struct.unnest(),
        targets=rows("target", *asked),
        nulls=nulls,
        calibration_members=rows("calibration", True),
        calibration_nonmembers=rows("calibration", False),
        published=rows("canary", True),
        twins=rows("canary", False),
    )
