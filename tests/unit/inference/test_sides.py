from __future__ import annotations

from mia_batch.inference.sides import read_sides
from tests.unit.inference.scored import rows, table


def test_roles_become_sides():
    sides = read_sides(
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
    assert sides.targets.tolist() == [0, 1, 10]
    assert sides.nulls.tolist() == [2, 3]
    assert sides.calibration_members.tolist() == [4]
    assert sides.calibration_nonmembers.tolist() == [5]
    assert (sides.published.tolist(), sides.twins.tolist()) == ([7], [8])


def test_without_non_members_labelled_targets_are_the_null():
    labelled = table(
        rows("target", [1]), rows("target", [1, 1], member=False), rows("target", [1], member=True)
    )
    for frame in (labelled, labelled.drop("role")):
        sides = read_sides(frame.lazy())
        assert sides.nulls.tolist() == [1, 2]
        assert sides.targets.tolist() == [0, 3]


def test_texts_belong_together_by_group_else_by_document_else_as_windows_of_one():
    same = {"document_id": "same 1"}
    frame = table(
        rows("target", [1, 1], **same, group="book"),
        rows("target", [1, 1], **same),
        rows("target", [1], document_id="book"),
        rows("target", [1, 1]),
        rows("target", [1], window_index=1),
    )
    sides = read_sides(frame.lazy())
    named = [tuple(sides.clusters.row(cluster)) for cluster in sides.cluster]
    assert named == [
        *[("group", "book")] * 2,
        *[("document", "same 1")] * 2,
        ("document", "book"),
        ("target", "t5"),
        *[("target", "t6")] * 2,
    ]
    assert sides.shares(sides.targets)
    assert not sides.shares(sides.targets[[0, 2, 4, 5, 6]], sides.targets[[1, 7]])


def test_names_of_clusters_may_be_left_out_where_no_two_rows_share_one():
    alone, shared = rows("target", [1, 1]), rows("target", [1, 1], group="book")
    for kinds, n_named in (([alone], 0), ([alone, shared], 3), ([alone, rows("canary", [1])], 3)):
        frame = table(*kinds).lazy()
        found, named = read_sides(frame, named=False), read_sides(frame)
        assert found.clusters.height == n_named
        assert found.clusters.schema == named.clusters.schema
        assert found.cluster.tolist() == named.cluster.tolist()
