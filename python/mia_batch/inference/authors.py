"""Authors, a level above books: books of one author move together, so they count once together."""

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
_NOBODY = {  # what stands in the place of an author where none is named; words in their order
    *(
        "",
        "anonymous",
        "anon",
        "anonym",
        "anonyme",
        "various",
        "unknown",
        "unbekannt",
        "none",
    ),
    *(
        "authors various",
        "author unknown",
        "a n",
        "inconnu",
        "several",
        "et al",
        "al",
        "others",
    ),
}
_AUDITED = ("target", "non_member", "calibration")


def author_keys(name: str) -> set[str]:
    """Return a key for each author that a name lists, whatever the order of first and last name.

    >>> sorted(author_keys("Austen, Jane, 1775-1817; BRONTË, Emily"))
    ['austen jane', 'bronte emily']
    """
    decomposed = unicodedata.normalize("NFKD", name).casefold()
    plain = "".join(char for char in decomposed if not unicodedata.combining(char))
    undated = _YEARS_OF_LIFE.sub(" ", plain)
    words_of_parts = [_WORDS.findall(part) for part in _SEPARATOR.split(undated)]
    return {" ".join(sorted(words)) for words in words_of_parts} - _NOBODY


def read_authors(table: pl.LazyFrame, cluster: Ints) -> Ints:
    """Give every row the number of its author's first cluster; -1 where unknown.

    Clusters (books) that name one author have one number. So have those that are linked
    by a book of several authors.
    """
    unknown: Ints = np.full(cluster.size, UNKNOWN)
    columns = table.collect_schema()
    if columns.get("author") not in NAME_TYPES or "role" not in columns:
        return unknown
    author = pl.col("author").cast(pl.String)
    names = table.select(author.unique().drop_nulls())
    distinct = names.collect(engine="streaming").to_series()
    keys, edges = dict[str, int](), list[tuple[int, int]]()
    for place, name in enumerate(distinct):
        for key in author_keys(name):
            edges.append((place, keys.setdefault(key, len(keys))))
    if not edges:
        return unknown
    name_of_edge, key_of_edge = np.array(edges).T
    authors = _linked(name_of_edge, key_of_edge, distinct.len(), len(keys))
    authors[~np.isin(np.arange(authors.size), name_of_edge)] = UNKNOWN

    hashes = distinct.hash().to_numpy()
    order = hashes.argsort()
    compared = pl.col("role").cast(pl.String).is_in(_AUDITED)
    hash_of_row = pl.when(compared).then(author.hash()).otherwise(0)
    of_rows = read_numbers(table, hash_of_row, cluster.size, np.uint64)
    place = order[np.minimum(hashes[order].searchsorted(of_rows), order.size - 1)]
    rows = np.flatnonzero((hashes[place] == of_rows) & (authors[place] != UNKNOWN))
    if not rows.size:
        return unknown
    n_clusters = int(cluster.max()) + 1
    unit = _linked(cluster[rows], authors[place[rows]], n_clusters, distinct.len())
    _, first, number = np.unique(unit, return_index=True, return_inverse=True)
    is_named = np.zeros(n_clusters, np.bool_)
    is_named[cluster[rows]] = True
    numbers: Ints = np.where(is_named, first[number], UNKNOWN)[cluster]
    return numbers


def _linked(
    first: Ints, second: Ints, n_first: int, n_second: int
) -> NDArray[np.int64]:
    """Return the connected part of each node of the first kind; edges join it to the second."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    size = n_first + n_second
    ends = (np.asarray(first), np.asarray(second) + n_first)
    graph = coo_array((np.ones(ends[0].size, np.int8), ends), shape=(size, size))
    parts = connected_components(graph, directed=False)[1]
    return np.asarray(parts[:n_first], np.int64)


def with_authors_of_folders(targets: pl.LazyFrame) -> pl.LazyFrame:
    """Give books without an author that of their folder, if another book names such an author.

    A folder may as well be named by a genre or a series, so that its name alone shows
    nothing.
    """
    books = targets.select("document_id", "author").unique().collect(engine="streaming")
    known = dict[str, str]()
    for name in books["author"].drop_nulls().unique().sort():
        keys = author_keys(name)
        if len(keys) == 1:
            known.setdefault(keys.pop(), name)
    author_of_book = dict[str, str]()
    nameless = books.filter(pl.col("author").is_null())["document_id"].drop_nulls()
    for path in nameless.unique():
        for key in map(_key_of_folder, path.split("/")[:-1]):
            if key in known:
                author_of_book[path] = known[key]
    if not author_of_book:
        return targets
    found = pl.col("document_id").replace_strict(author_of_book, default=None)
    return targets.with_columns(author=pl.coalesce("author", found))


def _key_of_folder(name: str) -> str:
    keys = author_keys(name)
    return keys.pop() if len(keys) == 1 else ""
