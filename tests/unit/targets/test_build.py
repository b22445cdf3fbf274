from __future__ import annotations

import polars as pl
import pytest

from mia_batch import tables
from mia_batch import targets as reasons
from mia_batch.errors import SchemaMismatchError, SettingsError
from mia_batch.schemas import Documents, Targets
from mia_batch.targets import TargetPlan, build_targets


def documents(**columns):
    types = Documents.create_empty().schema
    height = len(next(iter(columns.values())))
    nothing = {name: [None] * height for name in types}
    return pl.LazyFrame(nothing | columns, schema_overrides=types)


def build(frame, **plan):
    targets = build_targets(frame, TargetPlan(**plan))
    found = targets.collect()
    assert found.schema == targets.collect_schema()
    tables.check(found, Targets, what="targets")
    Targets.validate(found)
    assert found["target_id"].n_unique() == found.height
    return found


def test_columns_are_ours_first_then_the_users():
    found = build(
        documents(
            text=["a b c"], document_id=["d"], member=[True], group=["g"], year=[1999], meta=[[1]]
        )
    )
    assert found.columns == [*Targets.column_names(), "year", "meta"]
    assert found.drop("target_id").row(0) == (
        *("target", "d", "g", True, 0, 1, 0, "a b c", "a", " b c", 3, None),
        *(1999, [1]),
    )


def test_windows_follow_their_document():
    frame = documents(text=["a b c d e", None, "f g"], document_id=["x", "y", "z"], n=[1, 2, 3])
    found = build(frame, window_words=2)
    assert found.select("document_id", "window_index", "target", "n").rows() == [
        ("x", 0, "a b", 1),
        ("x", 1, "c d", 1),
        ("y", 0, None, 2),
        ("z", 0, "f g", 3),
    ]


def test_what_cannot_be_sampled_is_kept_with_its_reason():
    found = build(documents(text=[None, " ", "a", "a b"]))
    assert found.select("n_words", "reason").rows() == [
        (None, reasons.NULL_TEXT),
        (0, reasons.EMPTY_TEXT),
        (1, reasons.TOO_SHORT),
        (2, None),
    ]
    assert found.head(3).select("prefix", "reference").null_count().row(0) == (3, 3)


def test_equal_texts_without_identifiers_have_names_of_their_own():
    few = build(documents(text=["a b", None, "a b", None, "c d"]))
    more = build(documents(text=["a b", None, "a b", None, "c d", "a b", "c d", None]))
    assert more["target_id"][:5].to_list() == few["target_id"].to_list()


def test_names_do_not_depend_on_batches():
    texts = ["long " * 100_000, "a b", "long " * 100_000, "a b"] * 5
    alone = build(documents(text=texts))
    frames = [documents(text=[text]).collect() for text in texts]

    def one_by_one(_names):
        yield from frames

    streamed = build(tables.generate(frames[0].schema, one_by_one))
    assert streamed["target_id"].to_list() == alone["target_id"].to_list()


def test_windows_of_a_long_document_come_in_order():
    text = " ".join(map(str, range(50_000)))
    found = build(documents(text=[text, "a b"]), window_words=100, stride=10)
    assert found.height == (50_000 - 100) // 10 + 2
    firsts = found["target"].str.extract(r"^(\d+)").cast(pl.Int64)
    assert firsts.head(-1).to_list() == list(range(0, 49_901, 10))
    assert found["window_index"].to_list() == [*range(found.height - 1), 0]


def test_the_users_halves_are_the_target():
    found = build(documents(text=["x", "a b"], prefix=["a b", None], reference=["c d", None]))
    assert found.select("target", "prefix", "reference", "n_words").rows() == [
        ("a bc d", "a b", "c d", 3),
        ("a b", "a", " b", 2),
    ]


def test_windows_of_the_users_halves_are_refused():
    frame = documents(text=["x", "y"], prefix=[None, "a"], reference=[None, "b"])
    with pytest.raises(SettingsError, match=r"^a window is set but the corpus has its own pre"):
        build(frame, window_words=2)


def test_another_table_is_refused():
    with pytest.raises(
        SchemaMismatchError, match=r"^documents is not a Documents table: 'document_id'"
    ):
        build_targets(pl.LazyFrame({"text": ["a"]}), TargetPlan())


def test_no_documents_are_no_targets():
    assert build(documents(text=[])).height == 0


def test_targets_can_be_sunk_and_asked_for_a_part(tmp_path):
    targets = build_targets(documents(text=["a b", "c"], n=[1, 2]), TargetPlan())
    tables.sink(targets, tmp_path / "targets.parquet", Targets)
    assert tables.scan(tmp_path / "targets.parquet", Targets).collect().equals(targets.collect())
    assert targets.filter(pl.col("reason").is_null()).select("n").collect().item() == 1
    assert targets.select(pl.len()).collect().item() == 2
