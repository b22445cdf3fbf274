"""Authors, a level above books: books of one author move together, so they count once."""

import re
import unicodedata

import numpy as np
import polars as pl
from numpy.typing import NDArray

from mia_batch.stats import Ints
from mia_batch.tables import read_numbers

UNKNOWN = -1
NAME_TYPES = (pl.String, pl.Categorical, pl.Enum)
_SEPARATOR = re.compile(r"[;&|\n]|\b(?:and|und|et)\b")
_YEARS_OF_LIFE = re.compile(r"[,(]\s*\d{3,4}\??\s*[-\u2013]\s*(?:\d{3,4}\??)?")
_WORDS = re.compile(r"[^\W_]+")
# What stands in the place of an author where none is named; words in their order
_NOBODY = {
    "",
    "anonymous",
    "anon",
    "anonym",
    "anonyme",
    "various",
    "unknown",
    "unbekannt",
    "none",
    "authors various",
    "author unknown",
    "a n",
    "inconnu",
    "several",
    "et al",
    "al",
    "others",
}
_AUDITED = ("target", "non_member", "calibration")


def author_keys(name: str) -> set[str]:
    """Return a key for each author in a name, in whatever order its words are.

    >>> sorted(author_keys("Austen, Jane, 1775-1817; BRONTË, Emily"))
    ['austen jane', 'bronte emily']
    """
    decomposed = unicodedata.normalize("NFKD", name).casefold()
    plain = "".join(char for char in decomposed if not unicodedata.combining(char))
    undated = _YEARS_OF_LIFE.sub(" ", plain)
    words_of_authors = [_WORDS.findall(author) for author in _SEPARATOR.split(undated)]
    return {" ".join(sorted(words)) for words in words_of_authors} - _NOBODY


def read_authors(table: pl.LazyFrame, cluster: Ints) -> Ints:
    """Return of every row the number of its author's first cluster; -1 where unknown.

    Clusters (books) that name one author have one number. So have those that are linked
    by a book of several authors.
    """
    unknown: Ints = np.full(cluster.size, UNKNOWN)
    columns = table.collect_schema()
    if columns.get("author") not in NAME_TYPES or "role" not in columns:
        return unknown
    author = pl.col("author").cast(pl.String)
    distinct_names = table.select(author.unique().drop_nulls())
    names = distinct_names.collect(engine="streaming").to_series()
    authors = _number_authors(names)
    if (authors == UNKNOWN).all():
        return unknown

    hashes = names.hash().to_numpy()
    order = hashes.argsort()
    is_audited = pl.col("role").cast(pl.String).is_in(_AUDITED)
    hash_or_0 = pl.when(is_audited).then(author.hash()).otherwise(0)
    row_hashes = read_numbers(
        table,
        hash_or_0,
        cluster.size,
        np.uint64,
    )
    place = hashes[order].searchsorted(row_hashes)
    row_names = order[np.minimum(place, order.size - 1)]
    has_name = hashes[row_names] == row_hashes
    rows = np.flatnonzero(has_name & (authors[row_names] != UNKNOWN))
    if not rows.size:
        return unknown
    n_clusters = int(cluster.max()) + 1
    units = _connect(
        cluster[rows],
        authors[row_names[rows]],
        n_clusters,
        names.len(),
    )
    _, first, number = np.unique(
        units,
        return_index=True,
        return_inverse=True,
    )
    is_named = np.zeros(n_clusters, np.bool_)
    is_named[cluster[rows]] = True
    numbers: Ints = np.where(is_named, first[number], UNKNOWN)[cluster]
    return numbers


def _number_authors(names: pl.Series) -> Ints:
    """Return the author of each name: names that share one have one number; -1: none."""
    keys = dict[str, int]()
    edges = list[tuple[int, int]]()
    for index, name in enumerate(names):
        for key in author_keys(name):
            edges.append((index, keys.setdefault(key, len(keys))))
    authors: Ints = np.full(names.len(), UNKNOWN)
    if edges:
        name_ends, key_ends = np.array(edges).T
        connected = _connect(
            name_ends,
            key_ends,
            names.len(),
            len(keys),
        )
        authors[name_ends] = connected[name_ends]
    return authors


def _connect(
    first_ends: Ints,
    second_ends: Ints,
    n_first: int,
    n_second: int,
) -> NDArray[np.int64]:
    """Return the connected component of each node of the first kind.

    Edges join these nodes to those of the second kind.
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    size = n_first + n_second
    ends = (np.asarray(first_ends), np.asarray(second_ends) + n_first)
    edges = np.ones(ends[0].size, np.int8)
    graph = coo_array((edges, ends), shape=(size, size))
    components = connected_components(graph, directed=False)[1]
    return np.asarray(components[:n_first], np.int64)


def with_authors_of_folders(targets: pl.LazyFrame) -> pl.LazyFrame:
    """Add to books without an author that of their folder, if another book names it.

    A folder may as well be named by a genre or a series, so that its name alone shows
    nothing.
    """
    distinct = targets.select("document_id", "author").unique()
    books = distinct.collect(engine="streaming")
    name_of_key = dict[str, str]()
    for name in books["author"].drop_nulls().unique().sort():
        keys = author_keys(name)
        if len(keys) == 1:
            name_of_key.setdefault(keys.pop(), name)
    author_of_book = dict[str, str]()
    nameless = books.filter(pl.col("author").is_null())
    for path in nameless["document_id"].drop_nulls().unique():
        for folder in path.split("/")[:-1]:
            keys = author_keys(folder)
            key = keys.pop() if len(keys) == 1 else ""
            if key in name_of_key:
                author_of_book[path] = name_of_key[key]
    if not author_of_book:
        return targets
    folder_author = pl.col("document_id").replace_strict(author_of_book, default=None)
    return targets.with_columns(author=pl.coalesce("author", folder_author))
