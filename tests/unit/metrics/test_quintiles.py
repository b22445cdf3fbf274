from __future__ import annotations

import numpy as np
import pytest

from mia_batch.metrics.quintiles import fifth_aucs
from mia_batch.stats.intervals import auc_interval


def test_fifths_by_hand():
    blind = np.arange(20) / 20
    member = np.tile([True, False, True, False], 5)
    score = np.tile([3.0, 1.0, 2.0, 2.0], 5)
    fifths = fifth_aucs(member, score, blind, None)
    assert [fifth.slice for fifth in fifths] == [f"blind fifth {place}" for place in range(1, 6)]
    for fifth in fifths:
        # 3 beats 1 and 2, 2 beats 1 and ties with 2.
        assert fifth.value == pytest.approx(3.5 / 4)
        assert (fifth.n_members, fifth.n_nonmembers, fifth.reason) == (2, 2, None)
        assert fifth.interval == auc_interval(np.array([3.0, 2.0]), np.array([1.0, 2.0]))


def test_an_attack_that_repeats_the_blind_score_loses_most_of_its_auc_within_fifths():
    generator = np.random.default_rng(0)
    member = np.arange(5000) % 2 == 0
    blind = generator.normal(size=5000) + 1.5 * member
    repeated = [fifth.value or 0 for fifth in fifth_aucs(member, blind, blind, None)]
    assert 0.5 < max(repeated[1:4]) < 0.65
    unrelated = generator.normal(size=5000) + 1.5 * member
    assert min(fifth.value or 0 for fifth in fifth_aucs(member, unrelated, blind, None)) > 0.8


def test_a_fifth_that_lacks_a_class_has_a_reason():
    blind = np.repeat([0.1, 0.9], [8, 2])
    member = np.repeat([False, True], [8, 2])
    fifths = fifth_aucs(member, blind, blind, None)
    reasons = {fifth.reason for fifth in fifths}
    assert "there is no scored member in this fifth" in reasons
    assert sum(fifth.n_members + fifth.n_nonmembers for fifth in fifths) == 10
    assert all(fifth.value is None and fifth.interval is None for fifth in fifths)


def test_clustered_texts_have_the_intervals_of_clusters():
    generator = np.random.default_rng(1)
    member = np.arange(400) % 2 == 0
    score = generator.normal(size=400) + member
    cluster = (np.arange(400) // 4).astype(np.int32)
    for fifth in fifth_aucs(member, score, generator.random(400), cluster):
        assert fifth.interval is not None
        assert fifth.interval.method == "group_logit_t"


def test_texts_without_a_score_stay_in_their_fifth_and_are_counted():
    blind = np.arange(20) / 20
    member = np.tile([True, False], 10)
    score = np.where(np.arange(20) < 18, np.nan, np.arange(20.0))
    *without, last = fifth_aucs(member, score, blind, None)
    assert [(fifth.value, fifth.n_unscored) for fifth in without] == [(None, 4)] * 4
    assert (last.value, last.n_members, last.n_nonmembers, last.n_unscored) == (0, 1, 1, 2)
    nowhere = fifth_aucs(member, np.full(20, np.nan), blind, None)
    assert [fifth.n_unscored for fifth in nowhere] == [4] * 5
