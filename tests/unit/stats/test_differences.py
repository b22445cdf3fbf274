from statistics import NormalDist

import numpy as np
import pytest
from scipy.stats import t

from mia_batch.stats.intervals import (
    AucEstimate,
    AucResult,
    auc_difference,
    auc_interval,
    auc_limits,
    holm,
    roc_auc,
    simultaneous_bounds,
)

Z = NormalDist().inv_cdf(0.975)


def delong_reference(member, first, second):
    """DeLong et al. 1988, equation 7: variance of a contrast of two areas."""

    def placements(score):
        above = np.sign(score[member][:, None] - score[~member][None, :]) / 2 + 0.5
        return above.mean(axis=1), above.mean(axis=0)

    (a1, a0), (b1, b0) = placements(first), placements(second)
    total = 0.0
    for a, b in ((a1, b1), (a0, b0)):
        covariance = np.cov(a, b) / a.size
        total += covariance[0, 0] + covariance[1, 1] - 2 * covariance[0, 1]
    return float(total)


def difference(*texts, **options):
    return auc_difference(*texts, **options)


def pair(n=80, *, seed=0):
    rng = np.random.default_rng(seed)
    member = rng.permutation(np.arange(n) % 2 == 0)
    first = rng.normal(size=n).round(1) + member
    return member, first, (first + rng.normal(size=n)).round(1)


def test_it_equals_its_reference_over_the_texts_that_have_both_scores():
    member, first, second = pair()
    made = difference(member, first, second)
    assert made.value == pytest.approx(roc_auc(member, first) - roc_auc(member, second))
    error = delong_reference(member, first, second) ** 0.5
    assert made.interval.method == "delong_paired"
    limits = (made.interval.low, made.interval.high)
    assert limits == pytest.approx(
        (made.value - Z * error, made.value + Z * error), rel=1e-12
    )
    p = 2 * NormalDist().cdf(-abs(made.value / error))
    assert made.p_value == pytest.approx(p, rel=1e-6)
    member, first, second = pair()
    whole = difference(member[4:], first[4:], second[4:])
    first[:2], second[2:4] = np.nan, np.inf
    made = difference(member, first, second)
    assert made == whole
    assert made.n_members + made.n_nonmembers == 76


def test_clusters_widen_it_and_take_students_t():
    member, first, second = pair(40)
    cluster = np.repeat(np.arange(40), 9).astype(np.int32)
    copies = [np.repeat(values, 9) for values in (first, second)]
    alone = difference(member, first, second)
    made = difference(np.repeat(member, 9), *copies, cluster=cluster)
    assert made.value == pytest.approx(alone.value)
    assert made.interval.method == "cluster_paired_t"
    widened = (made.interval.high - made.interval.low) / (
        alone.interval.high - alone.interval.low
    )
    assert widened == pytest.approx(t(19).ppf(0.975) / Z)


def test_scores_that_rank_alike_and_areas_of_1_have_a_difference_with_a_width():
    member, first, _ = pair()
    made = difference(member, first, 2 * first)
    interval = auc_interval(first[member], first[~member])
    assert (made.value, made.p_value, made.interval.method) == (0, 1, "mover")
    below = np.hypot(
        roc_auc(member, first) - interval.low, interval.high - roc_auc(member, first)
    )
    assert (made.interval.low, made.interval.high) == pytest.approx((-below, below))
    member = np.arange(60) < 30
    made = difference(member, member.astype(np.float64), 0 - member.astype(np.float64))
    assert made.value == made.interval.high == 1
    assert 0.90 < made.interval.low < 0.91


def test_one_class_alone_and_few_groups_have_a_reason():
    made = difference(np.array([True]), np.array([1.0]), np.array([2.0]))
    assert (made.value, made.interval) == (None, None)
    assert made.reason == "a class has no text that has both scores"
    member, first, second = pair()
    made = difference(
        member, first, second, cluster=(np.arange(80) % 3).astype(np.int32)
    )
    assert made.value is not None
    assert (made.interval, made.p_value) == (None, None)
    assert made.reason.startswith(
        "an interval needs 4 independent groups of texts of one size in"
    )


@pytest.mark.parametrize("shift", [0.0, 3.0], ids=["delong", "mover"])
def test_the_p_value_is_the_level_at_which_the_interval_ends_at_0(shift):
    member, first, second = pair()
    made = difference(member, first + 2 * shift * member, second + shift * member)
    again = difference(
        member,
        first + 2 * shift * member,
        second + shift * member,
        confidence=1 - made.p_value,
    )
    assert made.interval.method == ("mover" if shift else "delong_paired")
    assert min(abs(again.interval.low), abs(again.interval.high)) == pytest.approx(
        0, abs=1e-6
    )


@pytest.mark.parametrize(
    ("p", "expected"),
    [
        # 0.01 times 4, 0.02 times 3, 0.03 times 2 is no less than the one before, 0.5
        ([0.5, 0.01, 0.03, 0.02], [0.5, 0.04, 0.06, 0.06]),
        ([np.nan, 0.01], [np.nan, 0.02]),  # it counts as 1
        ([0.9, 0.8], [1, 1]),
        ([], []),
    ],
)
def test_p_values_adjusted_by_hand(p, expected):
    assert holm(np.array(p)) == pytest.approx(expected, nan_ok=True)


SIZES = (50.0, 60.0)


def tried(value, errors, *, variance=0.0025, n_groups=None):
    sizes = SIZES if n_groups is None else (float(n_groups), 60.0)
    estimate = AucEstimate(
        value=value, variance=variance, sizes=sizes, clustered=n_groups is not None
    )
    return AucResult(estimate=estimate, errors=np.asarray(errors, float), counts={})


def bounds(*many):
    found = simultaneous_bounds(
        {(str(number), "all"): one for number, one in enumerate(many)}
    )
    return list(found.values())


def influences(n_attacks):
    return np.random.default_rng(0).normal(0, 0.05, (n_attacks, 1000))


@pytest.mark.parametrize("n", [1, 10])
def test_independent_areas_are_bounded_as_by_sidak(n):
    found = bounds(*(tried(0.7, of_one) for of_one in influences(n)))
    z = NormalDist().inv_cdf(0.95 ** (1 / n))
    for bound in found:
        assert bound.low == pytest.approx(
            auc_limits(0.7, 0.0025, SIZES, z)[0], abs=0.006
        )
        assert bound[1:] == (1, 0.95, f"max_t over {n}")


def test_bounds_of_an_area_of_1_and_of_few_groups():
    drawn = influences(1)[0]
    sure = tried(1.0, np.zeros(1000), variance=0.0)
    found = bounds(sure, *[tried(0.7, drawn)] * 9)
    z = NormalDist().inv_cdf(1 - 0.05 / 10)
    expected = [auc_limits(1.0, 0, SIZES, z)[0], auc_limits(0.7, 0.0025, SIZES, z)[0]]
    assert [bound.low for bound in found[:2] if bound] == pytest.approx(expected)
    assert expected[0] < 1
    drawn = influences(1)[0]
    few, none = bounds(tried(0.7, drawn, n_groups=8), tried(0.7, drawn, n_groups=3))
    low = auc_limits(0.7, 0.0025, SIZES, t(7).ppf(0.95))[0]
    assert few.low == pytest.approx(low, abs=0.006)
    assert few.method == "max_t over 2"
    assert none is None
    assert bounds(tried(1.0, [0.0], variance=np.nan, n_groups=1)) == [None]
