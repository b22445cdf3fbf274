from itertools import combinations
from math import nan

import numpy as np
import pytest

from mia_batch.inference.comparison import (
    collection_test,
    cut_units,
    n_orders,
    read_comparison_sets,
    summarise,
    window_pattern,
    windows_per_group,
)
from mia_batch.inference.conformal import p_values
from tests.unit.inference.scored import plan, rows, table


def test_roles_become_comparison_sets_and_without_non_members_labelled_targets_the_null():
    sets = read_comparison_sets(
        table(
            rows("target", [1]),
            rows("target", [1], member=False),
            rows("non_member", [1, 1]),
            rows("calibration", [1], member=True),
            rows("calibration", [1], member=False),
            rows("calibration", [1]),
            rows("canary", [1], member=True),
            rows("canary", [1], member=False),
            rows("shot", [1], member=False),
            rows("target", [1], member=True),
        ).lazy()
    )
    assert sets.targets.tolist() == [0, 1, 10]
    assert sets.nulls.tolist() == [2, 3]
    assert sets.calibration_members.tolist() == [4]
    assert sets.calibration_nonmembers.tolist() == [5]
    assert (sets.published.tolist(), sets.controls.tolist()) == ([7], [8])
    labelled = table(
        rows("target", [1]),
        rows("target", [1, 1], member=False),
        rows("target", [1], member=True),
    )
    for frame in (labelled, labelled.drop("role")):
        sets = read_comparison_sets(frame.lazy())
        assert sets.nulls.tolist() == [1, 2]
        assert sets.targets.tolist() == [0, 3]


def test_texts_belong_together_by_group_else_by_document_else_as_windows_of_one():
    same_document = {"document_id": "same 1"}
    frame = table(
        rows("target", [1, 1], **same_document, group="book"),
        rows("target", [1, 1], **same_document),
        rows("target", [1], document_id="book"),
        rows("target", [1, 1]),
        rows("target", [1], window_index=1),
    )
    sets = read_comparison_sets(frame.lazy())
    assert [tuple(sets.clusters.row(cluster)) for cluster in sets.cluster] == [
        *[("group", "book")] * 2,
        *[("document", "same 1")] * 2,
        ("document", "book"),
        ("target", "t5"),
        *[("target", "t6")] * 2,
    ]
    assert sets.share_clusters(sets.targets)
    assert not sets.share_clusters(sets.targets[[0, 2, 4, 5, 6]], sets.targets[[1, 7]])
    alone, shared = rows("target", [1, 1]), rows("target", [1, 1], group="book")
    for kinds, n_named in (
        ([alone], 0),
        ([alone, shared], 3),
        ([alone, rows("canary", [1])], 3),
    ):
        rows_of = table(*kinds).lazy()
        unnamed_sets, named_sets = (
            read_comparison_sets(rows_of, with_names=False),
            read_comparison_sets(rows_of),
        )
        assert unnamed_sets.clusters.height == n_named
        assert unnamed_sets.clusters.schema == named_sets.clusters.schema
        assert unnamed_sets.cluster.tolist() == named_sets.cluster.tolist()


SETS = read_comparison_sets(
    table(
        rows("target", range(3), group="b"),
        rows("non_member", range(9), group="n"),
        rows("target", range(1), group="c"),
        rows("target", range(7), group="a"),
        rows("target", range(2), group="b"),
    ).lazy()
)


def test_windows_are_chosen_by_index_as_many_as_the_plan_or_the_sizes_say():
    units = cut_units(SETS, SETS.targets, 4, seed=3)
    assert [SETS.clusters["key"][int(position)] for position in units.cluster] == [
        "a",
        "b",
        "c",
    ]
    assert units.sizes.tolist() == [7, 5, 1]
    assert units.usable.tolist() == [True, True, False]
    of_a, of_b = np.arange(13, 20), np.array([0, 1, 2, 20, 21])
    assert units.windows.tolist() == [
        of_a[window_pattern(7, 4, 3)].tolist(),
        of_b[window_pattern(5, 4, 3)].tolist(),
    ]
    assert windows_per_group(SETS, plan(windows_per_group=6)) == 6
    assert windows_per_group(SETS, plan()) == 1  # of 1, 5, 7 and 9


SIMULATED = 2000


def rank(value, values):
    """Mean rank of equal values, from 1."""
    return (
        sum(other_value < value for other_value in values)
        + (values.count(value) + 1) / 2
    )


def collection_reference(groups, nulls):
    """Share of all ways to choose the audited groups with ranks that sum to as much."""
    pooled = [*groups, *nulls]
    ranks = [rank(value, pooled) for value in pooled]
    sums = [sum(group_ranks) for group_ranks in combinations(ranks, len(groups))]
    return sum(rank_sum >= sum(ranks[: len(groups)]) for rank_sum in sums) / len(sums)


@pytest.mark.parametrize("size", [5, 6, 9, 10, 11, 100])
def test_a_pattern_takes_one_window_of_each_stretch(size):
    edges = [size * part // 5 for part in range(6)]
    for seed in range(20):
        windows = window_pattern(size, 5, seed)
        assert all(edges[part] <= windows[part] < edges[part + 1] for part in range(5))
    # The pattern is alike in every group, and differs by seed.
    assert (window_pattern(500, 5, 1) // 10).tolist() == window_pattern(
        50, 5, 1
    ).tolist()
    assert window_pattern(500, 5, 1).tolist() != window_pattern(500, 5, 2).tolist()


@pytest.mark.parametrize(
    ("statistic", "value"), [("mean", 4), ("median", 2), ("maximum", 9)]
)
def test_statistics_by_hand(statistic, value):
    scores, windows = np.array([1, 2, 9, nan]), np.array([[0, 1, 2], [2, 1, 3]])
    statistics = summarise(scores[windows], statistic)
    assert statistics[0] == value
    assert np.isnan(statistics[1])


def test_unscored_groups_rank_lowest_and_unscored_nulls_highest():
    test = collection_test(np.array([nan, 8]), np.array([1.0, nan, 3, 4]), 0)
    assert test == (
        3.0,
        collection_reference([0, 8], [1, 9, 3, 4]),
        "permutation_exact",
    )


def test_rounding_errors_decide_no_rank():
    test = collection_test(np.array([0.1 + 0.2]), np.array([0.3, 0.1]), 0)
    assert test == (2.5, 2 / 3, "permutation_exact")


@pytest.mark.parametrize("seed", range(5))
def test_the_collection_equals_its_reference(seed):
    rng = np.random.default_rng(seed)
    groups, nulls = rng.integers(1, 9, 3), rng.integers(0, 8, 7)
    test = collection_test(groups.astype(float), nulls.astype(float), 0)
    assert test.p_value == pytest.approx(
        collection_reference(groups.tolist(), nulls.tolist())
    )


def test_many_groups_are_drawn_and_come_near_the_exact_share():
    rng = np.random.default_rng(0)
    groups, nulls = rng.normal(0.6, 1, 4), rng.normal(0, 1, 26)
    test = collection_test(groups, nulls, 1)
    assert test.method == "permutation_of_9999"
    exact = collection_reference(groups.tolist(), nulls.tolist())
    assert test.p_value == pytest.approx(exact, abs=4 * (exact / 9999) ** 0.5)
    assert test == collection_test(groups, nulls, 1)
    far = collection_test(groups + 99, nulls, 1)
    assert far.p_value >= 1 / 10_000


def test_so_many_groups_that_fewer_are_drawn():
    assert n_orders(2, 9997) == 10_000
    assert n_orders(2, 9998) == 1000
    test = collection_test(np.full(2, 3.0), np.zeros(9998), 0)
    assert (test.method, test.p_value) == ("permutation_of_999", 1 / 1000)


def test_groups_reject_as_often_as_they_may():
    """The group asked about has 5 windows, to which the others are cut."""
    rng, n_windows = np.random.default_rng(4), 5
    target_windows = np.arange(n_windows)[None]
    nulls = np.arange(40, 1600).reshape(39, 40)[:, window_pattern(40, n_windows, 0)]
    rejected = 0
    for _ in range(SIMULATED):
        # 40 groups of 40 windows that share three tenths of their variance; the first
        # is asked.
        scores = 0.3**0.5 * rng.normal(size=(40, 1)) + 0.7**0.5 * rng.normal(
            size=(40, 40)
        )
        scores = scores.ravel()
        statistics = [
            summarise(scores[windows], "mean") for windows in (target_windows, nulls)
        ]
        rejected += p_values(*statistics)[0] <= 0.05
    assert 0.035 <= rejected / SIMULATED <= 0.066
