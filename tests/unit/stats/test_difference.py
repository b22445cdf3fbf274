from __future__ import annotations

from statistics import NormalDist

import numpy as np
import pytest
from scipy.stats import t

from mia_batch.stats.differences import auc_difference
from mia_batch.stats.intervals import auc_interval, roc_auc

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


def pair(n=80, *, seed=0):
    rng = np.random.default_rng(seed)
    member = rng.permutation(np.arange(n) % 2 == 0)
    first = rng.normal(size=n).round(1) + member
    return member, first, (first + rng.normal(size=n)).round(1)


def test_it_equals_its_reference():
    member, first, second = pair()
    made = auc_difference(member, first, second)
    assert made.value == pytest.approx(roc_auc(member, first) - roc_auc(member, second))
    half = Z * delong_reference(member, first, second) ** 0.5
    assert made.interval is not None
    assert made.interval.method == "delong_paired"
    limits = (made.interval.low, made.interval.high)
    assert limits == pytest.approx((made.value - half, made.value + half), rel=1e-12)


def test_by_hand():
    """Placements (1/2, 1) and (1, 1/2) of members 1, 3 and 3, 1; of non-members both times equal.

    The areas are equal, the members' differences are -1/2 and 1/2: variance 1/2, by two members.
    """
    member = np.array([True, True, False, False])
    made = auc_difference(member, np.array([1.0, 3, 0, 2]), np.array([3.0, 1, 0, 2]))
    assert made.value == 0
    assert made.interval is not None
    assert made.interval.high == pytest.approx(Z * 0.25**0.5)


def test_clusters_widen_it_and_take_students_t():
    member, first, second = pair(40)
    cluster = np.repeat(np.arange(40), 9).astype(np.int32)
    copies = [np.repeat(values, 9) for values in (first, second)]
    alone = auc_difference(member, first, second)
    made = auc_difference(np.repeat(member, 9), *copies, cluster=cluster)
    assert alone.interval is not None
    assert made.interval is not None
    assert made.value == pytest.approx(alone.value)
    assert made.interval.method == "cluster_paired_t"
    widened = (made.interval.high - made.interval.low) / (alone.interval.high - alone.interval.low)
    assert widened == pytest.approx(t(19).ppf(0.975) / Z)


def test_scores_that_rank_alike_differ_by_nothing_but_within_a_width():
    member, first, _ = pair()
    made = auc_difference(member, first, 2 * first)
    interval = auc_interval(first[member], first[~member])
    assert made.value == 0
    assert made.interval is not None
    assert made.interval.method == "mover"
    below = np.hypot(roc_auc(member, first) - interval.low, interval.high - roc_auc(member, first))
    assert (made.interval.low, made.interval.high) == pytest.approx((-below, below))


def test_areas_of_1_have_a_difference_with_a_width_within_its_range():
    member = np.arange(60) < 30
    made = auc_difference(member, member.astype(np.float64), 0 - member.astype(np.float64))
    assert made.interval is not None
    assert made.value == made.interval.high == 1
    assert 0.90 < made.interval.low < 0.91


def test_only_texts_that_have_both_scores_count():
    member, first, second = pair()
    whole = auc_difference(member[4:], first[4:], second[4:])
    first[:2], second[2:4] = np.nan, np.inf
    made = auc_difference(member, first, second)
    assert made == whole
    assert made.n_members + made.n_nonmembers == 76


def test_one_class_alone_has_a_reason():
    made = auc_difference(np.array([True]), np.array([1.0]), np.array([2.0]))
    assert (made.value, made.interval) == (None, None)
    assert made.reason == "a class has no text that has both scores"


def test_below_four_groups_there_is_a_value_and_a_reason():
    member, first, second = pair()
    made = auc_difference(member, first, second, cluster=(np.arange(80) % 3).astype(np.int32))
    assert made.value is not None
    assert made.interval is None
    assert made.reason is not None
    assert made.reason.startswith("an interval needs 4 independent groups of texts of one size in")


@pytest.mark.parametrize("shift", [0.0, 3.0], ids=["delong", "mover"])
def test_the_p_value_is_the_level_at_which_the_interval_ends_at_0(shift):
    member, first, second = pair()
    made = auc_difference(member, first + 2 * shift * member, second + shift * member)
    assert made.p_value is not None
    again = auc_difference(
        member,
        first + 2 * shift * member,
        second + shift * member,
        confidence=1 - made.p_value,
    )
    assert made.interval is not None
    assert again.interval is not None
    assert made.interval.method == ("mover" if shift else "delong_paired")
    assert min(abs(again.interval.low), abs(again.interval.high)) == pytest.approx(0, abs=1e-6)


def test_the_p_value_is_that_of_delong():
    member, first, second = pair()
    made = auc_difference(member, first, second)
    z = made.value / delong_reference(member, first, second) ** 0.5
    assert made.p_value == pytest.approx(2 * NormalDist().cdf(-abs(z)), rel=1e-6)


def test_scores_that_rank_alike_have_a_p_value_of_1_and_a_lone_group_none():
    member, first, _ = pair()
    assert auc_difference(member, first, 2 * first).p_value == 1
    alone = auc_difference(member, first, -first, cluster=np.zeros(80, np.int32))
    assert alone.p_value is None


def test_p_values_of_scores_that_are_equally_good_are_as_small_as_promised():
    rng, found = np.random.default_rng(7), []
    member = np.arange(400) % 2 == 0
    for _ in range(2000):
        base = rng.normal(size=400) + member
        scores = (base + rng.normal(size=400) for _ in range(2))
        found.append(auc_difference(member, *scores).p_value or 0)
    assert abs(np.mean(np.array(found) <= 0.05) - 0.05) < 3 * (0.05 * 0.95 / 2000) ** 0.5
