from __future__ import annotations

import polars as pl

from mia_batch.targets import cluster_name


def test_names_as_groups_keep_clusters_whatever_rows_are_left():
    frame = pl.DataFrame(
        {
            "target_id": ["c", "a", "b", "d", "e"],
            "group": ["g", None, None, None, None],
            "document_id": [None, "d", None, None, None],
            "window_index": [0, 0, 0, 1, 0],
        }
    )
    named = frame.with_columns(group=cluster_name(frame.columns))
    assert named["group"].to_list() == ["group g", "document d", "target b", "target b", "target e"]
    some = named.sort("target_id").tail(3)  # d without b, which it belongs to
    found = some.select(cluster_name(some.columns)).to_series().to_list()
    assert found == ["group group g", "group target b", "group target e"]


def test_a_text_before_the_first_of_a_document_is_by_itself():
    frame = pl.DataFrame({"target_id": ["a", "b"], "window_index": [1, 0]})
    assert frame.select(cluster_name(frame.columns)).to_series().to_list() == [
        "target a",
        "target b",
    ]
