"""Complexity of series against slow references, and laws that it obeys."""

from __future__ import annotations

import random

import polars as pl
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from mia_batch.kernels import approximate_entropy, lempel_ziv_complexity
from tests import reference_complexity

FEW = st.sampled_from([0.0, -0.25, -1.0, -3.0])
ANY = st.floats(-50, 0, width=32, allow_subnormal=False)
series = st.lists(FEW, max_size=40) | st.lists(ANY, max_size=40)
bins = st.integers(1, 7)


def frame(*lists):
    return pl.DataFrame({"x": lists}, {"x": pl.List(pl.Float64)})


def complexity(*lists, bins):
    return frame(*lists).select(lempel_ziv_complexity("x", bins=bins))["x"].to_list()


def entropy(*lists, m, r):
    return frame(*lists).select(approximate_entropy("x", m=m, r=r))["x"].to_list()


@given(st.lists(st.none() | series, max_size=4), bins)
def test_lempel_ziv_equals_the_reference(lists, bins):
    expected = [each and reference_complexity.lempel_ziv(each, bins) for each in lists]
    assert complexity(*lists, bins=bins) == [each or None for each in expected]


@given(series, st.integers(1, 4), st.sampled_from([0.0, 0.2, 0.8, 1.3]))
def test_entropy_equals_the_reference(values, m, r):
    assume(not values or not reference_complexity.is_tied(values, r))
    expected = reference_complexity.entropy(values, m, r)
    approximate = None if expected is None else pytest.approx(expected, abs=1e-9)
    assert entropy(values, m=m, r=r) == [approximate]


@pytest.mark.parametrize("seed", range(3))
def test_as_long_as_attacks_give_them(seed):
    draw = random.Random(seed)
    values = [-draw.expovariate(0.5 + seed) for _ in range(200)]
    for n in (3, 4, 5):
        assert complexity(values, bins=n) == [reference_complexity.lempel_ziv(values, n)]
    expected = reference_complexity.entropy(values, 8, 0.8)
    assert expected is not None
    assert expected > 0
    assert entropy(values, m=8, r=0.8) == [pytest.approx(expected, abs=1e-12)]


@given(st.lists(FEW, min_size=1, max_size=60), bins)
def test_more_words_never_follow_from_fewer_values(values, bins):
    """Words of a series that begins another are the first words of the other."""
    levels = [-4.0, 0.0]  # both have the same lowest value and highest level
    shorter, longer = (
        len(each) * complexity(each, bins=bins)[0]
        for each in (levels + values[:-1], levels + values)
    )
    assert longer - shorter in (pytest.approx(0), pytest.approx(1))


@given(st.lists(FEW, min_size=4, max_size=40), st.sampled_from([0.5, 2.0, 4.0]))
def test_other_units_change_nothing(values, factor):
    """Bins and tolerance are relative; factors are powers of 2, whose products are exact."""
    scaled = [factor * value for value in values]
    assert complexity(scaled, bins=4) == complexity(values, bins=4)
    assert entropy(scaled, m=2, r=0.8) == entropy(values, m=2, r=0.8)
