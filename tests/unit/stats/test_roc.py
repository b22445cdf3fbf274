from __future__ import annotations

import numpy as np
import pytest

from mia_batch.stats.intervals import roc_auc, roc_curve

# Falling scores: member 4; member and non-member tied at 3; non-member 2; member 1.
MEMBER = np.array([False, True, True, False, True])
SCORE = np.array([2.0, 4.0, 3.0, 3.0, 1.0])


def test_ties_move_together():
    curve = roc_curve(MEMBER, SCORE)
    assert curve.threshold.tolist() == [np.inf, 4, 3, 2, 1]
    assert curve.fpr.tolist() == [0, 0, 1 / 2, 1, 1]
    assert curve.tpr.tolist() == [0, 1 / 3, 2 / 3, 2 / 3, 1]


def test_area_by_hand():
    """Six pairs: 4 beats both, 3 beats 2 and ties with 3, 1 beats none."""
    assert roc_auc(MEMBER, SCORE) == pytest.approx((2 + 1.5 + 0) / 6)


def test_members_are_the_positive_class_and_high_scores_mean_member():
    assert roc_auc(np.array([True, False]), np.array([2.0, 1.0])) == 1.0
    assert roc_auc(np.array([False, True]), np.array([2.0, 1.0])) == 0.0


@pytest.mark.parametrize(
    ("budget", "threshold", "fpr", "tpr"),
    [
        (0.0, 4, 0, 1 / 3),
        (0.49, 4, 0, 1 / 3),  # the nearest point would exceed it
        (0.5, 3, 0.5, 2 / 3),  # exactly spent
        (0.99, 3, 0.5, 2 / 3),
        (1.0, 1, 1, 1),  # of the points at 1 the one with the largest TPR
    ],
)
def test_the_budget_is_spent_but_never_exceeded(budget, threshold, fpr, tpr):
    point = roc_curve(MEMBER, SCORE).at_fpr(budget)
    assert (point.threshold, point.fpr, point.tpr) == (threshold, fpr, tpr)


def test_where_the_best_score_is_a_non_members_nothing_can_be_flagged():
    point = roc_curve(np.array([True, False]), np.array([1.0, 2.0])).at_fpr(0.5)
    assert (point.threshold, point.fpr, point.tpr) == (np.inf, 0, 0)


@pytest.mark.parametrize(("n", "budget"), [(10, 0.1), (30, 0.1), (1000, 0.001), (200, 0.005)])
def test_decimal_budgets_meet_the_rates_they_name(n, budget):
    """One false positive in ten is within 10 %, whatever binary fractions do."""
    member = np.arange(n + 1) == n
    score = np.where(member, n - round(n * budget), np.arange(n + 1)).astype(float)
    assert roc_curve(member, score).at_fpr(budget).fpr == round(n * budget) / n


def test_widest_gap_is_the_highest_threshold_of_the_best():
    point = roc_curve(MEMBER, SCORE).widest_gap()
    assert (point.threshold, point.fpr, point.tpr) == (4, 0, 1 / 3)
