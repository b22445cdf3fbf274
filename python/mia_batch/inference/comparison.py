"""Which texts are compared with which, and the groups that they belong to."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations, islice
from math import comb
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from mia_batch.inference.authors import NAME_TYPES, UNKNOWN, read_authors
from mia_batch.inference.conformal import significant
from mia_batch.inference.findings import (
    DecisionRule,
    Statistic,
    finding_rows,
    number_rows,
)
from mia_batch.stats import Flags, Floats, Ints
from mia_batch.tables import read_numbers
from mia_batch.targets import cluster_names


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonSets:
    """Rows of a table of targets or scores, in the table's order, by what they are for."""

    target_id: pl.Series
    n_words: pl.Series  # null = unknown
    cluster: Ints  # of every row: its index in `clusters`
    # `level` and `key`, in the order of names; empty where not wanted
    clusters: pl.DataFrame
    targets: Ints
    nulls: Ints  # known to be outside the training data
    calibration_members: Ints
    calibration_nonmembers: Ints
    published: Ints  # canaries
    controls: Ints  # canaries that stayed unpublished
    # of every row: a number of its author, as of `read_authors`; empty where none is
    # known
    author: Ints = field(default_factory=lambda: np.empty(0, np.int64))

    def share_clusters(self, *sets: Ints) -> bool:
        return any(np.unique(self.cluster[rows]).size < rows.size for rows in sets)

    def share_authors(self, *sets: Ints) -> bool:
        """Whether several clusters of a set are by one author."""
        return any(
            counts.n_clusters - counts.n_unknown > counts.n_authors
            for counts in map(self.count_authors, sets)
        )

    def count_authors(self, rows: Ints) -> "AuthorCounts":
        clusters, first = np.unique(self.cluster[rows], return_index=True)
        if not self.author.size:
            return AuthorCounts(clusters.size, 0, clusters.size)
        authors = self.author[rows][first]
        known = authors[authors != UNKNOWN]
        return AuthorCounts(
            clusters.size, np.unique(known).size, clusters.size - known.size
        )


class AuthorCounts(NamedTuple):
    """How many clusters a set has, by how many authors, and how many are by nobody known."""

    n_clusters: int
    n_authors: int
    n_unknown: int


def read_comparison_sets(table: pl.LazyFrame, *, named: bool = True) -> ComparisonSets:
    """Sort the rows of targets or scores by role; without ``role`` every row is a target."""
    # The nulls are the rows of role ``non_member``; without any, the targets with
    # ``member`` false, which are not among the targets then. If not ``named``, clusters
    # have names only where two rows share one, or where there are canaries.
    columns = table.collect_schema().names()
    role = pl.col("role") if "role" in columns else pl.lit("target")
    keys = table.select("target_id", "n_words", "member", role=role).collect(
        engine="streaming"
    )
    names = table.select(cluster_names(table).alias("name"))
    named = named or bool((keys["role"] == "canary").any())
    cluster, clusters = _clusters(names, keys.height, named=named)

    def rows(role: str, *members: bool | None) -> Ints:
        wanted = (pl.col("role") == role) & pl.any_horizontal(
            pl.col("member").eq_missing(member) for member in members
        )
        return keys.select(wanted.arg_true().cast(pl.Int64)).to_series().to_numpy()

    nulls = rows("non_member", True, False, None)
    asked: tuple[bool | None, ...] = (True, False, None)
    if not nulls.size:
        nulls, asked = rows("target", False), (True, None)
    author = read_authors(table, cluster)
    return ComparisonSets(
        target_id=keys["target_id"],
        n_words=keys["n_words"],
        cluster=cluster,
        clusters=clusters,
        targets=rows("target", *asked),
        nulls=nulls,
        calibration_members=rows("calibration", True),
        calibration_nonmembers=rows("calibration", False),
        published=rows("canary", True),
        controls=rows("canary", False),
        author=author if (author != UNKNOWN).any() else author[:0],
    )


def _clusters(
    names: pl.LazyFrame, size: int, *, named: bool
) -> tuple[Ints, pl.DataFrame]:
    """Find the cluster of each row by hashes: the names of all rows take much more memory."""
    of_rows = read_numbers(names, pl.col("name").hash(), size, np.uint64)
    ordered = np.sort(of_rows)
    if not named and not (ordered[1:] == ordered[:-1]).any():
        return np.arange(size), pl.DataFrame(
            schema={"level": pl.String, "key": pl.String}
        )
    distinct = names.unique().collect(engine="streaming").sort("name")
    hashes = distinct["name"].hash().to_numpy()
    order = hashes.argsort()
    cluster = order[hashes[order].searchsorted(of_rows)]
    parts = pl.col("name").str.splitn(" ", 2).struct.rename_fields(["level", "key"])
    return cluster, distinct.select(parts).unnest("name")


# Whole groups as units: one statistic each, over as many windows of every group.

_STATISTICS: dict[Statistic, Any] = {
    "mean": np.mean,
    "median": np.median,
    "maximum": np.max,
}

_MOST_ENUMERATED = 20_000
_MOST_OF_BOTH = 8  # C(18, 9) is more than are enumerated
_PERMUTATIONS = 9_999
_PERMUTATIONS_OF_MANY = 999
_MANY = 10_000
_AT_ONCE = 1 << 20


class ComparedUnits(NamedTuple):
    """The clusters of one comparison set, each by as many of its windows as the others."""

    cluster: Ints  # ascending
    sizes: Ints  # windows of each
    enough: Flags  # whether it has enough windows to be compared
    chosen: Ints  # rows of the windows compared, a line per cluster that has enough

    def statistics(self, scores: Floats, plan: DecisionRule) -> Floats:
        return summarise(scores[self.chosen], plan.statistic)

    def too_few(self) -> list[str | None]:
        n_windows = self.chosen.shape[1]
        return [
            f"the group has {size} of {n_windows} windows" if size < n_windows else None
            for size in self.sizes.tolist()
        ]


def windows_per_group(sets: ComparisonSets, plan: DecisionRule) -> int:
    """How many windows of each cluster are compared: the plan's, or as many as nine in ten have."""
    sizes = [
        np.unique(sets.cluster[rows], return_counts=True)[1]
        for rows in (sets.targets, sets.nulls)
    ]
    return plan.windows_per_group or int(
        np.quantile(np.concatenate(sizes), 0.1, method="lower")
    )


def window_pattern(size: int, n_windows: int, seed: int) -> Ints:
    """Choose one window of each of ``n_windows`` stretches of a group; scores play no part."""
    # The index within the stretch is drawn once per seed, so it is alike in every
    # group, null or not.
    edges = np.arange(n_windows + 1) * size // n_windows
    shares = np.random.default_rng(seed).random(n_windows)
    return edges[:-1] + (shares * np.diff(edges)).astype(np.int64)


def tests_groups(sets: ComparisonSets, plan: DecisionRule) -> bool:
    """Whether whole groups are tested: the plan is about them, or texts share them."""
    return plan.level != "target" or sets.share_clusters(sets.targets, sets.nulls)


def cut_units(
    sets: ComparisonSets, rows: Ints, n_windows: int, seed: int
) -> ComparedUnits:
    """Cut the clusters of one set of rows to so many windows, in the table's order."""
    ordered = rows[sets.cluster[rows].argsort(kind="stable")]
    cluster, starts, sizes = np.unique(
        sets.cluster[ordered], return_index=True, return_counts=True
    )
    enough = sizes >= n_windows
    chosen = _places(starts[enough], sizes[enough], n_windows, seed)
    return ComparedUnits(cluster, sizes, enough, ordered[chosen])


def _places(starts: Ints, sizes: Ints, n: int, seed: int) -> Ints:
    """Choose n places of each stretch, which begins somewhere and has at least n places."""
    chosen = np.empty((starts.size, n), np.int64)
    for size in np.unique(sizes):
        alike = sizes == size
        chosen[alike] = starts[alike, None] + window_pattern(int(size), n, seed)
    return chosen


# Authors as units: as many books of each, and of each book as many windows.


class IndependentUnits(NamedTuple):
    """What counts once in statements about several texts together: authors, groups or texts."""

    units: list[ComparedUnits]  # of each set of rows
    by_author: bool
    n_books: int = 1  # of each author, where authors are compared
    reason: str | None = None  # why nothing can be said


def independent_units(
    sets: ComparisonSets, row_sets: Sequence[Ints], n_windows: int, seed: int
) -> IndependentUnits:
    """Cut sets of rows, those asked about and nulls first, into units that are independent.

    Where several books of a set are by one author, each author is one unit: means over
    unequal numbers of books are not exchangeable, so that as many books of each are
    compared as nine authors in ten have, chosen without looking at scores. Books of
    unknown authors are left out then, for they may be by one of the others.
    """
    units = [cut_units(sets, rows, n_windows, seed) for rows in row_sets]
    if not sets.share_authors(*row_sets):
        return IndependentUnits(units, by_author=False)
    for name, rows in zip(("audited", "comparison"), row_sets, strict=False):
        counts = sets.count_authors(rows)
        if not counts.n_authors:
            reason = (
                "several texts are by one author, and the authors of the"
                f" {counts.n_unknown:,} {name} texts are unknown: name them with"
                " --author-column"
            )
            return IndependentUnits(units, by_author=True, reason=reason)
    books = [_books_of_authors(sets, of_set) for of_set in units]
    sizes = np.concatenate([of_set.sizes for of_set in books[:2]])
    n_books = int(np.quantile(sizes, 0.1, method="lower")) if sizes.size else 1
    by_author = [
        _cut_authors(of_set, found, n_books, seed)
        for of_set, found in zip(units, books, strict=True)
    ]
    return IndependentUnits(by_author, by_author=True, n_books=n_books)


class _Books(NamedTuple):
    """The books of each known author, by their line among the units that can be compared."""

    author: Ints
    starts: Ints  # in ``lines``
    sizes: Ints
    lines: Ints


def _books_of_authors(sets: ComparisonSets, units: ComparedUnits) -> _Books:
    of_line = sets.author[units.chosen[:, 0]]
    known = np.flatnonzero(of_line != UNKNOWN)
    lines = known[of_line[known].argsort(kind="stable")]
    return _Books(
        *np.unique(of_line[lines], return_index=True, return_counts=True), lines
    )


def _cut_authors(
    units: ComparedUnits, books: _Books, n_books: int, seed: int
) -> ComparedUnits:
    enough = books.sizes >= n_books
    places = _places(books.starts[enough], books.sizes[enough], n_books, seed)
    windows = units.chosen[books.lines[places]].reshape(len(places), -1)
    return ComparedUnits(books.author, books.sizes, enough, windows)


def summarise(windows: Floats, statistic: Statistic) -> Floats:
    """Summarise the windows of each group, a line per group; NaN where one is unscored."""
    return np.asarray(_STATISTICS[statistic](windows, axis=-1), np.float64)


def author_findings(targets: pl.LazyFrame, plan: DecisionRule) -> pl.DataFrame:
    """Rows of check ``authors``; none where no column names authors, or nothing is compared.

    Verdict ``units`` where authors are compared instead of texts or books, ``withheld``
    where they should be and cannot, ``unknown`` where texts may be by one author, else
    ``apart``.
    """
    sets = read_comparison_sets(targets)
    has_column = targets.collect_schema().get("author") in NAME_TYPES
    if not (has_column and sets.targets.size and sets.nulls.size):
        return finding_rows("authors")
    n_windows = windows_per_group(sets, plan) if tests_groups(sets, plan) else 1
    row_sets = (sets.targets, sets.nulls)
    together = independent_units(sets, row_sets, n_windows, plan.seed)
    counts = [sets.count_authors(rows) for rows in row_sets]
    verdict = "units" if together.by_author else "apart"
    if not together.by_author and max(of_set.n_unknown for of_set in counts) > 1:
        verdict = "unknown"
    verdict = "withheld" if together.reason else verdict
    main = {"statistic": "n_books", "value": together.n_books, "verdict": verdict}
    rows: list[dict[str, Any]] = [main | {"reason": together.reason}]
    for subject, of_set in zip(("targets", "non_members"), counts, strict=True):
        rows += number_rows(of_set._asdict(), subject=subject)
    return finding_rows("authors", rows)


class CollectionTest(NamedTuple):
    """Whether groups score higher together than null groups."""

    score: float  # mean rank of the groups among all, from 1; equal scores share their mean rank
    p_value: float
    method: str


def n_orders(n_groups: int, n_null: int) -> int:
    """Count the ways to name the audited groups that `collection_test` tries, the real one too."""
    drawn = _PERMUTATIONS if n_groups + n_null < _MANY else _PERMUTATIONS_OF_MANY
    return _n_ways(n_groups, n_null) or 1 + drawn


def _n_ways(n_groups: int, n_null: int) -> int | None:
    # A number of a million digits takes a minute
    if min(n_groups, n_null) > _MOST_OF_BOTH:
        return None
    ways = comb(n_groups + n_null, n_groups)
    return ways if ways <= _MOST_ENUMERATED else None


def collection_test(
    groups: Floats, nulls: Floats, seed: int, odds: Floats | None = None
) -> CollectionTest:
    """Test whether G groups rank higher together than K exchangeable null groups.

    The p-value is the share of ways to name the audited groups in which their ranks
    have at least the sum observed: Pitman (1937), "Significance tests which may be
    applied to samples from any populations"; Phipson and Smyth (2010), "Permutation
    p-values should never be zero". Only whole groups are exchanged, never windows. With
    ``odds`` of all groups, audited ones first, ways are drawn with probabilities
    proportional to the product of the odds of the groups named: Berrett et al. (2020),
    "The conditional permutation test for independence while controlling for
    confounders".
    """
    ranks = pooled_ranks(groups, nulls)
    observed = ranks[: groups.size].sum()
    if odds is None:
        sums, method = permuted_sums(ranks[None], groups.size, seed)
    else:
        drawn = _named_by_odds(odds, groups.size, np.random.default_rng(seed)) @ ranks
        sums, method = np.append(observed, drawn), "permutation_by_odds"
    p = np.mean(sums >= observed)
    return CollectionTest(float(observed / groups.size), float(p), method)


def pooled_ranks(groups: Floats, nulls: Floats) -> Floats:
    """Ranks of both among all, from 1: a group without score lowest, such a null group highest."""
    from scipy.stats import rankdata

    pooled = [np.nan_to_num(groups, nan=-np.inf), np.nan_to_num(nulls, nan=np.inf)]
    return np.asarray(rankdata(significant(np.concatenate(pooled))), np.float64)


def permuted_sums(ranks: Floats, n_groups: int, seed: int) -> tuple[Floats, str]:
    """Sum the first groups' ranks, a line per attack, in orders of `n_orders`; name the method."""
    size = ranks.shape[1]
    orders = n_orders(n_groups, size - n_groups)
    exact = _n_ways(n_groups, size - n_groups) is not None
    sums = []
    for named in _orders(size, n_groups, orders, None if exact else seed):
        is_named = np.zeros((len(named), size))
        np.put_along_axis(is_named, named, 1.0, axis=1)
        sums.append(is_named @ ranks.T)  # of halves, so without error
    return np.concatenate(sums), (
        "permutation_exact" if exact else f"permutation_of_{orders - 1}"
    )


def _orders(size: int, n_groups: int, n: int, seed: int | None) -> Iterator[Ints]:
    """Yield who is named in n orders, drawn if there is a seed, some at a time, the real first."""
    at_once = max(1, _AT_ONCE // size)
    if seed is None:
        every = combinations(range(size), n_groups)
        while some := list(islice(every, at_once)):
            yield np.array(some)
        return
    rng = np.random.default_rng(seed)
    yield np.arange(n_groups)[None]
    for start in range(1, n, at_once):  # scipy's permutation_test takes no single group
        lines = np.tile(np.arange(size), (min(at_once, n - start), 1))
        yield rng.permuted(lines, axis=1)[:, :n_groups]


def _named_by_odds(odds: Floats, n_groups: int, rng: np.random.Generator) -> Flags:
    """Draw sets of so many groups with probabilities proportional to the product of their odds.

    Log ``sums[i, k]`` is the sum of these products over all sets of k of the groups
    from i on: Chen, Dempster and Liu (1994), "Weighted finite population sampling".
    """
    log_odds, n = np.log(odds), odds.size
    sums = np.full((n + 1, n_groups + 1), -np.inf)
    sums[:, 0] = 0
    for i in reversed(range(n)):
        sums[i, 1:] = np.logaddexp(sums[i + 1, 1:], log_odds[i] + sums[i + 1, :-1])
    left = np.full(_PERMUTATIONS if n < _MANY else _PERMUTATIONS_OF_MANY, n_groups)
    named = np.zeros((left.size, n), np.bool_)
    for i in range(n):
        share = np.exp(log_odds[i] + sums[i + 1, left - 1] - sums[i, left])
        named[:, i] = (left > 0) & (rng.random(left.size) < share)
        left = left - named[:, i]
    return named
