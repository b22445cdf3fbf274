"""What is said of verdicts: nothing that was asked for stays without an answer."""

from __future__ import annotations

import polars as pl

from mia_batch.inference.verdicts import verdicts
from mia_batch.report.conclusions import conclude_unlabelled
from tests.unit.inference.scored import plan, rows, table

NULLS = rows("non_member", [0.1 * place for place in range(9)])


def said(*parts, **changes):
    planned = plan(**changes)
    made = pl.concat(verdicts(table(*parts).lazy(), ["a_v1"], planned))
    return list(conclude_unlabelled(made.lazy(), planned))


def test_texts_without_groups_are_groups_of_their_own():
    lines = said(rows("target", [0.95, 0.05]), NULLS, level="group", q=0.2)
    assert lines[0].startswith("1 of 2 groups are reported at q = 0.2 ")
    assert lines[0].endswith("on average at most 20 % false.")
    assert "The null: known." in lines


def test_groups_that_cannot_be_compared_are_counted_with_their_reason():
    book = rows("target", [0.5, 0.6], group="b")
    lines = said(book, NULLS, level="group", windows_per_group=3)
    assert lines[0].startswith("None of 1 groups is reported")
    assert "against 0 independent units" in lines[0]
    assert lines[1] == "Without a p-value: 1 groups (mostly: the group has 2 of 3 windows)."


def test_a_collection_has_its_null_or_a_reason():
    lines = said(rows("target", [0.95]), NULLS, level="collection", null_set="new.")
    assert lines[:2] == [
        "All groups together, by a_v1: p = 0.1 (permutation_exact).",
        "The null: new.",
    ]
    none = said(rows("target", [0.95]), NULLS, level="collection", windows_per_group=2)
    assert none[0] == (
        "All groups together, by a_v1: no p-value (no group on one of the two sides has 2 windows)."
    )


def test_what_the_plan_is_not_about_is_exploratory():
    lines = said(rows("target", [0.9, 0.8], group="b"), rows("non_member", [0.1], group="c"))
    assert lines[1] == (
        "All groups together, by a_v1: p = 0.5 "
        "(permutation_exact; exploratory, the plan is about each target)."
    )


def test_targets_without_score_or_without_a_null_of_their_length_are_counted():
    short = rows("target", [0.9], n_words=5)
    lines = said(short, rows("target", [None, 0.2]), NULLS, length_edges=(50,))
    assert lines[1] == "Without a p-value: 1 targets (mostly: the target has no score)."
    assert lines[2] == "Nothing to compare with, so never reported: 1 targets."


def test_a_small_q_is_not_rounded_away():
    lines = said(rows("target", [5.0]), rows("non_member", [0.0] * 999), q=0.001)
    assert lines[0].endswith("on average at most 0.1 % false.")
