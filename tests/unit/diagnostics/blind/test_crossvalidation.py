from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from mia_batch.diagnostics.blind import Direction, Outcome, cross_validate
from mia_batch.stats.clusters import Folds, deal_folds
from mia_batch.stats.intervals import auc_interval


@dataclass
class Spy:
    """Scores every text by its number, and keeps what it was shown."""

    shown: list[Any] = field(default_factory=list)

    def scores(self, train, test, labels):
        self.shown.append((train, test, labels))
        return np.repeat(test[:, None].astype(float), labels.shape[1], axis=1)


def outcome(score, label, permuted):
    areas = [
        (member > nonmember) + (member == nonmember) / 2
        for member in score[label]
        for nonmember in score[~label]
    ]
    return Outcome(label=label, score=score, auc=float(np.mean(areas)), permuted=permuted)


def test_no_classifier_sees_the_labels_that_it_is_asked_for():
    label = np.tile([True, False], 10)
    folds = deal_folds(label, np.arange(20) // 4, n_folds=5, generator=np.random.default_rng(0))
    spy = Spy()
    cross_validate({"spy": spy}, label, folds, n_permutations=3, generator=np.random.default_rng(1))
    assert sorted(np.concatenate([test for _, test, _ in spy.shown])) == list(range(20))
    for train, test, labels in spy.shown:
        assert sorted([*train, *test]) == list(range(20))
        assert set(train // 4).isdisjoint(test // 4)
        assert labels.shape == (16, 4)
        assert labels[:, 0].tolist() == label[train].tolist()


def test_scores_become_ranks_within_folds():
    label = np.array([True, False, False, True, True, False])
    folds = Folds(cluster=np.arange(6), fold=np.array([0, 1, 0, 1, 0, 1]), n_folds=2)
    value = np.array([5.0, 100.0, 3.0, 300.0, 3.0, 200.0])
    found = cross_validate(
        {"value": Direction(value)},
        label,
        folds,
        n_permutations=1,
        generator=np.random.default_rng(0),
    )["value"]
    # Both folds put members higher: 5 above 3 and 3, 300 above 200 and 100.
    assert found.score == pytest.approx([5 / 6, 1 / 6, 2 / 6, 5 / 6, 2 / 6, 3 / 6])
    # Members 5/6, 5/6, 2/6 against 1/6, 2/6, 3/6: 3 + 3 + 1.5 of 9.
    assert found.auc == pytest.approx(7.5 / 9)
    assert found.permuted.shape == (1,)


def test_limits_move_away_by_the_ratio_of_deviations():
    generator = np.random.default_rng(0)
    label = np.repeat([True, False], 30)
    score = generator.permutation(60) + 20.5 * label
    # Deviation of a fixed score: the root of 61 / (12 x 30 x 30).
    expected = (61 / 10_800) ** 0.5
    wide = outcome(score, label, np.array([0.5 - 1.5 * expected, 0.5 + 1.5 * expected]))
    plain = auc_interval(score[label], score[~label])
    found = wide.interval()
    assert found.low == pytest.approx(wide.auc - 1.5 * (wide.auc - plain.low))
    assert found.high == pytest.approx(wide.auc + 1.5 * (plain.high - wide.auc))
    assert (found.method, found.confidence) == ("delong_logit_permuted", 0.95)
    narrow = outcome(score, label, np.array([0.5, 0.5])).interval()
    assert (narrow.low, narrow.high) == pytest.approx((plain.low, plain.high))


def test_ties_are_less_variable():
    """Two values, half of the texts each: deviation as of a difference of two shares, halved."""
    label, score = np.repeat([True, False], 4), np.tile([0.25, 0.75], 4)
    # Var of the members' share among 8 texts, 4 high, is 1/4 x 1/4 x 4/7; AUC - 1/2 is that share
    # less 1/2, so the deviation is the root of 1/28.
    found = outcome(score, label, np.array([0.5 + 2 * (1 / 28) ** 0.5])).interval()
    plain = auc_interval(score[label], score[~label])
    assert found.high == pytest.approx(min(1.0, 0.5 + 2 * (plain.high - 0.5)))


def test_limits_stay_within_0_and_1_and_apart():
    label = np.repeat([True, False], 5)
    constant = outcome(np.full(10, 0.5), label, np.full(9, 0.5)).interval()
    assert constant.low < 0.5 < constant.high
    perfect = outcome(np.arange(10) < 5, label, np.array([0.0, 1.0])).interval()
    assert 0 <= perfect.low < perfect.high == 1
