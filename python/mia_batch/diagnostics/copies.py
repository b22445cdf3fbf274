"""Texts that stand in a corpus more than once, and yet count as independent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from mia_batch.targets.clusters import cluster_names

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Copies", "find_copies"]

_WORTH_SAYING = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Copies:
    """Texts that another cluster has, too.

    Attributes
    ----------
    n_texts
        Texts compared.
    n_copies
        Texts that stand in another cluster word for word; each of two equal texts is one.
    """

    n_texts: int
    n_copies: int

    @property
    def warning(self) -> str | None:
        """What they do to intervals and p-values; null below one in a hundred texts."""
        if self.n_copies < max(1, _WORTH_SAYING * self.n_texts):
            return None
        return (
            f"{self.n_copies:,} of {self.n_texts:,} texts stand in another group or document, too, "
            "word for word: their errors move together, but intervals and p-values count them as "
            "independent. Give copies the same group, or keep one of each."
        )


def find_copies(texts: pl.LazyFrame) -> Copies:
    """Find texts that stand, byte for byte, in more than one cluster.

    Parameters
    ----------
    texts
        ``target`` (the text) and the columns of `cluster_name`; null texts are left out.

    Returns
    -------
    Copies
        Texts are told by 64-bit hashes, of all roles alike.
    """
    clusters = texts.with_columns(cluster=cluster_names(texts))
    known = clusters.filter(pl.col("target").is_not_null())
    hashes = known.select(pl.col("target").hash(), pl.col("cluster").hash())
    target, cluster = (column.to_numpy() for column in hashes.collect(engine="streaming"))
    return Copies(n_texts=target.size, n_copies=_count(target, cluster))


def _count(text: NDArray[np.uint64], cluster: NDArray[np.uint64]) -> int:
    """Count texts whose equals are of more than one cluster."""
    if not text.size:
        return 0
    order = np.lexsort((cluster, text))
    text, cluster = text[order], cluster[order]
    is_same = text[1:] == text[:-1]
    starts = np.flatnonzero(np.append(True, ~is_same))
    is_elsewhere = np.append(False, is_same & (cluster[1:] != cluster[:-1]))
    sizes = np.diff(np.append(starts, text.size))
    return int(sizes[np.logical_or.reduceat(is_elsewhere, starts)].sum())
