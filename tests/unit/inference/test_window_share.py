"""The share of a document's windows, against the estimates that it is made of."""

from __future__ import annotations

import numpy as np
import pytest

from mia_batch.inference.comparison import read_comparison_sets
from mia_batch.inference.estimates import (
    Flagged,
    WindowShare,
    contamination_bound,
    contamination_rate,
)
from tests.unit.inference.scored import rows, table

NULLS = rows("non_member", [number / 100 for number in range(99)])


def share(*parts, fpr=0.05, blind_warns=False):
    frame = table(rows("target", [0.5]), *parts)
    sets = read_comparison_sets(frame.lazy())
    scores = frame["a_v1"].fill_null(float("nan")).to_numpy()
    return WindowShare(sets, scores, fpr, blind_warns=blind_warns)


def calibration():
    return (
        rows("calibration", np.linspace(0, 1, 200).tolist(), member=False),
        rows("calibration", np.linspace(0.5, 1.5, 200).tolist(), member=True),
    )


def test_the_threshold_is_that_of_the_collection():
    assert share(NULLS).threshold == 0.94  # the fifth largest of 99
    assert share(rows("non_member", [0.1, None])).threshold == np.inf


def test_without_calibration_data_there_is_a_lower_bound():
    found = share(NULLS).of(30, 38, 40)
    bound = contamination_bound(Flagged(30, 40), n_null=99, rank=5)
    assert (found.value, found.low, found.high) == (None, bound.low, 1.0)
    assert found.reason == "without calibration data there is a lower bound alone"


def test_the_bound_leaves_one_window_open():
    """Where all windows lie above the threshold, the interval would have no width."""
    many = rows("non_member", [number / 10_000 for number in range(9_999)])
    strict = share(many, fpr=0.0001)
    assert contamination_bound(Flagged(3, 3), n_null=9_999, rank=1).low == 1
    assert strict.of(3, 3, 3).low == pytest.approx(2 / 3)
    assert strict.of(1, 1, 1).low == 0


def test_with_calibration_data_there_is_a_rate():
    found = share(NULLS, *calibration()).of(10, 38, 40)
    # Above 0.94 lie 12 of the 200 non-members, and 112 of the members.
    rate = contamination_rate(
        Flagged(10, 38), Flagged(12, 200), Flagged(112, 200), blind_warns=False
    )
    assert found == rate
    assert found.value is not None


def test_where_the_rate_is_withheld_the_bound_says_why():
    found = share(NULLS, *calibration(), blind_warns=True).of(30, 38, 40)
    assert found.value is None
    assert found.low == share(NULLS).of(30, 38, 40).low
    assert found.reason == "the calibration labels can be told apart without the model"


@pytest.mark.parametrize(
    ("parts", "counts", "reason"),
    [
        ([], (0, 3, 3), "0 null texts are too few, 1 are needed"),
        ([NULLS], (0, 0, 3), "no window has a score"),
        (
            [rows("non_member", [0.1, 0.2, 0.3], group="one")],
            (0, 3, 3),
            "1 null groups are too few, 20 are needed",
        ),
    ],
)
def test_without_enough_to_compare_with_there_is_a_reason(parts, counts, reason):
    found = share(*parts).of(*counts)
    assert (found.value, found.low, found.high, found.reason) == (None, None, None, reason)


def test_calibration_data_of_few_groups_or_without_scores_give_no_rate():
    members = rows("calibration", [0.9, 0.8], member=True, group="one")
    others = rows("calibration", [0.1, 0.2], member=False)
    found = share(NULLS, members, others).of(30, 38, 40)
    assert found.reason == "1 calibration member groups are too few, 20 are needed"
    unscored = rows("calibration", [None], member=True)
    found = share(NULLS, unscored, others).of(30, 38, 40)
    assert found.reason == "a class of the calibration data has no score"
    assert found.low == share(NULLS).of(30, 38, 40).low


def test_windows_that_depend_on_each_other_count_less():
    """Four windows each: where all four are flagged or none, they count as one."""
    alike = [score for number in range(99) for score in [number / 100] * 4]
    groups = [f"g{number}" for number in range(99) for _ in range(4)]
    nulls = [
        rows("non_member", [score], group=group) for score, group in zip(alike, groups, strict=True)
    ]
    found = share(*nulls)
    assert found.threshold == 0.94  # the nineteenth largest of 396
    apart = contamination_bound(Flagged(30, 40), n_null=99, rank=5)
    assert found.of(120, 160, 160).low == apart.low
