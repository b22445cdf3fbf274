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
    # `level` and `key`, in the order of names; empty where names were not asked for
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
        """Return whether several clusters of a set are by one author."""
        for counts in map(self.count_authors, sets):
            if counts.n_clusters - counts.n_unknown > counts.n_authors:
                return True
        return False

    def count_authors(self, rows: Ints) -> "AuthorCounts":
        clusters, first = np.unique(self.cluster[rows], return_index=True)
        if not self.author.size:
            return AuthorCounts(clusters.size, 0, clusters.size)
        authors = self.author[rows][first]
        attributed = authors[authors != UNKNOWN]
        return AuthorCounts(
            n_clusters=clusters.size,
            n_authors=np.unique(attributed).size,
            n_unknown=clusters.size - attributed.size,
        )


class AuthorCounts(NamedTuple):
    """How many clusters a set has, by how many authors, and how many by nobody known."""

    n_clusters: int
    n_authors: int
    n_unknown: int


def read_comparison_sets(
    table: pl.LazyFrame,
    *,
    with_names: bool = True,
) -> ComparisonSets:
    """Sort the rows of targets or scores by role; without ``role`` every row is a target."""
    # The nulls are the rows of role ``non_member``; without any, the targets with
    # ``member`` false, which are not among the targets then. Unless ``with_names``,
    # clusters have names only where two rows share one, or where there are canaries.
    columns = table.collect_schema().names()
    roles = pl.col("role") if "role" in columns else pl.lit("target")
    key_columns = table.select("target_id", "n_words", "member", role=roles)
    keys = key_columns.collect(engine="streaming")
    names = table.select(cluster_names(table).alias("name"))
    has_canaries = bool((keys["role"] == "canary").any())
    cluster, clusters = _read_clusters(
        names,
        keys.height,
        with_names=with_names or has_canaries,
    )

    def find_rows(role: str, *members: bool | None) -> Ints:
        is_member = pl.any_horizontal(
            pl.col("member").eq_missing(member) for member in members
        )
        in_set = (pl.col("role") == role) & is_member
        return keys.select(in_set.arg_true().cast(pl.Int64)).to_series().to_numpy()

    targets = find_rows("target", True, False, None)
    nulls = find_rows("non_member", True, False, None)
    if not nulls.size:
        targets = find_rows("target", True, None)
        nulls = find_rows("target", False)
    author = read_authors(table, cluster)
    return ComparisonSets(
        target_id=keys["target_id"],
        n_words=keys["n_words"],
        cluster=cluster,
        clusters=clusters,
        targets=targets,
        nulls=nulls,
        calibration_members=find_rows("calibration", True),
        calibration_nonmembers=find_rows("calibration", False),
        published=find_rows("canary", True),
        controls=find_rows("canary", False),
        author=author if (author != UNKNOWN).any() else author[:0],
    )


def _read_clusters(
    names: pl.LazyFrame,
    n_rows: int,
    *,
    with_names: bool,
) -> tuple[Ints, pl.DataFrame]:
    """Find the cluster of each row by hashes: names of all rows take much more memory."""
    row_hashes = read_numbers(names, pl.col("name").hash(), n_rows, np.uint64)
    ordered = np.sort(row_hashes)
    is_shared = (ordered[1:] == ordered[:-1]).any()
    if not with_names and not is_shared:
        unnamed = pl.DataFrame(schema={"level": pl.String, "key": pl.String})
        return np.arange(n_rows), unnamed
    distinct = names.unique().collect(engine="streaming").sort("name")
    hashes = distinct["name"].hash().to_numpy()
    order = hashes.argsort()
    cluster = order[hashes[order].searchsorted(row_hashes)]
    words = pl.col("name").str.splitn(" ", 2)
    columns = words.struct.rename_fields(["level", "key"])
    return cluster, distinct.select(columns).unnest("name")


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
    usable: Flags  # whether it has enough windows to be compared
    windows: Ints  # rows of the windows compared, a line per usable cluster

    def statistics(self, scores: Floats, rule: DecisionRule) -> Floats:
        return summarise(scores[self.windows], rule.statistic)

    def why_unusable(self) -> list[str | None]:
        """Return of each cluster why it cannot be compared, if it cannot."""
        n_windows = self.windows.shape[1]
        reasons = list[str | None]()
        for size in self.sizes.tolist():
            reason = f"the group has {size} of {n_windows} windows"
            reasons.append(reason if size < n_windows else None)
        return reasons


def windows_per_group(sets: ComparisonSets, rule: DecisionRule) -> int:
    """Return how many windows of a cluster are compared: the rule's, or as 9 in 10 have."""
    if rule.windows_per_group:
        return rule.windows_per_group
    sizes = [
        np.unique(sets.cluster[rows], return_counts=True)[1]
        for rows in (sets.targets, sets.nulls)
    ]
    return int(np.quantile(np.concatenate(sizes), 0.1, method="lower"))


def window_pattern(
    size: int,
    n_windows: int,
    seed: int,
) -> Ints:
    """Choose a window of each of ``n_windows`` stretches of a group, whatever the scores."""
    # The index within the stretch is drawn once per seed, so it is alike in every
    # group, null or not.
    edges = np.arange(n_windows + 1) * size // n_windows
    shares = np.random.default_rng(seed).random(n_windows)
    return edges[:-1] + (shares * np.diff(edges)).astype(np.int64)


def tests_groups(sets: ComparisonSets, rule: DecisionRule) -> bool:
    """Return whether groups are tested: the rule is about them, or texts share them."""
    return rule.level != "target" or sets.share_clusters(sets.targets, sets.nulls)


def cut_units(
    sets: ComparisonSets,
    rows: Ints,
    n_windows: int,
    seed: int,
) -> ComparedUnits:
    """Cut the clusters of one set of rows to so many windows, in the table's order."""
    ordered = rows[sets.cluster[rows].argsort(kind="stable")]
    cluster, starts, sizes = np.unique(
        sets.cluster[ordered],
        return_index=True,
        return_counts=True,
    )
    usable = sizes >= n_windows
    places = _choose_places(starts[usable], sizes[usable], n_windows, seed)
    return ComparedUnits(cluster, sizes, usable, ordered[places])


def _choose_places(
    starts: Ints,
    sizes: Ints,
    n: int,
    seed: int,
) -> Ints:
    """Choose n places of each stretch, which has at least as many."""
    places = np.empty((starts.size, n), np.int64)
    for size in np.unique(sizes):
        is_alike = sizes == size
        pattern = window_pattern(int(size), n, seed)
        places[is_alike] = starts[is_alike, None] + pattern
    return places


# Authors as units: as many books of each, and of each book as many windows.


class IndependentUnits(NamedTuple):
    """What counts once in statements about texts together: authors, groups or texts."""

    units: list[ComparedUnits]  # of each set of rows
    by_author: bool
    n_books: int = 1  # of each author, where authors are compared
    reason: str | None = None  # why nothing can be said


def independent_units(
    sets: ComparisonSets,
    row_sets: Sequence[Ints],
    n_windows: int,
    seed: int,
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
    books = [_sort_books(sets, set_units) for set_units in units]
    sizes = np.concatenate([set_books.sizes for set_books in books[:2]])
    n_books = int(np.quantile(sizes, 0.1, method="lower")) if sizes.size else 1
    authors = [
        _cut_authors(set_units, set_books, n_books, seed)
        for set_units, set_books in zip(units, books, strict=True)
    ]
    return IndependentUnits(authors, by_author=True, n_books=n_books)


class _Books(NamedTuple):
    """The books of each known author, by their line among the usable units."""

    author: Ints
    starts: Ints  # in ``lines``
    sizes: Ints
    lines: Ints


def _sort_books(sets: ComparisonSets, units: ComparedUnits) -> _Books:
    author_of_line = sets.author[units.windows[:, 0]]
    attributed = np.flatnonzero(author_of_line != UNKNOWN)
    order = author_of_line[attributed].argsort(kind="stable")
    lines = attributed[order]
    author, starts, sizes = np.unique(
        author_of_line[lines],
        return_index=True,
        return_counts=True,
    )
    return _Books(author, starts, sizes, lines)


def _cut_authors(
    units: ComparedUnits,
    books: _Books,
    n_books: int,
    seed: int,
) -> ComparedUnits:
    usable = books.sizes >= n_books
    starts = books.starts[usable]
    places = _choose_places(starts, books.sizes[usable], n_books, seed)
    windows = units.windows[books.lines[places]].reshape(len(places), -1)
    return ComparedUnits(books.author, books.sizes, usable, windows)


def summarise(windows: Floats, statistic: Statistic) -> Floats:
    """Summarise the windows of each group, a line per group; NaN where one is unscored."""
    return np.asarray(_STATISTICS[statistic](windows, axis=-1), np.float64)


def author_findings(targets: pl.LazyFrame, rule: DecisionRule) -> pl.DataFrame:
    """Rows of check ``authors``; none where no column names authors, or nothing is compared.

    Verdict ``units`` where authors are compared instead of texts or books, ``withheld``
    where they should be and cannot, ``unknown`` where texts may be by one author, else
    ``apart``.
    """
    sets = read_comparison_sets(targets)
    has_column = targets.collect_schema().get("author") in NAME_TYPES
    if not (has_column and sets.targets.size and sets.nulls.size):
        return finding_rows("authors")
    n_windows = windows_per_group(sets, rule) if tests_groups(sets, rule) else 1
    row_sets = (sets.targets, sets.nulls)
    independent = independent_units(sets, row_sets, n_windows, rule.seed)
    counts = [sets.count_authors(rows) for rows in row_sets]
    verdict = "apart"
    if independent.reason:
        verdict = "withheld"
    elif independent.by_author:
        verdict = "units"
    elif max(set_counts.n_unknown for set_counts in counts) > 1:
        verdict = "unknown"
    rows: list[dict[str, Any]] = [
        {
            "statistic": "n_books",
            "value": independent.n_books,
            "verdict": verdict,
            "reason": independent.reason,
        }
    ]
    for subject, set_counts in zip(("targets", "non_members"), counts, strict=True):
        rows += number_rows(set_counts._asdict(), subject=subject)
    return finding_rows("authors", rows)


class CollectionTest(NamedTuple):
    """The test whether groups score higher together than null groups."""

    # mean rank of the groups among all, from 1; equal scores share their mean rank
    score: float
    p_value: float
    method: str


def n_orders(n_groups: int, n_null: int) -> int:
    """Count the ways to name the audited groups that `collection_test` tries."""
    n_drawn = _PERMUTATIONS if n_groups + n_null < _MANY else _PERMUTATIONS_OF_MANY
    return _n_ways(n_groups, n_null) or 1 + n_drawn


def _n_ways(n_groups: int, n_null: int) -> int | None:
    # A number of a million digits takes a minute
    if min(n_groups, n_null) > _MOST_OF_BOTH:
        return None
    ways = comb(n_groups + n_null, n_groups)
    return ways if ways <= _MOST_ENUMERATED else None


def collection_test(
    groups: Floats,
    nulls: Floats,
    seed: int,
    odds: Floats | None = None,
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
        rng = np.random.default_rng(seed)
        drawn_sums = _draw_by_odds(odds, groups.size, rng) @ ranks
        sums = np.append(observed, drawn_sums)
        method = "permutation_by_odds"
    p_value = np.mean(sums >= observed)
    return CollectionTest(float(observed / groups.size), float(p_value), method)


def pooled_ranks(groups: Floats, nulls: Floats) -> Floats:
    """Rank both among all, from 1: a group without score lowest, such a null highest."""
    from scipy.stats import rankdata

    pooled = [np.nan_to_num(groups, nan=-np.inf), np.nan_to_num(nulls, nan=np.inf)]
    return np.asarray(rankdata(significant(np.concatenate(pooled))), np.float64)


def permuted_sums(
    ranks: Floats,
    n_groups: int,
    seed: int,
) -> tuple[Floats, str]:
    """Sum the audited groups' ranks, a line per attack, in `n_orders`; return the method."""
    n_units = ranks.shape[1]
    orders = n_orders(n_groups, n_units - n_groups)
    is_exact = _n_ways(n_groups, n_units - n_groups) is not None
    sums = []
    for audited in _list_orders(n_units, n_groups, orders, None if is_exact else seed):
        is_audited = np.zeros((len(audited), n_units))
        np.put_along_axis(is_audited, audited, 1.0, axis=1)
        sums.append(is_audited @ ranks.T)  # of halves, so without error
    method = "permutation_exact" if is_exact else f"permutation_of_{orders - 1}"
    return np.concatenate(sums), method


def _list_orders(
    n_units: int,
    n_groups: int,
    n: int,
    seed: int | None,
) -> Iterator[Ints]:
    """List the audited groups of n orders, drawn if there is a seed; the real ones first."""
    at_once = max(1, _AT_ONCE // n_units)
    if seed is None:
        subsets = combinations(range(n_units), n_groups)
        while batch := list(islice(subsets, at_once)):
            yield np.array(batch)
        return
    rng = np.random.default_rng(seed)
    yield np.arange(n_groups)[None]
    # scipy's permutation_test takes no single group
    for start in range(1, n, at_once):
        n_lines = min(at_once, n - start)
        lines = np.tile(np.arange(n_units), (n_lines, 1))
        yield rng.permuted(lines, axis=1)[:, :n_groups]


def _draw_by_odds(
    odds: Floats,
    n_groups: int,
    rng: np.random.Generator,
) -> Flags:
    """Draw sets of so many groups with probabilities proportional to the product of their odds.

    Log ``sums[i, k]`` is the sum of these products over all sets of k of the groups
    from i on: Chen, Dempster and Liu (1994), "Weighted finite population sampling".
    """
    log_odds = np.log(odds)
    n = odds.size
    sums = np.full((n + 1, n_groups + 1), -np.inf)
    sums[:, 0] = 0
    for i in reversed(range(n)):
        sums[i, 1:] = np.logaddexp(sums[i + 1, 1:], log_odds[i] + sums[i + 1, :-1])
    n_draws = _PERMUTATIONS if n < _MANY else _PERMUTATIONS_OF_MANY
    n_left = np.full(n_draws, n_groups)
    is_drawn = np.zeros((n_draws, n), np.bool_)
    for i in range(n):
        share = np.exp(log_odds[i] + sums[i + 1, n_left - 1] - sums[i, n_left])
        is_drawn[:, i] = (n_left > 0) & (rng.random(n_draws) < share)
        n_left = n_left - is_drawn[:, i]
    return is_drawn
