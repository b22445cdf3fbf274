from __future__ import annotations

import os

import numpy as np
import pytest

from mia_batch.stats import bootstrap
from mia_batch.stats.bootstrap import find_units, n_allowed, rank, resample
from mia_batch.stats.roc import roc_auc, roc_curve

BUDGETS = (0.05, 0.3)


def run(*, grouped, n=60):
    rng = np.random.default_rng(0)
    cluster = (np.arange(n) // 3).astype(np.int32) if grouped else None
    member = np.arange(n) < n // 2
    return member, rng.integers(0, 15, n) + 3.0 * member, cluster


def repeated(counts, units, member, score):
    """The texts of a resample, each as often as its unit was drawn."""
    rows = np.repeat(np.arange(member.size), counts[units.code])
    return member[rows], score[rows]


@pytest.mark.parametrize("grouped", [False, True])
def test_measures_of_a_resample_are_those_of_its_texts_written_out(grouped):
    member, score, cluster = run(grouped=grouped)
    units = find_units(member, cluster)
    drawn = bootstrap._draw(units, 20, np.random.default_rng(1))
    found = bootstrap._measure(drawn, rank(member, score, units.code), BUDGETS)
    for counts, (auc, *rates) in zip(drawn, found, strict=True):
        texts = repeated(counts, units, member, score)
        assert auc == pytest.approx(roc_auc(*texts), rel=1e-12)
        expected = [roc_curve(*texts).at_fpr(budget).tpr for budget in BUDGETS]
        assert rates == pytest.approx(expected)


@pytest.mark.parametrize("grouped", [False, True])
def test_as_many_units_of_each_class_are_drawn_as_there_are(grouped):
    member, _, cluster = run(grouped=grouped)
    units = find_units(member, cluster)
    drawn = bootstrap._draw(units, 50, np.random.default_rng(1))
    of_members = np.unique(units.code[member])
    assert (drawn[:, of_members].sum(axis=1) == of_members.size).all()
    assert (drawn.sum(axis=1) == drawn.shape[1]).all()


def test_groups_of_both_classes_are_drawn_from_among_all_groups():
    member = np.array([True, False, True, False])
    units = find_units(member, np.array([0, 0, 1, 2], dtype=np.int32))
    assert [stratum.tolist() for stratum in units.strata] == [[0, 1, 2]]
    apart = find_units(member, np.array([0, 1, 0, 2], dtype=np.int32))
    assert [stratum.tolist() for stratum in apart.strata] == [[0], [1, 2]]


def test_a_resample_without_a_class_has_no_figures():
    member = np.array([True, False])
    units = find_units(np.array([True, True, False, False]), None)
    ranking = rank(member, np.array([1.0, 0.0]), np.array([0, 2]))
    found = resample([ranking], units, seed=0, n_resamples=40, budgets=(0.5,))
    assert np.isnan(found[:, 0, 0]).sum() > 10
    assert (np.isnan(found[:, 0, 0]) == np.isnan(found[:, 0, 1])).all()
    assert set(found[:, 0, 0][~np.isnan(found[:, 0, 0])]) == {1.0}


def test_scores_meet_the_same_resamples_whatever_is_measured_beside_them():
    member, score, cluster = run(grouped=True)
    units = find_units(member, cluster)
    first, second = (rank(member, values, units.code) for values in (score, score % 7))
    both = resample([first, second], units, seed=3, n_resamples=30)
    alone = resample([second], units, seed=3, n_resamples=30)
    assert both[:, 1].tolist() == alone[:, 0].tolist()
    other = resample([second], units, seed=4, n_resamples=30)
    assert other.tolist() != alone.tolist()


def test_the_number_of_threads_changes_nothing(monkeypatch):
    member, score, cluster = run(grouped=True, n=600)
    units = find_units(member, cluster)
    ranking = rank(member, score, units.code)
    found = []
    for cores in (1, 5):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, cores=cores: set(range(cores)))
        found.append(resample([ranking], units, seed=0, n_resamples=500))
    assert found[0].tolist() == found[1].tolist()


def test_the_spread_of_resamples_is_the_standard_error():
    """DeLong's, of shares beaten and beating."""
    rng = np.random.default_rng(0)
    member = np.arange(2000) < 1000
    score = rng.normal(size=2000) + member
    units = find_units(member, None)
    drawn = resample([rank(member, score, units.code)], units, seed=0, n_resamples=500)
    placements = (np.sort(score[~member]).searchsorted(score[member])) / 1000
    others = 1 - (np.sort(score[member]).searchsorted(score[~member])) / 1000
    expected = (placements.var() / 1000 + others.var() / 1000) ** 0.5
    assert drawn.std() == pytest.approx(expected, rel=0.1)
    assert drawn.mean() == pytest.approx(roc_auc(member, score), abs=3 * expected / 500**0.5)


@pytest.mark.parametrize(
    ("n", "budget", "allowed"),
    [(10, 0.1, 1), (9, 0.1, 0), (30, 0.1, 3), (1000, 0.001, 1), (999, 0.001, 0), (7, 1.0, 7)],
)
def test_as_many_may_be_flagged_as_the_curve_allows(n, budget, allowed):
    assert n_allowed(n, budget) == allowed
    curve = roc_curve(np.arange(n + 1) < 1, np.arange(n + 1, dtype=np.float64))
    assert round(curve.at_fpr(budget).fpr * n) == allowed
