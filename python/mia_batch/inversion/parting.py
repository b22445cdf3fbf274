"""Which texts the attacker knows, and which are under attack."""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from mia_batch.errors import CorpusError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["deal", "part"]

_KEY_BYTES = 64


def part(documents: pl.DataFrame, share: float, seed: int) -> pl.DataFrame:
    """Add ``cluster`` and ``auxiliary``: whether a text is the attacker's own.

    Texts of one group go together, and so do equal texts, with all of their groups: these are the
    clusters, coded from 0. In the order of a hash of seed and cluster each becomes auxiliary that
    brings the number of auxiliary texts nearer to the share. The order of the rows plays no part.

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
    left, chosen = share * documents.height, []
    for n in order["n"]:
        chosen.append(n < 2 * left)
        left -= n * chosen[-1]
    taken = order.select("cluster", auxiliary=pl.Series(chosen))
    if taken["auxiliary"].all() or not taken["auxiliary"].any():
        msg = (
            f"the texts are {named.height} groups, which cannot be dealt out to an attacker and an "
            "attacked side; give texts of more groups"
        )
        raise CorpusError(msg)
    return clustered.join(taken, on="cluster", how="left", maintain_order="left")


def deal(
    documents: pl.DataFrame,
    share: float,
    seed: int,
    encode: Callable[[list[str]], list[list[int]]],
    most: int,
) -> pl.DataFrame:
    """Say of documents who is auxiliary (see `part`), and by a ``reason`` who cannot be used.

    ``encode`` is the decoder's, which takes at most so many tokens. Rows without a text are none
    of the attacker's, and have no cluster.
    """
    is_text = pl.col("text").str.contains(r"\S").fill_null(value=False)
    there, empty = documents.filter(is_text), documents.filter(~is_text)
    if there.is_empty():
        msg = "there is no text in the data; give some"
        raise CorpusError(msg)
    lengths = pl.Series(map(len, encode(there["text"].to_list())), dtype=pl.Int64)
    too_long = pl.format(
        "the text has {} tokens, more than max_tokens, which is {}", lengths, pl.lit(most)
    )
    dealt = part(there, share, seed).with_columns(
        reason=pl.when(lengths > most)
        .then(too_long)
        .when(lengths == 0)
        .then(pl.lit("the decoder's tokenizer finds no token in the text"))
    )
    lacks = empty.with_columns(auxiliary=pl.lit(False), reason=pl.lit("there is no text"))
    return pl.concat([dealt, lacks], how="diagonal").sort("row")


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
