"""The exact test of a published order: by hand, by definition, and on ten thousand nulls."""

from itertools import product
from math import nan

import numpy as np
import pytest
from scipy.stats import binom

from mia_batch.extras.benchmark.exact import compare_published
from tests.published_orders import EXCHANGEABLE, LEVELS, draw_rows, measure_rates

N_NULLS = 10_000


def test_a_case_by_hand():
    # Published less the mean of the others: 3 - 1.5 and 5 - 4. The six choices of one
    # alternative a unit have the sums 2.5, 0.5, -0.5, -2.5, 1 and -1.
    comparison = compare_published(np.array([[3, 1, 2], [5, 4, nan]]), seed=0)
    assert comparison is not None
    assert comparison.statistic == pytest.approx(1.25)
    assert comparison.p_value == pytest.approx(1 / 6)
    assert comparison.smallest == pytest.approx(1 / 6)
    assert (comparison.n_units, comparison.n_first) == (2, 2)


def compare_by_definition(scores):
    """Return statistic and p-value from all choices, as the paper's sentence has them."""
    units = [row[np.isfinite(row)].tolist() for row in scores]
    units = [unit for unit in units if len(unit) > 1]

    def compute(choice):
        total = 0.0
        for unit, place in zip(units, choice, strict=True):
            others = unit[:place] + unit[place + 1 :]
            total += unit[place] - sum(others) / len(others)
        return total / len(units)

    sums = [compute(choice) for choice in product(*(range(len(u)) for u in units))]
    observed = compute([0] * len(units))
    return observed, sum(value >= observed - 1e-12 for value in sums) / len(sums)


@pytest.mark.parametrize("seed", range(5))
def test_it_is_the_share_of_all_choices(seed):
    rng = np.random.default_rng(seed)
    scores = rng.normal(size=(5, 4)).round(1)  # with ties
    scores[1, 2:] = nan
    scores[3, 1:] = nan  # a unit without alternatives is no unit
    comparison = compare_published(scores, seed)
    statistic, p_value = compare_by_definition(scores)
    assert comparison is not None
    assert comparison.n_units == 4
    assert comparison.statistic == pytest.approx(statistic)
    assert comparison.p_value == pytest.approx(p_value)


def test_drawn_choices_come_near_to_all_of_them():
    scores = np.random.default_rng(1).normal(size=(8, 4))
    scores[:, 0] += 0.7
    listed = compare_published(scores, 0)
    doubled = np.vstack([scores, np.tile([[0.0, 0.0, 0.0, 0.0]], (4, 1))])
    drawn = compare_published(doubled, 0)  # 4 ** 12 choices: some are drawn
    assert listed is not None
    assert drawn is not None
    assert drawn.smallest == 1 / 100_000
    assert drawn.p_value == pytest.approx(listed.p_value, rel=0.2)


def test_equal_scores_show_nothing_and_the_clearest_are_never_zero():
    equal = compare_published(np.ones((30, 5)), 0)
    clearest = compare_published(np.tile([9.0, 1, 2, 3], (30, 1)), 0)
    assert equal is not None
    assert clearest is not None
    assert (equal.p_value, equal.n_first) == (1.0, 0)
    assert (clearest.p_value, clearest.n_first) == (1e-5, 30)


def test_nothing_to_compare():
    assert compare_published(np.array([[1.0, nan]]), 0) is None
    assert compare_published(np.zeros((0, 0)), 0) is None


@pytest.mark.parametrize("n_right", range(9))
def test_one_answer_a_place_is_the_binomial_test(n_right):
    answers = np.zeros((8, 4))
    answers[:n_right, 0] = 1
    answers[n_right:, 2] = 1
    comparison = compare_published(answers, 0)
    assert comparison is not None
    assert comparison.p_value == pytest.approx(binom.sf(n_right - 1, 8, 0.25))


@pytest.mark.parametrize("kind", EXCHANGEABLE)
def test_levels_are_exact_however_rows_depend_on_each_other(kind):
    rng = np.random.default_rng(7)
    rates = measure_rates(draw_rows(kind, N_NULLS, rng), rng)
    errors = np.sqrt(LEVELS * (1 - LEVELS) / N_NULLS)
    assert (np.abs(rates - LEVELS) < 4 * errors).all(), rates


def test_an_order_that_can_be_foreseen_breaks_the_level():
    # Dependence that follows the published order: a model that saw none finds it likelier
    rng = np.random.default_rng(7)
    rates = measure_rates(draw_rows("series", 1000, rng), rng)
    assert rates[1] > 5 * LEVELS[1]
