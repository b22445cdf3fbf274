"""Comparison texts that are near copies of each other, which count as one group."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from mia_batch.diagnostics.preflight import asked_texts, hash_runs
from mia_batch.stats import Ints
from mia_batch.targets import cluster_names

# How the groups of such texts begin, before the name of the first
NEAR_COPIES = "near copies of "

# A text is recognised by the lowest hashes of its runs of 3 words, a sketch: Broder
# (1997), "On the resemblance and containment of documents". The share of a sketch that
# another text has is about that of the runs. Texts that only have a subject in common
# share one or two runs in a hundred; two copies in each of which one word in ten was
# changed share half of them.
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
    """Group comparison texts that are copies of each other.

    Memory: about a gigabyte for a million texts; time grows with their number.
    """
    if not _has_asked(targets):
        return targets
    is_compared = ~asked_texts(targets)
    clusters = targets.select(cluster=cluster_names(targets), is_compared=is_compared)
    names, cluster_of_text = _number_clusters(clusters)
    if len(names) < 2:
        return targets
    texts = targets.filter(is_compared).select(pl.col("target").str.to_lowercase())
    first_copy = _first_copies(_sketch(texts, cluster_of_text, len(names)))
    is_copy = first_copy != np.arange(first_copy.size)
    is_copy[first_copy[is_copy]] = True
    if not is_copy.any():
        return targets
    first_names = names.gather(first_copy[is_copy]).str.splitn(" ", 2).struct[1]
    copies = pl.LazyFrame(
        {
            "cluster": names.filter(pl.Series(is_copy)),
            "copies": NEAR_COPIES + first_names,
        }
    )
    cluster = pl.when(is_compared).then(cluster_names(targets))
    joined = targets.with_columns(cluster=cluster).join(
        copies, on="cluster", how="left", maintain_order="left"
    )
    grouped = joined.with_columns(group=pl.coalesce("copies", "group"))
    return grouped.select(targets.collect_schema().names())


def near_copy_rows(targets: pl.LazyFrame) -> Iterator[dict[str, Any]]:
    """Build rows of check ``near_copies``: numbers of copies, groups and texts."""
    is_compared = ~asked_texts(targets)
    is_copy = pl.col("group").str.starts_with(NEAR_COPIES)
    copies = pl.col("group").filter(is_copy)
    texts = targets.filter(is_compared, pl.col("target").is_not_null())
    counts = texts.select(
        n_copies=is_copy.sum(),
        n_groups=copies.n_unique(),
        n_texts=pl.len(),
        example=copies.first(),
    )
    values = counts.collect(engine="streaming").row(0, named=True)
    example = values.pop("example")
    if example is None:
        return
    for statistic, value in values.items():
        yield {
            "check": "near_copies",
            "reason": example,
            "subject": "non_members",
            "statistic": statistic,
            "value": value,
        }


def _has_asked(targets: pl.LazyFrame) -> bool:
    is_asked = (pl.col("role") == "target") & pl.col("member").is_null()
    return bool(targets.select(is_asked.any()).collect(engine="streaming").item())


def _number_clusters(clusters: pl.LazyFrame) -> tuple[pl.Series, Ints]:
    """Return the clusters of the compared texts, in order, and each text's number."""
    compared = clusters.filter("is_compared").select("cluster")
    texts = compared.collect(engine="streaming")
    names = texts["cluster"].unique(maintain_order=True)
    numbers = pl.DataFrame({"cluster": names}).with_row_index("number")
    numbered = texts.join(numbers, on="cluster", how="left", maintain_order="left")
    return names, numbered["number"].to_numpy()


def _sketch(
    texts: pl.LazyFrame,
    cluster_of_text: Ints,
    n_clusters: int,
) -> _Sketches:
    """Keep the lowest hashes of the runs of each cluster."""
    n_kept = int(np.clip(_MOST_HASHES // n_clusters, *_SKETCH_SIZES))
    chunks = [(np.empty(0, np.uint32), np.empty(0, np.uint64))]
    start = 0
    for batch in texts.collect_batches(chunk_size=_ROWS_AT_ONCE, maintain_order=True):
        for frame in batch.iter_slices(_ROWS_AT_ONCE):
            lower = frame.to_series().fill_null("")
            hashes, rows = hash_runs(lower, _RUN_WORDS)
            cluster = cluster_of_text[start + rows].astype(np.uint32)
            chunks.append(_keep_lowest(cluster, _mix(hashes), n_kept))
            start += frame.height
    cluster, hashes = (np.concatenate(arrays) for arrays in zip(*chunks, strict=True))
    chunks.clear()
    if cluster_of_text.size > n_clusters:  # a cluster may have texts in several chunks
        cluster, hashes = _keep_lowest(cluster, hashes, n_kept)
    sizes = np.bincount(cluster, minlength=n_clusters)
    return _Sketches(cluster, hashes, sizes)


def _keep_lowest(
    text: _Texts,
    hashes: _Hashes,
    n_kept: int,
) -> tuple[_Texts, _Hashes]:
    """Keep the lowest hashes of each text, each once."""
    order = np.lexsort((hashes, text))
    text, hashes = text[order], hashes[order]
    is_new = np.ones(text.size, np.bool_)
    is_new[1:] = (text[1:] != text[:-1]) | (hashes[1:] != hashes[:-1])
    text, hashes = text[is_new], hashes[is_new]
    starts = np.searchsorted(text, text, side="left")
    is_low = np.arange(text.size) - starts < n_kept
    return text[is_low], hashes[is_low]


def _mix(hashes: _Hashes) -> _Hashes:
    """Spread hashes over all numbers, so that the lowest are drawn as by lot."""
    mixed = (hashes ^ (hashes >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    return mixed ^ (mixed >> np.uint64(31))


def _first_copies(sketches: _Sketches) -> Ints:
    """Find for each text the first text that near copies link it with, or itself."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    n_texts = sketches.size.size
    if not sketches.hash.size:
        return np.arange(n_texts)
    copy, original, n_shared = _count_shared(sketches)
    smaller = np.minimum(sketches.size[original], sketches.size[copy])
    # A third, and what chance adds to a share as large as that of a passage in common.
    n_needed = (smaller + 1.5 * np.sqrt(smaller)) / 3
    is_copy = (smaller >= _LEAST_SIZE) & (n_shared >= n_needed)
    edges = (original[is_copy], copy[is_copy])
    weights = np.ones(edges[0].size, np.int8)
    graph = coo_array((weights, edges), shape=(n_texts, n_texts))
    _, component = connected_components(graph, directed=False)
    _, first_text, number = np.unique(component, return_index=True, return_inverse=True)
    first_copies: Ints = first_text[number]
    return first_copies


def _count_shared(sketches: _Sketches) -> tuple[Ints, Ints, Ints]:
    """Count the hashes that texts share with the first text that has them.

    Of all texts with one hash each is compared with the first alone: as many pairs as
    hashes. Returns texts, first texts and the numbers.
    """
    # Texts of one hash stay in their order
    order = np.argsort(sketches.hash, kind="stable")
    hashes = sketches.hash[order]
    is_same = hashes[1:] == hashes[:-1]
    is_repeated = np.append(is_same, False)
    is_repeated[1:] |= is_same
    hashes = hashes[is_repeated]
    text = sketches.text[order[is_repeated]].astype(np.int64)
    is_first = np.ones(hashes.size, np.bool_)
    is_first[1:] = hashes[1:] != hashes[:-1]
    first = text[np.flatnonzero(is_first)][is_first.cumsum() - 1]
    n_texts = sketches.size.size
    codes = first[~is_first] * n_texts + text[~is_first]
    pairs, n_shared = np.unique(codes, return_counts=True)
    original, copy = np.divmod(pairs, n_texts)
    return copy, original, n_shared
