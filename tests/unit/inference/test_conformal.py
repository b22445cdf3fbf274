from __future__ import annotations

import json
from itertools import permutations
from math import isnan, nan
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mia_batch.inference.conformal import TieDraws, p_values, shared_weights, tie_draws

SCORES = st.lists(st.one_of(st.integers(0, 6), st.just(nan)), max_size=12)


def array(*values: float) -> np.ndarray:
    return np.array(values, float)


def drawn_scores():
    return np.random.default_rng(0).gamma(2, size=300)


def recorded_scores():
    """Loss of a real model on texts that it never saw; the file says which."""
    recorded = Path(__file__).parents[2] / "data" / "nonmember_scores.json"
    return array(*json.loads(recorded.read_text("utf-8"))["scores"])


def reference(score, nulls):
    """Vovk et al. 2005, section 2.2, an unscored null being as strange as can be."""
    higher = sum(isnan(null) or null >= score for null in nulls)
    return (1 + higher) / (1 + len(nulls))


def hierarchical_reference(score, groups):
    """Lee et al. 2023: each null group counts by the share of its texts that score so high."""
    shares = [sum(null >= score for null in group) / len(group) for group in groups]
    return (1 + sum(shares)) / (len(groups) + 1)


def test_by_hand():
    """Of the nulls 1, 2, 2, 5 all reach 1, three reach 2, one reaches 3, none 6."""
    assert p_values(array(1, 2, 3, 6), array(5, 2, 1, 2)).tolist() == [1, 4 / 5, 2 / 5, 1 / 5]


def test_an_unscored_null_counts_as_higher_and_an_unscored_target_has_none():
    made = p_values(array(9, nan, 1), array(2, nan, 3))
    assert made[[0, 2]].tolist() == [2 / 4, 4 / 4]
    assert np.isnan(made[1])


def test_without_nulls_every_p_value_is_1():
    assert p_values(array(3, 4), array()).tolist() == [1, 1]
    assert p_values(array(3), array(nan, nan)).tolist() == [1]
    draws = TieDraws(array(0.5), array())
    assert p_values(array(3), array(), ties=draws).tolist() == [1]


@given(SCORES, SCORES)
def test_p_values_equal_their_reference(scores, nulls):
    made = p_values(array(*scores), array(*nulls))
    for score, p in zip(scores, made.tolist(), strict=True):
        assert isnan(p) if isnan(score) else p == reference(score, nulls)


@given(st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=4), min_size=1, max_size=5))
def test_groups_of_nulls_count_as_one_each(groups):
    nulls = [null for group in groups for null in group]
    clusters = np.repeat(np.arange(len(groups)), [len(group) for group in groups])
    made = p_values(array(*range(7)), array(*nulls), weights=shared_weights(clusters))
    expected = [hierarchical_reference(score, groups) for score in range(7)]
    assert made.tolist() == pytest.approx(expected, abs=1e-9)
    assert made.min() == pytest.approx(1 / (len(groups) + 1))


def test_thirds_add_up_to_one_group():
    weights = shared_weights(np.array([4, 4, 4, *range(5, 23)]))
    assert weights.sum() == pytest.approx(19)
    made = p_values(array(2, 0), array(1, 1, 1, *[-1] * 18), weights=weights)
    assert made.tolist() == [1 / 20, 2 / 20]


def test_random_ties_put_equal_scores_in_the_order_of_their_draws():
    nulls, draws = array(1, 1, 1, 2, 0), array(0.1, 0.5, 0.9, 0, 0.99)
    made = p_values(array(1, 1, 3), nulls, ties=TieDraws(array(0.3, 0.95, 0), draws))
    assert made.tolist() == [(1 + 1 + 2) / 6, (1 + 1) / 6, 1 / 6]


def test_random_ties_among_equal_scores_are_ranks():
    """Whatever the order of four draws, the p-values of a target are 1/4 .. 4/4 equally often."""
    found = [
        p_values(array(7), array(7, 7, 7), ties=TieDraws(array(first), array(*others)))[0]
        for first, *others in permutations([0.2, 0.4, 0.6, 0.8])
    ]
    assert [found.count(share / 4) for share in (1, 2, 3, 4)] == [6, 6, 6, 6]


def test_draws_depend_on_seed_and_key_alone():
    drawn = tie_draws(["a", "b", "c"], 5)
    assert drawn.tolist() == tie_draws(["c", "b", "a"], 5)[::-1].tolist()
    assert not set(drawn) & set(tie_draws(["a", "b", "c"], 6))
    assert tie_draws([], 0).tolist() == []
    many = tie_draws(map(str, range(4000)), 0)
    assert many.dtype == np.float64
    assert (many.min() >= 0, many.max() < 1) == (True, True)
    assert np.histogram(many, bins=4, range=(0, 1))[0].tolist() == pytest.approx([1000] * 4, abs=90)


@pytest.mark.parametrize("pool", [drawn_scores, recorded_scores])
def test_a_share_of_five_percent_of_nulls_is_at_most_five_percent(pool):
    """300 non-members, 199 of them the null and 101 tested, split 200 times."""
    rng = np.random.default_rng(1)
    pool = pool()
    assert pool.size == 300
    shares = []
    for _ in range(200):
        split = rng.permutation(pool)
        shares.append(np.mean(p_values(split[199:], split[:199]) <= 0.05))
    assert np.mean(shares) == pytest.approx(0.05, abs=0.006)


def test_p_values_of_new_groups_are_valid_on_average():
    """9 null groups of 1 to 12 texts that share half of their variance, and a text of a tenth."""
    rng = np.random.default_rng(2)
    found = []
    for _ in range(4000):
        clusters = np.repeat(np.arange(9), rng.integers(1, 13, 9))
        shift = rng.normal(size=10)
        nulls = shift[clusters] + rng.normal(size=clusters.size)
        found += p_values(
            shift[9:] + rng.normal(size=1), nulls, weights=shared_weights(clusters)
        ).tolist()
    for level in (0.1, 0.2, 0.5):
        assert np.mean(np.array(found) <= level) < level + 3 * (level / 4000) ** 0.5
