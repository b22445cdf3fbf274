from __future__ import annotations

from math import nan

import numpy as np
import pytest

from mia_batch.inference.conformal import sensitivity_bound


def test_bounds_by_hand():
    """Odds of 0.05 are 1/19; those of 1/20, 1/39 and 1/96 are 1/19, 1/38 and 1/95."""
    made = sensitivity_bound(np.array([1 / 20, 1 / 39, 1 / 96, 0.051, 1, nan]))
    assert made[:3].tolist() == [1, 2, 5]
    assert np.isnan(made[3:]).all()


@pytest.mark.parametrize("factor", [1.0, 2.0, 4.5])
def test_under_a_bias_of_its_size_a_p_value_is_undone(factor):
    """A target whose odds of one of the first k of 200 ranks are `factor` times as large."""
    p = next(
        k / 200 for k in range(10, 0, -1) if sensitivity_bound(np.array([k / 200]))[0] >= factor
    )
    k = round(p * 200)
    weights = np.where(np.arange(200) < k, factor, 1.0)
    rng = np.random.default_rng(10)
    ranks = rng.choice(200, size=40_000, p=weights / weights.sum())
    rejected = np.mean(ranks < k)
    assert rejected == pytest.approx(1 / (1 + (1 / p - 1) / factor), abs=0.004)
    assert rejected < 0.054
    beyond = sensitivity_bound(np.array([p]))[0]
    assert 1 / (1 + (1 / p - 1) / beyond) == pytest.approx(0.05)
