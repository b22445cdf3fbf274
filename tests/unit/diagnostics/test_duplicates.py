from __future__ import annotations

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mia_batch.diagnostics import preflight
from mia_batch.diagnostics.preflight import count_copies, near_duplicates

WORDS = [f"w{i}" for i in range(40)]


def frame(*rows):
    """Texts with their label; ids are a, b, c ..."""
    texts, labels = zip(*rows, strict=True)
    ids = [chr(ord("a") + place) for place in range(len(rows))]
    schema = {"target_id": pl.String, "target": pl.String, "member": pl.Boolean}
    return pl.LazyFrame({"target_id": ids, "target": texts, "member": labels}, schema)


def test_a_run_of_13_words_is_found_on_both_sides():
    first, second = near_duplicates(
        frame(
            ("Once W0, w1\nw2. " + " ".join(WORDS[3:13]), True),
            (" ".join(WORDS[:12]), True),
            (" ".join(WORDS[20:34]), True),
            ("says: " + " ".join(WORDS[:14]) + " and so on it goes for words and words", False),
            ("nothing of the kind at all in these nine words", False),
        )
    )
    assert (first.n_texts, first.n_long_run, first.n_high_overlap) == (3, 1, 2)
    assert first.n_concerned == 2
    assert first.share == pytest.approx(2 / 3)
    assert first.examples == (("a", "d"), ("b", "d"))
    assert (second.n_long_run, second.n_high_overlap) == (1, 0)
    assert second.examples == (("d", "a"),)


def test_twelve_words_in_a_row_are_no_long_run():
    first, second = near_duplicates(
        frame(
            (" ".join([*WORDS[:12], "x", *WORDS[12:24]]), True),
            (" ".join(["y", *WORDS[:24]]), False),
        )
    )
    assert (first.n_long_run, second.n_long_run) == (0, 0)
    # 10 of 18 runs of 8 words are shared, on both sides.
    assert (first.n_concerned, second.n_concerned) == (0, 0)


@pytest.mark.parametrize(("n_more", "n_high"), [(3, 1), (4, 0)])
def test_overlap_is_high_from_70_percent_of_runs(n_more, n_high):
    """Of 7 + more runs of 8 words, 7 are shared."""
    long = " ".join(WORDS[: 14 + n_more])
    shared = " ".join(WORDS[:14])
    first, second = near_duplicates(frame((long, True), (shared, False)))
    assert (first.n_high_overlap, second.n_high_overlap) == (n_high, 1)


def test_what_cannot_be_compared_is_counted():
    first, second = near_duplicates(
        frame((None, True), ("a b c d e f g", True), (None, False), (" ".join(WORDS[:20]), None))
    )
    assert (first.n_texts, first.n_short, second.n_texts) == (1, 1, 0)
    assert second.share is None
    assert first.share is None


def test_more_texts_than_are_compared_are_counted(monkeypatch):
    monkeypatch.setattr(preflight, "MAX_TEXTS_PER_SIDE", 2)
    same = " ".join(WORDS[:13])
    first, _ = near_duplicates(frame((same, True), (same, True), (same, True), (same, False)))
    assert (first.n_texts, first.n_left_out, first.n_concerned) == (2, 1, 2)


def clustered(*rows):
    schema = {"target_id": pl.String, "target": pl.String, "group": pl.String}
    return pl.LazyFrame(
        [(str(place), *row) for place, row in enumerate(rows)], schema, orient="row"
    )


def test_copies_count_where_their_clusters_differ():
    found = count_copies(
        clustered(
            ("one", "a"),
            ("one", "a"),
            ("two", "a"),
            ("two", "b"),
            ("two", "b"),
            ("three", None),
            ("three", None),
            (None, "a"),
            (None, "b"),
            ("four", "c"),
        )
    )
    assert found == (8, 5)


@given(
    st.lists(st.tuples(st.sampled_from(["x", "y", "z", None]), st.sampled_from(["a", "b", None])))
)
def test_copies_are_those_of_a_slow_search(rows):
    named = [(text, group or place) for place, (text, group) in enumerate(rows) if text is not None]
    slow = sum(
        any(text == other and name != elsewhere for other, elsewhere in named)
        for text, name in named
    )
    assert count_copies(clustered(*rows)) == (len(named), slow)
