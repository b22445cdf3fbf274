"""Ratios of sums over texts, beside the formula written out, a jackknife and known coverage."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import expit, logit
from scipy.stats import t

from mia_batch.stats.intervals import ratio_difference, ratio_of_sums


@pytest.fixture
def drawn():
    """Numerators and denominators of 60 texts in 20 clusters of 3, alike within each."""
    rng = np.random.default_rng(3)
    cluster = np.repeat(np.arange(20), 3)
    below = rng.integers(3, 20, 60).astype(float)
    level = rng.beta(3, 5, 20)[cluster]
    return rng.binomial(below.astype(int), level).astype(float), below, cluster


def reference_error(above, below, cluster):
    """Standard error by the sums of whole clusters, one by one."""
    ratio, total, k = above.sum() / below.sum(), below.sum(), len(set(cluster))
    squares = [
        (above[cluster == c].sum() - ratio * below[cluster == c].sum()) ** 2 for c in set(cluster)
    ]
    return (k / (k - 1) * sum(squares)) ** 0.5 / total


def test_an_interval_is_that_of_the_formula(drawn):
    above, below, cluster = drawn
    found = ratio_of_sums(np.stack([above, below]), cluster)
    value, error = above.sum() / below.sum(), reference_error(above, below, cluster)
    half = t.ppf(0.975, 19) * error / (value * (1 - value))
    assert found.value == pytest.approx(value)
    assert found.interval is not None
    limits = found.interval.low, found.interval.high
    assert limits == pytest.approx(expit([logit(value) - half, logit(value) + half]))


def test_the_error_is_about_that_of_a_jackknife_over_clusters(drawn):
    above, below, cluster = drawn
    without = [
        above[cluster != c].sum() / below[cluster != c].sum() for c in range(cluster.max() + 1)
    ]
    jackknife = (19 * np.var(without)) ** 0.5
    assert reference_error(above, below, cluster) == pytest.approx(jackknife, rel=0.05)


def test_a_difference_has_the_error_of_the_pair(drawn):
    above, below, cluster = drawn
    less = np.maximum(above - 1, 0)
    found = ratio_difference(np.stack([above, below]), np.stack([less, below]), cluster)
    assert found.interval is not None
    half = t.ppf(0.975, 19) * reference_error(above - less, below, cluster)
    assert found.value == pytest.approx((above - less).sum() / below.sum())
    assert found.interval.high - found.interval.low == pytest.approx(2 * half)
    apart = ratio_of_sums(np.stack([above, below]), cluster).interval
    assert apart is not None
    assert 2 * half < apart.high - apart.low


def test_what_data_cannot_support_has_a_reason(drawn):
    above, below, cluster = drawn
    pair = np.stack([above, below])
    same = ratio_difference(pair, pair, cluster)
    assert (same.value, same.interval) == (0.0, None)
    assert same.reason == "all groups of texts agree, so that the spread is unknown"
    nothing = ratio_of_sums(0 * pair, cluster)
    assert (nothing.value, nothing.reason) == (None, "there is nothing to take a share of")
    assert ratio_of_sums(np.stack([0 * above, below]), cluster).value == 0.0
    few = ratio_of_sums(pair, cluster // 7)
    assert few.interval is None
    assert few.reason is not None
    assert few.reason.startswith("an interval needs 4 independent groups")


def test_intervals_cover_the_true_ratio():
    rng = np.random.default_rng(0)
    cluster, covered = np.repeat(np.arange(25), 4), 0
    for _ in range(400):
        below = rng.integers(3, 20, 100)
        above = rng.binomial(below, rng.beta(3, 7, 25)[cluster])
        interval = ratio_of_sums(np.stack([above, below]).astype(float), cluster).interval
        assert interval is not None
        covered += interval.low <= 0.3 <= interval.high
    assert 0.92 < covered / 400 < 0.98
