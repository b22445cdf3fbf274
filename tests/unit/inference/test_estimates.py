from math import comb

import numpy as np
import polars as pl
import pytest

from mia_batch.inference.comparison import read_comparison_sets
from mia_batch.inference.estimates import (
    MISSING,
    Flagged,
    WindowShare,
    contamination_bound,
    contamination_rate,
    usage_share,
)
from mia_batch.inference.verdicts import verdicts
from tests.unit.inference.scored import plan, rows, table

Z = 1.959963984540054

CASES = [  # targets, calibration non-members and members, FPR, TPR
    (200, 300, 300, 0.05, 0.5),
    (1000, 300, 300, 0.05, 0.3),
    (100, 100, 100, 0.1, 0.8),
    (200, 500, 500, 0.01, 0.95),
]


def estimate(targets, nonmembers, members, **options):
    return contamination_rate(
        Flagged(*targets),
        Flagged(*nonmembers),
        Flagged(*members),
        blind_warns=False,
        **options,
    )


def variance(count_of_class):
    rate = (count_of_class[0] + 1) / (count_of_class[1] + 2)
    return rate * (1 - rate)


def interval_reference(targets, nonmembers, members):
    """Every share on a grid that the three rates do not contradict."""
    flagged, fpr, tpr = (
        above / total for above, total in (targets, nonmembers, members)
    )
    accepted_shares = []
    for share in np.linspace(0, 1, 20_001):
        spread = share * variance(members) / targets[1]
        spread += (1 - share) * variance(nonmembers) / targets[1]
        spread += share**2 * variance(members) / members[1]
        spread += (1 - share) ** 2 * variance(nonmembers) / nonmembers[1]
        if (flagged - (1 - share) * fpr - share * tpr) ** 2 <= Z**2 * spread:
            accepted_shares.append(share)
    return accepted_shares[0], accepted_shares[-1]


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
    interval = estimate(targets, nonmembers, members)
    assert (interval.low, interval.high) == pytest.approx(
        interval_reference(targets, nonmembers, members), abs=6e-5
    )
    assert interval.method == "fieller"


def test_estimates_stay_within_0_and_1():
    assert estimate((0, 50), (5, 100), (80, 100)).value == 0
    assert estimate((45, 50), (5, 100), (80, 100)).value == 1


@pytest.mark.parametrize(
    ("targets", "nonmembers", "members", "reason"),
    [
        (
            (5, 50),
            (5, 50),
            (6, 50),
            "calibration members do not score above non-members",
        ),
        (
            (5, 50),
            (30, 50),
            (5, 50),
            "calibration members do not score above non-members",
        ),
        (
            (99, 100),
            (5, 100),
            (50, 100),
            "more targets are flagged than calibration members",
        ),
        ((0, 900), (50, 100), (90, 100), "fewer targets are flagged than"),
    ],
)
def test_what_the_data_cannot_support_is_refused(targets, nonmembers, members, reason):
    interval = estimate(targets, nonmembers, members)
    assert reason in interval.reason
    assert (interval.value, interval.low, interval.high) == (None, None, None)


def test_intervals_cover_what_they_claim():
    rates = []
    for seed, (n, n0, n1, fpr, tpr) in enumerate(CASES):
        rng, n_members, hits = np.random.default_rng(seed), round(0.1 * n), []
        for _ in range(500):
            flagged = rng.binomial(n_members, tpr) + rng.binomial(n - n_members, fpr)
            interval = estimate(
                (flagged, n), (rng.binomial(n0, fpr), n0), (rng.binomial(n1, tpr), n1)
            )
            hits.append(
                interval.low is not None
                and interval.low <= n_members / n <= interval.high
            )
        rates.append(np.mean(hits))
    assert 0.93 <= np.mean(rates) <= 0.97
    assert min(rates) > 0.92


def bound(above, total, n_null, rank):
    return contamination_bound(Flagged(above, total), n_null=n_null, rank=rank)


def bound_reference(above, total, n_null, rank):
    """The smallest M; the distribution of exceedances by counting orders of the pooled scores."""
    for members in range(above + 1):
        n_nonmembers, beyond = total - members, above - members
        # At least `beyond` of the others lie above the k-th largest null exactly if
        # fewer than k nulls are among the beyond + k - 1 highest of all.
        n_largest = beyond + rank - 1
        ways = sum(
            comb(n_null, nulls) * comb(n_nonmembers, n_largest - nulls)
            for nulls in range(min(rank, n_largest + 1))
            if n_largest - nulls <= n_nonmembers
        )
        if beyond <= 0 or ways / comb(n_null + n_nonmembers, n_largest) > 0.05:
            return members / total
    return None


@pytest.mark.parametrize("above", [0, 1, 3, 7, 12, 20])
@pytest.mark.parametrize(("n_null", "rank"), [(19, 1), (40, 2), (100, 5)])
def test_the_bound_equals_its_reference(above, n_null, rank):
    lower_bound = bound(above, 20, n_null, rank)
    assert lower_bound.low == bound_reference(above, 20, n_null, rank)
    assert (lower_bound.value, lower_bound.high, lower_bound.method) == (
        None,
        1,
        "beta_binomial",
    )
    assert lower_bound.reason


@pytest.mark.parametrize(("share", "tpr"), [(0.2, 0.2), (0.5, 0.9)])
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


NULLS = rows("non_member", [number / 100 for number in range(99)])


def share(*parts, fpr=0.05, blind_warns=False):
    frame = table(rows("target", [0.5]), *parts)
    sets = read_comparison_sets(frame.lazy())
    scores = frame["a_v1"].fill_null(float("nan")).to_numpy()
    return WindowShare(sets, scores, fpr, blind_warns=blind_warns)


def calibration():
    return (
        rows("calibration", np.linspace(0, 1, 200).tolist(), member=False),
        rows("calibration", np.linspace(0.5, 1.5, 200).tolist(), member=True),
    )


def test_the_threshold_is_that_of_the_collection_and_the_bound_leaves_one_window_open():
    assert share(NULLS).threshold == 0.94  # the fifth largest of 99
    assert share(rows("non_member", [0.1, None])).threshold == np.inf
    # Where all windows lie above the threshold, the interval would have no width.
    many_nulls = rows("non_member", [number / 10_000 for number in range(9_999)])
    strict = share(many_nulls, fpr=0.0001)
    assert contamination_bound(Flagged(3, 3), n_null=9_999, rank=1).low == 1
    assert strict.estimate(3, 3, 3).low == pytest.approx(2 / 3)
    assert strict.estimate(1, 1, 1).low == 0


def test_there_is_a_rate_with_calibration_data_else_a_bound_that_says_why():
    rate = share(NULLS, *calibration()).estimate(10, 38, 38)
    # Above 0.94 lie 12 of the 200 non-members, and 112 of the members.
    assert rate == estimate((10, 38), (12, 200), (112, 200))
    # Of two more windows nobody knows on which side they are.
    lost = share(NULLS, *calibration()).estimate(10, 38, 40)
    fewest_reported, most_reported = (
        estimate((n, 40), (12, 200), (112, 200)) for n in (10, 12)
    )
    assert (lost.value, lost.reason) == (None, MISSING.format(2, 40))
    assert lost.low == min(fewest_reported.low, rate.low)
    assert lost.high == max(most_reported.high, rate.high)
    assert rate.value is not None
    bound = contamination_bound(Flagged(30, 40), n_null=99, rank=5)
    for parts, warns, reason in (
        ([NULLS], False, "without calibration data there is a lower bound alone"),
        (
            [NULLS, *calibration()],
            True,
            "the calibration labels can be distinguished without the",
        ),
    ):
        rate = share(*parts, blind_warns=warns).estimate(30, 38, 40)
        assert (rate.value, rate.low, rate.high) == (None, bound.low, 1.0)
        assert rate.reason.startswith(reason)


@pytest.mark.parametrize(
    ("parts", "counts", "reason"),
    [
        ([], (0, 3, 3), "0 null texts are too few, 1 are needed"),
        ([NULLS], (0, 0, 3), "no window has a score"),
        (
            [rows("non_member", [0.1, 0.2, 0.3], group="one")],
            (0, 3, 3),
            "1 null groups are too few, 20 are needed",
        ),
    ],
)
def test_without_enough_to_compare_with_there_is_a_reason(parts, counts, reason):
    rate = share(*parts).estimate(*counts)
    assert (rate.value, rate.low, rate.high, rate.reason) == (
        None,
        None,
        None,
        reason,
    )


def test_calibration_data_of_few_groups_or_without_scores_give_no_rate():
    members = rows("calibration", [0.9, 0.8], member=True, group="one")
    nonmembers = rows("calibration", [0.1, 0.2], member=False)
    rate = share(NULLS, members, nonmembers).estimate(30, 38, 40)
    assert rate.reason == "1 calibration member groups are too few, 20 are needed"
    unscored = rows("calibration", [None], member=True)
    rate = share(NULLS, unscored, nonmembers).estimate(30, 38, 40)
    assert rate.reason == "a class of the calibration data has no score"
    assert rate.low == share(NULLS).estimate(30, 38, 40).low


def test_windows_that_depend_on_each_other_count_less():
    """Four windows each: where all four are flagged or none, they count as one."""
    alike = [score for number in range(99) for score in [number / 100] * 4]
    groups = [f"g{number}" for number in range(99) for _ in range(4)]
    nulls = [
        rows("non_member", [score], group=group)
        for score, group in zip(alike, groups, strict=True)
    ]
    share_of_windows = share(*nulls)
    assert share_of_windows.threshold == 0.94  # the nineteenth largest of 396
    apart = contamination_bound(Flagged(30, 40), n_null=99, rank=5)
    assert share_of_windows.estimate(120, 160, 160).low == apart.low


# The share of the targets that were used, as DUCI estimates it.


def test_the_share_of_used_texts_by_hand():
    """Members score 1, three of four in each half; above 0 TPR - FPR is 0.75, so 0.6 / 0.75."""
    members = np.array([1.0] * 15 + [0.0] * 5)
    targets, nonmembers = np.repeat([1.0, 0.0], [60, 40]), np.zeros(20)
    seeds = range(50)
    estimates = [
        usage_share(targets, nonmembers, members, seed=s, blind_warns=False)
        for s in seeds
    ]
    expected = []
    for rng in map(np.random.default_rng, seeds):
        rng.permutation(nonmembers)
        expected.append(min(0.6 / rng.permutation(members)[10:].mean(), 1))
    assert [estimated_share.value for estimated_share in estimates] == pytest.approx(
        expected
    )
    too_few = usage_share(targets, nonmembers, members[:19], seed=0, blind_warns=False)
    assert too_few.value is None
    assert (
        too_few.reason
        == "19 calibration units of a class are too few to halve, 20 needed"
    )


def test_the_interval_of_the_used_share_covers_because_half_of_the_data_choose():
    """With the threshold chosen where the rates are measured it covers less."""
    rng, here, paper = np.random.default_rng(3), [], []
    for repeat in range(400):
        is_used = rng.random(200) < 0.3
        targets, nonmembers = rng.normal(2.0 * is_used), rng.normal(size=50)
        members, share = rng.normal(2.0, size=50), is_used.mean()
        interval = usage_share(
            targets, nonmembers, members, seed=repeat, blind_warns=False
        )
        here.append(interval.value is None or interval.low <= share <= interval.high)
        thresholds = np.sort(np.concatenate([nonmembers, members]))
        gaps = [(members > t).mean() - (nonmembers > t).mean() for t in thresholds]
        best = thresholds[np.argmax(gaps)]
        counts = [
            (int((scores > best).sum()), scores.size)
            for scores in (targets, nonmembers, members)
        ]
        interval = estimate(*counts)
        paper.append(interval.low <= share <= interval.high)
    assert np.mean(here) >= 0.95 - 2 * (0.05 * 0.95 / 400) ** 0.5
    assert np.mean(paper) < np.mean(here)


# Scores that are missing.


def rates(frame):
    all_verdicts = pl.concat(verdicts(frame.lazy(), ["a_v1"], plan()))
    rows = all_verdicts.filter(estimate="contamination_rate").iter_rows(named=True)
    return {row["method"]: row for row in rows}


def calibrated(n_lost_targets, n_lost_members):
    """A fifth of 200 targets are members, who score 1 and are refused at times; others score 0."""
    refused = [None] * n_lost_targets
    return table(
        rows("target", [*refused, *[1.0] * (40 - n_lost_targets), *[0.0] * 160]),
        rows("non_member", [number / 1000 for number in range(100)]),
        rows("calibration", [0.0] * 100, member=False),
        rows(
            "calibration",
            [*[None] * n_lost_members, *[1.0] * (100 - n_lost_members)],
            member=True,
        ),
    )


def test_limits_hold_whatever_the_missing_scores_would_be():
    whole, lost = rates(calibrated(0, 0)), rates(calibrated(20, 50))
    for method in ("fieller", "duci"):
        assert whole[method]["value"] == pytest.approx(0.2)
        assert whole[method]["reason"] is None
        row = lost[method]
        assert (row["value"], row["reason"]) == (None, MISSING.format(70, 400))
        assert row["low"] < 0.1
        assert row["high"] >= 0.4
        assert whole[method]["low"] > row["low"]
    # By hand: no missing target is a member, and all missing members would be flagged.
    lowest = contamination_rate(
        Flagged(20, 200), Flagged(0, 100), Flagged(100, 100), blind_warns=False
    )
    highest = contamination_rate(
        Flagged(40, 200), Flagged(0, 100), Flagged(50, 100), blind_warns=False
    )
    assert lost["fieller"]["low"] == pytest.approx(lowest.low)
    assert lost["fieller"]["high"] == pytest.approx(highest.high)


def test_few_missing_scores_leave_the_estimate():
    row = rates(calibrated(1, 1))["fieller"]
    assert row["value"] == pytest.approx(39 / 199)
    whole = rates(calibrated(0, 0))["fieller"]
    assert row["low"] < whole["low"] < whole["high"] < row["high"]
