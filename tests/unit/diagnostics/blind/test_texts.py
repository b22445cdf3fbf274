from __future__ import annotations

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from mia_batch.diagnostics import blind as module
from mia_batch.diagnostics.blind import NaiveBayes, build_classifiers, read_texts

SCHEMA = {
    "target_id": pl.String,
    "target": pl.String,
    "member": pl.Boolean,
    "group": pl.String,
    "document_id": pl.String,
}


def frame(*rows):
    """Rows without their ids, which are 00, 01, 02 ..."""
    numbered = [(f"{place:02}", *row) for place, row in enumerate(rows)]
    return pl.LazyFrame(numbered, SCHEMA, orient="row")


def words_of(found):
    classifier = build_classifiers(found.frame)["blind_naive_bayes_v1"]
    assert isinstance(classifier, NaiveBayes)
    return classifier.counts.toarray()


def test_clusters_are_groups_else_documents_else_texts():
    found = read_texts(
        frame(
            ("a", True, "x", "d1"),
            ("b", False, "x", "d2"),
            ("c", True, None, "x"),
            ("d", True, None, "x"),
            ("e", True, None, None),
            ("f", False, None, None),
        ),
        "member",
    )
    cluster = found.cluster
    assert cluster[0] == cluster[1]
    assert cluster[2] == cluster[3]
    assert len(set(cluster)) == 4
    assert sorted(set(cluster)) == [0, 1, 2, 3]


def test_windows_of_a_document_without_an_identifier_are_one_cluster():
    rows = frame(*[("a", place < 3, None, None) for place in range(5)])
    window = pl.Series([0, 1, 0, 0, 1], dtype=pl.UInt32)
    assert read_texts(rows.with_columns(window_index=window), "member").cluster.tolist() == [
        0, 0, 1, 2, 2,
    ]  # fmt: skip


def test_what_is_left_out_is_counted():
    found = read_texts(
        frame(("a", True, None, None), (None, False, None, None), ("b", None, None, None)), "member"
    )
    assert found.frame["target_id"].to_list() == ["00"]
    assert found.n_labelled == 2


def test_of_many_texts_clusters_give_as_evenly_as_they_can(monkeypatch):
    monkeypatch.setattr(module, "MAX_TEXTS_PER_CLASS", 5)
    groups = ["a"] * 6 + ["b"] * 2 + ["c"]
    rows = [("t", True, group, None) for group in groups] + [("t", False, None, None)] * 3
    found = read_texts(frame(*rows), "member")
    # The first of a, b and c, the second of a and b; and all texts of the other class.
    assert found.frame["target_id"].to_list() == ["00", "01", "06", "07", "08", "09", "10", "11"]
    assert found.n_labelled == 12


def test_the_order_of_rows_means_nothing():
    rows = frame(*[(f"text {place}", place % 3 == 0, None, f"d{place}") for place in range(30)])
    found, turned = read_texts(rows, "member"), read_texts(rows.reverse(), "member")
    assert_frame_equal(found.frame, turned.frame)
    assert found.cluster.tolist() == turned.cluster.tolist()


def test_what_classifiers_see_of_a_text():
    text = "In 2017, 1999 and 20190 and 1899:\nA, B!"
    seen = read_texts(frame((text, True, None, None), ("", False, None, None)), "member").frame
    assert seen["text"].to_list() == [text, ""]
    assert seen["year"].to_list() == [2019, 0]
    numbers = seen["surface"].struct.unnest()
    # One character more than there is, so that an empty text has shares, too.
    assert numbers["characters"].exp().to_list() == pytest.approx([40, 1])
    assert numbers["words"].exp().to_list() == pytest.approx([10, 1])
    counts = {
        "punctuation": 4,
        "commas": 2,
        "digits": 17,
        "numbers": 4,
        "capitals": 3,
        "spaces": 8,
        "lines": 1,
    }
    shares = {name: numbers[name][0] * 40 for name in counts}
    assert shares == pytest.approx(counts)
    assert numbers["zlib"][1] == 8
    assert numbers["bytes"].to_list() == [1, 1]


def test_a_long_text_is_seen_to_its_end_but_for_its_words(monkeypatch):
    monkeypatch.setattr(module, "MAX_CHARACTERS", 4)
    seen = read_texts(frame(("word 2020", True, None, None)), "member").frame
    assert seen.select("text", "year").row(0) == ("word", 2020)


def test_texts_without_any_word_can_be_classified():
    found = read_texts(frame(("", True, None, None), ("...", False, None, None)), "member")
    assert words_of(found).tolist() == [[0], [0]]


def test_words_are_lower_cased_runs_of_word_characters():
    found = read_texts(frame(("A a's Über_x 1", True, None, None)), "member")
    assert sorted(words_of(found)[0].tolist()) == [0, 1, 1, 1, 2]  # 0: no word of this text


def test_batches_choose_the_same_texts_as_all_at_once(monkeypatch):
    """120 texts of 20 clusters of very different sizes, 30 wanted of a class."""
    groups = [number**3 % 101 * number % 20 // (1 + number % 4) for number in range(120)]
    of_all = [("text", number % 2 > 0, f"g{group}", None) for number, group in enumerate(groups)]
    rows = frame(*of_all).with_columns(target_id=pl.col("target_id").hash().cast(pl.String))
    monkeypatch.setattr(module, "MAX_TEXTS_PER_CLASS", 30)
    whole = read_texts(rows, "member")
    monkeypatch.setattr(module, "_ROWS_AT_ONCE", 7)
    pieces = read_texts(rows, "member")
    assert_frame_equal(pieces.frame, whole.frame)
    assert pieces.cluster.tolist() == whole.cluster.tolist()
    assert (pieces.n_labelled, whole.frame.height) == (120, 60)
