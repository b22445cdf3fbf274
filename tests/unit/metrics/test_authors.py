from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from sklearn.model_selection import StratifiedKFold

from mia_batch.metrics.evaluate import accuracy_5_fold, tpr_nearest_fpr
from mia_batch.stats.intervals import roc_curve

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray


def labelled(
    members: Iterable[float], nonmembers: Iterable[float]
) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
    score = np.array([*members, *nonmembers], float)
    return np.arange(score.size) < len([*members]), score


def test_the_nearest_point_may_exceed_the_rate():
    """Seven non-members, one tied with the second member: of the rates 0 and 1/7, 1/7 is nearer."""
    member, score = labelled([9, 8], [8, 1, 2, 3, 4, 5, 6])
    assert tpr_nearest_fpr(member, score, 0.1) == 1.0
    assert roc_curve(member, score).at_fpr(0.1).tpr == 0.5


def test_of_points_at_the_same_rate_the_first_counts():
    """The curve climbs at 0.1 from 0 to 1; its corners are kept, and the lower one comes first."""
    member, score = labelled([5, 4], [9, *range(-9, 0)])
    assert tpr_nearest_fpr(member, score, 0.1) == 0.0
    assert roc_curve(member, score).at_fpr(0.1).tpr == 1.0


def test_points_on_straight_lines_are_left_out():
    """Three tied pairs make a line from 5 to 15 %; its middle, at 10 %, is gone."""
    member, score = labelled([9, 8, 7, -9], [9, 8, 7, *range(-8, 0), *range(-8, 1)])
    assert roc_curve(member, score).at_fpr(0.1).tpr == 2 / 4
    assert tpr_nearest_fpr(member, score, 0.1) == 3 / 4


def test_accuracy_of_separated_classes():
    member, score = labelled([2] * 10, [1] * 10)
    assert accuracy_5_fold(member, score) == 1.0


def test_equal_scores_are_all_called_non_members():
    """No threshold has a TPR above its FPR, so the infinite one, the highest, counts."""
    member, score = labelled([1] * 10, [1] * 30)
    assert accuracy_5_fold(member, score) == 0.75


def test_the_threshold_comes_from_the_other_folds():
    """One member scores low. Whichever fold it is in, the others say 9, and it is missed."""
    member, score = labelled([1, 9, 9, 9, 9], [5, 5, 5, 5, 5])
    assert accuracy_5_fold(member, score) == pytest.approx((0.5 + 1 + 1 + 1 + 1) / 5)


def test_accuracy_equals_a_loop_written_from_the_paper():
    rng = np.random.default_rng(0)
    member = np.repeat([True, False], [23, 31])
    score = rng.integers(0, 9, 54) + 2.0 * member
    right = []
    for train, test in StratifiedKFold(5, shuffle=True, random_state=0).split(score, member):
        gaps = {
            threshold: np.mean(score[train][member[train]] >= threshold)
            - np.mean(score[train][~member[train]] >= threshold)
            for threshold in sorted(set(score[train]), reverse=True)
        }
        threshold = max(gaps, key=gaps.__getitem__)
        right.append(np.mean((score[test] >= threshold) == member[test]))
    assert accuracy_5_fold(member, score) == pytest.approx(np.mean(right))
    assert accuracy_5_fold(member, score) == accuracy_5_fold(member, score)
