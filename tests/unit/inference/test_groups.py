from __future__ import annotations

from itertools import combinations
from math import comb, nan
from statistics import mean

import numpy as np
import pytest

from mia_batch.inference.comparison import (
    collection_test,
    n_orders,
    summarise,
    usual_windows,
    window_pattern,
)
from mia_batch.inference.conformal import p_values

SIMULATED = 2000


def rank(value, values):
    """Mean rank of equal values, from 1."""
    return sum(other < value for other in values) + (values.count(value) + 1) / 2


def collection_reference(groups, nulls):
    """Share of all ways to choose the audited groups with ranks that sum to as much."""
    pooled = [*groups, *nulls]
    ranks = [rank(value, pooled) for value in pooled]
    sums = [sum(chosen) for chosen in combinations(ranks, len(groups))]
    return sum(one >= sum(ranks[: len(groups)]) for one in sums) / len(sums)


@pytest.mark.parametrize("size", [5, 6, 9, 10, 11, 100])
def test_a_pattern_takes_one_window_of_each_stretch(size):
    edges = [size * part // 5 for part in range(6)]
    for seed in range(20):
        chosen = window_pattern(size, 5, seed)
        assert all(edges[part] <= chosen[part] < edges[part + 1] for part in range(5))


def test_a_pattern_is_alike_in_every_group_and_differs_by_seed():
    assert (window_pattern(500, 5, 1) // 10).tolist() == (window_pattern(50, 5, 1)).tolist()
    assert window_pattern(500, 5, 1).tolist() != window_pattern(500, 5, 2).tolist()
    assert window_pattern(4, 4, 0).tolist() == [0, 1, 2, 3]


def test_usual_windows_are_those_of_nine_groups_in_ten():
    assert usual_windows(np.array([1, *[7] * 5, *[9] * 5])) == 7
    assert usual_windows(np.array([3])) == 3


@pytest.mark.parametrize(("statistic", "value"), [("mean", 4), ("median", 2), ("maximum", 9)])
def test_statistics_by_hand(statistic, value):
    scores, chosen = np.array([1, 2, 9, nan]), np.array([[0, 1, 2], [2, 1, 3]])
    made = summarise(scores[chosen], statistic)
    assert made[0] == value
    assert np.isnan(made[1])


def test_one_group_against_others_is_its_rank():
    """Of 7 groups two, itself among them, are as high."""
    test = collection_test(np.array([5.0]), np.array([1.0, 2, 3, 4, 5, 0]), 0)
    assert test == (6.5, 2 / 7, "permutation_exact")


def test_two_highest_of_six():
    test = collection_test(np.array([9.0, 8]), np.array([1.0, 2, 3, 4]), 0)
    assert test == (5.5, 1 / comb(6, 2), "permutation_exact")


def test_unscored_groups_rank_lowest_and_unscored_nulls_highest():
    test = collection_test(np.array([nan, 8]), np.array([1.0, nan, 3, 4]), 0)
    assert test == (3.0, collection_reference([0, 8], [1, 9, 3, 4]), "permutation_exact")


@pytest.mark.parametrize("seed", range(5))
def test_the_collection_equals_its_reference(seed):
    rng = np.random.default_rng(seed)
    groups, nulls = rng.integers(1, 9, 3), rng.integers(0, 8, 7)
    made = collection_test(groups.astype(float), nulls.astype(float), 0)
    assert made.p_value == pytest.approx(collection_reference(groups.tolist(), nulls.tolist()))


def test_many_groups_are_drawn_and_come_near_the_exact_share():
    rng = np.random.default_rng(0)
    groups, nulls = rng.normal(0.6, 1, 4), rng.normal(0, 1, 26)
    made = collection_test(groups, nulls, 1)
    assert made.method == "permutation_of_9999"
    exact = collection_reference(groups.tolist(), nulls.tolist())
    assert made.p_value == pytest.approx(exact, abs=4 * (exact / 9999) ** 0.5)
    assert made == collection_test(groups, nulls, 1)
    far = collection_test(groups + 99, nulls, 1)
    assert far.p_value >= 1 / 10_000


def test_so_many_groups_that_fewer_are_drawn():
    assert n_orders(2, 9997) == 10_000
    assert n_orders(2, 9998) == 1000
    made = collection_test(np.full(2, 3.0), np.zeros(9998), 0)
    assert (made.method, made.p_value) == ("permutation_of_999", 1 / 1000)


def simulated(rng):
    """40 groups of 40 windows that share three tenths of their variance; the first is asked."""
    windows = 0.3**0.5 * rng.normal(size=(40, 1)) + 0.7**0.5 * rng.normal(size=(40, 40))
    return windows.ravel()


@pytest.mark.parametrize("n_windows", [40, 5])
def test_groups_reject_as_often_as_they_may(n_windows):
    """The group asked about has 40 windows, or only 5 and the others are cut to 5."""
    rng = np.random.default_rng(4)
    asked = np.arange(n_windows)[None]
    nulls = np.arange(40, 1600).reshape(39, 40)[:, window_pattern(40, n_windows, 0)]
    rejected = 0
    for _ in range(SIMULATED):
        scores = simulated(rng)
        statistics = [summarise(scores[chosen], "mean") for chosen in (asked, nulls)]
        rejected += p_values(*statistics)[0] <= 0.05
    assert 0.035 <= rejected / SIMULATED <= 0.066


def test_windows_as_if_they_were_independent_reject_too_often():
    from scipy.stats import mannwhitneyu

    rng = np.random.default_rng(4)
    scores = np.array([simulated(rng) for _ in range(SIMULATED)])
    naive = mannwhitneyu(scores[:, :40], scores[:, 40:], alternative="greater", axis=1)
    assert np.mean(naive.pvalue <= 0.05) > 0.2


def test_means_of_unequal_numbers_of_windows_would_not_do():
    """The reason for cutting: a group of 5 windows against groups of 100, nothing shared."""
    rng = np.random.default_rng(5)
    wrong = [
        p_values(np.array([mean(rng.normal(size=5))]), rng.normal(0, 0.1, 39))[0] <= 0.05
        for _ in range(1000)
    ]
    assert np.mean(wrong) > 0.25
