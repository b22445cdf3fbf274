from __future__ import annotations

import numpy as np
import pytest

from mia_batch.stats.clusters import design_effect


def test_by_hand():
    """Clusters of 3, 2 and 1: B = 1.5 / 2, W = (2/3) / 3, m = 14 / 6, n0 = (6 - 14/6) / 2."""
    values, cluster = np.array([1.0, 1, 0, 0, 0, 1]), np.array([7, 7, 7, 2, 2, 9])
    between = (3 * (2 / 3 - 0.5) ** 2 + 2 * 0.5**2 + 0.5**2) / 2
    within = 2 / 3 / 3
    m, n0 = 14 / 6, (6 - 14 / 6) / 2
    rho = (between - within) / (between + (n0 - 1) * within)
    assert design_effect(values, cluster) == pytest.approx(1 + (m - 1) * rho)


@pytest.mark.parametrize(
    ("values", "cluster", "expected"),
    [
        ([], [], 1),
        ([1, 0, 1], [0, 1, 2], 1),  # no cluster of two
        ([1, 0, 1], [0, 0, 0], 1),  # one cluster
        ([1, 1, 1, 1], [0, 0, 1, 1], 1),  # all are equal
        ([1, 1, 0, 0], [0, 0, 1, 1], 2),  # equal within
        ([1, 0, 1, 0], [0, 0, 1, 1], 1),  # less alike within than between
    ],
)
def test_its_limits(values, cluster, expected):
    found = design_effect(np.array(values, np.float64), np.array(cluster, np.int64))
    assert found == pytest.approx(expected)


def test_the_variance_of_a_mean_grows_by_it():
    """Of 2,000 draws of 40 clusters of 6 flags, each cluster with a probability of its own."""
    rng = np.random.default_rng(0)
    cluster = np.repeat(np.arange(40), 6)
    flags = (rng.random((2000, 240)) < rng.beta(1, 4, (2000, 40)).repeat(6, axis=1)) * 1.0
    found = np.mean([design_effect(each, cluster) for each in flags])
    independent = 0.2 * 0.8 / 240
    assert flags.mean(axis=1).var() / independent == pytest.approx(1 + 5 / 6, rel=0.1)
    assert found == pytest.approx(1 + 5 / 6, rel=0.1)
