from __future__ import annotations

from math import nan

import numpy as np
import pytest

from mia_batch.inference.exchangeability import compare_lengths, odds_factor
from mia_batch.stats.intervals import auc_interval
from mia_batch.stats.roc import roc_auc


def test_the_difference_is_the_area_with_its_interval():
    targets, nulls = np.array([3.0, 5, 9, 9]), np.array([1.0, 3, 4, 8, 2])
    made = compare_lengths(targets, nulls)
    assert made is not None
    member = np.arange(9) < 4
    assert made.auc == roc_auc(member, np.concatenate([targets, nulls]))
    assert made.interval == auc_interval(targets, nulls)
    assert made.excluded_above == made.interval.high
    assert made.sentence == (
        f"lengths of targets and non-members: AUC {made.auc:.2f}; "
        f"differences above AUC {made.interval.high:.2f} are excluded"
    )


def test_few_texts_exclude_no_difference():
    made = compare_lengths(np.array([3.0, 5]), np.array([1.0, 2]))
    assert made is not None
    assert made.sentence == (
        "lengths of targets and non-members: AUC 1.00; too few texts to exclude any difference"
    )


def test_the_direction_does_not_matter_for_what_is_excluded():
    first, second = np.array([3.0, 5, 9, 9]), np.array([1.0, 3, 4, 8, 2])
    one, other = compare_lengths(first, second), compare_lengths(second, first)
    assert one is not None
    assert other is not None
    assert one.excluded_above == pytest.approx(other.excluded_above)


def test_a_side_without_texts_cannot_be_compared():
    assert compare_lengths(np.array([]), np.array([1.0])) is None


def test_odds_factor_by_hand():
    """Odds of 0.05 are 1/19; those of 1/20, 1/39 and 1/96 are 1/19, 1/38 and 1/95."""
    made = odds_factor(np.array([1 / 20, 1 / 39, 1 / 96, 0.051, 1, nan]))
    assert made[:3].tolist() == [1, 2, 5]
    assert np.isnan(made[3:]).all()


@pytest.mark.parametrize("factor", [1.0, 2.0, 4.5])
def test_under_a_bias_of_its_size_a_p_value_is_undone(factor):
    """A target whose odds of one of the first k of 200 ranks are `factor` times as large."""
    p = next(k / 200 for k in range(10, 0, -1) if odds_factor(np.array([k / 200]))[0] >= factor)
    k = round(p * 200)
    weights = np.where(np.arange(200) < k, factor, 1.0)
    rng = np.random.default_rng(10)
    ranks = rng.choice(200, size=40_000, p=weights / weights.sum())
    rejected = np.mean(ranks < k)
    assert rejected == pytest.approx(1 / (1 + (1 / p - 1) / factor), abs=0.004)
    assert rejected < 0.054
    beyond = odds_factor(np.array([p]))[0]
    assert 1 / (1 + (1 / p - 1) / beyond) == pytest.approx(0.05)
