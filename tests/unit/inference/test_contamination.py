from __future__ import annotations

from math import comb

import numpy as np
import pytest
from scipy.stats import betabinom, hypergeom

from mia_batch.inference.estimates import Flagged, contamination_bound, contamination_rate

Z = 1.959963984540054

CASES = [  # targets, calibration non-members and members, FPR, TPR
    (200, 300, 300, 0.05, 0.5),
    (1000, 300, 300, 0.05, 0.3),
    (100, 100, 100, 0.1, 0.8),
    (200, 500, 500, 0.01, 0.95),
]


def estimate(targets, nonmembers, members, **options):
    return contamination_rate(
        Flagged(*targets), Flagged(*nonmembers), Flagged(*members), blind_warns=False, **options
    )


def variance(one):
    rate = (one[0] + 1) / (one[1] + 2)
    return rate * (1 - rate)


def interval_reference(targets, nonmembers, members):
    """Every share on a grid that the three rates do not contradict."""
    flagged, fpr, tpr = (above / total for above, total in (targets, nonmembers, members))
    kept = []
    for share in np.linspace(0, 1, 20_001):
        spread = share * variance(members) / targets[1]
        spread += (1 - share) * variance(nonmembers) / targets[1]
        spread += share**2 * variance(members) / members[1]
        spread += (1 - share) ** 2 * variance(nonmembers) / nonmembers[1]
        if (flagged - (1 - share) * fpr - share * tpr) ** 2 <= Z**2 * spread:
            kept.append(share)
    return kept[0], kept[-1]


@pytest.mark.parametrize(
    ("targets", "nonmembers", "members"),
    [
        ((55, 200), (10, 200), (120, 200)),
        ((3, 60), (4, 50), (30, 40)),
        ((58, 60), (0, 50), (36, 40)),
        ((500, 1000), (50, 1000), (60, 100)),
        ((9, 90), (9, 90), (90, 90)),
    ],
)
def test_the_interval_equals_its_reference(targets, nonmembers, members):
    made = estimate(targets, nonmembers, members)
    assert (made.low, made.high) == pytest.approx(
        interval_reference(targets, nonmembers, members), abs=6e-5
    )
    assert made.method == "fieller"
    assert "assumes" in made.assumption


def test_the_estimate_by_hand():
    """A quarter flagged, 5 % of the non-members and 45 % of the members: one half."""
    made = estimate((50, 200), (10, 200), (90, 200))
    assert made.value == pytest.approx(0.5)
    assert made.reason is None
    assert made.low < 0.5 < made.high


def test_estimates_stay_within_0_and_1():
    assert estimate((0, 50), (5, 100), (80, 100)).value == 0
    assert estimate((45, 50), (5, 100), (80, 100)).value == 1


@pytest.mark.parametrize(
    ("targets", "nonmembers", "members", "reason"),
    [
        ((5, 50), (5, 50), (6, 50), "calibration members do not score above non-members"),
        ((5, 50), (30, 50), (5, 50), "calibration members do not score above non-members"),
        ((99, 100), (5, 100), (50, 100), "more targets are flagged than calibration members"),
        ((0, 900), (50, 100), (90, 100), "fewer targets are flagged than"),
    ],
)
def test_what_the_data_cannot_support_is_refused(targets, nonmembers, members, reason):
    made = estimate(targets, nonmembers, members)
    assert reason in made.reason
    assert (made.value, made.low, made.high) == (None, None, None)
    assert "assumes" in made.assumption


def test_it_is_refused_exactly_where_the_interval_of_the_gap_holds_0():
    """From 13 flagged of 50 on, against 5 of 50, z standard errors fit into the gap."""
    refused = []
    for above in range(5, 25):
        gap = (above - 5) / 50
        error = ((variance((above, 50)) + variance((5, 50))) / 50) ** 0.5
        refused.append(gap <= Z * error)
        made = estimate((7, 50), (5, 50), (above, 50))
        assert (made.value is None) == refused[-1]
    assert set(refused) == {True, False}


def test_labels_that_fail_the_blind_test_give_no_estimate():
    made = contamination_rate(
        Flagged(50, 200), Flagged(10, 200), Flagged(90, 200), blind_warns=True
    )
    assert made.value is None
    assert made.reason == "the calibration labels can be told apart without the model"


def covered(case, share, n_runs, seed):
    """Share of simulated intervals that hold the share of members among the targets."""
    n, n0, n1, fpr, tpr = case
    rng = np.random.default_rng(seed)
    n_members = round(share * n)
    hits = []
    for _ in range(n_runs):
        flagged = rng.binomial(n_members, tpr) + rng.binomial(n - n_members, fpr)
        made = estimate((flagged, n), (rng.binomial(n0, fpr), n0), (rng.binomial(n1, tpr), n1))
        hits.append(made.low is not None and made.low <= n_members / n <= made.high)
    return np.mean(hits)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_intervals_cover_what_they_claim(share):
    rates = [covered(case, share, 500, seed) for seed, case in enumerate(CASES)]
    assert 0.93 <= np.mean(rates) <= 0.97
    assert min(rates) > 0.92


def bound(above, total, n_null, rank):
    return contamination_bound(Flagged(above, total), n_null=n_null, rank=rank)


def bound_reference(above, total, n_null, rank):
    """The smallest M; the distribution of exceedances by counting orders of the pooled scores."""
    for members in range(above + 1):
        others, beyond = total - members, above - members
        # At least `beyond` of the others lie above the k-th largest null exactly if fewer than k
        # nulls are among the beyond + k - 1 highest of all.
        drawn = beyond + rank - 1
        ways = sum(
            comb(n_null, nulls) * comb(others, drawn - nulls)
            for nulls in range(min(rank, drawn + 1))
            if drawn - nulls <= others
        )
        if beyond <= 0 or ways / comb(n_null + others, drawn) > 0.05:
            return members / total
    return None


@pytest.mark.parametrize("above", [0, 1, 3, 7, 12, 20])
@pytest.mark.parametrize(("n_null", "rank"), [(19, 1), (40, 2), (100, 5)])
def test_the_bound_equals_its_reference(above, n_null, rank):
    made = bound(above, 20, n_null, rank)
    assert made.low == bound_reference(above, 20, n_null, rank)
    assert (made.value, made.high, made.method) == (None, 1, "beta_binomial")
    assert "exchangeable" in made.assumption
    assert made.reason


def test_the_bound_by_hand():
    """One target above all of 19 nulls has a chance of 1/20; two of two, 1/210."""
    assert bound(1, 1, 19, 1).low == 1
    assert bound(1, 1, 18, 1).low == 0
    assert bound(2, 2, 19, 1).low == 1


def test_the_distribution_of_exceedances_in_two_forms():
    """The beta-binomial of the formula and the draw without replacement of the reference."""
    assert betabinom.sf(5, 20, 3, 38) == pytest.approx(hypergeom.cdf(2, 60, 40, 8))


@pytest.mark.parametrize(("share", "tpr"), [(0, 0.5), (0.2, 0.2), (0.2, 1), (0.5, 0.9)])
def test_the_bound_is_seldom_above_the_truth(share, tpr):
    rng = np.random.default_rng(7)
    n_null, total, rank = 199, 100, 10
    n_members = round(share * total)
    right = []
    for _ in range(600):
        fpr = rng.beta(rank, n_null + 1 - rank)
        flagged = rng.binomial(n_members, tpr) + rng.binomial(total - n_members, fpr)
        right.append(bound(flagged, total, n_null, rank).low <= share)
    assert np.mean(right) >= 0.95 - 3 * (0.95 * 0.05 / 600) ** 0.5


def test_a_strong_attack_gives_a_bound_near_the_truth():
    assert 0.4 < bound(52, 100, 199, 2).low <= 0.5
