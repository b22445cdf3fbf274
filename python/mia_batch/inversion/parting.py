"""Which texts the attacker knows, and which are under attack."""

from __future__ import annotations

from hashlib import blake2b

import numpy as np
import polars as pl

from mia_batch.errors import CorpusError

__all__ = ["part"]

_KEY_BYTES = 64


def part(documents: pl.DataFrame, share: float, seed: int) -> pl.DataFrame:
    """Add ``cluster`` and ``auxiliary``: whether a text is the attacker's own.

    Texts of one group go together, and so do equal texts, with all of their groups: these are the
    clusters, coded from 0. They are taken in the order of a hash of seed and cluster until the
    share of the texts is reached, so that the order of the rows plays no part.

    Raises `CorpusError` if either side is left without a text.
    """
    clustered = documents.with_columns(cluster=_clusters(documents))
    named = clustered.group_by("cluster").agg(
        pl.col("group").fill_null("").min(), pl.col("text").min(), n=pl.len()
    )
    key = str(seed).encode()[:_KEY_BYTES]
    hashes = [
        blake2b(f"{group}\0{text}".encode(), key=key).hexdigest()
        for group, text in named.select("group", "text").iter_rows()
    ]
    order = named.with_columns(hash=pl.Series(hashes)).sort("hash", "cluster")
    before = pl.col("n").cum_sum() - pl.col("n")
    taken = order.select("cluster", auxiliary=before < share * documents.height)
    if taken["auxiliary"].all() or not taken["auxiliary"].any():
        msg = (
            f"the texts are {named.height} groups, which cannot be dealt out to an attacker and an "
            "attacked side; give texts of more groups"
        )
        raise CorpusError(msg)
    return clustered.join(taken, on="cluster", how="left", maintain_order="left")


def _clusters(documents: pl.DataFrame) -> pl.Series:
    """Give what hangs together by group or by text one number."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    n = documents.height
    text = documents["text"].rank("dense").to_numpy().astype(np.intp) - 1
    alone = pl.col("group").is_null()
    group = documents.select(
        pl.when(alone).then(None).otherwise(pl.col("group").rank("dense"))
    ).to_series()
    known = group.is_not_null().to_numpy()
    code = group.fill_null(0).to_numpy().astype(np.intp) - 1
    first = int(text.max()) + 1
    edges = (text[known], first + code[known])
    size = first + n
    graph = coo_array((np.ones(len(edges[0])), edges), shape=(size, size))
    _, component = connected_components(graph, directed=False)
    return pl.Series("cluster", component[text]).rank("dense").cast(pl.Int64) - 1
