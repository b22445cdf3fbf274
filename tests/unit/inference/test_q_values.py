from __future__ import annotations

from math import nan
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mia_batch.inference.conformal import TieDraws, p_values, q_values

if TYPE_CHECKING:
    from mia_batch.inference.conformal import Adjustment

P_VALUES = st.lists(st.sampled_from([0.001, 0.01, 0.02, 0.05, 0.3, 0.7, 1.0]), min_size=1)


def reported(p, q, adjustment):
    """The step-up procedure of 1995, section 3.1: all up to the last p(i) <= i q / m."""
    m = len(p)
    level = q if adjustment == "bh" else q / sum(1 / i for i in range(1, m + 1))
    passing = [one for i, one in enumerate(sorted(p), 1) if one <= i * level / m * (1 + 1e-9)]
    return [bool(passing) and one <= max(passing) for one in p]


@given(P_VALUES, st.sampled_from(["bh", "by"]))
def test_q_values_report_what_the_procedure_reports(p, adjustment: Adjustment):
    made = q_values(np.array(p), adjustment)
    for q in (0.01, 0.05, 0.1, 0.25, 0.5):
        assert (made <= q).tolist() == reported(p, q, adjustment)


def test_by_hand():
    """0.01 x 4, 0.02 x 4 / 2, 0.04 x 4 / 3 and 0.05 x 4 / 4, each at most those behind it."""
    p = np.array([0.05, 0.01, 0.04, 0.02])
    assert q_values(p, "bh").tolist() == pytest.approx([0.05, 0.04, 0.05, 0.04])
    harmonic = 1 + 1 / 2 + 1 / 3 + 1 / 4
    assert q_values(p, "by") == pytest.approx(q_values(p, "bh") * harmonic)


def test_missing_p_values_stay_in_the_number_of_tests():
    made = q_values(np.array([0.01, nan, nan, 0.02]), "bh")
    assert made[[0, 3]].tolist() == [0.04, 0.04]
    assert np.isnan(made[1:3]).all()
    assert q_values(np.array([]), "bh").size == 0


@pytest.mark.parametrize("targets", range(1, 21))
def test_a_q_value_of_a_tenth_is_not_above_a_tenth(targets):
    p = np.ones(20)
    p[:targets] = targets / 200
    assert q_values(p, "bh")[0] <= 0.1


@pytest.mark.parametrize(("n_members", "rate"), [(0, 0.1), (10, 0.05)])
def test_the_share_of_false_discoveries_is_what_was_allowed(n_members, rate):
    """199 nulls, 20 targets, q = 0.1: exact, since q (n + 1) / m is a whole number."""
    rng = np.random.default_rng(3)
    pool = np.round(rng.normal(size=219 - n_members), 1)  # with ties
    shares = []
    for _ in range(2000):
        nonmembers = rng.permutation(pool)
        members = np.round(rng.normal(2, 1, n_members), 1)
        scores = np.concatenate([members, nonmembers[199:]])
        ties = TieDraws(rng.random(20), rng.random(199))
        found = q_values(p_values(scores, nonmembers[:199], ties=ties), "bh") <= 0.1
        shares.append(found[n_members:].sum() / max(1, found.sum()))
    error = np.std(shares) / 2000**0.5
    assert np.mean(shares) == pytest.approx(rate, abs=3 * error)
    assert error < 0.0075
