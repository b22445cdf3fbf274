from __future__ import annotations

from itertools import product
from statistics import NormalDist, variance

import numpy as np
import pytest
from scipy.stats import t

from mia_batch.stats.intervals import estimate_auc

SCORE = np.arange(20, dtype=np.float64)


def wins(member, nonmember):
    return (member > nonmember) + (member == nonmember) / 2


def obuchowski_reference(member, score, cluster):
    """Obuchowski 1997, section 2: sums of placements by cluster, and their products.

    In place of K / (K - 1) each cluster has 1 / (1 - its share of the class's texts).
    """
    members = [(x, c) for m, x, c in zip(member, score, cluster, strict=True) if m]
    others = [(y, c) for m, y, c in zip(member, score, cluster, strict=True) if not m]
    auc = sum(wins(x, y) for (x, _), (y, _) in product(members, others))
    auc /= len(members) * len(others)
    sums = {name: [0.0, 0.0] for name in cluster}
    for x, c in members:
        sums[c][0] += (sum(wins(x, y) for y, _ in others) / len(others) - auc) / len(members)
    for y, c in others:
        sums[c][1] += (sum(wins(x, y) for x, _ in members) / len(members) - auc) / len(others)
    total = 0.0
    for name, (a, b) in sums.items():
        f1, f0 = (
            1 / (1 - sum(c == name for _, c in texts) / len(texts)) for texts in (members, others)
        )
        total += f1 * a * a + f0 * b * b + 2 * (f1 * f0) ** 0.5 * a * b
    return auc, total


def delong_reference(member, score):
    members, others = score[member], score[~member]
    of_members = [sum(wins(x, y) for y in others) / len(others) for x in members]
    of_others = [sum(wins(x, y) for x in members) / len(members) for y in others]
    return variance(of_members) / len(members) + variance(of_others) / len(others)


@pytest.mark.parametrize("mixed", [False, True])
def test_the_variance_of_clusters_equals_its_reference(mixed):
    rng = np.random.default_rng(0)
    cluster = rng.integers(0, 9, 60).astype(np.int32)
    member = rng.random(60) < 0.4 if mixed else cluster < 4
    score = rng.integers(0, 12, 60) + 2.0 * member
    auc, expected = obuchowski_reference(member, score, cluster)
    estimate, _ = estimate_auc(member, score, cluster)
    assert (estimate.value, estimate.variance) == pytest.approx((auc, expected), rel=1e-12)


def test_clusters_of_one_text_are_independent_texts():
    rng = np.random.default_rng(0)
    member = rng.random(50) < 0.5
    score = rng.integers(0, 9, 50) + 1.0 * member
    alone, _ = estimate_auc(member, score)
    clustered, _ = estimate_auc(member, score, rng.permutation(50).astype(np.int32))
    assert alone.variance == pytest.approx(delong_reference(member, score), rel=1e-12)
    assert clustered.variance == pytest.approx(alone.variance, rel=1e-12)
    assert clustered.sizes == alone.sizes == (member.sum(), (~member).sum())
    assert alone.n_groups is None


def test_by_hand():
    """Members 1, 3 in cluster 0 and 4 in 1; non-members 0 in 2 and 2 in 3.

    Placements 1/2, 1, 1 and, from the other side, 1, 2/3; the AUC is 5/6. Members' clusters add
    (-1/3 + 1/6) / 3 and (1/6) / 3, times sqrt(3) and sqrt(3/2), for they have 2 and 1 texts of 3;
    non-members' (1/6) / 2 and (-1/6) / 2, times sqrt(2).
    """
    member = np.array([True, True, True, False, False])
    cluster = np.array([0, 0, 1, 2, 3], dtype=np.int32)
    estimate, influence = estimate_auc(member, np.array([1.0, 3, 4, 0, 2]), cluster)
    assert estimate.value == pytest.approx(5 / 6)
    expected = np.array([-1 / 18, 1 / 18, 1 / 12, -1 / 12]) * np.sqrt([3, 3 / 2, 2, 2])
    assert influence.tolist() == pytest.approx(expected.tolist())
    assert list(estimate.sizes) == pytest.approx([9 / 5, 2])  # Kish: 3^2 / (2^2 + 1^2)
    assert estimate.n_groups == pytest.approx(9 / 5)


def test_a_single_cluster_has_no_variance():
    member = np.array([True, True, False, False])
    cluster = np.array([0, 0, 1, 2], dtype=np.int32)
    assert estimate_auc(member, np.array([1.0, 3, 0, 2]), cluster)[0].variance == 0


def test_quantiles_of_few_groups_are_those_of_student():
    member = np.arange(12) < 5
    estimate, _ = estimate_auc(member, SCORE[:12], np.arange(12, dtype=np.int32))
    z = NormalDist().inv_cdf(0.975)
    assert estimate.quantile(z) == pytest.approx(t(4).ppf(0.975))
    assert estimate_auc(member, SCORE[:12])[0].quantile(z) == z


@pytest.mark.parametrize(
    ("sizes", "worth"), [([1] * 3, 3), ([1] * 4, 4), ([12, *[1] * 12], 3.7), ([8, *[1] * 12], 5.3)]
)
def test_an_interval_needs_groups_worth_four_of_one_size_in_each_class(sizes, worth):
    cluster = np.repeat(np.arange(len(sizes) + 20), [*sizes, *[1] * 20]).astype(np.int32)
    member = cluster < len(sizes)
    score = np.arange(member.size, dtype=float)
    estimate, _ = estimate_auc(member, score, cluster)
    few = (
        f"an interval needs 4 independent groups of texts of one size in each class, these are "
        f"worth {estimate.n_groups:.3g}"
    )
    assert estimate.n_groups == pytest.approx(worth, abs=0.05)
    assert estimate.lack == (few if worth < 4 else None)
    assert estimate_auc(member, score)[0].lack is None
