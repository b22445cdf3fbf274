from collections import Counter

import numpy as np
import pytest

from mia_batch.stats.intervals import deal_folds, design_effect, permute_labels


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


PURE = np.repeat([True, True, False, False, False, True], [3, 1, 2, 4, 1, 2])
SIZES = np.repeat(np.arange(6), [3, 1, 2, 4, 1, 2])


def deal(label, cluster, *, n_folds=2, seed=0):
    generator = np.random.default_rng(seed)
    return deal_folds(label, cluster, n_folds=n_folds, generator=generator)


@pytest.mark.parametrize("seed", range(2))
def test_each_kind_of_cluster_is_dealt_evenly(seed):
    cluster = np.repeat(np.arange(30), 4)
    label = np.concatenate([np.repeat([True, False], 44), np.tile([True, False], 16)])
    folds = deal(label, cluster, n_folds=5, seed=seed)
    assert np.bincount(folds.fold).tolist() == [6] * 5
    for kind in (slice(0, 11), slice(11, 22), slice(22, 30)):
        assert np.ptp(np.bincount(folds.fold[kind], minlength=5)) <= 1
    assert folds.fold_of_text.reshape(30, 4).tolist() == [
        [fold] * 4 for fold in folds.fold
    ]


def test_texts_without_clusters_are_permuted_within_folds_evenly():
    label = np.array([True, True, False, False])
    folds = deal(label, np.arange(4))
    generator = np.random.default_rng(1)
    drawn = Counter(tuple(permute_labels(label, folds, generator)) for _ in range(4000))
    assert len(drawn) == 4
    for labels, times in drawn.items():
        assert [sum(np.array(labels)[folds.fold == fold]) for fold in (0, 1)] == [1, 1]
        assert times == pytest.approx(1000, abs=4 * 27.4)  # four standard deviations


def test_clusters_of_one_class_swap_whole_labels():
    folds = deal(PURE, SIZES)
    generator = np.random.default_rng(2)
    seen = set()
    for _ in range(50):
        labels = permute_labels(PURE, folds, generator)
        of_cluster = [set(labels[cluster == SIZES]) for cluster in range(6)]
        assert all(len(labels) == 1 for labels in of_cluster)
        true = np.array([labels == {True} for labels in of_cluster])
        for fold in (0, 1):
            here = folds.fold == fold
            assert (
                true[here].sum()
                == np.array([True, True, False, False, False, True])[here].sum()
            )
        seen.add(tuple(true))
    assert len(seen) > 1


def test_clusters_keep_halves_of_their_texts_and_other_shares_leave_both_classes():
    cluster = np.repeat(np.arange(6), 8)
    label = np.tile(np.repeat([True, False], 4), 6)
    folds = deal(label, cluster)
    generator = np.random.default_rng(3)
    labels = np.array([permute_labels(label, folds, generator) for _ in range(500)])
    assert (labels.reshape(500, 6, 8).sum(axis=2) == 4).all()
    assert labels.mean(axis=0) == pytest.approx(np.full(48, 0.5), abs=0.1)
    cluster = np.repeat(np.arange(8), [2, 7] * 4)
    label = np.concatenate([[True, False, *[True] * 6, False]] * 4)
    folds = deal(label, cluster)
    generator = np.random.default_rng(4)
    for _ in range(100):
        shares = np.bincount(cluster, permute_labels(label, folds, generator))
        assert (shares >= 1).all()
        assert (shares < np.bincount(cluster)).all()


@pytest.mark.parametrize("seed", range(5))
def test_texts_of_both_classes_are_outside_each_fold(seed):
    """Two clusters of a class are enough, wherever else its texts are."""
    cluster = np.repeat(np.arange(8), 2)
    label = np.zeros(16, dtype=bool)
    label[[0, 2, 3]] = True  # a cluster of both classes, and one of the first
    folds = deal(label, cluster, seed=seed)
    labels = permute_labels(label, folds, np.random.default_rng(seed))
    for fold in (0, 1):
        outside = folds.fold_of_text != fold
        assert set(label[outside]) == set(labels[outside]) == {True, False}
