"""Windows of documents that are not asked about: not chosen, or there before."""

from __future__ import annotations

import polars as pl
import pytest

from mia_batch import targets as reasons
from mia_batch.errors import SettingsError
from mia_batch.schemas import Documents
from mia_batch.targets import TargetPlan, build_targets

NUMBERS = " ".join(map(str, range(100)))


def build(texts, *, role="target", **plan):
    types = Documents.create_empty().schema
    columns = {name: [None] * len(texts) for name in types}
    columns |= {"text": list(texts.values()), "document_id": list(texts)}
    frame = pl.LazyFrame(columns, schema_overrides=types)
    return build_targets(frame, TargetPlan(**{"window_words": 2} | plan), role=role).collect()


def copies(targets):
    found = targets.filter(reason=reasons.COPY)
    assert found.equals(targets.filter(role="copy"))
    assert (
        found.select("target", "prefix", "reference", "n_words").null_count().row(0)
        == (found.height,) * 4
    )
    return found.select("document_id", "window_index", "start").rows()


def test_few_windows_keep_their_places():
    every = build({"x": NUMBERS, "y": "a b", "z": None})
    few = build({"x": NUMBERS, "y": "a b", "z": None}, max_windows_per_document=5)
    assert few.equals(every.filter(pl.col("target_id").is_in(few["target_id"].implode())))
    assert few["document_id"].to_list() == ["x"] * 5 + ["y", "z"]
    assert few["n_windows"].to_list() == [50] * 5 + [1, 1]


def test_the_choice_of_a_document_depends_on_no_other():
    alone = build({"x": NUMBERS}, max_windows_per_document=5, seed=3)
    among = build({"w": "c d " + NUMBERS, "x": NUMBERS}, max_windows_per_document=5, seed=3)
    places = among.filter(document_id="x")["window_index"]
    assert places.to_list() == alone["window_index"].to_list()
    other = build({"x": NUMBERS}, max_windows_per_document=5, seed=4)
    assert other["window_index"].to_list() != alone["window_index"].to_list()


def test_a_passage_counts_once_however_it_is_spaced():
    texts = {"x": "a b c d a  b e f", "y": "c\nd e f g h", "z": "a b"}
    targets = build(texts)
    assert copies(targets) == [("x", 2, 8), ("y", 0, 0), ("y", 1, 4)]
    assert targets["target"].to_list() == ["a b", "c d", None, "e f", None, None, "g h", "a b"]
    alone = build({"y": texts["y"]})
    assert targets.filter(document_id="y")["target_id"].equals(alone["target_id"])


def test_copies_are_those_of_all_windows_not_only_of_the_chosen():
    texts = {"x": NUMBERS, "y": NUMBERS}
    few = build(texts, max_windows_per_document=5)
    assert [row[0] for row in copies(few)] == ["y"] * 5


def test_other_roles_keep_their_copies():
    assert copies(build({"x": "a b a b"}, role="non_member")) == []


def test_a_passage_is_found_where_windows_begin_elsewhere():
    words = [f"w{number}" for number in range(120)]
    first, moved = " ".join(words), "new words " + " ".join(words)
    found = build({"x": first, "y": moved}, window_words=20)
    starts = [0, *(moved.index(f"w{20 * index - 2} ") for index in range(1, 6))]
    assert copies(found) == [("y", index, start) for index, start in enumerate(starts)]
    overlapping = build({"x": first}, window_words=20, stride=5)
    assert copies(overlapping) == []


def test_windows_of_documents_without_a_name_are_not_chosen_among():
    with pytest.raises(SettingsError, match=r"a document has neither document_id nor group; give"):
        build({None: NUMBERS}, max_windows_per_document=2)
