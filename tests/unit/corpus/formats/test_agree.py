from __future__ import annotations

import polars as pl
import pytest

from mia_batch.corpus.formats.agree import agreed_schema
from mia_batch.errors import CorpusError


def test_one_schema_is_agreed_with_itself():
    schema = pl.Schema({"a": pl.Int64(), "b": pl.Null()})
    assert agreed_schema({"x": schema}) == schema


def test_columns_of_nulls_take_the_others_type():
    schemas = {
        "x": pl.Schema({"a": pl.Null(), "b": pl.Int64()}),
        "y": pl.Schema({"b": pl.Null(), "a": pl.String()}),
    }
    assert agreed_schema(schemas) == pl.Schema({"a": pl.String(), "b": pl.Int64()})


def test_a_column_that_only_one_file_has_is_refused():
    schemas = {
        "x": pl.Schema({"a": pl.Int64()}),
        "y": pl.Schema({"a": pl.Int64(), "b": pl.Int64()}),
    }
    with pytest.raises(CorpusError, match=r"^y has a column 'b' that x lacks; give files with the"):
        agreed_schema(schemas)
    with pytest.raises(CorpusError, match=r"^y has a column 'b' that x lacks; give files with the"):
        agreed_schema(dict(reversed(schemas.items())))


def test_a_column_of_two_types_is_refused():
    schemas = {"x": pl.Schema({"a": pl.Int64()}), "y": pl.Schema({"a": pl.Int32()})}
    with pytest.raises(CorpusError, match=r"^column 'a' is Int64 in x but Int32 in y; give it one"):
        agreed_schema(schemas)
