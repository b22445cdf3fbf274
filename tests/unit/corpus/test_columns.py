from __future__ import annotations

import polars as pl
import pytest

from mia_batch.corpus.documents import ColumnNames, resolve
from mia_batch.errors import CorpusError

RAW = pl.Schema({"x": pl.Object(), "text": pl.String(), "label": pl.Int64(), "y": pl.Int8()})


def test_parts_are_found_by_their_own_names():
    columns = resolve(ColumnNames(), RAW, where="corpus")
    assert columns.parts == {"text": "text", "label": "label"}
    assert columns.further == {"x": "x", "y": "y"}
    assert [*columns.schema.items()][-2:] == [("x", pl.String()), ("y", pl.Int8())]


def test_a_column_that_plays_another_part_does_not_play_its_own():
    raw = pl.Schema({"label": pl.String(), "y": pl.Int8()})
    assert resolve(ColumnNames(text="label"), raw, where="c").parts == {"text": "label"}


def test_only_the_columns_behind_a_column_are_needed():
    columns = resolve(ColumnNames(document_id="y"), RAW, where="corpus")
    assert columns.needed(["member"]) == ["label"]
    assert columns.needed(["x", "document_id"]) == ["x", "y"]
    assert columns.needed(["prefix"]) == ["text"]


def test_nested_json_values_are_no_text():
    with pytest.raises(
        CorpusError, match=r"^c: column 'x' is the text but holds nested JSON values"
    ):
        resolve(ColumnNames(text="x"), RAW, where="c")


@pytest.mark.parametrize("name", ["*", "^.*$"])
def test_a_name_that_stands_for_other_columns_is_refused(name):
    with pytest.raises(CorpusError, match=r"a name that Polars takes for a pattern; rename it$"):
        resolve(ColumnNames(), RAW | {name: pl.String()}, where="corpus")


def test_a_long_list_of_columns_is_cut():
    many = pl.Schema({f"x{number}": pl.Int64() for number in range(30)})
    with pytest.raises(CorpusError, match=r"'x19', \.\.\.; name the text with --text-column$"):
        resolve(ColumnNames(), many, where="corpus")
