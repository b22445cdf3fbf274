from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mia_batch.targets import choose_windows

NUMBERS = st.integers(1, 300)


def test_a_choice_is_the_same_on_every_machine():
    assert sorted(choose_windows(1000, 5, 0, b"book")) == [107, 357, 482, 607, 857]


@given(n_windows=NUMBERS, most=NUMBERS, further=st.integers(0, 50), seed=st.integers(0, 9))
def test_a_larger_choice_holds_a_smaller_one(n_windows, most, further, seed):
    small, large = (choose_windows(n_windows, n, seed, b"x") for n in (most, most + further))
    assert small <= large <= frozenset(range(n_windows))
    assert len(small) == min(most, n_windows)


@given(most=st.integers(2, 64), seed=st.integers(0, 99))
def test_a_choice_is_spread_evenly(most, seed):
    n_windows = 10_000
    chosen = sorted(choose_windows(n_windows, most, seed, b"x"))
    steps = [after - before for before, after in pairwise([*chosen, chosen[0] + n_windows])]
    assert max(steps) <= 2 * n_windows / most + 1
    assert min(steps) >= n_windows / most / 2 - 1


@pytest.mark.parametrize(("n_windows", "most"), [(5, 2), (7, 3), (12, 11)])
def test_every_window_is_as_likely_as_any_other(n_windows, most):
    n_seeds = 4000
    drawn = (choose_windows(n_windows, most, seed, b"x") for seed in range(n_seeds))
    counts = Counter(window for choice in drawn for window in choice)
    share = most / n_windows
    deviation = (n_seeds * share * (1 - share)) ** 0.5
    assert all(abs(counts[window] - n_seeds * share) < 4 * deviation for window in range(n_windows))
