from __future__ import annotations

from math import comb

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import beta

from mia_batch.stats.influence import AucEstimate
from mia_batch.stats.rates import (
    balanced_accuracy_interval,
    clopper_pearson,
    conservative_interval,
    grouped_tpr_interval,
    threshold_fpr_interval,
    tpr_interval,
)
from mia_batch.stats.roc import roc_curve


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


def conservative_reference(members, nonmembers, budget, error=0.0125):
    """Ranks by sums of binomial chances, counted from the lowest non-member."""
    n = len(nonmembers)
    chance = [comb(n, k) * (1 - budget) ** k * budget ** (n - k) for k in range(n + 1)]
    above = next(r for r in range(1, n + 2) if sum(chance[r:]) <= error)
    below = max(r for r in range(n + 1) if sum(chance[:r]) <= error)
    ordered = sorted(nonmembers)
    threshold_high = ordered[above - 1] if above <= n else float("inf")
    threshold_low = ordered[below - 1] if below else -float("inf")
    n_members = len(members)
    fewest, most = (
        sum(score > threshold for score in members) for threshold in (threshold_high, threshold_low)
    )
    low, _ = clopper_pearson_reference(fewest, n_members, error)
    _, high = clopper_pearson_reference(most, n_members, error)
    return low, high


@pytest.mark.parametrize(("n", "budget"), [(10, 0.1), (60, 0.1), (150, 0.05), (100, 0.01)])
def test_the_conservative_interval_equals_its_reference(n, budget):
    curve = normal_curve(40, n)
    made = conservative_interval(curve, budget, (40, n))
    expected = conservative_reference(curve.members.tolist(), curve.nonmembers.tolist(), budget)
    assert (made.low, made.high) == pytest.approx(expected)
    assert made.method == "order_statistics_conservative"


def test_with_ten_non_members_the_threshold_may_be_anywhere_above_by_hand():
    """0.9^10 is 0.35: all may lie below the true threshold, so nothing need be flagged.

    Fewer than 6 do so with a chance of 0.0016, fewer than 7 with one of 0.0128, too much: the sixth
    may be the threshold, and two of three members are above it.
    """
    made = conservative_interval(curve_of([7.5, 6.5, 5.5], range(1, 11)), 0.1, (3, 10))
    assert made.low == 0
    assert made.high == pytest.approx(clopper_pearson_reference(2, 3, 0.0125)[1])


def test_groups_of_equal_texts_have_the_interval_of_one_text_each():
    rng = np.random.default_rng(0)
    members, nonmembers = rng.normal(1, 1, 30), rng.normal(0, 1, 80)
    alone = conservative_interval(curve_of(members, nonmembers), 0.1, (30, 80))
    copies = curve_of(np.repeat(members, 7), np.repeat(nonmembers, 7))
    made = conservative_interval(copies, 0.1, (30.0, 80.0))
    assert (made.low, made.high) == (alone.low, alone.high)


def bootstrap_reference(curve, budget, rng):
    """Draw texts of each class anew and read the curve."""
    rates = []
    for _ in range(3000):
        members = rng.choice(curve.members, curve.members.size)
        rates.append(
            curve_of(members, rng.choice(curve.nonmembers, curve.nonmembers.size))
            .at_fpr(budget)
            .tpr
        )
    return np.quantile(rates, [0.025, 0.5, 0.975])


@pytest.mark.parametrize("tied", [False, True])
def test_the_bootstrap_draws_from_its_reference_distribution(tied):
    curve = normal_curve(50, 210)
    if tied:
        curve = curve_of(curve.members.round(), curve.nonmembers.round())
    low, _, high = bootstrap_reference(curve, 0.1, np.random.default_rng(1))
    made = tpr_interval(curve, 0.1, np.random.default_rng(2))
    assert made.method == "bootstrap"
    assert (made.low, made.high) == pytest.approx((low, high), abs=0.021)


def test_the_bootstrap_needs_twenty_flagged_non_members():
    rng = np.random.default_rng(0)
    assert tpr_interval(normal_curve(50, 200), 0.1, rng).method == "bootstrap"
    fewer = tpr_interval(normal_curve(50, 199), 0.1, rng)
    assert fewer.method == "order_statistics_conservative"


@pytest.mark.parametrize("shift", [-100, 100])
def test_where_the_bootstrap_has_no_width_the_conservative_interval_has(shift):
    rng = np.random.default_rng(0)
    made = tpr_interval(curve_of(rng.normal(shift, 1, 50), rng.normal(0, 1, 400)), 0.1, rng)
    assert made.method == "order_statistics_conservative"
    assert made.high - made.low > 0.05
    assert (made.low == 0) == (shift < 0)
    assert (made.high == 1) == (shift > 0)


def estimate(n_groups):
    return AucEstimate(value=0.7, variance=0.01, sizes=(n_groups, 40.0), clustered=True)


def test_grouped_rates_have_limits_by_the_spread_of_resamples():
    """A TPR of 1/2 and resamples 0.4 and 0.6: on the logit scale the spread is times 4."""
    curve = curve_of([5, 5, -5, -5], np.arange(-300, 0) / 100)
    draws = np.tile([0.4, 0.6], 500)
    made = grouped_tpr_interval(curve, 0.1, estimate(31), draws, 15)
    assert made is not None
    assert made.method == "group_bootstrap_logit_t"
    half = 2.0423 * draws.std(ddof=1) * 4 * (31 / 30) ** 0.5  # Student's t of 30 degrees
    assert made.high == pytest.approx(1 / (1 + np.exp(-half)), rel=1e-4)
    assert made.low == pytest.approx(1 - made.high)


def test_few_flagged_groups_few_texts_or_no_spread_are_conservative():
    draws = np.tile([0.4, 0.6], 500)
    many, few = np.arange(-300, 0) / 100, np.arange(-150, 0) / 100
    cases = [(many, draws, 14), (few, draws, 30), (many, np.full(9, 0.5), 30)]
    for nonmembers, drawn, n_flagged in cases:
        made = grouped_tpr_interval(
            curve_of([5, 5, -5, -5], nonmembers), 0.1, estimate(40), drawn, n_flagged
        )
        assert made is not None
        assert made.method == "order_statistics_groups_conservative"
    assert grouped_tpr_interval(curve_of([1], many), 0.1, estimate(3), draws, 30) is None


def test_the_true_rate_of_a_threshold_follows_its_beta_distribution():
    """Of 20 uniform scores the highest exceeds the threshold 1 - x with chance (1 - x)^20 ..."""
    made = threshold_fpr_interval(20, 0.04)
    assert (made.low, made.high) == pytest.approx((1 - 0.975 ** (1 / 20), 1 - 0.025 ** (1 / 20)))
    rng = np.random.default_rng(0)
    second = 1 - np.sort(rng.random((20_000, 20)))[:, -2]
    made = threshold_fpr_interval(20, 0.05)
    limits = np.quantile(second, [0.025, 0.975])
    assert (made.low, made.high) == pytest.approx(limits.tolist(), rel=0.05)


def test_balanced_accuracy_by_hand():
    """Limits of 8 of 10 and of 15 of 20, joined as half the sum of two independent rates."""
    made = balanced_accuracy_interval((8, 15), (10, 20))
    first, second = (
        clopper_pearson_reference(8, 10, 0.025),
        clopper_pearson_reference(15, 20, 0.025),
    )
    low = 0.775 - ((0.8 - first[0]) ** 2 + (0.75 - second[0]) ** 2) ** 0.5 / 2
    high = 0.775 + ((first[1] - 0.8) ** 2 + (second[1] - 0.75) ** 2) ** 0.5 / 2
    assert (made.low, made.high) == pytest.approx((low, high))
    assert made.method == "clopper_pearson_mover"


@pytest.mark.parametrize(("hits", "n"), [(0, 9), (9, 9), (3, 40)])
def test_clopper_pearson_equals_its_reference(hits, n):
    made = clopper_pearson(hits, n)
    assert (made.low, made.high) == pytest.approx(clopper_pearson_reference(hits, n, 0.025))


SCORES = st.lists(st.integers(0, 8), min_size=1, max_size=60)


@given(SCORES, SCORES, st.sampled_from([0.0, 0.01, 0.1, 0.5, 1.0]))
def test_a_conservative_interval_holds_its_rate_and_has_width(members, nonmembers, budget):
    curve = curve_of(members, nonmembers)
    made = conservative_interval(curve, budget, (len(members), len(nonmembers)))
    assert 0 <= made.low <= curve.at_fpr(budget).tpr <= made.high <= 1
    assert made.high - made.low > 1e-3
