from __future__ import annotations

import polars as pl
import pytest

from mia_batch.diagnostics import duplicates
from mia_batch.diagnostics.duplicates import near_duplicates

WORDS = [f"w{i}" for i in range(40)]


def frame(*rows):
    """Texts with their label; ids are a, b, c ..."""
    texts, labels = zip(*rows, strict=True)
    ids = [chr(ord("a") + place) for place in range(len(rows))]
    schema = {"target_id": pl.String, "target": pl.String, "member": pl.Boolean}
    return pl.LazyFrame({"target_id": ids, "target": texts, "member": labels}, schema)


def test_a_run_of_13_words_is_found_on_both_sides():
    found = near_duplicates(
        frame(
            ("Once W0, w1\nw2. " + " ".join(WORDS[3:13]), True),
            (" ".join(WORDS[:12]), True),
            (" ".join(WORDS[20:34]), True),
            ("says: " + " ".join(WORDS[:14]) + " and so on it goes for words and words", False),
            ("nothing of the kind at all in these nine words", False),
        )
    )
    assert (found.first.n_texts, found.first.n_long_run, found.first.n_high_overlap) == (3, 1, 2)
    assert found.first.n_concerned == 2
    assert found.first.share == pytest.approx(2 / 3)
    assert found.first.examples == (("a", "d"), ("b", "d"))
    assert (found.second.n_long_run, found.second.n_high_overlap) == (1, 0)
    assert found.second.examples == (("d", "a"),)
    assert found.sentence == (
        "Near-duplicates (a run of 13 words or 70% of the runs of 8 words stand on the other "
        "side): 2 of 3 members, 66.7%, 1 of 2 non-members, 50.0%; for example a has words of d."
    )


def test_twelve_words_in_a_row_are_no_long_run():
    found = near_duplicates(
        frame(
            (" ".join([*WORDS[:12], "x", *WORDS[12:24]]), True),
            (" ".join(["y", *WORDS[:24]]), False),
        )
    )
    assert (found.first.n_long_run, found.second.n_long_run) == (0, 0)
    # 10 of 18 runs of 8 words are shared, on both sides.
    assert (found.first.n_concerned, found.second.n_concerned) == (0, 0)


@pytest.mark.parametrize(("n_more", "n_high"), [(3, 1), (4, 0)])
def test_overlap_is_high_from_70_percent_of_runs(n_more, n_high):
    """Of 7 + more runs of 8 words, 7 are shared."""
    long = " ".join(WORDS[: 14 + n_more])
    shared = " ".join(WORDS[:14])
    found = near_duplicates(frame((long, True), (shared, False)))
    assert (found.first.n_high_overlap, found.second.n_high_overlap) == (n_high, 1)


def test_what_cannot_be_compared_is_counted():
    found = near_duplicates(
        frame((None, True), ("a b c d e f g", True), (None, False), (" ".join(WORDS[:20]), None)),
        names=("targets", "non-members"),
    )
    assert (found.n_null, found.first.n_texts, found.first.n_short) == (2, 1, 1)
    assert found.first.share is None
    assert found.sentence.endswith(
        "no targets of 8 words to compare, no non-members of 8 words to compare."
    )


def test_more_texts_than_are_compared_are_counted(monkeypatch):
    monkeypatch.setattr(duplicates, "MAX_TEXTS_PER_SIDE", 2)
    same = " ".join(WORDS[:13])
    found = near_duplicates(frame((same, True), (same, True), (same, True), (same, False)))
    assert (found.first.n_texts, found.first.n_left_out, found.first.n_concerned) == (2, 1, 2)
    assert "2 of 2 members, 100.0% (1 more not compared)" in found.sentence
