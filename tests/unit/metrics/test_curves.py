from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from mia_batch.metrics.measure import curves
from mia_batch.schemas import Curves, Targets
from mia_batch.tables import check
from tests.frames import attack, table, target_id

LETTERS = 10  # of every window
ATTACKS = [attack(name, pl.col("words_candidate").max()) for name in ("a_v1", "b_v1")]


def drawn(*rows, curve=None):
    """Curves of such windows; each is ten characters and a space behind the one before."""
    numbered = [
        {
            "target_id": target_id(number),
            "n_windows": 1,
            "start": 11 * row.get("window_index", 0),
            "target": "x" * LETTERS,
            **row,
        }
        for number, row in enumerate(rows)
    ]
    frame = table(Targets, numbered, role="target", window_index=0, n_words=100).with_columns(
        pl.Series(name, [row.get(name) for row in rows], pl.Float64) for name in ("a_v1", "b_v1")
    )
    found = pl.concat(curves(frame.drop("a_v1", "b_v1").lazy(), frame.lazy(), ATTACKS, "a_v1", {}))
    check(found, Curves, what="curves")
    return found if curve is None else found.filter(curve=curve)


def texts(scores, **columns):
    return [{"a_v1": score, **columns} for score in scores]


def book(name, scores, windows=None, n_windows=None, **columns):
    windows = windows or range(len(scores))
    return [
        row | {"window_index": window}
        for window, row in zip(
            windows,
            texts(scores, document_id=name, n_windows=n_windows or len(scores), **columns),
            strict=True,
        )
    ]


def points(frame):
    return frame.select("x", "y", "n").rows()


def test_a_roc_curve_of_few_scores_has_all_its_points():
    labelled = texts([0.9, 0.5], member=True) + texts([0.5, 0.1], member=False)
    other = texts([5.0], member=True, role="calibration") + texts([3.0, None])
    found = drawn(*labelled, *other, curve="roc")
    assert found["attack"].unique().to_list() == ["a_v1"]  # b_v1 has no scores
    assert points(found) == [(0, 0, 4), (0, 0.5, 4), (0.5, 1, 4), (1, 1, 4)]
    assert found["subject"].null_count() == 4


def test_without_both_classes_there_is_no_roc_curve():
    assert drawn(*texts([0.9, 0.5], member=True), curve="roc").is_empty()
    assert drawn(*texts([None], member=True), *texts([0.1], member=False), curve="roc").is_empty()


def test_distributions_over_the_range_of_all_texts():
    found = drawn(
        *texts([4.0, 4.0, float("inf")], member=True),
        *texts([0.0], member=False),
        *texts([0.05, 2.0], role="non_member", member=False),
        *texts([2.0], role="calibration", member=True),
        *texts([1.0, 3.0, None]),
        *texts([9.0], role="shot"),
        curve="distribution",
    )
    sets = dict(found.select("subject", "n").unique().iter_rows())
    assert sets == {"members": 3, "non-members": 3, "targets": 2}
    members, others, targets = found.partition_by("subject", maintain_order=True)
    assert [*members["x"]] == pytest.approx([0.05 + 0.1 * number for number in range(40)])
    assert {n: y for n, y in enumerate(members["y"]) if y} == {20: 1 / 3, 39: 2 / 3}
    assert {n: y for n, y in enumerate(others["y"]) if y} == {0: 2 / 3, 20: 1 / 3}
    assert {n: y for n, y in enumerate(targets["y"]) if y} == {10: 0.5, 30: 0.5}


def test_equal_scores_lie_in_one_bin():
    found = drawn(*texts([2.0, 2.0]), curve="distribution")
    assert found.filter(pl.col("y") > 0).select("y", "n").rows() == [(1.0, 2)]


def test_a_strip_has_the_share_of_others_that_score_lower():
    nulls = texts([0.1, 0.2, 0.3, 0.4], role="non_member", member=False)
    found = drawn(*book("a", [0.25, None, 0.4, 0.9]), *book("b", [0.5]), *nulls, curve="strip")
    assert found["subject"].unique().to_list() == ["a"]
    end = 3 * 11 + LETTERS
    expected = [(0, 0.5, 1), (11 / end, None, 0), (22 / end, 0.75, 1), (33 / end, 1, 1)]
    assert points(found) == expected


def test_without_texts_outside_all_are_compared():
    found = drawn(*book("a", [0.1, 0.2]), *texts([0.3, 0.4]), curve="strip")
    assert found["y"].to_list() == [0, 0.25]


def test_a_document_of_many_windows_has_60_stretches():
    nulls = texts([0.5], role="non_member")
    scores = [float(number >= 60) for number in range(120)]
    found = drawn(*book(None, scores), *nulls, curve="strip")
    assert found["subject"].unique().to_list() == [target_id(0)]
    assert found["n"].to_list() == [2] * 60
    assert found["y"].to_list() == [0.0] * 30 + [1.0] * 30
    assert found["x"][30] == 60 * 11 / (119 * 11 + LETTERS)


def test_a_gap_begins_where_the_window_before_it_ends():
    nulls = texts([0.5], role="non_member")
    asked = book("a", [0.9, 0.9, 0.1], windows=[0, 1, 8], n_windows=10)
    end = 8 * 11 + LETTERS
    expected = [(0, 1, 1), (11 / end, 1, 1), (21 / end, None, 0), (88 / end, 0, 1)]
    assert points(drawn(*asked, *nulls, curve="strip")) == expected


def test_documents_of_other_roles_and_without_text():
    helpers = book("a", [0.9, 0.9], role="non_member"), book("a", [0.9, 0.9], role="calibration")
    blank = texts([None, None], target=None, start=None, document_id="b")
    assert drawn(*helpers[0], *helpers[1], *blank, curve="strip").is_empty()


def test_without_a_score_there_is_nothing_but_strips():
    found = drawn(*book("a", [None, None]))
    assert found.select("curve", "y", "n").rows() == [("strip", None, 0)] * 2


@pytest.mark.parametrize("seed", range(3))
def test_a_curve_of_many_scores_is_moved_by_at_most_a_400th(seed):
    """Along either axis, at worst where a step's corner is cut off."""
    rng = np.random.default_rng(seed)
    scores = rng.normal(0, 1, 600).round(seed + 2)
    member = rng.random(600) < 0.4
    rows = [{"a_v1": s + m, "member": bool(m)} for s, m in zip(scores, member, strict=True)]
    found = drawn(*rows, curve="roc")
    assert 100 < found.height <= 201
    score = scores + member
    x, y = found["x"].to_numpy(), found["y"].to_numpy()
    for threshold in np.unique(score):
        fpr, tpr = (score[~member] >= threshold).mean(), (score[member] >= threshold).mean()
        walked = np.linspace(0, 2, 20_001)
        near = np.maximum(
            abs(np.interp(walked, x + y, x) - fpr), abs(np.interp(walked, x + y, y) - tpr)
        )
        assert near.min() <= 1 / 400 + 1e-4
