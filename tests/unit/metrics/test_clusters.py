from __future__ import annotations

import polars as pl

from mia_batch.metrics.evaluate import find_clusters


def clusters(columns, *, counts=None, window=None):
    """Cluster of each target, as the number of the first target in it."""
    n = len(next(iter(columns.values())))
    frame = pl.DataFrame({"a": [1.0] * n} | columns)
    if window:
        frame = frame.with_columns(window_index=pl.Series(window, dtype=pl.UInt32))
    where = pl.lit(value=True) if counts is None else pl.lit(pl.Series(counts))
    found = find_clusters(frame.lazy(), where, ["a"] + ["b"] * ("b" in columns))
    if found is None:
        return None
    codes = found.tolist()
    assert sorted(set(codes)) == list(range(len(set(codes))))
    return [codes.index(code) for code in codes]


def test_the_group_counts_else_the_document_else_the_target():
    group = ["g", None, "g", None, None, None]
    document = ["1", "2", "3", "2", None, None]
    assert clusters({"group": group, "document_id": document}) == [0, 1, 0, 1, 4, 5]


def test_a_group_and_a_document_of_one_name_are_two():
    found = clusters({"group": ["x", "x", None], "document_id": [None, None, "x"]})
    assert found == [0, 0, 2]


def test_clusters_of_one_target_are_no_clusters():
    assert clusters({"group": ["a", "b"], "document_id": [None, "a"]}) is None
    assert clusters({"a": [1.0, 2.0]}) is None


def test_windows_of_a_document_without_an_identifier_are_one_cluster():
    found = clusters({"document_id": [None] * 5, "group": [None] * 5}, window=[0, 1, 0, 0, 1])
    assert found == [0, 0, 2, 3, 3]


def test_targets_that_do_not_count_are_left_out_but_still_begin_documents():
    found = clusters(
        {"document_id": [None] * 4}, window=[0, 0, 1, 2], counts=[True, False, True, True]
    )
    assert found == [0, 1, 1]


def test_only_scored_targets_make_a_cluster():
    group = ["a", "a", "b"]
    assert clusters({"group": group, "a": [1.0, None, 2.0]}) is None
    assert clusters({"group": group, "a": [1.0, float("inf"), 2.0]}) is None
    assert clusters({"group": group, "a": [1.0, None, 2.0], "b": [None, 1.0, 1.0]}) == [0, 0, 2]
