from __future__ import annotations

import numpy as np
import pytest

from mia_batch.stats.differences import holm


def test_by_hand():
    """0.01 times 4, 0.02 times 3, 0.03 times 2 is no less than the one before, 0.5."""
    adjusted = holm(np.array([0.5, 0.01, 0.03, 0.02]))
    assert adjusted == pytest.approx([0.5, 0.04, 0.06, 0.06])


def test_a_missing_p_value_counts_as_1_and_stays_missing():
    adjusted = holm(np.array([np.nan, 0.01]))
    assert np.isnan(adjusted[0])
    assert adjusted[1] == pytest.approx(0.02)


def test_none_is_above_1():
    assert holm(np.array([0.9, 0.8])).tolist() == [1, 1]
    assert holm(np.array([])).size == 0


def test_a_false_statement_among_nulls_is_as_rare_as_promised():
    rng = np.random.default_rng(0)
    worst = [holm(rng.random(5)).min() <= 0.05 for _ in range(2000)]
    assert abs(np.mean(worst) - (1 - 0.99**5)) < 3 * (0.05 * 0.95 / 2000) ** 0.5
