from __future__ import annotations

from math import comb

import numpy as np
import pytest

from mia_batch.errors import SettingsError
from mia_batch.inference.power import Design, area_of, effect_of, power, simulate


def test_an_effect_and_an_auc_are_one():
    assert effect_of(0.95) == pytest.approx(2.3262, abs=1e-4)
    assert area_of(effect_of(0.8)) == pytest.approx(0.8)
    assert area_of(0) == 0.5


def test_members_that_always_stand_out_are_named_as_soon_as_their_number_allows_a_list():
    design = Design(asked=50, members=10, effect=20)
    assert power(50, 100, 0.05, "bh").needed == 10
    one_fewer = simulate(design, 98)  # a list needs one of 40 others above all 98 and itself
    assert one_fewer.any_named == pytest.approx(40 / 138, abs=0.06)
    enough = simulate(design, 100)
    assert (enough.named, enough.any_named) == (10, 1)
    assert 0.02 < enough.false < 0.06  # 40/50 of q, and 0.04 is its law
    dependent = Design(asked=50, members=10, effect=20, adjustment="by")
    assert simulate(dependent, 100).named == 0


def test_without_an_effect_all_together_are_significant_at_their_level():
    """Three against four: 35 orders, of which one has the highest sum."""
    found = simulate(Design(asked=3, members=1, effect=0), 4, seed=1)
    assert found.together == pytest.approx(1 / comb(7, 3), abs=0.02)
    many = simulate(Design(asked=20, members=1, effect=0), 40, seed=1)
    assert many.together == pytest.approx(0.05, abs=0.025)
    assert many.at_least == 0


def test_the_law_of_all_together_is_that_of_the_rank_sum():
    """Scipy's test of the same scores, by its normal law; 40 + 40 are many."""
    from scipy.stats import mannwhitneyu

    rng = np.random.default_rng(5)
    asked, nulls = rng.standard_normal((2, 2000, 40))
    asked[:, :20] += 1
    p = mannwhitneyu(asked, nulls, alternative="greater", axis=1).pvalue
    found = simulate(Design(asked=40, members=20, effect=1), 40)
    assert found.together == pytest.approx(np.mean(p <= 0.05), abs=0.06)


def test_the_same_seed_gives_the_same_figures():
    design = Design(asked=9, members=3, effect=1)
    assert simulate(design, 30, seed=2) == simulate(design, 30, seed=2)
    assert simulate(design, 30, seed=2) != simulate(design, 30, seed=3)


def test_numbers_to_try_are_doubled_beyond_what_names_all_members():
    assert Design(asked=50, members=10, effect=1).sizes() == [10 * 2**power for power in range(7)]


@pytest.mark.parametrize("members", [0, 4])
def test_members_are_among_those_asked_about(members):
    with pytest.raises(SettingsError, match=f"{members} members cannot be among 3 that are asked"):
        Design(asked=3, members=members, effect=1)
