"""Which texts belong together, so that their errors do."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from mia_batch.tables.numbers import read_numbers

if TYPE_CHECKING:
    from collections.abc import Collection

    from numpy.typing import NDArray

__all__ = [
    "cluster_name",
    "cluster_names",
    "document_numbers",
    "owner_of_documents",
    "owner_of_targets",
]

_ROLE = pl.col("role").cast(pl.String).replace("copy", "target")  # windows of one document
_LEVELS = {"group": "group", "document": "document_id"}


def cluster_name(columns: Collection[str]) -> pl.Expr:
    """Name the cluster of each text: its group, else its document, else the text itself.

    A document without an identifier is the texts from one ``window_index`` of 0 to the next.
    """
    text = pl.col("target_id") if "target_id" in columns else pl.int_range(pl.len())
    if "window_index" in columns:
        text = pl.coalesce(pl.when(pl.col("window_index") == 0).then(text).forward_fill(), text)
    named = [pl.format(f"{level} {{}}", name) for level, name in _LEVELS.items() if name in columns]
    return pl.coalesce(*named, pl.format("target {}", text))


def cluster_names(table: pl.LazyFrame) -> pl.Expr:
    """Name the cluster of each text of a table, as `cluster_name` does.

    The expression works row by row, so that it streams, where every text has a group or document;
    the table is read once.
    """
    columns = table.collect_schema().names()
    named = [pl.col(name).is_not_null() for name in _LEVELS.values() if name in columns]
    everywhere = pl.any_horizontal(named).all() if named else pl.lit(value=False)
    if table.select(everywhere).collect(engine="streaming").item():
        columns = [name for name in columns if name != "window_index"]
    return cluster_name(columns)


def document_numbers(targets: pl.LazyFrame) -> NDArray[np.int32]:
    """Tell the document of every row by its number, from 0 in the table's order.

    Texts of other roles are other documents, whatever their ``document_id``.
    """
    keys = targets.select("role", "document_id", "window_index", "target_id")
    name = pl.format("{} {}", _ROLE, cluster_names(keys))
    size = int(keys.select(pl.len()).collect(engine="streaming").item())
    hashes = read_numbers(keys, name.hash(), size, np.uint64)
    begins = np.append(False, hashes[1:] != hashes[:-1])[:size]
    return begins.cumsum(dtype=np.int32)


def owner_of_documents(role: str) -> pl.Expr:
    """Name what a document belongs to: its group, else itself, by its name or its ``place``.

    Places are counted from 1 among the documents of a role.
    """
    return _owner(pl.lit(role), pl.col("place"))


def owner_of_targets() -> pl.Expr:
    """Name what a target belongs to, as `owner_of_documents` does of its document."""
    return _owner(_ROLE, (pl.col("window_index") == 0).cum_sum().over(_ROLE))


def _owner(role: pl.Expr, place: pl.Expr) -> pl.Expr:
    return pl.coalesce(
        pl.format("group {}", "group"),
        pl.format("{} document {}", role, "document_id"),
        pl.format("{} number {}", role, place),
    )
