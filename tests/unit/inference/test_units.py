from __future__ import annotations

import numpy as np

from mia_batch.inference.comparison import (
    cut_units,
    read_comparison_sets,
    window_pattern,
    windows_per_group,
)
from tests.unit.inference.scored import plan, rows, table

SETS = read_comparison_sets(
    table(
        rows("target", range(3), group="b"),
        rows("non_member", range(9), group="n"),
        rows("target", range(1), group="c"),
        rows("target", range(7), group="a"),
        rows("target", range(2), group="b"),
    ).lazy()
)


def test_windows_are_chosen_by_index_and_small_groups_are_left():
    units = cut_units(SETS, SETS.targets, 4, seed=3)
    assert [SETS.clusters["key"][int(one)] for one in units.cluster] == ["a", "b", "c"]
    assert units.sizes.tolist() == [7, 5, 1]
    assert units.enough.tolist() == [True, True, False]
    of_a, of_b = np.arange(13, 20), np.array([0, 1, 2, 20, 21])
    assert units.chosen.tolist() == [
        of_a[window_pattern(7, 4, 3)].tolist(),
        of_b[window_pattern(5, 4, 3)].tolist(),
    ]


def test_without_enough_windows_nothing_is_chosen():
    units = cut_units(SETS, SETS.targets, 8, seed=0)
    assert units.chosen.shape == (0, 8)
    assert units.statistics(np.zeros(22), plan()).tolist() == []


def test_the_number_of_windows_is_the_plans_or_follows_from_the_sizes():
    assert windows_per_group(SETS, plan(windows_per_group=6)) == 6
    assert windows_per_group(SETS, plan()) == 1  # of 1, 5, 7 and 9
