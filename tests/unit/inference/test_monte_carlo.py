from __future__ import annotations

from math import nan
from statistics import stdev

import numpy as np
import pytest

from mia_batch.errors import RequestError
from mia_batch.inference.monte_carlo import (
    flips,
    refuse_unequal_samples,
    simulated_flips,
    standard_errors,
)


def high(scores):
    return scores >= 1


def test_standard_errors_by_hand():
    values = np.array([[1, 2, 6], [4, nan, 8], [4, nan, nan], [nan, nan, nan], [2, 2, 2]])
    made = standard_errors(values)
    assert made[:2].tolist() == pytest.approx([stdev([1, 2, 6]) / 3**0.5, stdev([4, 8]) / 2**0.5])
    assert np.isnan(made[2:4]).all()
    assert made[4] == 0


def test_standard_errors_are_those_of_repeated_draws():
    rng = np.random.default_rng(11)
    draws = rng.exponential(size=(4000, 10))
    variance = np.mean(standard_errors(draws) ** 2)
    assert variance == pytest.approx(0.1, rel=0.05)
    assert variance == pytest.approx(draws.mean(axis=1).var(), rel=0.08)


def test_flips_by_hand():
    first, second = np.array([0.0, 1, 2, 0.5]), np.array([0.0, 0.9, 1.5, 1.2])
    assert flips(first, second, high) == 2 / 4
    assert flips(first, first, high) == 0


@pytest.mark.parametrize(("noise", "tolerance"), [(0.5, 0.006), (1.0, 0.008)])
def test_simulated_flips_come_near_those_of_a_second_draw(noise, tolerance):
    rng = np.random.default_rng(12)
    truth = rng.normal(size=(20_000, 1))
    one, other = (truth + noise * rng.normal(size=(20_000, 10)) for _ in range(2))
    real = flips(one.mean(axis=1), other.mean(axis=1), high)
    made = simulated_flips(one, high, seed=0)
    assert made == pytest.approx(real, abs=tolerance)
    assert made == simulated_flips(one, high, seed=0)
    assert made != simulated_flips(one, high, seed=1)


def test_samples_that_never_differ_flip_nothing():
    values = np.array([[1.0, 1], [0, 0], [1, nan], [nan, nan]])
    assert simulated_flips(values, high, seed=0) == 0


def test_missing_samples_are_no_zeros():
    values = np.full((1000, 10), nan)
    values[:, 3:5] = 1
    assert simulated_flips(values, high, seed=0) == 0


def test_unequal_numbers_of_samples_are_refused():
    with pytest.raises(RequestError, match="targets have 10 samples and non-members 5"):
        refuse_unequal_samples(np.array([10, 9]), np.array([5, 5]))
    refuse_unequal_samples(np.array([10, 9]), np.array([10, 3]))
    refuse_unequal_samples(np.array([0]), np.array([0, 0]))
    refuse_unequal_samples(np.array([0]), np.array([5]))
