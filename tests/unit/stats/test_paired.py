from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import t, ttest_1samp

from mia_batch.stats.intervals import cluster_means, removed_share

ERROR_OF_RATE = (0.05 * 0.95 / 2000) ** 0.5


def means(difference, cluster, unit=None):
    difference, cluster = np.asarray(difference, float), np.asarray(cluster)
    unit = np.zeros(cluster.size, np.intp) if unit is None else np.asarray(unit)
    return cluster_means(difference.reshape(cluster.size, -1), unit, cluster)


def test_by_hand():
    """Sums 3 and 3 of 1 and 3 texts: mean 6/4, gaps 1.5 and -1.5.

    Variance (2.25 / (3/4) + 2.25 / (1/4)) / 16.
    """
    found = means([3, 1, 1, 1], [0, 1, 1, 1])
    assert found.value.tolist() == [[1.5]]
    assert found.covariance.tolist() == [[[0.75]]]
    assert found.effective.tolist() == [1.6]
    assert (found.n.tolist(), found.n_clusters.tolist()) == ([4], [2])


def test_of_independent_texts_it_is_the_paired_t_test():
    difference = np.random.default_rng(0).normal(0.3, size=12)
    found = means(difference, np.arange(12))
    reference = ttest_1samp(difference, 0)
    low, high = reference.confidence_interval()
    assert found.p_values()[0, 0] == pytest.approx(reference.pvalue)
    half = found.half_widths()[0, 0]
    assert (found.value[0, 0] - half, found.value[0, 0] + half) == pytest.approx((low, high))


def test_of_clusters_of_one_size_it_is_the_t_test_of_their_means():
    difference = np.random.default_rng(1).normal(0.3, size=(9, 4))
    found = means(difference.ravel(), np.repeat(np.arange(9), 4))
    assert found.p_values()[0, 0] == pytest.approx(ttest_1samp(difference.mean(axis=1), 0).pvalue)


def test_units_do_not_mix():
    rng = np.random.default_rng(2)
    values, unit, cluster = rng.normal(size=(60, 2)), np.arange(60) % 3, np.arange(60) // 4
    together = cluster_means(values, unit, cluster)
    for each in range(3):
        alone = cluster_means(values[unit == each], np.zeros(20, np.intp), cluster[unit == each])
        assert together.value[each] == pytest.approx(alone.value[0])
        assert together.covariance[each] == pytest.approx(alone.covariance[0])
        assert together.effective[each] == alone.effective[0]


@pytest.mark.parametrize(
    ("difference", "cluster"),
    [([0.1] * 8, range(8)), ([0.1, 0.2, 0.3], range(3)), ([0.1, 0.2] * 9, [*range(2)] * 9)],
    ids=["all equal", "three texts", "two groups"],
)
def test_there_is_no_interval_of_zero_width_or_from_few_clusters(difference, cluster):
    found = means(difference, [*cluster])
    assert np.isnan(found.half_widths()).all()
    assert np.isnan(found.p_values()).all()


@pytest.mark.parametrize("sizes", [[1] * 40, [4] * 8, [*range(1, 16)]], ids=len)
def test_p_values_without_a_difference_are_as_small_as_promised(sizes):
    rng = np.random.default_rng(3)
    cluster = np.repeat(np.arange(len(sizes)), sizes)
    draws = rng.normal(size=(2000, len(sizes)))[:, cluster] + rng.normal(size=(2000, cluster.size))
    unit = np.repeat(np.arange(2000), cluster.size)
    p = means(draws.ravel(), np.tile(cluster, 2000), unit).p_values()
    assert abs(np.mean(p <= 0.05) - 0.05) < 3 * ERROR_OF_RATE


def test_removed_share_by_hand():
    """Gaps 1 and 2, variances 0.01: (4 - q) r^2 - 4 r + 1 - q <= 0, q = 0.01 t^2."""
    found = removed_share(np.array([1.0, 2.0]), np.eye(2) * 0.01, 11)
    q = 0.01 * t.ppf(0.975, 10) ** 2
    assert found.value == 0.5
    assert (found.low, found.high) == pytest.approx(tuple(sorted(np.roots([4 - q, -4, 1 - q]))))
    assert found.reason is None


def test_limits_are_the_shares_at_which_the_paired_t_test_rejects():
    rng = np.random.default_rng(4)
    y = rng.normal(1, size=15)
    x = 0.6 * y + rng.normal(scale=0.3, size=15)
    made = means(np.stack([x, y], axis=1), np.arange(15))
    found = removed_share(made.value[0], made.covariance[0], 15)
    for limit in (found.low, found.high):
        assert limit is not None
        assert ttest_1samp(x - limit * y, 0).pvalue == pytest.approx(0.05)


@pytest.mark.parametrize(
    ("gaps", "effective", "reason"),
    [
        ((1.0, 0.1), 20, "the runs before and of the retrained model cannot be told apart"),
        ((1.0, -2.0), 20, "the run before does not score above that of the retrained model"),
        ((1.0, 2.0), 3, "an interval needs 4 independent groups of texts of one size, these are"),
    ],
)
def test_a_share_of_nothing_is_withheld(gaps, effective, reason):
    found = removed_share(np.array(gaps), np.eye(2) * 0.01, effective)
    assert found.value is None
    assert found.low is None
    assert (found.reason or "").startswith(reason)


def test_the_same_share_everywhere_has_no_interval():
    y = np.random.default_rng(5).normal(1, 0.1, size=20)
    made = means(np.stack([y, y], axis=1), np.arange(20))
    found = removed_share(made.value[0], made.covariance[0], 20)
    assert (found.value, found.low, found.high) == (1, None, None)
    assert (found.reason or "").startswith("the same share is removed everywhere")


def test_intervals_of_removed_shares_cover():
    rng = np.random.default_rng(6)
    cluster, covered = np.repeat(np.arange(12), 3), []
    for _ in range(2000):
        y = 1 + 0.3 * rng.normal(size=12)[cluster] + 0.5 * rng.normal(size=36)
        x = 0.4 * y + 0.3 * rng.normal(size=12)[cluster]
        made = means(np.stack([x, y], axis=1), cluster)
        found = removed_share(made.value[0], made.covariance[0], made.effective[0])
        assert found.low is not None
        assert found.high is not None
        covered.append(found.low <= 0.4 <= found.high)
    assert abs(np.mean(covered) - 0.95) < 3 * ERROR_OF_RATE
