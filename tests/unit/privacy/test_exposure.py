"""Rank and exposure against definitions 3 and 4, worked out by hand."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import skewnorm

from mia_batch.privacy.measures import exposures, unlearnt_exposure

LOSSES = st.lists(st.integers(0, 9).map(float), min_size=1, max_size=30)


def test_by_hand():
    found = exposures(np.array([1.0, 5.0, 0.5]), [np.array([2.0, 3.0, 4.0, 6.0, 7.0, 8.0, 9.0])], 8)
    assert found["rank"].to_list() == [1.0, 4.0, 1.0]  # 2, 3 and 4 are below 5
    assert found["exposure"].to_list() == [3.0, 1.0, 3.0]  # log2 8 - log2 rank
    assert found["exposed"].to_list() == [True, False, True]
    assert found["extrapolated"].to_list() == [None, None, None]


def test_equal_losses_count_half_and_are_not_exposed():
    found = exposures(np.array([1.0]), [np.array([1.0, 1.0, 2.0])], 4)
    assert found.row(0, named=True) == {
        "loss": 1.0, "rank": 2.0, "exposure": 1.0, "exposed": False, "extrapolated": None,
    }  # fmt: skip


def test_learnt_canaries_are_not_ranked_among_each_other():
    # Of 80 with 32 inserted and perfect memory, all inserted ones have the highest exposure.
    found = exposures(np.arange(32.0, dtype=float), [np.arange(100.0, 148.0, dtype=float)], 80)
    assert found["rank"].unique().to_list() == [1.0]
    assert found["exposure"].unique().to_list() == [np.log2(49)]


def test_a_loss_that_is_no_number_is_null():
    found = exposures(np.array([np.nan, 1.0]), [np.array([2.0, np.nan])], 4)
    assert found.row(0) == (None, None, None, None, None)
    assert found["exposure"][1] == 1.0  # of one other


@given(LOSSES, LOSSES, st.integers(1, 7))
def test_it_is_the_definition_whatever_the_pieces(learnt, others, size):
    found = exposures(
        np.array(learnt, np.float64),
        [np.array(others[i : i + size], np.float64) for i in range(0, len(others), size)],
        len(learnt) + len(others),
    )
    for loss, rank in zip(learnt, found["rank"], strict=True):
        below = sum(other < loss for other in others)
        equal = sum(other == loss for other in others)
        assert rank == 1 + below + equal / 2


def test_mean_without_memory():
    ranks = np.arange(1, 102)
    assert unlearnt_exposure(100) == pytest.approx(np.mean(np.log2(101) - np.log2(ranks)))
    assert unlearnt_exposure(10**7) == pytest.approx(1 / np.log(2), abs=1e-4)


def test_a_million_canaries_in_little_memory():
    rng = np.random.default_rng(0)
    pieces = (rng.normal(size=10_000) for _ in range(100))
    tracemalloc.start()
    found = exposures(np.array([-10.0, 0.0]), pieces, 10**7)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 4_000_000  # all losses would be 8,000,000 bytes
    assert found["exposure"][0] == pytest.approx(np.log2(1_000_001))
    assert found["exposure"][1] == pytest.approx(1, abs=0.01)


def test_beyond_the_sample_by_a_skew_normal():
    truth = skewnorm(4, loc=50, scale=5)
    rng = np.random.default_rng(1)
    others = truth.rvs(5000, random_state=rng)
    learnt = truth.ppf([1e-6, 0.5])
    found = exposures(learnt, [others], 10**9)
    assert found["exposure"][0] == pytest.approx(np.log2(5001))
    assert found["extrapolated"][0] == pytest.approx(np.log2(1e6), abs=3)
    assert found["extrapolated"][1] == pytest.approx(1, abs=0.1)


def test_a_distribution_that_does_not_fit_says_nothing():
    rng = np.random.default_rng(2)
    others = np.concatenate([rng.normal(0, 1, 500), rng.normal(100, 1, 500)])
    assert exposures(np.array([0.0]), [others], 10**6)["extrapolated"].to_list() == [None]
