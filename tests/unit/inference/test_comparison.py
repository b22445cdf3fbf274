from __future__ import annotations

from mia_batch.inference.comparison import read_comparison_sets
from tests.unit.inference.scored import rows, table


def test_roles_become_comparison_sets():
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


def test_without_non_members_labelled_targets_are_the_null():
    labelled = table(
        rows("target", [1]), rows("target", [1, 1], member=False), rows("target", [1], member=True)
    )
    for frame in (labelled, labelled.drop("role")):
        sets = read_comparison_sets(frame.lazy())
        assert sets.nulls.tolist() == [1, 2]
        assert sets.targets.tolist() == [0, 3]


def test_texts_belong_together_by_group_else_by_document_else_as_windows_of_one():
    same = {"document_id": "same 1"}
    frame = table(
        rows("target", [1, 1], **same, group="book"),
        rows("target", [1, 1], **same),
        rows("target", [1], document_id="book"),
        rows("target", [1, 1]),
        rows("target", [1], window_index=1),
    )
    sets = read_comparison_sets(frame.lazy())
    named = [tuple(sets.clusters.row(cluster)) for cluster in sets.cluster]
    assert named == [
        *[("group", "book")] * 2,
        *[("document", "same 1")] * 2,
        ("document", "book"),
        ("target", "t5"),
        *[("target", "t6")] * 2,
    ]
    assert sets.share_clusters(sets.targets)
    assert not sets.share_clusters(sets.targets[[0, 2, 4, 5, 6]], sets.targets[[1, 7]])


def test_names_of_clusters_may_be_left_out_where_no_two_rows_share_one():
    alone, shared = rows("target", [1, 1]), rows("target", [1, 1], group="book")
    for kinds, n_named in (([alone], 0), ([alone, shared], 3), ([alone, rows("canary", [1])], 3)):
        frame = table(*kinds).lazy()
        found, named = read_comparison_sets(frame, named=False), read_comparison_sets(frame)
        assert found.clusters.height == n_named
        assert found.clusters.schema == named.clusters.schema
        assert found.cluster.tolist() == named.cluster.tolist()
