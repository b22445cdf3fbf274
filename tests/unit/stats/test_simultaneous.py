from __future__ import annotations

from statistics import NormalDist

import numpy as np
import pytest
from scipy.stats import t

from mia_batch.stats.differences import AucResult, simultaneous_bounds
from mia_batch.stats.intervals import AucEstimate, auc_limits

SIZES = (50.0, 60.0)


def tried(value, errors, *, variance=0.0025, n_groups=None):
    sizes = SIZES if n_groups is None else (float(n_groups), 60.0)
    estimate = AucEstimate(
        value=value, variance=variance, sizes=sizes, clustered=n_groups is not None
    )
    return AucResult(estimate=estimate, errors=np.asarray(errors, float), counts={})


def bounds(*many):
    found = simultaneous_bounds({(str(number), "all"): one for number, one in enumerate(many)})
    return list(found.values())


def influences(n_attacks, *, n=1000, seed=0):
    return np.random.default_rng(seed).normal(0, 0.05, (n_attacks, n))


def test_one_area_has_a_one_sided_limit():
    drawn = influences(1)[0]
    (bound,) = bounds(tried(0.7, drawn))
    z = NormalDist().inv_cdf(0.95)
    assert bound is not None
    assert bound.low == pytest.approx(auc_limits(0.7, 0.0025, SIZES, z)[0], abs=0.006)
    assert (bound.high, bound.confidence, bound.method) == (1, 0.95, "max_t over 1")


def test_many_independent_areas_are_bounded_as_by_sidak():
    drawn = influences(10)
    found = bounds(*(tried(0.7, of_one) for of_one in drawn))
    z = NormalDist().inv_cdf(0.95 ** (1 / 10))
    for bound in found:
        assert bound is not None
        assert bound.low == pytest.approx(auc_limits(0.7, 0.0025, SIZES, z)[0], abs=0.006)
        assert bound.method == "max_t over 10"


def test_areas_that_err_alike_cost_no_more_than_one():
    drawn = influences(1)[0]
    alone = bounds(tried(0.7, drawn))
    together = bounds(*[tried(0.7, drawn)] * 9, tried(0.6, drawn))
    assert alone[0] is not None
    assert together[0] is not None
    assert together[0].low == pytest.approx(alone[0].low, abs=0.006)


def test_an_area_of_1_has_a_bound_below_and_makes_all_as_strict_as_bonferroni():
    drawn = influences(1)[0]
    sure = tried(1.0, np.zeros(1000), variance=0.0)
    found = bounds(sure, *[tried(0.7, drawn)] * 9)
    z = NormalDist().inv_cdf(1 - 0.05 / 10)
    expected = [auc_limits(1.0, 0, SIZES, z)[0], auc_limits(0.7, 0.0025, SIZES, z)[0]]
    assert [bound.low for bound in found[:2] if bound] == pytest.approx(expected)
    assert expected[0] < 1


def test_few_groups_take_students_t_and_fewer_than_four_have_no_bound():
    drawn = influences(1)[0]
    few, none = bounds(tried(0.7, drawn, n_groups=8), tried(0.7, drawn, n_groups=3))
    assert few is not None
    expected = auc_limits(0.7, 0.0025, SIZES, t(7).ppf(0.95))[0]
    assert few.low == pytest.approx(expected, abs=0.006)
    assert few.method == "max_t over 2"
    assert none is None
    assert bounds(tried(1.0, [0.0], variance=np.nan, n_groups=1)) == [None]
