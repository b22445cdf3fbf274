from __future__ import annotations

from math import comb

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import beta, norm, t

from mia_batch.stats.intervals import (
    clopper_pearson,
    independent_number,
    roc_curve,
    threshold_fpr_interval,
    tpr_interval,
)


def curve_of(members, nonmembers):
    score = np.array([*members, *nonmembers], float)
    return roc_curve(np.arange(score.size) < len(members), score)


def normal_curve(n_members, n_nonmembers, *, seed=0):
    rng = np.random.default_rng(seed)
    return curve_of(rng.normal(1, 1, n_members), rng.normal(0, 1, n_nonmembers))


def clopper_pearson_reference(hits, n, error):
    """Limits at which the binomial tails are each ``error``."""
    low = beta.ppf(error, hits, n - hits + 1) if hits else 0.0
    high = beta.ppf(1 - error, hits + 1, n - hits) if hits < n else 1.0
    return low, high


def tpr_reference(members, nonmembers, budget, error=0.025):
    """Ranks by sums of binomial chances, counted from the lowest non-member."""
    n, n_members = len(nonmembers), len(members)
    chance = [comb(n, k) * (1 - budget) ** k * budget ** (n - k) for k in range(n + 1)]
    above = next(r for r in range(1, n + 2) if sum(chance[r:]) <= error)
    below = max(r for r in range(n + 1) if sum(chance[:r]) <= error)
    ordered = [-float("inf"), *sorted(nonmembers), float("inf")]
    spared = next(y for y in ordered if sum(x > y for x in nonmembers) <= budget * n)
    least, tpr, most = (
        sum(x > threshold for x in members) / n_members
        for threshold in (ordered[above], spared, ordered[below])
    )
    low, high = clopper_pearson_reference(round(tpr * n_members), n_members, error)
    return (
        max(0, tpr - ((tpr - low) ** 2 + (tpr - least) ** 2) ** 0.5),
        tpr,
        min(1, tpr + ((high - tpr) ** 2 + (most - tpr) ** 2) ** 0.5),
    )


@pytest.mark.parametrize(("n", "budget"), [(10, 0.1), (60, 0.1), (150, 0.05), (100, 0.01)])
def test_the_interval_of_a_tpr_equals_its_reference(n, budget):
    curve = normal_curve(40, n)
    tpr = curve.at_fpr(budget).tpr
    made = tpr_interval(curve, budget, tpr, (40, n))
    expected = tpr_reference(curve.members.tolist(), curve.nonmembers.tolist(), budget)
    assert (made.low, tpr, made.high) == pytest.approx(expected)
    assert made.method == "order_statistics"


def test_with_ten_non_members_the_threshold_may_be_anywhere_above_by_hand():
    """0.9^10 is 0.35: all may lie below the true threshold, so nothing need be flagged.

    Fewer than 7 do so with a chance of 0.013, fewer than 8 with one of 0.07, too much: the seventh
    may be the threshold, and one of three members is above it, as above the ninth.
    """
    made = tpr_interval(curve_of([9.5, 6.5, 5.5], range(1, 11)), 0.1, 1 / 3, (3, 10))
    assert made.low == 0
    assert made.high == pytest.approx(clopper_pearson_reference(1, 3, 0.025)[1])


def test_groups_of_equal_texts_have_the_interval_of_one_text_each():
    rng = np.random.default_rng(0)
    members, nonmembers = rng.normal(1, 1, 30), rng.normal(0, 1, 80)
    alone = curve_of(members, nonmembers)
    tpr = alone.at_fpr(0.1).tpr
    made = tpr_interval(alone, 0.1, tpr, (30, 80))
    copies = curve_of(np.repeat(members, 7), np.repeat(nonmembers, 7))
    again = tpr_interval(copies, 0.1, tpr, (30.0, 80.0))
    assert (made.low, made.high) == (again.low, again.high)


@pytest.mark.parametrize("shift", [-100, 100])
def test_rates_of_0_and_1_have_intervals_with_a_width(shift):
    rng = np.random.default_rng(0)
    curve = curve_of(rng.normal(shift, 1, 50), rng.normal(0, 1, 400))
    made = tpr_interval(curve, 0.1, float(shift > 0), (50, 400))
    assert made.high - made.low > 0.05
    assert (made.low == 0) == (shift < 0)
    assert (made.high == 1) == (shift > 0)


@pytest.mark.parametrize(
    ("flags", "worth"),
    [
        ([[1, 0]] * 10, 20),  # less alike within than between: no more than independent ones
        ([[1, 0]] * 4, 8),  # all of four groups tell
        ([[1, 1], [0, 0]] * 10, 20),  # alike within: groups
        ([[1, 1]] * 4 + [[0, 0]] * 16, 20),
        ([[1, 1, 1, 1]] * 7, 7),  # nobody knows how much they differ
        ([[1, 0, 0, 0]] * 4 + [[0, 0, 0, 0]] * 4, 8),
    ],
)
def test_flags_of_clusters_are_worth_so_many_independent_ones(flags, worth):
    cluster = np.repeat(np.arange(len(flags)), len(flags[0]))
    found = independent_number(np.ravel(flags) == 1, cluster)
    wider = t(len(flags) - 1).ppf(0.975) / norm.ppf(0.975)
    assert found == pytest.approx(worth / wider**2)
    assert independent_number(np.ravel(flags) == 1, np.arange(cluster.size)) == cluster.size


def test_the_true_rate_of_a_threshold_follows_its_beta_distribution():
    """Of 20 uniform scores the highest exceeds the threshold 1 - x with chance (1 - x)^20 ..."""
    made = threshold_fpr_interval(20, 0.04)
    assert (made.low, made.high) == pytest.approx((1 - 0.975 ** (1 / 20), 1 - 0.025 ** (1 / 20)))
    rng = np.random.default_rng(0)
    second = 1 - np.sort(rng.random((20_000, 20)))[:, -2]
    made = threshold_fpr_interval(20, 0.05)
    limits = np.quantile(second, [0.025, 0.975])
    assert (made.low, made.high) == pytest.approx(limits.tolist(), rel=0.05)


@pytest.mark.parametrize(("hits", "n"), [(0, 9), (9, 9), (3, 40)])
def test_clopper_pearson_equals_its_reference(hits, n):
    made = clopper_pearson(hits, n)
    assert (made.low, made.high) == pytest.approx(clopper_pearson_reference(hits, n, 0.025))


SCORES = st.lists(st.integers(0, 8), min_size=1, max_size=60)


@given(SCORES, SCORES, st.sampled_from([0.0, 0.01, 0.1, 0.5, 1.0]))
def test_an_interval_of_a_tpr_holds_it_and_has_width(members, nonmembers, budget):
    curve = curve_of(members, nonmembers)
    tpr = curve.at_fpr(budget).tpr
    made = tpr_interval(curve, budget, tpr, (len(members), len(nonmembers)))
    assert 0 <= made.low <= tpr <= made.high <= 1
    assert made.high - made.low > 1e-3
