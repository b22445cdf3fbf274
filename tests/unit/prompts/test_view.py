"""Prompts as rows: what is stored, and what is cut from the target."""

from __future__ import annotations

import polars as pl

from mia_batch.prompts.views import (
    Shots,
    View,
    after_shots,
    continuation,
    extraction,
    given,
    numbered,
    text,
)
from mia_batch.schemas import Prompts
from tests import frames

TARGETS = frames.targets(
    {"target": "äh so on", "prefix": "äh so", "reference": " on"},
    {"target": "one two", "prefix": "eins", "reference": "zwei"},
    {"target": "x", "reason": "too short"},
)


def resolve(view: View) -> list[tuple[object, ...]]:
    assert view.make is not None
    rows = Prompts.validate(view.rows(view.make(TARGETS)))
    assert (rows["model"] == "target").all()
    whole = view.resolve(rows, TARGETS.select("target_id", *view.columns))
    return whole.select("context", "text", "reason").rows()


def test_a_continuation_stores_no_text_and_has_the_targets_own_parts():
    view = View(
        model="target", name="continuation", make=continuation, columns=("prefix", "reference")
    )
    rows = view.rows(continuation(TARGETS))
    assert rows.select("cut", "context", "text").null_count().row(0) == (3, 3, 3)
    assert resolve(view) == [
        ("äh so", " on", None),
        ("eins", "zwei", None),
        (None, None, "too short"),
    ]


def test_an_extraction_puts_a_space_between_parts_that_do_not_join():
    view = View(model="target", name="extraction", make=extraction, columns=("prefix", "reference"))
    assert resolve(view) == [
        ("äh so", " on", None),
        ("eins", " zwei", None),
        (None, None, "too short"),
    ]


def test_a_cut_counts_bytes():
    def second_word(targets: pl.DataFrame) -> pl.DataFrame:
        return text(targets).with_columns(cut=pl.lit(3))

    view = View(model="target", name="text", make=second_word, columns=("target",))
    assert resolve(view)[0] == ("äh", " so on", None)


def test_shots_stand_before_every_target_but_themselves():
    shots = Shots(context="one two\n\n", texts=frozenset({"one two"}), n_shots=1, n_tokens=3)
    view = View(
        model="target",
        name="nonmember_shots",
        make=lambda targets: after_shots(targets, shots=shots),
        columns=("target",),
    )
    reason = "the text is one of those that are put before others"
    assert resolve(view) == [
        ("one two\n\n", "äh so on", None),
        (None, None, reason),
        ("one two\n\n", "x", None),
    ]


def test_given_variants_are_numbered_and_those_that_lack_say_so():
    targets = TARGETS.head(2).with_columns(mine=pl.Series([["a", "b", "c"], None]))
    rows = given(targets, column="mine", n=2)
    assert rows.select("view_index", "text").rows() == [(0, "a"), (1, "b"), (0, None), (1, None)]
    assert rows["reason"].to_list() == [None, None, *["the text has no further neighbour"] * 2]
    assert [row["reason"] for row in numbered("t", (), range(1, 3), "why")] == ["why", "why"]
