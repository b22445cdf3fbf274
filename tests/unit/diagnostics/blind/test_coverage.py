"""A small part of the simulation in benches/blind.py."""

from __future__ import annotations

import pytest
from benches.blind import simulate


@pytest.mark.parametrize(
    ("per_cluster", "effect"), [(1, 0.5), pytest.param(4, 0.5, marks=pytest.mark.long), (1, 0.0)]
)
def test_limits_hold_as_often_as_they_say(per_cluster, effect):
    """Of 50 data sets 95 % less three standard deviations of a binomial share."""
    found = simulate(
        n_per_class=60,
        per_cluster=per_cluster,
        effect=effect,
        n_data_sets=50,
        n_permutations=19,
        seed=7,
    )
    assert found["upper_coverage"] >= 0.95 - 3 * (0.95 * 0.05 / 50) ** 0.5
    assert sum(found["coverage"]) / 4 >= 0.92
    if effect:
        assert max(found["expected"]) > 0.6
    else:
        assert max(found["expected"]) == pytest.approx(0.5, abs=0.02)
        assert found["p_within_0.05"] <= 0.05 + 3 * (0.05 * 0.95 / 50) ** 0.5
