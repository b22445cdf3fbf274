from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mia_batch.stats.intervals import roc_auc, roc_curve

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

CLASS = st.lists(st.integers(-5, 5), min_size=1, max_size=40)


def labelled(
    members: Iterable[float], nonmembers: Iterable[float]
) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
    score = np.array([*members, *nonmembers], float)
    return np.arange(score.size) < len([*members]), score


@given(CLASS, CLASS)
def test_the_area_of_negated_scores_is_what_is_left_of_1(members, nonmembers):
    member, score = labelled(members, nonmembers)
    assert roc_auc(member, -score) == pytest.approx(1 - roc_auc(member, score))


@given(CLASS, CLASS)
def test_rising_maps_change_nothing(members, nonmembers):
    member, score = labelled(members, nonmembers)
    curve, mapped = roc_curve(member, score), roc_curve(member, np.exp(score) * 3 - 7)
    assert roc_auc(member, np.exp(score)) == roc_auc(member, score)
    assert mapped.fpr.tolist() == curve.fpr.tolist()
    assert mapped.tpr.tolist() == curve.tpr.tolist()


@given(CLASS, CLASS, st.floats(0, 1))
def test_the_budget_is_never_exceeded_and_no_allowed_threshold_does_better(
    members, nonmembers, budget
):
    member, score = labelled(members, nonmembers)
    point = roc_curve(member, score).at_fpr(budget)
    flagged = score >= point.threshold
    assert flagged[~member].mean() == point.fpr <= budget
    assert flagged[member].mean() == point.tpr
    for threshold in set(score):
        if (score[~member] >= threshold).mean() <= budget:
            assert (score[member] >= threshold).mean() <= point.tpr


@given(CLASS, CLASS)
def test_the_area_is_the_chance_that_a_member_outscores_a_non_member(members, nonmembers):
    member, score = labelled(members, nonmembers)
    beaten = np.sign(score[member][:, None] - score[~member][None, :])
    assert roc_auc(member, score) == pytest.approx((beaten.mean() + 1) / 2)
