"""Comparison texts that are near copies of each other, which count as one group."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from mia_batch.diagnostics.preflight import asked_texts, hash_runs
from mia_batch.stats import Ints
from mia_batch.targets import cluster_names

NEAR_COPIES = (  # how the groups of such texts begin, before the name of the first
    "near copies of "
)

# A text is known by the lowest hashes of its runs of 3 words, a sketch: Broder (1997),
# "On the resemblance and containment of documents". The share of a sketch that another
# text has is about that of the runs. Texts that only have a subject in common share one
# or two runs in a hundred; two copies in each of which one word in ten was changed
# share half of them.
_RUN_WORDS, _LEAST_SIZE = 3, 4
_MOST_HASHES, _SKETCH_SIZES = 12_000_000, (12, 48)  # of all texts, and of one
_ROWS_AT_ONCE = 4_096
_Hashes = NDArray[np.uint64]
_Texts = NDArray[np.uint32]


class _Sketches(NamedTuple):
    """The sketches of all texts, a row for each hash."""

    text: _Texts
    hash: _Hashes
    size: Ints  # of the sketch of each text


def with_near_copies(targets: pl.LazyFrame) -> pl.LazyFrame:
    """Give comparison texts that are copies of each other one group.

    Memory: about a gigabyte for a million texts; time grows with their number.
    """
    if not _is_asked(targets):
        return targets
    compared_with = ~asked_texts(targets)
    clusters = targets.select(cluster=cluster_names(targets), is_compared=compared_with)
    names, of_text = _number_clusters(clusters)
    if len(names) < 2:
        return targets
    texts = targets.filter(compared_with).select(pl.col("target").str.to_lowercase())
    sketches = _sketch(texts, of_text, len(names))
    groups = _groups_of_copies(sketches)
    in_groups = groups != np.arange(groups.size)
    in_groups[groups[in_groups]] = True
    if not in_groups.any():
        return targets
    firsts = names.gather(groups[in_groups]).str.splitn(" ", 2).struct[1]
    group_of_cluster = pl.LazyFrame(
        {"cluster": names.filter(pl.Series(in_groups)), "copies": NEAR_COPIES + firsts}
    )
    named = targets.with_columns(
        cluster=pl.when(compared_with).then(cluster_names(targets)),
    )
    joined = named.join(
        group_of_cluster, on="cluster", how="left", maintain_order="left"
    )
    group = pl.coalesce("copies", "group").alias("group")
    return joined.with_columns(group).select(targets.collect_schema().names())


def near_copy_rows(targets: pl.LazyFrame) -> Iterator[dict[str, Any]]:
    """Rows of check ``near_copies``: how many comparison texts are in how many groups of copies."""
    compared_with = ~asked_texts(targets)
    is_copy = pl.col("group").str.starts_with(NEAR_COPIES)
    counts = targets.filter(compared_with, pl.col("target").is_not_null()).select(
        n_copies=is_copy.sum(),
        n_groups=pl.col("group").filter(is_copy).n_unique(),
        n_texts=pl.len(),
        example=pl.col("group").filter(is_copy).first(),
    )
    found = counts.collect(engine="streaming").row(0, named=True)
    example = found.pop("example")
    if example is None:
        return
    for statistic, value in found.items():
        row = {"subject": "non_members", "statistic": statistic, "value": value}
        yield {"check": "near_copies", "reason": example, **row}


def _is_asked(targets: pl.LazyFrame) -> bool:
    is_asked = (pl.col("role") == "target") & pl.col("member").is_null()
    return bool(targets.select(is_asked.any()).collect(engine="streaming").item())


def _number_clusters(clusters: pl.LazyFrame) -> tuple[pl.Series, Ints]:
    """Return the clusters of the compared texts in their order, and the place of each text's."""
    compared = (
        clusters.filter("is_compared").select("cluster").collect(engine="streaming")
    )
    names = compared["cluster"].unique(maintain_order=True)
    number = pl.DataFrame({"cluster": names}).with_row_index("number")
    numbered = compared.join(number, on="cluster", how="left", maintain_order="left")
    return names, numbered["number"].to_numpy()


def _sketch(texts: pl.LazyFrame, of_text: Ints, n_clusters: int) -> _Sketches:
    """Keep the lowest hashes of the runs of each cluster."""
    most = int(np.clip(_MOST_HASHES // n_clusters, *_SKETCH_SIZES))
    text, hashes = np.empty(0, np.uint32), np.empty(0, np.uint64)
    parts = [(text, hashes)]
    start = 0
    for batch in texts.collect_batches(chunk_size=_ROWS_AT_ONCE, maintain_order=True):
        for piece in batch.iter_slices(_ROWS_AT_ONCE):
            found, rows = hash_runs(piece.to_series().fill_null(""), _RUN_WORDS)
            parts.append(
                _lowest(of_text[start + rows].astype(np.uint32), _mixed(found), most)
            )
            start += piece.height
    text, hashes = (np.concatenate(column) for column in zip(*parts, strict=True))
    parts.clear()
    if of_text.size > n_clusters:  # a cluster may have texts in several parts
        text, hashes = _lowest(text, hashes, most)
    return _Sketches(text, hashes, np.bincount(text, minlength=n_clusters))


def _lowest(text: _Texts, hashes: _Hashes, most: int) -> tuple[_Texts, _Hashes]:
    """Keep the lowest hashes of each text, each once."""
    order = np.lexsort((hashes, text))
    text, hashes = text[order], hashes[order]
    is_new = np.ones(text.size, np.bool_)
    is_new[1:] = (text[1:] != text[:-1]) | (hashes[1:] != hashes[:-1])
    text, hashes = text[is_new], hashes[is_new]
    starts = np.searchsorted(text, text, side="left")
    is_low = np.arange(text.size) - starts < most
    return text[is_low], hashes[is_low]


def _mixed(hashes: _Hashes) -> _Hashes:
    """Spread hashes over all numbers, so that the lowest are drawn as by lot."""
    mixed = (hashes ^ (hashes >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    return mixed ^ (mixed >> np.uint64(31))


def _groups_of_copies(sketches: _Sketches) -> Ints:
    """Return of each text the first text that it is linked with by near copies, or itself."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    n_texts = sketches.size.size
    if not sketches.hash.size:
        return np.arange(n_texts)
    # Texts of one hash stay in their order
    order = np.argsort(sketches.hash, kind="stable")
    hashes = sketches.hash[order]
    is_same = hashes[1:] == hashes[:-1]
    is_repeated = np.append(is_same, False)
    is_repeated[1:] |= is_same
    hashes, text = (
        hashes[is_repeated],
        sketches.text[order[is_repeated]].astype(np.int64),
    )
    is_first = np.ones(hashes.size, np.bool_)
    is_first[1:] = hashes[1:] != hashes[:-1]
    first = text[np.flatnonzero(is_first)][is_first.cumsum() - 1]
    # Of all texts with one hash each is compared with the first alone: as many pairs as
    # hashes.
    pairs, n_shared = np.unique(
        first[~is_first] * n_texts + text[~is_first], return_counts=True
    )
    one, other = np.divmod(pairs, n_texts)
    smaller = np.minimum(sketches.size[one], sketches.size[other])
    # A third, and what chance adds to a share as large as that of a passage in common.
    needed = (smaller + 1.5 * np.sqrt(smaller)) / 3
    is_copy = (smaller >= _LEAST_SIZE) & (n_shared >= needed)
    edges = (one[is_copy], other[is_copy])
    graph = coo_array(
        (np.ones(edges[0].size, np.int8), edges), shape=(n_texts, n_texts)
    )
    part = connected_components(graph, directed=False)[1]
    _, first_of_part, number = np.unique(part, return_index=True, return_inverse=True)
    linked: Ints = first_of_part[number]
    return linked
