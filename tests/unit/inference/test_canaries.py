from __future__ import annotations

from itertools import product
from math import isnan, nan

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mia_batch.inference.verdicts import canary_p_value, canary_ranks, rank_sum_p_value

SCORES = st.one_of(st.integers(0, 4), st.just(nan))
SETS = st.lists(st.lists(SCORES, min_size=2, max_size=4), min_size=1, max_size=4)


def ranks_of(scores):
    return canary_ranks(scores[0], np.array(scores[1:], float))


def ranks_reference(scores):
    """Mean ranks; an unscored published text is lowest, each unscored control above all."""
    published, *controls = scores
    keyed = [-1 if isnan(published) else published]
    keyed += [100 - index if isnan(control) else control for index, control in enumerate(controls)]
    return [sum(other < one for other in keyed) + (keyed.count(one) + 1) / 2 for one in keyed]


def sum_reference(sets):
    """All draws of one text per set, each as likely as the others."""
    observed = sum(ranks[0] for ranks in sets)
    sums = [sum(drawn) for drawn in product(*sets)]
    return sum(one >= observed for one in sums) / len(sums)


def test_one_set_by_hand():
    """Of the controls 1, 2, 2, 3 three reach 2 and none reaches 4."""
    controls = np.array([1.0, 2, 2, 3])
    assert [canary_p_value(score, controls) for score in (4.0, 2.0, 0.0)] == [1 / 5, 4 / 5, 1]


def test_unscored_controls_count_as_higher_and_an_unscored_canary_has_no_p_value():
    assert canary_p_value(9.0, np.array([1, nan, 3])) == 2 / 4
    assert np.isnan(canary_p_value(nan, np.array([1.0, 2])))


def test_ranks_by_hand():
    assert ranks_of([2, 1, 2, 3]).tolist() == [2.5, 1, 2.5, 4]
    assert ranks_of([2, nan, 1, nan]).tolist() == [2, 4, 1, 3]
    assert ranks_of([nan, 1, 0]).tolist() == [1, 3, 2]


@given(st.lists(SCORES, min_size=2, max_size=6))
def test_ranks_equal_their_reference(scores):
    assert ranks_of(scores).tolist() == ranks_reference(scores)


def test_two_sets_by_hand():
    """Ranks of two pairs sum to 4 in one of four draws, to 3 or more in three."""
    top, low = ranks_of([2, 1]), ranks_of([1, 2])
    assert rank_sum_p_value([top, top]) == 1 / 4
    assert rank_sum_p_value([top, low]) == 3 / 4
    assert rank_sum_p_value([low, low]) == 1


@given(SETS)
def test_the_sum_of_ranks_equals_its_reference(sets):
    ranks = [ranks_of(scores) for scores in sets]
    made = rank_sum_p_value(ranks)
    assert made == pytest.approx(sum_reference(ranks))
    assert 0 < made <= 1


def test_an_unscored_canary_counts_against_the_sum():
    sets = [ranks_of([5, 1, 2]), ranks_of([6, 3, 1])]
    with_a_loss = [sets[0], ranks_of([nan, 3, 1])]
    assert rank_sum_p_value(sets) == 1 / 9
    assert rank_sum_p_value(with_a_loss) == pytest.approx(6 / 9)


def test_canary_ranks_are_uniform_where_nothing_is_remembered():
    rng = np.random.default_rng(8)
    scores = rng.normal(size=(3000, 10))
    ranks = [canary_ranks(one[0], one[1:])[0] for one in scores]
    counts = np.bincount(np.array(ranks, int), minlength=11)[1:]
    chi_square = ((counts - 300) ** 2 / 300).sum()
    assert chi_square < 21.67  # 99 % of a chi-square distribution with 9 degrees of freedom
    p = np.array([canary_p_value(one[0], one[1:]) for one in scores])
    for tenth in range(1, 11):
        assert np.mean(p <= tenth / 10 + 1e-9) == pytest.approx(tenth / 10, abs=0.02)


def test_the_sum_of_ranks_rejects_as_often_as_it_may():
    rng = np.random.default_rng(9)
    found = [
        rank_sum_p_value([canary_ranks(one[0], one[1:]) for one in np.round(sets, 1)])
        for sets in rng.normal(size=(800, 5, 8))
    ]
    assert np.mean(np.array(found) <= 0.05) == pytest.approx(0.05, abs=0.023)
