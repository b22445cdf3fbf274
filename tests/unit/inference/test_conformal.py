import json
from math import isnan, nan
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mia_batch.inference.conformal import (
    Adjustment,
    TieDraws,
    p_values,
    q_values,
    score_errors,
    sensitivity_bound,
    shared_weights,
    tie_draws,
)

SCORES = st.lists(st.one_of(st.integers(0, 6), st.just(nan)), max_size=12)


def array(*values: float) -> np.ndarray:
    return np.array(values, float)


def reference(score, nulls):
    """Vovk et al. 2005, section 2.2, an unscored null being as strange as can be."""
    higher = sum(isnan(null) or null >= score for null in nulls)
    return (1 + higher) / (1 + len(nulls))


def hierarchical_reference(score, groups):
    """Lee et al. 2023: each null group counts by the share of its texts that score so high."""
    shares = [sum(null >= score for null in group) / len(group) for group in groups]
    return (1 + sum(shares)) / (len(groups) + 1)


@given(SCORES, SCORES)
def test_p_values_equal_their_reference(scores, nulls):
    computed_p = p_values(array(*scores), array(*nulls))
    for score, p in zip(scores, computed_p.tolist(), strict=True):
        assert isnan(p) if isnan(score) else p == reference(score, nulls)


@given(
    st.lists(
        st.lists(st.integers(0, 5), min_size=1, max_size=4), min_size=1, max_size=5
    )
)
def test_groups_of_nulls_count_as_one_each(groups):
    nulls = [null for group in groups for null in group]
    clusters = np.repeat(np.arange(len(groups)), [len(group) for group in groups])
    p = p_values(array(*range(7)), array(*nulls), weights=shared_weights(clusters))
    expected = [hierarchical_reference(score, groups) for score in range(7)]
    assert p.tolist() == pytest.approx(expected, abs=1e-9)
    assert p.min() == pytest.approx(1 / (len(groups) + 1))


def test_what_rounding_alone_parts_is_equal():
    sums = 0.1 + 0.2 + 0.3, 0.3 + 0.2 + 0.1
    assert sums[0] != sums[1]
    for unit in (1.0, -1e-30, 1e12):
        score, null = array(max(sums)) * unit, array(min(sums), max(sums)) * unit
        assert p_values(score, null).tolist() == [1.0]
        assert p_values(score, null * (1 - 1e-9)).tolist() == [
            1 / 3 if unit > 0 else 1.0
        ]
    assert p_values(array(0.0), array(0.0, -1e-300)).tolist() == [2 / 3]
    weights = shared_weights(np.array([4, 4, 4, *range(5, 23)]))
    assert weights.sum() == pytest.approx(19)
    p = p_values(array(2, 0), array(1, 1, 1, *[-1] * 18), weights=weights)
    assert p.tolist() == [1 / 20, 2 / 20]


def test_random_ties_follow_draws_that_depend_on_seed_and_key_alone():
    nulls, draws = array(1, 1, 1, 2, 0), array(0.1, 0.5, 0.9, 0, 0.99)
    p = p_values(array(1, 1, 3), nulls, ties=TieDraws(array(0.3, 0.95, 0), draws))
    assert p.tolist() == [(1 + 1 + 2) / 6, (1 + 1) / 6, 1 / 6]
    alone = p_values(array(3), array(), ties=TieDraws(array(0.5), array()))
    assert alone.tolist() == [1]  # without nulls
    draws_by_key = tie_draws(["a", "b", "c"], 5)
    assert draws_by_key.tolist() == tie_draws(["c", "b", "a"], 5)[::-1].tolist()
    assert not set(draws_by_key) & set(tie_draws(["a", "b", "c"], 6))
    assert tie_draws([], 0).tolist() == []
    many_draws = tie_draws(map(str, range(4000)), 0)
    assert many_draws.dtype == np.float64
    assert (many_draws.min() >= 0, many_draws.max() < 1) == (True, True)
    assert np.histogram(many_draws, bins=4, range=(0, 1))[0].tolist() == pytest.approx(
        [1000] * 4, abs=90
    )


def test_a_share_of_five_percent_of_nulls_is_at_most_five_percent():
    """300 non-members, 199 of them the null and 101 tested, split 200 times."""
    rng = np.random.default_rng(1)
    # The loss of a real model on texts that it never saw; the file says which.
    recorded = Path(__file__).parents[2] / "data" / "nonmember_scores.json"
    pool = array(*json.loads(recorded.read_text("utf-8"))["scores"])
    assert pool.size == 300
    shares = []
    for _ in range(200):
        split = rng.permutation(pool)
        shares.append(np.mean(p_values(split[199:], split[:199]) <= 0.05))
    assert np.mean(shares) == pytest.approx(0.05, abs=0.006)


def test_p_values_of_new_groups_are_valid_on_average():
    """9 null groups of 1 to 12 texts that share half of their variance, and a text of a tenth."""
    rng = np.random.default_rng(2)
    p_of_new_groups = []
    for _ in range(4000):
        clusters = np.repeat(np.arange(9), rng.integers(1, 13, 9))
        shift = rng.normal(size=10)
        nulls = shift[clusters] + rng.normal(size=clusters.size)
        p_of_new_groups += p_values(
            shift[9:] + rng.normal(size=1), nulls, weights=shared_weights(clusters)
        ).tolist()
    for level in (0.1, 0.2, 0.5):
        assert (
            np.mean(np.array(p_of_new_groups) <= level)
            < level + 3 * (level / 4000) ** 0.5
        )


P_VALUES = st.lists(
    st.sampled_from([0.001, 0.01, 0.02, 0.05, 0.3, 0.7, 1.0]), min_size=1
)


def list_reported(p, q, adjustment):
    """The step-up procedure of 1995, section 3.1: all up to the last p(i) <= i q / m."""
    m = len(p)
    level = q if adjustment == "bh" else q / sum(1 / i for i in range(1, m + 1))
    passing = [
        p_value
        for i, p_value in enumerate(sorted(p), 1)
        if p_value <= i * level / m * (1 + 1e-9)
    ]
    return [bool(passing) and p_value <= max(passing) for p_value in p]


@given(P_VALUES, st.sampled_from(["bh", "by"]))
def test_q_values_report_what_the_procedure_reports(p, adjustment: Adjustment):
    computed_q = q_values(np.array(p), adjustment)
    for q in (0.01, 0.05, 0.1, 0.25, 0.5):
        assert (computed_q <= q).tolist() == list_reported(p, q, adjustment)


def test_missing_p_values_stay_in_the_number_of_tests():
    q = q_values(np.array([0.01, nan, nan, 0.02]), "bh")
    assert q[[0, 3]].tolist() == [0.04, 0.04]
    assert np.isnan(q[1:3]).all()
    assert q_values(np.array([]), "bh").size == 0
    for n in range(1, 21):  # a q-value of a tenth is not above a tenth
        assert q_values(np.repeat([n / 200, 1], [n, 20 - n]), "bh")[0] <= 0.1


def test_the_share_of_false_discoveries_is_what_was_allowed():
    """199 nulls, 20 targets, q = 0.1: exact, since q (n + 1) / m is a whole number."""
    rng, n_members = np.random.default_rng(3), 10
    pool = np.round(rng.normal(size=219 - n_members), 1)  # with ties
    shares = []
    for _ in range(2000):
        nonmembers = rng.permutation(pool)
        members = np.round(rng.normal(2, 1, n_members), 1)
        scores = np.concatenate([members, nonmembers[199:]])
        ties = TieDraws(rng.random(20), rng.random(199))
        is_reported = (
            q_values(p_values(scores, nonmembers[:199], ties=ties), "bh") <= 0.1
        )
        shares.append(is_reported[n_members:].sum() / max(1, is_reported.sum()))
    error = np.std(shares) / 2000**0.5
    assert np.mean(shares) == pytest.approx(0.05, abs=3 * error)
    assert error < 0.0075


def test_scores_have_errors_where_they_are_means_of_two_samples_or_more():
    scores = pl.DataFrame({"target_id": list("abcd"), "score": [2.5, 3.0, 5.0, None]})
    values = pl.DataFrame(
        [
            *(("a", index, value) for index, value in enumerate([1.0, 4.0])),
            # The maximum
            *(("b", index, value) for index, value in enumerate([1.0, 2.0, 3.0])),
            ("c", 4, 5.0),
            *(("d", index, None) for index in range(2)),
        ],
        schema={"target_id": pl.String, "sample_index": pl.UInt32, "value": pl.Float64},
        orient="row",
    )
    errors = score_errors(values, scores)
    assert errors["target_id"].to_list() == list("abcd")
    assert errors["standard_error"].to_list() == pytest.approx([1.5, None, None, None])


def test_bounds_by_hand():
    """Odds of 0.05 are 1/19; those of 1/20, 1/39 and 1/96 are 1/19, 1/38 and 1/95."""
    bounds = sensitivity_bound(np.array([1 / 20, 1 / 39, 1 / 96, 0.051, 1, nan]))
    assert bounds[:3].tolist() == [1, 2, 5]
    assert np.isnan(bounds[3:]).all()
