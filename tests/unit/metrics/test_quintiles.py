from __future__ import annotations

import numpy as np
import pytest

from mia_batch.metrics.measure import quintile_rows
from mia_batch.stats.intervals import auc_interval


def of(*asked):
    return [*quintile_rows(*asked)]


def test_quintiles_by_hand():
    blind = np.arange(20) / 20
    member = np.tile([True, False, True, False], 5)
    score = np.tile([3.0, 1.0, 2.0, 2.0], 5)
    quintiles = of(member, score, blind, None)
    assert [each["slice"] for each in quintiles] == [
        f"blind quintile {place}" for place in range(1, 6)
    ]
    expected = auc_interval(np.array([3.0, 2.0]), np.array([1.0, 2.0]))
    for each in quintiles:
        # 3 beats 1 and 2, 2 beats 1 and ties with 2.
        assert each["value"] == pytest.approx(3.5 / 4)
        assert (each["n_members"], each["n_nonmembers"], each["reason"]) == (2, 2, None)
        assert (each["low"], each["high"]) == (expected.low, expected.high)


def test_an_attack_that_repeats_the_blind_score_loses_most_of_its_auc_within_quintiles():
    generator = np.random.default_rng(0)
    member = np.arange(5000) % 2 == 0
    blind = generator.normal(size=5000) + 1.5 * member
    repeated = [each["value"] or 0 for each in of(member, blind, blind, None)]
    assert 0.5 < max(repeated[1:4]) < 0.65
    unrelated = generator.normal(size=5000) + 1.5 * member
    assert min(each["value"] or 0 for each in of(member, unrelated, blind, None)) > 0.8


def test_a_quintile_that_lacks_a_class_has_a_reason():
    blind = np.repeat([0.1, 0.9], [8, 2])
    member = np.repeat([False, True], [8, 2])
    quintiles = of(member, blind, blind, None)
    assert "there is no scored member in this quintile" in {each["reason"] for each in quintiles}
    assert sum(each["n_members"] + each["n_nonmembers"] for each in quintiles) == 10
    assert all(each["value"] is None and each["low"] is None for each in quintiles)


def test_clustered_texts_have_the_intervals_of_clusters():
    generator = np.random.default_rng(1)
    member = np.arange(400) % 2 == 0
    score = generator.normal(size=400) + member
    cluster = (np.arange(400) // 4).astype(np.int32)
    for each in of(member, score, generator.random(400), cluster):
        assert each["method"] == "group_logit_t"


def test_texts_without_a_score_stay_in_their_quintile_and_are_counted():
    blind = np.arange(20) / 20
    member = np.tile([True, False], 10)
    score = np.where(np.arange(20) < 18, np.nan, np.arange(20.0))
    *without, last = of(member, score, blind, None)
    assert [(each["value"], each["n_unscored"]) for each in without] == [(None, 4)] * 4
    assert (last["value"], last["n_members"], last["n_nonmembers"], last["n_unscored"]) == (
        0,
        1,
        1,
        2,
    )
    nowhere = of(member, np.full(20, np.nan), blind, None)
    assert [each["n_unscored"] for each in nowhere] == [4] * 5
