"""Whole groups as units: one statistic each, over as many windows of every group."""

from __future__ import annotations

from itertools import combinations
from math import comb
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = [
    "CollectionTest",
    "Statistic",
    "collection_test",
    "group_statistics",
    "n_orders",
    "pattern",
    "usual_windows",
]

Statistic = Literal["mean", "median", "maximum"]

_STATISTICS: dict[Statistic, Any] = {"mean": np.mean, "median": np.median, "maximum": np.max}

_MOST_ENUMERATED = 20_000
_PERMUTATIONS = 9_999
_PERMUTATIONS_OF_MANY = 999
_MANY = 10_000


class CollectionTest(NamedTuple):
    """Whether groups score higher together than null groups."""

    score: float
    """Mean rank of the groups among all, from 1, equal scores sharing their mean rank."""
    p_value: float
    """In (0, 1]."""
    method: str
    """``permutation_exact``, or ``permutation_of_`` and the number drawn."""


def usual_windows(sizes: NDArray[np.int64]) -> int:
    """Windows of each group to compare, where none are given: nine groups in ten have so many.

    Parameters
    ----------
    sizes
        Windows of every group, null groups included; at least one group.

    Returns
    -------
    int
        At least 1.
    """
    return int(np.quantile(sizes, 0.1, method="lower"))


def pattern(size: int, n_windows: int, seed: int) -> NDArray[np.int64]:
    """Choose windows of a group without looking at scores, spread out over the group.

    The group is cut into as many stretches as windows are wanted, and each gives one. The place in
    the stretch is drawn once per seed, so it is alike in every group, null or not.

    Parameters
    ----------
    size
        Windows of the group, at least ``n_windows``.
    n_windows
        How many to choose.
    seed
        Any integer that is not negative.

    Returns
    -------
    ndarray
        Positions in the group, rising, int64.
    """
    edges = np.arange(n_windows + 1) * size // n_windows
    places = np.random.default_rng(seed).random(n_windows)
    return edges[:-1] + (places * np.diff(edges)).astype(np.int64)


def group_statistics(
    scores: NDArray[np.float64], chosen: NDArray[np.int64], statistic: Statistic
) -> NDArray[np.float64]:
    """Summarise the chosen windows of each group.

    Their p-values are `p_values` of these numbers: 1 + null groups that score so high, over 1 +
    null groups. Windows are never treated as independent.

    Parameters
    ----------
    scores
        Scores of all windows; NaN = unscored.
    chosen
        Positions in ``scores``: a row per group, with as many windows in each.
    statistic
        What to take of the windows.

    Returns
    -------
    ndarray
        Float64, one per group; NaN where any of its chosen windows is unscored.
    """
    return np.asarray(_STATISTICS[statistic](scores[chosen], axis=1), np.float64)


def n_orders(n_groups: int, n_null: int) -> int:
    """Say among how many ways to name the audited groups `collection_test` places the real one.

    Parameters
    ----------
    n_groups
        Groups asked about.
    n_null
        Null groups.

    Returns
    -------
    int
        All C(G + K, G) where they are at most 20,000; otherwise 10,000, or 1,000 from 10,000
        groups: those drawn and the real one.
    """
    ways = comb(n_groups + n_null, n_groups)
    if ways <= _MOST_ENUMERATED:
        return ways
    return 1 + (_PERMUTATIONS if n_groups + n_null < _MANY else _PERMUTATIONS_OF_MANY)


def collection_test(
    groups: NDArray[np.float64], nulls: NDArray[np.float64], seed: int
) -> CollectionTest:
    """Test whether groups rank higher together than exchangeable null groups.

    The p-value is the share of all ways to name so many groups the audited ones in which their
    ranks have at least the sum observed: all C(G + K, G) ways where they are at most 20,000,
    otherwise 9,999 drawn ones (999 from 10,000 groups) and the observed one, (1 + b) / (1 + B). It
    is never below 1 / C(G + K, G). Only whole groups change places, never windows. An unscored
    group has the lowest rank, an unscored null group the highest.

    Parameters
    ----------
    groups
        Statistics of the G groups asked about, at least one; NaN = unscored.
    nulls
        Statistics of the K null groups, at least one; NaN = unscored.
    seed
        Any integer that is not negative.

    Returns
    -------
    CollectionTest
        The answer.

    References
    ----------
    Pitman (1937), "Significance tests which may be applied to samples from any populations";
    Phipson and Smyth (2010), "Permutation p-values should never be zero".
    """
    from scipy.stats import rankdata

    pooled = np.concatenate([np.nan_to_num(groups, nan=-np.inf), np.nan_to_num(nulls, nan=np.inf)])
    ranks, n_groups = rankdata(pooled), groups.size
    observed = ranks[:n_groups].sum()
    orders = n_orders(n_groups, nulls.size)
    if orders == comb(ranks.size, n_groups):
        sums = np.array(list(combinations(ranks, n_groups))).sum(axis=1)
        p, method = np.mean(sums >= observed), "permutation_exact"
    else:  # scipy's permutation_test does the same, but takes no single group
        rng = np.random.default_rng(seed)
        drawn = (rng.permutation(ranks)[:n_groups].sum() for _ in range(orders - 1))
        higher = np.fromiter(drawn, np.float64, orders - 1) >= observed
        p, method = (1 + higher.sum()) / orders, f"permutation_of_{orders - 1}"
    return CollectionTest(float(observed / n_groups), float(p), method)
