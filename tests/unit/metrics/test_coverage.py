"""A small part of benches/interval_coverage.py: intervals hold the truth as often as they say."""

from __future__ import annotations

import pytest
from benches.interval_coverage import CASES, coverage, kept

N_SIMULATIONS = 40
QUICK = [case for case in CASES if case.figure != "simultaneous" and case.groups * case.n < 1000]


def test_the_grid_has_independent_and_grouped_texts_of_every_figure():
    assert {(case.figure, case.groups > 0) for case in QUICK} >= {
        ("auc", False), ("auc", True), ("tpr", False), ("tpr", True), ("balanced accuracy", False),
        ("balanced accuracy", True), ("difference", False), ("difference", True), ("macro", False),
    }  # fmt: skip


@pytest.mark.parametrize("case", QUICK, ids=str)
def test_coverage(case):
    share, width, none = coverage(case, N_SIMULATIONS)
    assert none == 0
    assert kept(case, share, N_SIMULATIONS)
    assert width < 0.7


def test_simultaneous_bounds_hold_together():
    case = next(case for case in CASES if case.figure == "simultaneous")
    share, _, _ = coverage(case, N_SIMULATIONS // 2)
    assert kept(case, share, N_SIMULATIONS // 2)
